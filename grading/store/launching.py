"""Launches: a Job for each cell, stored before it is created, and the trials that its pods claim by their index.

A launch has a generation of its cell and, for each index of its Job, the trials that this index runs one after the
other. Job status never finishes a trial; a pod holds one from :func:`claim` until its ledger is delivered or somebody
settles it by what :func:`journals` tells.
"""

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from grading.store.attempts import AMONG, batches
from grading.store.errors import NotFound, StateError, StoreError
from grading.store.incidents import NewIncident, record_incidents
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.tables import (
    HELD,
    AttemptState,
    LaunchState,
    attempt,
    cell,
    journal_line,
    launch,
    launch_trial,
    literal_state,
    matrix,
    owner,
    placement,
    trial,
)
from simulator.journal import Journals

BOOT = "kubernetes"
"""What a pod has in place of a machine's boot: no process anywhere can tell by it that the pod is dead."""


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


@dataclass(frozen=True, slots=True)
class Pod:
    uid: str
    name: str
    node: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A trial that a pod holds, by an attempt at it."""

    attempt_id: int
    number: int
    matrix_id: int
    manifest_hash: str
    cell_id: int
    case_id: str
    condition: str
    repetition: int
    assignment_hash: str
    more: bool
    """Whether its index has other trials to run."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The pod has nothing (more) to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class Settling:
    """The index's only trials left are those that a former pod holds: they are looked at first."""


