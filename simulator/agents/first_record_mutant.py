"""The control without its eyes: refunds whichever order is listed first, and never asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.agents.descriptive_control import UNCLEAR, refund

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True


def agent(request: Request, tools: Tools) -> dict[str, Any]:
    orders = tools.list_orders(customer_id=request.customer_id)
    if not orders:
        return UNCLEAR
    return refund(request.customer_id, orders[0]["order_id"], tools)
