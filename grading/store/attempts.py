"""Attempts as every transition finds them: locked, beside the trial they are a try at."""

import hashlib
import hmac
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from grading.store.tables import HELD, UNFINISHED, attempt, cell, ledger, publication, trial

T = TypeVar("T")

BATCH = 1000
"""Rows in one statement: well below the parameters that either database accepts."""


def batches(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def padded(values: Collection[T]) -> list[T]:
    """The same values for an IN, the last one repeated until there are 1, 2, 4, 8 or so of them.

    Each length is another statement: of hundreds, a connection would keep only some prepared.
    """
    listed = list(values)
    return listed + listed[-1:] * ((1 << (len(listed) - 1).bit_length()) - len(listed)) if listed else listed


class Found(NamedTuple):
    """An attempt, the trial it is a try at, and the hash of the ledger it has delivered, if any."""

    attempt_id: int
    number: int
    state: str
    secret_hash: bytes | None
    after_consequential_call: bool
    trial_id: int
    trial_state: str
    current: int
    evidence_attempt_id: int | None
    matrix_id: int
    cell_id: int
    ledger_hash: str | None

    @property
    def holds_trial(self) -> bool:
        """Whether what this attempt does still counts for its trial. An expired lease alone changes nothing."""
        return self.state in HELD and self.trial_state == "leased" and self.number == self.current

    def is_opened_by(self, secret: str | None) -> bool:
        """Whether a sender's secret is the attempt's; None stands for a sender who was identified otherwise."""
        if secret is None:
            return True
        return self.secret_hash is not None and hmac.compare_digest(secret_hash(secret), self.secret_hash)


_FOUND = (
    sa.select(
        attempt.c.id, attempt.c.number, attempt.c.state, attempt.c.secret_hash, attempt.c.after_consequential_call,
        trial.c.id, trial.c.state, trial.c.attempt, trial.c.evidence_attempt_id, trial.c.matrix_id, trial.c.cell_id,
        ledger.c.ledger_hash,
    )
    .select_from(
        attempt.join(trial, trial.c.id == attempt.c.trial_id).outerjoin(ledger, ledger.c.attempt_id == attempt.c.id)
    )
    .where(attempt.c.id.in_(sa.bindparam("ids", expanding=True)))
    # Everyone locks in this order, so that no two transactions wait for each other.
    .order_by(attempt.c.id)
    .with_for_update(of=[attempt, trial])
)  # fmt: skip

_HASHES = sa.select(ledger.c.attempt_id, ledger.c.ledger_hash).where(
    ledger.c.attempt_id.in_(sa.bindparam("ids", expanding=True))
)


def find(connection: sa.Connection, ids: Iterable[int]) -> dict[int, Found]:
    """The attempts of these ids, locked until the transaction ends; unknown ones are left out."""
    found: dict[int, Found] = {}
    for batch in batches(sorted(set(ids))):
        rows = connection.execute(_FOUND, {"ids": padded(batch)}).all()
        if rows and connection.dialect.name != "sqlite":
            # The ledger's side of the join is as old as the statement, which may have waited for the locks.
            hashes = dict(connection.execute(_HASHES, {"ids": padded(batch)}).all())
            found.update((row[0], Found._make((*row[:-1], hashes.get(row[0])))) for row in rows)
        else:
            found.update((row[0], Found._make(row)) for row in rows)
    return found


def secret_hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


# Statements of the hot paths are built once: building one takes longer than running it.
AMONG: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)

_LEFT = sa.exists().where(trial.c.cell_id == cell.c.id, trial.c.state.in_(UNFINISHED))
_CLOSED = cell.update().where(cell.c.id.in_(AMONG), cell.c.state == "open", ~_LEFT).values(state="done")
_CHANGED = (
    publication.update()
    .where(publication.c.matrix_id.in_(AMONG))
    .values(
        changes=publication.c.changes + 1,
        state=sa.case((publication.c.state == "published", "stale"), else_=publication.c.state),
    )
)


def close_cells(connection: sa.Connection, cell_ids: Collection[int]) -> None:
    """Marks the cells done of which no trial is left to run or to grade."""
    for batch in batches(sorted(set(cell_ids))):
        connection.execute(_CLOSED, {"ids": padded(batch)})


def results_changed(connection: sa.Connection, matrix_ids: Iterable[int]) -> None:
    """What was published of these matrices no longer says all: in the transaction that changed it, or a crash
    between the two would leave it so."""
    connection.execute(_CHANGED, {"ids": padded(sorted(set(matrix_ids)))})
