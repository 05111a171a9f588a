"""Takes memory step by step until it is stopped, and works as the control in the unlikely case that it is not.

Settings: ``megabytes`` is where it stops by itself, so that a bench without a limit survives it; ``after_refund``
refunds the first listed order before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.agents import descriptive_control, first_record_mutant

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = False

STEP_MEGABYTES = 16


def agent(request: Request, tools: Tools, *, megabytes: int = 4096, after_refund: bool = False) -> dict[str, Any]:
    if after_refund:
        first_record_mutant.agent(request, tools)
    eaten = []
    for _ in range(0, megabytes, STEP_MEGABYTES):
        # Written, not only reserved: untouched zero pages cost nothing.
        eaten.append(bytearray(b"\x01") * (STEP_MEGABYTES * 1024 * 1024))
    output = descriptive_control.agent(request, tools)
    eaten.clear()
    return output
