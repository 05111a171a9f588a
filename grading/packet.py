"""The packet: everything that a comparison's result follows from, in one file that another machine can replay.

It is one JSON document of a fixed layout, a line for each element, so that it is written and read in constant memory
however many trials it holds; each line's value is canonical JSON. A given packet therefore has exactly one sequence of
bytes, whose SHA-256 is the anchor that ``--expect-sha256`` takes. See docs/packet.md for what each field is and which
fields only the anchor protects.

    {"version":1,
    "manifest":{...},
    "manifest_hash":"sha256:...",
    "artifacts":[            one Artifact a line, in planned order
    ],
    "rows":[                 one Row a line, one for every planned trial
    ],
    "incidents":[            one Incident a line
    ],
    "totals":{...},
    "packet_hash":"sha256:..."}      over all bytes before this line

A hash shows integrity, not origin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from grading.arms import ARMS, Arm
from grading.cost import Cost, CostTotal, known, total
from grading.graders import GradeDocument, Verdict
from grading.judge import JudgeVerdict
from grading.judge.judgment import (
    BUDGET,
    JUDGE_UNAVAILABLE,
    NOT_JUDGED,
    CostComponent,
    Judgment,
    SemanticState,
    joint_verdict,
    pending_cost,
)
from grading.manifest import Manifest
from grading.matrix_file import SyntheticProfile
from grading.schedule import Planned
from simulator.ledger import Ledger, Sha256
from simulator.model import WireModel
from simulator.sealing import ATTEMPT_LOST, DISK_LIMIT

VERSION = 1
OPENING = b'{"version":1,'
SECTIONS = ("artifacts", "rows", "incidents")

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Artifact(WireModel):
    """The evidence of one trial. Its hash, over its canonical JSON, is what its row names it by."""

    grades: list[GradeDocument]
    """By the manifest's graders, in their order and of their versions."""
    judgments: list[Judgment]
    """What the registered judge's judging of the message came to, one at most. Empty where it is pending, and where
    the manifest registers no judge."""
    ledger: Ledger


class LostAttempt(WireModel):
    """An attempt at a trial that is not its evidence."""

    number: Annotated[int, Field(ge=1, le=2**53 - 1)]
    state: Literal["lost", "fenced"]
    reason: str | None
    after_consequential_call: bool
    """Whether it had called a refund or approval tool."""


class Semantic(WireModel):
    """What is known of the message's truth."""

    state: SemanticState
    reason: str | None
    """Why it is unqualified or pending; of a qualified abstention, the judge's error if that was why."""
    verdict: JudgeVerdict | None
    """What the judge said, whether it counts or not."""
    cost: CostComponent | None
    """The component that this trial carries, whoever paid for it; None where no judge is registered."""
    cached: bool
    """Whether it rests on a call that was made for another judgment: the component is carried here, spent there."""


class Row(WireModel):
    """One planned trial as statistics see it. ``None`` is what is not known, never zero and never a pass."""

    sequence: Count
    arm: Arm
    case: str
    repetition: Count
    state: Literal["graded", "missing"]
    reason: str | None
    """Why it is missing, where its whole cell failed."""
    artifact: Sha256 | None
    verdict: Verdict | None
    completed: bool | None
    failed_checks: list[str] | None
    counters: dict[str, Count] | None
    """Every check that counts something, by its name."""
    semantic: Semantic | None
    joint: Verdict | None
    """Passed iff the structural grade is and the message is a qualified pass; None where no judge is registered."""
    latency_ms: Count | None
    """By the measurement profile."""
    elapsed_us: Count | None
    """By the recorder's clock, whatever the profile says."""
    cost_micro_dollars: Count | None
    """Of the agent, by the measurement profile."""
    reused: bool
    """Its evidence was made by a trial of another matrix: the comparison is exploratory."""
    lost: list[LostAttempt]


class Incident(WireModel):
    """Something that went wrong around the trials; its document stays in the store."""

    kind: str
    detail: str
    sequence: Count | None
    attempt: Annotated[int, Field(ge=1, le=2**53 - 1)] | None
    document_sha256: Sha256 | None


