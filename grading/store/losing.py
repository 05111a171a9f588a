"""Attempts that end without a ledger: how often a trial is tried again, and what such an attempt leaves behind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from grading.store.attempts import Found, batches, close_cells, find, results_changed
from grading.store.errors import NotFound, StateError
from grading.store.incidents import NewIncident, record_incidents
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.tables import Budget, attempt, cell, journal, journal_line, ledger, trial

ATTEMPTS_IN_ALL: Mapping[Budget, int | None] = {
    "none": None,
    "uncharged": 20,
    "charged": 3,
    "provider": 3,
    "ledger_bad": 2,
    "unknown": 2,
}
"""After how many attempts in all a trial is missing, by what the last one was lost to. Attempts that were lost to the
cluster are counted apart from all others; one that never began is not counted."""

REASONS: Mapping[str, Budget] = {
    "not_started": "none",
    "agent_not_startable": "none",
    "wrong_configuration": "none",
    "cancelled": "none",
    "disrupted": "uncharged",
    "preempted": "uncharged",
    "node_lost": "uncharged",
    "controller_killed": "uncharged",
    "runner_killed": "uncharged",
    "lease_expired": "uncharged",
    "pod_deleted": "charged",
    "recorder_out_of_memory": "charged",
    "recorder_killed": "charged",
    "lost_intake": "charged",
    "deadline_exceeded": "charged",
    "evicted": "charged",
    "provider_unavailable": "provider",
    "ledger_malformed": "ledger_bad",
    "hash_mismatch": "ledger_bad",
    "replay_mismatch": "ledger_bad",
}
"""What an attempt can be lost to. Any other reason is an unknown one, and an incident."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt of which no ledger will come."""

    attempt_id: int
    reason: str
    after_consequential_call: bool = False
    """Whether its journal shows a refund or approval call: shown wherever the attempt is discarded."""
    journal: bytes | None = None
    started: int | None = None
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """A lost attempt whose journal already shows a violation: the ledger made of it becomes the trial's evidence."""

    attempt_id: int
    reason: str
    content_hash: str
    ledger_hash: str
    document: bytes
    journal: bytes
    started: int | None = None
    ended: int | None = None


LoseOutcome = Literal["open", "missing", "repeated", "stale"]
"""The trial is open again or missing; the attempt was lost before; it no longer held the trial, and only what it
leaves behind was kept."""
SealOutcome = Literal["sealed", "repeated", "stale"]


def lose(store: Store, losses: Iterable[Lost]) -> list[LoseOutcome]:
    """Gives up attempts, in order; each trial is open again, or missing when its attempts are used up.

    Raises:
        NotFound: for an attempt that does not exist.
        StateError: for one that had begun but is said not to have.
    """
    listed = list(losses)
    with store.transaction("lose") as connection:
        return lose_attempts(store, connection, listed)


def lose_attempts(store: Store, connection: sa.Connection, losses: list[Lost]) -> list[LoseOutcome]:
    """The same inside a transaction that does more."""
    _lock_matrices(connection, [loss.attempt_id for loss in losses])
    found = find(connection, [loss.attempt_id for loss in losses])
    now = store.now(connection)
    outcomes: list[LoseOutcome | None] = []
    lost: dict[int, Lost] = {}
    for loss in losses:
        one = _known(found, loss.attempt_id)
        if loss.reason == "not_started" and one.state == "running":
            raise StateError(f"attempt {loss.attempt_id} has begun: it cannot be lost as not started")
        if loss.attempt_id in lost or one.state == "lost":
            outcomes.append("repeated")
        elif one.holds_trial:
            lost[loss.attempt_id] = loss
            outcomes.append(None)
        else:
            outcomes.append("stale")
    _end_attempts(connection, now, list(lost.values()))
    _keep_journals(store, connection, losses)
    missing = _missing(connection, found, lost)
    for state, trial_ids in (("missing", missing), ("open", {found[one].trial_id for one in lost} - missing)):
        for batch in batches(sorted(trial_ids)):
            connection.execute(trial.update().where(trial.c.id.in_(batch)).values(state=state))
    if missing:
        gone = [found[one] for one in lost if found[one].trial_id in missing]
        close_cells(connection, {one.cell_id for one in gone})
        results_changed(connection, {one.matrix_id for one in gone})
    unknown = [loss for loss in lost.values() if loss.reason not in REASONS]
    record_incidents(
        connection,
        now,
        [
            NewIncident(found[loss.attempt_id].matrix_id, loss.attempt_id, "unknown_loss", loss.reason)
            for loss in unknown
        ],
    )
    return [
        ("missing" if found[loss.attempt_id].trial_id in missing else "open") if outcome is None else outcome
        for loss, outcome in zip(losses, outcomes, strict=True)
    ]


