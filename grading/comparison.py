"""The baseline of a matrix against each of its candidates.

Everything here is computed from :mod:`grading.facts` and, for what happened around the trials, the store. What the
numbers mean, and what they do not show, is in docs/statistics.md.
"""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from grading.cost import CostTotal
from grading.cost import total as cost_total
from grading.facts import TrialFacts, trial_facts
from grading.file_error import nearest
from grading.judging import spent_on
from grading.manifest import Manifest
from grading.planning import registered_manifest
from grading.semantic import Semantic, SemanticTally
from grading.statistics import paired
from grading.statistics.decision_rule import Rule
from grading.statistics.latency import Latency, latency
from grading.statistics.paired import Pair, compare_candidates
from grading.statistics.rates import Description, Rate, describe, trial_weighted
from grading.store import Store, reading

View = Literal["structural", "joint"]
"""What counts as a pass: the contract alone, or the contract and a qualified judge's pass."""


class NotComparable(ValueError):  # noqa: N818 - reads as what is wrong
    """The matrix has no such two arms; the message says which it has."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One condition over all of its planned trials."""

    name: str
    planned: int
    missing: int
    unfinished: int
    unscored: int
    reused: int
    lost_attempts: int
    """Attempts that were lost or fenced and are no evidence."""
    discarded_after_acting: int
    """Those of them that had called a refund or approval tool."""
    contract: Rate
    completed: Rate
    joint: Rate
    """Contract and a qualified judge's pass; none observed where there is no judge."""
    wrong_order_commits: int
    avoidable_questions: int
    latency: Latency
    """By the measurement profile."""
    elapsed: Latency
    """By the clock."""
    calls: float | None
    """Mean over the trials with a ledger, as ``turns``."""
    turns: float | None
    agent_cost: CostTotal
    judge_cost: CostTotal
    """What the trials carry for their judgments, whoever paid for the calls; no component where there is no judge."""
    messages: SemanticTally
    """What the judge's judgments came to; where there is no judge, all are unqualified."""
    disagreeing: tuple[str, ...]
    """Cases whose repetitions did not all get the same verdict."""

    @property
    def coverage(self) -> float:
        return self.contract.observed / self.planned

    @property
    def qualified_messages(self) -> int:
        """Messages on which the word of a judge counts, an abstention too."""
        states = self.messages.states
        return states["qualified_pass"] + states["qualified_fail"] + states["qualified_abstention"]

    @property
    def cost(self) -> CostTotal:
        """Agent and judge."""
        return self.agent_cost + self.judge_cost


@dataclass(frozen=True, slots=True)
class PairChange:
    """A pair whose verdict changed from the baseline to the candidate."""

    change: Literal["fixed", "regressed"]
    case: str
    repetition: int
    baseline: TrialFacts
    candidate: TrialFacts

    def why(self, view: View) -> list[str]:
        """The checks that the side failed which did not pass and, in the joint view, what its message came to."""
        side = self.candidate if self.change == "regressed" else self.baseline
        failed = list(side.failed_checks)
        if view == "joint" and side.message != "qualified_pass":
            failed.append(f"message: {side.message.replace('_', ' ')}")
        return failed


@dataclass(frozen=True, slots=True)
class RunOrder:
    """Whether pairs really ran as planned. Trials taken over ran elsewhere and are left out."""

    pairs: int
    """With two starts that are known."""
    in_planned_order: int
    """The arm planned first started first."""
    median_gap_ms: float | None
    """Between the two starts."""

    @property
    def share(self) -> float | None:
        return self.in_planned_order / self.pairs if self.pairs else None


@dataclass(frozen=True, slots=True)
class CandidateComparison:
    """One candidate against the baseline."""

    candidate: str
    pairs: tuple[Pair, ...] = field(repr=False)
    description: Description
    """In the comparison's view, of the pairs that came back."""
    structural: Description
    """By the contract alone, whatever the view."""
    decision: paired.Comparison | None
    """Missing trials taken as the worst case, Holm's method over all candidates; None where a pair is not eligible."""
    changes: tuple[PairChange, ...] = field(repr=False)
    """In planned order."""
    order: RunOrder


