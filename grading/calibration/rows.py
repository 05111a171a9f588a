"""A calibration row: one message in its situation, what people said of it, and what the judge said of it.

Source: the order-resolution seed, kata 45. A row carries no count and no conclusion: those are derived.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from grading.calibration.json_lines import read_lines, write_lines
from grading.cases import Identifier
from simulator.canonical import canonical_hash
from simulator.ledger import Sha256
from simulator.model import WireModel

Label = Literal["truthful", "false"]
Verdict = Literal["pass", "fail", "abstain"]
Split = Literal["calibration", "held_out"]
Note = Annotated[str, Field(max_length=10_000)]
Reason = Annotated[str, Field(pattern=r"\S", max_length=10_000)]


class Scope(WireModel):
    """What a judgment is about: calibrated for one scope, a judge's word counts in no other."""

    criterion: Identifier
    policy_version: Identifier
    world: Identifier


class Review(WireModel):
    """One person's label, given without seeing the judge's verdict, the condition or another label."""

    reviewer: Identifier
    label: Label
    note: Note | None = None


class Adjudication(WireModel):
    """A third person's decision where two reviewers disagree, and why."""

    reviewer: Identifier
    label: Label
    reason: Reason


class Judgment(WireModel):
    """A judge's verdict on exactly this evidence, by exactly this configuration."""

    version: Literal[1] = 1
    evidence_hash: Sha256
    configuration_hash: Sha256
    verdict: Verdict


class CalibrationRow(WireModel):
    """One row. That its parts belong together is checked here; whom to trust is the compiler's question."""

    version: Literal[1] = 1
    id: Identifier
    group: Identifier
    """Rows of one group are no independent evidence, for example those of one customer."""
    split: Split
    scope: Scope
    synthetic: bool
    """Whether evidence or labels were made up rather than observed."""
    slices: dict[Identifier, Identifier] = {}
    evidence: dict[str, JsonValue]
    """What the judge sees of a ledger."""
    evidence_hash: Sha256
    reviews: Annotated[list[Review], Field(min_length=2, max_length=2)]
    adjudication: Adjudication | None = None
    judgment: Judgment | None = None
    """None until the judge was asked; no record is compiled from such a row."""

    @model_validator(mode="after")
    def _belongs_together(self) -> "CalibrationRow":
        if canonical_hash(self.evidence) != self.evidence_hash:
            raise ValueError("evidence_hash is not the hash of the evidence: one of them was changed")
        if self.judgment is not None and self.judgment.evidence_hash != self.evidence_hash:
            raise ValueError("the judgment is of other evidence: its evidence_hash is not the row's")
        first, second = self.reviews
        if first.reviewer == second.reviewer:
            raise ValueError(f"both reviews are by '{first.reviewer}': two different reviewers are needed")
        if first.label == second.label and self.adjudication is not None:
            raise ValueError("the reviewers agree, so there is nothing to adjudicate: remove the adjudication")
        if first.label != second.label:
            if self.adjudication is None:
                raise ValueError("the reviewers disagree: a third one must adjudicate, with a reason")
            if self.adjudication.reviewer in (first.reviewer, second.reviewer):
                raise ValueError(f"'{self.adjudication.reviewer}' adjudicates an own review: a third person is needed")
        return self

    @property
    def label(self) -> Label:
        """What the row counts as."""
        return self.reviews[0].label if self.adjudication is None else self.adjudication.label

    def hash(self) -> str:
        return canonical_hash(self.model_dump(mode="json"))


def read_rows(path: Path) -> list[CalibrationRow]:
    """The rows of a JSON Lines file.

    Raises:
        FileError: with every problem found, each at its line.
    """
    return read_lines(path, CalibrationRow)


def write_rows(path: Path, rows: Iterable[CalibrationRow]) -> int:
    """Writes rows to a file that does not exist yet.

    Raises:
        FileError: where it exists, or cannot be written.
    """
    return write_lines(path, rows)
