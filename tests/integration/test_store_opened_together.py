"""Several processes open one new store at the same moment: each gets it whole, and none is refused."""

import multiprocessing
from pathlib import Path
from typing import Any

from grading.store import Store, reading


def _open(barrier: Any, place: str, told: Any) -> None:
    barrier.wait()
    try:
        with Store.open(place) as store:
            assert reading.matrices(store) == []
    except Exception as error:
        told.put(repr(error))
    else:
        told.put(None)


def test_a_new_store_opened_by_six_at_once(tmp_path: Path) -> None:
    import alembic.command  # noqa: F401 - loaded before the processes part, so that all of them are ready at once

    context = multiprocessing.get_context("fork")
    for number in range(15):
        barrier, told = context.Barrier(6), context.Queue()
        place = str(tmp_path / f"{number}.db")
        processes = [context.Process(target=_open, args=(barrier, place, told)) for _ in range(6)]
        for process in processes:
            process.start()
        assert [told.get(timeout=60) for _ in processes] == [None] * 6
        for process in processes:
            process.join()
    # Of two that close it at once neither is the last, and SQLite leaves its log to the next one; nothing else is left.
    left = {one.name.removesuffix("-wal").removesuffix("-shm") for one in tmp_path.iterdir()}
    assert left == {f"{number}.db" for number in range(15)}
    for number in range(15):
        with Store.open(str(tmp_path / f"{number}.db"), create=False) as store:
            assert reading.matrices(store) == []
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(f"{number}.db" for number in range(15))
