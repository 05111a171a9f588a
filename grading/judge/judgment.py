"""Judgments and receipts: what was asked, answered and found to count, as it is stored, exported and read back."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from grading.cost import Cost
from grading.graders import Verdict
from grading.judge import Criterion, JudgeVerdict, verdict_of
from simulator.canonical import canonical, canonical_hash, sha256
from simulator.ledger import Microseconds, Sha256
from simulator.model import WireModel

MicroDollars = Annotated[int, Field(ge=0, le=2**53 - 1)]
Tokens = Annotated[int, Field(ge=0, le=2**53 - 1)]
Reason = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,99}$")]

SemanticState = Literal["qualified_pass", "qualified_fail", "qualified_abstention", "unqualified", "pending"]
"""What judging a message came to. A qualified fail is evidence against it, a qualified abstention is no verdict, an
unqualified judgment is no evidence at all, a pending one has not been made yet; none of them is a pass."""

JUDGE_UNAVAILABLE = "judge_unavailable"
BUDGET = "budget"
NOT_JUDGED = "not_judged"
"""The reason of a judgment that nobody has tried to make yet."""


class CostComponent(WireModel):
    """:class:`grading.cost.Cost` as a wire format."""

    state: Literal["known", "unknown", "not_dispatched"]
    micro_dollars: MicroDollars | None

    @model_validator(mode="after")
    def _is_a_cost(self) -> "CostComponent":
        self.cost()
        return self

    @classmethod
    def of(cls, cost: Cost) -> "CostComponent":
        return cls(state=cost.state, micro_dollars=cost.micro_dollars)

    def cost(self) -> Cost:
        return Cost(self.state, self.micro_dollars)


class Vote(WireModel):
    """One vote, as the call gave it."""

    index: Annotated[int, Field(ge=0, le=24)]
    call: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None
    """The call that gave it; None where nobody had to be called."""
    cached: bool
    """Whether that call was made for another judgment: its cost is carried here and spent there."""
    verdict: JudgeVerdict
    explanation: str
    error: Annotated[str, Field(pattern=r"^[A-Za-z]{1,60}$")] | None
    returned_model: str | None
    input_tokens: Tokens | None
    output_tokens: Tokens | None
    cost: CostComponent
    started: Microseconds
    ended: Microseconds

    @model_validator(mode="after")
    def _is_an_answer(self) -> "Vote":
        if self.error is not None and self.verdict != "abstain":
            raise ValueError("an answer that cannot be used is an abstention")
        return self


class Receipt(WireModel):
    """Binds a judgment that counts to what it is a judgment of. Integrity, not origin; not that it is right.

    The context is policy version, case, input, events, ledgers and error; message and claims are bound apart.
    """

    version: Literal[1] = 1
    criterion: Criterion
    judge_version: Sha256
    configuration_hash: Sha256
    calibration_hash: Sha256 | None
    message_hash: Sha256
    claims_hash: Sha256
    context_hash: Sha256
    request_hash: Sha256
    verdict: JudgeVerdict
    explanation: str
    started: Microseconds
    ended: Microseconds


class Judgment(WireModel):
    """What became of judging one ledger: refused before any call, or judged, and whether it counts."""

    version: Literal[1] = 1
    criterion: Criterion
    configuration_hash: Sha256
    calibration_hash: Sha256 | None
    qualification: Sha256
    """Of the qualification's inputs."""
    checked_before: Microseconds
    checked_after: Microseconds | None
    unqualified: Reason | None
    """Why the judgment does not count; None where it does."""
    request_hash: Sha256 | None
    votes: list[Vote]
    verdict: JudgeVerdict | None
    explanation: str | None
    error: Annotated[str, Field(pattern=r"^judge_error:[A-Za-z]{1,60}$")] | None
    cost: CostComponent
    receipt: Receipt | None

    @property
    def refused(self) -> bool:
        return self.verdict is None

    @property
    def state(self) -> SemanticState:
        return state_of(self.unqualified, self.verdict)

    @property
    def reason(self) -> str | None:
        """Why it does not count; of a qualified abstention, the judge's error if that was why."""
        return self.unqualified or self.error

    @property
    def cached(self) -> bool:
        """Whether it rests on calls that were made for another judgment."""
        return any(vote.cached for vote in self.votes)

    @model_validator(mode="after")
    def _holds_together(self) -> "Judgment":
        if self.verdict is None:
            held = (self.checked_after, self.request_hash, self.explanation, self.error, self.receipt)
            if any(each is not None for each in held) or self.votes or self.unqualified is None:
                raise ValueError("a judgment refused before the call has a reason, and no request, answer or usage")
            if self.cost.state != "not_dispatched":
                raise ValueError("a judgment refused before the call costs nothing")
            return self
        if self.checked_after is None or self.request_hash is None or not self.votes:
            raise ValueError("a judgment has a request, votes and a check after them")
        if [vote.index for vote in self.votes] != list(range(len(self.votes))):
            raise ValueError("votes are numbered from 0, in order")
        if (self.verdict, self.explanation, self.error) != verdict_of(list(self.votes)):
            raise ValueError("the verdict is not that of the votes")
        if self.cost != carried(self.votes):
            raise ValueError("the cost is not that of the votes")
        if (self.receipt is None) != (self.unqualified is not None):
            raise ValueError("a judgment that counts has a receipt, one that does not has a reason")
        receipt = self.receipt
        if receipt is not None and (
            receipt.criterion, receipt.configuration_hash, receipt.calibration_hash, receipt.request_hash,
            receipt.verdict, receipt.explanation,
        ) != (
            self.criterion, self.configuration_hash, self.calibration_hash, self.request_hash,
            self.verdict, self.explanation,
        ):  # fmt: skip
            raise ValueError("the receipt is that of another judgment")
        return self

    def document(self) -> bytes:
        return canonical(self.model_dump(mode="json"))


