"""The journal: each call on disk before it is answered, so that a killed recorder's calls are known.

One file for each worker, JSON objects a line: ``begin``, ``call`` and ``ledger`` of an attempt. The worker holds a lock
on it as long as it lives; who reads a dead worker's journal waits for that lock first. A last line without its end was
never answered, and is left out.
"""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson


def begin_line(attempt: int, assignment: str, started: int) -> bytes:
    return b'{"attempt":%d,"begin":{"assignment":"%b","started":%d}}' % (attempt, assignment.encode(), started)


def call_line(attempt: int, record: dict[str, Any], started: int, ended: int) -> bytes:
    return b'{"attempt":%d,"call":%b,"started":%d,"ended":%d}' % (attempt, orjson.dumps(record), started, ended)


class Journal:
    """The worker's side. Every write is one system call, so a kill leaves whole lines and at most one torn end.

    Written lines outlive the process, not a power cut: there is no fsync for each call.

    Raises:
        OSError: where the disk is full or read-only; the call is then not answered.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def begin(self, attempt: int, assignment: str, started: int) -> None:
        self._write(begin_line(attempt, assignment, started) + b"\n")

    def call(self, attempt: int, record: dict[str, Any], started: int, ended: int) -> None:
        self._write(call_line(attempt, record, started, ended) + b"\n")

    def ledger(self, attempt: int, document: bytes) -> None:
        self._write(b'{"attempt":%d,"ledger":%b}\n' % (attempt, document))

    def forget(self) -> None:
        """Empties the file: the store holds every ledger that it was kept for."""
        os.ftruncate(self._file, 0)

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"the journal took {written} of {len(line)} bytes: is the disk full?")


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


@contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[bool]:
    """Waits until the worker that writes a journal is gone; False where it is not after these seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.02)
            else:
                yield True
                return
    finally:
        os.close(descriptor)


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
