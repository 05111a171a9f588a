"""Journaling: what pods tell of the attempts that they hold, line by line, kept until there is a ledger."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from grading.store.attempts import AMONG, batches, padded
from grading.store.errors import StateError, StoreError
from grading.store.opening import SERVER_NOW, Store
from grading.store.tables import HELD, attempt, journal_line, trial
from simulator.journal_reading import Journals


@dataclass(frozen=True, slots=True)
class Told:
    """Lines of an attempt's journal, the first of them being its line ``first``."""

    attempt_id: int
    pod_uid: str
    first: int
    lines: Sequence[bytes]


def journal(store: Store, attempt_id: int, pod_uid: str, first: int, lines: Iterable[bytes]) -> None:
    """Keeps lines of an attempt's journal.

    The attempt has begun with the first lines of it. Those that are there already are accepted quietly.

    Raises:
        StateError: the attempt is not, or no longer, the pod's: what it does is in vain.
        StoreError: a gap before these lines, or other lines than those that are there.
    """
    (refused,) = journal_all(store, [Told(attempt_id, pod_uid, first, list(lines))])
    if refused is not None:
        raise refused


def journal_all(store: Store, told: Sequence[Told]) -> list[StoreError | None]:
    """The same of several attempts in one transaction; for each None, or why nothing of it was kept.

    Raises:
        StoreError: one attempt is told of twice.
    """
    if len({one.attempt_id for one in told}) < len(told):
        raise StoreError("an attempt is told of twice in one transaction")
    with store.transaction("journal_lines") as connection:
        return keep_lines(store, connection, told)


def keep_lines(store: Store, connection: sa.Connection, told: Sequence[Told]) -> list[StoreError | None]:
    """The same inside a transaction that does more."""
    ids = {"ids": padded(sorted(one.attempt_id for one in told))}
    attempts = {row.id: row for row in connection.execute(_JOURNALED, ids)}
    stored = _stored(connection, told)
    refused = [_refused(one, attempts.get(one.attempt_id), stored[one.attempt_id]) for one in told]
    kept = [one for one, why in zip(told, refused, strict=True) if why is None]
    insert_lines(connection, [(one.attempt_id, one.first, one.lines) for one in kept], stored)
    begun = [one.attempt_id for one in kept if attempts[one.attempt_id].state == "leased"]
    if begun:
        if store.is_sqlite:
            connection.execute(_BEGUN, {"ids": padded(begun), "at": store.now(connection)})
        else:
            connection.execute(_BEGUN_NOW, {"ids": padded(begun)})
    return refused


def insert_lines(
    connection: sa.Connection,
    journals: Iterable[tuple[int, int, Sequence[bytes]]],
    stored: Mapping[int, Mapping[int, bytes]] = MappingProxyType({}),
) -> None:
    """Adds lines of attempts, each with the number of its first one, but for those that are stored already."""
    added = [
        {"attempt_id": attempt_id, "number": number, "line": line}
        for attempt_id, first, lines in journals
        for number, line in enumerate(lines, first)
        if number not in stored.get(attempt_id, ())
    ]
    if added:
        connection.execute(journal_line.insert(), added)


def _stored(connection: sa.Connection, told: Sequence[Told]) -> dict[int, dict[int, bytes]]:
    """What is there of each from the line before these."""
    found: dict[int, dict[int, bytes]] = {one.attempt_id: {} for one in told}
    # Of an attempt whose first lines come there is nothing, unless they come again.
    from_start = [one.attempt_id for one in told if one.first == 0]
    if from_start:
        for attempt_id, number, line in connection.execute(_LINES, {"ids": padded(from_start), "from_": 0}):
            found[attempt_id][number] = bytes(line)
    for one in told:
        if one.first > 0:
            asked = {"ids": [one.attempt_id], "from_": one.first - 1}
            found[one.attempt_id] = {number: bytes(line) for _, number, line in connection.execute(_LINES, asked)}
    return found


def _refused(told: Told, row: Any, stored: dict[int, bytes]) -> StoreError | None:
    attempt_id, first = told.attempt_id, told.first
    if row is None or row.owner != told.pod_uid:
        return StateError(f"attempt {attempt_id} is not this pod's")
    if row.state not in HELD or row.trial_state != "leased" or row.number != row.attempt:
        return StateError(f"attempt {attempt_id} no longer holds its trial")
    if first > 0 and first - 1 not in stored:
        return StoreError(f"the journal of attempt {attempt_id} has no line {first - 1} before these")
    for number, line in enumerate(told.lines, first):
        if stored.get(number, line) != line:
            return StoreError(f"line {number} of the journal of attempt {attempt_id} is another one already")
    return None


def journals(store: Store, attempt_ids: Iterable[int]) -> Journals:
    """What pods have told of these attempts."""
    found = Journals()
    with store.reading() as connection:
        for batch in batches(sorted(set(attempt_ids))):
            of_attempt: dict[int, list[bytes]] = {}
            for attempt_id, line in connection.execute(_JOURNALS, {"ids": padded(batch)}):
                of_attempt.setdefault(attempt_id, []).append(bytes(line) + b"\n")
            for attempt_id, lines in of_attempt.items():
                found.read_lines(lines, f"journal of attempt {attempt_id}")
    return found


# Statements of the hot paths are built once: building one takes longer than running it.
_JOURNALED = (
    sa.select(
        attempt.c.id, attempt.c.owner, attempt.c.state, attempt.c.number,
        trial.c.state.label("trial_state"), trial.c.attempt,
    )
    .join(trial, trial.c.id == attempt.c.trial_id)
    .where(attempt.c.id.in_(AMONG))
    # As everyone locks them (grading/store/attempts.py).
    .order_by(attempt.c.id)
    .with_for_update(of=[attempt, trial])
)  # fmt: skip
_LINES = sa.select(journal_line.c.attempt_id, journal_line.c.number, journal_line.c.line).where(
    journal_line.c.attempt_id.in_(AMONG), journal_line.c.number >= sa.bindparam("from_")
)
_BEGINNING = attempt.update().where(attempt.c.id.in_(AMONG))
_BEGUN = _BEGINNING.values(state="running", started=sa.bindparam("at"))
_BEGUN_NOW = _BEGINNING.values(state="running", started=SERVER_NOW)
_JOURNALS = (
    sa.select(journal_line.c.attempt_id, journal_line.c.line)
    .where(journal_line.c.attempt_id.in_(AMONG))
    .order_by(journal_line.c.attempt_id, journal_line.c.number)
)
