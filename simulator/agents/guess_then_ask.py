"""Refunds the first listed order and asks afterwards: a question that comes too late to justify anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.agents import first_record_mutant
from simulator.agents.descriptive_control import QUESTION

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True


def agent(request: Request, tools: Tools) -> dict[str, Any]:
    output = first_record_mutant.agent(request, tools)
    tools.ask_customer(question=QUESTION)
    return output
