"""Launches: a Job for each cell, stored before it is created, with the trials that each of its indexes runs.

A launch has a generation of its cell and, for each index of its Job, the trials that this index runs one after the
other. Job status never finishes a trial; what the pods of a launch do is in :mod:`grading.store.claiming`.
"""

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from grading.store.attempts import batches
from grading.store.errors import NotFound, StateError
from grading.store.incidents import NewIncident, record_incidents
from grading.store.inserting import insert_all
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.tables import LaunchState, cell, launch, launch_trial, matrix, placement, trial


@dataclass(frozen=True, slots=True)
class Launch:
    """A Job that is to be created, exists, or is done with."""

    id: str
    matrix_id: int
    manifest_hash: str
    cell_id: int
    case_id: str
    condition: str
    generation: int
    job: str
    """The Job's name."""
    job_uid: str | None
    """None until the Job was seen."""
    completions: int
    """The Job's indexes: 0 up to this."""
    state: LaunchState
    reason: str | None
    """Why it ended, where that is not that its trials are done."""
    deleted: bool
    waiting: str | None
    """Why its pods do not run yet."""
    created: int
    ended: int | None


def plan(store: Store, matrix_id: int, cell_id: int, *, limit: int | None = None) -> Launch | None:
    """A further generation for the open trials of a cell that no other launch still has; None where there are none.

    None also where the matrix does not run or the cell is not open.

    Args:
        limit: indexes of the Job at most, each with the placement's ``trials_per_pod``.

    Raises:
        NotFound: for a matrix, or a cell of it, that does not exist.
        StateError: for a matrix that was never placed on a cluster.
    """
    if limit is not None and limit < 1:
        return None
    with store.transaction("plan_launch") as connection:
        if locked_state(connection, matrix_id) != "running":
            return None
        found = connection.execute(_PLANNED, {"of_matrix": matrix_id, "of_cell": cell_id}).one()
        if found.cell_state is None:
            raise NotFound(f"matrix {matrix_id} has no cell {cell_id}")
        per_pod = found.trials_per_pod
        if per_pod is None:
            raise StateError(f"matrix {matrix_id} was not placed on a cluster")
        if found.cell_state != "open":
            return None
        free = connection.execute(_FREE, {"of_cell": cell_id, "at_most": limit * per_pod if limit else 2**31 - 1}).all()
        if not free:
            return None
        generation = (found.latest or 0) + 1
        new = Launch(
            id=uuid.uuid4().hex,
            matrix_id=matrix_id,
            manifest_hash=found.manifest_hash,
            cell_id=cell_id,
            case_id=found.case_id,
            condition=found.condition,
            generation=generation,
            job=job_name(found.manifest_hash, cell_id, generation),
            job_uid=None,
            completions=-(-len(free) // per_pod),
            state="planned",
            reason=None,
            deleted=False,
            waiting=None,
            created=store.now(connection),
            ended=None,
        )
        connection.execute(_NEW, {name: getattr(new, name) for name in _NEW_COLUMNS})
        insert_all(
            connection,
            _NEW_TRIALS,
            [
                {
                    "launch_id": new.id,
                    "launch_index": place // per_pod,
                    "position": place % per_pod,
                    "trial_id": row.id,
                    "released": False,
                }
                for place, row in enumerate(free)
            ],
        )
        return new


def plannable(store: Store, matrix_id: int) -> dict[int, int]:
    """By cell, in planned order: how many trials :func:`plan` would give a further generation."""
    asked = (
        sa.select(trial.c.cell_id, sa.func.count())
        .join(cell, cell.c.id == trial.c.cell_id)
        .where(trial.c.matrix_id == matrix_id, trial.c.state == "open", cell.c.state == "open", ~_HAD)
        .group_by(trial.c.cell_id)
        .order_by(sa.func.min(trial.c.sequence))
    )
    with store.reading() as connection:
        return {row[0]: row[1] for row in connection.execute(asked)}


def name_taken(store: Store, launch_id: str, detail: str) -> bool:
    """Ends a launch whose Job's name somebody else's Job has, and keeps that as an incident. False where it had ended.

    Raises:
        NotFound: for a launch that does not exist.
    """
    with store.transaction("incident") as connection:
        if _locked(connection, launch_id).state == "ended":
            return False
        now = store.now(connection)
        matrix_id = connection.execute(sa.select(launch.c.matrix_id).where(launch.c.id == launch_id)).scalar_one()
        record_incidents(connection, now, [NewIncident(matrix_id, None, "job_name_taken", detail)])
        connection.execute(
            launch.update()
            .where(launch.c.id == launch_id)
            .values(state="ended", reason="job_name_taken", waiting=None, ended=now, deleted=True)
        )
        return True


def job_name(manifest_hash: str, cell_id: int, generation: int) -> str:
    """A DNS label, with room for an index and a pod's suffix behind it."""
    return f"cw-{manifest_hash.removeprefix('sha256:')[:10]}-{cell_id}-g{generation}"


def created(store: Store, launch_id: str, job_uid: str) -> None:
    """The Job exists. The same again is accepted quietly.

    Raises:
        NotFound: for a launch that does not exist.
        StateError: where the launch has ended, or was created as another Job: one of that name that is not ours.
    """
    with store.transaction("launch_created") as connection:
        if connection.execute(_CREATED, {"of_launch": launch_id, "uid": job_uid}).rowcount:
            return
        found = _locked(connection, launch_id)
        if found.job_uid == job_uid:
            return
        if found.job_uid is not None:
            raise StateError(f"launch {launch_id} was created as Job {found.job_uid}: {job_uid} is another one")
        raise StateError(f"launch {launch_id} has ended: Job {job_uid} runs nothing of it")


def waiting(store: Store, launch_id: str, why: str | None) -> None:
    """Why the launch's pods do not run, for who watches it; None once they do.

    Raises:
        NotFound: for a launch that does not exist.
    """
    with store.transaction("launch_waiting") as connection:
        _locked(connection, launch_id)
        connection.execute(launch.update().where(launch.c.id == launch_id).values(waiting=why))


def release(store: Store, launch_id: str, index: int) -> int:
    """Takes the trials of an index from its launch: a further generation may run those that are open.

    The index's pod is told to stop when it next asks; what it holds until then it may still deliver.

    Returns:
        How many of its trials were not released before.

    Raises:
        NotFound: for a launch that does not exist or has no such index.
    """
    with store.transaction("release_index") as connection:
        found = _locked(connection, launch_id)
        if not 0 <= index < found.completions:
            raise NotFound(f"launch {launch_id} has no index {index}, only {found.completions}")
        of_index = (launch_trial.c.launch_id == launch_id) & (launch_trial.c.launch_index == index)
        return connection.execute(
            launch_trial.update().where(of_index, ~launch_trial.c.released).values(released=True)
        ).rowcount


def end(store: Store, launch_id: str, reason: str | None = None) -> bool:
    """Ends a launch: its pods claim nothing more, and a further generation may run what is open. False where it had.

    What its pods still hold they may deliver; whoever finds them gone settles it all the same.

    Raises:
        NotFound: for a launch that does not exist.
    """
    with store.transaction("end_launch") as connection:
        if _locked(connection, launch_id).state == "ended":
            return False
        connection.execute(_ENDED, {"of_launch": launch_id, "why": reason, "at": store.now(connection)})
        return True


def job_deleted(store: Store, launch_id: str) -> None:
    """The launch's Job is gone from the cluster, or never came to be. The same again is accepted quietly.

    Raises:
        NotFound: for a launch that does not exist.
        StateError: for one that has not ended: its Job would be created again.
    """
    with store.transaction("job_deleted") as connection:
        if _locked(connection, launch_id).state != "ended":
            raise StateError(f"launch {launch_id} has not ended: a Job that is gone before is to be settled and ended")
        connection.execute(launch.update().where(launch.c.id == launch_id).values(deleted=True))


def unfinished(store: Store) -> list[Launch]:
    """The launches that have not ended or whose Job may still be there, the oldest first."""
    asked = _LAUNCHES.where(~launch.c.deleted).order_by(launch.c.created, launch.c.id)
    with store.reading() as connection:
        return [_as_launch(row) for row in connection.execute(asked)]


def of_matrix(store: Store, matrix_id: int) -> list[Launch]:
    """Every launch of a matrix, the oldest first."""
    asked = _LAUNCHES.where(launch.c.matrix_id == matrix_id).order_by(launch.c.created, launch.c.id)
    with store.reading() as connection:
        return [_as_launch(row) for row in connection.execute(asked)]


def find(store: Store, launch_id: str) -> Launch:
    """Raises NotFound where there is none of that id."""
    with store.reading() as connection:
        return _launch(connection, launch_id)


def trials(store: Store, launch_id: str) -> dict[int, tuple[int, ...]]:
    """By index: the trials that are not released, in the order in which the pod runs them."""
    asked = (
        sa.select(launch_trial.c.launch_index, launch_trial.c.trial_id)
        .where(launch_trial.c.launch_id == launch_id, ~launch_trial.c.released)
        .order_by(launch_trial.c.launch_index, launch_trial.c.position)
    )
    found: dict[int, tuple[int, ...]] = {}
    with store.reading() as connection:
        for index, trial_id in connection.execute(asked):
            found[index] = (*found.get(index, ()), trial_id)
    return found


def unsettled_indexes(store: Store, launch_ids: Collection[str]) -> dict[str, frozenset[int]]:
    """By launch: the indexes that have a trial, not released, which is still open or leased."""
    found: dict[str, set[int]] = {one: set() for one in launch_ids}
    with store.reading() as connection:
        for batch in batches(sorted(found)):
            asked = (
                sa.select(launch_trial.c.launch_id, launch_trial.c.launch_index)
                .join(trial, trial.c.id == launch_trial.c.trial_id)
                .where(
                    launch_trial.c.launch_id.in_(batch),
                    ~launch_trial.c.released,
                    trial.c.state.in_(("open", "leased")),
                )
                .distinct()
            )
            for launch_id, index in connection.execute(asked):
                found[launch_id].add(index)
    return {launch_id: frozenset(indexes) for launch_id, indexes in found.items()}


_LAUNCHES = (
    sa.select(
        launch.c.id, launch.c.matrix_id, matrix.c.manifest_hash, launch.c.cell_id, cell.c.case_id, cell.c.condition,
        launch.c.generation, launch.c.job, launch.c.job_uid, launch.c.completions, launch.c.state, launch.c.reason,
        launch.c.deleted, launch.c.waiting, launch.c.created, launch.c.ended,
    )
    .join(matrix, matrix.c.id == launch.c.matrix_id)
    .join(cell, cell.c.id == launch.c.cell_id)
)  # fmt: skip

# Statements of the hot paths are built once: building one takes longer than running it.
_THIS = launch.c.id == sa.bindparam("of_launch")
_ONE = _LAUNCHES.where(_THIS)
_LOCKED = sa.select(launch.c.state, launch.c.job_uid, launch.c.completions).where(_THIS).with_for_update()
_CREATED = (
    launch.update()
    .where(_THIS, launch.c.state == "planned", launch.c.job_uid.is_(None))
    .values(state="created", job_uid=sa.bindparam("uid"))
)
_ENDED = (
    launch.update()
    .where(_THIS)
    .values(state="ended", reason=sa.bindparam("why"), waiting=None, ended=sa.bindparam("at"))
)
_PLANNED = (
    sa.select(
        matrix.c.manifest_hash, placement.c.trials_per_pod,
        cell.c.state.label("cell_state"), cell.c.case_id, cell.c.condition,
        sa.select(sa.func.max(launch.c.generation))
        .where(launch.c.cell_id == sa.bindparam("of_cell"))
        .scalar_subquery()
        .label("latest"),
    )
    .select_from(
        matrix.outerjoin(placement, placement.c.matrix_id == matrix.c.id).outerjoin(
            cell, (cell.c.matrix_id == matrix.c.id) & (cell.c.id == sa.bindparam("of_cell"))
        )
    )
    .where(matrix.c.id == sa.bindparam("of_matrix"))
)  # fmt: skip
_NEW_COLUMNS = (
    "id", "matrix_id", "cell_id", "generation", "job", "completions", "state", "deleted", "created",
)  # fmt: skip
_NEW = launch.insert()
_NEW_TRIALS = launch_trial.insert()
_HAD = (
    sa.exists()
    .where(
        launch_trial.c.trial_id == trial.c.id,
        ~launch_trial.c.released,
        launch.c.id == launch_trial.c.launch_id,
        launch.c.state != "ended",
    )
    .correlate(trial)
)
_FREE = (
    sa.select(trial.c.id)
    .where(trial.c.cell_id == sa.bindparam("of_cell"), trial.c.state == "open", ~_HAD)
    .order_by(trial.c.sequence)
    .limit(sa.bindparam("at_most", type_=sa.Integer))
)


def _launch(connection: sa.Connection, launch_id: str) -> Launch:
    row = connection.execute(_ONE, {"of_launch": launch_id}).first()
    if row is None:
        raise NotFound(f"the store has no launch {launch_id!r}")
    return _as_launch(row)


def _as_launch(row: Any) -> Launch:
    return Launch(*row)


def _locked(connection: sa.Connection, launch_id: str) -> Any:
    row = connection.execute(_LOCKED, {"of_launch": launch_id}).first()
    if row is None:
        raise NotFound(f"the store has no launch {launch_id!r}")
    return row
