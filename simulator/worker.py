"""The worker: fetches assignments from an intake, has the recorder run them, delivers ledgers.

The local one talks to the runner's intake over a socket on descriptor 0, in frames of a JSON line and, for a ledger,
the document's bytes. It ends when the socket closes, and with the runner, however that ends.
"""

import hashlib  # noqa: F401 - hashes faster: simulator/canonical.py takes it where it is loaded
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from simulator.agent_host import become_subreaper, die_with_parent
from simulator.agent_process import AgentHost, AgentNotStartable, environment
from simulator.journal import Journal
from simulator.recorder import Lease, ProviderFailed, Recorder
from simulator.zygote import Zygote

_FLUSH_SECONDS = 0.01


def main() -> None:
    """Serves the intake on descriptor 0, whose first message is ``{"worker": {...}}``: who it is, and its environment.

    Until that has come it holds nothing that an agent may not know, its own environment being empty. The
    argument is the process id of the runner, to die with.
    """
    die_with_parent()
    if os.getppid() != int(sys.argv[1]):
        return  # it had died before it could take this process along
    become_subreaper()
    zygote = Zygote.fork()
    intake = Intake(socket.socket(fileno=os.dup(0)))
    message = intake.next()
    if message is None:
        return
    given = message["worker"]
    os.environ.update((_path(name), _path(value)) for name, value in given["environment"].items())
    journal_path = Path(_path(given["journal"]))
    with open(_path(given["log"]), "ab", buffering=0) as log:
        try:
            journal = Journal(journal_path)
        except OSError as error:
            intake.say({"stuck": f"{journal_path}: {error.strerror}"})
            intake.flush()
            return
        recorder = Recorder(
            journal,
            partial(_start_host, zygote, Path(_path(given["root"])), log),
            {"launcher": "processes", "host": socket.gethostname(), "worker": given["name"]},
            when_idle=intake.flush_some,
            spared=[zygote.pid] if zygote else [],
        )
        try:
            serve(intake, recorder)
        except IntakeGone:
            pass  # the runner has died: whoever comes after it reads the journal
        finally:
            recorder.close()


def _start_host(zygote: Zygote | None, root: Path, log: BinaryIO, agent: str | None, env: list[str]) -> AgentHost:
    """A fork server: forked where that is as good as started, which simulator/zygote.py says."""
    given = environment(env)
    if zygote is not None and not given and ":" not in (agent or ""):
        forked = zygote.fork_host(agent, root, log)
        if forked is not None:
            process, control = forked
            return AgentHost(control, process)
    return AgentHost.start(agent, root, given, log)


def _path(written: str) -> str:
    """A text of the system's, which travels as Latin-1 since it need not be Unicode."""
    return os.fsdecode(written.encode("latin-1"))


class IntakeGone(Exception):  # noqa: N818 - reads as what happened
    """The runner's end of the line is closed. No OSError: it must not be taken for an agent's or a disk's."""


class Intake:
    """The worker's line to the runner's intake. What is said is sent together with what follows it shortly."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._flushed = time.monotonic()
        self.assignments: dict[str, dict[str, Any]] = {}
        """Assignments by hash: each is sent once and shared by many trials."""

    def next(self) -> dict[str, Any] | None:
        """The next lease, None when there is no more work.

        Raises:
            IntakeGone: what was said before could not be sent.
        """
        while True:
            end = self._incoming.find(b"\n")
            if end < 0:
                self.flush()
                try:
                    data = self._socket.recv(1024 * 1024)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return None
                self._incoming += data
                continue
            message: dict[str, Any] = orjson.loads(self._incoming[:end])
            del self._incoming[: end + 1]
            if "assignment" not in message:
                return message
            self.assignments[message["hash"]] = message["assignment"]

    def say(self, message: dict[str, Any], document: bytes = b"") -> None:
        self._outgoing += b"%b\n%b" % (orjson.dumps({**message, "bytes": len(document)}), document)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Sends what was said, waiting for the runner to take it."""
        self._send(0)

    def flush_some(self) -> None:
        """Sends what the runner takes at once: to be called while an agent's time runs."""
        self._send(socket.MSG_DONTWAIT)

    def _send(self, flags: int) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing, flags)]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError) as error:
            raise IntakeGone from error
        self._flushed = time.monotonic()


def serve(intake: Intake, recorder: Recorder) -> None:
    """Runs what the intake hands out until it says nothing more."""
    while (message := intake.next()) is not None:
        if "forget" in message:
            recorder.forget()
            intake.assignments.clear()
            continue
        lease = Lease(message["attempt"], message["number"], message["trial"], message["secret"])
        assignment_hash = message["hash"]
        report = {"attempt": lease.attempt, "secret": lease.secret}
        intake.say({**report, "began": True})
        try:
            document = recorder.run(lease, intake.assignments[assignment_hash], assignment_hash)
        except AgentNotStartable as error:
            intake.say({**report, "unusable": str(error)})
        except ProviderFailed:
            intake.say({**report, "unavailable": True})
        except OSError as error:
            intake.say({**report, "stuck": f"the journal cannot be written: {error.strerror or error}"})
            intake.flush()
            return
        else:
            intake.say({**report, "delivered": True}, document)


if __name__ == "__main__":
    main()
