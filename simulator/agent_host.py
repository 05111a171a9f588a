"""The process that agents run in: a fork server with one agent's module loaded, and a fresh process for each trial.

It is started with a clean environment and talks to the recorder over a control socket: ``{"run": {...}}`` comes with
the trial's own socket as a passed descriptor (and with ``environ``, where the fork server does not have the agent's
environment itself) and is answered by ``{"started": pid}``; ``{"exited": ...}`` follows when the agent's process ends;
``{"end": true}`` ends its process group and all it left behind, answered by ``{"ended": true}``. A reusable agent's
process serves trial after trial on its one socket.

Whoever forks away from the group does not escape: as child subreaper (Linux) the host inherits every orphan, and ends
it.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, cast

from simulator.agent import ProviderUnavailable, Request, Tools
from simulator.protocol import Connection

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serves the control socket on descriptor 0 until it closes. Arguments: the agent's name, or none."""
    control = socket.socket(fileno=os.dup(0))
    _redirect_input()
    host = Host(control)
    # A module that never comes to an end would not see the socket close.
    die_with_parent()
    try:
        for name in sys.argv[1:]:
            preload(name)
    except BaseException as error:
        _print_traceback()
        host.tell({"unusable": f"{type(error).__name__}: {error}"[:2000]})
        return
    # From here on the closing socket ends this process, which must live to end what the agent leaves behind.
    die_with_parent(wanted=False)
    host.tell({"ready": True})
    host.serve()


def serve(control: socket.socket) -> None:
    """The same for packaged agents, in a process that has loaded what it needs."""
    host = Host(control)
    host.tell({"ready": True})
    host.serve()


@cache
def load(name: str) -> Callable[..., Any]:
    """The agent's function: a packaged agent's, or the function of ``module:function``."""
    module, separator, function = name.partition(":")
    if separator:
        found: Any = import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
        return cast("Callable[..., Any]", found)
    from simulator.agents import load_agent

    return load_agent(name).function


def preload(name: str) -> None:
    """Loads an agent before its processes fork, so that no trial's time is spent on it."""
    load(name)
    if ":" in name:
        import simulator.output  # noqa: F401 - most agents of one's own answer with it, packaged ones do not

    gc.collect()
    gc.freeze()


class Host:
    """The fork server.

    Args:
        others: further sockets of the fork server's that no agent may have.
        memory_kills: how many processes of this one's container the system has ended for want of memory, where known.
    """

    def __init__(
        self,
        control: socket.socket,
        others: Collection[socket.socket] = (),
        memory_kills: Callable[[], int] | None = None,
    ) -> None:
        self._control = control
        self._others = others
        self._memory_kills = memory_kills
        self._kills_before = 0
        self._child: int | None = None
        become_subreaper()

    def tell(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: self._reap())
        pending = b""
        try:
            while True:
                try:
                    data, descriptors, _, _ = socket.recv_fds(self._control, 65_536, 1)
                except ConnectionResetError:
                    return
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "run" in message:
                        self._start(socket.socket(fileno=descriptors[0]), message["run"])
                    else:
                        self._end()
                        self.tell({"ended": True})
        finally:
            self._end()

    def _start(self, connection: socket.socket, run: dict[str, Any]) -> None:
        self._end()
        if self._memory_kills is not None:
            self._kills_before = self._memory_kills()
        pid = os.fork()
        if pid == 0:
            self._become_agent(connection, run)
        with suppress(OSError):  # the child does the same: whoever comes first
            os.setpgid(pid, pid)
        connection.close()
        self.tell({"started": pid})
        self._child = pid
        self._reap()  # it may have ended before we knew its name

    def _become_agent(self, connection: socket.socket, run: dict[str, Any]) -> None:
        status = 1
        try:
            with suppress(OSError):
                os.setpgid(0, 0)
            die_with_parent()
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            for one in (self._control, *self._others):
                one.close()
            if "environ" in run:
                os.environ.clear()
                os.environ.update(run["environ"])
            memory = run["memory_mb"] * 1024 * 1024
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            serve_trials(Connection(connection), reuse=run["reuse"])
            status = 0
        except BaseException:
            _print_traceback()
        finally:
            _flush()
            os._exit(status)

    def _reap(self) -> None:
        if self._child is None:
            return
        with suppress(ChildProcessError):
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                # Told once, and before anything else about this process: its group may still live.
                self.tell(self._exit(os.waitstatus_to_exitcode(status)))

    def _exit(self, status: int) -> dict[str, Any]:
        if status == -signal.SIGKILL and self._memory_kills is not None and self._memory_kills() > self._kills_before:
            return {"exited": status, "out_of_memory": True}
        return {"exited": status}

    def _end(self) -> None:
        """Ends the agent's group, then every process that was left to us, until there is none."""
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
        while True:
            for orphan in children():
                with suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def serve_trials(connection: Connection, *, reuse: bool) -> None:
    """The agent's process: one trial, or as many as come."""
    while (line := connection.receive()) is not None:
        opening = json.loads(line)
        answer = _answer(opening, connection).encode()
        _flush()  # this process may be ended as soon as it has answered
        connection.send(answer)
        if not reuse:
            return


def _answer(opening: dict[str, Any], connection: Connection) -> str:
    try:
        agent = load(opening["agent"])
        output = agent(Request(**opening["request"]), Tools(connection), **opening["settings"])
        if isinstance(output, Awaitable):
            import asyncio

            output = asyncio.run(_awaited(output))
        if not isinstance(output, dict) and hasattr(output, "model_dump"):
            output = output.model_dump(mode="json")
        # Without spaces: as the recorder's own encoder writes it, which then need not look any closer.
        return json.dumps({"output": output}, separators=(",", ":"))
    except ProviderUnavailable:
        return json.dumps({"failed": "ProviderUnavailable", "provider": True})
    except Exception as error:
        _print_traceback()
        return json.dumps({"failed": type(error).__name__})


def _print_traceback() -> None:
    """What the traceback module would print, which is not loaded for it: here memory may have run out."""
    sys.__excepthook__(*sys.exc_info())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the agent may have closed or replaced them
            stream.flush()


async def _awaited(output: Any) -> Any:
    return await output


def become_subreaper() -> None:
    """Orphans below this process become its children (Linux; elsewhere only the agent's group is ended)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(*, wanted: bool = True) -> None:
    """The kernel ends this process when its parent dies, however that dies (Linux); or no longer does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if wanted else 0, 0, 0, 0)


def end_orphans(spared: Collection[int]) -> None:
    """Ends every child of this process but those, and what they leave to it in turn (Linux, as subreaper)."""
    while orphans := set(children()) - set(spared):
        for orphan in orphans:
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        for orphan in orphans:
            with suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def children() -> list[int]:
    """The process ids of this process's children (Linux; elsewhere none are known)."""
    try:
        return [int(pid) for pid in _kernels_file(f"/proc/self/task/{os.getpid()}/children").split()]
    except OSError:
        return []


def keep_environment(names: Collection[str] = ()) -> None:
    """Forgets every variable but these, also where the kernel shows the environment that this process began with.

    For a process that begins with more than its agents may see: those forked from it show the same memory in
    ``/proc/self/environ``. Linux; elsewhere that is not shown.
    """
    kept = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.clear()
    if sys.platform == "linux":
        # After the process's name, which may hold anything: fields 50 and 51, where the environment begins and ends.
        fields = _kernels_file("/proc/self/stat").rpartition(b") ")[2].split()
        begin, end = int(fields[47]), int(fields[48])
        ctypes.memset(begin, 0, end - begin)
    os.environ.update(kept)


def _kernels_file(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def _redirect_input() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    main()
