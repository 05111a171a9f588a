"""The spans of a trial's trace, built from its ledger, with OpenInference attributes.

One AGENT span for the trial, one TOOL span for each call with the call's own times, and one LLM span where the agent
told of its usage, marked as self-reported. No agent has to be instrumented: what is shown is what the recorder saw.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from openinference.semconv.trace import OpenInferenceMimeTypeValues, SpanAttributes

from grading.publisher import outgoing

MOST_CALLS = 1_000
"""Calls of one trial that are shown; the trial's metadata says how many there were."""
LARGEST_VALUE = 20_000
"""Bytes of JSON in one attribute."""
_TEXT = OpenInferenceMimeTypeValues.TEXT.value
_JSON = OpenInferenceMimeTypeValues.JSON.value
Attributes = dict[str, str | int | float | bool]
Microseconds = int
"""Since 1970-01-01T00:00:00Z."""
SpanKind = Literal["AGENT", "TOOL", "LLM"]


@dataclass(frozen=True, slots=True)
class DesiredSpan:
    """One span of a trial's trace; its number is its position, its identity is given when it is sent."""

    name: str
    kind: SpanKind
    started: Microseconds
    ended: Microseconds
    attributes: Mapping[str, str | int | float | bool]
    parent: int | None
    error: str | None = None
    """The class of the error with which it ended."""


def spans_of(ledger: Mapping[str, Any]) -> tuple[DesiredSpan, ...]:
    """The spans of one ledger document: the trial, its calls in order, what the agent told of its usage."""
    content, envelope = ledger["content"], ledger["envelope"]
    started = envelope["started"]
    ended = max(started, envelope["ended"])
    timed = islice(zip(content["calls"], envelope["calls"], strict=True), MOST_CALLS)
    calls = tuple(_call(call, time) for call, time in timed)
    return _trial(ledger, started, ended), *calls, *_usage(envelope["usage"], started, ended)


def _trial(ledger: Mapping[str, Any], started: int, ended: int) -> DesiredSpan:
    content, envelope = ledger["content"], ledger["envelope"]
    request, claims = content["request"], content["claims"]
    attributes: Attributes = {
        SpanAttributes.INPUT_VALUE: outgoing.text(request["utterance"]),
        SpanAttributes.INPUT_MIME_TYPE: _TEXT,
        SpanAttributes.OUTPUT_VALUE: outgoing.text(content["message"]),
        SpanAttributes.OUTPUT_MIME_TYPE: _TEXT,
        SpanAttributes.USER_ID: outgoing.text(request["customer_id"], 1_000),
        SpanAttributes.METADATA: _json_text(
            {
                "trial": envelope["trial"],
                "attempt": envelope["attempt"],
                "claims": claims,
                "calls": len(content["calls"]),
                "error": content["error"],
                "isolation": envelope["isolation"],
                "sealed_by": envelope["sealed_by"],
                "content_hash": ledger["content_hash"],
                "ledger_hash": ledger["ledger_hash"],
            }
        ),
    }
    return DesiredSpan("trial", "AGENT", started, ended, attributes, None, content["error"])


def _call(call: Mapping[str, Any], time: Mapping[str, int]) -> DesiredSpan:
    arguments = _json_text(call["arguments"])
    error = call.get("error")
    attributes: Attributes = {
        SpanAttributes.TOOL_NAME: outgoing.text(call["tool"]),
        SpanAttributes.TOOL_PARAMETERS: arguments,
        SpanAttributes.INPUT_VALUE: arguments,
        SpanAttributes.INPUT_MIME_TYPE: _JSON,
    }
    if error is None:
        attributes[SpanAttributes.OUTPUT_VALUE] = _json_text(call["result"])
        attributes[SpanAttributes.OUTPUT_MIME_TYPE] = _JSON
    else:
        attributes[SpanAttributes.OUTPUT_VALUE] = error
        attributes[SpanAttributes.OUTPUT_MIME_TYPE] = _TEXT
    name = outgoing.text(call["tool"]) or "(no name)"
    return DesiredSpan(name, "TOOL", time["started"], max(time["started"], time["ended"]), attributes, 0, error)


def _usage(usage: Mapping[str, Any] | None, started: int, ended: int) -> tuple[DesiredSpan, ...]:
    """Phoenix takes tokens from LLM spans alone. It is one span for the whole trial, because the agent tells a sum."""
    if usage is None:
        return ()
    attributes: Attributes = {
        SpanAttributes.METADATA: _json_text({"self_reported": True, **usage}),
    }
    if usage["model"]:
        attributes[SpanAttributes.LLM_MODEL_NAME] = outgoing.text(usage["model"])
    if usage["provider"]:
        attributes[SpanAttributes.LLM_PROVIDER] = outgoing.text(usage["provider"])
    tokens = [usage["input_tokens"], usage["output_tokens"]]
    names = (SpanAttributes.LLM_TOKEN_COUNT_PROMPT, SpanAttributes.LLM_TOKEN_COUNT_COMPLETION)
    told = {name: count for name, count in zip(names, tokens, strict=True) if count is not None}
    if len(told) == len(names):
        told[SpanAttributes.LLM_TOKEN_COUNT_TOTAL] = sum(told.values())
    # Phoenix keeps counts in columns of 32 bits; a span with a larger one would never be stored.
    attributes.update({name: count for name, count in told.items() if count < 2**31})
    return (DesiredSpan("usage (self-reported)", "LLM", started, ended, attributes, 0),)


def _json_text(value: Any) -> str:
    return json.dumps(outgoing.json(value, largest=LARGEST_VALUE), ensure_ascii=False)
