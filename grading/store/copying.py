"""Copying a matrix from one store into another: what its attempts left, each once, never over anything that is there.

Attempts that have ended never change, so a copy may be taken while the matrix runs, and again later. An attempt is the
same one in both stores where its owner and the moment it was leased are.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from grading.store.attempts import batches, close_cells, results_changed
from grading.store.errors import NotFound, StateError
from grading.store.grades import Grade
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.tables import (
    UNFINISHED,
    AttemptState,
    Budget,
    MatrixState,
    TrialState,
    attempt,
    cell,
    grade,
    incident,
    journal,
    ledger,
    matrix,
    owner,
    trial,
)

_ENDED: tuple[AttemptState, ...] = ("delivered", "lost", "fenced")


class CopyConflict(StateError):  # noqa: N818 - named after the condition
    """The store has something else where the copy would go. It stays as it is."""


@dataclass(frozen=True, slots=True)
class CopiedOwner:
    id: str
    host: str
    boot: str
    namespace: str


@dataclass(frozen=True, slots=True)
class CopiedLedger:
    content_hash: str
    ledger_hash: str
    document: bytes


@dataclass(frozen=True, slots=True)
class Origin:
    """The attempt, of another matrix, whose ledger stands for a reused trial."""

    manifest_hash: str
    sequence: int
    number: int


@dataclass(frozen=True, slots=True)
class CopiedAttempt:
    """An attempt that has ended."""

    number: int
    state: AttemptState
    reason: str | None
    budget: Budget | None
    owner: CopiedOwner | None
    leased_at: int
    started: int | None
    ended: int | None
    after_consequential_call: bool
    origin: Origin | None
    ledger: CopiedLedger | None
    journal: bytes | None
    grades: tuple[Grade, ...] = ()
    """As the store that is copied from has them; they are not copied."""


@dataclass(frozen=True, slots=True)
class CopiedTrial:
    sequence: int
    condition: str
    case_id: str
    repetition: int
    assignment_hash: str
    state: TrialState
    evidence: int | None
    """The number of the attempt whose ledger counts."""
    attempts: tuple[CopiedAttempt, ...]


@dataclass(frozen=True, slots=True)
class CopiedIncident:
    sequence: int | None
    number: int | None
    kind: str
    detail: str
    created: int
    document: bytes | None
    id: int = 0
    """In the store that it is read from."""


def read_trials(store: Store, matrix_id: int, *, after: int, limit: int, most_bytes: int) -> list[CopiedTrial]:
    """Trials of a higher sequence number, in order: fewer than ``limit`` where their documents grow beyond
    ``most_bytes``, but at least one where there is one."""
    with store.reading() as connection:
        sized = _sizes(connection, matrix_id, after, limit)
        chosen, total = list[int](), 0
        for trial_id, size in sized:
            total += size
            if chosen and total > most_bytes:
                break
            chosen.append(trial_id)
        # The trials first: what their attempts have come to since is more, never less.
        rows = connection.execute(
            sa.select(
                trial.c.id, trial.c.sequence, trial.c.condition, trial.c.case_id, trial.c.repetition,
                trial.c.assignment_hash, trial.c.state, trial.c.evidence_attempt_id,
            ).where(trial.c.id.in_(chosen)).order_by(trial.c.sequence)
        ).all()  # fmt: skip
        of_trials = _attempts_of(connection, chosen)
    copied = []
    for row in rows:
        attempts = of_trials.get(row.id, {})
        evidence = attempts.get(row.evidence_attempt_id)
        copied.append(
            CopiedTrial(
                row.sequence,
                row.condition,
                row.case_id,
                row.repetition,
                row.assignment_hash,
                row.state,
                evidence.number if evidence is not None else None,
                tuple(attempts.values()),
            )
        )
    return copied


def read_incidents(store: Store, matrix_id: int, *, after: int, limit: int) -> list[CopiedIncident]:
    """Incidents of a higher id, the oldest first."""
    asked = (
        sa.select(
            trial.c.sequence, attempt.c.number, incident.c.kind, incident.c.detail, incident.c.created,
            incident.c.document, incident.c.id,
        )
        .select_from(
            incident.outerjoin(attempt, attempt.c.id == incident.c.attempt_id).outerjoin(
                trial, trial.c.id == attempt.c.trial_id
            )
        )
        .where(incident.c.matrix_id == matrix_id, incident.c.id > after)
        .order_by(incident.c.id)
        .limit(limit)
    )  # fmt: skip
    with store.reading() as connection:
        return [CopiedIncident(*row) for row in connection.execute(asked)]


def write_trials(store: Store, matrix_id: int, copies: Sequence[CopiedTrial]) -> int:
    """Adds what is not there yet, all of it or nothing. The ledgers have been validated by whoever calls.

    Returns:
        How many attempts and ledgers are new.

    Raises:
        CopyConflict: the store has other attempts of these trials than the copies.
        NotFound: a trial that was never planned, or the attempt that a reused one stands on.
    """
    with store.transaction("copy_trials") as connection:
        locked_state(connection, matrix_id)
        known = {
            row.sequence: row
            for batch in batches([one.sequence for one in copies])
            for row in connection.execute(
                sa.select(trial).where(trial.c.matrix_id == matrix_id, trial.c.sequence.in_(batch))
            )
        }
        there = _ended_and_held(connection, [row.id for row in known.values()])
        now = store.now(connection)
        added = 0
        for one in copies:
            row = known.get(one.sequence)
            if row is None:
                raise NotFound(f"matrix {matrix_id} has no trial {one.sequence}")
            _check_planned(row, one)
            added += _write_trial(store, connection, row, there.get(row.id, {}), one, now)
        if added:
            results_changed(connection, [matrix_id])
        return added


def write_incidents(store: Store, matrix_id: int, copies: Sequence[CopiedIncident]) -> int:
    """Adds the incidents that are not there yet; returns how many."""
    with store.transaction("copy_incidents") as connection:
        locked_state(connection, matrix_id)
        asked = sa.select(incident.c.kind, incident.c.detail, incident.c.created)
        there = {tuple(row) for row in connection.execute(asked.where(incident.c.matrix_id == matrix_id))}
        new = [one for one in copies if (one.kind, one.detail, one.created) not in there]
        places = {
            (row.sequence, row.number): row.id
            for row in connection.execute(
                sa.select(trial.c.sequence, attempt.c.number, attempt.c.id)
                .join(trial, trial.c.id == attempt.c.trial_id)
                .where(trial.c.matrix_id == matrix_id, trial.c.sequence.in_([one.sequence for one in new]))
            )
        }
        rows = [
            {
                "matrix_id": matrix_id,
                "attempt_id": places.get((one.sequence, one.number)),
                "kind": one.kind,
                "detail": one.detail,
                "document": one.document,
                "created": one.created,
            }
            for one in new
        ]
        if rows:
            connection.execute(incident.insert(), rows)
        return len(rows)


def settle(
    store: Store, matrix_id: int, state: MatrixState, failed_cells: Mapping[tuple[str, str], str]
) -> MatrixState:
    """Brings cells and matrix to what the copied trials give. A matrix that runs elsewhere is paused here.

    Args:
        state: of the matrix where it was copied from.
        failed_cells: by condition and case, why.
    """
    with store.transaction("settle_copy") as connection:
        locked_state(connection, matrix_id)
        listed = connection.execute(
            sa.select(cell.c.id, cell.c.condition, cell.c.case_id, cell.c.state).where(cell.c.matrix_id == matrix_id)
        ).all()
        for row in listed:
            reason = failed_cells.get((row.condition, row.case_id))
            if reason is not None:
                connection.execute(cell.update().where(cell.c.id == row.id).values(state="failed", reason=reason))
            elif row.state == "failed":
                connection.execute(cell.update().where(cell.c.id == row.id).values(state="open", reason=None))
        close_cells(connection, [row.id for row in listed])
        of_states = sa.select(trial.c.state, sa.func.count()).where(trial.c.matrix_id == matrix_id)
        counts = {row[0]: row[1] for row in connection.execute(of_states.group_by(trial.c.state))}
        here: MatrixState = "paused"
        if state in ("complete", "incomplete") and not any(counts.get(one) for one in UNFINISHED):
            here = "incomplete" if counts.get("missing") else "complete"
        elif state == "cancelled":
            here = "cancelled"
        connection.execute(matrix.update().where(matrix.c.id == matrix_id).values(state=here))
        results_changed(connection, [matrix_id])
        return here


def _sizes(connection: sa.Connection, matrix_id: int, after: int, limit: int) -> list[tuple[int, int]]:
    """The ids of trials in planned order, with the bytes of their attempts' documents."""
    sized = (
        sa.select(
            trial.c.id,
            sa.func.coalesce(sa.func.sum(sa.func.coalesce(sa.func.length(ledger.c.document), 0)), 0)
            + sa.func.coalesce(sa.func.sum(sa.func.coalesce(sa.func.length(journal.c.document), 0)), 0),
        )
        .select_from(
            trial.outerjoin(attempt, attempt.c.trial_id == trial.c.id)
            .outerjoin(ledger, ledger.c.attempt_id == attempt.c.id)
            .outerjoin(journal, journal.c.attempt_id == attempt.c.id)
        )
        .where(trial.c.matrix_id == matrix_id, trial.c.sequence > after)
        .group_by(trial.c.id, trial.c.sequence)
        .order_by(trial.c.sequence)
        .limit(limit)
    )
    return [(row[0], int(row[1])) for row in connection.execute(sized)]


