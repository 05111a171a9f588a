"""A matrix from registered to complete: each change of its state is one transaction."""

from typing import Literal

import sqlalchemy as sa

from grading.store.attempts import results_changed
from grading.store.errors import NotFound, StateError
from grading.store.opening import Store
from grading.store.tables import UNFINISHED, MatrixState, cell, matrix, trial


def start(store: Store, matrix_id: int) -> bool:
    """From registered to running. False where it runs already, as when two runners start it at once."""
    return _move(store, "start", matrix_id, ("registered",), "running")


def pause(store: Store, matrix_id: int) -> bool:
    """From running to paused: nothing more is claimed, what is leased may still be delivered."""
    return _move(store, "pause", matrix_id, ("running",), "paused")


def resume(store: Store, matrix_id: int) -> bool:
    """From paused to running."""
    return _move(store, "resume", matrix_id, ("paused",), "running")


def cancel(store: Store, matrix_id: int) -> bool:
    """Ends a matrix for good where it is. Its open trials stay open: they were neither run nor lost."""
    return _move(store, "cancel", matrix_id, ("registered", "running", "paused"), "cancelled")


def finish(store: Store, matrix_id: int) -> Literal["complete", "incomplete"]:
    """From running to complete, where every trial is graded, else to incomplete.

    Raises:
        StateError: while a trial is still open, leased or waits for its grade.
    """
    with store.transaction("finish") as connection:
        state = locked_state(connection, matrix_id)
        if state in ("complete", "incomplete"):
            return "complete" if state == "complete" else "incomplete"
        if state != "running":
            raise StateError(f"matrix {matrix_id} is {state}: only a running one can be finished")
        counted = sa.select(trial.c.state, sa.func.count()).where(trial.c.matrix_id == matrix_id)
        counts = {row[0]: row[1] for row in connection.execute(counted.group_by(trial.c.state))}
        left = ", ".join(f"{counts[one]} {one}" for one in UNFINISHED if counts.get(one))
        if left:
            raise StateError(f"matrix {matrix_id} is not finished: {left}")
        end: Literal["complete", "incomplete"] = "incomplete" if counts.get("missing") else "complete"
        connection.execute(matrix.update().where(matrix.c.id == matrix_id).values(state=end))
        # Two transactions that each graded one of a cell's last two trials both saw the other's unfinished.
        connection.execute(
            cell.update().where(cell.c.matrix_id == matrix_id, cell.c.state == "open").values(state="done")
        )
        results_changed(connection, [matrix_id])
        return end


def locked_state(connection: sa.Connection, matrix_id: int, *, shared: bool = False) -> MatrixState:
    """The matrix's state, which nobody changes until the transaction ends."""
    asked = _SHARED if shared else _LOCKED
    state: MatrixState | None = connection.execute(asked, {"of_matrix": matrix_id}).scalar_one_or_none()
    if state is None:
        raise NotFound(f"the store has no matrix {matrix_id}")
    return state


# Built once: building one takes longer than running it.
_STATE = sa.select(matrix.c.state).where(matrix.c.id == sa.bindparam("of_matrix"))
_LOCKED, _SHARED = _STATE.with_for_update(), _STATE.with_for_update(read=True)


def _move(
    store: Store,
    name: Literal["start", "pause", "resume", "cancel"],
    matrix_id: int,
    left: tuple[MatrixState, ...],
    entered: MatrixState,
) -> bool:
    with store.transaction(name) as connection:
        state = locked_state(connection, matrix_id)
        if state == entered:
            return False
        if state not in left:
            raise StateError(f"matrix {matrix_id} is {state}: cannot {name} it, only one that is {' or '.join(left)}")
        connection.execute(matrix.update().where(matrix.c.id == matrix_id).values(state=entered))
        return True


def reopen(store: Store, matrix_id: int) -> int:
    """Opens the failed cells of an ended matrix again, once what was wrong with their configuration is mended.

    Their missing trials are open again, and the matrix runs, where there are any. What used up its attempts stays
    missing.

    Returns:
        How many trials are open again.
    """
    with store.transaction("reopen") as connection:
        state = locked_state(connection, matrix_id)
        if state not in ("running", "incomplete"):
            raise StateError(f"matrix {matrix_id} is {state}: there is nothing to open again")
        failed = sa.select(cell.c.id).where(cell.c.matrix_id == matrix_id, cell.c.state == "failed")
        reopened = connection.execute(
            trial.update().where(trial.c.cell_id.in_(failed), trial.c.state == "missing").values(state="open")
        ).rowcount
        connection.execute(
            cell.update()
            .where(cell.c.matrix_id == matrix_id, cell.c.state == "failed")
            .values(state="open", reason=None)
        )
        if reopened:
            connection.execute(matrix.update().where(matrix.c.id == matrix_id).values(state="running"))
            results_changed(connection, [matrix_id])
        return reopened
