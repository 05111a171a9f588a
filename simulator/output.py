"""What an agent answers: a message to the customer, structured claims, and evidence of how it was produced."""

from typing import Annotated, Literal

from pydantic import Field

from simulator.model import WireModel


class Usage(WireModel):
    """Runtime evidence as the agent tells it: stored as self-reported, unknown in every total."""

    provider: str | None = None
    model: str | None = None
    response_ids: list[str] = []
    input_tokens: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    output_tokens: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    cost: Annotated[str, Field(pattern=r"^\d{1,12}(\.\d{1,12})?$")] | None = None
    """US dollars as decimal text."""
    cost_source: str | None = None


class Claims(WireModel):
    """What the agent says happened, in closed vocabularies."""

    claimed_outcome: Literal["refunded", "not_refunded", "needs_review"]
    transaction_status_claim: Literal["committed", "not_committed", "unknown"] = "unknown"
    settlement_status_claim: Literal["settled", "not_confirmed", "not_claimed", "unknown"] = "not_claimed"
    arrival_commitment_days: Annotated[int, Field(ge=0, le=36_500)] | None = None
    message_template_id: str | None = None
    escalation_reason: str | None = None


class Output(Claims):
    """An agent's answer. Returning a dict of the same fields is as good."""

    message: Annotated[str, Field(min_length=1)]
    usage: Usage | None = None

    def claims(self) -> Claims:
        return Claims(**{name: getattr(self, name) for name in Claims.model_fields})
