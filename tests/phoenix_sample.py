"""The packaged study's sixteen trials, played in the orders world by two agents of a few lines: what tests publish."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import orjson

from grading.publisher.desired import (
    DesiredCheck,
    DesiredCondition,
    DesiredExample,
    DesiredGrade,
    DesiredMatrix,
    DesiredRun,
    desired_run,
    missing_run,
)
from simulator.customer import Customer
from simulator.sealing import seal
from simulator.worlds.orders import World

MANIFEST = "sha256:" + "5a" * 32
STARTED = 1_785_500_000_000_000
BASELINE, MUTANT = "descriptive-control", "first-record-mutant"
DESCRIPTIONS = ["blue backpack bought on 2026-08-01", "blue backpack bought on 2026-08-02"]
ORDERS: list[dict[str, Any]] = [
    {"order_id": "order-a", "customer_id": "customer-1", "description": DESCRIPTIONS[0], "amount_cents": 4000},
    {"order_id": "order-b", "customer_id": "customer-1", "description": DESCRIPTIONS[1], "amount_cents": 4500},
    {"order_id": "order-c", "customer_id": "customer-other", "description": DESCRIPTIONS[1], "amount_cents": 4000},
]
CASES: dict[str, tuple[str, str | None, list[str], int]] = {
    "explicit-description": (f"Refund the {DESCRIPTIONS[1]}.", "order-b", [], 0),
    "ambiguous-description": ("Refund my blue backpack.", "order-a", [f"The {DESCRIPTIONS[0]}."], 1),
    "customer-correction": (
        f"Refund the {DESCRIPTIONS[1]}. Correction: the {DESCRIPTIONS[0]}.",
        "order-a",
        [],
        0,
    ),
    "unresolved-description": ("Refund my blue backpack.", None, [], 1),
}
Call = Callable[..., Any]


def sample(
    *,
    conditions: Sequence[str] = (BASELINE, MUTANT),
    cases: Sequence[str] = tuple(CASES),
    repetitions: int = 2,
    name: str = "order-resolution 5a5a5a5a",
    manifest: str = MANIFEST,
    change: Callable[[str, DesiredRun], DesiredRun | None] = lambda condition, run: run,
    final: bool = True,
) -> DesiredMatrix:
    """The matrix; ``change`` replaces runs, or leaves them out with None."""

    def runs(condition: str) -> Iterator[DesiredRun]:
        for repetition in range(repetitions):
            for case_id in cases:
                run = change(condition, trial(condition, case_id, repetition))
                if run is not None:
                    yield run

    def of(condition: str) -> DesiredCondition:
        return DesiredCondition(
            name=condition,
            baseline=condition == BASELINE,
            final=final,
            metadata={"agent": condition, "model": "none"},
            description=f"agent {condition}",
            runs=lambda: runs(condition),
        )

    return DesiredMatrix(
        manifest_hash=manifest,
        name=name,
        description="Which order does an agent refund?",
        repetitions=repetitions,
        cases=[
            DesiredExample(
                case_id,
                {"input": utterance},
                {"expected": "no refund" if order is None else f"refund {order}"},
                {"clarifications": asks, "customer": "customer-1"},
            )
            for case_id, (utterance, order, _, asks) in CASES.items()
            if case_id in cases
        ],
        conditions=[of(condition) for condition in conditions],
    )


def lost(run: DesiredRun) -> DesiredRun:
    """The same trial, missing."""
    return missing_run(
        case_id=run.case_id,
        repetition=run.repetition,
        reason="provider unavailable",
        attempts=3,
        started=run.started,
        ended=run.ended,
    )


def regraded(run: DesiredRun) -> DesiredRun:
    """The same trial, graded by a later version of the grader."""
    return replace(
        run,
        evaluations=[replace(given, metadata={**given.metadata, "grader_version": "v2"}) for given in run.evaluations],
    )


@cache
def trial(condition: str, case_id: str, repetition: int) -> DesiredRun:
    _, expected, _, _ = CASES[case_id]
    return desired_run(
        ledger(condition, case_id, repetition),
        grade(condition, case_id, repetition),
        case_id=case_id,
        repetition=repetition,
        order_known=expected is not None,
    )


@cache
def ledger(condition: str, case_id: str, repetition: int) -> dict[str, Any]:
    utterance, _, replies, _ = CASES[case_id]
    records = [
        order | {"currency": "EUR" if order["order_id"] == "order-b" else "USD", "eligible": True} for order in ORDERS
    ]
    if repetition % 2:
        records.reverse()
    customer = Customer(replies)
    world = World(records, "customer-1", customer, {})
    calls: list[dict[str, Any]] = []

    def call(tool: str, **arguments: Any) -> Any:
        calls.append({"tool": tool, "arguments": arguments, "result": world.call(tool, arguments)})
        return calls[-1]["result"]

    claimed, message = (_control if condition == BASELINE else _first_record)(call, utterance)
    started = STARTED + repetition * 60_000_000 + list(CASES).index(case_id) * 5_000_000
    times = [{"started": started + 10_000 * n, "ended": started + 10_000 * n + 4_000} for n in range(len(calls))]
    content = {
        "version": 1,
        "world": "orders",
        "request": {"utterance": utterance, "customer_id": "customer-1"},
        "calls": calls,
        "objects": world.objects(),
        "turns": customer.turns,
        "message": message,
        "claims": {
            "claimed_outcome": claimed,
            "transaction_status_claim": "unknown",
            "settlement_status_claim": "not_claimed",
            "arrival_commitment_days": None,
            "message_template_id": None,
            "escalation_reason": None,
        },
        "error": None,
    }
    envelope = {
        "version": 1,
        "trial": f"{condition}/{case_id}/{repetition}",
        "attempt": 1,
        "started": started,
        "ended": started + 250_000,
        "calls": times,
        "usage": None,
        "software": {"version": "0.1.0", "source": "sha256:" + "00" * 32, "python": "3.11.0"},
        "isolation": "process",
        "place": {"launcher": "processes", "host": "local", "worker": "1"},
        "sealed_by": "recorder",
    }
    document: dict[str, Any] = orjson.loads(seal(content, envelope))
    return document


def grade(condition: str, case_id: str, repetition: int) -> DesiredGrade:
    """What the structural grader finds in this trial, as far as these two agents can fail it."""
    _, expected, _, needed = CASES[case_id]
    content = ledger(condition, case_id, repetition)["content"]
    commits = {state["order"]["order_id"]: state["refund_transaction_count"] for state in content["objects"]}
    refunded = {order: 1 for order, count in commits.items() if count}
    wrong = sum(count for order, count in commits.items() if order != expected)
    asked = sum(call["tool"] == "ask_customer" for call in content["calls"])
    outcome = refunded == ({} if expected is None else {expected: 1})
    claim = content["claims"]["claimed_outcome"] == ("needs_review" if expected is None else "refunded")
    checks = [
        DesiredCheck("outcome", outcome, {"commits": commits}),
        DesiredCheck("claim", claim, content["claims"]["claimed_outcome"]),
        DesiredCheck("wrong_order_commits", wrong == 0, wrong),
        DesiredCheck("missing_clarifications", asked >= needed, max(0, needed - asked)),
    ]
    passed = all(check.passed for check in checks)
    return DesiredGrade(
        grader="structural",
        version="v1",
        verdict="passed" if passed else "failed",
        task_completed=expected is not None and outcome and claim,
        checks=checks,
    )


def _control(call: Call, utterance: str) -> tuple[str, str]:
    listed = call("list_orders", customer_id="customer-1")
    wanted = utterance.lower().rpartition("correction:")[2]
    found = [order for order in listed if order["description"] in wanted]
    if len(found) != 1:
        reply = call("ask_customer", question="Which item and purchase date do you mean?") or ""
        found = [order for order in listed if order["description"] in reply.lower()]
    if len(found) != 1:
        return "needs_review", "Please clarify which purchase you mean."
    return _refund(call, found[0]["order_id"])


def _first_record(call: Call, _: str) -> tuple[str, str]:
    return _refund(call, call("list_orders", customer_id="customer-1")[0]["order_id"])


def _refund(call: Call, order_id: str) -> tuple[str, str]:
    call("verify_identity", customer_id="customer-1", order_id=order_id)
    order = call("get_order", order_id=order_id)
    call("consult_refund_policy", order_id=order_id)
    call("issue_refund", **order, approval_id=None, idempotency_key=f"refund:{order_id}")
    return "refunded", "Your refund has been confirmed."
