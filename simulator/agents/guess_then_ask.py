"""Refunds the first listed order and asks afterwards: a question that comes too late to justify anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.agents import first_record_mutant
from simulator.agents.descriptive_control import QUESTION
from simulator.output import Output

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = True


def agent(request: Request, tools: Tools) -> Output:
    output = first_record_mutant.agent(request, tools)
    tools.ask_customer(question=QUESTION)
    return output
