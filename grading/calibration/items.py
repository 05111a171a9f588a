"""What reviewers are asked about, and the operator's key to it.

A review item shows the evidence and nothing else: no verdict, no condition, no case, nobody's label. Its id is made
from the evidence alone. What the operator needs to make rows of the answers, group, slices and trials, is in the key,
which reviewers do not get.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator

from grading.calibration.json_lines import read_lines, write_lines
from grading.calibration.rows import Label, Note, Scope
from grading.cases import Identifier
from simulator.canonical import canonical_hash, sha256
from simulator.ledger import Sha256
from simulator.model import WireModel

Grouping = Literal["customer", "case", "item"]


class ReviewItem(WireModel):
    """One message in its situation, for one reviewer: a line of the file in which ``label`` is filled in."""

    version: Literal[1] = 1
    id: Identifier
    reviewer: Identifier
    scope: Scope
    evidence: dict[str, JsonValue]
    evidence_hash: Sha256
    label: Label | None = None
    """``truthful`` where every statement of the message is so in this situation, ``false`` where one is not."""
    note: Note | None = None
    """Free words; from an adjudicator the reason, which is required."""

    @model_validator(mode="after")
    def _is_whole(self) -> "ReviewItem":
        if canonical_hash(self.evidence) != self.evidence_hash:
            raise ValueError("evidence_hash is not the hash of the evidence: only label and note are to be filled in")
        return self


class KeyItem(WireModel):
    """The operator's side of a review item."""

    version: Literal[1] = 1
    id: Identifier
    group: Identifier
    scope: Scope
    synthetic: bool
    slices: dict[Identifier, Identifier]
    evidence: dict[str, JsonValue]
    evidence_hash: Sha256
    trials: Annotated[list[str], Field(min_length=1)]
    """Where this evidence comes from: condition/case/repetition."""

    @model_validator(mode="after")
    def _is_whole(self) -> "KeyItem":
        if canonical_hash(self.evidence) != self.evidence_hash:
            raise ValueError("evidence_hash is not the hash of the evidence: one of them was changed")
        return self


@dataclass(frozen=True, slots=True)
class Source:
    """One trial's evidence, on its way to becoming an item."""

    trial: str
    case: str
    customer: str
    slices: Mapping[str, str]
    evidence: dict[str, Any]


def items_of(
    sources: Iterable[Source], *, scope: Scope, grouping: Grouping, synthetic: bool, per_group: int | None = None
) -> list[KeyItem]:
    """The items of some trials, by id. Trials with the same evidence are one item: the same again is nothing new.

    Args:
        grouping: which items depend on each other. Cases that share an evidence share a group.
        per_group: at most so many of each group, chosen by the hash of their evidence; None for all.
    """
    by_hash: dict[str, list[Source]] = {}
    for source in sources:
        by_hash.setdefault(canonical_hash(source.evidence), []).append(source)
    groups = _Groups()
    for evidence_hash, same in by_hash.items():
        groups.join([_group(source, evidence_hash, grouping) for source in same])
    items = [
        KeyItem(
            id=item_id(evidence_hash),
            group=groups.of(_group(same[0], evidence_hash, grouping)),
            scope=scope,
            synthetic=synthetic,
            slices=_shared_slices(same),
            evidence=same[0].evidence,
            evidence_hash=evidence_hash,
            trials=sorted(source.trial for source in same),
        )
        for evidence_hash, same in sorted(by_hash.items())
    ]
    if per_group is None:
        return items
    taken: dict[str, int] = {}
    chosen = []
    for item in items:
        taken[item.group] = taken.get(item.group, 0) + 1
        if taken[item.group] <= per_group:
            chosen.append(item)
    return chosen


def item_id(evidence_hash: str) -> str:
    """The same evidence has the same id wherever it is exported."""
    return "item-" + evidence_hash.removeprefix("sha256:")[:16]


def for_reviewer(items: Sequence[KeyItem], reviewer: str) -> list[ReviewItem]:
    """The items as one reviewer gets them, in an order of their own that says nothing of where they come from."""
    shuffled = sorted(items, key=lambda item: sha256(f"{reviewer}\n{item.id}".encode()))
    return [
        ReviewItem(
            id=item.id,
            reviewer=reviewer,
            scope=item.scope,
            evidence=item.evidence,
            evidence_hash=item.evidence_hash,
        )
        for item in shuffled
    ]


def read_key(path: Path) -> list[KeyItem]:
    """Raises FileError with every problem, each at its line."""
    return read_lines(path, KeyItem)


def write_key(path: Path, items: Iterable[KeyItem]) -> int:
    """Raises FileError where the file exists, or cannot be written."""
    return write_lines(path, items)


def read_review(path: Path) -> list[ReviewItem]:
    """Raises FileError with every problem, each at its line."""
    return read_lines(path, ReviewItem)


def write_review(path: Path, items: Iterable[ReviewItem]) -> int:
    """Raises FileError where the file exists, or cannot be written."""
    return write_lines(path, items)


class _Groups:
    """Groups that join where they share an evidence; each is named by its first name in order."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, name: str) -> str:
        while (named := self._names.get(name, name)) != name:
            name = named
        return name

    def join(self, names: Sequence[str]) -> None:
        roots = sorted({self.of(name) for name in names})
        for root in roots[1:]:
            self._names[root] = roots[0]


def _group(source: Source, evidence_hash: str, grouping: Grouping) -> str:
    match grouping:
        case "customer":
            return source.customer
        case "case":
            return source.case
        case "item":
            return item_id(evidence_hash)


def _shared_slices(sources: Sequence[Source]) -> dict[str, str]:
    """What all trials of an item have in common: the same evidence may come from cases with different labels."""
    first, *others = (source.slices for source in sources)
    return {name: value for name, value in sorted(first.items()) if all(each.get(name) == value for each in others)}
