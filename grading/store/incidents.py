"""Incidents: what was refused and is kept, so that somebody can look at it."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import sqlalchemy as sa

from grading.store.tables import incident

IncidentKind = Literal[
    "conflicting_ledger",
    "bad_secret",
    "unknown_attempt",
    "ledger_malformed",
    "hash_mismatch",
    "replay_mismatch",
    "unknown_loss",
    "conflicting_grade",
    "job_name_taken",
]


class NewIncident(NamedTuple):
    matrix_id: int | None
    attempt_id: int | None
    kind: IncidentKind
    detail: str
    document: bytes | None = None


def record_incidents(connection: sa.Connection, now: int, incidents: Iterable[NewIncident]) -> None:
    rows = [{**one._asdict(), "created": now} for one in incidents]
    if rows:
        connection.execute(incident.insert(), rows)
