"""Returns nothing, which is no output."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True


def agent(request: Request, tools: Tools) -> None:
    tools.list_orders(customer_id=request.customer_id)