_QUALIFIED: dict[JudgeVerdict, SemanticState] = {
    "pass": "qualified_pass",
    "fail": "qualified_fail",
    "abstain": "qualified_abstention",
}


def state_of(unqualified: str | None, verdict: JudgeVerdict | None) -> SemanticState:
    """What a judgment that was made, or refused before the call, comes to."""
    return "unqualified" if unqualified is not None or verdict is None else _QUALIFIED[verdict]


def joint_verdict(structural: Verdict, semantic: SemanticState) -> Verdict:
    """The joint grade: passed iff the structural grade is passed and the semantic one is a qualified pass.

    What has failed already stays failed, whatever is still to come; what waits for a verdict is unscored.
    """
    if structural == "failed" or semantic == "qualified_fail":
        return "failed"
    if structural == "unscored" or semantic == "pending":
        return "unscored"
    return "passed" if semantic == "qualified_pass" else "failed"


def pending_cost(reason: str) -> CostComponent:
    """What a judgment that was not made may have cost: a judge that was asked in vain may send a bill all the same."""
    return CostComponent(state="unknown" if reason == JUDGE_UNAVAILABLE else "not_dispatched", micro_dollars=None)


def carried(votes: list[Vote]) -> CostComponent:
    """A judgment's cost component: of every vote, whoever paid for it. One unknown vote makes it unknown."""
    costs = [vote.cost for vote in votes]
    if any(cost.state == "unknown" for cost in costs):
        return CostComponent(state="unknown", micro_dollars=None)
    known = [cost.micro_dollars for cost in costs if cost.micro_dollars is not None]
    if not known:
        return CostComponent(state="not_dispatched", micro_dollars=None)
    return CostComponent(state="known", micro_dollars=sum(known))


class Binding(WireModel):
    """The hashes by which a receipt holds on to one execution."""

    message_hash: Sha256
    claims_hash: Sha256
    context_hash: Sha256


def binding(content: dict[str, Any], case: dict[str, Any], policy_version: str) -> Binding:
    """What a receipt binds of a ledger's content.

    Args:
        case: the registered case as a JSON value; the judge never sees it, the receipt says whose it is.
    """
    return Binding(
        message_hash=sha256(content["message"].encode()),
        claims_hash=canonical_hash(content["claims"]),
        context_hash=canonical_hash(
            {
                "policy_version": policy_version,
                "case": case,
                "input": content["request"],
                "events": content["calls"],
                "ledgers": content["objects"],
                "error": content["error"],
            }
        ),
    )
