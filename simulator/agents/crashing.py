"""Raises: at once, or after it refunded the first listed order. The text of its error must never be stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from simulator.agents import first_record_mutant

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = False


def agent(request: Request, tools: Tools, *, after_refund: bool = False) -> NoReturn:
    if after_refund:
        first_record_mutant.agent(request, tools)
    raise RuntimeError(f"a text that may hold a customer's words: {request.utterance}")