@dataclass(frozen=True, slots=True)
class MatrixComparison:
    """What `cellwise compare` shows."""

    matrix: reading.Matrix
    manifest: Manifest = field(repr=False)
    view: View
    baseline: str | None
    """None where the matrix has nothing to compare and only its conditions are described."""
    arms: tuple[Arm, ...]
    """The baseline first."""
    candidates: tuple[CandidateComparison, ...]
    exploratory: tuple[str, ...]
    """Why it is for exploring only; empty where it may be decided on."""
    incidents: dict[str, int]
    """By kind."""
    lost: dict[str, int]
    """Lost attempts by reason."""
    judge_spent: CostTotal | None
    """The money that left for judging this matrix, once for each call; None where there is no judge."""
    facts: tuple[TrialFacts, ...] = field(repr=False)

    @property
    def planned(self) -> int:
        return sum(arm.planned for arm in self.arms)

    @property
    def observed(self) -> int:
        return sum(arm.contract.observed for arm in self.arms)

    @property
    def pending(self) -> int:
        """Trials with a verdict whose message is still to be judged."""
        return sum(one.message == "pending" and one.passed is not None for one in self.facts)

    @property
    def complete(self) -> bool:
        return self.observed == self.planned and not self.pending

    @property
    def cost(self) -> CostTotal:
        """Of all trials, agent and judge."""
        return sum((arm.cost for arm in self.arms), CostTotal())

    @property
    def coverage(self) -> float:
        return self.observed / self.planned

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the store knows of a matrix beside its trials."""

    discarded: dict[str, int] = field(default_factory=dict)
    """By condition: attempts replaced although they had made a refund or approval call."""
    lost_by_condition: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    """By reason."""
    incidents: dict[str, int] = field(default_factory=dict)
    """By kind."""
    judge_spent: CostTotal | None = None


def compare_matrix(
    store: Store,
    matrix: reading.Matrix,
    *,
    baseline: str | None = None,
    view: View | None = None,
    describe_alone: bool = False,
) -> MatrixComparison:
    """Compares every condition of a stored matrix with its baseline.

    Args, errors: as :func:`compare_facts`, which does it.
    """
    manifest = registered_manifest(store, matrix.id)
    # Before anything is read: a refusal should not take as long as an answer.
    chosen = _baseline(manifest, baseline, describe_alone)
    view = check_view(manifest, view)
    judge = manifest.judge.configuration_hash() if manifest.judge is not None else None
    around = Circumstances(
        discarded=reading.discarded_after_consequential_call(store, matrix.id),
        lost_by_condition=reading.lost_attempts_by_condition(store, matrix.id),
        lost=reading.lost_attempts(store, matrix.id),
        incidents=dict(sorted(Counter(one.kind for one in reading.incidents(store, matrix.id)).items())),
        judge_spent=spent_on(store, matrix.id, judge) if judge is not None else None,
    )
    with _uncollected():
        facts = trial_facts(store, matrix, manifest)
        return compare_facts(matrix, manifest, facts, around, baseline=chosen, view=view, describe_alone=describe_alone)


def compare_facts(
    matrix: reading.Matrix,
    manifest: Manifest,
    facts: Iterable[TrialFacts],
    around: Circumstances,
    *,
    baseline: str | None = None,
    view: View | None = None,
    describe_alone: bool = False,
) -> MatrixComparison:
    """Compares every condition of a matrix with its baseline.

    Args:
        facts: of every planned trial, in planned order.
        baseline: another condition than the registered baseline, which makes it exploratory.
        view: what counts as a pass; joint where the manifest names a judge, else structural.
        describe_alone: a matrix with nothing to compare is described without a comparison, not refused.

    Raises:
        NotComparable: there is no baseline, or nothing beside it.
    """
    chosen = _baseline(manifest, baseline, describe_alone)
    view = view or check_view(manifest, None)
    names = [condition.name for condition in manifest.conditions]
    listed = tuple(facts)
    of: dict[str, list[TrialFacts]] = {name: [] for name in names}
    for one in listed:
        of[one.condition].append(one)
    candidates = [name for name in names if name != chosen] if chosen is not None else []
    base = of[chosen] if chosen is not None else []
    pairs = {name: pair_up(base, of[name], view) for name in candidates}
    structural = pairs if view == "structural" else {name: pair_up(base, of[name], "structural") for name in candidates}
    eligible = {name: found for name, found in pairs.items() if all(pair.eligible for pair in found)}
    decisions = compare_candidates(eligible, rule_of(manifest))
    return MatrixComparison(
        matrix=matrix,
        manifest=manifest,
        view=view,
        baseline=chosen,
        arms=tuple(
            _arm(name, of[name], around.lost_by_condition.get(name, 0), around.discarded.get(name, 0))
            for name in sorted(names, key=lambda name: name != chosen)
        ),
        candidates=tuple(
            CandidateComparison(
                candidate=name,
                pairs=pairs[name],
                description=(description := describe(pairs[name])),
                structural=description if view == "structural" else describe(structural[name]),
                decision=decisions.get(name),
                changes=_changes(base, of[name], view),
                order=_run_order(base, of[name]),
            )
            for name in candidates
        ),
        exploratory=tuple(_exploratory(manifest, chosen, listed)) if chosen is not None else (),
        incidents=around.incidents,
        lost=around.lost,
        judge_spent=around.judge_spent,
        facts=listed,
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """The garbage collector would walk all facts again and again while they grow, and they hold no cycle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def rule_of(manifest: Manifest) -> Rule:
    return Rule(float(manifest.margin), float(manifest.confidence), manifest.minimum_clusters)


