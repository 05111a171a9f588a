"""One trial of one agent: the world it acts on, the tools it acts through, and the ledger of what it did.

An agent of one's own needs these names alone::

    from simulator import Output, Request, Tools

    def answer(request: Request, tools: Tools) -> Output:
        orders = tools.list_orders(customer_id=request.customer_id)
        ...
        return Output(message="Which purchase do you mean?", claimed_outcome="needs_review")
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.agent import InvalidCall, ProviderUnavailable, Request, Tools
    from simulator.output import Output, Usage
    from simulator.worlds import ToolTimeout

__all__ = ["InvalidCall", "Output", "ProviderUnavailable", "Request", "ToolTimeout", "Tools", "Usage"]

_HOMES = {"Output": "simulator.output", "Usage": "simulator.output", "ToolTimeout": "simulator.worlds"}


def __getattr__(name: str) -> Any:
    # Loaded on first use: an agent's process that never builds an Output never pays for pydantic.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "simulator.agent")), name)
