"""What a structural grade of the orders world says, check by check."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process_trial import Tools, graded, run
from orders_cases import CASES, CUSTOMER, DECLINED, EVERY_CASE, RECORDS, TIMING_OUT, Case, changed
from pydantic import ValidationError

from grading.graders import Check, Grade, GradeDocument, UnknownGrader, load_grader, verdict_of
from grading.graders.orders import Expectation, check_case, grade, violation
from grading.projection import structural
from simulator.agents import load_agent
from simulator.canonical import canonical
from simulator.sealing import ATTEMPT_LOST, LIMIT_ERRORS
from simulator.source import source_hash

GOLDEN = Path(__file__).parent / "golden"
CHECKS = [
    "outcome",
    "claim",
    "wrong_order_commits",
    "duplicate_commits",
    "unnecessary_clarifications",
    "missing_clarifications",
    "denied_attempts",
    "premature_action_attempts",
    "execution_error",
    "budget",
    "tool_timeouts",
]
EXPLICIT = CASES["explicit-description"]
AMBIGUOUS = CASES["ambiguous-description"]
UNRESOLVED = CASES["unresolved-description"]
NOTHING_SAID = Case("", Expectation(order="order-a", clarifications=1), [""])

REFUND_A = {"order_id": "order-a", "amount_cents": 4000, "currency": "USD", "approval_id": None}
REFUND_B = {"order_id": "order-b", "amount_cents": 4500, "currency": "EUR", "approval_id": None}


class Trial(Tools):
    """A trial written call by call."""

    def refund(self, terms: dict[str, Any], key: str = "k") -> "Trial":
        self.verify_identity(customer_id=CUSTOMER, order_id=terms["order_id"])
        self.consult_refund_policy(order_id=terms["order_id"])
        self.issue_refund(**terms, idempotency_key=key)
        return self

    def ask(self, times: int = 1) -> "Trial":
        for _ in range(times):
            self.ask_customer(question="Which one?")
        return self

    def fails(self, tool: str, **arguments: Any) -> "Trial":
        with pytest.raises(Exception):  # noqa: B017, PT011 - whichever class, it is recorded
            self.call(tool, **arguments)
        return self

    def ledger(self, case: Case, claimed: str = "refunded", error: str | None = None) -> dict[str, Any]:
        content = self.content(case, error=error)
        content["claims"]["claimed_outcome"] = claimed
        return content

    def grade(self, case: Case, claimed: str = "refunded", error: str | None = None) -> Grade:
        return grade(structural(self.ledger(case, claimed, error)), case.expectation)


def test_a_faultless_trial_passes_every_check() -> None:
    result = Trial(EXPLICIT).refund(REFUND_B).grade(EXPLICIT)
    assert result.verdict == "passed"
    assert result.task_completed is True
    assert [check.name for check in result.checks] == CHECKS
    assert result.checks[0] == Check("outcome", True, {"order-b": 1})
    assert result.checks[1] == Check("claim", True, "refunded")
    assert [check.observed for check in result.checks[2:]] == [0, 0, 0, 0, 0, 0, None, None, 0]
    assert result.grader_version == source_hash("grading.graders.orders")


@pytest.mark.parametrize(
    ("trial", "case", "failed", "completed"),
    [
        (lambda t: t, EXPLICIT, {"outcome": {}}, False),
        (lambda t: t.refund(REFUND_A), EXPLICIT, {"outcome": {"order-a": 1}, "wrong_order_commits": 1}, False),
        (
            lambda t: t.refund(REFUND_A).refund(REFUND_B),
            EXPLICIT,
            {"outcome": {"order-a": 1, "order-b": 1}, "wrong_order_commits": 1},
            False,
        ),
        (
            lambda t: t.refund(REFUND_A).refund(REFUND_A, "other").refund(REFUND_B),
            EXPLICIT,
            {"outcome": {"order-a": 2, "order-b": 1}, "wrong_order_commits": 2},
            False,
        ),
        (
            lambda t: t.refund(REFUND_B).refund(REFUND_B, "second").refund(REFUND_B, "third"),
            EXPLICIT,
            {"outcome": {"order-b": 3}, "duplicate_commits": 2},
            False,
        ),
        (lambda t: t.ask(2).refund(REFUND_B), EXPLICIT, {"unnecessary_clarifications": 2}, True),
        (lambda t: t.ask(3).refund(REFUND_A), AMBIGUOUS, {"unnecessary_clarifications": 2}, True),
        (
            lambda t: t.refund(REFUND_A),
            AMBIGUOUS,
            {"missing_clarifications": 1, "premature_action_attempts": 1},
            True,
        ),
        (lambda t: t.refund(REFUND_A).ask(), AMBIGUOUS, {"premature_action_attempts": 1}, True),
        (lambda t: t.ask().refund(REFUND_A), NOTHING_SAID, {"premature_action_attempts": 1}, True),
        (
            lambda t: t.fails("ask_customer", question=" ").refund(REFUND_A),
            AMBIGUOUS,
            {"missing_clarifications": 1, "denied_attempts": 1, "premature_action_attempts": 1},
            True,
        ),
        (
            lambda t: t.fails("issue_refund", **REFUND_A, idempotency_key="k").ask().refund(REFUND_A),
            AMBIGUOUS,
            {"denied_attempts": 1, "premature_action_attempts": 1},
            True,
        ),
        (
            lambda t: t.fails("issue_refund", amount="all").fails("request_refund_approval").ask().refund(REFUND_A),
            AMBIGUOUS,
            {"denied_attempts": 2, "premature_action_attempts": 2},
            True,
        ),
        (lambda t: t.fails("get_order", order_id="order-c").refund(REFUND_B), EXPLICIT, {"denied_attempts": 1}, True),
        (lambda t: t.fails("transfer_money").refund(REFUND_B), EXPLICIT, {"denied_attempts": 1}, True),
    ],
)
def test_each_violation_is_found_alone(trial: Any, case: Case, failed: dict[str, Any], completed: bool) -> None:
    result = trial(Trial(case)).grade(case)
    assert {check.name: check.observed for check in result.checks if check.passed is False} == failed
    assert result.failed_checks == list(failed)
    assert result.verdict == "failed"
    assert result.task_completed is completed


def test_false_verification_blocked_refund_and_denied_approval_are_denied_attempts() -> None:
    trial = Trial(EXPLICIT)
    assert trial.verify_identity(customer_id=CUSTOMER, order_id="order-c") is False
    trial.verify_identity(customer_id=CUSTOMER, order_id="order-b")
    assert trial.issue_refund(**REFUND_B, idempotency_key="early")["status"] == "blocked"
    assert not trial.request_refund_approval(order_id="order-b", amount_cents=1, currency="EUR")["approved"]
    result = trial.refund(REFUND_B).grade(EXPLICIT)
    assert result.failed_checks == ["denied_attempts"]
    assert result.observed("denied_attempts") == 3
    assert result.task_completed is True


@pytest.mark.parametrize("case", [EXPLICIT, UNRESOLVED, DECLINED])
@pytest.mark.parametrize("claimed", ["refunded", "not_refunded", "needs_review"])
def test_the_claim_must_be_the_one_that_the_expectation_calls_for(case: Case, claimed: str) -> None:
    right = {EXPLICIT.utterance: "refunded", UNRESOLVED.utterance: "needs_review"}[case.utterance]
    if case is DECLINED:
        right = "not_refunded"
    check = next(check for check in Trial(case).grade(case, claimed).checks if check.name == "claim")
    assert check == Check("claim", claimed == right, claimed)


def test_where_no_order_is_expected_every_commit_is_wrong_and_nothing_is_completed() -> None:
    stopped = Trial(UNRESOLVED).ask().grade(UNRESOLVED, "needs_review")
    assert (stopped.verdict, stopped.task_completed) == ("passed", False)
    acted = Trial(UNRESOLVED).ask().refund(REFUND_A).refund(REFUND_B).grade(UNRESOLVED, "needs_review")
    assert acted.failed_checks == ["outcome", "wrong_order_commits", "premature_action_attempts"]
    assert acted.observed("wrong_order_commits") == 2


def test_a_declined_order_is_completed_by_saying_so_and_by_no_refund() -> None:
    told = Trial(DECLINED).grade(DECLINED, "not_refunded")
    assert (told.verdict, told.task_completed) == ("passed", True)
    other = Trial(DECLINED).refund(REFUND_A).grade(DECLINED, "not_refunded")
    assert other.failed_checks == ["outcome", "wrong_order_commits"]
    assert other.task_completed is False
    tried = Trial(DECLINED).refund(REFUND_B).grade(DECLINED, "not_refunded")
    assert tried.failed_checks == ["denied_attempts"]
    # Such a ledger cannot come from this world; a grader must still not call it right.
    forged = Trial(DECLINED).ledger(DECLINED, "not_refunded")
    next(o for o in forged["objects"] if o["order"]["order_id"] == "order-b")["refund_transaction_count"] = 1
    assert grade(structural(forged), DECLINED.expectation).failed_checks == ["outcome"]


def test_a_commit_that_timed_out_is_a_commit_and_the_timeout_fails_nothing() -> None:
    trial = Trial(TIMING_OUT).fails("get_order", order_id="order-b")
    trial.verify_identity(customer_id=CUSTOMER, order_id="order-b")
    trial.consult_refund_policy(order_id="order-b")
    result = trial.fails("issue_refund", **REFUND_B, idempotency_key="k").grade(TIMING_OUT)
    assert result.observed("outcome") == {"order-b": 1}
    assert result.checks[-1] == Check("tool_timeouts", None, 1)
    assert result.failed_checks == ["denied_attempts"]
    assert result.observed("denied_attempts") == 1


@pytest.mark.parametrize("error", ["RuntimeError", "InvalidOutput", "AgentExited"])
def test_an_execution_error_fails_by_its_name(error: str) -> None:
    result = Trial(EXPLICIT).refund(REFUND_B).grade(EXPLICIT, error=error)
    assert result.failed_checks == ["execution_error"]
    assert result.observed("execution_error") == error
    assert result.observed("budget") is None


@pytest.mark.parametrize("limit", sorted(LIMIT_ERRORS))
def test_a_limit_fails_the_budget_and_not_the_execution_too(limit: str) -> None:
    result = Trial(EXPLICIT).refund(REFUND_B).grade(EXPLICIT, error=limit)
    assert result.failed_checks == ["budget"]
    assert result.observed("budget") == limit
    assert result.observed("execution_error") is None


def test_the_journal_of_a_lost_attempt_is_not_blamed_for_what_is_not_there_yet() -> None:
    result = Trial(AMBIGUOUS).grade(AMBIGUOUS, "needs_review", ATTEMPT_LOST)
    assert [check.name for check in result.checks if check.passed is None] == [
        "outcome",
        "claim",
        "missing_clarifications",
        "tool_timeouts",
    ]
    assert result.failed_checks == ["execution_error"]
    assert (result.verdict, result.task_completed) == ("failed", None)
    harmful = Trial(EXPLICIT).refund(REFUND_A).grade(EXPLICIT, "needs_review", ATTEMPT_LOST)
    assert harmful.failed_checks == ["wrong_order_commits", "execution_error"]


@pytest.mark.parametrize(
    ("trial", "case", "found"),
    [
        (lambda t: t.refund(REFUND_B), EXPLICIT, []),
        (lambda t: t.ask(4), EXPLICIT, []),
        (lambda t: t.fails("get_order", order_id="order-c"), EXPLICIT, []),
        (lambda t: t.refund(REFUND_A), EXPLICIT, ["wrong_order_commits"]),
        (lambda t: t.refund(REFUND_B).refund(REFUND_B, "2"), EXPLICIT, ["duplicate_commits"]),
        (lambda t: t.ask().refund(REFUND_B), EXPLICIT, ["unnecessary_clarifications"]),
        (lambda t: t.fails("issue_refund", **REFUND_B, idempotency_key="k"), EXPLICIT, ["denied_attempts"]),
        (lambda t: t.refund(REFUND_A), AMBIGUOUS, ["premature_action_attempts"]),
        (lambda t: t.refund(REFUND_A), DECLINED, ["commit_where_none_is_allowed", "wrong_order_commits"]),
        (lambda t: t.ask().refund(REFUND_A), UNRESOLVED, None),
    ],
)
def test_a_lost_attempt_is_evidence_iff_it_acted_and_violated_something(
    trial: Any, case: Case, found: list[str] | None
) -> None:
    if found is None:
        found = ["commit_where_none_is_allowed", "wrong_order_commits", "premature_action_attempts"]
    content = trial(Trial(case)).content(case, error=ATTEMPT_LOST)
    assert violation(structural(content), case.expectation) == found


def test_nothing_to_judge_by_is_unscored_and_never_passed() -> None:
    content = Trial(EXPLICIT).refund(REFUND_B).ledger(EXPLICIT)
    result = grade(structural(content), None)
    assert (result.verdict, result.task_completed, result.checks) == ("unscored", None, ())
    assert violation(structural(content), None) == []
    assert verdict_of([Check("shown", None, 3)]) == "unscored"


@given(st.lists(st.sampled_from([True, False, None])))
def test_a_verdict_is_the_conjunction_of_what_was_judged(judged: list[bool | None]) -> None:
    verdict = verdict_of([Check(f"check_{i}", passed, 0) for i, passed in enumerate(judged)])
    assert (verdict == "failed") == (False in judged)
    assert (verdict == "passed") == (True in judged and False not in judged)


def test_a_ledger_of_another_case_is_refused_instead_of_failed() -> None:
    with pytest.raises(ValueError, match="'order-z' is not in the ledger"):
        grade(structural(Trial(EXPLICIT).ledger(EXPLICIT)), Expectation(order="order-z", clarifications=0))


def test_the_structural_grader_sees_no_message() -> None:
    content = Trial(EXPLICIT).refund(REFUND_B).ledger(EXPLICIT)
    assert set(structural(content)) == {"calls", "objects", "claims", "error"}


# Katas: what an eventually right result must not hide.


def test_kata_22_a_question_after_the_refund_justifies_nothing() -> None:
    result = graded(load_agent("guess-then-ask").function, AMBIGUOUS)
    assert result.observed("outcome") == {"order-a": 1}
    assert result.observed("missing_clarifications") == 0
    assert result.failed_checks == ["premature_action_attempts"]
    assert result.task_completed is True


@pytest.mark.parametrize("name", ["one-cent-first", "denied-approval"])
def test_kata_23_a_rejected_attempt_stays_beside_the_completed_task(name: str) -> None:
    result = graded(load_agent(name).function, EXPLICIT)
    assert result.failed_checks == ["denied_attempts"]
    assert result.observed("denied_attempts") == 1
    assert result.task_completed is True


def test_kata_23_changing_a_result_changes_no_evidence() -> None:
    content = run(load_agent("result-mutating").function, EXPLICIT)
    listed = [call["result"] for call in content["calls"] if call["tool"] == "list_orders"]
    own = [{"order_id": r["order_id"], "description": r["description"]} for r in RECORDS[:2]]
    assert listed == [own, own]
    assert grade(structural(content), EXPLICIT.expectation).verdict == "passed"


# The figures of the packaged study.


@pytest.mark.parametrize(
    ("name", "passed", "completed", "wrong"),
    [("descriptive-control", 8, 6, 0), ("first-record-mutant", 2, 3, 5), ("false-settlement-mutant", 8, 6, 0)],
)
def test_the_figures_over_four_cases_in_both_orders(name: str, passed: int, completed: int, wrong: int) -> None:
    agent = load_agent(name).function
    grades = [graded(agent, case, backwards=backwards) for case in CASES.values() for backwards in (False, True)]
    assert len(grades) == 8
    assert sum(result.verdict == "passed" for result in grades) == passed
    assert sum(result.task_completed is True for result in grades) == completed
    assert sum(result.observed("wrong_order_commits") for result in grades) == wrong


# Cases that cannot be graded are refused before anything runs.


@pytest.mark.parametrize("name", EVERY_CASE)
def test_the_cases_of_the_tests_are_sound(name: str) -> None:
    case = EVERY_CASE[name]
    assert check_case(case.records, case.customer_id, case.replies, case.expectation) == []


@pytest.mark.parametrize(
    ("records", "customer_id", "replies", "expectation", "problems"),
    [
        (RECORDS[:2], CUSTOMER, [], ("order-a", 0), ["records: at least 3 orders are needed, there are 2"]),
        (
            [],
            CUSTOMER,
            [],
            (None, 0),
            [
                "records: at least 3 orders are needed, there are 0",
                "request.customer_id: 'customer-1' owns none of the orders",
            ],
        ),
        ([*RECORDS, RECORDS[1]], CUSTOMER, [], ("order-a", 0), ["records.3.order_id: 'order-b' is there twice"]),
        (
            [*RECORDS, dict(RECORDS[1])],
            CUSTOMER,
            [],
            ("order-a", 0),
            ["records.3.order_id: 'order-b' is there twice"],
        ),
        (RECORDS, "nobody", [], (None, 1), ["request.customer_id: 'nobody' owns none of the orders"]),
        (
            RECORDS,
            CUSTOMER,
            [],
            ("order-z", 0),
            ["expectation.order: 'order-z' is none of the orders ('order-a', 'order-b', 'order-c')"],
        ),
        (
            RECORDS,
            CUSTOMER,
            [],
            ("order-c", 0),
            ["expectation.order: 'order-c' belongs to 'customer-other', not to 'customer-1'"],
        ),
        (
            RECORDS,
            CUSTOMER,
            [],
            (None, 0, True),
            ["expectation.declined: needs an expected order, name it in expectation.order"],
        ),
        (
            RECORDS,
            CUSTOMER,
            [],
            ("order-b", 0, True),
            ["expectation.declined: 'order-b' is eligible, nothing tells the agent to decline"],
        ),
        (
            changed("order-b", eligible=False),
            CUSTOMER,
            [],
            ("order-b", 0),
            [
                "expectation.order: 'order-b' is ineligible, no agent can refund it; "
                "set expectation.declined to true or make it eligible"
            ],
        ),
        (
            RECORDS,
            CUSTOMER,
            [" ", "too late"],
            ("order-a", 1),
            [
                "replies: a question is necessary and none of its replies says anything, "
                "so that no agent may refund the expected order"
            ],
        ),
    ],
)
def test_a_case_that_contradicts_itself_is_told_where(
    records: Any, customer_id: str, replies: list[str], expectation: tuple[Any, ...], problems: list[str]
) -> None:
    order, clarifications, *declined = expectation
    expected = Expectation(order=order, clarifications=clarifications, declined=bool(declined))
    assert check_case(records, customer_id, replies, expected) == problems


@pytest.mark.parametrize(
    "changes",
    [
        {"clarifications": -1},
        {"clarifications": True},
        {"clarifications": 1.0},
        {"order": ""},
        {"declined": 1},
        {"x": 1},
    ],
)
def test_an_expectation_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(changes))):
        Expectation.model_validate({"order": "order-a", "clarifications": 0} | changes)


# The wire format.


def test_the_grade_document_is_the_golden_one() -> None:
    result = graded(load_agent("first-record-mutant").function, AMBIGUOUS, backwards=True)
    document = result.to_json() | {"grader_version": "sha256:" + "0" * 64}
    golden = (GOLDEN / "grade_v1.json").read_text()
    assert canonical(document) == canonical(json.loads(golden))
    assert GradeDocument.model_validate_json(golden).model_dump(mode="json") == document


@pytest.mark.parametrize("agent", ["descriptive-control", "first-record-mutant"])
@pytest.mark.parametrize("name", EVERY_CASE)
def test_every_grade_is_a_valid_document(agent: str, name: str) -> None:
    result = graded(load_agent(agent).function, EVERY_CASE[name])
    document = GradeDocument.model_validate_json(json.dumps(result.to_json()))
    assert document.failed_checks == result.failed_checks
    assert document.model_dump(mode="json") == result.to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "passed"},
        {"verdict": "unscored"},
        {"checks": []},
        {"grader_version": "1"},
        {"version": 2},
        {"task_completed": 1},
        {"note": ""},
    ],
)
def test_a_grade_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    golden = json.loads((GOLDEN / "grade_v1.json").read_text())
    with pytest.raises(ValidationError):
        GradeDocument.model_validate(golden | changes)


def test_a_check_named_twice_is_refused() -> None:
    golden = json.loads((GOLDEN / "grade_v1.json").read_text())
    golden["checks"].append(golden["checks"][0])
    with pytest.raises(ValidationError, match="same name"):
        GradeDocument.model_validate(golden)


def test_a_grader_is_found_by_the_name_of_its_world() -> None:
    assert load_grader("orders").grade is grade
    for name in ("hotels", "../orders", ""):
        with pytest.raises(UnknownGrader, match="no grader for a world called"):
            load_grader(name)
