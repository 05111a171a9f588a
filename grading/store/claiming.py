"""Claiming: what a launch's pods do by their index. They claim its trials one by one, and tell what happens in each.

A pod holds a trial from :func:`claim` until its ledger is delivered or somebody settles it by what :func:`journals`
tells.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from grading.store.attempts import AMONG, batches
from grading.store.errors import NotFound, StateError, StoreError
from grading.store.opening import Store
from grading.store.tables import (
    HELD,
    AttemptState,
    attempt,
    cell,
    journal_line,
    launch,
    launch_trial,
    literal_state,
    matrix,
    owner,
    trial,
)
from simulator.journal import Journals

BOOT = "kubernetes"
"""What a pod has in place of a machine's boot: no process anywhere can tell by it that the pod is dead."""


@dataclass(frozen=True, slots=True)
class Pod:
    uid: str
    name: str
    node: str
    namespace: str = ""

    def as_owner(self, now: int) -> dict[str, Any]:
        """Its row among the owners of attempts."""
        return {
            "id": self.uid,
            "host": f"{self.node}/{self.name}",
            "boot": BOOT,
            "namespace": self.namespace,
            "pid": 0,
            "process_start": -1,
            "renewed": now,
        }


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


# Statements of the hot paths are built once: building one takes longer than running it.
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


def _enrol(store: Store, connection: sa.Connection, pod: Pod, now: int) -> None:
    new = store.insert(owner)
    renewing = new.on_conflict_do_update(index_elements=["id"], set_={"renewed": new.excluded.renewed})
    connection.execute(renewing, pod.as_owner(now))


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
