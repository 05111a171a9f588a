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
