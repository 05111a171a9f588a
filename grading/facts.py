"""What a comparison needs of every planned trial: read from the store in one pass, in planned order.

A trial without a verdict stays in: it is missing, unfinished or unscored, and never a pass.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import orjson

from grading.cost import NOT_DISPATCHED, UNKNOWN, Cost, known
from grading.judge.judgment import NOT_JUDGED, SemanticState
from grading.manifest import Manifest
from grading.matrix_file import SyntheticProfile
from grading.results import semantics
from grading.semantic import Semantic, joint
from grading.store import Store, reading
from grading.store.attempts import batches
from grading.store.tables import TrialState, Verdict

NO_JUDGE = "no_judge"
"""Why a message is unqualified where the manifest names no judge."""
NO_MESSAGE = "no_message"
"""Why it is where the trial is missing: there will be no message to judge."""

_BATCH = 1000
_PASSED: dict[Verdict | None, bool] = {"passed": True, "failed": False}


class TrialFacts(NamedTuple):
    """One planned trial. ``None`` is what is not known, never zero."""

    trial_id: int
    attempt_id: int | None
    """The attempt whose ledger is the evidence."""
    condition: str
    case: str
    customer: str
    """The cluster."""
    repetition: int
    sequence: int
    """Its planned place."""
    state: TrialState
    verdict: Verdict | None
    passed: bool | None
    """The structural contract; ``None`` without a verdict of passed or failed."""
    completed: bool | None
    failed_checks: tuple[str, ...]
    wrong_order_commits: int | None
    avoidable_questions: int | None
    calls: int | None
    turns: int | None
    started: int | None
    """Microseconds since 1970, as ``ended``: when the evidence was really made."""
    ended: int | None
    latency_ms: int | None
    """By the measurement profile, which may be an invented figure; ``elapsed_ms`` is what a clock said."""
    elapsed_ms: int | None
    cost: Cost
    """Of the agent's run, by the measurement profile."""
    ledger_hash: str | None
    grader_version: str | None
    reused: bool
    """Taken over from another matrix."""
    ledger_bytes: int
    message: SemanticState = "unqualified"
    """What the registered judge's judgment comes to. The states never stand for each other."""
    message_reason: str | None = NO_JUDGE
    judge_cost: Cost | None = None
    """The component that this trial carries, whoever paid for it; ``None`` where there is no judge."""

    @property
    def joint(self) -> bool | None:
        """Structural pass and qualified pass; ``None`` where that is still open, and where there is no judge."""
        return None if self.message_reason == NO_JUDGE else _joint(self.verdict, self.message)

    @property
    def judged(self) -> bool:
        """Whether a qualified judge said pass or fail."""
        return self.message in ("qualified_pass", "qualified_fail")


@cache
def _joint(verdict: Verdict | None, message: SemanticState) -> bool | None:
    return _PASSED.get(joint(verdict or "unscored", Semantic(message, None)))


def trial_facts(store: Store, matrix: reading.Matrix, manifest: Manifest) -> Iterator[TrialFacts]:
    """The facts of every planned trial, in planned order; of each one only its ledger's counts are kept."""
    customers = {member.case: member.customer for member in manifest.population}
    profile = manifest.measurement_profile
    checks_read: dict[str, dict[str, Any]] = {}
    judge = manifest.judge.configuration_hash() if manifest.judge is not None else None
    for trial, judged in _judged(store, matrix, judge):
        graded = next((one for one in trial.grades if one.grader == "structural"), None)
        counters: dict[str, Any] = {}
        verdict = graded.verdict if graded is not None else None
        if graded is not None:
            # Few trials differ in their checks: most are read once.
            counters = checks_read.get(graded.checks) or _checks(graded.checks)
            if len(checks_read) < 10_000:
                checks_read[graded.checks] = counters
        calls = turns = elapsed = None
        started, ended = trial.started, trial.ended
        if trial.ledger is not None:
            ledger = orjson.loads(trial.ledger)
            calls, turns = len(ledger["content"]["calls"]), len(ledger["content"]["turns"])
            started, ended = ledger["envelope"]["started"], ledger["envelope"]["ended"]
            elapsed = (ended - started + 500) // 1000
        yield TrialFacts(
            trial_id=trial.id,
            attempt_id=trial.evidence_attempt_id,
            condition=trial.condition,
            case=trial.case_id,
            customer=customers[trial.case_id],
            repetition=trial.repetition,
            sequence=trial.sequence,
            state=trial.state,
            verdict=verdict,
            passed=_PASSED.get(verdict),
            completed=graded.task_completed if graded is not None else None,
            failed_checks=counters.get("failed", ()),
            wrong_order_commits=counters.get("wrong_order_commits"),
            avoidable_questions=counters.get("unnecessary_clarifications"),
            calls=calls,
            turns=turns,
            started=started,
            ended=ended,
            latency_ms=_latency(profile, elapsed),
            elapsed_ms=elapsed,
            cost=_cost(profile, trial),
            ledger_hash=trial.ledger_hash,
            grader_version=graded.version if graded is not None else None,
            reused=trial.reused_from is not None,
            ledger_bytes=len(trial.ledger) if trial.ledger is not None else 0,
            message=judged.state if judged is not None else "unqualified",
            message_reason=judged.reason if judged is not None else NO_JUDGE,
            judge_cost=judged.cost if judged is not None else None,
        )


def _judged(store: Store, matrix: reading.Matrix, judge: str | None) -> Iterator[tuple[reading.Trial, Semantic | None]]:
    """Every trial, and where there is a judge, what its judgment comes to."""
    trials = reading.trials(store, matrix.id, ledgers=True, grades=True, batch=_BATCH)
    if judge is None:
        yield from ((trial, None) for trial in trials)
        return
    for batch in batches(trials, _BATCH):
        found = semantics(store, batch, judge)
        for trial in batch:
            yield trial, found.get(trial.id) or _without_message(trial)


def _without_message(trial: reading.Trial) -> Semantic:
    return Semantic("unqualified", NO_MESSAGE) if trial.state == "missing" else Semantic("pending", NOT_JUDGED)


def _checks(text: str) -> dict[str, Any]:
    checks = orjson.loads(text)
    found = {check["name"]: check["observed"] for check in checks}
    return found | {"failed": tuple(check["name"] for check in checks if check["passed"] is False)}


def _latency(profile: Any, elapsed: int | None) -> int | None:
    if elapsed is None:
        return None
    return profile.synthetic.latency_ms if isinstance(profile, SyntheticProfile) else elapsed


def _cost(profile: Any, trial: reading.Trial) -> Cost:
    """What an agent says of its own usage is no evidence: a measured cost is unknown until somebody else tells it."""
    if trial.ledger is None:
        return NOT_DISPATCHED if trial.state == "open" and trial.attempt == 0 else UNKNOWN
    return _invented(profile.synthetic.cost) if isinstance(profile, SyntheticProfile) else UNKNOWN


_invented = cache(known)
"""The same text for every trial of a matrix."""