@dataclass(frozen=True, slots=True)
class Held:
    """An attempt that a pod holds, or held."""

    attempt_id: int
    number: int
    trial_id: int
    matrix_id: int
    manifest_hash: str
    cell_id: int
    case_id: str
    condition: str
    repetition: int
    assignment_hash: str
    launch_id: str
    launch_index: int
    pod_uid: str
    pod_name: str
    node: str
    state: AttemptState
    """``leased`` until the pod has told that it began."""
    leased_at: int
    lease_expires: int | None


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
        asked = sa.select(cell.c.state).where(cell.c.id == cell_id, cell.c.matrix_id == matrix_id)
        state = connection.execute(asked).scalar_one_or_none()
        if state is None:
            raise NotFound(f"matrix {matrix_id} has no cell {cell_id}")
        per_pod = connection.execute(
            sa.select(placement.c.trials_per_pod).where(placement.c.matrix_id == matrix_id)
        ).scalar_one_or_none()
        if per_pod is None:
            raise StateError(f"matrix {matrix_id} was not placed on a cluster")
        if state != "open":
            return None
        free = connection.execute(_FREE, {"of_cell": cell_id, "at_most": limit * per_pod if limit else 2**31 - 1}).all()
        if not free:
            return None
        latest = sa.select(sa.func.max(launch.c.generation)).where(launch.c.cell_id == cell_id)
        generation = (connection.execute(latest).scalar_one() or 0) + 1
        hashed = connection.execute(sa.select(matrix.c.manifest_hash).where(matrix.c.id == matrix_id)).scalar_one()
        new = uuid.uuid4().hex
        connection.execute(
            launch.insert().values(
                id=new,
                matrix_id=matrix_id,
                cell_id=cell_id,
                generation=generation,
                job=job_name(hashed, cell_id, generation),
                completions=-(-len(free) // per_pod),
                state="planned",
                deleted=False,
                created=store.now(connection),
            )
        )
        connection.execute(
            launch_trial.insert(),
            [
                {
                    "launch_id": new,
                    "launch_index": place // per_pod,
                    "position": place % per_pod,
                    "trial_id": row.id,
                    "released": False,
                }
                for place, row in enumerate(free)
            ],
        )
        return _launch(connection, new)


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
        found = _locked(connection, launch_id)
        if found.job_uid == job_uid:
            return
        if found.job_uid is not None:
            raise StateError(f"launch {launch_id} was created as Job {found.job_uid}: {job_uid} is another one")
        if found.state == "ended":
            raise StateError(f"launch {launch_id} has ended: Job {job_uid} runs nothing of it")
        connection.execute(launch.update().where(launch.c.id == launch_id).values(state="created", job_uid=job_uid))


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
        connection.execute(
            launch.update()
            .where(launch.c.id == launch_id)
            .values(state="ended", reason=reason, waiting=None, ended=store.now(connection))
        )
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


def claim(store: Store, launch_id: str, index: int, pod: Pod, *, lease_seconds: float) -> PodClaim | Stop | Settling:
    """The next trial of an index for its pod; a pod that asks again before it began is handed the same again.

    Raises:
        NotFound: for a launch that does not exist or has no such index.
        StoreError: for a lease of no time.
    """
    if lease_seconds <= 0:
        raise StoreError(f"cannot lease a trial for {lease_seconds} seconds: it must be above zero")
    with store.transaction("claim_index") as connection:
        found = connection.execute(_LAUNCH_AND_MATRIX, {"of_launch": launch_id}).first()
        if found is None:
            raise NotFound(f"the store has no launch {launch_id!r}")
        if not 0 <= index < found.completions:
            raise NotFound(f"launch {launch_id} has no index {index}, only {found.completions}")
        of_index = {"of_launch": launch_id, "of_index": index}
        if not store.is_sqlite:
            # One pod of an index at a time, and none while the index is released.
            connection.execute(_LOCK_INDEX, of_index).all()
        rows = connection.execute(_TRIALS_OF_INDEX, of_index).all()
        in_index = [row for row in rows if row.attempt_state in HELD and row.trial_state == "leased"]
        for row in in_index:
            if (row.owner, row.launch_id, row.launch_index) == (pod.uid, launch_id, index):
                if row.attempt_state != "leased":
                    # Its recorder was started again within the pod. What the first one did is its attempt's end.
                    return Settling()
                if found.matrix_state == "cancelled":
                    return Stop("the matrix is cancelled")
                return _pod_claim(found, row, row.attempt_id, row.attempt, _is_left(rows, row.id))
        if found.matrix_state != "running":
            return Stop(f"the matrix is {found.matrix_state}")
        if found.state == "ended":
            return Stop("the launch has ended")
        if not rows:
            return Stop("the index was given up")
        if found.cell_state != "open":
            return Stop(f"the cell is {found.cell_state}")
        now = store.now(connection)
        for row in rows:
            if row.trial_state != "open":
                continue
            number = connection.execute(_TAKE, {"of_trial": row.id}).scalar_one_or_none()
            if number is None:  # a runner outside of the cluster was faster
                continue
            _enrol(store, connection, pod, now)
            values = {
                "trial_id": row.id,
                "number": number,
                "state": "leased",
                "owner": pod.uid,
                "lease_expires": now + round(lease_seconds * 1_000_000),
                "leased_at": now,
                "after_consequential_call": False,
                "launch_id": launch_id,
                "launch_index": index,
            }
            attempt_id = connection.execute(_ATTEMPTED, values).scalar_one()
            return _pod_claim(found, row, attempt_id, number, _is_left(rows, row.id))
        if any(row.launch_id == launch_id and row.launch_index == index for row in in_index):
            return Settling()
        return Stop("every trial of the index is done, or somebody else's")


def journal(store: Store, attempt_id: int, pod_uid: str, first: int, lines: Iterable[bytes]) -> None:
    """Keeps lines of an attempt's journal, the first of them being its line ``first``.

    The attempt has begun with the first lines of it. Those that are there already are accepted quietly.

    Raises:
        StateError: the attempt is not, or no longer, the pod's: what it does is in vain.
        StoreError: a gap before these lines, or other lines than those that are there.
    """
    new = dict(enumerate(lines, first))
    with store.transaction("journal_lines") as connection:
        row = connection.execute(_JOURNALED, {"of_attempt": attempt_id}).first()
        if row is None or row.owner != pod_uid:
            raise StateError(f"attempt {attempt_id} is not this pod's")
        if row.state not in HELD or row.trial_state != "leased" or row.number != row.attempt:
            raise StateError(f"attempt {attempt_id} no longer holds its trial")
        stored = {
            number: bytes(line)
            for number, line in connection.execute(_LINES, {"of_attempt": attempt_id, "from_": max(0, first - 1)})
        }
        if first > 0 and first - 1 not in stored:
            raise StoreError(f"the journal of attempt {attempt_id} has no line {first - 1} before these")
        for number, line in new.items():
            if stored.get(number, line) != line:
                raise StoreError(f"line {number} of the journal of attempt {attempt_id} is another one already")
        added = [
            {"attempt_id": attempt_id, "number": number, "line": line}
            for number, line in new.items()
            if number not in stored
        ]
        if added:
            connection.execute(journal_line.insert(), added)
        if row.state == "leased":
            connection.execute(_BEGUN, {"of_attempt": attempt_id, "at": store.now(connection)})


def journals(store: Store, attempt_ids: Iterable[int]) -> Journals:
    """What pods have told of these attempts."""
    found = Journals()
    with store.reading() as connection:
        for batch in batches(sorted(set(attempt_ids))):
            of_attempt: dict[int, list[bytes]] = {}
            for attempt_id, line in connection.execute(_JOURNALS, {"ids": batch}):
                of_attempt.setdefault(attempt_id, []).append(bytes(line) + b"\n")
            for attempt_id, lines in of_attempt.items():
                found.read_lines(lines, f"journal of attempt {attempt_id}")
    return found


def held(store: Store, matrix_ids: Collection[int] | None = None) -> list[Held]:
    """The attempts that pods hold, of these matrices or of all, the oldest first."""
    asked = (
        _HELD.where(literal_state(attempt.c.state, HELD), trial.c.state == "leased")
        .where(trial.c.attempt == attempt.c.number)
        .order_by(attempt.c.id)
    )
    if matrix_ids is not None:
        asked = asked.where(trial.c.matrix_id.in_(sorted(set(matrix_ids))))
    with store.reading() as connection:
        return [_held(row) for row in connection.execute(asked)]


def count_held(store: Store) -> int:
    """How many attempts pods hold."""
    asked = sa.select(sa.func.count()).where(literal_state(attempt.c.state, HELD), attempt.c.launch_id.is_not(None))
    with store.reading() as connection:
        return connection.execute(asked).scalar_one()


def attempt_of_pod(store: Store, attempt_id: int) -> Held:
    """An attempt that a pod holds or held. Raises NotFound where there is none, or no pod ever held it."""
    with store.reading() as connection:
        row = connection.execute(_HELD.where(attempt.c.id == attempt_id)).first()
    if row is None:
        raise NotFound(f"no pod was ever given attempt {attempt_id}")
    return _held(row)


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
_LAUNCH_AND_MATRIX = (
    sa.select(
        launch.c.state, launch.c.completions, launch.c.matrix_id, launch.c.cell_id,
        matrix.c.state.label("matrix_state"), matrix.c.manifest_hash,
        cell.c.state.label("cell_state"), cell.c.case_id, cell.c.condition,
    )
    .join(matrix, matrix.c.id == launch.c.matrix_id)
    .join(cell, cell.c.id == launch.c.cell_id)
    .where(launch.c.id == sa.bindparam("of_launch"))
    # Neither paused nor ended meanwhile; a cell fails under its matrix's lock.
    .with_for_update(read=True, of=[matrix, launch])
)  # fmt: skip
_OF_INDEX = (
    (launch_trial.c.launch_id == sa.bindparam("of_launch"))
    & (launch_trial.c.launch_index == sa.bindparam("of_index"))
    & ~launch_trial.c.released
)
_LOCK_INDEX = sa.select(launch_trial.c.position).where(_OF_INDEX).order_by(launch_trial.c.position).with_for_update()
_TRIALS_OF_INDEX = (
    sa.select(
        trial.c.id, trial.c.state.label("trial_state"), trial.c.attempt, trial.c.repetition, trial.c.assignment_hash,
        attempt.c.id.label("attempt_id"), attempt.c.state.label("attempt_state"), attempt.c.owner,
        attempt.c.launch_id, attempt.c.launch_index,
    )
    .select_from(
        launch_trial.join(trial, trial.c.id == launch_trial.c.trial_id).outerjoin(
            attempt, (attempt.c.trial_id == trial.c.id) & (attempt.c.number == trial.c.attempt)
        )
    )
    .where(_OF_INDEX)
    .order_by(launch_trial.c.position)
)  # fmt: skip
_TAKE = (
    trial.update()
    .where(trial.c.id == sa.bindparam("of_trial"), trial.c.state == "open")
    .values(state="leased", attempt=trial.c.attempt + 1)
    .returning(trial.c.attempt)
)
_ATTEMPTED = attempt.insert().returning(attempt.c.id)
_BEGUN = (
    attempt.update()
    .where(attempt.c.id == sa.bindparam("of_attempt"))
    .values(state="running", started=sa.bindparam("at"))
)
_JOURNALED = (
    sa.select(attempt.c.owner, attempt.c.state, attempt.c.number, trial.c.state.label("trial_state"), trial.c.attempt)
    .join(trial, trial.c.id == attempt.c.trial_id)
    .where(attempt.c.id == sa.bindparam("of_attempt"))
    .with_for_update(of=[attempt, trial])
)
_LINES = sa.select(journal_line.c.number, journal_line.c.line).where(
    journal_line.c.attempt_id == sa.bindparam("of_attempt"), journal_line.c.number >= sa.bindparam("from_")
)
_JOURNALS = (
    sa.select(journal_line.c.attempt_id, journal_line.c.line)
    .where(journal_line.c.attempt_id.in_(AMONG))
    .order_by(journal_line.c.attempt_id, journal_line.c.number)
)
_HELD = (
    sa.select(
        attempt.c.id, attempt.c.number, trial.c.id.label("trial_id"), trial.c.matrix_id, matrix.c.manifest_hash,
        trial.c.cell_id, trial.c.case_id, trial.c.condition, trial.c.repetition, trial.c.assignment_hash,
        attempt.c.launch_id, attempt.c.launch_index, owner.c.id.label("pod_uid"), owner.c.host, attempt.c.state,
        attempt.c.leased_at, attempt.c.lease_expires,
    )
    .select_from(
        attempt.join(trial, trial.c.id == attempt.c.trial_id)
        .join(matrix, matrix.c.id == trial.c.matrix_id)
        .join(owner, owner.c.id == attempt.c.owner)
    )
    .where(attempt.c.launch_id.is_not(None))
)  # fmt: skip


def _held(row: Any) -> Held:
    node, _, pod_name = row.host.rpartition("/")
    values: tuple[Any, ...] = (*row[:13], pod_name, node, row.state, row.leased_at, row.lease_expires)
    return Held(*values)


def _launch(connection: sa.Connection, launch_id: str) -> Launch:
    row = connection.execute(_LAUNCHES.where(launch.c.id == launch_id)).first()
    if row is None:
        raise NotFound(f"the store has no launch {launch_id!r}")
    return _as_launch(row)


def _as_launch(row: Any) -> Launch:
    return Launch(*row)


def _locked(connection: sa.Connection, launch_id: str) -> Any:
    asked = sa.select(launch.c.state, launch.c.job_uid, launch.c.completions).where(launch.c.id == launch_id)
    row = connection.execute(asked.with_for_update()).first()
    if row is None:
        raise NotFound(f"the store has no launch {launch_id!r}")
    return row


def _enrol(store: Store, connection: sa.Connection, pod: Pod, now: int) -> None:
    values = {
        "id": pod.uid,
        "host": f"{pod.node}/{pod.name}",
        "boot": BOOT,
        "namespace": pod.namespace,
        "pid": 0,
        "process_start": -1,
        "renewed": now,
    }
    new = store.insert(owner)
    connection.execute(new.on_conflict_do_update(index_elements=["id"], set_={"renewed": new.excluded.renewed}), values)


def _pod_claim(launched: Any, of_trial: Any, attempt_id: int, number: int, more: bool) -> PodClaim:
    return PodClaim(
        attempt_id=attempt_id,
        number=number,
        matrix_id=launched.matrix_id,
        manifest_hash=launched.manifest_hash,
        cell_id=launched.cell_id,
        case_id=launched.case_id,
        condition=launched.condition,
        repetition=of_trial.repetition,
        assignment_hash=of_trial.assignment_hash,
        more=more,
    )


def _is_left(rows: Iterable[Any], but: int) -> bool:
    """Whether an index has a trial to run beside this one, or one that a former pod may give back."""
    return any(row.id != but and row.trial_state in ("open", "leased") for row in rows)
