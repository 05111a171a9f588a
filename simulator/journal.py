"""The journal: each call on disk before it is answered, so that a killed recorder's calls are known.

One file for each worker, JSON objects a line: ``begin``, ``call`` and ``ledger`` of an attempt. The worker holds a lock
on it as long as it lives; who reads a dead worker's journal (simulator/journal_reading.py) waits for that lock first.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simulator.json_text import dumps

if TYPE_CHECKING:
    from pathlib import Path

    from simulator.recorder import Lease


def begin_line(attempt: int, assignment: str, started: int) -> bytes:
    return line(attempt, begin_members(assignment, started))


def call_line(attempt: int, record: dict[str, Any], started: int, ended: int) -> bytes:
    return line(attempt, call_members(record, started, ended))


def line(attempt: int, members: bytes) -> bytes:
    """A line of an attempt, whose number may be known later than what stands in it."""
    return b'{"attempt":%d,%b}' % (attempt, members)


def begin_members(assignment: str, started: int) -> bytes:
    return b'"begin":{"assignment":"%b","started":%d}' % (assignment.encode(), started)


def call_members(record: dict[str, Any], started: int, ended: int) -> bytes:
    return b'"call":%b,"started":%d,"ended":%d' % (dumps(record), started, ended)


class Journal:
    """The worker's side. Every write is one system call, so a kill leaves whole lines and at most one torn end.

    Written lines outlive the process, not a power cut: there is no fsync for each call.

    Raises:
        OSError: where the disk is full or read-only; the call is then not answered.
    """

    def __init__(self, path: "Path") -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def begin(self, attempt: int, assignment: str, started: int) -> None:
        self._write(begin_line(attempt, assignment, started) + b"\n")

    def call(self, attempt: int, record: dict[str, Any], started: int, ended: int) -> None:
        self._write(call_line(attempt, record, started, ended) + b"\n")

    def leased(self, lease: "Lease") -> "Lease":
        return lease

    def ledger(self, attempt: int, document: bytes) -> None:
        self._write(b'{"attempt":%d,"ledger":%b}\n' % (attempt, document))

    def forget(self) -> None:
        """Empties the file: the store holds every ledger that it was kept for."""
        os.ftruncate(self._file, 0)

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"the journal took {written} of {len(line)} bytes: is the disk full?")


@contextmanager
def locked(path: "Path", *, seconds: float) -> Iterator[bool]:
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