def _attempts_of(connection: sa.Connection, trial_ids: Collection[int]) -> dict[int, dict[int, CopiedAttempt]]:
    """By trial and id, the attempts that have ended, in the order of their numbers."""
    ran, ran_trial, ran_matrix = attempt.alias("ran"), trial.alias("ran_trial"), matrix.alias("ran_matrix")
    asked = (
        sa.select(
            attempt.c.id, attempt.c.trial_id, attempt.c.number, attempt.c.state, attempt.c.reason, attempt.c.budget,
            attempt.c.leased_at, attempt.c.started, attempt.c.ended, attempt.c.after_consequential_call,
            owner.c.id.label("owner_id"), owner.c.host, owner.c.boot, owner.c.namespace,
            ran_matrix.c.manifest_hash, ran_trial.c.sequence, ran.c.number.label("ran_number"),
            ledger.c.content_hash, ledger.c.ledger_hash, ledger.c.document,
            journal.c.document.label("journal"),
        )
        .select_from(
            attempt.outerjoin(owner, owner.c.id == attempt.c.owner)
            .outerjoin(ran, ran.c.id == attempt.c.reused_from)
            .outerjoin(ran_trial, ran_trial.c.id == ran.c.trial_id)
            .outerjoin(ran_matrix, ran_matrix.c.id == ran_trial.c.matrix_id)
            .outerjoin(ledger, ledger.c.attempt_id == attempt.c.id)
            .outerjoin(journal, journal.c.attempt_id == attempt.c.id)
        )
        .where(attempt.c.trial_id.in_(sorted(trial_ids)), attempt.c.state.in_(_ENDED))
        .order_by(attempt.c.trial_id, attempt.c.number)
    )  # fmt: skip
    rows = connection.execute(asked).all()
    given: dict[int, list[Grade]] = {}
    graded = sa.select(
        grade.c.attempt_id, grade.c.grader, grade.c.version, grade.c.verdict, grade.c.task_completed, grade.c.checks
    ).where(grade.c.attempt_id.in_([row.id for row in rows]))
    for found in connection.execute(graded.order_by(grade.c.id)):
        given.setdefault(found.attempt_id, []).append(Grade(*found))
    copied: dict[int, dict[int, CopiedAttempt]] = {}
    for row in rows:
        copied.setdefault(row.trial_id, {})[row.id] = CopiedAttempt(
            number=row.number,
            state=row.state,
            reason=row.reason,
            budget=row.budget,
            owner=CopiedOwner(row.owner_id, row.host, row.boot, row.namespace) if row.owner_id is not None else None,
            leased_at=row.leased_at,
            started=row.started,
            ended=row.ended,
            after_consequential_call=row.after_consequential_call,
            origin=Origin(row.manifest_hash, row.sequence, row.ran_number) if row.manifest_hash is not None else None,
            ledger=CopiedLedger(row.content_hash, row.ledger_hash, bytes(row.document))
            if row.document is not None
            else None,
            journal=bytes(row.journal) if row.journal is not None else None,
            grades=tuple(given.get(row.id, ())),
        )
    return copied


