"""The control after it has tampered with every list it was given: what was recorded must not change with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.agents import descriptive_control

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True


def agent(request: Request, tools: Tools) -> dict[str, Any]:
    orders = tools.list_orders(customer_id=request.customer_id)
    for order in orders:
        order["order_id"] = "tampered"
        order["description"] = "tampered"
    orders.append({"order_id": "invented", "description": request.utterance})
    return descriptive_control.agent(request, tools)
