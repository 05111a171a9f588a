"""Grades: only ever added, each keyed by its attempt, its grader and the grader's version."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from grading.store.attempts import AMONG, batches, close_cells, find, padded, results_changed
from grading.store.errors import NotFound, StateError
from grading.store.incidents import NewIncident, record_incidents
from grading.store.opening import Store
from grading.store.tables import Verdict, grade, trial


@dataclass(frozen=True, slots=True)
class Grade:
    """A grader's verdict on one attempt's ledger."""

    attempt_id: int
    grader: str
    version: str
    """The hash of the grader's version."""
    verdict: Verdict
    task_completed: bool | None
    checks: str
    """The named checks with what was observed, as canonical JSON."""


GradeOutcome = Literal["added", "repeated", "conflicting"]
"""``conflicting``: the same version said something else before. That stands; this is kept as an incident."""


def add_grades(store: Store, grades: Iterable[Grade], graders: Collection[tuple[str, str]]) -> list[GradeOutcome]:
    """Adds grades. A delivered trial is graded when its evidence has one of every ``(grader, version)`` given.

    Raises:
        NotFound: for an attempt that does not exist.
        StateError: for one that has no ledger to be graded.
    """
    listed = list(grades)
    required = set(graders)
    if not required:
        raise StateError("a matrix without graders cannot be graded")
    with store.transaction("grade") as connection:
        found = find(connection, [one.attempt_id for one in listed])
        for one in listed:
            if one.attempt_id not in found:
                raise NotFound(f"the store has no attempt {one.attempt_id}")
            of = found[one.attempt_id]
            if of.ledger_hash is None and of.evidence_attempt_id != of.attempt_id:
                raise StateError(f"attempt {one.attempt_id} has no ledger: there is nothing to grade")
        known = _known_grades(connection, list(found))
        now = store.now(connection)
        outcomes: list[GradeOutcome] = []
        added: list[Grade] = []
        incidents: list[NewIncident] = []
        for one in listed:
            earlier = known.get((one.attempt_id, one.grader, one.version))
            said = (one.verdict, one.task_completed, one.checks)
            if earlier is None:
                known[one.attempt_id, one.grader, one.version] = said
                added.append(one)
                outcomes.append("added")
            elif earlier == said:
                outcomes.append("repeated")
            else:
                detail = (
                    f"{one.grader} {one.version}: {one.verdict} with {one.checks} after {earlier[0]} with {earlier[2]}"
                )
                matrix_id = found[one.attempt_id].matrix_id
                incidents.append(NewIncident(matrix_id, one.attempt_id, "conflicting_grade", detail))
                outcomes.append("conflicting")
        insert_grades(connection, now, added)
        if added:
            results_changed(connection, {found[one.attempt_id].matrix_id for one in added})
        record_incidents(connection, now, incidents)
        had: dict[int, set[tuple[str, str]]] = {}
        for attempt_id, grader, version in known:
            had.setdefault(attempt_id, set()).add((grader, version))
        finished = [
            of
            for of in found.values()
            if of.trial_state == "delivered"
            and of.evidence_attempt_id == of.attempt_id
            and required <= had.get(of.attempt_id, set())
        ]
        for batch in batches([of.trial_id for of in finished]):
            connection.execute(_GRADED, {"ids": padded(batch)})
        close_cells(connection, {of.cell_id for of in finished})
        return outcomes


def insert_grades(connection: sa.Connection, now: int, added: Sequence[Grade]) -> None:
    """Adds grades inside a transaction that has made sure that they are new."""
    if added:
        connection.execute(grade.insert(), [_row(one, now) for one in added])


_GRADED = trial.update().where(trial.c.id.in_(AMONG)).values(state="graded")
_SAID = sa.select(
    grade.c.attempt_id, grade.c.grader, grade.c.version, grade.c.verdict, grade.c.task_completed, grade.c.checks
).where(grade.c.attempt_id.in_(AMONG))


def _row(one: Grade, now: int) -> dict[str, object]:
    return {
        "attempt_id": one.attempt_id,
        "grader": one.grader,
        "version": one.version,
        "verdict": one.verdict,
        "task_completed": one.task_completed,
        "checks": one.checks,
        "created": now,
    }


def _known_grades(
    connection: sa.Connection, attempt_ids: list[int]
) -> dict[tuple[int, str, str], tuple[str, bool | None, str]]:
    known: dict[tuple[int, str, str], tuple[str, bool | None, str]] = {}
    for batch in batches(attempt_ids):
        for row in connection.execute(_SAID, {"ids": padded(batch)}):
            known[row.attempt_id, row.grader, row.version] = (row.verdict, row.task_completed, row.checks)
    return known
