"""A calibration record: what a judge's configuration did on reviewed rows, compiled and never supplied.

It holds each row's outcome and no count; every figure is derived from the outcomes. Its hash is of canonical JSON and
shows integrity, not origin: that reviewers are people and rows are representative is for the operator to know.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from grading.calibration.json_lines import parse, write_new
from grading.calibration.policy import Counts
from grading.calibration.rows import Adjudication, CalibrationRow, Label, Review, Scope, Split, Verdict
from grading.cases import Identifier
from grading.file_error import FileError
from grading.statistics.agreement import krippendorff_alpha
from simulator.canonical import canonical, sha256
from simulator.ledger import Sha256
from simulator.model import WireModel

SHOWN_PROBLEMS = 20


class RowsRefused(ValueError):  # noqa: N818 - reads as what happened
    """No record can be compiled from these rows. ``problems`` says for each row what is wrong and what to do."""

    def __init__(self, problems: Sequence[str]) -> None:
        shown = [f"  {problem}" for problem in problems[:SHOWN_PROBLEMS]]
        if len(problems) > SHOWN_PROBLEMS:
            shown.append(f"  ... and {len(problems) - SHOWN_PROBLEMS} more")
        super().__init__("\n".join(["no calibration record is compiled from these rows:", *shown]))
        self.problems = tuple(problems)


class Exclusions(WireModel):
    """What must not be in a record, for instance because the judge was written on it, or because it is held out."""

    ids: list[Identifier] = []
    groups: list[Identifier] = []
    evidence: list[Sha256] = []

    @classmethod
    def of(cls, rows: Iterable["CalibrationRow | JudgedRow"]) -> "Exclusions":
        """Everything that these rows hold."""
        taken = list(rows)
        return cls(
            ids=sorted({row.id for row in taken}),
            groups=sorted({row.group for row in taken}),
            evidence=sorted({row.evidence_hash for row in taken}),
        )

    def joined(self, other: "Exclusions") -> "Exclusions":
        return Exclusions(
            ids=sorted({*self.ids, *other.ids}),
            groups=sorted({*self.groups, *other.groups}),
            evidence=sorted({*self.evidence, *other.evidence}),
        )


class JudgedRow(WireModel):
    """What a record keeps of a row: all but the evidence, which its hash stands for."""

    id: Identifier
    group: Identifier
    row_hash: Sha256
    evidence_hash: Sha256
    synthetic: bool
    slices: dict[Identifier, Identifier]
    reviews: Annotated[list[Review], Field(min_length=2, max_length=2)]
    adjudication: Adjudication | None
    verdict: Verdict

    @property
    def label(self) -> Label:
        return self.reviews[0].label if self.adjudication is None else self.adjudication.label


class CalibrationRecord(WireModel):
    """The outcomes of one judge configuration in one scope, by row id."""

    version: Literal[1] = 1
    scope: Scope
    split: Split
    configuration_hash: Sha256
    rows: Annotated[list[JudgedRow], Field(min_length=1)]

    @model_validator(mode="after")
    def _is_in_order(self) -> "CalibrationRecord":
        ids = [row.id for row in self.rows]
        if any(one >= other for one, other in pairwise(ids)):
            raise ValueError("the rows must be in the order of their ids, each id once: compile the record again")
        return self

    @cached_property
    def hash(self) -> str:
        """What an operator's registry names to trust this record."""
        return sha256(self.document())

    def document(self) -> bytes:
        """Its canonical JSON."""
        return canonical(self.model_dump(mode="json"))

    @cached_property
    def counts(self) -> Counts:
        return _counts(self.rows)

    @cached_property
    def synthetic_rows(self) -> int:
        return sum(row.synthetic for row in self.rows)

    @cached_property
    def by_slice(self) -> dict[tuple[str, str], Counts]:
        """Counts for each (feature, value) that any row carries, in their order. Slices may overlap: never add them."""
        members: dict[tuple[str, str], list[JudgedRow]] = {}
        for row in self.rows:
            for member in row.slices.items():
                members.setdefault(member, []).append(row)
        return {member: _counts(members[member]) for member in sorted(members)}

    @cached_property
    def agreement(self) -> float | None:
        """Krippendorff's alpha of the two reviews before adjudication; None where it is undefined."""
        return krippendorff_alpha([review.label for review in row.reviews] for row in self.rows)

    @cached_property
    def disagreements(self) -> tuple[JudgedRow, ...]:
        """Every row on which the reviewers disagreed."""
        return tuple(row for row in self.rows if row.adjudication is not None)