class RowContradiction(ValueError):  # noqa: N818 - named after the condition
    """What is known of a trial does not fit together. ``place`` is the member path."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place
        self.message = message


class Evidence(NamedTuple):
    """What a row is made from, as JSON values."""

    artifact_hash: str
    ledger: Mapping[str, Any]
    grade: Mapping[str, Any]
    reused: bool
    judgment: Judgment | None = None
    """By the registered judge."""


NO_JUDGE: dict[str, Any] = {
    "state": "unqualified", "reason": "no_judge", "verdict": None, "cost": None, "cached": False,
}  # fmt: skip

CALIBRATION_NOT_TRUSTED = "calibration_not_trusted"
"""Why a judgment that counted when it was made does not count for a reader who does not trust its calibration."""


class Rows:
    """Makes rows. The export and the replay use it alike, so that neither can know better."""

    def __init__(self, manifest: Manifest) -> None:
        self._cases = [case.id for case in manifest.cases]
        profile = manifest.measurement_profile
        self._synthetic = profile.synthetic if isinstance(profile, SyntheticProfile) else None
        self._cost = known(self._synthetic.cost).micro_dollars if self._synthetic else None
        self._judged = manifest.judge is not None

    def row(
        self,
        planned: Planned,
        evidence: Evidence | None,
        lost: Sequence[Mapping[str, Any]],
        reason: str | None,
        pending: str | None = None,
    ) -> dict[str, Any]:
        """The row of one planned trial, as a JSON value.

        Args:
            reason: why its whole cell failed, where it is missing.
            pending: why the registered judge has not judged it, where it has not.

        Raises:
            RowContradiction: attempts are missing or told twice, or a message cannot be pending for that reason.
        """
        row: dict[str, Any] = {
            "sequence": planned.sequence,
            "arm": ARMS[planned.condition],
            "case": self._cases[planned.case],
            "repetition": planned.repetition,
            "lost": list(lost),
        }
        own = None if evidence is None or evidence.reused else evidence.ledger["envelope"]["attempt"]
        _check_attempts(lost, own)
        if evidence is None:
            return row | _MISSING | {"reason": reason}
        if reason is not None:
            raise RowContradiction("row.reason", "a trial that is graded is not missing for a reason")
        envelope, grade = evidence.ledger["envelope"], evidence.grade
        elapsed = envelope["ended"] - envelope["started"]
        row |= {
            "state": "graded",
            "reason": None,
            "artifact": evidence.artifact_hash,
            "verdict": grade["verdict"],
            "completed": grade["task_completed"],
            "failed_checks": [check["name"] for check in grade["checks"] if check["passed"] is False],
            "counters": {
                check["name"]: check["observed"] for check in grade["checks"] if type(check["observed"]) is int
            },
            "semantic": self._semantic(evidence.judgment, pending),
            "elapsed_us": elapsed,
            "reused": evidence.reused,
        }
        row["joint"] = joint_verdict(grade["verdict"], row["semantic"]["state"]) if self._judged else None
        if self._synthetic is not None:
            return row | {"latency_ms": self._synthetic.latency_ms, "cost_micro_dollars": self._cost}
        # What an agent says of its own usage is no evidence of cost, and nothing else tells it yet: unknown, not zero.
        return row | {"latency_ms": (elapsed + 500) // 1000, "cost_micro_dollars": None}

    def _semantic(self, judgment: Judgment | None, pending: str | None) -> dict[str, Any]:
        if not self._judged:
            return NO_JUDGE
        if judgment is not None:
            return {
                "state": judgment.state,
                "reason": judgment.reason,
                "verdict": judgment.verdict,
                "cost": {"state": judgment.cost.state, "micro_dollars": judgment.cost.micro_dollars},
                "cached": judgment.cached,
            }
        if pending not in _PENDING:
            raise RowContradiction("row.semantic.reason", f"without a judgment it is one of {', '.join(_PENDING)}")
        return {
            "state": "pending",
            "reason": pending,
            "verdict": None,
            "cost": {"state": pending_cost(pending).state, "micro_dollars": None},
            "cached": False,
        }


_PENDING = (NOT_JUDGED, BUDGET, JUDGE_UNAVAILABLE)


def distrusted(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is for a reader who does not trust the calibration: the judge's word does not count."""
    semantic = row["semantic"]
    if semantic is None or not semantic["state"].startswith("qualified_"):
        return dict(row)
    return {
        **row,
        "semantic": {**semantic, "state": "unqualified", "reason": CALIBRATION_NOT_TRUSTED},
        "joint": joint_verdict(row["verdict"], "unqualified"),
    }


_MISSING: dict[str, Any] = {
    "state": "missing",
    "artifact": None,
    "verdict": None,
    "completed": None,
    "failed_checks": None,
    "counters": None,
    "semantic": None,
    "joint": None,
    "latency_ms": None,
    "elapsed_us": None,
    "cost_micro_dollars": None,
    "reused": False,
}


