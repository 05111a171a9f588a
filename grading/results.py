"""Results as the store holds them now, trial by trial: what the table and the reports are made from."""

from collections.abc import Iterator

import orjson

from grading.planning import registered_manifest
from grading.semantic import Semantic, semantic_of
from grading.store import Store, judgments, reading
from grading.store.attempts import batches
from grading.summary import Summary, TrialRow, summarize


def summary_of(store: Store, matrix: reading.Matrix, *, judge: str | None = None) -> Summary:
    """The summary of a matrix, read trial by trial.

    Args:
        judge: the hash of another judge's configuration than the registered one's.
    """
    summary = summarize(trial_rows(store, matrix, judge=judge))
    discarded = reading.discarded_after_consequential_call(store, matrix.id)
    for condition in summary.conditions:
        condition.total.discarded += discarded.get(condition.name, 0)
    order = {cell.condition: cell.condition_position for cell in reading.cells(store, matrix.id)}
    summary.conditions.sort(key=lambda condition: order[condition.name])
    return summary


def trial_rows(store: Store, matrix: reading.Matrix, *, judge: str | None = None) -> Iterator[TrialRow]:
    """A row for each planned trial, with its latest structural grade and, where there is a judge, its judgment."""
    configuration = judge or judge_of(store, matrix)
    for trials in batches(reading.trials(store, matrix.id, grades=True), 100):
        judged = semantics(store, trials, configuration) if configuration is not None else {}
        for trial in trials:
            graded = next((one for one in trial.grades if one.grader == "structural"), None)
            grade = None
            if graded is not None:
                grade = {
                    "verdict": graded.verdict,
                    "task_completed": graded.task_completed,
                    "checks": orjson.loads(graded.checks),
                }
            yield TrialRow(
                trial.condition,
                trial.case_id,
                trial.repetition,
                trial.state,
                grade,
                semantic=judged.get(trial.id),
            )


def semantics(store: Store, trials: list[reading.Trial], configuration_hash: str) -> dict[int, Semantic]:
    """By trial: what a judge's judgment came to, for every trial that has a ledger."""
    evidence = {one.id: one.evidence_attempt_id for one in trials if one.evidence_attempt_id is not None}
    found = judgments.latest(store, evidence.values(), configuration_hash)
    return {trial_id: semantic_of(found.get(attempt_id)) for trial_id, attempt_id in evidence.items()}


def judge_of(store: Store, matrix: reading.Matrix) -> str | None:
    """The configuration hash of a matrix's registered judge, None where it has none."""
    registered = registered_manifest(store, matrix.id).judge
    return registered.configuration_hash() if registered is not None else None
