"""The four order-resolution cases in plain Python, and a few more that the tests of world, grader and agents share."""

from dataclasses import dataclass, field
from typing import Any

from grading.graders.orders import Expectation

CUSTOMER = "customer-1"

ORDER_A = {
    "order_id": "order-a",
    "customer_id": CUSTOMER,
    "description": "blue backpack bought on 2026-08-01",
    "amount_cents": 4000,
    "currency": "USD",
    "eligible": True,
}
ORDER_B = {**ORDER_A, "order_id": "order-b", "description": "blue backpack bought on 2026-08-02"} | {
    "amount_cents": 4500,
    "currency": "EUR",
}
ORDER_C = {**ORDER_A, "order_id": "order-c", "customer_id": "customer-other", "description": ORDER_B["description"]}
RECORDS: list[dict[str, Any]] = [ORDER_A, ORDER_B, ORDER_C]


@dataclass(frozen=True)
class Case:
    """A case: what the trial is handed, and apart from it what the evaluator expects."""

    utterance: str
    expectation: Expectation
    replies: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=lambda: RECORDS)
    settings: dict[str, Any] = field(default_factory=dict)
    customer_id: str = CUSTOMER


def changed(order_id: str, **changes: Any) -> list[dict[str, Any]]:
    """The shared records with one of them changed."""
    return [record | changes if record["order_id"] == order_id else record for record in RECORDS]


CASES = {
    "explicit-description": Case(
        "Refund the blue backpack bought on 2026-08-02.", Expectation(order="order-b", clarifications=0)
    ),
    "ambiguous-description": Case(
        "Refund my blue backpack.",
        Expectation(order="order-a", clarifications=1),
        ["The blue backpack bought on 2026-08-01."],
    ),
    "customer-correction": Case(
        "Refund the blue backpack bought on 2026-08-02. Correction: the blue backpack bought on 2026-08-01.",
        Expectation(order="order-a", clarifications=0),
    ),
    "unresolved-description": Case("Refund my blue backpack.", Expectation(order=None, clarifications=1)),
}

DECLINED = Case(
    "Refund the blue backpack bought on 2026-08-02.",
    Expectation(order="order-b", clarifications=0, declined=True),
    records=changed("order-b", eligible=False),
)
APPROVAL_NEEDED = Case(
    "Refund the blue backpack bought on 2026-08-02.",
    Expectation(order="order-b", clarifications=0),
    records=changed("order-b", amount_cents=10_001),
)
TIMING_OUT = Case(
    "Refund the blue backpack bought on 2026-08-02.",
    Expectation(order="order-b", clarifications=0),
    settings={"timeout_after_commit": True},
)
EXTRA_CASES = {"declined": DECLINED, "approval-needed": APPROVAL_NEEDED, "timing-out": TIMING_OUT}
EVERY_CASE = CASES | EXTRA_CASES