def seal(store: Store, sealings: Iterable[Sealed]) -> list[SealOutcome]:
    """Ends attempts as lost and makes the ledgers of their journals their trials' evidence, to be graded.

    Raises:
        NotFound: for an attempt that does not exist.
    """
    listed = list(sealings)
    with store.transaction("seal") as connection:
        _lock_matrices(connection, [one.attempt_id for one in listed])
        found = find(connection, [one.attempt_id for one in listed])
        now = store.now(connection)
        outcomes: list[SealOutcome] = []
        sealed: dict[int, Sealed] = {}
        for one in listed:
            held = _known(found, one.attempt_id)
            earlier = sealed.get(one.attempt_id)
            if one.ledger_hash == (earlier.ledger_hash if earlier else held.ledger_hash):
                outcomes.append("repeated")
            elif earlier is None and held.holds_trial:
                sealed[one.attempt_id] = one
                outcomes.append("sealed")
            else:
                outcomes.append("stale")
        losses = [
            Lost(one.attempt_id, one.reason, True, one.journal, started=one.started, ended=one.ended)
            for one in sealed.values()
        ]
        _end_attempts(connection, now, losses)
        _keep_journals(store, connection, losses)
        if sealed:
            connection.execute(
                ledger.insert(),
                [
                    {
                        "attempt_id": one.attempt_id,
                        "content_hash": one.content_hash,
                        "ledger_hash": one.ledger_hash,
                        "document": one.document,
                        "received": now,
                    }
                    for one in sealed.values()
                ],
            )
            connection.execute(
                trial.update()
                .where(trial.c.id == sa.bindparam("of_trial"))
                .values(state="delivered", evidence_attempt_id=sa.bindparam("by_attempt")),
                [{"of_trial": found[one].trial_id, "by_attempt": one} for one in sealed],
            )
        return outcomes


def fail_cell(store: Store, cell_id: int, reason: str) -> int:
    """Marks a cell failed and its open trials missing; returns how many. What is leased may still be delivered.

    Raises:
        NotFound: for a cell that does not exist.
        StateError: for one that is done.
    """
    with store.transaction("fail_cell") as connection:
        matrix_id = connection.execute(sa.select(cell.c.matrix_id).where(cell.c.id == cell_id)).scalar_one_or_none()
        if matrix_id is None:
            raise NotFound(f"the store has no cell {cell_id}")
        locked_state(connection, matrix_id)
        asked = sa.select(cell.c.state).where(cell.c.id == cell_id).with_for_update()
        state = connection.execute(asked).scalar_one()
        if state == "done":
            raise StateError(f"cell {cell_id} is done: it cannot fail any more")
        if state == "open":
            connection.execute(cell.update().where(cell.c.id == cell_id).values(state="failed", reason=reason))
        gone = connection.execute(
            trial.update().where(trial.c.cell_id == cell_id, trial.c.state == "open").values(state="missing")
        ).rowcount
        results_changed(connection, [matrix_id])
        return gone


