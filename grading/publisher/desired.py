"""What Phoenix shall show of a matrix: plain data, made from ledgers and grades, that knows nothing of what is there.

Runs are streamed: a condition's ``runs`` is a callable that starts a new pass, so that 10,000 trials need the memory
of one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grading.publisher import outgoing
from grading.publisher.spans import DesiredSpan, Microseconds, spans_of

Json = Any
"""A JSON value."""
AnnotatorKind = Literal["CODE", "LLM"]

CONTRACT = "contract"
COMPLETED = "completed"
COVERAGE = "coverage"
SEMANTIC = "semantic"
JOINT = "joint"

LONGEST_EXPLANATION = 4_000
MOST_LINES = 12
"""Calls that a run's output lists; the trace has them all."""
LONGEST_LINE = 200


@dataclass(frozen=True, slots=True)
class DesiredEvaluation:
    """One evaluation of a run. ``name`` is stable for ever; the grader's version is in the metadata."""

    name: str
    label: str
    score: float | None
    """0 to 1, or None for what is unscored: a label alone, which no mean counts."""
    explanation: str
    metadata: Mapping[str, Json] = field(default_factory=dict)
    annotator_kind: AnnotatorKind = "CODE"


@dataclass(frozen=True, slots=True)
class DesiredRun:
    """One trial. ``repetition`` counts from 0 (Phoenix's from 1)."""

    case_id: str
    repetition: int
    output: Json
    started: Microseconds
    ended: Microseconds
    error: str | None
    """For a missing trial alone: what an agent did wrong is evidence, not an error of the run."""
    evaluations: Sequence[DesiredEvaluation]
    spans: Sequence[DesiredSpan] = ()


@dataclass(frozen=True, slots=True)
class DesiredExample:
    """One case. The expectation may stand in ``output`` for people who compare: Phoenix is the evaluator's own tool, no
    agent reads it. The input is shown best as one short text under one key."""

    case_id: str
    input: Mapping[str, Json]
    output: Mapping[str, Json]
    metadata: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class DesiredCondition:
    """One condition. ``final`` says that no further trial of it will come; until then it is shown as PARTIAL."""

    name: str
    baseline: bool
    final: bool
    metadata: Mapping[str, Json]
    runs: Callable[[], Iterator[DesiredRun]]
    description: str = ""


@dataclass(frozen=True, slots=True)
class DesiredMatrix:
    """A matrix. ``name`` must be unique among the datasets of a Phoenix: give it a part of the manifest's hash."""

    manifest_hash: str
    name: str
    description: str
    repetitions: int
    cases: Sequence[DesiredExample]
    conditions: Sequence[DesiredCondition]

    def __post_init__(self) -> None:
        if self.repetitions < 1:
            # Phoenix commits an experiment of no repetitions and can then no longer list its dataset.
            raise ValueError(f"a matrix has at least one repetition, not {self.repetitions}")
        _refuse_repeated("case", [case.case_id for case in self.cases])
        _refuse_repeated("condition", [condition.name for condition in self.conditions])
        if not self.cases or not self.conditions:
            raise ValueError("a matrix has at least one case and one condition")
        if sum(condition.baseline for condition in self.conditions) > 1:
            raise ValueError("a matrix has at most one baseline")


@dataclass(frozen=True, slots=True)
class DesiredCheck:
    """One named check of a grader, with what it observed."""

    name: str
    passed: bool
    observed: Json


@dataclass(frozen=True, slots=True)
class DesiredGrade:
    """A grader's verdict on one ledger, as far as Phoenix shows it."""

    grader: str
    version: str
    verdict: Literal["passed", "failed", "unscored"]
    task_completed: bool | None
    checks: Sequence[DesiredCheck] = ()
    reason: str = ""
    """Why it is unscored."""


@dataclass(frozen=True, slots=True)
class DesiredSemantic:
    """What a judge's judgment came to, and the joint grade."""

    state: Literal["qualified_pass", "qualified_fail", "qualified_abstention", "unqualified", "pending"]
    reason: str | None
    explanation: str
    joint: Literal["passed", "failed", "unscored"]
    metadata: Mapping[str, Json]
    """Judge, calibration, what was said, and what it cost."""


def desired_run(
    ledger: Mapping[str, Any],
    grade: DesiredGrade,
    *,
    case_id: str,
    repetition: int,
    order_known: bool,
    semantic: DesiredSemantic | None = None,
) -> DesiredRun:
    """The run of a graded trial.

    Args:
        ledger: the ledger document as JSON (``simulator.ledger.Ledger``).
        order_known: whether the case expects an order; without one a task cannot be completed, and the label says so.
        semantic: None where the matrix has no judge.
    """
    content, envelope = ledger["content"], ledger["envelope"]
    return DesiredRun(
        case_id=case_id,
        repetition=repetition,
        output=_output(content),
        started=envelope["started"],
        ended=max(envelope["started"], envelope["ended"]),
        error=None,
        evaluations=(
            _contract(grade),
            _completed(grade, order_known),
            DesiredEvaluation(COVERAGE, "covered", 1.0, "", {"attempt": envelope["attempt"]}),
            *(_semantic(semantic) if semantic is not None else ()),
        ),
        spans=spans_of(ledger),
    )


