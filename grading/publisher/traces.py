"""A trial's trace, built from its ledger, with OpenInference attributes, and its OTLP form.

One AGENT span for the trial, one TOOL span for each call with the call's own times, and one LLM span where the agent
told of its usage, marked as self-reported. No agent has to be instrumented: what is shown is what the recorder saw.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from openinference.semconv.resource import ResourceAttributes
from openinference.semconv.trace import OpenInferenceMimeTypeValues, SpanAttributes
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from grading.publisher import outgoing
from grading.publisher.desired import DesiredRun, DesiredSpan

SCOPE = "cellwise"
MOST_CALLS = 1_000
"""Calls of one trial that are shown; the trial's metadata says how many there were."""
LARGEST_VALUE = 20_000
"""Bytes of JSON in one attribute."""
_TEXT = OpenInferenceMimeTypeValues.TEXT.value
_JSON = OpenInferenceMimeTypeValues.JSON.value
Attributes = dict[str, str | int | float | bool]


def spans_of(ledger: Mapping[str, Any]) -> tuple[DesiredSpan, ...]:
    """The spans of one ledger document: the trial, its calls in order, what the agent told of its usage."""
    content, envelope = ledger["content"], ledger["envelope"]
    started = envelope["started"]
    ended = max(started, envelope["ended"])
    timed = islice(zip(content["calls"], envelope["calls"], strict=True), MOST_CALLS)
    calls = tuple(_call(call, time) for call, time in timed)
    return _trial(ledger, started, ended), *calls, *_usage(envelope["usage"], started, ended)


def trace_id(project_name: str, case_id: str, repetition: int) -> str:
    """32 hex digits. Phoenix's ids are global and the first write wins; a project's name is random for each experiment,
    so a resend is dropped and a recreated experiment gets traces of its own."""
    return _digest(project_name, case_id, repetition)[:16].hex()


def span_ids(project_name: str, run: DesiredRun) -> list[str]:
    """16 hex digits for each span of a run, in order."""
    return [_digest(project_name, run.case_id, run.repetition, number)[:8].hex() for number in range(len(run.spans))]


def otlp(project_name: str, runs: Iterable[tuple[DesiredRun, Sequence[int]]]) -> bytes:
    """An OTLP export request (protobuf) with the spans of the given numbers of each run."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.append(_attribute(ResourceAttributes.PROJECT_NAME, project_name))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = SCOPE
    for run, numbers in runs:
        trace = bytes.fromhex(trace_id(project_name, run.case_id, run.repetition))
        ids = [bytes.fromhex(span) for span in span_ids(project_name, run)]
        for number in numbers:
            scope_spans.spans.append(_span(run.spans[number], trace, ids, number))
    encoded: bytes = request.SerializeToString()
    return encoded


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


def _span(span: DesiredSpan, trace: bytes, ids: Sequence[bytes], number: int) -> Span:
    encoded = Span(
        trace_id=trace,
        span_id=ids[number],
        parent_span_id=b"" if span.parent is None else ids[span.parent],
        name=span.name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.started * 1000,
        end_time_unix_nano=span.ended * 1000,
        status=Status(code=Status.STATUS_CODE_OK)
        if span.error is None
        else Status(code=Status.STATUS_CODE_ERROR, message=outgoing.text(span.error)),
    )
    encoded.attributes.append(_attribute(SpanAttributes.OPENINFERENCE_SPAN_KIND, span.kind))
    encoded.attributes.extend(_attribute(name, value) for name, value in span.attributes.items())
    return encoded


def _attribute(name: str, value: str | int | float | bool) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=name, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    return KeyValue(key=name, value=AnyValue(string_value=value))


def _json_text(value: Any) -> str:
    return json.dumps(outgoing.json(value, largest=LARGEST_VALUE), ensure_ascii=False)


def _digest(*parts: str | int) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()
