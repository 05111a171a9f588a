"""Refunds every order of the customer: the intended one among them hides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.agents.descriptive_control import CONFIRMED, refund

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True


def agent(request: Request, tools: Tools) -> dict[str, Any]:
    for order in tools.list_orders(customer_id=request.customer_id):
        refund(request.customer_id, order["order_id"], tools)
    return CONFIRMED
