"""Results as the store holds them now, trial by trial: what the table and the reports are made from."""

from collections.abc import Iterator

import orjson

from grading.store import Store, reading
from grading.summary import Summary, TrialRow, summarize


def summary_of(store: Store, matrix: reading.Matrix) -> Summary:
    """The summary of a matrix, read trial by trial."""
    summary = summarize(trial_rows(store, matrix))
    discarded = reading.discarded_after_consequential_call(store, matrix.id)
    for condition in summary.conditions:
        condition.total.discarded += discarded.get(condition.name, 0)
    order = {cell.condition: cell.condition_position for cell in reading.cells(store, matrix.id)}
    summary.conditions.sort(key=lambda condition: order[condition.name])
    return summary


def trial_rows(store: Store, matrix: reading.Matrix) -> Iterator[TrialRow]:
    """A row for each planned trial, with its latest structural grade."""
    for trial in reading.trials(store, matrix.id, grades=True):
        graded = next((one for one in trial.grades if one.grader == "structural"), None)
        grade = None
        if graded is not None:
            grade = {
                "verdict": graded.verdict,
                "task_completed": graded.task_completed,
                "checks": orjson.loads(graded.checks),
            }
        yield TrialRow(trial.condition, trial.case_id, trial.repetition, trial.state, grade)
