"""A small agent: it finds the order that the customer means, and refunds it where the policy allows that.

Put your own in its place: a function that takes the request and the tools, and returns an Output.
"""

from typing import Any

from simulator import Output, Request, Tools


def answer(request: Request, tools: Tools, ask_when_unsure: bool = True) -> Output:
    orders = tools.list_orders(customer_id=request.customer_id)
    fitting = best_matches(orders, request.utterance)
    if len(fitting) != 1 and ask_when_unsure:
        reply = tools.ask_customer(question="Which order do you mean?")
        fitting = best_matches(fitting or orders, reply or "")
    if not fitting or (len(fitting) > 1 and ask_when_unsure):
        return Output(message="Please tell us which order you mean.", claimed_outcome="needs_review")
    return refund(request, tools, fitting[0]["order_id"])


def best_matches(orders: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The orders whose descriptions share the most words with the text; none where no word is shared."""
    said = set(text.lower().replace(".", " ").replace(",", " ").split())
    shared = [len(said & set(order["description"].lower().split()) - {"a", "the", "with"}) for order in orders]
    most = max(shared, default=0)
    return [order for order, count in zip(orders, shared, strict=True) if count == most > 0]


def refund(request: Request, tools: Tools, order_id: str) -> Output:
    if not tools.verify_identity(customer_id=request.customer_id, order_id=order_id):
        return Output(message="We could not verify your order.", claimed_outcome="needs_review")
    order = tools.get_order(order_id=order_id)
    policy = tools.consult_refund_policy(order_id=order_id)
    if not policy["eligible"]:
        return Output(
            message="Our policy allows no refund of this order.",
            claimed_outcome="not_refunded",
            transaction_status_claim="not_committed",
        )
    price = {"order_id": order_id, "amount_cents": order["amount_cents"], "currency": order["currency"]}
    approval_id = None
    if order["amount_cents"] > policy["approval_threshold_cents"]:
        approval = tools.request_refund_approval(**price)
        if not approval["approved"]:
            return Output(message="A colleague will look at your refund.", claimed_outcome="needs_review")
        approval_id = approval["approval_id"]
    # The same key for the same order: repeating the call after a time-out refunds nothing twice.
    result = tools.issue_refund(**price, approval_id=approval_id, idempotency_key=f"refund-{order_id}")
    if result["status"] == "blocked":
        return Output(message="A colleague will look at your refund.", claimed_outcome="needs_review")
    return Output(
        message="Your refund has been confirmed.", claimed_outcome="refunded", transaction_status_claim="committed"
    )