def pair_up(baseline: Iterable[TrialFacts], candidate: Iterable[TrialFacts], view: View) -> tuple[Pair, ...]:
    """Each repetition of each case under both arms. In the joint view a pair is eligible iff both arms were judged."""
    others = {(one.case, one.repetition): one for one in candidate}
    return tuple(
        Pair(
            cluster=one.customer,
            case=one.case,
            repetition=one.repetition,
            baseline=outcome(one, view),
            candidate=outcome(other, view),
            eligible=pair_counts(one, other, view),
        )
        for one in baseline
        for other in (others[one.case, one.repetition],)
    )


def pair_counts(one: TrialFacts, other: TrialFacts, view: View) -> bool:
    """In the joint view only pairs of which a qualified judge decided both messages."""
    return view == "structural" or (one.judged and other.judged)


def outcome(one: TrialFacts, view: View) -> bool | None:
    return one.passed if view == "structural" else one.joint


def check_view(manifest: Manifest, asked: View | None) -> View:
    """What counts as a pass: what was asked for; by default joint where the manifest names a judge.

    Raises:
        NotComparable: the joint view of a matrix without a judge.
    """
    if asked == "joint" and manifest.judge is None:
        raise NotComparable(f"{manifest.name} has no judge: there is a structural view alone")
    return asked or ("joint" if manifest.judge is not None else "structural")


def _baseline(manifest: Manifest, asked: str | None, describe_alone: bool) -> str | None:
    names = [condition.name for condition in manifest.conditions]
    if asked is None and describe_alone and (manifest.baseline is None or len(names) < 2):
        return None
    listed = ", ".join(names)
    if len(names) < 2:
        raise NotComparable(f"{manifest.name} has the one condition {names[0]}: a comparison needs another beside it")
    if asked is not None and asked not in names:
        raise NotComparable(f"{manifest.name} has no condition {asked}:{nearest(asked, names)}")
    chosen = asked or manifest.baseline
    if chosen is None:
        raise NotComparable(f"{manifest.name} names no baseline: give one of its conditions with --baseline ({listed})")
    return chosen


