"""One trial after the other through the real recorder: fork server, agent's process, journal, sealed ledger, grade."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from grading.graders import Grade
from grading.graders.orders import Expectation, grade
from grading.intake import validate
from grading.projection import structural
from simulator.agent_process import AgentHost, environment
from simulator.assignment import Agent, Assignment, Limits, Request
from simulator.journal import Journal
from simulator.recorder import Lease, Recorder

ORDER_A = {
    "order_id": "order-a",
    "customer_id": "customer-1",
    "description": "blue backpack bought on 2026-08-01",
    "amount_cents": 4000,
    "currency": "USD",
    "eligible": True,
}
ORDER_B = ORDER_A | {"order_id": "order-b", "description": "blue backpack bought on 2026-08-02", "amount_cents": 4500}
ORDER_C = ORDER_A | {"order_id": "order-c", "customer_id": "customer-other", "description": ORDER_B["description"]}
EXPECTED = Expectation(order="order-b", clarifications=0)


def assignment(agent: str, settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """An assignment of the first packaged case, as a JSON value; ``changes``: the agent's env and reuse, or limits."""
    of_agent = {name: changes.pop(name) for name in ("env", "reuse") if name in changes}
    return Assignment(
        world="orders",
        request=Request(utterance="Refund the blue backpack bought on 2026-08-02.", customer_id="customer-1"),
        records=[ORDER_A, ORDER_B, ORDER_C],
        replies=[],
        agent=Agent(name=agent, settings=settings or {}, source="sha256:" + "0" * 64, **of_agent),
        limits=Limits(**{"seconds": 20.0, "tool_calls": 100, "memory_mb": 512} | changes),
    ).model_dump(mode="json")


class Bench:
    """A recorder with its files, and what its trials left."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "bench.journal"
        self.log = folder / "bench.log"
        self._log = self.log.open("ab", buffering=0)
        self.recorder = Recorder(
            Journal(self.journal),
            lambda agent, env: AgentHost.start(agent, folder, environment(env), self._log),
            {"launcher": "processes", "host": socket.gethostname(), "worker": "bench"},
        )
        self._attempts = 0
        self.processes_before = descendants()

    def run(self, agent: str, settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        """The ledger of a trial, as the intake lets it in."""
        given = assignment(agent, settings, **changes)
        self._attempts += 1
        lease = Lease(self._attempts, 1, f"trial-{self._attempts}", "secret")
        document = self.recorder.run(lease, given, "sha256:" + "0" * 64)
        validate(document, given, lease.trial, 1)
        ledger: dict[str, Any] = orjson.loads(document)
        return ledger

    def close(self) -> None:
        self.recorder.close()
        self._log.close()


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    opened = Bench(folder)
    try:
        yield opened
    finally:
        opened.close()


def graded(ledger: dict[str, Any]) -> Grade:
    return grade(structural(ledger["content"]), EXPECTED)


def refunds(ledger: dict[str, Any]) -> dict[str, int]:
    return {one["order"]["order_id"]: one["refund_transaction_count"] for one in ledger["content"]["objects"]}


def descendants(pid: int | None = None) -> set[int]:
    """The living processes below one, this process's own where none is given."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b") ")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            parents[int(stat.parent.name)] = int(fields[1])
    found: set[int] = set()
    front = {os.getpid() if pid is None else pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front} - found
        found |= front
    return found


def marked(word: str) -> set[int]:
    """The living processes whose command line, environment or working directory holds a word."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            seen = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            seen += os.fsencode((folder / "cwd").readlink())
            state = (folder / "stat").read_bytes().rpartition(b") ")[2][:1]
        except OSError:
            continue
        if word.encode() in seen and state not in (b"Z", b"X") and int(folder.name) != os.getpid():
            found.add(int(folder.name))
    return found


def eventually(ask: Any, seconds: float = 10.0) -> Any:
    """The first true answer, or the last one."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


def descriptors(pid: int | None = None) -> int:
    """How many descriptors a process has open, this one where none is given."""
    return len(list(Path(f"/proc/{pid or 'self'}/fd").iterdir()))
