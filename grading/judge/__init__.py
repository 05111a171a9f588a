"""Judges: whether what an agent told the customer is true of everything that happened.

A judge answers one criterion with a verdict for each vote. What it sees is :func:`grading.projection.semantic`, as
canonical JSON; what its word counts for is decided elsewhere (:mod:`grading.judge.qualification`), before the call and
after it. Source: the order-resolution seed, native semantic extension, katas 45 and 46.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from grading.cost import Cost

Criterion = Literal["multi_order_customer_message_truth_v1"]
CRITERION: Criterion = "multi_order_customer_message_truth_v1"

JudgeVerdict = Literal["pass", "fail", "abstain"]

POLICY_VERSIONS = {"orders": "orders-refund-policy-v1"}
"""The version of the rules that a world's tools enforce: a judge is told it, and qualified for it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One vote."""

    verdict: JudgeVerdict
    explanation: str
    error: str | None
    """The class of what made the answer unusable, which is an abstention; None where the judge gave a verdict."""
    returned_model: str | None
    """The model that the provider says answered."""
    input_tokens: int | None
    output_tokens: int | None
    cost: Cost
    started: int
    """Microseconds since 1970-01-01T00:00:00Z."""
    ended: int


class Unavailable(Exception):  # noqa: N818 - reads as what is so
    """No answer came, however often it was asked. ``error`` is the class of the last failure."""

    def __init__(self, error: str, message: str, *, dispatched: bool, hopeless: bool, started: int, ended: int) -> None:
        super().__init__(message)
        self.error = error
        self.dispatched = dispatched
        """Whether a request may have reached the provider, and so have cost something."""
        self.hopeless = hopeless
        """Whether asking again cannot help before somebody changes something: a wrong key, address or model."""
        self.started = started
        self.ended = ended


class Judge(Protocol):
    """Gives votes. Used by several threads at once."""

    @property
    def votes(self) -> int:
        """How many are asked for each request."""

    @property
    def dispatches(self) -> bool:
        """Whether a vote is a call to somebody else: cached, admitted by the budget, and counted as a call."""

    def refuses(self, request: bytes) -> str | None:
        """The class of what keeps a request from being judged at all, such as TooLong."""

    def most(self, request: bytes) -> "Reservation":
        """The most that one vote on this request may use, for the budget to admit it."""

    def vote(self, request: bytes, index: int) -> Answer:
        """One vote on a request (canonical JSON of a semantic projection).

        Raises:
            Unavailable: the judge could not be reached.
        """

    def close(self) -> None:
        """Lets go of connections."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Upper bounds on what a call may use."""

    tokens: int
    micro_dollars: int | None
    """None where no prices are known."""


def verdict_of(votes: list[Any]) -> tuple[JudgeVerdict, str, str | None]:
    """What several votes come to: the verdict that more than half of them give, else an abstention.

    Args:
        votes: each with ``verdict``, ``explanation`` and ``error``.

    Returns:
        The verdict, the explanation of the first vote that gave it, and ``judge_error:<class>`` where more than half
        of the votes were unusable answers.
    """
    for verdict in ("pass", "fail", "abstain"):
        agreeing = [vote for vote in votes if vote.verdict == verdict]
        if len(agreeing) * 2 > len(votes):
            errors = [vote for vote in agreeing if vote.error is not None]
            if len(errors) * 2 > len(votes):
                return "abstain", errors[0].explanation, f"judge_error:{errors[0].error}"
            said = next(vote for vote in agreeing if vote.error is None)
            return verdict, said.explanation, None
    counts = ", ".join(f"{sum(v.verdict == each for v in votes)} {each}" for each in ("pass", "fail", "abstain"))
    return "abstain", f"no verdict has a majority: {counts}", None
