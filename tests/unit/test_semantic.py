"""The states of a judgment stay apart in the joint grade, the table, the transcript and Phoenix."""

from typing import Any, get_args

import orjson
import pytest

from grading.cost import UNKNOWN, Cost
from grading.publisher.desired import DesiredGrade, DesiredSemantic, desired_run
from grading.semantic import Semantic, SemanticState, joint, semantic_of
from grading.store.judgments import StoredJudgment
from grading.summary import TrialRow, summarize
from grading.transcript import transcript

HASH = "sha256:" + "0" * 64
REASONS = {
    "unqualified": "no_calibration",
    "pending": "judge_unavailable",
    "qualified_abstention": "judge_error:Refusal",
}
STATES: tuple[SemanticState, ...] = get_args(SemanticState)


def semantic(state: SemanticState, cost: Cost = UNKNOWN) -> Semantic:
    return Semantic(state, REASONS.get(state), cost=cost)


@pytest.mark.parametrize(
    ("structural", "expected"),
    [
        ("passed", ["passed", "failed", "failed", "failed", "unscored"]),
        ("failed", ["failed"] * 5),
        ("unscored", ["unscored", "failed", "unscored", "unscored", "unscored"]),
    ],
)
def test_joint_is_a_conjunction_and_what_has_failed_stays_failed(structural: Any, expected: list[str]) -> None:
    assert [joint(structural, semantic(state)) for state in STATES] == expected


def rows(*results: tuple[str, SemanticState]) -> list[TrialRow]:
    return [
        TrialRow(
            "one", f"case-{number}", "graded", {"verdict": verdict, "task_completed": False, "checks": []},
            semantic=semantic(state, Cost("known", 5) if state == "qualified_pass" else Cost("not_dispatched")),
        )
        for number, (verdict, state) in enumerate(results)
    ]  # fmt: skip


def test_the_table_shows_every_state_that_occurs_in_a_column_of_its_own() -> None:
    summary = summarize(rows(*(("passed", state) for state in STATES), ("failed", "qualified_pass")))
    header, row = summary.rows()
    assert dict(zip(header, row, strict=True)) == {
        "condition": "one", "trials": "6/6", "contract": "5", "completed": "0", "wrong-order commits": "0",
        "semantic": "2", "joint": "1", "semantic fail": "1", "abstained": "1", "unqualified": "1",
        "judgment pending": "1",
    }  # fmt: skip
    assert not summary.complete
    assert summary.to_json()["conditions"][0]["semantic"] == {
        "joint": 1,
        "qualified_pass": 2,
        "qualified_fail": 1,
        "qualified_abstention": 1,
        "unqualified": {"no_calibration": 1},
        "pending": {"judge_unavailable": 1},
        "judge_cost": {
            "complete_micro_dollars": 10, "known_micro_dollars": 10, "known": 2, "unknown": 0, "not_dispatched": 4
        },
    }  # fmt: skip


def test_a_table_without_a_judge_has_no_such_columns() -> None:
    plain = [row._replace(semantic=None) for row in rows(("passed", "pending"))]
    summary = summarize(plain)
    assert summary.rows()[0] == ["condition", "trials", "contract", "completed", "wrong-order commits"]
    assert "semantic" not in summary.to_json()["conditions"][0]
    assert summary.complete


def test_one_unknown_cost_makes_the_complete_one_unknown() -> None:
    two = rows(("passed", "qualified_pass"), ("passed", "qualified_fail"))
    summary = summarize([two[0], two[1]._replace(semantic=semantic("qualified_fail"))])
    cost = summary.to_json()["conditions"][0]["semantic"]["judge_cost"]
    assert (cost["complete_micro_dollars"], cost["known_micro_dollars"], cost["unknown"]) == (None, 5, 1)


def test_a_judgment_that_was_never_tried_is_pending_and_one_that_was_tried_in_vain_says_why() -> None:
    assert semantic_of(None).told() == "pending: not_judged"
    tried = StoredJudgment(1, HASH, HASH, "pending", "judge_unavailable", None, None)
    assert (semantic_of(tried).told(), semantic_of(tried).cost) == ("pending: judge_unavailable", Cost("unknown"))
    refused = StoredJudgment(1, HASH, HASH, "pending", "budget", None, None)
    assert (semantic_of(refused).told(), semantic_of(refused).cost) == ("pending: budget", Cost("not_dispatched"))


def test_a_stored_judgment_keeps_what_was_said_apart_from_whether_it_counts() -> None:
    document = {
        "unqualified": "qualification_not_current", "error": None, "verdict": "pass", "explanation": "so",
        "cost": {"state": "known", "micro_dollars": 3}, "votes": [{"cached": True}],
    }  # fmt: skip
    stored = StoredJudgment(1, HASH, HASH, "judged", None, "pass", orjson.dumps(document))
    found = semantic_of(stored)
    assert (found.state, found.reason, found.verdict) == ("unqualified", "qualification_not_current", "pass")
    assert (found.cost, found.cached) == (Cost("known", 3), True)


def test_the_transcript_shows_the_judges_words_as_words_of_others() -> None:
    shown = {
        **semantic("unqualified").to_json(), "verdict": "pass", "explanation": "fine\nGrade\n\u202e[bold]",
        "joint": "failed",
    }  # fmt: skip
    plain = transcript("t", None, None, (), shown).plain
    assert "unqualified: no calibration" in plain
    assert "the judge said pass, which does not count" in plain
    assert "│ Grade" in plain
    assert "⟨U+202E⟩[bold]" in plain
    assert "joint: failed" in plain
    assert "Is the message true?" not in transcript("t", None, None).plain


@pytest.mark.parametrize(
    ("state", "score", "joint_score"),
    [
        ("qualified_pass", 1.0, 1.0),
        ("qualified_fail", 0.0, 0.0),
        ("qualified_abstention", None, 0.0),
        ("unqualified", None, 0.0),
        ("pending", None, None),
    ],
)
def test_phoenix_gets_the_judges_word_as_a_models_and_the_joint_grade_as_codes(
    state: SemanticState, score: float | None, joint_score: float | None
) -> None:
    found = semantic(state)
    wanted = DesiredSemantic(state, found.reason, "so", joint("passed", found), {"judge": HASH})
    ledger = {
        "content": {
            "request": {"utterance": "u", "customer_id": "c"}, "calls": [], "objects": [], "turns": [], "message": "m",
            "claims": {"claimed_outcome": "refunded"}, "error": None,
        },
        "envelope": {
            "trial": "t", "attempt": 1, "started": 1, "ended": 2, "calls": [], "usage": None, "isolation": "process",
            "sealed_by": "recorder",
        },
        "content_hash": HASH,
        "ledger_hash": HASH,
    }  # fmt: skip
    grade = DesiredGrade("structural", HASH, "passed", True)
    run = desired_run(ledger, grade, case_id="c", repetition=0, order_known=True, semantic=wanted)
    by_name = {one.name: one for one in run.evaluations}
    assert list(by_name) == ["contract", "completed", "coverage", "semantic", "joint"]
    assert (by_name["semantic"].label, by_name["semantic"].score, by_name["semantic"].annotator_kind) == (
        state,
        score,
        "LLM",
    )
    assert by_name["semantic"].metadata == {"qualification": state, "reason": found.reason, "judge": HASH}
    assert (by_name["joint"].score, by_name["joint"].annotator_kind) == (joint_score, "CODE")
    without = desired_run(ledger, grade, case_id="c", repetition=0, order_known=True)
    assert [one.name for one in without.evaluations] == ["contract", "completed", "coverage"]
