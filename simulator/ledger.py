"""The ledger: what one trial did to the business, sealed by two hashes.

``content_hash`` covers what was done: the same deterministic trial has the same one on every machine.
``ledger_hash`` covers the content's hash together with the envelope: when, where, by what software.
A hash shows integrity, not origin.
"""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag

from simulator.assignment import Isolation, Request
from simulator.model import WireModel
from simulator.output import Claims, Usage

Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Microseconds = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""Since 1970-01-01T00:00:00Z."""

LONGEST_ERROR = 200


class AnsweredCall(WireModel):
    """A tool call and the copy of its result."""

    tool: str
    arguments: dict[str, JsonValue]
    result: JsonValue


class FailedCall(WireModel):
    """A tool call that the world answered with an error, by its class."""

    tool: str
    arguments: dict[str, JsonValue]
    error: Literal["PermissionError", "ValueError", "ToolTimeout"]


class RefusedCall(WireModel):
    """A call that was refused before any effect: no such tool, not its arguments, or no JSON."""

    tool: Annotated[str, Field(max_length=200)]
    arguments: JsonValue
    """As sent, or null where canonical JSON would not give back exactly what was sent."""
    raw_sha256: Sha256
    """Of the bytes of the protocol frame."""
    error: Literal["InvalidCall"]


def _kind_of_call(call: Any) -> str:
    if not isinstance(call, dict):
        return type(call).__name__
    if "result" in call:
        return "AnsweredCall"
    return "RefusedCall" if call.get("error") == "InvalidCall" else "FailedCall"


Call = Annotated[
    Annotated[AnsweredCall, Tag("AnsweredCall")]
    | Annotated[FailedCall, Tag("FailedCall")]
    | Annotated[RefusedCall, Tag("RefusedCall")],
    Discriminator(_kind_of_call),
]


class Turn(WireModel):
    """A question that reached the customer, and the scripted reply, null where none was left."""

    question: str
    reply: str | None


class Content(WireModel):
    """What was done, in order. Equal for every run of the same deterministic trial."""

    version: Literal[1] = 1
    world: str
    request: Request
    calls: list[Call]
    objects: list[dict[str, JsonValue]]
    """Final state and events of every business object, the untouched and the foreign ones too, as presented."""
    turns: list[Turn]
    message: str
    """Empty only where ``error`` says why there is none."""
    claims: Claims
    error: Annotated[str, Field(min_length=1, max_length=LONGEST_ERROR)] | None
    """The class of what ended the agent instead of an answer; never its text."""


class CallTime(WireModel):
    started: Microseconds
    ended: Microseconds


class Software(WireModel):
    version: str
    source: Sha256
    python: str


class Place(WireModel):
    """Where the attempt ran."""

    launcher: str
    host: str
    worker: str


class Envelope(WireModel):
    """All that may differ between two runs of the same deterministic trial."""

    version: Literal[1] = 1
    trial: str
    attempt: Annotated[int, Field(ge=1)]
    started: Microseconds
    ended: Microseconds
    calls: list[CallTime]
    usage: Usage | None
    """Self-reported by the agent."""
    software: Software
    isolation: Isolation
    place: Place
    sealed_by: Literal["recorder", "journal"]


class Ledger(WireModel):
    """The document that enters the store: always its canonical JSON, byte for byte."""

    version: Literal[1] = 1
    content: Content
    content_hash: Sha256
    envelope: Envelope
    ledger_hash: Sha256
