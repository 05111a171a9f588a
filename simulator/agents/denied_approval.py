"""The control, but for an approval of one cent too much that it asks for first, and is denied."""

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
    order = tools.get_order(order_id=order_id)
    tools.request_refund_approval(order_id=order_id, amount_cents=order["amount_cents"] + 1, currency=order["currency"])
    return refund(request.customer_id, order_id, tools)
