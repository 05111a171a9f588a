"""Judges' calls and judgments: only ever added. What a judge said is kept beside what became of it.

A ledger that was judged is not judged again by the same judge under the same qualification. One that was refused before
the call, or is pending, may be: its latest row counts.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from grading.store.attempts import batches, find, results_changed
from grading.store.errors import NotFound, StateError, StoreError
from grading.store.opening import Store
from grading.store.tables import (
    CallState,
    JudgeVerdict,
    JudgmentState,
    judge_call,
    judge_configuration,
    judge_request,
    judgment,
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made, whatever came of it."""

    call: str
    matrix_id: int
    request_hash: str
    configuration_hash: str
    vote: int
    state: CallState
    document: bytes
    """The vote as canonical JSON; of an unavailable judge, the class of the error and the cost."""


@dataclass(frozen=True, slots=True)
class StoredJudgment:
    """What became of judging one attempt's ledger."""

    attempt_id: int
    configuration_hash: str
    qualification: str
    state: JudgmentState
    reason: str | None
    verdict: JudgeVerdict | None
    document: bytes | None


JudgmentOutcome = Literal["added", "repeated"]
"""``repeated``: it was judged before, or nothing is new. What is there stands."""


def register_judge(store: Store, configuration_hash: str, document: bytes) -> None:
    """Keeps a judge's configuration, which calls and judgments refer to."""
    with store.reading() as connection:
        if _known(connection, judge_configuration, configuration_hash):
            return
    with store.transaction("register_judge") as connection:
        _keep(store, connection, judge_configuration, configuration_hash, document)


def add_call(store: Store, call: Call, request: bytes) -> None:
    """Keeps a call and what the judge was shown, before anything is made of the answer: money paid is never lost.

    Raises:
        StoreError: another request is stored under its hash.
    """
    with store.transaction("judge_call") as connection:
        _keep(store, connection, judge_request, call.request_hash, request)
        connection.execute(
            judge_call.insert(),
            {
                "call": call.call,
                "matrix_id": call.matrix_id,
                "request_hash": call.request_hash,
                "configuration_hash": call.configuration_hash,
                "vote": call.vote,
                "state": call.state,
                "document": call.document,
                "created": store.now(connection),
            },
        )


def answered(store: Store, request_hash: str, configuration_hash: str) -> dict[int, Call]:
    """By vote: the first answer that this judge ever gave to this request, in whatever matrix."""
    asked = sa.select(*_CALL).where(
        judge_call.c.request_hash == request_hash,
        judge_call.c.configuration_hash == configuration_hash,
        judge_call.c.state == "answered",
    )
    found: dict[int, Call] = {}
    with store.reading() as connection:
        for row in connection.execute(asked.order_by(judge_call.c.id)):
            found.setdefault(row.vote, Call(*row))
    return found


def calls(store: Store, matrix_id: int, configuration_hash: str | None = None) -> list[Call]:
    """Every call that was made for a matrix, the first one first."""
    asked = sa.select(*_CALL).where(judge_call.c.matrix_id == matrix_id).order_by(judge_call.c.id)
    if configuration_hash is not None:
        asked = asked.where(judge_call.c.configuration_hash == configuration_hash)
    with store.reading() as connection:
        return [Call(*row) for row in connection.execute(asked)]


def add_judgments(
    store: Store, rows: Iterable[StoredJudgment], requests: Iterable[tuple[str, bytes]] = ()
) -> list[JudgmentOutcome]:
    """Adds judgments, and the requests (hash, document) that they are on.

    Raises:
        NotFound: for an attempt that does not exist.
        StateError: for one that is no trial's evidence.
    """
    listed = list(rows)
    with store.transaction("judge") as connection:
        for name, document in sorted(requests):
            _keep(store, connection, judge_request, name, document)
        found = find(connection, [one.attempt_id for one in listed])
        for one in listed:
            if one.attempt_id not in found:
                raise NotFound(f"the store has no attempt {one.attempt_id}")
            if found[one.attempt_id].evidence_attempt_id != one.attempt_id:
                raise StateError(f"attempt {one.attempt_id} is no trial's evidence: there is nothing to judge")
        known = _latest(connection, list(found))
        now = store.now(connection)
        outcomes: list[JudgmentOutcome] = []
        added: list[StoredJudgment] = []
        for one in listed:
            key = (one.attempt_id, one.configuration_hash, one.qualification)
            earlier = known.get(key)
            settled = earlier is not None and earlier.state == "judged"
            if settled or (earlier is not None and (earlier.state, earlier.reason) == (one.state, one.reason)):
                outcomes.append("repeated")
                continue
            known[key] = one
            added.append(one)
            outcomes.append("added")
        if added:
            connection.execute(judgment.insert(), [_row(one, now) for one in added])
            results_changed(connection, {found[one.attempt_id].matrix_id for one in added})
        return outcomes


