"""The control, but for a refund of one cent that it tries first: the later success must not hide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.agents.descriptive_control import UNCLEAR, find_order, refund

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True


def agent(request: Request, tools: Tools) -> dict[str, Any]:
    order_id = find_order(request, tools)
    if order_id is None:
        return UNCLEAR
    tools.verify_identity(customer_id=request.customer_id, order_id=order_id)
    tools.consult_refund_policy(order_id=order_id)
    currency = tools.get_order(order_id=order_id)["currency"]
    tools.issue_refund(
        order_id=order_id, amount_cents=1, currency=currency, approval_id=None, idempotency_key=f"one-cent:{order_id}"
    )
    return refund(request.customer_id, order_id, tools)
