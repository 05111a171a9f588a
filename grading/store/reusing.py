"""Taking over what another matrix has finished, trial by trial of equal key."""

from collections import defaultdict, deque
from typing import NamedTuple

import sqlalchemy as sa

from grading.store.attempts import batches
from grading.store.errors import StateError
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.tables import attempt, ledger, trial


class Reused(NamedTuple):
    """A trial that another one stands for. The new attempt's ledger is read from the original's."""

    trial_id: int
    attempt_id: int
    """The new trial's attempt, which is its evidence."""
    reused_trial_id: int
    reused_from: int
    """The attempt that ran."""


def reuse(store: Store, new_matrix_id: int, old_matrix_id: int) -> list[Reused]:
    """Delivers the open trials of a matrix that an older one's graded trials of equal key can stand for.

    Each old trial stands for one new trial at most, so equal conditions keep as many executions as they have arms.
    One whose evidence was sealed from a journal is finished too: running it anew would wash its violation away.
    The new trials are delivered, not graded: the new matrix's graders have not seen them.

    Raises:
        StateError: where the matrices are the same, or the new one is neither registered nor running.
    """
    if new_matrix_id == old_matrix_id:
        raise StateError(f"matrix {new_matrix_id} cannot take over its own trials")
    with store.transaction("reuse") as connection:
        state = locked_state(connection, new_matrix_id)
        if state not in ("registered", "running"):
            raise StateError(f"matrix {new_matrix_id} is {state}: it takes over no trials any more")
        # Old attempts are never changed again, so the old matrix need not be kept still.
        pairs = _pairs(connection, new_matrix_id, old_matrix_id)
        now = store.now(connection)
        reused: list[Reused] = []
        for batch in batches(pairs):
            made = connection.execute(
                attempt.insert().returning(attempt.c.trial_id, attempt.c.id),
                [
                    {
                        "trial_id": new_id,
                        "number": number + 1,
                        "state": "delivered",
                        "leased_at": now,
                        "started": started,
                        "ended": ended,
                        "after_consequential_call": False,
                        "reused_from": original,
                    }
                    for new_id, number, _, original, started, ended in batch
                ],
            )
            ids = {row.trial_id: row.id for row in made}
            connection.execute(
                trial.update()
                .where(trial.c.id == sa.bindparam("of_trial"))
                .values(
                    state="delivered",
                    attempt=trial.c.attempt + 1,
                    evidence_attempt_id=sa.bindparam("by_attempt"),
                ),
                [{"of_trial": new_id, "by_attempt": ids[new_id]} for new_id, *_ in batch],
            )
            reused.extend(Reused(new_id, ids[new_id], old_id, original) for new_id, _, old_id, original, _, _ in batch)
        return reused


def _pairs(
    connection: sa.Connection, new_matrix_id: int, old_matrix_id: int
) -> list[tuple[int, int, int, int, int | None, int | None]]:
    taken = set(
        connection.execute(
            sa.select(attempt.c.reused_from)
            .join(trial, trial.c.id == attempt.c.trial_id)
            .where(trial.c.matrix_id == new_matrix_id, attempt.c.reused_from.is_not(None))
        ).scalars()
    )
    planned = (trial.c.condition, trial.c.sequence)
    original = sa.func.coalesce(attempt.c.reused_from, attempt.c.id)
    old = (
        sa.select(trial.c.trial_key, trial.c.id, original, attempt.c.started, attempt.c.ended)
        .join(attempt, attempt.c.id == trial.c.evidence_attempt_id)
        .join(ledger, ledger.c.attempt_id == original)
        .where(trial.c.matrix_id == old_matrix_id, trial.c.state == "graded")
        .order_by(*planned)
    )
    finished: defaultdict[str, deque[tuple[int, int, int | None, int | None]]] = defaultdict(deque)
    for key, *rest in connection.execute(old):
        if rest[1] not in taken:
            finished[key].append((rest[0], rest[1], rest[2], rest[3]))
    new = (
        sa.select(trial.c.id, trial.c.attempt, trial.c.trial_key)
        .where(trial.c.matrix_id == new_matrix_id, trial.c.state == "open")
        .order_by(*planned)
        .with_for_update()
    )
    pairs = []
    for new_id, number, key in connection.execute(new):
        if finished.get(key):
            old_id, ran, started, ended = finished[key].popleft()
            pairs.append((new_id, number, old_id, ran, started, ended))
    return pairs
