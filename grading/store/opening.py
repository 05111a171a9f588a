"""Opening a store, and the one door that every writing transaction goes through."""

import errno
import os
import secrets
import select
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from grading.store import migrating
from grading.store.errors import NoStore, StoreError, explained

TransactionName = Literal[
    "migrate", "register", "start", "pause", "resume", "cancel", "finish", "reopen", "enrol", "claim", "running",
    "renew", "deliver", "quarantine", "lose", "seal", "fail_cell", "grade", "register_judge", "judge_call", "judge",
    "reuse", "mark_stale",
    "place", "plan_launch", "launch_created", "launch_waiting", "release_index", "end_launch", "job_deleted",
    "claim_index", "journal_lines", "write_check", "charge_pod", "incident",
    "copy_trials", "copy_incidents", "settle_copy",
    "acquire_publication", "renew_publication", "release_publication",
]  # fmt: skip

_WRITING = "cellwise_writing"
SERVER_NOW = sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()) * 1_000_000, sa.BigInteger)
"""Microseconds since 1970 by the clock of a PostgreSQL server: :meth:`Store.now` within another statement."""
_NOW = sa.select(SERVER_NOW)
_FRESH_SECONDS = 1.0
"""A connection that was used this lately is asked whether it still is one only where its server has said something
unasked, as one that shuts down does: of all that a saturated intake asks, that would be a tenth."""
_KEPT_CONNECTIONS = 16
"""As many as an intake has threads: a new one costs its server a process."""
_POSTGRESQL_WAITS: dict[str, Any] = {
    "connect_timeout": 10,
    # A server whose machine is gone says nothing for ever: without these a connection to it waits for hours.
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 40_000,
}
_BUSY_SECONDS = 60


def _system_clock() -> int:
    return time.time_ns() // 1000


