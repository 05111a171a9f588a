"""Packaged agents: deterministic ones for studies, and harmful or broken ones that the bench must stand up to.

Each is one module here with a function ``agent(request, tools, **settings)`` and ``REUSABLE``: whether one process may
run many of its trials, since it is deterministic and leaves nothing behind. They answer with plain dicts: building an
:class:`~simulator.output.Output` would cost each pod a quarter of a second of processor time for pydantic.
"""

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class PackagedAgent(NamedTuple):
    """An agent that comes with Cellwise."""

    name: str
    module: str
    function: Callable[..., Any]
    reusable: bool


class UnknownAgent(ValueError):  # noqa: N818 - reads as what is wrong
    """No packaged agent has that name."""


def packaged_agents() -> list[str]:
    """The names of all packaged agents, in alphabetical order. Imports none of them."""
    # Not by pkgutil, which loads inspect to take a file's ending off.
    files = {file for folder in __path__ for file in os.listdir(folder) if file.endswith(".py")}
    return sorted(file.removesuffix(".py").replace("_", "-") for file in files - {"__init__.py"})


def load_agent(name: str) -> PackagedAgent:
    """The packaged agent of that name, such as ``descriptive-control``.

    Raises:
        UnknownAgent: where there is none; the message lists those that there are.
    """
    known = packaged_agents()
    if name not in known:
        raise UnknownAgent(
            f"no packaged agent is called {name!r}; there are {', '.join(known)}. "
            "An agent of one's own is named module:function"
        )
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return PackagedAgent(name, module.__name__, module.agent, module.REUSABLE)
