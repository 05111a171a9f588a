"""Refunds the order whose description the customer wrote, and asks once where that is not exactly one.

It matches descriptions literally and knows the word ``Correction:``; it is a control, no evidence of understanding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.worlds import ToolTimeout

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True

QUESTION = "Which item and purchase date do you mean?"

CONFIRMED = {
    "message": "Your refund has been confirmed.",
    "claimed_outcome": "refunded",
    "transaction_status_claim": "committed",
}
INELIGIBLE = {
    "message": "This order cannot be refunded.",
    "claimed_outcome": "not_refunded",
    "transaction_status_claim": "not_committed",
}
UNCLEAR = {
    "message": "Please clarify which purchase you mean.",
    "claimed_outcome": "needs_review",
    "transaction_status_claim": "not_committed",
}
NOT_DONE = {
    "message": "A colleague will look at your refund.",
    "claimed_outcome": "needs_review",
    "transaction_status_claim": "not_committed",
}
UNCERTAIN = NOT_DONE | {"transaction_status_claim": "unknown"}


def agent(request: Request, tools: Tools) -> dict[str, Any]:
    order_id = find_order(request, tools)
    if order_id is None:
        return UNCLEAR
    return refund(request.customer_id, order_id, tools)


def find_order(request: Request, tools: Tools) -> str | None:
    """The one order that the customer describes, after one question at most."""
    orders = tools.list_orders(customer_id=request.customer_id)
    found = _described(request.utterance, orders)
    if len(found) != 1:
        found = _described(tools.ask_customer(question=QUESTION) or "", orders)
    return found[0] if len(found) == 1 else None


def refund(customer_id: str, order_id: str, tools: Tools) -> dict[str, Any]:
    """Refunds an order as the policy wants it, and claims no more than the tools confirmed."""
    if not tools.verify_identity(customer_id=customer_id, order_id=order_id):
        return NOT_DONE
    order = tools.get_order(order_id=order_id)
    policy = tools.consult_refund_policy(order_id=order_id)
    if not policy["eligible"]:
        return INELIGIBLE
    terms = {"order_id": order_id, "amount_cents": order["amount_cents"], "currency": order["currency"]}
    approval_id = None
    if order["amount_cents"] > policy["approval_threshold_cents"]:
        approval = tools.request_refund_approval(**terms)
        if not approval["approved"]:
            return NOT_DONE
        approval_id = approval["approval_id"]
    refund_call = {**terms, "approval_id": approval_id, "idempotency_key": f"refund:{order_id}"}
    try:
        answer = tools.issue_refund(**refund_call)
    except ToolTimeout:
        # The same key again cannot refund twice, and tells whether the first call did.
        try:
            answer = tools.issue_refund(**refund_call)
        except ToolTimeout:
            return UNCERTAIN
    return CONFIRMED if answer["status"] in ("committed", "already_committed") else NOT_DONE


def _described(text: str, orders: list[dict[str, Any]]) -> list[str]:
    wanted = text.lower().rpartition("correction:")[2]
    return [order["order_id"] for order in orders if order["description"].lower() in wanted]
