"""Many rows at once: a statement for each takes longer than all that the database does for them."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY


def insert_all(
    connection: sa.Connection, into: sa.Insert | sqlite.Insert | postgresql.Insert, rows: Sequence[dict[str, Any]]
) -> None:
    """Inserts rows, which all name the same columns, in their order."""
    if connection.dialect.name == "sqlite":
        connection.execute(into, rows)
        return
    names, columns = list(rows[0]), into.table.c
    # One statement with an array for each column: it is prepared once, however many the rows are.
    arrays = (sa.bindparam(name, type_=ARRAY(columns[name].type)) for name in names)
    given = sa.func.unnest(*arrays).table_valued(*names).render_derived()
    insert = into.from_select(names, sa.select(*(given.c[name] for name in names)))
    connection.execute(insert, {name: [row[name] for row in rows] for name in names})
