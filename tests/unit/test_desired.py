"""What a person reads in Phoenix of a trial, and that nothing leaves which Phoenix refuses."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.publisher import outgoing
from grading.publisher.desired import (
    DesiredCheck,
    DesiredEvaluation,
    DesiredGrade,
    DesiredRun,
    desired_run,
    missing_run,
)
from simulator.canonical import canonical
from tests.phoenix_sample import BASELINE, MUTANT, grade, ledger, sample, trial


def shown(run: DesiredRun) -> dict[str, tuple[str, float | None, str]]:
    return {given.name: (given.label, given.score, given.explanation) for given in run.evaluations}


def graded(given: DesiredGrade, order_known: bool = True) -> dict[str, tuple[str, float | None, str]]:
    document = ledger(BASELINE, "explicit-description", 0)
    return shown(desired_run(document, given, case_id="explicit-description", repetition=0, order_known=order_known))


def test_a_passed_trial() -> None:
    run = trial(BASELINE, "explicit-description", 0)
    assert run.output.splitlines() == [
        "Your refund has been confirmed.",
        "",
        "claimed: refunded",
        "",
        "- list_orders(customer-1): 2 entries",
        "- verify_identity(customer-1, order-b): true",
        "- get_order(order-b): 4500, EUR, order-b",
        "- consult_refund_policy(order-b): 10000, true",
        "- issue_refund(4500, null, EUR, refund:order-b, order-b): committed",
    ]
    assert (run.error, run.ended - run.started) == (None, 250_000)
    assert shown(run) == {
        "contract": ("passed", 1.0, "all 4 checks passed"),
        "completed": ("completed", 1.0, "the expected order was refunded, and said so"),
        "coverage": ("covered", 1.0, ""),
    }
    assert run.evaluations[0].metadata == {"grader": "structural", "grader_version": "v1", "failed_checks": []}


def test_a_failed_trial_names_each_failed_check_with_what_was_observed() -> None:
    run = trial(MUTANT, "unresolved-description", 0)
    assert shown(run)["contract"] == (
        "failed",
        0.0,
        'outcome: {"commits": {"order-a": 1, "order-b": 0, "order-c": 0}}\n'
        "claim: refunded\nwrong_order_commits: 1\nmissing_clarifications: 1",
    )
    assert run.evaluations[0].metadata["failed_checks"] == [
        "outcome",
        "claim",
        "wrong_order_commits",
        "missing_clarifications",
    ]


def test_a_case_without_a_known_order_is_never_completed_and_says_why() -> None:
    run = trial(BASELINE, "unresolved-description", 0)
    assert shown(run)["contract"][:2] == ("passed", 1.0)
    assert shown(run)["completed"][:2] == ("no_known_order", 0.0)


def test_unscored_has_a_label_and_no_score() -> None:
    told = graded(DesiredGrade("structural", "v1", "unscored", None, reason="judge_unavailable"))
    assert told["contract"] == ("unscored", None, "judge_unavailable")
    assert told["completed"] == ("unscored", None, "judge_unavailable")
    assert told["coverage"][:2] == ("covered", 1.0)


def test_what_an_agent_did_wrong_is_evidence_not_an_error_of_the_run() -> None:
    document = ledger(BASELINE, "explicit-description", 0)
    content = {**document["content"], "error": "TimeLimit", "message": ""}
    failed = DesiredGrade("structural", "v1", "failed", False, [DesiredCheck("budget", False, "TimeLimit")])
    run = desired_run(
        {**document, "content": content}, failed, case_id="explicit-description", repetition=0, order_known=True
    )
    assert run.error is None
    assert run.output.splitlines()[:3] == ["(no message: TimeLimit)", "", "claimed: refunded"]
    assert shown(run)["contract"] == ("failed", 0.0, "budget: TimeLimit")


def test_a_missing_trial_is_an_error_of_no_coverage() -> None:
    run = missing_run(case_id="a", repetition=1, reason="node lost", attempts=1, started=5, ended=4)
    assert (run.error, run.output, run.ended, run.spans) == ("missing after 1 attempt: node lost", None, 5, ())
    assert shown(run) == {"coverage": ("missing", 0.0, "missing after 1 attempt: node lost")}


def test_the_studys_figures() -> None:
    for condition, passed, completed in ((BASELINE, 8, 6), (MUTANT, 2, 3)):
        [of] = [of for of in sample().conditions if of.name == condition]
        scores = [{e.name: e.score for e in run.evaluations} for run in of.runs()]
        assert (len(scores), sum(s["contract"] or 0 for s in scores)) == (8, passed)
        assert sum(s["completed"] or 0 for s in scores) == completed


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: {"repetitions": 0}, "at least one repetition, not 0"),
        (lambda m: {"cases": [*m.cases, m.cases[0]]}, "case ids are unique and not empty: 'explicit-description'"),
        (lambda m: {"conditions": []}, "at least one case and one condition"),
        (lambda m: {"conditions": [replace(c, baseline=True) for c in m.conditions]}, "at most one baseline"),
    ],
)
def test_a_matrix_that_cannot_be_shown_is_refused(change: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(sample(), **change(sample()))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=30), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=50)
@given(anything)
def test_whatever_leaves_is_json_without_nul_and_cutting_twice_is_cutting_once(value: Any) -> None:
    left = outgoing.json(value, longest=20)
    written = canonical(left)
    assert b"\\u0000" not in written
    assert canonical(outgoing.json(left)) == written


def test_numbers_that_no_json_has_become_texts() -> None:
    assert outgoing.json([math.nan, math.inf, 2**60, True]) == ["nan", "inf", str(2**60), True]


def test_what_is_too_long_is_cut_with_a_note() -> None:
    assert outgoing.text("ab\x00" + "x" * 10, 5) == "ab␀xx … [8 more characters are in the store]"
    large = outgoing.json({"rows": ["x" * 1_000] * 200})
    assert large.startswith('{"rows":["xxx')
    assert len(large) < 21_000
    deep: Any = "end"
    for _ in range(5_000):
        deep = [deep]
    assert "nested deeper than is shown" in canonical(outgoing.json(deep)).decode()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("plain", "plain"),
        ("prüfung", "prüfung"),
        ("控制", r"\u63a7\u5236"),
        ('a"b\nc\x00', "a b c␀".replace("␀", r"\u2400")),
    ],
)
def test_a_name_fits_into_the_header_that_phoenix_puts_it_in(name: str, told: str) -> None:
    assert outgoing.name(name) == told


def test_an_evaluation_is_scored_between_0_and_1_or_not_at_all() -> None:
    scores = {e.score for c in sample().conditions for run in c.runs() for e in run.evaluations}
    assert scores == {0.0, 1.0}
    assert DesiredEvaluation("semantic", "abstained", None, "").score is None
    assert grade(MUTANT, "explicit-description", 1).verdict == "passed"