def missing_run(
    *, case_id: str, repetition: int, reason: str, attempts: int, started: Microseconds, ended: Microseconds
) -> DesiredRun:
    """The run of a trial that no attempt could finish: an error, and coverage 0, never a pass and never left out."""
    told = f"missing after {attempts} attempt{'' if attempts == 1 else 's'}: {reason}"
    return DesiredRun(
        case_id=case_id,
        repetition=repetition,
        output=None,
        started=started,
        ended=max(started, ended),
        error=told,
        evaluations=(DesiredEvaluation(COVERAGE, "missing", 0.0, told, {"attempts": attempts}),),
    )


def _output(content: Mapping[str, Any]) -> str:
    """What a person compares, as the Markdown that Phoenix's grid shows: the message, the claim, and what was done.

    Two trials may say the same and have refunded different orders, so the calls stand beside the message.
    """
    said = content["message"] or f"(no message: {content['error']})"
    claimed = content["claims"]["claimed_outcome"]
    ended = f", ended by {content['error']}" if content["error"] is not None and content["message"] else ""
    calls = content["calls"]
    shown = [_line(call) for call in calls[:MOST_LINES]]
    if len(calls) > MOST_LINES:
        shown.append(f"- … and {len(calls) - MOST_LINES:,} more calls, in the trace")
    return "\n".join([said, "", f"claimed: {claimed}{ended}", "", *shown])


def _line(call: Mapping[str, Any]) -> str:
    arguments = call["arguments"]
    given = _brief(list(arguments.values()) if isinstance(arguments, Mapping) else arguments)
    answered = call["error"] if "error" in call else _brief(call["result"])
    return outgoing.text(f"- {call['tool']}({given}): {answered}", LONGEST_LINE)


def _brief(value: Json) -> str:
    if isinstance(value, Mapping):
        return _brief(list(value.values()))
    if isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        return f"{len(value)} entries"
    if isinstance(value, list):
        return ", ".join(item if isinstance(item, str) else _json_text(item) for item in value)
    return value if isinstance(value, str) else _json_text(value)


def _contract(grade: DesiredGrade) -> DesiredEvaluation:
    failed = [check for check in grade.checks if not check.passed]
    if grade.verdict == "unscored":
        explanation = grade.reason or "no criterion applied"
    elif failed:
        explanation = "\n".join(f"{check.name}: {_observed(check.observed)}" for check in failed)
    else:
        explanation = f"all {len(grade.checks)} checks passed"
    return DesiredEvaluation(
        name=CONTRACT,
        label=grade.verdict,
        score={"passed": 1.0, "failed": 0.0, "unscored": None}[grade.verdict],
        explanation=outgoing.text(explanation, LONGEST_EXPLANATION),
        metadata={**_identity(grade), "failed_checks": [check.name for check in failed]},
    )


def _completed(grade: DesiredGrade, order_known: bool) -> DesiredEvaluation:
    if not order_known:
        # A task without a known order is never completed (behaviour: structural grade): 0, and the label tells why.
        label, score, explanation = "no_known_order", 0.0, "the case expects no order, so no task can be completed"
    elif grade.verdict == "unscored" or grade.task_completed is None:
        label, score, explanation = "unscored", None, grade.reason
    elif grade.task_completed:
        label, score, explanation = "completed", 1.0, "the expected order was refunded, and said so"
    else:
        label, score, explanation = "not_completed", 0.0, ""
    return DesiredEvaluation(COMPLETED, label, score, outgoing.text(explanation), _identity(grade))


def _semantic(semantic: DesiredSemantic) -> tuple[DesiredEvaluation, DesiredEvaluation]:
    """The judge's word, which has a score only where it counts; and the joint grade, which is 0 for everything that is
    no pass and not still to come."""
    qualification = {"qualification": semantic.state, "reason": semantic.reason}
    scores: dict[str, float | None] = {"qualified_pass": 1.0, "qualified_fail": 0.0}
    told = semantic.explanation or (semantic.reason or "")
    judged = DesiredEvaluation(
        SEMANTIC,
        semantic.state,
        scores.get(semantic.state),
        outgoing.text(told, LONGEST_EXPLANATION),
        {**qualification, **semantic.metadata},
        "LLM",
    )
    joint = DesiredEvaluation(
        JOINT,
        semantic.joint,
        {"passed": 1.0, "failed": 0.0, "unscored": None}[semantic.joint],
        "" if semantic.joint == "passed" else f"semantic: {semantic.state}",
        qualification,
    )
    return judged, joint


def _identity(grade: DesiredGrade) -> dict[str, Json]:
    return {"grader": grade.grader, "grader_version": grade.version}


def _observed(observed: Json) -> str:
    return observed if isinstance(observed, str) else _json_text(observed)


def _json_text(value: Json) -> str:
    import json

    return json.dumps(outgoing.json(value), ensure_ascii=False)


def _refuse_repeated(what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise ValueError(f"{what} ids are unique and not empty: {name!r}")
        seen.add(name)
