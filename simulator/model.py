"""The strictness that every wire format of Cellwise shares."""

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """A versioned document, or a part of one: unknown fields are refused and no value is turned into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
