"""What can be wrong with a store, in words for the person who runs it."""

import sqlalchemy as sa


class StoreError(Exception):
    """The store cannot be used, or refuses what it was given. Nothing was changed."""


class NoStore(StoreError):  # noqa: N818 - named after the condition
    """There is no store yet where one was asked for."""


class StateError(StoreError):
    """A transition from a state that does not allow it."""


class NotFound(StoreError):  # noqa: N818 - named after the condition
    """Nothing in the store goes by that name, or more than one thing does."""


class StoreAway(StoreError):  # noqa: N818 - named after the condition
    """The database cannot be reached, is full, or cannot write now: the same may go well later."""


_SQLITE = {
    "SQLITE_FULL": "the disk is full: free some space and run it again, nothing that was counted is lost",
    "SQLITE_READONLY": "it is read-only: make the file and its folder writable",
    "SQLITE_CANTOPEN": "it cannot be opened: its folder must exist and be readable and writable",
    "SQLITE_PERM": "permission is denied: make the file and its folder writable",
    "SQLITE_AUTH": "permission is denied: make the file and its folder writable",
    "SQLITE_NOTADB": "it is not a store: the file holds something else",
    "SQLITE_CORRUPT": "the file is damaged: restore it from a copy",
    "SQLITE_BUSY": "another process has kept it locked for too long: run it again when that one has ended",
    "SQLITE_LOCKED": "another process has kept it locked for too long: run it again when that one has ended",
    "SQLITE_IOERR": "it cannot be read or written: the disk may be full, over its quota or failing",
    "SQLITE_TOOBIG": "a document is larger than the database accepts",
}
_POSTGRESQL = {
    "53100": "the server's disk is full: free some space and run it again, nothing that was counted is lost",
    "53300": "the server accepts no more connections",
    "25006": "the server accepts no writes: it is a standby or was made read-only",
    "3D000": "the server has no such database: create it first",
    "42501": "the user may not do that: grant it the right to create and use tables",
    "28P01": "the server refuses the password",
    "28000": "the server refuses the user",
    "57P01": "the server was shut down",
    "57P03": "the server is starting up or shutting down",
}


def explained(error: BaseException, place: str, doing: str) -> StoreError:
    """A database driver's error in words; one of our own, raised while a statement was prepared, as it was."""
    cause: BaseException = error
    while isinstance(cause, sa.exc.StatementError) and cause.orig is not None:
        cause = cause.orig
    if isinstance(cause, StoreError):
        return cause
    sqlite_name = getattr(cause, "sqlite_errorname", None) or ""
    sqlstate = getattr(cause, "sqlstate", None) or ""
    reason = _SQLITE.get("_".join(sqlite_name.split("_")[:2])) or _POSTGRESQL.get(sqlstate)
    kind = StoreAway if _may_pass(cause, sqlstate) else StoreError
    first_line = " ".join(str(cause).split()) or type(cause).__name__
    if reason is None and not sqlite_name and not sqlstate and type(cause).__name__ == "OperationalError":
        reason = "the server cannot be reached"
    if reason is None:
        return kind(f"{place}: {doing}: the database refuses it: {first_line}")
    return kind(f"{place}: {doing}: {reason} ({first_line})")


def _may_pass(cause: BaseException, sqlstate: str) -> bool:
    """Whether a driver's error says something of the database's condition, and nothing of what it was asked."""
    operational = {kind.__name__ for kind in type(cause).__mro__} & {"OperationalError", "InterfaceError"}
    return bool(operational) or isinstance(cause, sa.exc.TimeoutError) or sqlstate == "25006"
