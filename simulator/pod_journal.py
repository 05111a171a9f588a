"""The journal of a pod, which the intake of its cluster keeps: simulator/journal.py's lines, sent instead of written.

A consequential call and all that came before it is with the intake before it is answered; anything else follows within
two seconds, or with the ledger. A trial that begins while the ledger before it is still here is leased by the request
that tells of both (simulator/pod_delivery.py).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from simulator.journal import begin_members, call_members, line
from simulator.pod_intake import Away, Fenced, Intake, IntakeLost, Reply, jitter, reason
from simulator.recorder import Lease

Leasing = Callable[[Sequence[bytes], float | None], Lease]
"""Tells of a trial's first lines, without their attempt, and gets its lease: asked until there is an answer, or once
within so many seconds."""

_FLUSH_SECONDS = 2.0
_TURN_SECONDS = 0.05
"""For as long a ledger is kept from the intake at most, where the next trial's agent takes its time."""
_IDLE_REQUEST_SECONDS = 5.0
_LONGEST_IDLE_WAIT = 30.0
_MOST_BYTES = 4 * 1024 * 1024
"""Of the lines of one request, where it has more than one."""


class PodJournal:
    """One attempt after the other; the pod says before each which calls are consequential."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.consequential: frozenset[str] = frozenset()
        self._leasing: Leasing | None = None
        self._lease: Lease | None = None
        self._attempt = 0
        self._sent = 0
        self._lines: list[bytes] = []
        """What stands in them, without the attempt."""
        self._due = 0.0
        self._wait = _FLUSH_SECONDS

    def expect(self, leasing: Leasing | None) -> None:
        """What the next trial's first lines are told to instead, where it has no lease yet."""
        self._leasing, self._lease = leasing, None

    def begin(self, attempt: int, assignment: str, started: int) -> None:
        self._attempt, self._sent = attempt, 0
        self._lines = []
        self._add(begin_members(assignment, started))

    def call(self, attempt: int, record: dict[str, Any], started: int, ended: int) -> None:
        """Keeps a call; a consequential one is with the intake when this returns.

        Raises:
            Fenced: the attempt is no longer this pod's.
            IntakeLost: the intake could not be told in all the time there was.
        """
        self._add(call_members(record, started, ended))
        if record["tool"] in self.consequential:
            self.flush()

    def leased(self, lease: Lease) -> Lease:
        if self._leasing is not None:
            self._tell(None)
        return self._lease or lease

    def ledger(self, attempt: int, document: bytes) -> None:
        """Nothing: the ledger itself goes to the intake next, and says all that these lines would."""

    def forget(self) -> None:
        self._lines, self._leasing = [], None

    def flush(self) -> None:
        """Has everything at the intake.

        Raises:
            Fenced, IntakeLost: see :meth:`call`.
        """
        while self._lines:
            self._tell(None)

    def flush_once(self, seconds: float) -> bool:
        """Sends what it can within about that time; whether that was all.

        Raises:
            Fenced: see :meth:`call`.
        """
        until = time.monotonic() + seconds
        while self._lines:
            remaining = until - time.monotonic()
            if remaining <= 0:
                return False
            try:
                self._tell(remaining)
            except (Away, IntakeLost):
                return False
        return True

    def when_idle(self) -> float | None:
        """Sends what has waited for long enough, while the agent takes its time; the seconds until there is more to do.

        An intake that is away is no reason to end the trial: what matters is asked of it again.
        """
        if not self._lines:
            return None
        remaining = self._due - time.monotonic()
        if remaining > 0:
            return remaining
        if self.flush_once(_IDLE_REQUEST_SECONDS):
            return None
        self._wait = min(2 * self._wait, _LONGEST_IDLE_WAIT)
        pause = self._wait / 2 + jitter(self._wait / 2)
        self._due = time.monotonic() + pause
        return pause

    def _add(self, members: bytes) -> None:
        if not self._lines:
            self._wait = _FLUSH_SECONDS if self._leasing is None else _TURN_SECONDS
            self._due = time.monotonic() + self._wait
        self._lines.append(members)

    def _tell(self, seconds: float | None) -> None:
        """One request with as many lines as it may have."""
        many = self._many()
        if self._leasing is None:
            self._settle(self._asked(self._lines[:many], seconds))
        else:
            try:
                self._lease = self._leasing(self._lines[:many], seconds)
            except (Away, IntakeLost):
                raise
            except Exception:
                self.forget()
                raise
            self._attempt, self._leasing = self._lease.attempt, None
        del self._lines[:many]
        self._sent += many

    def _many(self) -> int:
        many = size = 0
        for members in self._lines:
            size += len(members)
            if many and size > _MOST_BYTES:
                break
            many += 1
        return many

    def _asked(self, lines: list[bytes], seconds: float | None) -> Reply:
        entries = b",".join(line(self._attempt, members) for members in lines)
        body = b'{"version":1,"attempt":%d,"first":%d,"entries":[%b]}' % (self._attempt, self._sent, entries)
        if seconds is None:
            return self._intake.ask("/v1/journal", body)
        return self._intake.ask_once("/v1/journal", body, seconds)

    @staticmethod
    def _settle(reply: Reply) -> None:
        if reply.status == 410:
            raise Fenced(reason(reply))
        if reply.status != 204:
            raise IntakeLost(f"/v1/journal: {reason(reply)}")