class Store:
    """An open store. Threads may share it; a process that forks opens its own in the child."""

    def __init__(self, engine: sa.Engine, place: str, clock: Callable[[], int] = _system_clock) -> None:
        self.engine = engine
        self.place = place
        self.watch: Callable[[TransactionName, float], object] | None = None
        """Told of every writing transaction that was committed, and how many seconds it took until it was durable."""
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._writing = engine.execution_options(**{_WRITING: True})
        self._clock = clock

    @classmethod
    def open(cls, where: str | Path, *, create: bool = True, clock: Callable[[], int] = _system_clock) -> Self:
        """Opens a store, first making or upgrading its tables where that is needed.

        Args:
            where: a file's path, ``sqlite:///path``, or ``postgresql://user@host/database``.
            create: whether a store that does not exist yet is made; a SQLite file gets mode 0600.
            clock: microseconds since 1970 in UTC. PostgreSQL's own clock is used there, whatever is given.

        Raises:
            StoreError: where there is no store, something else, one of a newer version, or it cannot be written.
        """
        url = _parse(where)
        place = url.database or "" if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)
        if url.get_backend_name() == "sqlite":
            if _is_missing(Path(place), create=create):
                cls._make(url, Path(place), clock)
            _refuse_foreign_file(place, create=create)
        store = cls(_engine(url), place, clock)
        try:
            migrating.bring_up_to_date(store, create=create)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def _make(cls, url: sa.URL, path: Path, clock: Callable[[], int]) -> None:
        """Makes a new store beside its place and puts it there whole.

        Nobody else ever opens one that is half made, and what is left of a failure can be removed under nobody's hands.
        Where another process puts its own there first, that one is the store.
        """
        new = path.with_name(f".{secrets.token_hex(6)}.new")
        try:
            os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with cls(_engine(url.set(database=str(new))), str(path), clock) as store:
                migrating.bring_up_to_date(store, create=True)
            with suppress(FileExistsError):
                _put(new, path)
        except OSError as error:
            raise StoreError(f"{path}: the store cannot be made here: {error.strerror}") from error
        finally:
            for ending in ("", "-wal", "-shm"):
                with suppress(OSError):  # on a disk that takes no files there is none to remove
                    Path(f"{new}{ending}").unlink()

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self, name: TransactionName) -> Iterator[sa.Connection]:
        """One writing transaction: committed, and durable, when the block ends; undone when it raises.

        On SQLite it holds the only write lock from its first moment, so what it reads cannot change under it.
        """
        began = time.perf_counter()
        with self._explaining(name), self._writing.begin() as connection:
            yield connection
        if self.watch is not None:
            self.watch(name, time.perf_counter() - began)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that only reads. Short ones alone: on SQLite a long one keeps the log from being reused."""
        with self._explaining("read"), self.engine.connect() as connection:
            yield connection

    def check_writable(self) -> None:
        """Writes and commits, changing nothing.

        Raises:
            StoreError: the store is away, read-only or full.
        """
        with self.transaction("write_check") as connection:
            version = migrating.VERSION_TABLE
            connection.execute(sa.text(f"UPDATE {version} SET version_num = version_num"))  # noqa: S608

    def now(self, connection: sa.Connection) -> int:
        """Microseconds since 1970: the server's clock on PostgreSQL, where runners' clocks may differ."""
        if self.is_sqlite:
            return self._clock()
        return int(connection.execute(_NOW).scalar_one())

    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that can say what to do where the row is there already."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    @contextmanager
    def _explaining(self, doing: str) -> Iterator[None]:
        driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        try:
            yield
        except (sa.exc.StatementError, sa.exc.TimeoutError, driver_error) as error:
            raise explained(error, self.place, doing) from error


def _parse(where: str | Path) -> sa.URL:
    text = os.fspath(where)
    if not text or "\0" in text:
        raise StoreError(f"a store is a file's path or a postgresql:// address, not {text!r}")
    if "://" not in text:
        return _file_url(text)
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise StoreError("the store's address cannot be read: write postgresql://user@host:port/database") from None
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        if url.query:
            raise StoreError(f"{text}: a SQLite store takes no options in its address")
        return _file_url(url.database or "")
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    raise StoreError(f"{url.drivername}: a store is a SQLite file or a PostgreSQL database, nothing else")


def _file_url(path: str) -> sa.URL:
    if path in ("", ":memory:"):
        raise StoreError("a store is a file: one in memory would lose what it counted")
    return sa.URL.create("sqlite", database=str(Path(path).absolute()))


def _is_missing(path: Path, *, create: bool) -> bool:
    """Whether there is no file yet; the folder that a new one is to be in is made."""
    try:
        if path.is_dir():
            raise StoreError(f"{path}: a store is a file, this is a folder")
        if path.exists():
            if not path.is_file():
                raise StoreError(f"{path}: a store is a file, this is a device or a pipe")
            return False
        if any(parent.is_file() for parent in path.parents):
            raise StoreError(f"{path}: a folder on the way to the store is a file")
        if not create:
            raise NoStore(f"{path}: there is no store here")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: the store cannot be made here: {error.strerror}") from error
    return True


def _put(new: Path, path: Path) -> None:
    """Gives a file its second name, which the file system remembers; never one that is taken (FileExistsError)."""
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A file system without second names: the place is taken first, by a file that SQLite then writes to.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refuse_foreign_file(place: str, *, create: bool) -> None:
    """Looks into a file before anything is set in it: turning on the log would change one of somebody else's."""
    try:
        address = f"{Path(place).as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.Error as error:
        raise explained(error, place, "read") from error
    if not tables and not create:
        raise NoStore(f"{place}: there is no store here")
    if tables and migrating.VERSION_TABLE not in tables:
        raise migrating.foreign_tables(place, tables)


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() != "sqlite":
        arguments = {name: value for name, value in _POSTGRESQL_WAITS.items() if name not in url.query}
        engine = sa.create_engine(url, pool_size=_KEPT_CONNECTIONS, connect_args=arguments)
        sa.event.listen(engine, "checkout", partial(_ask_idle_connection, engine.dialect))
        sa.event.listen(engine, "checkin", _note_use)
        return engine
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False})
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _ask_idle_connection(dialect: sa.Dialect, connection: Any, record: Any, _proxy: object) -> None:
    used = record.info.get("used")
    if used is None or (time.monotonic() - used < _FRESH_SECONDS and not _is_readable(connection)):
        return
    try:
        alive = dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error:
        alive = False
    if not alive:
        raise sa.exc.DisconnectionError("the server closed an idle connection")  # the pool opens another


def _is_readable(connection: Any) -> bool:
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _note_use(_: object, record: Any) -> None:
    record.info["used"] = time.monotonic()


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # Python's driver would otherwise begin transactions of its own, later and weaker than ours.
    connection.isolation_level = None
    _turn_on_log(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _turn_on_log(connection: sqlite3.Connection) -> None:
    """Where two processes open a new file at once, SQLite tells one of them that it is locked without waiting: each
    holds what the other one needs."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: sa.Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