def _ended_and_held(connection: sa.Connection, trial_ids: list[int]) -> dict[int, dict[int, Any]]:
    """By trial and number: the attempts that are in this store."""
    found: dict[int, dict[int, Any]] = {}
    for batch in batches(trial_ids):
        asked = (
            sa.select(
                attempt.c.id, attempt.c.trial_id, attempt.c.number, attempt.c.owner, attempt.c.leased_at,
                attempt.c.reused_from, ledger.c.ledger_hash,
            )
            .select_from(attempt.outerjoin(ledger, ledger.c.attempt_id == attempt.c.id))
            .where(attempt.c.trial_id.in_(batch))
        )  # fmt: skip
        for row in connection.execute(asked):
            found.setdefault(row.trial_id, {})[row.number] = row
    return found


def _check_planned(row: Any, one: CopiedTrial) -> None:
    planned = (row.condition, row.case_id, row.repetition, row.assignment_hash)
    if planned != (one.condition, one.case_id, one.repetition, one.assignment_hash):
        raise CopyConflict(
            f"trial {one.sequence} is {row.condition} / {row.case_id} / {row.repetition} with assignment "
            f"{row.assignment_hash} here, and {one.condition} / {one.case_id} / {one.repetition} with "
            f"{one.assignment_hash} there"
        )


