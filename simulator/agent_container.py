"""The fork server of a user's agent in a container of its own, reached by the recorder beside it in the same pod.

They share nothing but a volume with a Unix socket. The recorder's first message is ``{"load": "module:function", "env":
[names]}``, answered by ``{"ready": true, ...}`` or ``{"unusable": why}``; from there on simulator/agent_host.py's
protocol is spoken. When the recorder closes, everything that its trial left running is ended. This process outlives
trials and recorders, and ends at SIGTERM at once. It is meant to be the container's first process, but need not be.
"""

import argparse
import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from simulator.agent_host import Host, become_subreaper, end_orphans, keep_environment, preload
from simulator.protocol import Connection, FrameTooLong

MEMORY_EVENTS = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Where the kernel counts what it ended in this container for want of memory: cgroup v2, and v1."""

_HELLO_SECONDS = 10.0
"""Whoever connects and says nothing is no recorder."""


def main() -> None:
    """``python -m simulator.agent_container`` with the options below."""
    parser = argparse.ArgumentParser(prog="simulator.agent_container")
    parser.add_argument("--socket", type=Path, default=os.environ.get("CELLWISE_AGENT_SOCKET"))
    parser.add_argument("--root", type=Path, default=Path(), help="the folder that the agent's module is found from")
    arguments = parser.parse_args()
    if arguments.socket is None:
        parser.error("--socket or CELLWISE_AGENT_SOCKET must say where to listen")
    signal.signal(signal.SIGTERM, _end)
    become_subreaper()
    listener = _listening(arguments.socket)
    os.chdir(arguments.root)
    sys.path.insert(0, str(Path.cwd()))
    loaded = LoadedAgent()
    while True:
        control, _ = listener.accept()
        with control:
            _serve(control, listener, loaded)


class LoadedAgent:
    """The one agent of this container, loaded when the first recorder asks for it."""

    def __init__(self) -> None:
        self._asked: dict[str, Any] | None = None
        self._problem: str | None = None

    def load(self, asked: dict[str, Any]) -> str | None:
        """Loads it, its environment cut down to what its condition names; why it cannot be run, or None."""
        name, env = asked.get("load"), asked.get("env")
        if not isinstance(name, str) or ":" not in name or not isinstance(env, list):
            return f"an agent in a container is a module:function, not {name!r}"
        if self._asked is None:
            self._asked = asked
            keep_environment([each for each in env if isinstance(each, str)])
            try:
                preload(name)
            except BaseException as error:  # the user's module may raise anything, SystemExit too
                traceback.print_exc()
                self._problem = f"{type(error).__name__}: {error}"[:2000]
        elif self._asked != asked:
            return f"this container runs {self._asked['load']} with its own variables, not {name}"
        return self._problem


def memory_kills() -> int:
    """How many processes of this container the kernel has ended for want of memory; 0 where it does not say."""
    for path in MEMORY_EVENTS:
        with suppress(OSError, ValueError, IndexError):
            counts = dict(line.split()[:2] for line in path.read_text().splitlines())
            return int(counts.get("oom_kill", 0))
    return 0


def _serve(control: socket.socket, listener: socket.socket, loaded: LoadedAgent) -> None:
    host = Host(control, others=[listener], memory_kills=memory_kills)
    try:
        line = Connection(control).receive(time.monotonic() + _HELLO_SECONDS)
        asked = json.loads(line) if line is not None else None
    except (TimeoutError, FrameTooLong, ValueError, RecursionError):
        return
    if not isinstance(asked, dict):
        return
    problem = loaded.load(asked)
    if problem is not None:
        host.tell({"unusable": problem})
        return
    host.tell({"ready": True, "agent": asked["load"]})
    host.serve()


def _listening(path: Path) -> socket.socket:
    """A socket at this path, in the place of the one that an earlier process of this container left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    # The recorder may run as another user; the volume is mounted in these two containers alone.
    path.chmod(0o666)
    listener.listen(8)
    return listener


def _end(*_: Any) -> NoReturn:
    end_orphans([])
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
