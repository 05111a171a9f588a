"""What a comparison says: exact figures, coverage first, and nothing missing that is not told."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from comparison_sample import BASELINE, CANDIDATE, compared, failed, manifest_of, packaged_manifest, regressed

from grading.comparison import Circumstances, NotComparable, check_view
from grading.comparison_json import to_json
from grading.comparison_text import heading, junit, markdown, percent, plain, sections
from grading.cost import NOT_DISPATCHED, UNKNOWN, Cost, known
from grading.judge.configuration import registered
from grading.manifest import Manifest

MATRIX = packaged_manifest()


def test_regressions_and_fixes_are_counted_by_pair_and_by_case() -> None:
    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any]:
        if condition == CANDIDATE and case in (0, 1) and not (case == 1 and repetition == 1):
            return failed(wrong_order_commits=1)
        return failed() if condition == BASELINE and case == 2 else {}

    (candidate,) = compared(manifest_of(4), outcome).candidates
    about = candidate.description
    assert (about.regressed, about.fixed, about.unchanged, about.missing) == (3, 2, 3, 0)
    assert [(one.case, one.change) for one in about.changes] == [
        ("case-0", "regressed"), ("case-1", "regressed"), ("case-2", "fixed"), ("case-3", "unchanged"),
    ]  # fmt: skip
    assert [(one.change, one.case, one.repetition) for one in candidate.changes] == [
        ("regressed", "case-0", 0), ("regressed", "case-1", 0), ("fixed", "case-2", 0),
        ("regressed", "case-0", 1), ("fixed", "case-2", 1),
    ]  # fmt: skip
    assert about.customer_weighted_difference == pytest.approx((-1 - 0.5 + 1 + 0) / 4)


def test_an_arm_has_its_rates_counters_latency_and_cost() -> None:
    found = compared(manifest_of(4), regressed(0, 3))
    arm = found.arm(CANDIDATE)
    assert (arm.contract.passed, arm.completed.passed, arm.planned, arm.coverage) == (4, 4, 8, 1.0)
    assert (arm.wrong_order_commits, arm.avoidable_questions, arm.calls, arm.turns) == (4, 0, 5.0, 0.0)
    assert (arm.latency.p50, arm.latency.p95, arm.elapsed.p50) == (250, 250, 3)
    assert (arm.cost.complete, arm.cost.known, arm.cost.unknown) == (640_000, 8, 0)
    assert arm.disagreeing == ()
    assert found.exploratory == ()


def test_repetitions_that_disagree_are_named_by_case() -> None:
    found = compared(manifest_of(3), regressed(1, repetitions=(0,)))
    assert found.arm(CANDIDATE).disagreeing == ("case-1",)
    assert "repetitions disagree in 1 case of first-record-mutant: case-1" in plain(found)


def test_a_missing_trial_is_never_a_pass_and_the_worst_case_in_the_decision() -> None:
    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any] | None:
        return None if condition == CANDIDATE and case == 0 else {}

    found = compared(manifest_of(40), outcome)
    (candidate,) = found.candidates
    assert candidate.decision is not None
    assert (found.complete, found.observed, found.planned) == (False, 158, 160)
    assert (candidate.decision.difference, candidate.description.customer_weighted_difference) == (-1 / 40, 0.0)
    arm = found.arm(CANDIDATE)
    assert (arm.missing, arm.contract.observed, arm.contract.planned) == (2, 78, 80)
    assert (arm.cost.complete, arm.cost.known_subtotal, arm.cost.unknown) == (None, 6_240_000, 2)


def test_what_is_incomplete_is_said_before_any_result() -> None:
    found = compared(manifest_of(2), lambda condition, case, repetition: None if case == 0 else {})
    for text in (plain(found), markdown(found)):
        assert text.index("INCOMPLETE") < text.index("contract")
    lines = plain(found).splitlines()
    assert lines[2:4] == ["Coverage: INCOMPLETE", "  4 of 8 trials have a verdict (50 %): 4 missing"]


def test_each_reason_to_only_explore_is_told() -> None:
    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any]:
        return {"reused": True} if case == 0 else {"grader_version": "sha256:" + "0" * 64}

    found = compared(manifest_of(2, repetitions=1), outcome, baseline=CANDIDATE)
    assert found.exploratory == (
        "the baseline first-record-mutant was chosen afterwards, registered is descriptive-control",
        "1 repetition: an even number is needed, so that neither arm goes first more often",
        "2 trials were taken over from another matrix",
        "2 trials are graded by another version of the grader than the registered one",
    )
    assert [arm.name for arm in found.arms] == [CANDIDATE, BASELINE]


@pytest.mark.parametrize(
    ("change", "baseline", "message"),
    [
        ({"baseline": None}, None, "names no baseline: give one of its conditions with --baseline"),
        ({}, "first-record", "has no condition first-record: did you mean 'first-record-mutant'"),
        ({"conditions": MATRIX.conditions[:1]}, None, "has the one condition descriptive-control"),
    ],
)
def test_a_matrix_without_two_arms_is_refused_with_what_it_has(
    change: dict[str, Any], baseline: str | None, message: str
) -> None:
    manifest = MATRIX.model_copy(update=change)
    with pytest.raises(NotComparable, match=message):
        compared(manifest, baseline=baseline)


def test_a_matrix_with_nothing_to_compare_can_be_described_alone() -> None:
    found = compared(MATRIX.model_copy(update={"conditions": MATRIX.conditions[:1]}), describe_alone=True)
    assert (found.baseline, found.candidates, [arm.name for arm in found.arms]) == (None, (), [BASELINE])


def test_pairs_that_did_not_run_as_planned_are_counted_and_reused_ones_left_out() -> None:
    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any]:
        if case == 0 and repetition == 0 and condition == CANDIDATE:
            return {"started": -500_000}
        return {"reused": True} if case == 1 else {}

    (candidate,) = compared(manifest_of(2), outcome).candidates
    order = candidate.order
    assert (order.pairs, order.in_planned_order, order.share, order.median_gap_ms) == (2, 1, 0.5, 750.0)


def test_a_joint_view_counts_only_pairs_that_a_qualified_judge_decided() -> None:
    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any]:
        message = "qualified_fail" if condition == CANDIDATE and case == 0 else "qualified_pass"
        return {"message": "qualified_abstention" if case == 1 else message, "message_reason": None}

    found = compared(manifest_of(2), outcome, view="joint")
    (candidate,) = found.candidates
    about = candidate.description
    assert (about.pairs, about.eligible_pairs, about.regressed) == (4, 2, 2)
    assert candidate.decision is None
    assert found.arm(CANDIDATE).qualified_messages == 4
    assert "no comparison: only 2 of 4 pairs are eligible" in plain(found)


def judged_manifest(cases: int) -> Manifest:
    made = manifest_of(cases)
    return made.model_copy(update={"judge": registered("literal", "orders")})


def said(message: str, reason: str | None = None, cost: Cost = UNKNOWN) -> dict[str, Any]:
    return {"message": message, "message_reason": reason, "judge_cost": cost}


def test_states_of_messages_stay_apart_and_only_a_qualified_pass_is_one() -> None:
    states = {
        0: said("qualified_pass", cost=known("0.01")),
        1: said("qualified_fail", cost=known("0.01")),
        2: said("qualified_abstention", "judge_error:Refusal"),
        3: said("unqualified", "qualification_not_current", NOT_DISPATCHED),
        4: said("pending", "budget", NOT_DISPATCHED),
    }

    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any]:
        return states[case] if condition == CANDIDATE else said("qualified_pass", cost=known("0.01"))

    found = compared(judged_manifest(5), outcome)
    arm = found.arm(CANDIDATE)
    assert (found.view, arm.joint.passed, arm.joint.observed, arm.contract.passed) == ("joint", 2, 8, 10)
    assert (arm.qualified_messages, found.pending, found.complete) == (6, 2, False)
    (candidate,) = found.candidates
    assert (candidate.description.eligible_pairs, candidate.description.regressed) == (4, 2)
    assert (candidate.structural.eligible_pairs, candidate.structural.regressed) == (10, 0)
    assert {change.case for change in candidate.changes} == {"case-1"}
    assert candidate.changes[0].why("joint") == ["message: qualified fail"]
    assert candidate.decision is None
    document = to_json(found)["conditions"][1]
    assert document["messages"] == {
        "qualified_pass": 2,
        "qualified_fail": 2,
        "qualified_abstention": 2,
        "unqualified": {"qualification_not_current": 2},
        "pending": {"budget": 2},
    }
    assert document["judge_cost"] == {
        "complete_micro_dollars": None,
        "known_micro_dollars": 40_000,
        "known": 4,
        "unknown": 2,
        "not_dispatched": 4,
    }
    assert document["agent_cost"]["complete_micro_dollars"] == 800_000
    assert (document["cost"]["complete_micro_dollars"], document["cost"]["known_micro_dollars"]) == (None, 840_000)
    text = plain(found)
    assert text.splitlines()[2] == "Coverage: INCOMPLETE"
    assert "2 messages still to be judged: cellwise judge order-resolution" in text
    assert "first-record-mutant, unqualified: 2 qualification_not_current" in text
    assert "joint: 2 regressed, 0 fixed, 2 unchanged, 6 of 10 pairs without two qualified verdicts" in text
    assert "structural: 0 regressed, 0 fixed, 10 unchanged" in text
    suite = ElementTree.fromstring(junit(found))[0]
    assert suite.find("properties/property[@name='view']").get("value") == "joint"  # type: ignore[union-attr]
    assert suite.find("testcase[@name='coverage']/error") is not None


def test_a_trial_that_failed_already_is_no_joint_pass_whatever_its_message_is_still_to_be() -> None:
    found = compared(judged_manifest(1), lambda *_: failed(**said("pending", "judge_unavailable")))
    assert [(arm.joint.passed, arm.joint.observed) for arm in found.arms] == [(0, 2), (0, 2)]


def test_there_is_no_joint_view_without_a_judge() -> None:
    with pytest.raises(NotComparable, match="order-resolution has no judge"):
        check_view(manifest_of(1), "joint")
    assert check_view(judged_manifest(1), "structural") == "structural"


def test_without_a_judge_every_message_is_unqualified() -> None:
    conditions = to_json(compared(manifest_of(8)))["conditions"]
    assert [one["unqualified_messages"] for one in conditions] == [16, 16]


def test_several_candidates_are_held_by_holms_method() -> None:
    two = manifest_of(110)
    third = two.conditions[1].model_copy(update={"name": "third"})
    found = compared(two.model_copy(update={"conditions": [*two.conditions, third]}))
    first = found.candidates[0].decision
    assert first is not None
    assert (first.candidates, first.verdict) == (2, "inconclusive")
    alone = compared(two).candidates[0].decision
    assert alone is not None
    assert (alone.candidates, alone.verdict) == (1, "non_inferior")
    assert "3 conditions: a decision takes a comparison of two" in found.exploratory


def test_the_junit_report_fails_regressed_cases_and_errs_on_missing_ones() -> None:
    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any] | None:
        if condition == CANDIDATE and case == 0:
            return failed()
        return None if condition == CANDIDATE and case == 1 else {}

    root = ElementTree.fromstring(junit(compared(manifest_of(3), outcome)))
    (suite,) = root
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5", "failures": "1", "errors": "2", "skipped": "1",
    }  # fmt: skip
    told = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert told == {
        "coverage": ["error"], "case-0": ["failure"], "case-1": ["error"], "case-2": [], "comparison": ["skipped"],
    }  # fmt: skip


EVIL = "<b onclick=x>`x` | [a](http://e.vil) @all #1 *y* $z$ ![i](j) \x1b[31m\u202e"


def test_markup_in_names_is_text_everywhere() -> None:
    manifest = manifest_of(1)
    conditions = [one.model_copy(update={"name": f"{EVIL}{one.name}"}) for one in manifest.conditions]
    found = compared(manifest.model_copy(update={"conditions": conditions, "baseline": conditions[0].name}))
    shown = markdown(found)
    for mark in "<>`[]@*$!":
        assert mark not in shown
    assert "http://" not in shown
    columns = {line.count("|") for line in shown.splitlines() if line.startswith("|")}
    assert columns == {12}, "every table row has the cells of its header, the pipes in names make none"
    for text in (shown, plain(found), junit(found).decode()):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert ElementTree.fromstring(junit(found)).find("testsuite") is not None


def test_ordinary_names_and_numbers_stay_readable_in_markdown() -> None:
    shown = markdown(compared(manifest_of(2), regressed(0)))
    assert "| first-record-mutant | 4/4 | 2 (50 %) | 2 (50 %) | 2 | 0 | 250 | 250 | 5.00 | 0.00 |" in shown


def test_a_measured_cost_is_unknown_and_no_zero() -> None:
    found = compared(manifest_of(1), lambda *_: {"cost": known(None)})
    table = sections(found)[1].table
    assert table[1][table[0].index("cost")] == "unknown"


@pytest.mark.parametrize(
    ("share", "shown"), [(1.0, "100 %"), (0.99999, "99.9 %"), (0.375, "37.5 %"), (0.0, "0 %"), (None, "none")]
)
def test_a_share_is_never_rounded_up_to_all(share: float | None, shown: str) -> None:
    assert percent(share) == shown


def test_what_happened_around_the_trials_is_shown() -> None:
    around = Circumstances(
        discarded={CANDIDATE: 2}, lost_by_condition={CANDIDATE: 3}, lost={"evicted": 3}, incidents={"bad_hash": 1}
    )
    found = compared(manifest_of(1), around=around)
    text = plain(found)
    assert "attempts lost: 3 evicted" in text
    assert "after a refund or approval call: descriptive-control 0, first-record-mutant 2" in text
    assert "incidents: 1 bad_hash" in text
    header = sections(found)[1].table[0]
    assert header[-2:] == ["attempts lost", "discarded after acting"]


def test_the_json_is_json_and_has_every_part() -> None:
    document = json.loads(json.dumps(to_json(compared(manifest_of(2), regressed(0)))))
    assert list(document) == [
        "version", "matrix", "id", "manifest", "state", "complete", "coverage", "exploratory", "view", "baseline",
        "conditions", "candidates", "cost", "judge_spent", "lost_attempts", "incidents",
    ]  # fmt: skip
    (candidate,) = document["candidates"]
    assert (candidate["verdict"], candidate["regressed"], candidate["fixed"]) == ("inconclusive", 2, 0)
    assert candidate["changes"][0] == {
        "change": "regressed",
        "case": "case-0",
        "repetition": 0,
        "baseline_failed": [],
        "candidate_failed": ["outcome"],
        "baseline_message": "unqualified",
        "candidate_message": "unqualified",
    }


def test_the_heading_names_the_arms() -> None:
    found = compared(manifest_of(1))
    short = found.matrix.manifest_hash[7:19]
    assert heading(found) == f"order-resolution {short}: first-record-mutant against descriptive-control"
