"""Delivering ledgers: one for each attempt, once; whatever else arrives is kept beside, never instead."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from grading.store.attempts import AMONG, batches, close_cells, find, padded, results_changed
from grading.store.grades import Grade, insert_grades
from grading.store.incidents import NewIncident, record_incidents
from grading.store.losing import Lost, lose_attempts
from grading.store.opening import Store
from grading.store.tables import attempt, journal_line, ledger, trial


@dataclass(frozen=True, slots=True)
class Delivery:
    """A validated ledger."""

    attempt_id: int
    secret: str | None
    """The attempt's secret as the sender gave it; None alone where the sender was identified otherwise."""
    content_hash: str
    ledger_hash: str
    document: bytes
    started: int
    ended: int


DeliverOutcome = Literal["accepted", "repeated", "conflicting", "fenced", "bad_secret", "unknown"]
"""``accepted``: the trial's evidence. ``repeated``: this very ledger is there already. ``conflicting``: another one is;
this one is kept as an incident. ``fenced``: kept as the attempt's, the trial is somebody else's. ``bad_secret`` and
``unknown``: kept as an incident alone."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Something that arrived as a ledger and is none."""

    attempt_id: int
    secret: str | None
    kind: Literal["ledger_malformed", "hash_mismatch", "replay_mismatch"]
    detail: str
    document: bytes | None


QuarantineOutcome = Literal["open", "missing", "kept", "bad_secret", "unknown"]
"""The trial is open again or missing; ``kept``: the attempt held no trial any more, the document alone was kept."""


def deliver(
    store: Store,
    deliveries: Iterable[Delivery],
    *,
    grades: Iterable[Grade] = (),
    graders: Collection[tuple[str, str]] = (),
) -> list[DeliverOutcome]:
    """Takes ledgers in, in order, and answers for each. All of them are durable when this returns.

    Args:
        grades: what graders said of these ledgers already; added for those that are accepted, in the same transaction.
        graders: every ``(grader, version)`` that a trial needs a grade of to be graded; without any it is delivered.
    """
    listed = list(deliveries)
    with store.transaction("deliver") as connection:
        found = find(connection, [one.attempt_id for one in listed])
        now = store.now(connection)
        outcomes: list[DeliverOutcome] = []
        incidents: list[NewIncident] = []
        kept: dict[int, Delivery] = {}
        evidence: list[Delivery] = []
        for one in listed:
            to = found.get(one.attempt_id)
            if to is None:
                incidents.append(NewIncident(None, None, "unknown_attempt", f"attempt {one.attempt_id}", one.document))
                outcomes.append("unknown")
                continue
            if not to.is_opened_by(one.secret):
                incidents.append(
                    NewIncident(
                        to.matrix_id, to.attempt_id, "bad_secret", "delivered with another secret", one.document
                    )
                )
                outcomes.append("bad_secret")
                continue
            stored = kept[to.attempt_id].ledger_hash if to.attempt_id in kept else to.ledger_hash
            if stored == one.ledger_hash:
                outcomes.append("repeated")
            elif stored is not None:
                detail = f"{one.ledger_hash} after {stored}"
                incidents.append(NewIncident(to.matrix_id, to.attempt_id, "conflicting_ledger", detail, one.document))
                outcomes.append("conflicting")
            else:
                kept[to.attempt_id] = one
                if to.holds_trial:
                    evidence.append(one)
                outcomes.append("accepted" if to.holds_trial else "fenced")
        if kept:
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
                    for one in kept.values()
                ],
            )
        if evidence:
            connection.execute(
                _DELIVERED,
                [{"of_attempt": one.attempt_id, "from_": one.started, "until": one.ended} for one in evidence],
            )
            for batch in batches([one.attempt_id for one in evidence]):
                connection.execute(_JOURNAL_DONE, {"ids": padded(batch)})
            given = _grades_of_new_ledgers(grades, {one.attempt_id for one in evidence})
            required = set(graders)
            graded = {to for to, said in given.items() if required and required <= {key for key, _ in said}}
            connection.execute(
                _EVIDENCED,
                [
                    {
                        "of_trial": found[one.attempt_id].trial_id,
                        "by_attempt": one.attempt_id,
                        "now": "graded" if one.attempt_id in graded else "delivered",
                    }
                    for one in evidence
                ],
            )
            insert_grades(connection, now, [one for said in given.values() for _, one in said])
            if given:
                results_changed(connection, {found[attempt_id].matrix_id for attempt_id in given})
            if graded:
                close_cells(connection, {found[attempt_id].cell_id for attempt_id in graded})
        record_incidents(connection, now, incidents)
        return outcomes


def quarantine(store: Store, items: Iterable[Quarantined]) -> list[QuarantineOutcome]:
    """Keeps what is no ledger as an incident, and gives up the attempt that it came from."""
    listed = list(items)
    with store.transaction("quarantine") as connection:
        found = find(connection, [one.attempt_id for one in listed])
        now = store.now(connection)
        outcomes: list[QuarantineOutcome] = []
        incidents: list[NewIncident] = []
        for one in listed:
            of = found.get(one.attempt_id)
            if of is None:
                detail = f"attempt {one.attempt_id}: {one.detail}"
                incidents.append(NewIncident(None, None, "unknown_attempt", detail, one.document))
                outcomes.append("unknown")
            elif not of.is_opened_by(one.secret):
                incidents.append(NewIncident(of.matrix_id, of.attempt_id, "bad_secret", one.detail, one.document))
                outcomes.append("bad_secret")
            else:
                incidents.append(NewIncident(of.matrix_id, of.attempt_id, one.kind, one.detail, one.document))
                outcomes.append("kept")
        record_incidents(connection, now, incidents)
        losing = [place for place, outcome in enumerate(outcomes) if outcome == "kept"]
        lost = lose_attempts(
            store, connection, [Lost(listed[place].attempt_id, listed[place].kind) for place in losing]
        )
        for place, after in zip(losing, lost, strict=True):
            if after in ("open", "missing"):
                outcomes[place] = "open" if after == "open" else "missing"
        return outcomes


_DELIVERED = (
    attempt.update()
    .where(attempt.c.id == sa.bindparam("of_attempt"))
    .values(state="delivered", started=sa.bindparam("from_"), ended=sa.bindparam("until"))
)
_JOURNAL_DONE = journal_line.delete().where(journal_line.c.attempt_id.in_(AMONG))
_EVIDENCED = (
    trial.update()
    .where(trial.c.id == sa.bindparam("of_trial"))
    .values(state=sa.bindparam("now"), evidence_attempt_id=sa.bindparam("by_attempt"))
)


def _grades_of_new_ledgers(
    grades: Iterable[Grade], attempt_ids: set[int]
) -> dict[int, list[tuple[tuple[str, str], Grade]]]:
    """By attempt, each once, the first: that of the ledger that is kept where two of one attempt came together.

    A ledger that was not there before has no grade that these could contradict.
    """
    found: dict[int, list[tuple[tuple[str, str], Grade]]] = {}
    for one in grades:
        key = (one.grader, one.version)
        said = found.setdefault(one.attempt_id, []) if one.attempt_id in attempt_ids else None
        if said is not None and key not in (earlier for earlier, _ in said):
            said.append((key, one))
    return found
