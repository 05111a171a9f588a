"""Placing a matrix on a cluster: how many trials a pod runs, how many pods at once, with which images."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
import sqlalchemy as sa

from grading.store.errors import StateError, StoreError
from grading.store.matrices import locked_state
from grading.store.opening import Store
from grading.store.tables import MatrixState, attempt, matrix, placement, trial


@dataclass(frozen=True, slots=True)
class Chosen:
    """Cells to run: those of a case, of a condition, or of both where both are named."""

    case: str | None = None
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """How a matrix runs in a cluster. Nothing of it changes what a result means, but for the images."""

    trials_per_pod: int = 1
    """Trials that one pod runs, one after the other."""
    parallelism: int | None = None
    """Pods of the whole matrix at once; None for as many as the cluster's own limits allow."""
    queue: str | None = None
    """The Kueue LocalQueue of its Jobs."""
    images: Mapping[str, str] = field(default_factory=dict)
    """By condition: the image, by digest, that its agent runs in. The others run in the recorder's."""
    providers: Mapping[str, str] = field(default_factory=dict)
    """By condition: whose rate limit its trials share."""
    only: tuple[Chosen, ...] = ()
    """The cells to run; none for all."""
    actor: str | None = None
    """Who placed it, as the cluster knows them."""

    def covers(self, case_id: str, condition: str) -> bool:
        """Whether a cell is among those to run."""
        return not self.only or any(
            one.case in (None, case_id) and one.condition in (None, condition) for one in self.only
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A matrix on the cluster."""

    matrix_id: int
    manifest_hash: str
    name: str
    state: MatrixState
    placement: Placement


def place(store: Store, matrix_id: int, wanted: Placement) -> bool:
    """Places a matrix, or places it anew: what is launched from then on goes by the latest.

    Returns:
        False where nothing changed.

    Raises:
        NotFound: for a matrix that does not exist.
        StateError: for a cancelled one, or another image for a condition of which an image has run already: an agent
            in another image is another agent, and its trials would not be repetitions of one condition.
        StoreError: for numbers that are none.
    """
    if wanted.trials_per_pod < 1 or (wanted.parallelism is not None and wanted.parallelism < 1):
        raise StoreError("trials_per_pod and parallelism are 1 or more")
    with store.transaction("place") as connection:
        state = locked_state(connection, matrix_id)
        if state == "cancelled":
            raise StateError(f"matrix {matrix_id} is cancelled: it runs nowhere any more")
        asked = sa.select(*_COLUMNS).where(placement.c.matrix_id == matrix_id)
        row = connection.execute(asked).first()
        earlier = None if row is None else _placement(*row)
        if earlier == wanted:
            return False
        if earlier is not None:
            _refuse_other_images(connection, matrix_id, earlier, wanted)
        values = {
            "trials_per_pod": wanted.trials_per_pod,
            "parallelism": wanted.parallelism,
            "queue": wanted.queue,
            "document": _document(wanted),
            "actor": wanted.actor,
            "created": store.now(connection),
        }
        connection.execute(
            store.insert(placement)
            .values(matrix_id=matrix_id, **values)
            .on_conflict_do_update(index_elements=["matrix_id"], set_=values)
        )
        return True


def placements(store: Store) -> list[Placed]:
    """The matrices on the cluster, the oldest first, whatever has become of them."""
    asked = (
        sa.select(matrix.c.id, matrix.c.manifest_hash, matrix.c.name, matrix.c.state, *_COLUMNS)
        .join(placement, placement.c.matrix_id == matrix.c.id)
        .order_by(matrix.c.id)
    )
    with store.reading() as connection:
        return [Placed(*row[:4], _placement(*row[4:])) for row in connection.execute(asked)]


def active(store: Store) -> dict[int, bool]:
    """The matrices on the cluster that run or are about to, and of each whether a trial is open or leased."""
    with store.reading() as connection:
        return {row[0]: bool(row[1]) for row in connection.execute(_ACTIVE)}


_ACTIVE = (
    sa.select(
        matrix.c.id,
        sa.exists().where(trial.c.matrix_id == matrix.c.id, trial.c.state.in_(("open", "leased"))).correlate(matrix),
    )
    .join(placement, placement.c.matrix_id == matrix.c.id)
    .where(matrix.c.state.in_(("registered", "running")))
)
_COLUMNS = (
    placement.c.trials_per_pod, placement.c.parallelism, placement.c.queue, placement.c.document, placement.c.actor,
)  # fmt: skip


def _document(wanted: Placement) -> bytes:
    return orjson.dumps(
        {
            "images": dict(wanted.images),
            "providers": dict(wanted.providers),
            "only": [{"case": one.case, "condition": one.condition} for one in wanted.only],
        },
        option=orjson.OPT_SORT_KEYS,
    )


def _placement(
    trials_per_pod: int, parallelism: int | None, queue: str | None, document: bytes, actor: str | None
) -> Placement:
    members = orjson.loads(document)
    return Placement(
        trials_per_pod,
        parallelism,
        queue,
        members["images"],
        members["providers"],
        tuple(Chosen(**one) for one in members["only"]),
        actor,
    )


def _refuse_other_images(connection: sa.Connection, matrix_id: int, earlier: Placement, wanted: Placement) -> None:
    ran = (
        sa.select(trial.c.condition)
        .join(attempt, attempt.c.trial_id == trial.c.id)
        .where(trial.c.matrix_id == matrix_id, attempt.c.launch_id.is_not(None))
        .distinct()
    )
    changed = {
        name
        for name in earlier.images.keys() | wanted.images.keys()
        if earlier.images.get(name) != wanted.images.get(name)
    }
    if changed:
        for condition in sorted(changed & set(connection.execute(ran).scalars())):
            before, after = earlier.images.get(condition), wanted.images.get(condition)
            raise StateError(
                f"matrix {matrix_id} has run condition {condition} in {before or 'the trial image'}: in "
                f"{after or 'the trial image'} it would be another agent; register it as a matrix of its own"
            )
