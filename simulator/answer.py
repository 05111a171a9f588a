"""How an agent ended, as its recorder takes it: with an answer, or with an error instead.

simulator/output.py says what an answer may be. Most need not be asked about there: a plain one is seen at once to be
valid, and a trial whose agent gives one starts without pydantic, a quarter of a second of processor time.
"""

from typing import Any, NamedTuple, TypeGuard

UNSET: dict[str, Any] = {
    "claimed_outcome": None,
    "transaction_status_claim": "unknown",
    "settlement_status_claim": "not_claimed",
    "arrival_commitment_days": None,
    "message_template_id": None,
    "escalation_reason": None,
}
"""The claims that an answer does not make, in the order of the model."""

WORDS = {
    "claimed_outcome": frozenset({"refunded", "not_refunded", "needs_review"}),
    "transaction_status_claim": frozenset({"committed", "not_committed", "unknown"}),
    "settlement_status_claim": frozenset({"settled", "not_confirmed", "not_claimed", "unknown"}),
}


class Answer(NamedTuple):
    """How an agent ended: with an answer, or with an error instead."""

    message: str
    claims: dict[str, Any]
    usage: dict[str, Any] | None
    error: str | None


def failure(error: str) -> Answer:
    """What stands for the answer of an agent that gave none."""
    return Answer(message="", claims=unanswered(), usage=None, error=error)


def unanswered() -> dict[str, Any]:
    """What stands for the claims of an agent that ended without an answer, as a JSON value."""
    return {**UNSET, "claimed_outcome": "needs_review", "settlement_status_claim": "unknown"}


def answer_of(value: Any) -> Answer:
    """The answer that an agent sent; ``InvalidOutput`` where it is none."""
    return plain(value) or _checked(value)


def plain(value: Any) -> Answer | None:
    """An answer without usage whose every member is plainly valid; None says nothing about any other."""
    if type(value) is not dict or value.get("usage") is not None:
        return None
    message, claims = value.get("message"), {**UNSET, **value}
    claims.pop("message", None)
    claims.pop("usage", None)
    if claims.keys() != UNSET.keys() or not _is_text(message):
        return None
    if not all(type(claims[name]) is str and claims[name] in words for name, words in WORDS.items()):
        return None
    days = claims["arrival_commitment_days"]
    if not (days is None or (type(days) is int and 0 <= days <= 36_500)):
        return None
    if not all(claims[name] is None or _is_text(claims[name]) for name in ("message_template_id", "escalation_reason")):
        return None
    return Answer(message, claims, None, None)


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether it is a text, not empty, that has no half of a surrogate pair."""
    if type(value) is not str or not value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(value: Any) -> Answer:
    from pydantic import ValidationError

    from simulator.output import Output

    try:
        output = Output.model_validate(value)
        claims = output.claims().model_dump(mode="json")
        usage = output.usage.model_dump(mode="json") if output.usage else None
        for text in _texts([output.message, claims, usage]):
            text.encode()
    except (ValidationError, UnicodeEncodeError):
        return failure("InvalidOutput")
    return Answer(output.message, claims, usage, None)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _texts(item)]
