"""Making and upgrading a store's tables with Alembic, once, whoever opens it first."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from grading.store.errors import NoStore, StoreError
from grading.store.tables import metadata

if TYPE_CHECKING:
    from grading.store.opening import Store

HEAD = "0003"
"""The newest migration. Known here so that opening a current store need not load Alembic."""

VERSION_TABLE = "cellwise_version"
_LOCK = 0x63656C6C77697365  # "cellwise"


def bring_up_to_date(store: "Store", *, create: bool) -> None:
    """Makes the tables of an empty database, upgrades those of an older one, and refuses any other.

    Raises:
        StoreError: for a store of a newer version, a database of something else, or one that cannot be written.
    """
    with store.reading() as connection:
        found = _revision(connection)
    if found == HEAD:
        if store.is_sqlite:
            # Learns now, not after the first trial, that the file cannot be written.
            with store.transaction("migrate"):
                pass
        return
    if found is None and not create:
        raise NoStore(f"{store.place}: there is no store here")
    with store.transaction("migrate") as connection:
        if not store.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        found = _revision(connection)
        if found is None:
            _refuse_foreign_tables(store, connection)
        if found != HEAD:
            _upgrade(store, connection, found)


def alembic_config(connection: sa.Connection) -> Any:
    """Alembic's configuration, without a file of its own."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()  # noqa: S608


def _refuse_foreign_tables(store: "Store", connection: sa.Connection) -> None:
    present = set(sa.inspect(connection).get_table_names())
    foreign = present if store.is_sqlite else present & set(metadata.tables)
    if foreign:
        raise foreign_tables(store.place, foreign)


def foreign_tables(place: str, tables: Iterable[str]) -> StoreError:
    """The refusal of a database that is somebody else's."""
    listed = ", ".join(sorted(tables)[:3])
    return StoreError(f"{place}: it is not a store: it holds tables of something else ({listed})")


def _upgrade(store: "Store", connection: sa.Connection, found: str | None) -> None:
    from alembic import command
    from alembic.script import ScriptDirectory

    config = alembic_config(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreError(
            f"{store.place}: the store was written by a newer version of Cellwise (its tables are at {found}, "
            f"this version knows {HEAD}): upgrade Cellwise, or use another store"
        )
    command.upgrade(config, "head")
