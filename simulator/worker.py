"""The worker: fetches assignments from an intake, has the recorder run them, delivers ledgers.

The local one talks to the runner's intake over a socket on descriptor 0, in frames of a JSON line and, for a ledger,
the document's bytes. It ends when the socket closes, and with the runner, however that ends.
"""

import argparse
import json
import os
import socket
from pathlib import Path
from typing import Any

from simulator.agent_host import become_subreaper, die_with_parent
from simulator.agent_process import AgentNotStartable
from simulator.journal import Journal
from simulator.recorder import Lease, ProviderFailed, Recorder


def main() -> None:
    """``python -m simulator.worker --root FOLDER --journal FILE --log FILE --name NAME``, intake on descriptor 0."""
    parser = argparse.ArgumentParser(prog="simulator.worker")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--name", required=True)
    arguments = parser.parse_args()
    die_with_parent()
    become_subreaper()
    intake = Intake(socket.socket(fileno=os.dup(0)))
    with arguments.log.open("ab", buffering=0) as log:
        try:
            recorder = Recorder(arguments.root, Journal(arguments.journal), log, "processes", arguments.name)
        except OSError as error:
            intake.say({"stuck": f"{arguments.journal}: {error.strerror}"})
            return
        try:
            serve(intake, recorder)
        finally:
            recorder.close()


class Intake:
    """The worker's line to the runner's intake."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = connection.makefile("rb")
        self.assignments: dict[str, dict[str, Any]] = {}
        """Assignments by hash: each is sent once and shared by many trials."""

    def next(self) -> dict[str, Any] | None:
        """The next lease, None when there is no more work."""
        while line := self._reader.readline():
            message: dict[str, Any] = json.loads(line)
            if "assignment" not in message:
                return message
            self.assignments[message["hash"]] = message["assignment"]
        return None

    def say(self, message: dict[str, Any], document: bytes = b"") -> None:
        self._socket.sendall(json.dumps({**message, "bytes": len(document)}).encode() + b"\n" + document)


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
            return
        else:
            intake.say({**report, "delivered": True}, document)


if __name__ == "__main__":
    main()
