"""Where attempts ran and what runs now: what a person asks of a matrix on a cluster."""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from grading.store.claiming import BOOT
from grading.store.opening import Store
from grading.store.tables import AttemptState, attempt, owner, trial


@dataclass(frozen=True, slots=True)
class PlacedAttempt:
    """An attempt, its trial, and the pod that held it."""

    condition: str
    case_id: str
    repetition: int
    number: int
    state: AttemptState
    reason: str | None
    pod: str | None
    node: str | None
    launch_id: str | None
    launch_index: int | None
    leased_at: int
    started: int | None
    ended: int | None
    after_consequential_call: bool


def attempts(
    store: Store, matrix_id: int, *, cell_ids: Collection[int] | None = None, limit: int = 1000
) -> list[PlacedAttempt]:
    """The attempts of some cells, or of all, in planned order, then by number."""
    asked = (
        sa.select(
            trial.c.condition, trial.c.case_id, trial.c.repetition, attempt.c.number, attempt.c.state,
            attempt.c.reason, owner.c.host, owner.c.boot, attempt.c.launch_id, attempt.c.launch_index,
            attempt.c.leased_at, attempt.c.started, attempt.c.ended, attempt.c.after_consequential_call,
        )
        .select_from(
            attempt.join(trial, trial.c.id == attempt.c.trial_id).outerjoin(owner, owner.c.id == attempt.c.owner)
        )
        .where(trial.c.matrix_id == matrix_id)
        .order_by(trial.c.sequence, attempt.c.number)
        .limit(limit)
    )  # fmt: skip
    if cell_ids is not None:
        asked = asked.where(trial.c.cell_id.in_(cell_ids))
    found = []
    with store.reading() as connection:
        for row in connection.execute(asked):
            condition, case_id, repetition, number, state, reason, host, boot, *rest = row
            pod, node = None, host
            if boot == BOOT and host is not None:
                node, _, pod = host.partition("/")
            found.append(PlacedAttempt(condition, case_id, repetition, number, state, reason, pod, node, *rest))
    return found


def running(store: Store, matrix_id: int) -> int:
    """How many attempts run at this moment, as far as they have told."""
    counted = (
        sa.select(sa.func.count())
        .select_from(attempt.join(trial, (trial.c.id == attempt.c.trial_id) & (trial.c.attempt == attempt.c.number)))
        .where(trial.c.matrix_id == matrix_id, trial.c.state == "leased", attempt.c.state == "running")
    )
    with store.reading() as connection:
        return int(connection.execute(counted).scalar_one())
