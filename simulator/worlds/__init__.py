"""Worlds: the business that an agent acts on. Each is one package here, found by its name.

It has a ``World`` class that satisfies :class:`World` below. Its module ``case`` has ``Record``, the model of one
business record, and ``Settings``, of what a case may tell the world, such as a fault to inject: apart, because whoever
reads cases checks them, and a trial, which is given checked ones, starts faster without pydantic.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from simulator.customer import Customer

if TYPE_CHECKING:
    from pydantic import BaseModel

Kind = Literal["text", "integer", "text or null", "any"]


class ToolTimeout(Exception):  # noqa: N818 - the name agents see and ledgers record
    """The tool did not answer in time; what it was asked to do may have happened."""


class World(Protocol):
    """One trial's business behind one session, bound to the requesting customer."""

    tools: ClassVar[Mapping[str, Mapping[str, Kind]]]
    """Every tool with the kinds of its arguments, all of them required."""
    consequential: ClassVar[frozenset[str]]
    """Tools that change the business or ask for leave to: a lost attempt that called one is never washed away."""

    def __init__(
        self, records: Sequence[Mapping[str, Any]], customer_id: str, customer: Customer, settings: Mapping[str, Any]
    ) -> None: ...

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a call whose tool and arguments are valid.

        Raises:
            PermissionError, ValueError, ToolTimeout: what the tool answers instead of a result.
        """

    def objects(self) -> list[dict[str, Any]]:
        """Final state and events of every business object, as presented."""


class CaseModels(NamedTuple):
    """What a case of a world is checked against."""

    record: "type[BaseModel]"
    settings: "type[BaseModel]"


class UnknownWorld(ValueError):  # noqa: N818 - reads as what is wrong
    """No world has that name."""


def load_world(name: str) -> type[World]:
    """The world of that name.

    Raises:
        UnknownWorld: where there is none.
    """
    module = f"{__name__}.{name}"
    try:
        world: type[World] = import_module(module).World
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UnknownWorld(f"no world is called {name!r}") from error
    return world


def case_models(name: str) -> CaseModels:
    """The models of what a case gives that world.

    Raises:
        UnknownWorld: where there is none.
    """
    load_world(name)
    case = import_module(f"{__name__}.{name}.case")
    return CaseModels(case.Record, case.Settings)
