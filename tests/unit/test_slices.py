"""Slices: every case labelled, none required that was not registered, and the figures of the packaged study."""

from pathlib import Path

import pytest
from comparison_sample import compared, failed, manifest_of, packaged_manifest, plan_file, regressed
from in_process_trial import graded
from orders_cases import CASES

from grading.comparison import rule_of
from grading.file_error import FileError
from grading.slices import Sliced, SlicePlan, read_slice_plan, slice_up
from simulator.agents import load_agent

PLAN = """\
version: 1
name: clarifications
cases:
  explicit-description: {clarification: not required, target: known}
  ambiguous-description: {clarification: required, target: known}
  customer-correction: {clarification: not required, target: known}
  unresolved-description: {clarification: required, target: unresolved}
required: [clarification=required]
"""


def sliced(agent: str, folder: Path) -> Sliced:
    """The packaged cases, really run: the control against an agent."""
    agents = {"descriptive-control": "descriptive-control", "first-record-mutant": agent}
    manifest = packaged_manifest()

    def outcome(condition: str, case: int, repetition: int) -> dict[str, object]:
        function = load_agent(agents[condition]).function
        grade = graded(function, list(CASES.values())[case], backwards=repetition == 1)
        return {} if grade.verdict == "passed" else failed()

    found = compared(manifest, outcome)
    plan = read_slice_plan(plan_file(folder, PLAN), [case.id for case in manifest.cases])
    return slice_up(plan, found.candidates[0].pairs, rule_of(manifest), registered_plan=None, view="structural")


@pytest.mark.parametrize(
    ("agent", "candidate", "regressions"),
    [
        ("first-record-mutant", ["2/4", "0/4", "2/6", "0/2"], 6),
        ("false-settlement-mutant", ["4/4", "4/4", "6/6", "2/2"], 0),
        ("descriptive-control", ["4/4", "4/4", "6/6", "2/2"], 0),
    ],
)
def test_the_packaged_cases_give_the_figures_of_the_study(
    agent: str, candidate: list[str], regressions: int, tmp_path: Path
) -> None:
    found = sliced(agent, tmp_path)
    rates = [(one.description.baseline, one.description.candidate) for one in found.slices]
    assert [one.name for one in found.slices] == [
        "clarification=not required", "clarification=required", "target=known", "target=unresolved",
    ]  # fmt: skip
    assert [f"{before.passed}/{before.observed}" for before, _ in rates] == ["4/4", "4/4", "6/6", "2/2"]
    assert [f"{after.passed}/{after.observed}" for _, after in rates] == candidate
    assert sum(one.description.regressed for one in found.slices[:2]) == regressions
    assert (found.registered, found.action) == (False, "hold")
    assert not any(one.required or one.comparison for one in found.slices)


def plan_of(cases: int, required: list[str]) -> SlicePlan:
    labels = {f"case-{position}": {"half": "first" if position * 2 < cases else "second"} for position in range(cases)}
    return SlicePlan(version=1, name="halves", cases=labels, required=required)


def test_slices_are_required_only_by_the_very_plan_that_the_manifest_bound() -> None:
    plan = plan_of(4, ["half=first"])
    pairs = compared(manifest_of(4)).candidates[0].pairs
    rule = rule_of(manifest_of(4))
    bound = slice_up(plan, pairs, rule, registered_plan=plan, view="structural")
    assert (bound.registered, [one.required for one in bound.slices]) == (True, [True, False])
    other = slice_up(plan, pairs, rule, registered_plan=plan_of(4, []), view="structural")
    assert (other.registered, [one.required for one in other.slices]) == (False, [False, False])


def test_a_slice_is_compared_only_with_two_customers_and_all_pairs_eligible() -> None:
    plan = plan_of(4, [])
    rule = rule_of(manifest_of(4))
    two_each = slice_up(plan, compared(manifest_of(4)).candidates[0].pairs, rule, registered_plan=None, view="joint")
    assert [one.comparison is not None for one in two_each.slices] == [True, True]
    one_in_first = manifest_of(4, customers=4)
    abstained = [
        pair if pair.case != "case-0" else type(pair)(pair.cluster, pair.case, pair.repetition, None, True, False)
        for pair in compared(one_in_first).candidates[0].pairs
    ]
    found = slice_up(plan, abstained, rule, registered_plan=None, view="joint")
    assert [one.comparison is not None for one in found.slices] == [False, True]
    assert (found.slices[0].description.eligible_pairs, found.action) == (2, None)


def test_slices_have_rates_weighted_by_trial_and_by_customer() -> None:
    manifest = manifest_of(3, customers=2)
    plan = SlicePlan(version=1, name="all", cases={f"case-{n}": {"all": "yes"} for n in range(3)})
    found = slice_up(
        plan,
        compared(manifest, regressed(0)).candidates[0].pairs,
        rule_of(manifest),
        registered_plan=None,
        view="structural",
    )
    about = found.slices[0].description
    assert (about.customers, about.eligible_customers, about.regressed) == (2, 2, 2)
    assert about.trial_weighted_difference == pytest.approx(-1 / 3)
    assert about.customer_weighted_difference == pytest.approx(-1 / 4)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("customer-correction:", "customer-corection:"), "the matrix has no such case: did you mean"),
        (
            ("  customer-correction: {clarification: not required, target: known}\n", ""),
            "these have none: customer-cor",
        ),
        (("required, target: unresolved", "required"), "the label 'target' is missing"),
        (("[clarification=required]", "[clarification=requird]"), "no case is labelled clarification=requird"),
        (("[clarification=required]", "[target=known, target=known]"), "'target=known' is named twice"),
        (("target: unresolved", "target: a=b"), "without '='"),
        (("version: 1", "version: 2"), "version"),
        (("name: clarifications", "name: x\nextra: y"), "extra"),
    ],
)
def test_a_plan_that_does_not_label_exactly_the_cases_is_refused_with_its_line(
    change: tuple[str, str], problem: str, tmp_path: Path
) -> None:
    text = PLAN.replace(*change)
    assert text != PLAN
    with pytest.raises(FileError, match=problem) as refused:
        read_slice_plan(plan_file(tmp_path, text), list(CASES))
    assert refused.value.line is not None
