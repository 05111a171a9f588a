"""Reading journals: what they tell of attempts whose recorder is gone.

A last line without its end was never answered, and is left out. It is apart from simulator/journal.py, since pods only
write.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson


@dataclass
class JournaledAttempt:
    """What a journal tells of one attempt."""

    attempt: int
    assignment: str | None = None
    started: int | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    """``{"call": record, "started": microseconds, "ended": microseconds}``"""
    ledger: bytes | None = None
    """The sealed document, where the trial had ended."""

    def document(self) -> bytes:
        """What is kept of it in the store."""
        return orjson.dumps({"assignment": self.assignment, "started": self.started, "calls": self.calls})


class JournalChanged(ValueError):  # noqa: N818 - reads as what happened
    """A whole line of a journal is none that its worker wrote: something else changed the file.

    ``attempts`` is what the lines before it tell.
    """

    def __init__(self, message: str, attempts: dict[int, JournaledAttempt]) -> None:
        super().__init__(message)
        self.attempts = attempts


def read_journal(path: Path) -> dict[int, JournaledAttempt]:
    """The attempts in a journal, by their numbers in the store.

    Raises:
        JournalChanged: a whole line is no journal line: the file was changed by something else.
    """
    with path.open("rb") as file:
        return read_lines(file, path.name)


def read_lines(lines: Iterable[bytes], place: str) -> dict[int, JournaledAttempt]:
    """The same of lines that stand elsewhere, each with its end.

    Args:
        place: what they are called where one is none.

    Raises:
        JournalChanged: as :func:`read_journal`.
    """
    attempts: dict[int, JournaledAttempt] = {}
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            members = orjson.loads(line)
            attempt = attempts.setdefault(_integer(members["attempt"]), JournaledAttempt(members["attempt"]))
            if "begin" in members:
                attempt.assignment = str(members["begin"]["assignment"])
                attempt.started = _integer(members["begin"]["started"])
            elif "ledger" in members:
                attempt.ledger = line[line.index(b'"ledger":') + len(b'"ledger":') : -2]
            else:
                attempt.calls.append(_call(members))
        except (ValueError, KeyError, TypeError) as error:
            raise JournalChanged(f"{place}:{number}: no line of a journal", attempts) from error
    return attempts


@dataclass(slots=True)
class Journals:
    """What journals tell of attempts."""

    attempts: dict[int, JournaledAttempt] = field(default_factory=dict)
    changed: str | None = None
    """Where one was changed by something else: what it does not tell is then no longer known."""

    def read(self, path: Path) -> None:
        with path.open("rb") as file:
            self.read_lines(file, path.name)

    def read_lines(self, lines: Iterable[bytes], place: str) -> None:
        try:
            self.attempts.update(read_lines(lines, place))
        except JournalChanged as error:
            self.attempts.update(error.attempts)
            self.changed = str(error)


def _call(members: dict[str, Any]) -> dict[str, Any]:
    call = members["call"]
    if not isinstance(call["tool"], str) or "arguments" not in call:
        raise TypeError
    return {"call": call, "started": _integer(members["started"]), "ended": _integer(members["ended"])}


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value