def _check_attempts(lost: Sequence[Mapping[str, Any]], own: int | None) -> None:
    """Every attempt has a number of its own, counted from 1, and none is left out."""
    number = 0
    for position, one in enumerate(lost):
        number += 1 + (number + 1 == own)
        if one["number"] != number:
            raise RowContradiction(f"row.lost[{position}].number", f"attempt {number} would be the next one")
    if own is not None and own > number + 1:
        raise RowContradiction("row.lost", f"attempt {number + 1} is neither the evidence nor told as lost")


def sealers_for(error: str | None) -> tuple[str, ...]:
    """Who may have sealed a ledger that ends with that error."""
    if error == ATTEMPT_LOST:
        return ("journal",)
    # A pod that is evicted for its own use of the disk takes its recorder with it.
    return ("recorder", "journal") if error == DISK_LIMIT else ("recorder",)


@dataclass(slots=True)
class ArmTotals:
    """Sums over one arm's rows."""

    planned: int = 0
    graded: int = 0
    missing: int = 0
    unscored: int = 0
    passed: int = 0
    completed: int = 0
    joint: int = 0
    """Passed structurally and by a qualified judge."""
    qualified_pass: int = 0
    qualified_fail: int = 0
    qualified_abstention: int = 0
    unqualified_messages: int = 0
    pending_messages: int = 0
    reused: int = 0
    lost_attempts: int = 0
    discarded_after_action: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Totals:
    """Sums over all rows, in parts that can be added up in any order."""

    arms: dict[Arm, ArmTotals] = field(default_factory=lambda: {arm: ArmTotals() for arm in ARMS})
    cost: CostTotal = field(default_factory=lambda: total([]))
    """Of the agents' and the judge's components."""
    judge_cost: CostTotal = field(default_factory=lambda: total([]))
    """Of the judge's alone: what the trials carry, not what was spent."""

    def add(self, row: Mapping[str, Any]) -> None:
        arm = self.arms[row["arm"]]
        arm.planned += 1
        arm.lost_attempts += len(row["lost"])
        arm.discarded_after_action += sum(one["after_consequential_call"] for one in row["lost"])
        if row["state"] == "missing":
            arm.missing += 1
        else:
            arm.graded += 1
            arm.unscored += row["verdict"] == "unscored"
            arm.passed += row["verdict"] == "passed"
            arm.completed += row["completed"] is True
            arm.joint += row["joint"] == "passed"
            count_of = _STATE_COUNTS[row["semantic"]["state"]]
            setattr(arm, count_of, getattr(arm, count_of) + 1)
            arm.reused += row["reused"]
            for name, count in row["counters"].items():
                arm.counters[name] = arm.counters.get(name, 0) + count
        components = [_cost_of(row)]
        if row["semantic"] is not None and row["semantic"]["cost"] is not None:
            judge = row["semantic"]["cost"]
            components.append(Cost(judge["state"], judge["micro_dollars"]))
            self.judge_cost = _together(self.judge_cost, total(components[1:]))
        self.cost = _together(self.cost, total(components))

    def merge(self, other: "Totals") -> None:
        for name, arm in self.arms.items():
            more = other.arms[name]
            for each in ArmTotals.__slots__:
                if each != "counters":
                    setattr(arm, each, getattr(arm, each) + getattr(more, each))
            for counter, count in more.counters.items():
                arm.counters[counter] = arm.counters.get(counter, 0) + count
        self.cost = _together(self.cost, other.cost)
        self.judge_cost = _together(self.judge_cost, other.judge_cost)

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: arm.to_json() for name, arm in self.arms.items()},
            "cost": cost_json(self.cost),
            "judge_cost": cost_json(self.judge_cost),
        }


_STATE_COUNTS: dict[SemanticState, str] = {
    "qualified_pass": "qualified_pass",
    "qualified_fail": "qualified_fail",
    "qualified_abstention": "qualified_abstention",
    "unqualified": "unqualified_messages",
    "pending": "pending_messages",
}


def cost_json(cost: CostTotal) -> dict[str, Any]:
    return {
        "known_subtotal_micro_dollars": cost.known_subtotal,
        "known": cost.known,
        "unknown": cost.unknown,
        "not_dispatched": cost.not_dispatched,
        "complete_micro_dollars": cost.complete,
    }


def _cost_of(row: Mapping[str, Any]) -> Cost:
    if row["cost_micro_dollars"] is not None:
        return Cost("known", row["cost_micro_dollars"])
    # A trial that never had an attempt spent nothing; what a lost attempt spent nobody knows.
    return Cost("not_dispatched" if row["state"] == "missing" and not row["lost"] else "unknown")


def _together(one: CostTotal, other: CostTotal) -> CostTotal:
    return CostTotal(
        one.known_subtotal + other.known_subtotal,
        one.known + other.known,
        one.unknown + other.unknown,
        one.not_dispatched + other.not_dispatched,
    )
