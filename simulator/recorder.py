"""The recorder: one trial of one agent, from its opening to the sealed ledger.

It holds the world, the customer, the limits and the secret; the agent is another process that reaches them through the
tool protocol alone. Each call is journaled before it is answered. At a limit the agent's group is ended and the ledger
sealed with what was done until then.
"""

import sys
import time
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, NamedTuple, Protocol

from simulator.agent_host import end_orphans
from simulator.agent_process import AgentHost, AgentNotStartable
from simulator.answer import Answer, answer_of, failure
from simulator.canonical import canonical_of_parsed
from simulator.json_text import dumps
from simulator.protocol import Connection, FrameTooLong, parse
from simulator.replay import compose, open_session
from simulator.sealing import ATTEMPT_LOST, LIMIT_ERRORS, seal
from simulator.session import Session
from simulator.source import simulator_identity

LARGEST_RECORD = 16 * 1024 * 1024
"""Bytes that a trial's calls and their answers may take: a call past it is not carried out and ends the agent with
DiskLimit. A text may stand in a ledger three times, in a call, an event and a key, and must still fit the intake."""

_OURS = LIMIT_ERRORS | {ATTEMPT_LOST}
"""Errors that the recorder or the intake alone may name."""


class ProviderFailed(Exception):  # noqa: N818 - reads as what happened
    """The agent's model provider could not be reached: the attempt is no evidence."""


class Lease(NamedTuple):
    """One attempt at one trial, as the intake hands it out."""

    attempt: int
    """The store's number of the attempt, which the journal goes by."""
    number: int
    """1 for the trial's first attempt."""
    trial: str
    secret: str
    """Proves to the intake that a ledger comes from this recorder."""


class TakesCalls(Protocol):
    """Where calls are kept before they are answered: simulator/journal.py's file, or the intake of a cluster."""

    def begin(self, attempt: int, assignment: str, started: int) -> None: ...

    def call(self, attempt: int, record: dict[str, Any], started: int, ended: int) -> None: ...

    def leased(self, lease: Lease) -> Lease:
        """The lease of the trial that has been run, where one that is given out later stood in its place."""
        ...

    def ledger(self, attempt: int, document: bytes) -> None: ...

    def forget(self) -> None: ...


class Recorder:
    """Runs trials one after the other, keeping an agent host for each kind of agent.

    Args:
        start_host: a fork server for an agent, None for the packaged ones, and the variables that its condition names.
        place: launcher, host and worker, as the ledgers say.
        isolation: what stands between the agents and this recorder.
        when_idle: called where an agent takes its time; see :attr:`Connection.when_idle`.
        spared: this process's children that are no agents'.
    """

    def __init__(
        self,
        journal: TakesCalls,
        start_host: Callable[[str | None, list[str]], AgentHost],
        place: dict[str, str],
        isolation: str = "process",
        when_idle: Callable[[], float | None] | None = None,
        spared: Collection[int] = (),
    ) -> None:
        self._when_idle = when_idle
        self._spared = spared
        self._journal = journal
        self._start_host = start_host
        self._envelope = {"isolation": isolation, "place": place}
        self._hosts: dict[tuple[Any, ...], AgentHost] = {}
        self._unusable: dict[tuple[Any, ...], str] = {}
        """Why agents could not be loaded: not tried again, since each try may take minutes."""

    def run(self, lease: Lease, assignment: dict[str, Any], assignment_hash: str) -> bytes:
        """One trial's ledger document.

        Raises:
            AgentNotStartable: the agent's module does not load.
            ProviderFailed: the agent's provider could not be reached.
            OSError: the journal cannot be written.
        """
        agent, limits = assignment["agent"], assignment["limits"]
        key, host, connection = self._connect(agent, limits)
        connection.when_idle = self._when_idle
        trial = _Trial(lease, assignment, self._journal)
        self._journal.begin(lease.attempt, assignment_hash, trial.started)
        try:
            answer = trial.converse(connection, host)
        finally:
            if not (agent["reuse"] and trial.connection_reusable):
                try:
                    host.end()
                except OSError:  # HostGone or TimeoutError
                    self._abandon(key)
        ended = trial.now()
        lease = self._journal.leased(lease)
        # Frames were parsed, calls checked by the session, answers by their model: there is nothing but JSON in it.
        document = seal(*trial.parts(lease, answer, ended, self._envelope), canonical=canonical_of_parsed)
        self._journal.ledger(lease.attempt, document)
        return document

    def forget(self) -> None:
        """Empties the journal: every ledger that it was kept for is in the store."""
        self._journal.forget()

    def close(self) -> None:
        while self._hosts:
            self._hosts.popitem()[1].close()
        end_orphans([])

    def prepare(self, agent: dict[str, Any]) -> tuple[tuple[Any, ...], AgentHost]:
        """A host for the agent, started where there is none.

        Raises:
            AgentNotStartable: see :meth:`run`.
        """
        # Reused agents share a process, which loads each on first use; others fork from one that has them loaded.
        loaded = None if agent["reuse"] else agent["name"]
        key = (loaded, *agent["env"])
        if key in self._unusable:
            raise AgentNotStartable(self._unusable[key])
        if key not in self._hosts:
            try:
                self._hosts[key] = self._start_host(loaded, agent["env"])
            except AgentNotStartable as error:
                self._unusable[key] = str(error)
                raise
        return key, self._hosts[key]

    def _connect(self, agent: dict[str, Any], limits: dict[str, Any]) -> tuple[tuple[Any, ...], AgentHost, Connection]:
        """A host for the agent, and a connection to the agent's process."""
        for _ in range(2):
            key, host = self.prepare(agent)
            try:
                connection = host.connect(memory_mb=limits["memory_mb"], reuse=agent["reuse"])
                return key, host, connection
            except OSError:
                # Something killed the fork server between two trials: that is no evidence against the next one.
                self._abandon(key)
        raise AgentNotStartable("its fork server was killed each time it was started")

    def _abandon(self, key: tuple[Any, ...]) -> None:
        """Ends a host that no longer answers, and what its agents had left to it and is now ours."""
        self._hosts.pop(key).close()
        end_orphans([*self._spared, *(host.pid for host in self._hosts.values() if host.pid is not None)])


