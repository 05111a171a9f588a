"""Rubrics: what a judge is told to decide, as versioned files. A changed rubric is a new file, never an old id."""

from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from simulator.canonical import sha256
from simulator.ledger import Sha256
from simulator.model import WireModel

DEFAULT = "multi-order-message-truth-v1"
_FOLDER = Path(__file__).parent / "rubrics"


class RubricReference(WireModel):
    """A rubric's id and the hash of its text."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,99}$")]
    hash: Sha256


class UnknownRubric(ValueError):  # noqa: N818 - reads as what is wrong
    """No rubric is there by that id."""


def rubric_ids() -> list[str]:
    """Every packaged rubric."""
    return sorted(path.stem for path in _FOLDER.glob("*.md"))


@cache
def rubric(name: str) -> str:
    """A rubric's text.

    Raises:
        UnknownRubric: naming those that there are.
    """
    if name not in rubric_ids():
        raise UnknownRubric(f"there is no rubric '{name[:60]}': write one of {', '.join(rubric_ids())}")
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")


def reference(name: str) -> RubricReference:
    """A rubric as a judge's configuration names it.

    Raises:
        UnknownRubric: as :func:`rubric`.
    """
    return RubricReference(id=name, hash=sha256(rubric(name).encode()))
