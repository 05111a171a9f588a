"""Leasing trials to a runner: no two ever hold one trial, and one that is gone holds nothing for ever."""

import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from grading.store.attempts import AMONG, batches, close_cells, padded, results_changed, secret_hash
from grading.store.errors import StateError, StoreError
from grading.store.losing import exhausted
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.owners import dead_owners, may_be_taken
from grading.store.tables import attempt, literal_state, owner, trial


@dataclass(frozen=True, slots=True)
class Claimed:
    """A trial that the owner holds, by a new attempt at it."""

    trial_id: int
    attempt_id: int
    number: int
    secret: str
    """Returned this once: the store keeps its hash alone."""
    cell_id: int
    case_id: str
    condition: str
    repetition: int
    sequence: int
    trial_key: str
    assignment_hash: str


def claim(
    store: Store,
    owner_id: str,
    matrix_id: int,
    *,
    limit: int,
    lease_seconds: float,
    strict_order: bool = False,
    only: Collection[int] | None = None,
    take_over: bool = True,
) -> list[Claimed]:
    """Leases up to ``limit`` trials in their planned order.

    A trial whose lease has expired, or whose owner is known to be dead, is claimed like an open one: the attempt that
    held it is fenced and, where it had begun, counts like one whose runner was killed. A runner that can read the
    journals of others looks at :func:`grading.store.reading.abandoned` first and claims with ``take_over=False``, so
    that no attempt is replaced before what it did was looked at.

    Args:
        strict_order: claims nothing beyond a trial that somebody else still holds.
        only: the cells, by id, to claim from.

    Raises:
        StateError: where the matrix is not running.
        StoreError: for an owner who was never enrolled.
    """
    if limit < 1 or lease_seconds <= 0:
        raise StoreError(f"cannot claim {limit} trials for {lease_seconds} seconds: both must be above zero")
    with store.transaction("claim") as connection:
        # Strict order is decided by one claimer at a time; others only keep the matrix from being paused meanwhile.
        state = locked_state(connection, matrix_id, shared=not strict_order)
        if state != "running":
            raise StateError(f"matrix {matrix_id} is {state}: trials are claimed from a running one alone")
        known = sa.select(owner.c.id).where(owner.c.id == owner_id)
        if connection.execute(known).first() is None:
            raise StoreError(f"owner {owner_id!r} was never enrolled")
        now = store.now(connection)
        in_scope = [trial.c.matrix_id == matrix_id]
        if only is not None:
            in_scope.append(trial.c.cell_id.in_(only))
        dead = dead_owners(connection)
        if strict_order:
            barrier = _first_held_by_another(connection, matrix_id, owner_id, now, dead, take_over=take_over)
            if barrier is not None:
                in_scope.append(trial.c.sequence < barrier)
        rows = _open_trials(connection, in_scope, limit)
        if take_over:
            taken = _abandoned_trials(connection, in_scope, limit, now, dead)
            if taken:
                rows = _without_exhausted(connection, now, rows, taken, limit)
        return _lease(connection, owner_id, rows, now, now + round(lease_seconds * 1_000_000))


def running(store: Store, attempt_ids: Iterable[int]) -> frozenset[int]:
    """Records that these attempts begin, before their agents do. Those not returned are no longer the holders."""
    ids = sorted(set(attempt_ids))
    begun: set[int] = set()
    with store.transaction("running") as connection:
        now = store.now(connection)
        for batch in batches(ids):
            if not store.is_sqlite:
                _lock(connection, attempt.c.id.in_(batch))
            connection.execute(_BEGUN, {"ids": padded(batch), "at": now})
            begun.update(connection.execute(_RUNNING, {"ids": padded(batch)}).scalars())
    return frozenset(begun)


def renew(store: Store, owner_id: str, *, lease_seconds: float) -> frozenset[int]:
    """Extends every lease of an owner; returns the attempts it still holds. Work on any other is in vain."""
    with store.transaction("renew") as connection:
        now = store.now(connection)
        connection.execute(owner.update().where(owner.c.id == owner_id).values(renewed=now))
        held = (attempt.c.owner == owner_id) & literal_state(attempt.c.state, ("leased", "running"))
        _lock(connection, held)
        expires = now + round(lease_seconds * 1_000_000)
        connection.execute(attempt.update().where(held).values(lease_expires=expires))
        return frozenset(connection.execute(sa.select(attempt.c.id).where(held)).scalars())


