"""Claiming: a launch's pods claim the trials of their index one by one.

A pod holds a trial from :func:`claim` until its ledger is delivered, or somebody settles it by what its journal tells
(grading/store/journaling.py).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from grading.store.attempts import AMONG, padded
from grading.store.errors import NotFound, StoreError
from grading.store.journaling import Told, insert_lines, keep_lines
from grading.store.opening import SERVER_NOW, Store
from grading.store.tables import (
    HELD,
    AttemptState,
    attempt,
    cell,
    launch,
    launch_trial,
    literal_state,
    matrix,
    owner,
    trial,
)

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
    after: str | None
    """The assignment of the next of them that is open, if any."""
    begun: bool = False
    """Whether it has begun with the lines that were told of it, which are its journal now."""


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


@dataclass(frozen=True, slots=True)
class Begun:
    """What a pod did of a trial before it was given one."""

    assignment_hash: str
    """Of the trial that it took it for: what it did counts for a trial of that assignment alone."""
    lines: Callable[[int], list[bytes]]
    """The journal of that, for an attempt."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A pod that wants the next trial of its index."""

    launch_id: str
    index: int
    pod: Pod
    is_enrolled: bool = False
    """It has held an attempt before."""
    begun: Begun | None = None


Answer = PodClaim | Stop | Settling


def claim(store: Store, launch_id: str, index: int, pod: Pod, *, lease_seconds: float) -> Answer:
    """The next trial of an index for its pod; a pod that asks again before it began is handed the same again.

    Raises:
        NotFound: for a launch that does not exist or has no such index.
        StoreError: for a lease of no time.
    """
    (found,) = claim_all(store, [Ask(launch_id, index, pod)], lease_seconds=lease_seconds)
    if isinstance(found, NotFound):
        raise found
    return found


def claim_all(store: Store, asks: Sequence[Ask], *, lease_seconds: float) -> list[Answer | NotFound]:
    """The same for several pods in one transaction, each of another index.

    Raises:
        StoreError: for a lease of no time, or an index that is asked for twice.
    """
    if lease_seconds <= 0:
        raise StoreError(f"cannot lease a trial for {lease_seconds} seconds: it must be above zero")
    if len({_index_of(ask) for ask in asks}) < len(asks):
        raise StoreError("two pods of one index cannot claim in one transaction")
    with store.transaction("claim_index") as connection:
        wanted = [_Wanted(ask) for ask in asks]
        now = _read_launches(store, connection, wanted)
        _read_indexes(store, connection, [one for one in wanted if one.answer is None])
        for one in wanted:
            _repeat(store, connection, one)
            one.decide()
        until = now + round(lease_seconds * 1_000_000)
        while taking := [one for one in wanted if one.answer is None]:
            _take(store, connection, taking, now, until)
        return [one.answer for one in wanted if one.answer is not None]


