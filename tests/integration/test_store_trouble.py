"""A full disk, a read-only store, and ledgers that come twice, changed, truncated or late: the run ends with one clear
message or goes on, nothing that was counted is lost, and afterwards the run is finished as if nothing had been."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_trial import descendants, descriptors
from studies import TABLE, Bench

import grading.runner
from grading.manifest import resolve
from grading.planning import register
from grading.runner import Runner, WorkersFailing
from grading.store import Store, StoreError, delivering, reading
from grading.studies import find_study


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Takes all the room that is left."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return filler


def test_a_full_disk(tmp_path: Path, small: Path) -> None:
    bench = Bench(tmp_path, str(small / ".cellwise" / "cellwise.db"))
    bench.run("order-resolution", "--only", "case=explicit-description", status=4)
    filler = fill(small)
    _, err = bench.run("order-resolution", status=None)
    assert "Traceback" not in err
    assert "cellwise: " in err
    filler.unlink()
    assert bench.run("order-resolution") == (TABLE, "")
    bench.once()
    assert bench.all_gone()


def test_no_room_for_journals(tmp_path: Path, small: Path) -> None:
    """The store is elsewhere: nothing may be answered that is not journaled."""
    bench = Bench(tmp_path, str(tmp_path / ".cellwise" / "cellwise.db"))
    (tmp_path / ".cellwise").mkdir()
    (tmp_path / ".cellwise" / "workers").symlink_to(small)
    filler = fill(small)
    _, err = bench.run("order-resolution", status=1)
    assert err.startswith("cellwise: the journal cannot be written: ")
    with bench.opened() as store:
        assert reading.counts(store, 1)["graded"] == 0
    filler.unlink()
    assert bench.run("order-resolution") == (TABLE, "")
    bench.once()


def test_a_read_only_store(tmp_path: Path) -> None:
    """Also for root, whom modes do not stop: a mount that is read-only."""
    bench = Bench(tmp_path, str(tmp_path / ".cellwise" / "cellwise.db"))
    bench.run("order-resolution", "--only", "case=explicit-description", status=4)
    folder = tmp_path / ".cellwise"
    if subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True).returncode:
        pytest.skip("a folder cannot be mounted read-only here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        _, err = bench.run("order-resolution", status=None)
        assert "Traceback" not in err
        assert "cellwise: " in err
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert bench.run("order-resolution") == (TABLE, "")
    bench.once()


# The intake's own path, with a runner in this process.


@pytest.fixture
def prepared(tmp_path: Path, store_url: str) -> Iterator[tuple[Store, Any]]:
    study = resolve(find_study("order-resolution"))
    with Store.open(store_url) as store:
        matrix_id = register(store, study.manifest).matrix_id

        def runner() -> Runner:
            matrix = reading.find_matrix(store, matrix_id)
            return Runner(store, matrix, study.manifest, root=tmp_path, folder=tmp_path / "workers", parallelism=1)

        yield store, runner


def finished(store: Store) -> None:
    assert reading.counts(store, 1) == {"open": 0, "leased": 0, "delivered": 0, "graded": 16, "missing": 0}


def test_ledgers_twice_changed_and_truncated(prepared: tuple[Store, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store, runner = prepared
    real = grading.runner.Runner._receive
    spoilt: list[str] = []

    def receive(self: Runner, handed: Any, secret: str, document: bytes) -> None:
        how = {0: "twice", 1: "truncated", 2: "changed", 3: "stranger"}.get(len(spoilt))
        if how is None or handed.claimed.number > 1:  # a second bad ledger of one trial would make it missing
            return real(self, handed, secret, document)
        spoilt.append(how)
        if how == "twice":
            real(self, handed, secret, document)
            return real(self, handed, secret, document)
        if how == "truncated":
            return real(self, handed, secret, document[:-10])
        if how == "changed":
            return real(
                self, handed, secret, document.replace(b"confirmed", b"CONFIRMED").replace(b"refund", b"REFUND", 1)
            )
        real(self, handed, "another secret", document)
        return real(self, handed, secret, document)

    monkeypatch.setattr(grading.runner.Runner, "_receive", receive)
    assert runner().run() == "complete"
    finished(store)
    kinds = sorted(one.kind for one in reading.incidents(store))
    assert kinds[0] == "bad_secret"
    assert len(kinds) == 3
    assert set(kinds[1:]) <= {"ledger_malformed", "hash_mismatch", "replay_mismatch"}


def test_a_ledger_that_comes_too_late(prepared: tuple[Store, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a runner slept its lease ran out and the trial was done by another one: the first one's ledger is kept as
    its attempt's and changes nothing."""
    store, runner = prepared
    real = delivering.deliver
    late: list[Any] = []

    def deliver(opened: Store, deliveries: Any, **more: Any) -> Any:
        listed = list(deliveries)
        if not late:
            late.extend(listed)
            with opened.transaction("renew") as connection:
                connection.exec_driver_sql("UPDATE attempt SET lease_expires = 0 WHERE state IN ('leased', 'running')")
            monkeypatch.setattr(delivering, "deliver", real)
            assert runner().run() == "complete"
        return real(opened, listed, **more)

    monkeypatch.setattr(delivering, "deliver", deliver)
    before = descendants()
    assert runner().run() == "complete"
    finished(store)
    assert late
    assert reading.counts(store, 1)["graded"] == 16
    assert descendants() - before == set()


