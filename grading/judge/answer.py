"""A provider's response, read strictly: a verdict is one that was given in the agreed form and in no other way.

Whatever cannot be used is an abstention that names its class: Refusal, Truncated, ContentFilter, ToolCalls, Empty,
NoAnswer, UnknownFinish, InvalidJSON, WrongSchema, MalformedResponse. A sentence about abstaining is InvalidJSON.
"""

import json
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grading.judge import JudgeVerdict
from simulator.model import WireModel

LONGEST_EXPLANATION = 4_000


class Said(WireModel):
    """What a judge must answer. The explanation comes first, so that it is not made up for a verdict."""

    explanation: Annotated[str, Field(max_length=LONGEST_EXPLANATION)]
    verdict: JudgeVerdict


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "explanation": {"type": "string"},
        "verdict": {"type": "string", "enum": ["pass", "fail", "abstain"]},
    },
    "required": ["explanation", "verdict"],
    "additionalProperties": False,
}


class _Provided(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Message(_Provided):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(_Provided):
    message: _Message
    finish_reason: str | None = None


class _Completion(_Provided):
    model: str | None = None
    choices: list[_Choice]


class _Usage(_Provided):
    prompt_tokens: Annotated[int, Field(ge=0, le=2**53 - 1)]
    completion_tokens: Annotated[int, Field(ge=0, le=2**53 - 1)]


class Reading(NamedTuple):
    """What was read of a response."""

    verdict: JudgeVerdict
    explanation: str
    error: str | None
    model: str | None
    input_tokens: int | None
    output_tokens: int | None


def read(body: bytes) -> Reading:
    """A chat completion's body. Usage that is missing or makes no sense is unknown, whatever the answer is worth."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return Reading("abstain", "the response is no JSON", "MalformedResponse", None, None, None)
    tokens = _tokens(document)
    try:
        completion = _Completion.model_validate(document)
    except ValidationError:
        return Reading("abstain", "the response is no chat completion", "MalformedResponse", None, *tokens)
    verdict, explanation, error = _verdict(completion.choices)
    return Reading(verdict, explanation, error, _text(completion.model), *tokens)


def _verdict(choices: list[_Choice]) -> tuple[JudgeVerdict, str, str | None]:
    if len(choices) != 1:
        return "abstain", f"{len(choices)} answers where one was asked for", "NoAnswer"
    message, finish = choices[0].message, choices[0].finish_reason
    if message.refusal:
        return "abstain", (_text(message.refusal) or "")[:LONGEST_EXPLANATION], "Refusal"
    if finish == "length":
        return "abstain", "the answer was cut off", "Truncated"
    if finish == "content_filter":
        return "abstain", "the provider's filter ended the answer", "ContentFilter"
    if message.tool_calls or finish in ("tool_calls", "function_call"):
        return "abstain", "a tool was called, and none was offered", "ToolCalls"
    if finish != "stop":
        return "abstain", "the provider does not say that the answer is whole", "UnknownFinish"
    if not message.content or not message.content.strip():
        return "abstain", "the answer is empty", "Empty"
    try:
        value = json.loads(message.content, object_pairs_hook=_once)
    except _Repeated:
        return "abstain", "a member is there twice", "WrongSchema"
    except (ValueError, RecursionError):
        return "abstain", "the answer is not the JSON that was asked for", "InvalidJSON"
    try:
        said = Said.model_validate(value)
        said.explanation.encode()
    except (ValidationError, UnicodeEncodeError):
        return "abstain", "the answer does not have the agreed members and values", "WrongSchema"
    return said.verdict, said.explanation, None


class _Repeated(ValueError):  # noqa: N818 - reads as what is wrong
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Repeated
    return members


def _tokens(document: Any) -> tuple[int | None, int | None]:
    try:
        usage = _Usage.model_validate(document.get("usage") if isinstance(document, dict) else None)
    except ValidationError:
        return None, None
    return usage.prompt_tokens, usage.completion_tokens


def _text(text: str | None) -> str | None:
    """Text of a provider's that can be stored."""
    return text.encode(errors="replace").decode() if text else None