def _exploratory(manifest: Manifest, baseline: str, facts: Iterable[TrialFacts]) -> Iterable[str]:
    if baseline != manifest.baseline:
        registered = "none" if manifest.baseline is None else manifest.baseline
        yield f"the baseline {baseline} was chosen afterwards, registered is {registered}"
    if len(manifest.conditions) > 2:
        yield f"{len(manifest.conditions)} conditions: a decision takes a comparison of two"
    if manifest.repetitions % 2:
        repetitions = f"{manifest.repetitions} repetition{'s' if manifest.repetitions > 1 else ''}"
        yield f"{repetitions}: an even number is needed, so that neither arm goes first more often"
    reused = sum(one.reused for one in facts)
    if reused:
        yield f"{reused} trials were taken over from another matrix"
    registered_version = {grader.name: grader.version for grader in manifest.graders}.get("structural")
    other = sum(one.grader_version not in (None, registered_version) for one in facts)
    if other:
        yield f"{other} trials are graded by another version of the grader than the registered one"


def _arm(name: str, trials: Sequence[TrialFacts], lost: int, discarded: int) -> Arm:
    verdicts: dict[str, set[bool | None]] = {}
    for one in trials:
        verdicts.setdefault(one.case, set()).add(one.passed)
    messages = SemanticTally()
    for (verdict, message, reason), count in Counter((x.verdict, x.message, x.message_reason) for x in trials).items():
        messages.add(verdict or "unscored", Semantic(message, reason), count)
    calls = [one.calls for one in trials if one.calls is not None]
    turns = [one.turns for one in trials if one.turns is not None]
    unscored = sum(one.verdict == "unscored" for one in trials if one.state != "missing")
    missing = sum(one.state == "missing" for one in trials)
    observed = sum(one.passed is not None for one in trials)
    return Arm(
        name=name,
        planned=len(trials),
        missing=missing,
        unfinished=len(trials) - missing - unscored - observed,
        unscored=unscored,
        reused=sum(one.reused for one in trials),
        lost_attempts=lost,
        discarded_after_acting=discarded,
        contract=trial_weighted(one.passed for one in trials),
        completed=trial_weighted(None if one.passed is None else one.completed is True for one in trials),
        joint=trial_weighted(one.joint for one in trials),
        wrong_order_commits=sum(one.wrong_order_commits or 0 for one in trials),
        avoidable_questions=sum(one.avoidable_questions or 0 for one in trials),
        latency=latency(one.latency_ms for one in trials),
        elapsed=latency(None if one.elapsed_ms is None else max(0, one.elapsed_ms) for one in trials),
        calls=sum(calls) / len(calls) if calls else None,
        turns=sum(turns) / len(turns) if turns else None,
        agent_cost=cost_total(one.cost for one in trials),
        judge_cost=cost_total(one.judge_cost for one in trials if one.judge_cost is not None),
        messages=messages,
        disagreeing=tuple(case for case, found in verdicts.items() if {True, False} <= found),
    )


def _changes(baseline: Iterable[TrialFacts], candidate: Iterable[TrialFacts], view: View) -> tuple[PairChange, ...]:
    others = {(one.case, one.repetition): one for one in candidate}
    found = []
    for one in baseline:
        other = others[one.case, one.repetition]
        before, after = outcome(one, view), outcome(other, view)
        if before is not None and after is not None and before != after and pair_counts(one, other, view):
            found.append(PairChange("fixed" if after else "regressed", one.case, one.repetition, one, other))
    return tuple(found)


def _run_order(baseline: Iterable[TrialFacts], candidate: Iterable[TrialFacts]) -> RunOrder:
    others = {(one.case, one.repetition): one for one in candidate}
    gaps = []
    as_planned = 0
    for one in baseline:
        other = others[one.case, one.repetition]
        if one.started is None or other.started is None or one.reused or other.reused:
            continue
        first, second = sorted((one, other), key=lambda each: each.sequence)
        assert first.started is not None
        assert second.started is not None
        as_planned += first.started <= second.started
        gaps.append(abs(second.started - first.started))
    return RunOrder(len(gaps), as_planned, median(gaps) / 1000 if gaps else None)