def test_an_error_of_the_store_loses_nothing(
    prepared: tuple[Store, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The journals stay until the next run has read them."""
    store, runner = prepared
    with monkeypatch.context() as patched:

        def fail(*_: Any, **__: Any) -> Any:
            raise StoreError("the disk is full")

        patched.setattr(delivering, "deliver", fail)
        with pytest.raises(StoreError, match="the disk is full"):
            runner().run()
    ledgers = sum(path.read_bytes().count(b'"ledger":') for path in (tmp_path / "workers").glob("*.journal"))
    assert ledgers > 0
    with store.transaction("renew") as connection:
        connection.exec_driver_sql("UPDATE attempt SET lease_expires = 0 WHERE state IN ('leased', 'running')")
    assert runner().run() == "complete"
    finished(store)
    assert reading.lost_attempts(store, 1).keys() <= {"not_started", "runner_killed"}
    assert list((tmp_path / "workers").glob("*.journal")) == []


def test_workers_that_cannot_work(prepared: tuple[Store, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store, runner = prepared
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkersFailing, match="10 workers ended one after the other"):
        runner().run()
    monkeypatch.undo()
    assert reading.counts(store, 1)["missing"] == 0
    with store.transaction("renew") as connection:
        connection.exec_driver_sql("UPDATE attempt SET lease_expires = 0 WHERE state IN ('leased', 'running')")
    assert runner().run() == "complete"
    finished(store)


def test_a_runner_leaves_no_descriptor_open(prepared: tuple[Store, Any]) -> None:
    _, runner = prepared
    runner().run()
    before = descriptors()
    for _ in range(3):
        runner().run()
    assert descriptors() == before


def test_a_manifest_of_another_version_is_told_and_nothing_is_changed(tmp_path: Path) -> None:
    import sqlite3

    from tests.integration.command import cellwise

    store = tmp_path / "store.db"
    cellwise("run", "order-resolution", "--phoenix", "off", store=str(store), cwd=tmp_path)
    with sqlite3.connect(store) as connection:
        (document,) = connection.execute("SELECT manifest FROM matrix").fetchone()
        older = document.replace(b'"margin":"0.03",', b"")
        assert older != document
        connection.execute("UPDATE matrix SET manifest = ?", [older])
    for command in (["grade", "order-resolution"], ["compare", "order-resolution"], ["resume", "order-resolution"]):
        told = cellwise(*command, store=str(store), cwd=tmp_path, check=1)
        assert "was registered by another version of Cellwise" in told.stderr
        assert "margin" in told.stderr
        assert "Traceback" not in told.stderr
