"""The zygote: a process with the simulator loaded and nothing secret, which hosts of packaged agents are forked from.

A worker forks it off before it has been told anything, its environment included, so that neither the zygote nor what
comes of it can hold a secret. A host that is forked has what one that is started has: a session, a working directory
and descriptors of its own, an empty environment; it only need not load the simulator again. An agent of one's own or
with an environment is started instead: its module must find the modules that Python would find, and what one agent's
environment holds must not be in the memory of another's.

It needs descriptors of processes (Linux): elsewhere there is none, and every host is started.
"""

import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import orjson

from simulator.agent_host import die_with_parent, main

_ANSWER_SECONDS = 10.0


class Zygote:
    """The worker's side of its zygote."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control = control
        self.pid = pid

    @classmethod
    def fork(cls) -> "Zygote | None":
        """Forks this process as it is now; None where hosts must be started instead."""
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What is shared stays shared: the collector would write to it, in either process.
        gc.freeze()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _ending_here(partial(_serve, theirs, parent))
        theirs.close()
        ours.settimeout(_ANSWER_SECONDS)
        return cls(ours, pid)

    def fork_host(self, agent: str | None, root: Path, log: BinaryIO) -> "tuple[ForkedHost, socket.socket] | None":
        """A host's process and our end of its control socket; None where the zygote has ended: start one instead.

        Args:
            agent: a packaged agent to load before its processes fork, or None.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            wanted = orjson.dumps({"agent": agent, "root": list(os.fsencode(root))})
            try:
                socket.send_fds(self._control, [wanted], [theirs.fileno(), log.fileno()])
                answer = self._control.recv(64)
            except OSError:
                answer = b""
        if not answer:
            self.close()
            ours.close()
            return None
        # It stays a zombie until the zygote is asked for another one: the number is still its own.
        return ForkedHost(int(answer)), ours

    def close(self) -> None:
        """Ends it. Its hosts live on, until their control sockets close."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class ForkedHost:
    """The process of a forked host, which is no child of the worker's."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def end(self, seconds: float) -> None:
        """Waits for it to end by itself, and ends it after these seconds."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(seconds * 1000):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            poll.poll()

    def __del__(self) -> None:
        os.close(self._descriptor)


def _serve(control: socket.socket, parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:
        return  # it had died before it could take this process along
    # The worker's own line to the runner is none of an agent's.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    while True:
        wanted, descriptors, _, _ = socket.recv_fds(control, 65_536, 2)
        if not wanted:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        pid = os.fork()
        if pid == 0:
            _ending_here(partial(_become_host, orjson.loads(wanted), *descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(b"%d" % pid)


def _become_host(wanted: dict[str, Any], control: int, log: int) -> None:
    """As simulator/agent_process.py starts one: a session of its own, nothing open but its control socket and log."""
    os.setsid()
    for descriptor, place in ((control, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    os.closerange(3, max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + 1)
    root = os.fsdecode(bytes(wanted["root"]))
    os.chdir(root)
    sys.path.insert(0, root)
    sys.argv[1:] = [wanted["agent"]] if wanted["agent"] else []
    main()


def _ending_here(run: Callable[[], None]) -> NoReturn:
    """Ends this process after that, without what its parent would do at its own end."""
    status = 1
    try:
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)
