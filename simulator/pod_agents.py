"""Where the agents of a pod run.

Packaged ones in a process forked from the recorder's before that knew anything, which saves an interpreter's start;
others in a container of their own.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress

from simulator.agent_host import keep_environment, serve
from simulator.agent_process import AgentHost, AgentNotStartable, HostGone, environment
from simulator.json_text import dumps

_PAUSE = 0.1


class ForkedHosts:
    """The fork server of packaged agents, forked from this process where it stands.

    To be made before this process reads a token or an assignment: its memory is the agents' too.
    """

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            _become_host(self._control, theirs)
        theirs.close()
        self._used = False

    def start(self, agent: str | None, env: list[str]) -> AgentHost:
        """The fork server; another one, in a fresh interpreter, where an agent has ended the first.

        Raises:
            HostGone: it does not start, which is nobody's wrong configuration.
        """
        try:
            return self._started(env)
        except AgentNotStartable as error:
            raise HostGone(str(error)) from error

    def _started(self, env: list[str]) -> AgentHost:
        if self._used:
            from pathlib import Path

            with Path(os.devnull).open("wb") as nothing:
                root = Path(__file__).resolve().parent.parent
                return AgentHost.start(None, root, environment(env), nothing)
        self._used = True
        return AgentHost(self._control, _Forked(self._pid), environment(env))

    def close(self) -> None:
        if not self._used:
            self._control.close()
            _Forked(self._pid).end(1.0)


class ContainerHost:
    """The fork server of an agent in a container of its own, reached by a socket on a volume that only these two share.

    Args:
        seconds: how long its container may take to start, or to start again after its end.
    """

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds

    def start(self, agent: str | None, env: list[str]) -> AgentHost:
        """A connection to the fork server, which loads the agent on the first one.

        Raises:
            AgentNotStartable: nobody answers, or the agent does not load.
        """
        control = self._connected()
        with suppress(BrokenPipeError, ConnectionResetError):  # the missing answer tells
            control.sendall(dumps({"load": agent, "env": env}) + b"\n")
        return AgentHost(control)

    def close(self) -> None:
        """Nothing: the recorder closes its connections."""

    def _connected(self) -> socket.socket:
        deadline = time.monotonic() + self._seconds
        while True:
            control = socket.socket(socket.AF_UNIX)
            try:
                control.connect(self._path)
            except OSError as error:
                control.close()
                if time.monotonic() > deadline:
                    raise AgentNotStartable(
                        f"its container does not answer on {self._path} within {self._seconds:g} s: {error.strerror}"
                    ) from error
                time.sleep(_PAUSE)
            else:
                return control


class _Forked:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid

    def end(self, seconds: float) -> None:
        with suppress(ChildProcessError, ProcessLookupError):
            waiting = os.pidfd_open(self._pid)
            try:
                if not select.select([waiting], [], [], seconds)[0]:
                    os.kill(self._pid, signal.SIGKILL)
            finally:
                os.close(waiting)
            os.waitpid(self._pid, 0)


def _become_host(recorders: socket.socket, control: socket.socket) -> None:
    """The forked process's life: its own session, nothing open but its socket, no variable, no output."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        recorders.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        keep_environment()
        serve(control)
    finally:
        os._exit(0)
