"""Opening a store: made where there is none, upgraded where it is old, refused with one clear message otherwise."""

import os
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from conftest import unavailable
from store_session import enrolled, ledger_of, register_matrix, running_matrix, violations

from grading.store import Store, StoreError, reading
from grading.store.delivering import deliver
from grading.store.leasing import claim
from grading.store.migrating import HEAD, VERSION_TABLE, alembic_config
from grading.store.tables import metadata


def test_a_new_store_has_the_tables_that_the_code_knows(store_url: str) -> None:
    with Store.open(store_url) as store, store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []
        checks = {
            check["name"] for table in metadata.tables for check in sa.inspect(connection).get_check_constraints(table)
        }
        assert checks >= {"ck_trial_state", "ck_trial_evidence", "ck_attempt_state", "ck_grade_verdict"}
        assert ScriptDirectory.from_config(alembic_config(connection)).get_heads() == [HEAD]


def test_what_was_stored_is_there_when_it_is_opened_again(store_url: str) -> None:
    with Store.open(store_url) as store:
        matrix_id = register_matrix(store)
    with Store.open(store_url, create=False) as again:
        assert [one.id for one in reading.matrices(again)] == [matrix_id]


def test_a_store_of_a_newer_version_is_refused_and_left_alone(store_url: str) -> None:
    with Store.open(store_url) as store, store.transaction("migrate") as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match=f"newer version of Cellwise .* at 9999, this version knows {HEAD}"):
        Store.open(store_url)


def test_a_database_of_something_else_is_refused_and_left_alone(store_url: str) -> None:
    engine = sa.create_engine(store_url.replace("postgresql:", "postgresql+psycopg:") if "://" in store_url else
                              f"sqlite:///{store_url}")  # fmt: skip
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE trial (verdict text)"))
    with pytest.raises(StoreError, match=r"tables of something else \(trial\)"):
        Store.open(store_url)
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["trial"]
    engine.dispose()


def test_processes_that_open_a_new_store_at_once_make_it_once(store_url: str) -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                Store.open(store_url).close()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


def test_the_file_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.db"
    with Store.open(path) as store:
        register_matrix(store)
        modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_sqlite_keeps_what_it_was_told(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/s%20 ?.db") as store, store.reading() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 60_000}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "a file's path"),
        ("a\0b", "a file's path"),
        (":memory:", "one in memory"),
        ("sqlite://", "one in memory"),
        ("mysql://host/database", "mysql: a store is a SQLite file or a PostgreSQL database"),
        ("nonsense://", "nonsense: a store is"),
        ("postgresql://host:port/x", "cannot be read"),
        ("postgresql://user:hidden@127.0.0.1:1/x", r"\*\*\*.*the server cannot be reached"),
    ],
)
def test_addresses_that_are_none(where: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as refused:
        Store.open(where)
    assert "hidden" not in str(refused.value)


def test_a_server_without_that_database(postgresql_server: str) -> None:
    with pytest.raises(StoreError, match=r"no such database|cannot be reached .*does not exist"):
        Store.open(postgresql_server.format(database="absent"))


def test_paths_where_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store here"):
        Store.open(tmp_path / "absent.db", create=False)
    with pytest.raises(StoreError, match="this is a folder"):
        Store.open(tmp_path)
    (tmp_path / "text").write_text("not a database, but longer than the header of one, " * 20)
    with pytest.raises(StoreError, match="it is not a store"):
        Store.open(tmp_path / "text")
    with pytest.raises(StoreError, match=r"cannot be made here|is a file"):
        Store.open(tmp_path / "text" / "store.db")
    assert [one.name for one in tmp_path.iterdir()] == ["text"]


SMALL = 4 * 1024 * 1024
"""Bytes: room for the empty tables twice, in the file and in its log, and for some ledgers."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        unavailable(f"a small disk cannot be mounted: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing_that_was_counted(small_disk: Path) -> None:
    path = small_disk / "store.db"
    with Store.open(path) as store:
        matrix_id = running_matrix(store, repetitions=50)
        owner = enrolled(store)
        counted = 0

        def fill_the_disk() -> None:
            nonlocal counted
            for _ in range(200):
                (claimed,) = claim(store, owner, matrix_id, limit=1, lease_seconds=60)
                deliver(store, [ledger_of(claimed, "x" * 50_000)])
                counted += 1

        with pytest.raises(StoreError, match="disk is full"):
            fill_the_disk()
        assert 5 < counted < 60
        assert reading.counts(store, matrix_id)["delivered"] == counted
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    with Store.open(path) as store:
        assert violations(store) == []
        delivered = list(reading.trials(store, matrix_id, states=["delivered"], ledgers=True))
        assert [len(one.ledger or b"") > 50_000 for one in delivered] == [True] * counted


def test_a_disk_without_room_for_a_store_is_told_and_has_one_once_there_is_room(small_disk: Path) -> None:
    (small_disk / "filling").write_bytes(b"x" * (SMALL - 8192))
    with pytest.raises(StoreError, match="full"):
        Store.open(small_disk / "store.db")
    assert [one.name for one in small_disk.iterdir()] == ["filling"]
    (small_disk / "filling").unlink()
    with Store.open(small_disk / "store.db") as store:
        assert reading.matrices(store) == []


def test_a_read_only_disk(small_disk: Path) -> None:
    with Store.open(small_disk / "store.db") as store:
        register_matrix(store)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"store\.db: .*(read-only|cannot be opened)"):
        Store.open(small_disk / "store.db")
    with pytest.raises(StoreError, match="cannot be made here: Read-only file system"):
        Store.open(small_disk / "other.db")


def test_a_store_that_is_written_by_another_for_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grading.store.opening._BUSY_SECONDS", 0.2)
    with Store.open(tmp_path / "store.db") as store:
        other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process has kept it locked"):
            register_matrix(store)
        # Reading goes on.
        assert reading.matrices(store) == []
        other.execute("ROLLBACK")
        other.close()
        register_matrix(store)


def test_a_server_that_goes_away_and_comes_back(postgresql_url: str) -> None:
    with Store.open(postgresql_url) as store:
        register_matrix(store)
        with store.reading() as connection:
            connection.execute(sa.text("SELECT 1"))
        other = sa.create_engine(postgresql_url.replace("postgresql:", "postgresql+psycopg:"))
        with other.connect() as connection:
            connection.execute(
                sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() AND pid <> pg_backend_pid()")
            )  # fmt: skip
        other.dispose()
        assert len(reading.matrices(store)) == 1


def test_a_child_that_dies_while_it_holds_the_write_lock_leaves_it_free(tmp_path: Path) -> None:
    Store.open(tmp_path / "store.db").close()
    child = os.fork()
    if child == 0:
        try:
            with Store.open(tmp_path / "store.db") as store, store.transaction("register") as connection:
                connection.execute(sa.text("INSERT INTO assignment VALUES ('h', x'00')"))
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    with Store.open(tmp_path / "store.db") as store:
        assert reading.assignments(store, ["h"]) == {}
        register_matrix(store)