class _Trial:
    """The conversation of one trial."""

    def __init__(self, lease: Lease, assignment: dict[str, Any], journal: TakesCalls) -> None:
        self._lease = lease
        self._assignment = assignment
        self._journal = journal
        self._session, self._customer = open_session(assignment)
        self._times: list[dict[str, int]] = []
        self._recorded = 0
        self._clock = time.time_ns() - time.monotonic_ns()
        self.started = self.now()
        self.connection_reusable = False

    def converse(self, connection: Connection, host: AgentHost) -> Answer:
        agent = self._assignment["agent"]
        connection.paused = 0.0
        deadline = time.monotonic() + self._assignment["limits"]["seconds"]
        opening = {
            "version": 1,
            "agent": agent["name"],
            "settings": agent["settings"],
            "request": self._assignment["request"],
        }
        try:
            connection.send(dumps(opening), deadline)
            if host.has_told and host.agent_ended():
                deadline = self._hurry(connection, deadline)
            while True:
                try:
                    line = connection.receive(deadline)
                except InterruptedError:
                    if not host.agent_ended():
                        continue
                    deadline = self._hurry(connection, deadline)
                    continue
                if line is None:
                    return _exited(host)
                answer = self._take(line, connection, deadline)
                if answer is not None:
                    return answer
        except TimeoutError:
            return failure("TimeLimit") if connection.watched else _exited(host)
        except FrameTooLong:
            return failure("ProtocolError")
        except (BrokenPipeError, ConnectionResetError):
            return _exited(host)

    @staticmethod
    def _hurry(connection: Connection, deadline: float) -> float:
        """The deadline once the agent's process has ended: what it had sent before is still to be read."""
        connection.unwatch()
        return min(deadline, time.monotonic() - connection.paused + 0.05)

    def parts(
        self, lease: Lease, answer: Answer, ended: int, of_recorder: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The ledger's content and envelope, as JSON values."""
        content = compose(self._assignment, self._session, self._customer, answer.message, answer.claims, answer.error)
        envelope = {
            "version": 1,
            "trial": lease.trial,
            "attempt": lease.number,
            "started": self.started,
            "ended": ended,
            "calls": self._times,
            "usage": answer.usage,
            "software": software(),
            **of_recorder,
            "sealed_by": "recorder",
        }
        return content, envelope

    def _take(self, line: bytes, connection: Connection, deadline: float) -> Answer | None:
        started = self.now()
        try:
            message = parse(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            # A line that is no JSON object may have been meant as a call: it is refused like one, and on record.
            message = {"tool": "", "arguments": None}
        if "output" in message:
            self.connection_reusable = True
            return answer_of(message["output"])
        if "failed" in message:
            self.connection_reusable = True
            if message.get("provider") is True:
                raise ProviderFailed
            return failure(_error_name(message["failed"]))
        if len(self._session.calls) >= self._assignment["limits"]["tool_calls"]:
            return failure("CallLimit")
        self._recorded += len(line)
        if self._recorded > LARGEST_RECORD:
            return failure("DiskLimit")
        record = _call(self._session, message.get("tool"), message.get("arguments"), line)
        ended = self.now()
        journaling = time.monotonic()
        self._journal.call(self._lease.attempt, record, started, ended)
        connection.paused += time.monotonic() - journaling
        self._times.append({"started": started, "ended": ended})
        reply = dumps({"error": record["error"]} if "error" in record else {"result": record["result"]})
        self._recorded += len(reply)
        connection.send(reply, deadline)
        return None

    def now(self) -> int:
        """Microseconds since the epoch, never running backwards within a trial."""
        return (self._clock + time.monotonic_ns()) // 1000


def _exited(host: AgentHost) -> Answer:
    return failure("MemoryLimit" if host.ran_out_of_memory() else "AgentExited")


def _call(session: Session, tool: Any, arguments: Any, line: bytes) -> dict[str, Any]:
    if session.refuses(tool, arguments):
        return session.refuse(tool, arguments, line)
    return session.call(tool, arguments)


def _error_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or len(name) > 200:
        return "Exception"
    if name in _OURS:
        # An agent's own class of that name would pass for a limit, or for a lost attempt that is not judged.
        return "Exception"
    return "MemoryLimit" if name == "MemoryError" else name


@cache
def software() -> dict[str, str]:
    # What platform.python_version() says, a module that only pods would load, for this alone.
    return {**simulator_identity(), "python": sys.version.partition(" ")[0]}
