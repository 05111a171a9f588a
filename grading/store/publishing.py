"""Publications: whether what a target shows of a matrix is what the store holds, and who is bringing it up to date."""

from dataclasses import dataclass

import sqlalchemy as sa

from grading.store.attempts import results_changed
from grading.store.opening import Store
from grading.store.owners import dead_owners
from grading.store.tables import PublicationState, publication


@dataclass(frozen=True, slots=True)
class Acquired:
    """The right, until its lease ends, to publish a matrix to a target."""

    matrix_id: int
    target: str
    owner_id: str
    was: PublicationState
    changes: int
    """How many changes there had been: what is published after more of them is stale already."""


def mark_stale(store: Store, matrix_id: int) -> None:
    """Says that there is more of a matrix to show than was published. Grades and losses say so themselves."""
    with store.transaction("mark_stale") as connection:
        results_changed(connection, [matrix_id])


def acquire_publication(
    store: Store, matrix_id: int, target: str, owner_id: str, *, lease_seconds: float
) -> Acquired | None:
    """The publication of a matrix to a target, for one publisher at a time. None while another one holds it."""
    with store.transaction("acquire_publication") as connection:
        values = {"matrix_id": matrix_id, "target": target, "state": "stale", "changes": 0}
        connection.execute(
            store.insert(publication).on_conflict_do_nothing(index_elements=["matrix_id", "target"]), values
        )
        now = store.now(connection)
        found = connection.execute(sa.select(publication).where(*_is(matrix_id, target)).with_for_update()).one()
        others = found.state == "publishing" and found.owner != owner_id
        if others and found.lease_expires > now and found.owner not in dead_owners(connection):
            return None
        connection.execute(
            publication.update()
            .where(publication.c.id == found.id)
            .values(state="publishing", owner=owner_id, lease_expires=now + round(lease_seconds * 1_000_000))
        )
        # One that was cut off is as good as stale: nobody knows how far it came.
        was: PublicationState = "published" if found.state == "published" else "stale"
        return Acquired(matrix_id, target, owner_id, was, found.changes)


def renew_publication(store: Store, held: Acquired, *, lease_seconds: float) -> bool:
    """Extends the lease. False where somebody else has taken it: then stop."""
    with store.transaction("renew_publication") as connection:
        expires = store.now(connection) + round(lease_seconds * 1_000_000)
        renewed = connection.execute(publication.update().where(*_held(held)).values(lease_expires=expires))
        return renewed.rowcount == 1


def release_publication(
    store: Store, held: Acquired, *, published: bool, detail: str | None = None
) -> PublicationState | None:
    """Ends publishing. It is stale where it failed, or where something changed since it was acquired.

    Returns:
        The state it is left in, None where somebody else has taken it meanwhile and nothing was changed.
    """
    with store.transaction("release_publication") as connection:
        asked = sa.select(publication.c.changes).where(*_held(held)).with_for_update()
        changes = connection.execute(asked).scalar_one_or_none()
        if changes is None:
            return None
        state: PublicationState = "published" if published and changes == held.changes else "stale"
        connection.execute(
            publication.update()
            .where(*_is(held.matrix_id, held.target))
            .values(state=state, owner=None, lease_expires=None, detail=detail)
        )
        return state


def _is(matrix_id: int, target: str) -> tuple[sa.ColumnElement[bool], ...]:
    return publication.c.matrix_id == matrix_id, publication.c.target == target


def _held(held: Acquired) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        *_is(held.matrix_id, held.target),
        publication.c.owner == held.owner_id,
        publication.c.state == "publishing",
    )
