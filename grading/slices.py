"""Slices: the same comparison over groups of cases, by a plan that labels every registered case.

A plan that the manifest bound before anything ran is registered, and may name slices that a decision requires. Any
other one is exploratory: whoever looks at results first finds a slice that looks good.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from grading.cases import Identifier
from grading.file_error import FileError, nearest
from grading.statistics import paired
from grading.statistics.decision_rule import Rule
from grading.statistics.paired import Pair
from grading.statistics.rates import Description, describe
from grading.yaml_file import Document, read
from simulator.model import WireModel


class SlicePlan(WireModel):
    """Which slices each case belongs to. One slice for each value of each label."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: Literal[1]
    """The format of this file."""
    name: Identifier = Field(examples=["clarifications"])
    """What the plan is called."""
    cases: Annotated[dict[str, dict[str, str]], Field(min_length=1)] = Field(
        examples=[{"explicit-description": {"clarification": "not required", "target": "known"}}]
    )
    """The labels of every case of the matrix, no case more and none less; each case has every label."""
    required: list[str] = Field([], examples=[["clarification=required"]])
    """Slices, as label=value, that a decision needs; they count only if the matrix file names this plan."""

    def slices(self) -> dict[str, list[str]]:
        """The cases of each slice, by ``label=value``, in the order in which they are first named."""
        found: dict[str, list[str]] = {}
        labels = dict.fromkeys(label for own in self.cases.values() for label in own)
        for label in labels:
            for case, own in self.cases.items():
                found.setdefault(f"{label}={own[label]}", []).append(case)
        return found


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of one comparison."""

    name: str
    cases: tuple[str, ...]
    required: bool
    """Whether a decision needs it: the plan says so, and the manifest bound the plan."""
    description: Description
    comparison: paired.Comparison | None
    """None where no comparison may be made: fewer than two customers, or a pair that is not eligible."""


@dataclass(frozen=True, slots=True)
class Sliced:
    """A comparison by the slices of one plan."""

    plan: SlicePlan
    registered: bool
    view: Literal["structural", "joint"]
    slices: tuple[Slice, ...]

    @property
    def action(self) -> Literal["hold"] | None:
        """The structural view describes: nothing is ever released on it."""
        return "hold" if self.view == "structural" else None


def read_slice_plan(path: Path, cases: Sequence[str]) -> SlicePlan:
    """A plan's file, held against the registered cases.

    Raises:
        FileError: with every problem found, each at its line.
    """
    document = read(path)
    plan = document.load(SlicePlan)
    problems = list(_problems(document, plan, cases))
    if problems:
        raise FileError.together(problems)
    return plan


def slice_up(
    plan: SlicePlan,
    pairs: Iterable[Pair],
    rule: Rule,
    *,
    registered_plan: SlicePlan | None,
    view: Literal["structural", "joint"],
) -> Sliced:
    """One candidate's pairs by the slices of a plan.

    Raises:
        ValueError: the plan does not label exactly the cases of the pairs.
    """
    by_case: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_case.setdefault(pair.case, []).append(pair)
    if by_case.keys() != plan.cases.keys():
        different = sorted(by_case.keys() ^ plan.cases.keys())
        raise ValueError(f"the slice plan {plan.name} does not label exactly the registered cases: {different[:5]}")
    registered = registered_plan == plan
    slices = []
    for name, cases in plan.slices().items():
        own = [pair for case in cases for pair in by_case[case]]
        description = describe(own)
        slices.append(
            Slice(
                name=name,
                cases=tuple(cases),
                required=registered and name in plan.required,
                description=description,
                comparison=paired.compare(own, rule) if description.comparable else None,
            )
        )
    return Sliced(plan, registered, view, tuple(slices))


def _problems(document: Document, plan: SlicePlan, cases: Sequence[str]) -> Iterable[FileError]:
    registered = set(cases)
    for case in plan.cases:
        if case not in registered:
            yield document.error(("cases", case), f"the matrix has no such case:{nearest(case, cases)}")
    unlabelled = [case for case in cases if case not in plan.cases]
    if unlabelled:
        shown = ", ".join(unlabelled[:5]) + (f" and {len(unlabelled) - 5} more" if len(unlabelled) > 5 else "")
        yield document.error(("cases",), f"every registered case needs labels, these have none: {shown}")
    labels = dict.fromkeys(label for own in plan.cases.values() for label in own)
    if not labels:
        yield document.error(("cases",), "no case has a label: there would be no slice")
    for case, own in plan.cases.items():
        for label in labels:
            if label not in own:
                yield document.error(("cases", case), f"the label '{label}' is missing, which another case has")
        for label, value in own.items():
            for word in (label, value):
                if "=" in word or not word.strip() or len(word) > 200:
                    yield document.error(
                        ("cases", case, label), f"'{word[:40]}' must be 1 to 200 characters, not blank, without '='"
                    )
    known = {f"{label}={value}" for own in plan.cases.values() for label, value in own.items()}
    for position, name in enumerate(plan.required):
        if name not in known:
            yield document.error(("required", position), f"no case is labelled {name}:{nearest(name, known)}")
        if name in plan.required[:position]:
            yield document.error(("required", position), f"'{name}' is named twice")