def _lock(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    if connection.dialect.name != "sqlite":
        connection.execute(sa.select(attempt.c.id).where(which).order_by(attempt.c.id).with_for_update())


_CLAIMED = (
    trial.c.id, trial.c.attempt, trial.c.cell_id, trial.c.case_id, trial.c.condition, trial.c.repetition,
    trial.c.sequence, trial.c.trial_key, trial.c.assignment_hash,
)  # fmt: skip
_LEASED = trial.update().where(trial.c.id.in_(AMONG)).values(state="leased", attempt=trial.c.attempt + 1)
_ATTEMPTED = attempt.insert().returning(attempt.c.trial_id, attempt.c.id)
_BEGUN = (
    attempt.update()
    .where(attempt.c.id.in_(AMONG), attempt.c.state == "leased")
    .values(state="running", started=sa.bindparam("at"))
)
_RUNNING = sa.select(attempt.c.id).where(attempt.c.id.in_(AMONG), attempt.c.state == "running")
_CURRENT = trial.join(attempt, (attempt.c.trial_id == trial.c.id) & (attempt.c.number == trial.c.attempt))


def _first_held_by_another(
    connection: sa.Connection, matrix_id: int, owner_id: str, now: int, dead: list[str], *, take_over: bool
) -> int | None:
    held = (
        sa.select(sa.func.min(trial.c.sequence))
        .select_from(_CURRENT)
        .where(trial.c.matrix_id == matrix_id, trial.c.state == "leased", attempt.c.owner != owner_id)
    )
    if take_over:
        held = held.where(~may_be_taken(now, dead))
    barrier: int | None = connection.execute(held).scalar_one()
    return barrier


def _open_trials(
    connection: sa.Connection, in_scope: list[sa.ColumnElement[bool]], limit: int
) -> list[sa.Row[tuple[object, ...]]]:
    return list(
        connection.execute(
            sa.select(*_CLAIMED)
            .where(*in_scope, trial.c.state == "open")
            .order_by(trial.c.sequence)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
    )


def _abandoned_trials(
    connection: sa.Connection, in_scope: list[sa.ColumnElement[bool]], limit: int, now: int, dead: list[str]
) -> list[sa.Row[tuple[object, ...]]]:
    return list(
        connection.execute(
            sa.select(*_CLAIMED, attempt.c.id.label("attempt_id"), attempt.c.state.label("attempt_state"))
            .select_from(_CURRENT)
            .where(*in_scope, trial.c.state == "leased", may_be_taken(now, dead))
            .order_by(trial.c.sequence)
            .limit(limit)
            # Both: an attempt that is being renewed at this moment is left alone.
            .with_for_update(of=[trial, attempt], skip_locked=True)
        )
    )


def _without_exhausted(
    connection: sa.Connection,
    now: int,
    rows: list[sa.Row[tuple[object, ...]]],
    taken: list[sa.Row[tuple[object, ...]]],
    limit: int,
) -> list[sa.Row[tuple[object, ...]]]:
    """Fences the attempts whose trials are taken; those of which every allowed attempt is used up go missing."""
    chosen = sorted([*rows, *taken], key=lambda row: row.sequence)[:limit]
    fenced = [row for row in taken if row in chosen]
    for began, budget in ((False, "none"), (True, "uncharged")):
        ids = [row.attempt_id for row in fenced if (row.attempt_state == "running") is began]
        connection.execute(
            attempt.update()
            .where(attempt.c.id.in_(ids))
            .values(state="fenced", reason="lease_expired", budget=budget, ended=now)
        )
    used_up = exhausted(connection, {row.id: "uncharged" for row in fenced if row.attempt_state == "running"})
    if used_up:
        gone = [row for row in fenced if row.id in used_up]
        connection.execute(trial.update().where(trial.c.id.in_(used_up)).values(state="missing"))
        close_cells(connection, {row.cell_id for row in gone})
        matrix_of = sa.select(trial.c.matrix_id).where(trial.c.id.in_(used_up)).distinct()
        results_changed(connection, connection.execute(matrix_of).scalars())
    return [row for row in chosen if row.id not in used_up]


def _lease(
    connection: sa.Connection, owner_id: str, rows: list[sa.Row[tuple[object, ...]]], now: int, expires: int
) -> list[Claimed]:
    if not rows:
        return []
    opened = {row.id: secrets.token_urlsafe(24) for row in rows}
    for batch in batches(opened):
        connection.execute(_LEASED, {"ids": padded(batch)})
    made = connection.execute(
        _ATTEMPTED,
        [
            {
                "trial_id": row.id,
                "number": row.attempt + 1,
                "state": "leased",
                "owner": owner_id,
                "secret_hash": secret_hash(opened[row.id]),
                "lease_expires": expires,
                "leased_at": now,
                "after_consequential_call": False,
            }
            for row in rows
        ],
    )
    ids = {row.trial_id: row.id for row in made}
    return [
        Claimed(
            trial_id=row.id,
            attempt_id=ids[row.id],
            number=row.attempt + 1,
            secret=opened[row.id],
            cell_id=row.cell_id,
            case_id=row.case_id,
            condition=row.condition,
            repetition=row.repetition,
            sequence=row.sequence,
            trial_key=row.trial_key,
            assignment_hash=row.assignment_hash,
        )
        for row in rows
    ]