def exhausted(connection: sa.Connection, lost_to: Mapping[int, Budget]) -> set[int]:
    """The trials, of those given with what their last attempt was lost to, that have no attempt left."""
    used: dict[int, dict[str, int]] = {}
    for batch in batches(sorted(lost_to)):
        counted = (
            sa.select(attempt.c.trial_id, attempt.c.budget, sa.func.count())
            .where(attempt.c.trial_id.in_(batch), attempt.c.state.in_(("lost", "fenced")))
            .group_by(attempt.c.trial_id, attempt.c.budget)
        )
        for trial_id, budget, count in connection.execute(counted):
            used.setdefault(trial_id, {})[budget] = count
    return {trial_id for trial_id, budget in lost_to.items() if _is_exhausted(used.get(trial_id, {}), budget)}


def _is_exhausted(used: Mapping[str, int], budget: Budget) -> bool:
    allowed = ATTEMPTS_IN_ALL[budget]
    if allowed is None:
        return False
    if budget == "uncharged":
        return used.get("uncharged", 0) >= allowed
    return sum(count for name, count in used.items() if name not in ("none", "uncharged")) >= allowed


def _known(found: Mapping[int, Found], attempt_id: int) -> Found:
    if attempt_id not in found:
        raise NotFound(f"the store has no attempt {attempt_id}")
    return found[attempt_id]


def _lock_matrices(connection: sa.Connection, attempt_ids: list[int]) -> None:
    """Keeps a cell from failing, and a matrix from finishing, between the look and the change."""
    if connection.dialect.name == "sqlite":
        return
    concerned: set[int] = set()
    for batch in batches(attempt_ids):
        of_these = sa.select(trial.c.matrix_id).join(attempt, attempt.c.trial_id == trial.c.id)
        concerned.update(connection.execute(of_these.where(attempt.c.id.in_(batch)).distinct()).scalars())
    for matrix_id in sorted(concerned):
        locked_state(connection, matrix_id)


def _end_attempts(connection: sa.Connection, now: int, losses: list[Lost]) -> None:
    if not losses:
        return
    connection.execute(
        attempt.update()
        .where(attempt.c.id == sa.bindparam("of_attempt"))
        .values(
            state="lost",
            reason=sa.bindparam("lost_to"),
            budget=sa.bindparam("counts_as"),
            started=sa.func.coalesce(sa.bindparam("from_", type_=sa.BigInteger), attempt.c.started),
            ended=sa.bindparam("until"),
        ),
        [
            {
                "of_attempt": loss.attempt_id,
                "lost_to": loss.reason,
                "counts_as": REASONS.get(loss.reason, "unknown"),
                "from_": loss.started,
                "until": now if loss.ended is None else loss.ended,
            }
            for loss in losses
        ],
    )


def _keep_journals(store: Store, connection: sa.Connection, losses: list[Lost]) -> None:
    """Keeps the first journal of each attempt, also of one that was fenced or lost before it was read."""
    rows = [{"attempt_id": one.attempt_id, "document": one.journal} for one in losses if one.journal is not None]
    if rows:
        connection.execute(store.insert(journal).on_conflict_do_nothing(index_elements=["attempt_id"]), rows)
        # What a pod had told line by line is in that document.
        for batch in batches(sorted({one.attempt_id for one in losses if one.journal is not None})):
            connection.execute(journal_line.delete().where(journal_line.c.attempt_id.in_(batch)))
    for batch in batches(sorted({one.attempt_id for one in losses if one.after_consequential_call})):
        connection.execute(attempt.update().where(attempt.c.id.in_(batch)).values(after_consequential_call=True))


def _missing(connection: sa.Connection, found: Mapping[int, Found], lost: Mapping[int, Lost]) -> set[int]:
    budgets = {found[one].trial_id: REASONS.get(loss.reason, "unknown") for one, loss in lost.items()}
    missing = exhausted(connection, budgets)
    for batch in batches(sorted({found[one].cell_id for one in lost})):
        failed = sa.select(cell.c.id).where(cell.c.id.in_(batch), cell.c.state == "failed")
        in_failed = set(connection.execute(failed).scalars())
        missing.update(found[one].trial_id for one in lost if found[one].cell_id in in_failed)
    return missing
