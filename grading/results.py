"""Results as the store holds them now: what the table and the reports are made from."""

from collections.abc import Iterator
from typing import Any

import orjson

from grading.planning import registered_manifest
from grading.semantic import Semantic, semantic_of
from grading.store import Store, judgments, reading
from grading.store.attempts import batches
from grading.summary import Summary, TrialRow, summarize

_GRADER = "structural"


def summary_of(store: Store, matrix: reading.Matrix, *, judge: str | None = None) -> Summary:
    """The summary of a matrix: counted by the database, or read trial by trial where each has a judgment.

    Args:
        judge: the hash of another judge's configuration than the registered one's.
    """
    configuration = judge or judge_of(store, matrix)
    rows = _alike(store, matrix) if configuration is None else _judged(store, matrix, configuration)
    summary = summarize(rows)
    discarded = reading.discarded_after_consequential_call(store, matrix.id)
    for condition in summary.conditions:
        condition.total.discarded += discarded.get(condition.name, 0)
    order = {cell.condition: cell.condition_position for cell in reading.cells(store, matrix.id)}
    summary.conditions.sort(key=lambda condition: order[condition.name])
    return summary


def _alike(store: Store, matrix: reading.Matrix) -> Iterator[TrialRow]:
    """A row for all trials of a cell that came to the same by their latest structural grades."""
    for one in reading.outcomes(store, matrix.id, _GRADER):
        grade = _grade(one.verdict, one.task_completed, one.checks) if one.verdict and one.checks else None
        yield TrialRow(one.condition, one.case_id, one.state, grade, trials=one.trials)


def _judged(store: Store, matrix: reading.Matrix, configuration: str) -> Iterator[TrialRow]:
    """A row for each planned trial, with its latest structural grade and its judgment."""
    for trials in batches(reading.trials(store, matrix.id, grades=True), 100):
        judged = semantics(store, trials, configuration)
        for trial in trials:
            graded = next((one for one in trial.grades if one.grader == _GRADER), None)
            grade = _grade(graded.verdict, graded.task_completed, graded.checks) if graded is not None else None
            yield TrialRow(trial.condition, trial.case_id, trial.state, grade, semantic=judged.get(trial.id))


def _grade(verdict: str, task_completed: bool | None, checks: str | bytes) -> dict[str, Any]:
    return {"verdict": verdict, "task_completed": task_completed, "checks": orjson.loads(checks)}


def semantics(store: Store, trials: list[reading.Trial], configuration_hash: str) -> dict[int, Semantic]:
    """By trial: what a judge's judgment came to, for every trial that has a ledger."""
    evidence = {one.id: one.evidence_attempt_id for one in trials if one.evidence_attempt_id is not None}
    found = judgments.latest(store, evidence.values(), configuration_hash)
    return {trial_id: semantic_of(found.get(attempt_id)) for trial_id, attempt_id in evidence.items()}


def judge_of(store: Store, matrix: reading.Matrix) -> str | None:
    """The configuration hash of a matrix's registered judge, None where it has none."""
    registered = registered_manifest(store, matrix.id).judge
    return registered.configuration_hash() if registered is not None else None
