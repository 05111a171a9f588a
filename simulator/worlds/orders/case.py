"""What a case gives the orders world, as it is checked when a person writes it."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from simulator.model import WireModel


class Order(WireModel):
    """One order as the shop holds it."""

    order_id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    customer_id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    description: Annotated[str, StringConstraints(pattern=r"\S", max_length=10_000)]
    amount_cents: Annotated[int, Field(ge=0, le=2**53 - 1)]
    currency: Literal["USD", "EUR", "GBP"]
    eligible: bool
    """Whether the refund policy allows a refund."""


class Settings(WireModel):
    """Faults that a case may ask the world for."""

    timeout_after_commit: bool = False
    """The first refund commits, then times out: the effect stands, the agent sees ToolTimeout."""


Record = Order
