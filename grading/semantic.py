"""What a judgment comes to for a trial: five things that stay apart, and the joint grade.

A qualified fail is evidence against the message; a qualified abstention is no verdict; an unqualified judgment is no
evidence at all; a pending one has not been made yet. None of them is a pass. Source: the order-resolution seed, katas
46 and 64.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from grading.cost import NOT_DISPATCHED, Cost, CostTotal
from grading.graders import Verdict
from grading.judge.judgment import NOT_JUDGED, SemanticState, joint_verdict, pending_cost, state_of
from grading.store.judgments import StoredJudgment


@dataclass(frozen=True, slots=True)
class Semantic:
    """The semantic result of one trial."""

    state: SemanticState
    reason: str | None
    """Why it is unqualified or pending; of a qualified abstention, the judge's error if that was why."""
    verdict: Literal["pass", "fail", "abstain"] | None = None
    """What the judge said, whether it counts or not."""
    explanation: str | None = None
    cost: Cost = NOT_DISPATCHED
    """The component that this trial carries, whoever paid for it."""
    cached: bool = False
    """Whether it rests on calls that were made for another trial."""
    configuration_hash: str | None = None
    document: dict[str, Any] | None = None
    """The judgment as a JSON value."""

    def told(self) -> str:
        """The state in words."""
        words = self.state.replace("_", " ")
        return words if self.reason is None else f"{words}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "reason": self.reason,
            "verdict": self.verdict,
            "explanation": self.explanation,
            "cost": {"state": self.cost.state, "micro_dollars": self.cost.micro_dollars},
            "cached": self.cached,
            "judgment": self.document,
        }


def semantic_of(stored: StoredJudgment | None) -> Semantic:
    """What a stored judgment comes to; None is one that nobody has tried to make."""
    if stored is None:
        return Semantic("pending", NOT_JUDGED)
    if stored.state == "pending":
        cost = pending_cost(stored.reason or "").cost()
        return Semantic("pending", stored.reason, cost=cost, configuration_hash=stored.configuration_hash)
    assert stored.document is not None
    document = orjson.loads(stored.document)
    cost = Cost(document["cost"]["state"], document["cost"]["micro_dollars"])
    return Semantic(
        state_of(document["unqualified"], document["verdict"]),
        document["unqualified"] or document["error"],
        document["verdict"],
        document["explanation"],
        cost,
        any(vote["cached"] for vote in document["votes"]),
        stored.configuration_hash,
        document,
    )


def joint(structural: Verdict, semantic: Semantic) -> Verdict:
    """The joint grade of a trial."""
    return joint_verdict(structural, semantic.state)


@dataclass(slots=True)
class SemanticTally:
    """Counts over the trials of a matrix with a judge."""

    joint: int = 0
    states: Counter[SemanticState] = field(default_factory=Counter)
    unqualified: Counter[str] = field(default_factory=Counter)
    """By reason."""
    pending: Counter[str] = field(default_factory=Counter)
    """By reason."""
    known_subtotal: int = 0
    """Micro-dollars."""
    components: Counter[str] = field(default_factory=Counter)

    def add(self, structural: Verdict, semantic: Semantic, count: int = 1) -> None:
        """Count so many trials that came to the same."""
        self.joint += count if joint(structural, semantic) == "passed" else 0
        self.states[semantic.state] += count
        if semantic.state == "unqualified":
            self.unqualified[semantic.reason or ""] += count
        elif semantic.state == "pending":
            self.pending[semantic.reason or ""] += count
        self.components[semantic.cost.state] += count
        self.known_subtotal += count * (semantic.cost.micro_dollars or 0)

    @property
    def cost(self) -> CostTotal:
        """Of the trials' components: what is carried, not what was spent."""
        counts = self.components
        return CostTotal(self.known_subtotal, counts["known"], counts["unknown"], counts["not_dispatched"])

    def to_json(self) -> dict[str, Any]:
        cost = self.cost
        return {
            "joint": self.joint,
            "qualified_pass": self.states["qualified_pass"],
            "qualified_fail": self.states["qualified_fail"],
            "qualified_abstention": self.states["qualified_abstention"],
            "unqualified": dict(sorted(self.unqualified.items())),
            "pending": dict(sorted(self.pending.items())),
            "judge_cost": {
                "complete_micro_dollars": cost.complete,
                "known_micro_dollars": cost.known_subtotal,
                "known": cost.known,
                "unknown": cost.unknown,
                "not_dispatched": cost.not_dispatched,
            },
        }
