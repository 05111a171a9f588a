"""The recorder's side of an agent's process: start it, connect a trial to it, end all of it."""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from simulator.protocol import Connection
from simulator.zygote import HostProcess, Zygote

_START_SECONDS = 120.0
_END_SECONDS = 10.0


class AgentNotStartable(Exception):  # noqa: N818 - reads as what happened
    """The agent's module could not be loaded: a wrong configuration, no evidence against the agent."""


class HostGone(OSError):  # noqa: N818 - reads as what happened
    """The fork server ended while nobody had asked it to: an agent or the system killed it."""


class AgentHost:
    """A fork server process (simulator/agent_host.py) and the connection of its running trial.

    Args:
        agent: what it loads before it forks; None for the packaged agents, which load on first use.
        root: the folder that the agent's module is found from, and its working directory.
        env: all the environment that the agent gets.
        log: where its standard output and error go.
        zygote: what packaged agents without an environment are forked from; without one they are started too.
    """

    def __init__(
        self, agent: str | None, root: Path, env: Mapping[str, str], log: BinaryIO, zygote: Zygote | None = None
    ) -> None:
        forked = zygote.fork_host(agent, root, log) if zygote and not env and ":" not in (agent or "") else None
        self._process: subprocess.Popen[bytes] | HostProcess
        self._process, self._control = forked or _started(agent, root, env, log)
        self._lines = Connection(self._control)
        self._connection: Connection | None = None
        self._running: dict[str, Any] | None = None
        try:
            answer = self._hear(_START_SECONDS)
        except HostGone:
            answer = {"unusable": "its process ended while loading"}
        except TimeoutError:
            answer = {"unusable": f"it did not load within {_START_SECONDS:.0f} s"}
        if "ready" not in answer:
            self.close()
            raise AgentNotStartable(answer["unusable"])

    def connect(self, *, memory_mb: int, reuse: bool) -> Connection:
        """A connection to an agent's process: a fresh one, or with ``reuse`` the one that the last trial left.

        Raises:
            HostGone: the fork server has ended; another host may be started instead.
        """
        wanted = {"memory_mb": memory_mb, "reuse": reuse}
        if self._connection is not None and reuse and self._running == wanted and not self._has_news():
            return self._connection
        self.end()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [json.dumps({"run": wanted}).encode() + b"\n"], [theirs.fileno()])
                self._hear_until("started")
        except (BrokenPipeError, ConnectionResetError) as error:
            ours.close()
            raise HostGone from error
        except BaseException:
            ours.close()
            raise
        self._connection, self._running = Connection(ours), wanted
        self._connection.watch(self._control.fileno())
        return self._connection

    def _has_news(self) -> bool:
        """Whether the idle process of a reusable agent has ended, or the fork server itself."""
        return self._lines.holds_line or bool(select.select([self._control], [], [], 0)[0])

    def end(self) -> None:
        """Ends the agent's process group and whatever it left running. Returns when all of it is gone.

        Raises:
            HostGone: the fork server has ended, so that nobody could say so; :meth:`close` it.
        """
        if self._connection is None:
            return
        self._connection.close()
        self._connection = self._running = None
        try:
            self._control.sendall(b'{"end": true}\n')
        except (BrokenPipeError, ConnectionResetError) as error:
            raise HostGone from error
        self._hear_until("ended")

    def close(self) -> None:
        """Ends the fork server and all below it."""
        self._control.close()
        if self._connection is not None:
            self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
            return
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_told(self) -> bool:
        """Whether the fork server has said something that was read along with an earlier answer."""
        return self._lines.holds_line

    def agent_ended(self) -> bool:
        """Whether the agent's process has ended. To be asked when the connection's watched descriptor is readable, or
        :attr:`has_told`."""
        line = self._lines.receive()
        return line is None or "exited" in json.loads(line)

    def _hear_until(self, kind: str) -> None:
        while kind not in self._hear(_START_SECONDS):
            pass

    def _hear(self, seconds: float) -> dict[str, Any]:
        line = self._lines.receive(time.monotonic() + seconds)
        if line is None:
            raise HostGone
        message: dict[str, Any] = json.loads(line)
        return message


def _started(
    agent: str | None, root: Path, env: Mapping[str, str], log: BinaryIO
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    package_root = str(Path(__file__).resolve().parent.parent)
    # Python itself adds this variable in the C locale (PEP 538).
    forget = "" if "LC_CTYPE" in env else "import os; os.environ.pop('LC_CTYPE', None); "
    code = (
        f"{forget}import sys; sys.path[:0] = {[str(root), package_root]!r}; "
        "from simulator.agent_host import main; main()"
    )
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *([agent] if agent else [])],
            stdin=theirs.fileno(),
            stdout=log,
            stderr=log,
            cwd=root,
            env=dict(env),
            start_new_session=True,
        )
    return process, ours


def environment(names: list[str]) -> dict[str, str]:
    """The variables that a condition names, as far as they are set. Values go nowhere else."""
    return {name: os.environ[name] for name in names if name in os.environ}