def latest(
    store: Store, attempt_ids: Collection[int], configuration_hash: str, qualification: str | None = None
) -> dict[int, StoredJudgment]:
    """By attempt: the latest that this judge's judging came to, under that qualification or any."""
    found: dict[int, StoredJudgment] = {}
    asked = sa.select(*_JUDGMENT).where(judgment.c.configuration_hash == configuration_hash)
    if qualification is not None:
        asked = asked.where(judgment.c.qualification == qualification)
    with store.reading() as connection:
        for batch in batches(sorted(set(attempt_ids))):
            rows = connection.execute(asked.where(judgment.c.attempt_id.in_(batch)).order_by(judgment.c.id))
            found.update((row.attempt_id, StoredJudgment(*row)) for row in rows)
    return found


def history(store: Store, attempt_id: int) -> list[StoredJudgment]:
    """Everything that judging an attempt's ledger ever came to, by every judge, the first one first."""
    asked = sa.select(*_JUDGMENT).where(judgment.c.attempt_id == attempt_id).order_by(judgment.c.id)
    with store.reading() as connection:
        return [StoredJudgment(*row) for row in connection.execute(asked)]


def request_document(store: Store, request_hash: str) -> bytes:
    """What a judge was shown. Raises NotFound where there is none."""
    return _document(store, judge_request, request_hash, "request")


_CALL = (
    judge_call.c.call, judge_call.c.matrix_id, judge_call.c.request_hash, judge_call.c.configuration_hash,
    judge_call.c.vote, judge_call.c.state, judge_call.c.document,
)  # fmt: skip
_JUDGMENT = (
    judgment.c.attempt_id, judgment.c.configuration_hash, judgment.c.qualification, judgment.c.state,
    judgment.c.reason, judgment.c.verdict, judgment.c.document,
)  # fmt: skip


def _latest(connection: sa.Connection, attempt_ids: list[int]) -> dict[tuple[int, str, str], StoredJudgment]:
    """By attempt, judge and qualification; once judged, that one."""
    found: dict[tuple[int, str, str], StoredJudgment] = {}
    for batch in batches(attempt_ids):
        asked = sa.select(*_JUDGMENT).where(judgment.c.attempt_id.in_(batch)).order_by(judgment.c.id)
        for row in connection.execute(asked):
            one = StoredJudgment(*row)
            key = (one.attempt_id, one.configuration_hash, one.qualification)
            if key not in found or found[key].state != "judged":
                found[key] = one
    return found


def _row(one: StoredJudgment, now: int) -> dict[str, object]:
    return {
        "attempt_id": one.attempt_id,
        "configuration_hash": one.configuration_hash,
        "qualification": one.qualification,
        "state": one.state,
        "reason": one.reason,
        "verdict": one.verdict,
        "document": one.document,
        "created": now,
    }


def _keep(store: Store, connection: sa.Connection, table: sa.Table, name: str, document: bytes) -> None:
    new = store.insert(table).on_conflict_do_nothing(index_elements=["hash"])
    connection.execute(new, {"hash": name, "document": document})
    stored = connection.execute(sa.select(table.c.document).where(table.c.hash == name)).scalar_one()
    if bytes(stored) != document:
        raise StoreError(f"{table.name} {name} is stored with another document")


def _known(connection: sa.Connection, table: sa.Table, name: str) -> bool:
    return connection.execute(sa.select(table.c.hash).where(table.c.hash == name)).first() is not None


def _document(store: Store, table: sa.Table, name: str, what: str) -> bytes:
    with store.reading() as connection:
        found = connection.execute(sa.select(table.c.document).where(table.c.hash == name)).scalar_one_or_none()
    if found is None:
        raise NotFound(f"the store has no {what} {name}")
    return bytes(found)
