"""Many rows at once: a statement for each takes longer than all that the database does for them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY


def insert_all(connection: sa.Connection, into: sa.Insert, rows: Sequence[dict[str, Any]]) -> None:
    """Inserts rows, which all name the same columns, in their order.

    Args:
        into: best one that is kept: what it is made into is built once.
    """
    if connection.dialect.name == "sqlite" or len(rows) == 1:
        connection.execute(into, rows)
        return
    names = tuple(rows[0])
    connection.execute(_of_arrays(into, names), {name: [row[name] for row in rows] for name in names})


@lru_cache(maxsize=16)
def _of_arrays(into: sa.Insert, names: tuple[str, ...]) -> sa.Insert:
    """The same with an array for each column: one statement, prepared once, however many the rows are."""
    columns = into.table.c
    arrays = (sa.bindparam(name, type_=ARRAY(columns[name].type)) for name in names)
    given = sa.func.unnest(*arrays).table_valued(*names).render_derived()
    return into.from_select(list(names), sa.select(*(given.c[name] for name in names)))
