"""Replay: the calls of a ledger given again to a fresh world, which must answer and end as recorded.

It proves that a ledger is consistent with the installed world, not that the calls were ever made: a fabricated ledger
that is consistent passes. Source: the order-resolution seed, kata 43.
"""

from collections.abc import Sequence
from typing import Any

from simulator.customer import Customer
from simulator.session import Session
from simulator.worlds import load_world


class ReplayError(ValueError):
    """A ledger contradicts its world. ``place`` names where: a member path such as ``calls[3].result``."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place


def open_session(assignment: dict[str, Any]) -> tuple[Session, Customer]:
    """A fresh world for an assignment, as a JSON value, and the customer in it."""
    customer = Customer(assignment["replies"])
    world = load_world(assignment["world"])(
        assignment["records"], assignment["request"]["customer_id"], customer, assignment["world_settings"]
    )
    return Session(world), customer


def replay(assignment: dict[str, Any], calls: Sequence[dict[str, Any]]) -> tuple[Session, Customer]:
    """Gives recorded calls again, in order. Refused ones are not carried out: the same check must refuse them again.

    Raises:
        ReplayError: a call is recorded as refused and is valid, or the reverse.
    """
    session, customer = open_session(assignment)
    for index, call in enumerate(calls):
        refused = session.refuses(call["tool"], call["arguments"])
        if refused != (call.get("error") == "InvalidCall"):
            reason = "is no call of this world" if refused else "is valid, yet recorded as refused"
            raise ReplayError(f"calls[{index}]", f"{call['tool']} {reason}")
        if refused:
            session.calls.append(call)
        else:
            session.call(call["tool"], call["arguments"])
    return session, customer


def rebuild(assignment: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """The content that an assignment and the recorded calls lead to; message, claims and error are taken as recorded.

    Raises:
        ReplayError: see :func:`replay`.
    """
    session, customer = replay(assignment, content["calls"])
    return compose(assignment, session, customer, content["message"], content["claims"], content["error"])


def compose(
    assignment: dict[str, Any],
    session: Session,
    customer: Customer,
    message: str,
    claims: dict[str, Any],
    error: str | None,
) -> dict[str, Any]:
    """A ledger's content, as a JSON value."""
    return {
        "version": 1,
        "world": assignment["world"],
        "request": assignment["request"],
        "calls": session.calls,
        "objects": session.world.objects(),
        "turns": customer.turns,
        "message": message,
        "claims": claims,
        "error": error,
    }


def first_difference(expected: Any, found: Any, place: str = "") -> str | None:
    """The member path of the first place where two JSON values differ in value or type; None where they are equal."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted(expected.keys() | found.keys()):
            where = f"{place}.{name}" if place else name
            if name not in expected or name not in found:
                return where
            if (deeper := first_difference(expected[name], found[name], where)) is not None:
                return deeper
        return None
    if isinstance(expected, list) and isinstance(found, list):
        for index, (one, other) in enumerate(zip(expected, found, strict=False)):
            if (deeper := first_difference(one, other, f"{place}[{index}]")) is not None:
                return deeper
        return None if len(expected) == len(found) else f"{place}[{min(len(expected), len(found))}]"
    return None if type(expected) is type(found) and expected == found else place
