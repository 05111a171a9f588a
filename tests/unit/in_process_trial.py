"""A trial without processes: an agent's function on the orders world, recorded the way a ledger records it."""

from collections.abc import Callable
from typing import Any

import orjson
from orders_cases import Case

from grading.graders import Grade
from grading.graders.orders import grade
from grading.projection import structural
from simulator.assignment import Request
from simulator.canonical import sha256
from simulator.customer import Customer
from simulator.ledger import Content
from simulator.output import Claims, Output
from simulator.worlds import ToolTimeout
from simulator.worlds.orders import World


class InvalidCall(Exception):  # noqa: N818 - the name that ledgers record
    """Refused before any effect."""


class Tools:
    """The tools of one trial. Every call and result is copied through JSON before anyone else may touch it."""

    def __init__(self, case: Case, *, backwards: bool = False) -> None:
        self.customer = Customer(case.replies)
        records = case.records[::-1] if backwards else case.records
        self.world = World(records, case.customer_id, self.customer, case.settings)
        self.calls: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda **arguments: self.call(name, **arguments)

    def call(self, name: str, **arguments: Any) -> Any:
        frame = orjson.dumps(arguments)
        call: dict[str, Any] = {"tool": name, "arguments": orjson.loads(frame)}
        self.calls.append(call)
        if not _valid(name, arguments):
            call |= {"raw_sha256": sha256(frame), "error": "InvalidCall"}
            raise InvalidCall(name)
        try:
            result = self.world.call(name, arguments)
        except (PermissionError, ValueError, ToolTimeout) as error:
            call["error"] = type(error).__name__
            raise
        call["result"] = orjson.loads(orjson.dumps(result))
        return result

    def content(self, case: Case, output: Output | None = None, error: str | None = None) -> dict[str, Any]:
        """The ledger's content, checked against its wire format."""
        claims = Claims(claimed_outcome="needs_review") if output is None else output.claims()
        content = {
            "version": 1,
            "world": "orders",
            "request": {"utterance": case.utterance, "customer_id": case.customer_id},
            "calls": self.calls,
            "objects": self.world.objects(),
            "turns": self.customer.turns,
            "message": "" if output is None else output.message,
            "claims": claims.model_dump(mode="json"),
            "error": error,
        }
        document = orjson.dumps(content)
        Content.model_validate_json(document)
        copy: dict[str, Any] = orjson.loads(document)
        return copy


def run(agent: Callable[..., Any], case: Case, *, backwards: bool = False, **settings: Any) -> dict[str, Any]:
    """The content of the ledger of one trial."""
    tools = Tools(case, backwards=backwards)
    request = Request(utterance=case.utterance, customer_id=case.customer_id)
    try:
        output = agent(request, tools, **settings)
    except Exception as error:
        return tools.content(case, error=type(error).__name__)
    if not isinstance(output, dict | Output):
        return tools.content(case, error="InvalidOutput")
    return tools.content(case, Output.model_validate(output))


def graded(agent: Callable[..., Any], case: Case, *, backwards: bool = False, **settings: Any) -> Grade:
    return grade(structural(run(agent, case, backwards=backwards, **settings)), case.expectation)


def _valid(name: str, arguments: dict[str, Any]) -> bool:
    kinds = World.tools.get(name)
    if kinds is None or set(kinds) != set(arguments):
        return False
    allowed = {"text": (str,), "integer": (int,), "text or null": (str, type(None)), "any": (object,)}
    return all(
        isinstance(arguments[argument], allowed[kind])
        and not (kind == "integer" and isinstance(arguments[argument], bool))
        for argument, kind in kinds.items()
    )
