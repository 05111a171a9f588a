"""What a trial is handed: all that the recorder may know, and nothing that the evaluator expects.

The expectation, the case's id and labels, the arm and the repetition are absent on purpose (trust rule 1): neither the
agent nor the recorder could leak what it never received.
"""

from typing import Annotated, Literal, get_args

from pydantic import Field, JsonValue

from simulator.canonical import canonical_hash
from simulator.model import WireModel

Isolation = Literal["process", "user", "container"]
ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
"""From the weakest to the strongest."""


class Request(WireModel):
    """What the agent sees of a case before it uses a tool."""

    utterance: str
    customer_id: str


class Limits(WireModel):
    """Where a trial is ended by the recorder. What was done until then is evidence."""

    seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = 60.0
    """Wall-clock time from the agent's start to its answer."""
    tool_calls: Annotated[int, Field(ge=0, le=100_000)] = 100
    """Calls that are answered; the next one ends the trial."""
    memory_mb: Annotated[int, Field(ge=16, le=1_048_576)] = 1024
    """Private writable memory of each process of the agent, in MiB."""


class Agent(WireModel):
    """An agent with its settings, as registered in the manifest."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """A packaged agent such as ``descriptive-control``, or ``module:function`` for one's own."""
    settings: dict[str, JsonValue] = {}
    """Keyword arguments of the agent's function."""
    env: list[str] = []
    """Names of the environment variables that the agent's process receives; values are never stored."""
    reuse: bool = False
    """One process for many trials: for packaged deterministic agents alone."""
    source: str
    """SHA-256 over the agent's source files."""


class Assignment(WireModel):
    """One trial's work: request, records in presented order, scripted replies, agent and limits."""

    version: Literal[1] = 1
    world: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    world_settings: dict[str, JsonValue] = {}
    request: Request
    records: list[dict[str, JsonValue]]
    replies: list[str]
    agent: Agent
    limits: Limits

    def hash(self) -> str:
        return canonical_hash(self.model_dump(mode="json"))
