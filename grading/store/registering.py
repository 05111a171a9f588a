"""Registering a matrix: its manifest, cells and planned trials, before anything runs."""

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from grading.store.attempts import batches
from grading.store.errors import StoreError
from grading.store.inserting import insert_all
from grading.store.opening import Store
from grading.store.tables import assignment, cell, matrix, trial

_NEW_CELL, _NEW_TRIAL = cell.insert(), trial.insert()


@dataclass(frozen=True, slots=True)
class NewCell:
    """One case under one condition, with their positions in the manifest."""

    case_id: str
    condition: str
    case_position: int
    condition_position: int


@dataclass(frozen=True, slots=True)
class NewTrial:
    """One planned repetition of a cell."""

    case_id: str
    condition: str
    repetition: int
    sequence: int
    trial_key: str
    assignment_hash: str


@dataclass(frozen=True, slots=True)
class NewAssignment:
    hash: str
    document: bytes


@dataclass(frozen=True, slots=True)
class Registered:
    matrix_id: int
    created: bool
    """False where a matrix of the same manifest was there already: nothing was changed then."""


def register(
    store: Store,
    *,
    manifest_hash: str,
    name: str,
    manifest: bytes,
    cells: Iterable[NewCell],
    assignments: Iterable[NewAssignment],
    trials: Iterable[NewTrial],
) -> Registered:
    """Registers a matrix whole, or not at all. The iterables are read once, in order, and never held as a whole.

    Raises:
        StoreError: for a trial of no cell or without its assignment, an identity or sequence number used twice, an
            assignment whose hash is stored with another document, or text that a database refuses.
    """
    with store.transaction("register") as connection:
        new = store.insert(matrix).on_conflict_do_nothing(index_elements=["manifest_hash"]).returning(matrix.c.id)
        values = {"manifest_hash": manifest_hash, "name": name, "manifest": manifest, "state": "registered"}
        matrix_id = connection.execute(new, {**values, "created": store.now(connection)}).scalar_one_or_none()
        if matrix_id is None:
            known = sa.select(matrix.c.id).where(matrix.c.manifest_hash == manifest_hash)
            return Registered(connection.execute(known).scalar_one(), created=False)
        cell_ids = _add_cells(connection, matrix_id, cells)
        _add_assignments(store, connection, assignments)
        for batch in batches(trials, 5000):
            rows = [
                {
                    "matrix_id": matrix_id,
                    "cell_id": _cell_of(cell_ids, planned),
                    "case_id": planned.case_id,
                    "condition": planned.condition,
                    "repetition": planned.repetition,
                    "sequence": planned.sequence,
                    "trial_key": planned.trial_key,
                    "assignment_hash": planned.assignment_hash,
                    "state": "open",
                    "attempt": 0,
                }
                for planned in batch
            ]
            insert_all(connection, _NEW_TRIAL, rows)
        return Registered(matrix_id, created=True)


def _add_cells(connection: sa.Connection, matrix_id: int, cells: Iterable[NewCell]) -> dict[tuple[str, str], int]:
    for batch in batches(cells):
        rows = [
            {
                "matrix_id": matrix_id,
                "case_id": new.case_id,
                "condition": new.condition,
                "case_position": new.case_position,
                "condition_position": new.condition_position,
                "state": "open",
            }
            for new in batch
        ]
        insert_all(connection, _NEW_CELL, rows)
    listed = sa.select(cell.c.condition, cell.c.case_id, cell.c.id).where(cell.c.matrix_id == matrix_id)
    return {(row.condition, row.case_id): row.id for row in connection.execute(listed)}


def _cell_of(cell_ids: dict[tuple[str, str], int], planned: NewTrial) -> int:
    try:
        return cell_ids[planned.condition, planned.case_id]
    except KeyError:
        raise StoreError(
            f"trial {planned.sequence} belongs to no cell: case {planned.case_id!r}, condition {planned.condition!r}"
        ) from None


def _add_assignments(store: Store, connection: sa.Connection, assignments: Iterable[NewAssignment]) -> None:
    new = store.insert(assignment).on_conflict_do_nothing(index_elements=["hash"])
    for batch in batches(assignments):
        # Sorted, so that two registrations that share assignments do not wait for each other.
        rows = [{"hash": one.hash, "document": one.document} for one in sorted(batch, key=lambda one: one.hash)]
        insert_all(connection, new, rows)
        stored = sa.select(assignment.c.hash, assignment.c.document)
        documents = {
            row.hash: row.document
            for row in connection.execute(stored.where(assignment.c.hash.in_([one.hash for one in batch])))
        }
        for one in batch:
            if documents[one.hash] != one.document:
                raise StoreError(f"assignment {one.hash} is stored with another document")
