"""The launcher of local worker processes: each in a process group of its own, ended as a group."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

_END_SECONDS = 5.0


class Loading:
    """A worker's process that loads already, before its runner knows what it is for."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        # Where this process found simulator/, the worker finds it: also from a checkout that is not installed. It
        # starts with nothing that an agent may not know: its environment comes once it has forked off its zygote.
        self.found_from = [path for path in sys.path if path]
        code = (
            f"import os, sys; os.environ.clear(); sys.path[:] = {self.found_from!r}; "
            "from simulator.worker import main; main()"
        )
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(os.getpid())],
                stdin=theirs.fileno(),
                start_new_session=True,
                env={},
            )

    def end(self) -> None:
        """Ends it where no worker came of it."""
        self.socket.close()
        self.process.kill()
        self.process.wait()


class Worker:
    """A worker process (simulator/worker.py) as the runner sees it: leases go out, reports come in.

    Args:
        root: the folder that agents of one's own are imported from.
        folder: where its journal and its agents' log are, named after ``name``.
        loading: the process, where one was started before.
    """

    def __init__(self, name: str, root: Path, folder: Path, loading: Loading | None = None) -> None:
        self.name = name
        self.journal = folder / f"{name}.journal"
        self.outstanding: dict[int, Any] = {}
        """What it was handed and has not answered, by attempt, in the order it will run them."""
        loading = loading or Loading()
        self._process, ours = loading.process, loading.socket
        # Neither side may wait for the other to read first: what the worker does not take yet waits here.
        ours.setblocking(False)
        self.socket = ours
        self._outgoing = bytearray()
        self.ledgers_in_journal = 0
        self._pending = bytearray()
        self._known: set[str] = set()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(loading.found_from)}
        self._send(
            orjson.dumps(
                {
                    "worker": {
                        "name": name,
                        "root": _of_system(root),
                        "journal": _of_system(self.journal),
                        "log": _of_system(folder / f"{name}.log"),
                        "environment": {_of_system(key): _of_system(value) for key, value in environment.items()},
                    }
                }
            )
            + b"\n"
        )

    def hand_out(self, leases: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Sends leases, each with its assignment, which travels once for each worker."""
        frames = []
        for lease, assignment in leases:
            if lease["hash"] not in self._known:
                self._known.add(lease["hash"])
                frames.append(orjson.dumps({"hash": lease["hash"], "assignment": assignment}))
            frames.append(orjson.dumps(lease))
        self._send(b"".join(frame + b"\n" for frame in frames))

    def forget(self) -> None:
        """Has it empty its journal, all of whose ledgers are in the store, and forget its assignments."""
        self.ledgers_in_journal = 0
        self._known.clear()
        self._send(b'{"forget": true}\n')

    def _send(self, data: bytes) -> None:
        self._outgoing += data
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as the worker takes it. That it has ended shows when its reports are read."""
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]

    @property
    def has_waiting(self) -> bool:
        return bool(self._outgoing)

    def reports(self) -> list[tuple[dict[str, Any], bytes]] | None:
        """What has arrived since the last call, to be called when the socket is readable; None when it has ended."""
        try:
            data = self.socket.recv(4 * 1024 * 1024)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        self._pending += data
        found = []
        while (end := self._pending.find(b"\n")) >= 0:
            head: dict[str, Any] = orjson.loads(self._pending[:end])
            size = head.pop("bytes")
            if len(self._pending) < end + 1 + size:
                break
            found.append((head, bytes(self._pending[end + 1 : end + 1 + size])))
            del self._pending[: end + 1 + size]
        return found

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def let_go(self) -> None:
        """Has it end by itself, without waiting for it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def end(self, *, at_once: bool = False) -> None:
        """Lets it end by itself, or ends its group at once; with it end its agents."""
        self.socket.close()
        if not at_once:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _of_system(text: str | Path) -> str:
    """A path or variable for the worker's first message: it need not be Unicode, so it travels as Latin-1."""
    return os.fsencode(text).decode("latin-1")