class _Wanted:
    """An ask on its way to its answer."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.answer: Answer | NotFound | None = None
        self.launched: Any = None
        self.rows: list[Any] = []
        """The trials of the index, in order, each with its current attempt."""
        self.candidates: list[Any] = []
        """Those of them that may be taken, the next one last."""

    def decide(self) -> None:
        """Answers what can be answered without a claim."""
        if self.answer is not None:
            return
        launched, rows = self.launched, self.rows
        if (row := self.own()) is not None:
            if row.attempt_state != "leased":
                # Its recorder was started again within the pod. What the first one did is its attempt's end.
                self.answer = Settling()
            elif launched.matrix_state == "cancelled":
                self.answer = Stop("the matrix is cancelled")
            else:
                self.answer = self.claimed(row, row.attempt_id, row.attempt)
        elif launched.matrix_state != "running":
            self.answer = Stop(f"the matrix is {launched.matrix_state}")
        elif launched.state == "ended":
            self.answer = Stop("the launch has ended")
        elif not rows:
            self.answer = Stop("the index was given up")
        elif launched.cell_state != "open":
            self.answer = Stop(f"the cell is {launched.cell_state}")
        else:
            self.candidates = [row for row in reversed(rows) if row.trial_state == "open"]
            if not self.candidates:
                self.answer = self.nothing_left()

    def nothing_left(self) -> Stop | Settling:
        if any((row.launch_id, row.launch_index) == _index_of(self.ask) for row in self._held()):
            return Settling()
        return Stop("every trial of the index is done, or somebody else's")

    def begins(self, row: Any) -> bool:
        """Whether what the pod has done is of this trial."""
        return self.ask.begun is not None and self.ask.begun.assignment_hash == row.assignment_hash

    def told(self, attempt_id: int) -> list[bytes]:
        """The lines that the pod has told of what it has begun."""
        return self.ask.begun.lines(attempt_id) if self.ask.begun is not None else []

    def claimed(self, row: Any, attempt_id: int, number: int, *, begun: bool = False) -> PodClaim:
        launched = self.launched
        return PodClaim(
            attempt_id=attempt_id,
            number=number,
            matrix_id=launched.matrix_id,
            manifest_hash=launched.manifest_hash,
            cell_id=launched.cell_id,
            case_id=launched.case_id,
            condition=launched.condition,
            repetition=row.repetition,
            assignment_hash=row.assignment_hash,
            # Beside this one there is a trial to run, or one that a former pod may give back.
            more=any(other.id != row.id and other.trial_state in ("open", "leased") for other in self.rows),
            after=next((o.assignment_hash for o in self.rows if o.id != row.id and o.trial_state == "open"), None),
            begun=begun,
        )

    def own(self) -> Any:
        """The trial of the index that this pod holds, if any."""
        own = (self.ask.pod.uid, *_index_of(self.ask))
        return next((row for row in self._held() if (row.owner, row.launch_id, row.launch_index) == own), None)

    def _held(self) -> list[Any]:
        return [row for row in self.rows if row.attempt_state in HELD and row.trial_state == "leased"]


def _read_launches(store: Store, connection: sa.Connection, wanted: list[_Wanted]) -> int:
    """The time, too, by the store's clock."""
    ids = {"ids": padded(sorted({one.ask.launch_id for one in wanted}))}
    rows = connection.execute(_LAUNCHES if store.is_sqlite else _LAUNCHES_AND_NOW, ids).all()
    now = store.now(connection) if store.is_sqlite or not rows else rows[-1].now
    found = {row.id: row for row in rows}
    for one in wanted:
        one.launched = found.get(one.ask.launch_id)
        if one.launched is None:
            one.answer = NotFound(f"the store has no launch {one.ask.launch_id!r}")
        elif not 0 <= one.ask.index < one.launched.completions:
            one.answer = NotFound(
                f"launch {one.ask.launch_id} has no index {one.ask.index}, only {one.launched.completions}"
            )
    return int(now)


def _read_indexes(store: Store, connection: sa.Connection, wanted: list[_Wanted]) -> None:
    if not wanted:
        return
    indexes = {"indexes": padded(sorted(_index_of(one.ask) for one in wanted))}
    if not store.is_sqlite:
        # One pod of an index at a time, and none while the index is released.
        connection.execute(_LOCK_INDEXES, indexes).all()
    of_index: dict[tuple[str, int], list[Any]] = {_index_of(one.ask): one.rows for one in wanted}
    for row in connection.execute(_TRIALS_OF_INDEXES, indexes):
        of_index[row.of_launch, row.of_index].append(row)


def _take(store: Store, connection: sa.Connection, taking: list[_Wanted], now: int, until: int) -> None:
    """Claims the next candidate of each. Where a runner outside of the cluster was faster, it is tried with the one
    after, or there is nothing left."""
    rows = {one.candidates[-1].id: one for one in taking}
    numbers = {row.id: row.attempt for row in connection.execute(_TAKE, {"ids": padded(sorted(rows))})}
    taken = {trial_id: one for trial_id, one in rows.items() if trial_id in numbers}
    if taken:
        pods = {one.ask.pod.uid: one.ask.pod.as_owner(now) for one in taken.values() if not one.ask.is_enrolled}
        if pods:
            enrolling = _ENROL_SQLITE if store.is_sqlite else _ENROL_POSTGRESQL
            connection.execute(enrolling, [pods[uid] for uid in sorted(pods)])
        begun = {trial_id for trial_id, one in taken.items() if one.begins(one.candidates[-1])}
        values = [
            {
                "trial_id": trial_id,
                "number": numbers[trial_id],
                "state": "running" if trial_id in begun else "leased",
                "owner": one.ask.pod.uid,
                "lease_expires": until,
                "leased_at": now,
                "started": now if trial_id in begun else None,
                "after_consequential_call": False,
                "launch_id": one.ask.launch_id,
                "launch_index": one.ask.index,
            }
            for trial_id, one in taken.items()
        ]
        attempts = {row.trial_id: row.id for row in connection.execute(_ATTEMPTED, values)}
        insert_lines(connection, [(attempts[one], 0, taken[one].told(attempts[one])) for one in sorted(begun)])
    for trial_id, one in rows.items():
        row = one.candidates.pop()
        if trial_id in taken:
            one.answer = one.claimed(row, attempts[trial_id], numbers[trial_id], begun=trial_id in begun)
        elif not one.candidates:
            one.answer = one.nothing_left()


