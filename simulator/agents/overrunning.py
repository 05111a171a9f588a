"""Never answers in time, in one of the places where that is hard to stop.

Settings: ``place`` is ``sleep``, ``c`` (C code that holds the interpreter's lock, so that no signal handler and no
thread of Python runs) or ``grandchild`` (a process in a session of its own that ignores SIGTERM and keeps every
inherited descriptor open); ``seconds`` is how long it stays if nobody stops it; ``after_refund`` refunds the first
listed order before.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Literal

from simulator.agents import descriptive_control, first_record_mutant

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = False


def agent(
    request: Request,
    tools: Tools,
    *,
    place: Literal["sleep", "c", "grandchild"] = "sleep",
    seconds: float = 600.0,
    after_refund: bool = False,
) -> dict[str, Any]:
    if place not in ("sleep", "c", "grandchild"):
        raise ValueError(f"place is {place!r}, it can be sleep, c or grandchild")
    if after_refund:
        first_record_mutant.agent(request, tools)
    if place == "sleep":
        time.sleep(seconds)
    elif place == "c":
        # PyDLL, unlike CDLL, keeps the lock during the call. The argument is 32 bits of microseconds.
        ctypes.PyDLL(None).usleep(ctypes.c_uint(int(min(seconds, 4_000) * 1_000_000)))
    else:
        _wait_for_grandchild(seconds)
    return descriptive_control.agent(request, tools)


def _wait_for_grandchild(seconds: float) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(seconds)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
