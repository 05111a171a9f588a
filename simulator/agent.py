"""What an agent's function is given: the request, and the tools that are its only way to the business."""

import json
from _thread import allocate_lock
from typing import Any, NoReturn

from simulator.json_text import dumps, loads
from simulator.protocol import Connection
from simulator.worlds import ToolTimeout


class InvalidCall(TypeError):  # noqa: N818 - the class that ledgers record
    """The call was refused before any effect: no such tool, not its arguments, or a value that is no JSON."""


class ProviderUnavailable(Exception):  # noqa: N818 - reads as what happened
    """The model's provider could not be reached, after the agent's own retries.

    Raise it for 429, 5xx and time-outs: the trial is tried again as a whole, and this attempt is no evidence.
    """


class _RequestFields:
    """The fields of Request for the dataclasses module, which is loaded by whoever asks for them alone."""

    def __get__(self, instance: object, owner: type) -> Any:
        from dataclasses import fields, make_dataclass

        like = make_dataclass(owner.__name__, Request.__annotations__.items(), frozen=True, slots=True)
        return {field.name: field for field in fields(like)}


class Request:
    """What the customer wants.

    A frozen dataclass in all but its making: the module that makes them loads as long as a tenth of a pod's start.
    """

    __slots__ = ("customer_id", "utterance")
    __match_args__ = ("utterance", "customer_id")
    __dataclass_fields__ = _RequestFields()

    utterance: str
    customer_id: str

    def __init__(self, utterance: str, customer_id: str) -> None:
        object.__setattr__(self, "utterance", utterance)
        object.__setattr__(self, "customer_id", customer_id)

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}(utterance={self.utterance!r}, customer_id={self.customer_id!r})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self.utterance, self.customer_id) == (other.utterance, other.customer_id)

    def __hash__(self) -> int:
        return hash((self.utterance, self.customer_id))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.utterance, self.customer_id)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")


class Tools:
    """The business, one method for each tool of the world, with arguments by name::

        orders = tools.list_orders(customer_id=request.customer_id)

    Results are copies. A tool answers with PermissionError, ValueError, ToolTimeout or InvalidCall where the business
    refuses. Every call is recorded.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = allocate_lock()

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
        members = loads(answer)
        if "error" in members:
            _raise(members["error"])
        return members["result"]


def _frame(tool: str, arguments: dict[str, Any]) -> bytes:
    """A call as it is sent: exactly what the agent gave, also what is no JSON, for the recorder to refuse."""
    call = {"tool": tool, "arguments": arguments}
    if all(type(value) in _PLAIN for value in arguments.values()):
        try:
            return dumps(call)
        except TypeError:
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