def _repeat(store: Store, connection: sa.Connection, one: _Wanted) -> None:
    """Hands the same trial out again to a pod that tells again how it began it, and keeps what it has done since."""
    row = one.own()
    if row is not None and row.attempt_state == "running" and one.begins(row):
        told = Told(row.attempt_id, one.ask.pod.uid, 0, one.told(row.attempt_id))
        if keep_lines(store, connection, [told]) == [None]:
            one.answer = one.claimed(row, row.attempt_id, row.attempt, begun=True)


def _index_of(ask: Ask) -> tuple[str, int]:
    return ask.launch_id, ask.index


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
_LAUNCHES = (
    sa.select(
        launch.c.id, launch.c.state, launch.c.completions, launch.c.matrix_id, launch.c.cell_id,
        matrix.c.state.label("matrix_state"), matrix.c.manifest_hash,
        cell.c.state.label("cell_state"), cell.c.case_id, cell.c.condition,
    )
    .join(matrix, matrix.c.id == launch.c.matrix_id)
    .join(cell, cell.c.id == launch.c.cell_id)
    .where(launch.c.id.in_(AMONG))
    .order_by(launch.c.id)
    # Neither paused nor ended meanwhile; a cell fails under its matrix's lock.
    .with_for_update(read=True, of=[matrix, launch])
)  # fmt: skip
_LAUNCHES_AND_NOW = _LAUNCHES.add_columns(SERVER_NOW.label("now"))
_OF_INDEXES = (
    sa.tuple_(launch_trial.c.launch_id, launch_trial.c.launch_index).in_(sa.bindparam("indexes", expanding=True))
    & ~launch_trial.c.released
)
_BY_PLACE = (launch_trial.c.launch_id, launch_trial.c.launch_index, launch_trial.c.position)
_LOCK_INDEXES = sa.select(launch_trial.c.position).where(_OF_INDEXES).order_by(*_BY_PLACE).with_for_update()
_TRIALS_OF_INDEXES = (
    sa.select(
        launch_trial.c.launch_id.label("of_launch"), launch_trial.c.launch_index.label("of_index"),
        trial.c.id, trial.c.state.label("trial_state"), trial.c.attempt, trial.c.repetition, trial.c.assignment_hash,
        attempt.c.id.label("attempt_id"), attempt.c.state.label("attempt_state"), attempt.c.owner,
        attempt.c.launch_id, attempt.c.launch_index,
    )
    .select_from(
        launch_trial.join(trial, trial.c.id == launch_trial.c.trial_id).outerjoin(
            attempt, (attempt.c.trial_id == trial.c.id) & (attempt.c.number == trial.c.attempt)
        )
    )
    .where(_OF_INDEXES)
    .order_by(*_BY_PLACE)
)  # fmt: skip
_IS_OPEN = trial.c.id.in_(AMONG) & (trial.c.state == "open")
_TAKE = (
    trial.update()
    .where(_IS_OPEN)
    .values(state="leased", attempt=trial.c.attempt + 1)
    .returning(trial.c.id, trial.c.attempt)
)
_ATTEMPTED = attempt.insert().returning(attempt.c.id, attempt.c.trial_id)


def _enrolling(new: sqlite.Insert | postgresql.Insert) -> sa.Executable:
    return new.on_conflict_do_update(index_elements=["id"], set_={"renewed": new.excluded.renewed})


_ENROL_SQLITE = _enrolling(sqlite.insert(owner))
_ENROL_POSTGRESQL = _enrolling(postgresql.insert(owner))
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
