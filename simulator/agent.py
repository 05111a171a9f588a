"""What an agent's function is given: the request, and the tools that are its only way to the business."""

import json
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from simulator.protocol import Connection
from simulator.worlds import ToolTimeout


class InvalidCall(TypeError):  # noqa: N818 - the class that ledgers record
    """The call was refused before any effect: no such tool, not its arguments, or a value that is no JSON."""


class ProviderUnavailable(Exception):  # noqa: N818 - reads as what happened
    """The model's provider could not be reached, after the agent's own retries.

    Raise it for 429, 5xx and time-outs: the trial is tried again as a whole, and this attempt is no evidence.
    """


@dataclass(frozen=True, slots=True)
class Request:
    """What the customer wants."""

    utterance: str
    customer_id: str


class Tools:
    """The business, one method for each tool of the world, with arguments by name::

        orders = tools.list_orders(customer_id=request.customer_id)

    Results are copies. A tool answers with PermissionError, ValueError, ToolTimeout or InvalidCall where the business
    refuses. Every call is recorded.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __getattr__(self, tool: str) -> Any:
        if tool.startswith("__"):
            raise AttributeError(tool)

        def call(**arguments: Any) -> Any:
            return self.call(tool, **arguments)

        return call

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Calls a tool by its name."""
        frame = _frame(tool, arguments)
        with self._lock:
            self._connection.send(frame)
            answer = self._connection.receive()
        if answer is None:
            raise SystemExit("the recorder has ended this trial")
        members = orjson.loads(answer)
        if "error" in members:
            _raise(members["error"])
        return members["result"]


def _frame(tool: str, arguments: dict[str, Any]) -> bytes:
    """A call as it is sent: exactly what the agent gave, also what is no JSON, for the recorder to refuse."""
    call = {"tool": tool, "arguments": arguments}
    if all(type(value) in _PLAIN for value in arguments.values()):
        try:
            return orjson.dumps(call)
        except orjson.JSONEncodeError:
            pass  # half a surrogate pair, or an integer beyond 64 bits
    try:
        return json.dumps(call).encode()
    except (TypeError, ValueError, RecursionError):
        # A call all the same: the recorder refuses it and puts that on record.
        return json.dumps({"tool": str(tool), "arguments": None}).encode()


_PLAIN = frozenset({str, int, bool, type(None)})
_ERRORS: dict[str, type[Exception]] = {
    "PermissionError": PermissionError,
    "ValueError": ValueError,
    "ToolTimeout": ToolTimeout,
    "InvalidCall": InvalidCall,
}


def _raise(name: str) -> NoReturn:
    raise _ERRORS.get(name, RuntimeError)(f"the tool answered {name}")
