"""Pods that ended before they asked for a trial: what they were lost to is counted like any other attempt.

Without it a pod that always ends too early would be replaced for ever. With it the attempts of a trial tell all that
happened to it, and the one table of allowances (losing.py) bounds it across the generations of a cell.
"""

from collections.abc import Collection
from typing import Literal

import sqlalchemy as sa

from grading.store.attempts import batches
from grading.store.claiming import Pod
from grading.store.errors import NotFound
from grading.store.losing import Lost, lose_attempts
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.tables import attempt, cell, launch, launch_trial, owner, trial

ChargeOutcome = Literal["claimed", "nothing", "open", "missing"]
"""``claimed``: the pod had asked, its attempts speak for it. ``nothing``: there is no open trial to charge, or the
matrix does not run. ``open``, ``missing``: what became of the trial, as when an attempt is lost."""


def charge(store: Store, launch_id: str, index: int | None, pod: Pod, reason: str, why: str) -> ChargeOutcome:
    """Counts a pod as a lost attempt at the first open trial of its index, unless it ever held one.

    Where that was the trial's last attempt, its cell fails: pods of it do not get as far as to ask.

    Args:
        index: None where not even a pod is known, as when a Job was deleted at once: the launch's first open trial is
            then charged, unless any pod of it ever held one. ``pod`` stands for the Job in that case.
        why: what the cell fails with.

    Raises:
        NotFound: for a launch that does not exist.
    """
    with store.transaction("charge_pod") as connection:
        where = connection.execute(sa.select(launch.c.matrix_id).where(launch.c.id == launch_id)).first()
        if where is None:
            raise NotFound(f"the store has no launch {launch_id!r}")
        # Exclusively: of two controllers that find the same pod, one charges it and the other sees that it did.
        state = locked_state(connection, where.matrix_id)
        by = attempt.c.owner == pod.uid
        had = by if index is not None else by | (attempt.c.launch_id == launch_id)
        if connection.execute(sa.select(attempt.c.id).where(had).limit(1)).first() is not None:
            return "claimed"
        if state != "running":
            return "nothing"
        asked = (
            sa.select(trial.c.id, trial.c.attempt, trial.c.cell_id, launch_trial.c.launch_index)
            .select_from(launch_trial)
            .join(trial, trial.c.id == launch_trial.c.trial_id)
            .join(launch, launch.c.id == launch_trial.c.launch_id)
            .join(cell, cell.c.id == launch.c.cell_id)
            .where(
                launch.c.id == launch_id, launch.c.state != "ended", cell.c.state == "open",
                trial.c.state == "open", ~launch_trial.c.released,
            )
            .order_by(launch_trial.c.launch_index, launch_trial.c.position)
            .limit(1)
            .with_for_update(of=trial)
        )  # fmt: skip
        if index is not None:
            asked = asked.where(launch_trial.c.launch_index == index)
        found = connection.execute(asked).first()
        if found is None:
            return "nothing"
        now = store.now(connection)
        new = store.insert(owner).on_conflict_do_nothing(index_elements=["id"])
        connection.execute(new, pod.as_owner(now))
        connection.execute(
            trial.update().where(trial.c.id == found.id).values(state="leased", attempt=found.attempt + 1)
        )
        attempt_id = connection.execute(
            attempt.insert().returning(attempt.c.id),
            {
                "trial_id": found.id,
                "number": found.attempt + 1,
                "state": "leased",
                "owner": pod.uid,
                "leased_at": now,
                "after_consequential_call": False,
                "launch_id": launch_id,
                "launch_index": found.launch_index,
            },
        ).scalar_one()
        if lose_attempts(store, connection, [Lost(attempt_id, reason)])[0] != "missing":
            return "open"
        connection.execute(cell.update().where(cell.c.id == found.cell_id).values(state="failed", reason=why))
        of_cell = (trial.c.cell_id == found.cell_id) & (trial.c.state == "open")
        connection.execute(trial.update().where(of_cell).values(state="missing"))
        return "missing"


def asked(store: Store, pod_uids: Collection[str]) -> set[str]:
    """The pods, of these, that ever held an attempt, or were charged with one."""
    found: set[str] = set()
    with store.reading() as connection:
        for batch in batches(sorted(set(pod_uids))):
            which = sa.select(attempt.c.owner).where(attempt.c.owner.in_(batch)).distinct()
            found.update(connection.execute(which).scalars())
    return found
