"""Ends its process without a word, with a status that says all is well."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from simulator.agents import first_record_mutant

if TYPE_CHECKING:
    from simulator import Request, Tools

REUSABLE = False


def agent(request: Request, tools: Tools, *, after_refund: bool = False) -> NoReturn:
    if after_refund:
        first_record_mutant.agent(request, tools)
    os._exit(0)
