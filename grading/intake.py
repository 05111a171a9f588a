"""The intake: the only door through which a ledger enters the store.

*Validated* means: the schema, both hashes, and the recorded calls given again to a fresh world made from the stored
assignment, which must answer and end exactly as recorded (simulator/replay.py). Local workers and, later, pods come
through the same functions.
"""

from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from simulator.answer import unanswered
from simulator.canonical import canonical_of_parsed
from simulator.journal_reading import JournaledAttempt
from simulator.ledger import LONGEST_ERROR, Envelope, Ledger, RefusedCall
from simulator.output import Claims, Usage
from simulator.replay import ReplayError, compose, first_difference, rebuild, replay
from simulator.sealing import seal

LARGEST_LEDGER = 64 * 1024 * 1024
"""Bytes. A recorder ends an agent long before (simulator/recorder.py, LARGEST_RECORD)."""


QuarantineKind = Literal["ledger_malformed", "hash_mismatch", "replay_mismatch"]


class Quarantined(ValueError):  # noqa: N818 - reads as what becomes of it
    """A document that is no valid ledger of its attempt. It is kept as an incident and never graded.

    The message names the place.
    """

    def __init__(self, kind: QuarantineKind, message: str) -> None:
        super().__init__(message)
        self.kind: QuarantineKind = kind


@dataclass(frozen=True, slots=True)
class ValidLedger:
    """A ledger that may enter the store."""

    document: bytes
    content: dict[str, Any]
    content_hash: str
    ledger_hash: str
    started: int
    ended: int


def validate(
    document: bytes, assignment: dict[str, Any], trial: str, number: int, *, parsed: dict[str, Any] | None = None
) -> ValidLedger:
    """Checks a ledger against the assignment of the attempt that it says it is of.

    Args:
        assignment: the stored one, as a JSON value.
        trial: the trial's name, and
        number: the attempt's, which the envelope must carry.
        parsed: the document, by whoever parsed it already.

    Raises:
        Quarantined: with the first thing that is wrong.
    """
    if len(document) > LARGEST_LEDGER:
        raise Quarantined(
            "ledger_malformed", f"{len(document)} bytes are more than a ledger may have ({LARGEST_LEDGER})"
        )
    try:
        members = orjson.loads(document) if parsed is None else parsed
        content, envelope = members["content"], members["envelope"]
        # All else in a ledger is what replay gives, or the document is not the one that is expected below.
        Claims.model_validate(content["claims"])
        Envelope.model_validate(envelope)
        for call in content["calls"]:
            if call.get("error") == "InvalidCall":
                RefusedCall.model_validate(call)
        rebuilt = rebuild(assignment, content)
        # A world makes nothing but JSON: no number that is not in an assignment or in a call.
        expected = seal(rebuilt, envelope, canonical=canonical_of_parsed)
    except ReplayError as error:
        _check_schema(document)
        raise Quarantined("replay_mismatch", f"content.{error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        _check_schema(document)
        raise Quarantined("ledger_malformed", f"content: {error}") from error
    if expected != document:
        _check_schema(document)
        if (where := first_difference(rebuilt, content, "content")) is not None:
            raise Quarantined("replay_mismatch", f"{where}: a fresh world answers otherwise")
        raise Quarantined("hash_mismatch", "content_hash, ledger_hash or the canonical form is not the document's")
    if (envelope["trial"], envelope["attempt"]) != (trial, number):
        raise Quarantined("ledger_malformed", f"envelope: it is of {envelope['trial']}, attempt {envelope['attempt']}")
    _check_complete(content, envelope)
    _check_times(envelope, len(content["calls"]))
    _check_ending(content)
    return ValidLedger(
        document, content, members["content_hash"], members["ledger_hash"], envelope["started"], envelope["ended"]
    )


def _check_schema(document: bytes) -> None:
    try:
        Ledger.model_validate_json(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise Quarantined("ledger_malformed", f"{place}: {first['msg']}") from error


def seal_journal(
    journaled: JournaledAttempt, assignment: dict[str, Any], envelope: dict[str, Any], error: str
) -> ValidLedger:
    """The ledger of an attempt whose recorder did not seal one, from its journal: an error instead of an answer.

    Args:
        envelope: the identity of the attempt; times and calls are the journal's.
        error: AttemptLost, or the limit that ended the recorder with its agent.

    Raises:
        Quarantined: the journal's calls are not what a fresh world answers.
    """
    calls = [entry["call"] for entry in journaled.calls]
    try:
        session, customer = replay(assignment, calls)
    except (ReplayError, KeyError, TypeError) as unplayable:
        raise Quarantined("replay_mismatch", f"journal: {unplayable}") from unplayable
    if (where := first_difference(session.calls, calls, "calls")) is not None:
        raise Quarantined("replay_mismatch", f"journal: {where}: a fresh world answers otherwise")
    content = compose(assignment, session, customer, "", unanswered(), error)
    started = journaled.started or 0
    times = [{"started": entry["started"], "ended": entry["ended"]} for entry in journaled.calls]
    document = seal(
        content,
        {
            **envelope,
            "version": 1,
            "started": started,
            "ended": times[-1]["ended"] if times else started,
            "calls": times,
            "usage": None,
            "sealed_by": "journal",
        },
    )
    return validate(document, assignment, envelope["trial"], envelope["attempt"])


def _check_complete(content: dict[str, Any], envelope: dict[str, Any]) -> None:
    """The models have defaults for those who write parts of a ledger; a sealed one leaves nothing to them."""
    for place, found, model in (
        ("content.claims", content["claims"], Claims),
        ("envelope", envelope, Envelope),
        ("envelope.usage", envelope.get("usage"), Usage),
    ):
        if found is not None and (left_out := model.model_fields.keys() - found.keys()):
            raise Quarantined("ledger_malformed", f"{place}.{min(left_out)}: is missing")


def _check_times(envelope: dict[str, Any], calls: int) -> None:
    times = [envelope["started"]]
    for call in envelope["calls"]:
        times += [call["started"], call["ended"]]
    times.append(envelope["ended"])
    if len(envelope["calls"]) != calls:
        raise Quarantined("ledger_malformed", f"envelope.calls: {len(envelope['calls'])} times for {calls} calls")
    if times != sorted(times):
        raise Quarantined("ledger_malformed", "envelope.calls: times run backwards")


def _check_ending(content: dict[str, Any]) -> None:
    error = content["error"]
    if not isinstance(content["message"], str) or not (error is None or isinstance(error, str)):
        raise Quarantined("ledger_malformed", "content: message and error are texts")
    if error is not None and not 0 < len(error) <= LONGEST_ERROR:
        raise Quarantined("ledger_malformed", f"content.error: it has {len(error)} characters")
    if error is None and not content["message"]:
        raise Quarantined("ledger_malformed", "content.message: it is empty, and no error says why")
    if error is not None and (content["message"], content["claims"]) != ("", unanswered()):
        raise Quarantined("ledger_malformed", "content.claims: an agent that ended with an error claims nothing")
