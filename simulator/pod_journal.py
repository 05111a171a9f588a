"""The journal of a pod, which the intake of its cluster keeps: simulator/journal.py's lines, sent instead of written.

A consequential call and all that came before it is with the intake before it is answered; anything else follows within
two seconds, or with the ledger.
"""

import time
from typing import Any

from simulator.journal import begin_line, call_line
from simulator.pod_intake import Away, Fenced, Intake, IntakeLost, Reply, jitter, reason

_FLUSH_SECONDS = 2.0
_IDLE_REQUEST_SECONDS = 5.0
_LONGEST_IDLE_WAIT = 30.0
_MOST_BYTES = 4 * 1024 * 1024
"""Of the lines of one request, where it has more than one."""


class PodJournal:
    """One attempt after the other; the pod says before each which calls are consequential."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.consequential: frozenset[str] = frozenset()
        self._attempt = 0
        self._sent = 0
        self._lines: list[bytes] = []
        self._due = 0.0
        self._wait = _FLUSH_SECONDS

    def begin(self, attempt: int, assignment: str, started: int) -> None:
        self._attempt, self._sent = attempt, 0
        self._lines = []
        self._add(begin_line(attempt, assignment, started))

    def call(self, attempt: int, record: dict[str, Any], started: int, ended: int) -> None:
        """Keeps a call; a consequential one is with the intake when this returns.

        Raises:
            Fenced: the attempt is no longer this pod's.
            IntakeLost: the intake could not be told in all the time there was.
        """
        self._add(call_line(attempt, record, started, ended))
        if record["tool"] in self.consequential:
            self.flush()

    def ledger(self, attempt: int, document: bytes) -> None:
        """Nothing: the ledger itself goes to the intake next, and says all that these lines would."""

    def forget(self) -> None:
        self._lines = []

    def flush(self) -> None:
        """Has everything at the intake.

        Raises:
            Fenced, IntakeLost: see :meth:`call`.
        """
        while self._lines:
            many, body = self._request()
            self._settle(many, self._intake.ask("/v1/journal", body))

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
            many, body = self._request()
            try:
                self._settle(many, self._intake.ask_once("/v1/journal", body, remaining))
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

    def _add(self, line: bytes) -> None:
        if not self._lines:
            self._due = time.monotonic() + _FLUSH_SECONDS
            self._wait = _FLUSH_SECONDS
        self._lines.append(line)

    def _request(self) -> tuple[int, bytes]:
        """How many lines the next request holds, and its body."""
        many = size = 0
        for line in self._lines:
            size += len(line)
            if many and size > _MOST_BYTES:
                break
            many += 1
        entries = b",".join(self._lines[:many])
        return many, b'{"version":1,"attempt":%d,"first":%d,"entries":[%b]}' % (self._attempt, self._sent, entries)

    def _settle(self, many: int, reply: Reply) -> None:
        if reply.status == 410:
            raise Fenced(reason(reply))
        if reply.status != 204:
            raise IntakeLost(f"/v1/journal: {reason(reply)}")
        del self._lines[:many]
        self._sent += many
