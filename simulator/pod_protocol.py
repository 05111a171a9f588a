"""The cells API: what a recorder in a pod and the intake of its cluster say to each other, JSON over HTTP.

Every request carries ``Authorization: Bearer <projected token>``. A refusal is a :class:`Refusal`.

================================= ==================== ==============================================================
request                           answer               what the recorder does with it
================================= ==================== ==============================================================
``POST /v1/assignment``           200 Assigned         runs the trial; the same pod asking again gets the same again
:class:`AssignmentRequest`        204                  nothing (more) to do: ends with 0
..                                403, 409             not this pod's, or never: ends with 78
``POST /v1/journal``              204                  goes on; the same lines again are accepted quietly
:class:`JournalLines`             410                  fenced: ends the agent, ends with 75
``POST /v1/ledger?attempt=N``     200 LedgerAnswer     ``accepted``, ``repeated``: goes on; otherwise ends with 75
the ledger's bytes, and                                with ``&next=1`` runs the trial that stands in ``next``, or asks
where there is more ``&next=1``                        for one where there is none
..                                413                  too large: ends with 75
``POST /v1/turn?attempt=N``       200 TurnAnswer       ``begun``: goes on with the trial that stands in ``next``,
the ledger's bytes, a newline,                         otherwise throws away what it began, and does as after a ledger
:class:`Following`
..                                404, another         sends the ledger by itself
``POST /v1/unusable``             204                  ends with 78 where the agent does not load, otherwise with 75
:class:`Unusable`
any                               503, 429             tried again, not before ``Retry-After``
================================= ==================== ==============================================================

The intake checks every request against these models; the recorder, whose start is to cost little, against
simulator/pod.py's few conditions.
"""

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import Discriminator, Field, Tag, model_validator

from simulator.assignment import Assignment
from simulator.ledger import Call, Microseconds, Sha256, Software
from simulator.model import WireModel

LONGEST_MESSAGE = 2000

Attempt = Annotated[int, Field(ge=1, le=2**53 - 1)]
"""The store's number of an attempt."""


class AssignmentRequest(WireModel):
    """A pod asks for its next trial."""

    version: Literal[1] = 1
    launch: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    index: Annotated[int, Field(ge=0, le=1_000_000)]
    """The Job's completion index."""
    software: Software
    """An intake hands out a trial to the software of its manifest alone."""


class Assigned(WireModel):
    """One attempt at one trial."""

    version: Literal[1] = 1
    attempt: Attempt
    number: Annotated[int, Field(ge=1)]
    """1 for the trial's first attempt."""
    trial: Annotated[str, Field(min_length=1, max_length=200)]
    hash: Sha256
    """Of the assignment's canonical JSON."""
    assignment: Assignment
    more: bool
    """Whether the pod is to ask again once this trial's ledger is accepted."""
    after: Sha256 | None = None
    """The hash of the assignment that its index's next trial has, as far as one can say now."""


class Refusal(WireModel):
    """Why a request is refused or has to wait."""

    version: Literal[1] = 1
    reason: Annotated[str, Field(min_length=1, max_length=LONGEST_MESSAGE)]


class Begin(WireModel):
    """The attempt has begun."""

    assignment: Sha256
    started: Microseconds


class BeginLine(WireModel):
    attempt: Attempt
    begin: Begin


class CallLine(WireModel):
    attempt: Attempt
    call: Call
    started: Microseconds
    ended: Microseconds


def _kind_of_line(line: Any) -> str:
    if not isinstance(line, dict):
        return type(line).__name__
    return "BeginLine" if "begin" in line else "CallLine"


JournalLine = Annotated[
    Annotated[BeginLine, Tag("BeginLine")] | Annotated[CallLine, Tag("CallLine")], Discriminator(_kind_of_line)
]
"""A line of simulator/journal.py's format."""


class JournalLines(WireModel):
    """Lines of one attempt's journal, in order and without a gap."""

    version: Literal[1] = 1
    attempt: Attempt
    first: Annotated[int, Field(ge=0, le=1_000_000)]
    """The number of the first of these lines in the attempt's journal, whose own first is 0."""
    entries: Annotated[list[JournalLine], Field(min_length=1)]

    def lines(self) -> list[bytes]:
        """Each line as it stands in a journal, without its end."""
        return [orjson.dumps(entry.model_dump(mode="json")) for entry in self.entries]


class LedgerAnswer(WireModel):
    """What became of a ledger."""

    version: Literal[1] = 1
    outcome: Literal["accepted", "repeated", "fenced", "conflicting", "quarantined"]
    next: Assigned | None = None
    """The pod's next trial, where it asked for one and there is one."""


class FollowingBegin(WireModel):
    begin: Begin


class FollowingCall(WireModel):
    call: Call
    started: Microseconds
    ended: Microseconds


def _kind_of_following(entry: Any) -> str:
    if not isinstance(entry, dict):
        return type(entry).__name__
    return "FollowingBegin" if "begin" in entry else "FollowingCall"


FollowingEntry = Annotated[
    Annotated[FollowingBegin, Tag("FollowingBegin")] | Annotated[FollowingCall, Tag("FollowingCall")],
    Discriminator(_kind_of_following),
]
"""A :data:`JournalLine` of a trial whose attempt is not known yet."""


class Following(WireModel):
    """The first lines of the journal of the trial after a ledger's, begun before the pod has a lease for it."""

    version: Literal[1] = 1
    entries: Annotated[list[FollowingEntry], Field(min_length=1)]

    @model_validator(mode="after")
    def _begins(self) -> Self:
        if self._beginnings() != self.entries[:1]:
            raise ValueError("the first line, and it alone, is the beginning")
        return self

    @property
    def assignment(self) -> str:
        """The hash of the assignment that was begun."""
        return self._beginnings()[0].begin.assignment

    def members(self) -> list[bytes]:
        """What stands in each line beside its attempt, as simulator/journal.py's ``line`` takes it.

        Raises:
            TypeError: an integer of more than 64 bits.
        """
        return [orjson.dumps(entry.model_dump(mode="json"))[1:-1] for entry in self.entries]

    def _beginnings(self) -> list[FollowingBegin]:
        return [entry for entry in self.entries if isinstance(entry, FollowingBegin)]


class TurnAnswer(WireModel):
    """What became of a ledger, and of the trial after it."""

    version: Literal[1] = 1
    outcome: Literal["accepted", "repeated", "fenced", "conflicting", "quarantined"]
    next: Assigned | None = None
    """The pod's next trial, where there is one."""
    begun: bool = False
    """Whether the lines are that trial's journal: it has the assignment that they were begun with."""


class Unusable(WireModel):
    """Why there will be no ledger of an attempt."""

    version: Literal[1] = 1
    attempt: Attempt
    kind: Literal["agent_not_startable", "provider_unavailable"]
    message: Annotated[str, Field(max_length=LONGEST_MESSAGE)]
