"""The rate that all calls of a judge share, and the pause that a provider asks for."""

import threading
import time
from collections.abc import Callable


class Pace:
    """Lets requests through one after the other, evenly spaced. Used by several threads.

    Args:
        per_minute: requests, None for as many as come.
        clock, sleep: seconds, replaced in tests.
    """

    def __init__(
        self,
        per_minute: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval = 60 / per_minute if per_minute else 0.0
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._next = clock()

    def wait(self) -> None:
        """Returns when the next request may leave."""
        with self._lock:
            now = self._clock()
            at = max(now, self._next)
            self._next = at + self._interval
        if at > now:
            self._sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Nobody sends before so many seconds have passed: one thread was told so, and it holds for all."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)