def _write_trial(
    store: Store,
    connection: sa.Connection,
    row: Any,
    there: Mapping[int, Any],
    one: CopiedTrial,
    now: int,
) -> int:
    added, ids = 0, dict[int, object]()
    numbers = {copy.number for copy in one.attempts}
    if own := sorted(there.keys() - numbers):
        raise CopyConflict(
            f"trial {one.sequence} ({one.condition} / {one.case_id} / {one.repetition}) has attempt {own[0]} of its "
            "own here: copy the matrix into another store"
        )
    for copy in one.attempts:
        found = there.get(copy.number)
        if found is None:
            ids[copy.number] = _insert_attempt(store, connection, row, copy)
            added += 1
        else:
            if (found.owner, found.leased_at) != (copy.owner.id if copy.owner else None, copy.leased_at):
                raise CopyConflict(
                    f"trial {one.sequence} ({one.condition} / {one.case_id} / {one.repetition}) has another attempt "
                    f"{copy.number} here: copy the matrix into another store"
                )
            ids[copy.number] = found.id
        stored = found.ledger_hash if found is not None else None
        if copy.ledger is not None and stored is None:
            _insert_ledger(connection, ids[copy.number], copy.ledger, now)
            added += 1
        elif copy.ledger is not None and stored != copy.ledger.ledger_hash:
            raise CopyConflict(
                f"trial {one.sequence}, attempt {copy.number} has ledger {stored} here and {copy.ledger.ledger_hash} "
                "there: one of the two is not what ran"
            )
        if copy.journal is not None:
            connection.execute(
                store.insert(journal).on_conflict_do_nothing(index_elements=["attempt_id"]),
                {"attempt_id": ids[copy.number], "document": copy.journal},
            )
    added += _move_trial(connection, row, one, ids)
    return added


def _move_trial(connection: sa.Connection, row: Any, one: CopiedTrial, ids: Mapping[int, object]) -> int:
    latest = max(ids, default=0)
    if one.evidence is not None:
        if one.evidence not in ids:
            raise NotFound(f"trial {one.sequence} is said to stand on attempt {one.evidence}, which it does not have")
        evidence = ids[one.evidence]
        if row.evidence_attempt_id == evidence:
            return 0
        if row.evidence_attempt_id is not None:
            raise CopyConflict(f"trial {one.sequence} has other evidence here: copy the matrix into another store")
        values = {"state": "delivered", "evidence_attempt_id": evidence, "attempt": latest}
    elif row.evidence_attempt_id is not None:
        raise CopyConflict(f"trial {one.sequence} has evidence here, and none there: copy it into another store")
    else:
        values = {"state": "missing" if one.state == "missing" else "open", "attempt": latest}
        if (row.state, row.attempt) == (values["state"], latest):
            return 0
    connection.execute(trial.update().where(trial.c.id == row.id).values(**values))
    return 1


def _insert_attempt(store: Store, connection: sa.Connection, row: Any, copy: CopiedAttempt) -> object:
    if copy.owner is not None:
        connection.execute(
            store.insert(owner).on_conflict_do_nothing(index_elements=["id"]),
            {
                "id": copy.owner.id,
                "host": copy.owner.host,
                "boot": copy.owner.boot,
                "namespace": copy.owner.namespace,
                # A process of somewhere else: nothing can be told of it here.
                "pid": 0,
                "process_start": -1,
                "renewed": copy.leased_at,
            },
        )
    values = {
        "trial_id": row.id,
        "number": copy.number,
        "state": copy.state,
        "reason": copy.reason,
        "budget": copy.budget,
        "owner": copy.owner.id if copy.owner is not None else None,
        "leased_at": copy.leased_at,
        "started": copy.started,
        "ended": copy.ended,
        "after_consequential_call": copy.after_consequential_call,
        "reused_from": _origin(connection, copy.origin, row.trial_key) if copy.origin is not None else None,
    }
    return connection.execute(attempt.insert().returning(attempt.c.id), values).scalar_one()


def _origin(connection: sa.Connection, origin: Origin, trial_key: str) -> int:
    """The attempt that stands for a reused trial: of an equal key, as when it was taken over."""
    asked = (
        sa.select(attempt.c.id)
        .join(trial, trial.c.id == attempt.c.trial_id)
        .join(matrix, matrix.c.id == trial.c.matrix_id)
        .join(ledger, ledger.c.attempt_id == attempt.c.id)
        .where(
            matrix.c.manifest_hash == origin.manifest_hash,
            trial.c.sequence == origin.sequence,
            trial.c.trial_key == trial_key,
            attempt.c.number == origin.number,
        )
    )
    found = connection.execute(asked).scalar_one_or_none()
    if found is None:
        raise NotFound(
            f"the store has no ledger of trial {origin.sequence}, attempt {origin.number} of {origin.manifest_hash} "
            "that could stand for a trial of equal key"
        )
    return int(found)


def _insert_ledger(connection: sa.Connection, attempt_id: object, copy: CopiedLedger, now: int) -> None:
    connection.execute(
        ledger.insert(),
        {
            "attempt_id": attempt_id,
            "content_hash": copy.content_hash,
            "ledger_hash": copy.ledger_hash,
            "document": copy.document,
            "received": now,
        },
    )
