"""The recorder's side of an agent's process: start it, connect a trial to it, end all of it."""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from simulator.protocol import Connection

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

_START_SECONDS = 120.0
_TOLD_SECONDS = 1.0
_END_SECONDS = 10.0


class AgentNotStartable(Exception):  # noqa: N818 - reads as what happened
    """The agent's module could not be loaded: a wrong configuration, no evidence against the agent."""


class HostGone(OSError):  # noqa: N818 - reads as what happened
    """The fork server ended while nobody had asked it to: an agent or the system killed it."""


class HostProcess(Protocol):
    """The fork server's process, where it is a child of the recorder's."""

    @property
    def pid(self) -> int: ...

    def end(self, seconds: float) -> None:
        """Waits for it to end by itself, and ends it after these seconds."""


class AgentHost:
    """The recorder's end of a fork server (simulator/agent_host.py), and the connection of its running trial.

    Args:
        control: the other end is the fork server's.
        process: None where it runs in a container of its own.
        environ: what the agent's processes get as their environment, where the fork server does not have it.

    Raises:
        AgentNotStartable: the agent does not load.
    """

    def __init__(
        self, control: socket.socket, process: HostProcess | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._control = control
        self._process = process
        self._environ = environ
        self._lines = Connection(control)
        self._connection: Connection | None = None
        self._running: dict[str, Any] | None = None
        self._exited: dict[str, Any] | None = None
        try:
            answer = self._hear(_START_SECONDS)
        except (HostGone, TimeoutError) as error:
            ended = isinstance(error, HostGone)
            answer = {
                "unusable": "its process ended while loading"
                if ended
                else f"it did not load within {_START_SECONDS:.0f} s"
            }
        if "ready" not in answer:
            self.close()
            raise AgentNotStartable(answer["unusable"])
        self.agent: str | None = answer.get("agent")
        """What it can run, where it says so; packaged agents otherwise."""

    @classmethod
    def start(cls, agent: str | None, root: "Path", env: Mapping[str, str], log: BinaryIO) -> "AgentHost":
        """A fork server in a process of its own.

        Args:
            agent: what it loads before it forks; None for the packaged agents, which load on first use.
            root: the folder that the agent's module is found from, and its working directory.
            env: all the environment that the agent gets.
            log: where its standard output and error go.

        Raises:
            AgentNotStartable: the agent does not load.
        """
        import subprocess
        from pathlib import Path

        ours, theirs = socket.socketpair()
        package_root = str(Path(__file__).resolve().parent.parent)
        # Python itself adds this variable in the C locale (PEP 538).
        forget = "" if "LC_CTYPE" in env else "import os; os.environ.pop('LC_CTYPE', None); "
        code = (
            f"{forget}import sys; sys.path[:0] = {[str(root), package_root]!r}; "
            "from simulator.agent_host import main; main()"
        )
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
        return cls(ours, _Started(process))

    def connect(self, *, memory_mb: int, reuse: bool) -> Connection:
        """A connection to an agent's process: a fresh one, or with ``reuse`` the one that the last trial left.

        Raises:
            HostGone: the fork server has ended; another host may be started instead.
        """
        wanted: dict[str, Any] = {"memory_mb": memory_mb, "reuse": reuse}
        if self._environ is not None:
            wanted["environ"] = dict(self._environ)
        if self._connection is not None and reuse and self._running == wanted and not self._has_news():
            return self._connection
        self.end()
        self._exited = None
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
        """Ends the fork server and all below it; one in a container ends what is below it alone."""
        self._control.close()
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.end(_END_SECONDS)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def has_told(self) -> bool:
        """Whether the fork server has said something that was read along with an earlier answer."""
        return self._lines.holds_line

    def agent_ended(self) -> bool:
        """Whether the agent's process has ended. To be asked when the connection's watched descriptor is readable, or
        :attr:`has_told`."""
        line = self._lines.receive()
        return line is None or "exited" in self._noted(line)

    def ran_out_of_memory(self) -> bool:
        """Whether the system ended the agent's process for its memory. Known only of an agent in a container of its
        own, whose fork server outlived that."""
        if self._process is not None:
            return False
        with suppress(HostGone, TimeoutError):
            while self._exited is None:
                self._hear(_TOLD_SECONDS)
        return self._exited is not None and self._exited.get("out_of_memory") is True

    def _hear_until(self, kind: str) -> None:
        while kind not in self._hear(_START_SECONDS):
            pass

    def _hear(self, seconds: float) -> dict[str, Any]:
        line = self._lines.receive(time.monotonic() + seconds)
        if line is None:
            raise HostGone
        return self._noted(line)

    def _noted(self, line: bytes) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(line)
        if "exited" in message:
            self._exited = message
        return message


class _Started:
    """A process that :mod:`subprocess` started."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, seconds: float) -> None:
        from subprocess import TimeoutExpired

        with suppress(TimeoutExpired):
            self._process.wait(seconds)
            return
        self._process.kill()
        self._process.wait()


def environment(names: list[str]) -> dict[str, str]:
    """The variables that a condition names, as far as they are set. Values go nowhere else."""
    return {name: os.environ[name] for name in names if name in os.environ}
