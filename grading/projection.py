"""What a grader may see of a ledger (trust rule 4). The expectation is handed to a grader apart."""

from collections.abc import Mapping
from typing import Any, TypedDict


class StructuralProjection(TypedDict):
    """What the structural grader sees: what was done and claimed, and neither the message nor the envelope."""

    calls: list[dict[str, Any]]
    objects: list[dict[str, Any]]
    claims: dict[str, Any]
    error: str | None


def structural(content: Mapping[str, Any]) -> StructuralProjection:
    """The structural grader's view of a ledger's content (a JSON value, not copied).

    The message text is left out: a sentence that sounds right must not make up for what was done.
    """
    return {
        "calls": content["calls"],
        "objects": content["objects"],
        "claims": content["claims"],
        "error": content["error"],
    }


class SemanticProjection(TypedDict):
    """What a judge sees: the request, what was answered, done and left behind, under which policy."""

    policy_version: str
    request: dict[str, Any]
    output: dict[str, Any]
    """The message and the structured claims, without the agent's evidence of its own usage."""
    events: list[dict[str, Any]]
    """Every tool call in order; the customer's replies that were given are results among them."""
    ledgers: list[dict[str, Any]]
    error: str | None


def semantic(content: Mapping[str, Any], policy_version: str) -> SemanticProjection:
    """The judge's view of a ledger's content (a JSON value, not copied).

    It is made from the content alone, which holds no expectation, case id, arm, repetition, score, cost, agent's name
    or reply that was not given, so none of them can be in it; the envelope is not looked at.
    """
    return {
        "policy_version": policy_version,
        "request": content["request"],
        "output": {"message": content["message"], **content["claims"]},
        "events": content["calls"],
        "ledgers": content["objects"],
        "error": content["error"],
    }
