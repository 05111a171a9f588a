"""The tool protocol: JSON objects, one a line, between the recorder and an agent's process.

The recorder opens a trial with ``{"version": 1, "agent": name, "settings": {...}, "request": {...}}``. The agent sends
``{"tool": name, "arguments": {...}}``, answered by ``{"result": ...}`` or ``{"error": class}``, and ends with
``{"output": {...}}`` or ``{"failed": class}``.
"""

import json
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from simulator.json_text import orjson_is_loaded

VERSION = 1

LONGEST_FRAME = 8 * 1024 * 1024
"""Bytes of the longest line that is read."""


_SOON_SECONDS = 0.01
_AT_ONCE = 65_536
"""Bytes of one read. A buffer for more is given back to the system after each, and asked for again before the next."""


class FrameTooLong(Exception):  # noqa: N818 - reads as what happened
    """A line went past LONGEST_FRAME."""


class Connection:
    """One end of the socket. The agent's end blocks; the recorder's waits until a deadline and watches the agent."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._pending = bytearray()
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._watched: int | None = None
        self._waits_soon = False
        self.when_idle: Callable[[], float | None] | None = None
        """Called in each wait that is not over at once, and again after the seconds that it answers with. Once it is
        given, every wait has a deadline."""
        self.paused = 0.0
        """Seconds that the recorder took for itself, by which every deadline is later: the agent's time stood still."""

    def watch(self, descriptor: int) -> None:
        """Has :meth:`receive` return early once this descriptor is readable."""
        self._watched = descriptor
        self._poll.register(descriptor, select.POLLIN)

    @property
    def holds_line(self) -> bool:
        """Whether a whole line has arrived already: the descriptor then need not be readable any more."""
        return b"\n" in self._pending

    @property
    def watched(self) -> bool:
        return self._watched is not None

    def unwatch(self) -> None:
        if self._watched is not None:
            self._poll.unregister(self._watched)
            self._watched = None

    def receive(self, deadline: float | None = None) -> bytes | None:
        """The next line without its end; None at the end of the stream.

        Args:
            deadline: on ``time.monotonic``'s clock, :attr:`paused` not counted.

        Raises:
            TimeoutError: at the deadline.
            InterruptedError: the watched descriptor became readable and no line is waiting.
            FrameTooLong: the line is longer than LONGEST_FRAME.
        """
        if not self._pending:
            # A line by itself, as nearly all come: nothing is kept of it.
            data = self._arrived(deadline)
            if not data:
                return None
            if data.find(b"\n") == len(data) - 1:
                return data[:-1]
            self._pending += data
        searched = 0
        while True:
            end = self._pending.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._pending[:end])
                del self._pending[: end + 1]
                return line
            searched = len(self._pending)
            if searched > LONGEST_FRAME:
                raise FrameTooLong
            if not (data := self._arrived(deadline)):
                return None
            self._pending += data

    def _arrived(self, deadline: float | None) -> bytes:
        """What arrives next; nothing at the end of the stream."""
        try:
            if deadline is None:
                return self.socket.recv(_AT_ONCE)
            idle_after = None
            if self.when_idle is not None:
                idle_after = _SOON_SECONDS
                if deadline + self.paused - time.monotonic() > _SOON_SECONDS:
                    # Nearly every line comes soon: waited for by the call that reads it.
                    self._wait_soon()
                    with suppress(BlockingIOError):
                        return self.socket.recv(_AT_ONCE)
                    idle_after = 0.0
            self._wait(deadline, idle_after)
            return self.socket.recv(_AT_ONCE)
        except ConnectionResetError:
            return b""

    def _wait_soon(self) -> None:
        """Has reading end after a moment where nothing arrives."""
        if not self._waits_soon:
            moment = struct.pack("@ll", 0, int(_SOON_SECONDS * 1_000_000))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, moment)
            self._waits_soon = True

    def _wait(self, deadline: float, idle_after: float | None) -> None:
        while True:
            remaining = deadline + self.paused - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            wanted = remaining if idle_after is None else min(idle_after, remaining)
            # Whole milliseconds rounded up: never a busy loop just before the deadline.
            ready = self._poll.poll(int(wanted * 1000) + 1)
            if ready:
                break
            if self.when_idle is not None and wanted < remaining:
                started = time.monotonic()
                idle_after = self.when_idle()
                self.paused += time.monotonic() - started
        if len(ready) == 1 and ready[0][0] == self._watched:
            raise InterruptedError

    def send(self, frame: bytes, deadline: float | None = None) -> None:
        """Sends one line.

        Raises:
            TimeoutError: the other side did not read until the deadline.
            BrokenPipeError, ConnectionResetError: it has gone.
        """
        if deadline is None:
            self.socket.sendall(frame + b"\n")
            return
        rest = memoryview(frame + b"\n")
        while rest:
            try:
                rest = rest[self.socket.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                remaining = deadline + self.paused - time.monotonic()
                if remaining <= 0 or not select.select([], [self.socket], [], remaining)[1]:
                    raise TimeoutError from None

    def close(self) -> None:
        self.socket.close()


class DuplicateMember(ValueError):  # noqa: N818 - reads as what is wrong
    """A JSON object names a member twice: two readers could take it for two different calls."""


def parse(line: bytes) -> Any:
    """A line's JSON, kept exactly: large integers stay integers, NaN and lone surrogates come through to be refused.

    Raises:
        DuplicateMember, ValueError, RecursionError: it is no such JSON.
    """
    if orjson_is_loaded():
        import orjson

        try:
            value = orjson.loads(line)
            # Written back byte for byte, it named no member twice and no number changed: what most lines are.
            if orjson.dumps(value) == line:
                return value
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            pass  # no such JSON, or too deep to be written back
    return _DECODER.decode(line.decode())


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise DuplicateMember
    return members


_DECODER = json.JSONDecoder(object_pairs_hook=_members)
