"""Instants that people write, in files and on the command line: ISO 8601 with a zone."""

from datetime import UTC, datetime


def instant(text: str) -> datetime:
    """The instant in UTC.

    Raises:
        ValueError: it is none, says no zone, or lies outside of the years 1 to 9999 in UTC.
    """
    shown = text[:60]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"'{shown}' is no instant such as 2026-12-01T00:00:00Z") from error
    if moment.tzinfo is None:
        raise ValueError(f"'{shown}' says no time zone: write it such as 2026-12-01T00:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"'{shown}' is outside of the years 1 to 9999 in UTC") from error