def compile_record(
    rows: Iterable[CalibrationRow],
    *,
    scope: Scope,
    reviewers: Collection[str],
    excluded: Exclusions | None = None,
    split: Split = "calibration",
) -> CalibrationRecord:
    """The record of some rows; their order does not matter.

    Args:
        scope: the one that every row must have.
        reviewers: whose labels the operator trusts.
        excluded: ids, groups and evidence that may not be in it.

    Raises:
        RowsRefused: with every reason found.
    """
    given = list(rows)
    problems = list(_problems(given, scope, frozenset(reviewers), excluded or Exclusions(), split))
    if problems:
        raise RowsRefused(problems)
    judged = [(row, row.judgment) for row in sorted(given, key=lambda row: row.id)]
    return CalibrationRecord(
        scope=scope,
        split=split,
        configuration_hash=next(judgment.configuration_hash for _, judgment in judged if judgment is not None),
        rows=[
            JudgedRow(
                id=row.id,
                group=row.group,
                row_hash=row.hash(),
                evidence_hash=row.evidence_hash,
                synthetic=row.synthetic,
                slices=row.slices,
                reviews=row.reviews,
                adjudication=row.adjudication,
                verdict=judgment.verdict,
            )
            for row, judgment in judged
            if judgment is not None
        ],
    )


def read_record(path: Path) -> CalibrationRecord:
    """A compiled record. Whether to trust it is for a registry to say.

    Raises:
        FileError: where it cannot be read, or is none.
    """
    try:
        return parse(path.read_bytes(), CalibrationRecord)
    except OSError as error:
        raise FileError(path, None, None, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(path, None, None, str(error)) from error


def write_record(path: Path, record: CalibrationRecord) -> None:
    """Writes the record's canonical JSON, of which the hash is the record's, to a file that does not exist yet.

    Raises:
        FileError: where it exists, or cannot be written.
    """
    write_new(path, record.document())


def _problems(
    rows: Sequence[CalibrationRow], scope: Scope, reviewers: frozenset[str], excluded: Exclusions, split: Split
) -> Iterator[str]:
    if not rows:
        yield "there are none"
    # Sorted, so that the same rows are refused in the same words whatever their order.
    ordered = sorted(rows, key=lambda row: (row.id, row.evidence_hash))
    for row in ordered:
        for problem in _problems_of(row, scope, reviewers, excluded, split):
            yield f"row '{row.id}': {problem}"
    for what, values in (
        ("the id", [row.id for row in ordered]),
        ("the group", [row.group for row in ordered]),
        ("the evidence", [row.evidence_hash for row in ordered]),
    ):
        for value, times in sorted(Counter(values).items()):
            if times > 1:
                yield f"{what} '{value}' is used by {times} rows: keep one, the same again is no new evidence"
    configurations = sorted({row.judgment.configuration_hash for row in ordered if row.judgment is not None})
    if len(configurations) > 1:
        yield f"the judgments are by {len(configurations)} configurations ({', '.join(configurations)}): keep one's"


def _problems_of(
    row: CalibrationRow, scope: Scope, reviewers: frozenset[str], excluded: Exclusions, split: Split
) -> Iterator[str]:
    if row.split != split:
        yield f"belongs to the split '{row.split}', not '{split}'"
    if row.scope != scope:
        yield f"is of another scope, {_named(row.scope)} instead of {_named(scope)}"
    for what, value, list_ in (
        ("id", row.id, excluded.ids),
        ("group", row.group, excluded.groups),
        ("evidence", row.evidence_hash, excluded.evidence),
    ):
        if value in list_:
            yield f"its {what} '{value}' is excluded"
    people = [review.reviewer for review in row.reviews]
    if row.adjudication is not None:
        people.append(row.adjudication.reviewer)
    for person in people:
        if person not in reviewers:
            yield f"'{person}' is not among the trusted reviewers"
    if row.judgment is None:
        yield "has no judgment: have the judge's configuration judge it first"


def _named(scope: Scope) -> str:
    return f"{scope.criterion} / {scope.policy_version} / {scope.world}"


def _counts(rows: Sequence[JudgedRow]) -> Counts:
    tally = Counter((row.label, row.verdict) for row in rows)
    return Counts(
        truthful=sum(times for (label, _), times in tally.items() if label == "truthful"),
        false=sum(times for (label, _), times in tally.items() if label == "false"),
        false_passes=tally["false", "pass"],
        false_blocks=tally["truthful", "fail"] + tally["truthful", "abstain"],
        abstentions=tally["truthful", "abstain"] + tally["false", "abstain"],
    )
