"""Every call of one trial, checked, carried out in its world and recorded: by the recorder, and again by replay."""

import math
from collections.abc import Mapping
from typing import Any

from simulator.canonical import LARGEST_INTEGER, canonical, sha256
from simulator.json_text import dumps, loads
from simulator.worlds import ToolTimeout, World

LONGEST_TOOL_NAME = 200
_DEEPEST = 64


class Session:
    """A world in use. ``calls`` are the records, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[dict[str, Any]] = []

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Carries out a call that :meth:`refuses` accepts, and records it."""
        record: dict[str, Any] = {"tool": tool, "arguments": arguments}
        try:
            result = self.world.call(tool, arguments)
        except (PermissionError, ValueError, ToolTimeout) as error:
            record["error"] = type(error).__name__
        else:
            # A copy: neither the world nor the agent can change afterwards what was answered.
            record["result"] = loads(dumps(result)) if isinstance(result, dict | list) else result
        self.calls.append(record)
        return record

    def refuse(self, tool: Any, arguments: Any, raw: bytes) -> dict[str, Any]:
        """Records a call that is refused before any effect.

        Args:
            raw: the protocol frame that carried it, whose hash is kept.
        """
        name = tool.encode(errors="replace").decode()[:LONGEST_TOOL_NAME] if isinstance(tool, str) else ""
        record = {
            "tool": name,
            "arguments": arguments if _faithful(arguments) else None,
            "raw_sha256": sha256(raw),
            "error": "InvalidCall",
        }
        self.calls.append(record)
        return record

    def refuses(self, tool: Any, arguments: Any) -> bool:
        """Whether a call is none of the world's: unknown tool, other arguments, wrong types, or a value that
        canonical JSON would not give back exactly."""
        signature: Mapping[str, str] | None = self.world.tools.get(tool) if isinstance(tool, str) else None
        if signature is None or not isinstance(arguments, dict) or arguments.keys() != signature.keys():
            return True
        for name, kind in signature.items():
            value = arguments[name]
            # An ASCII text fits every kind but integers: what most are.
            if not (type(value) is str and kind != "integer" and value.isascii()) and not _is(kind, value):
                return True
        return False


def _is(kind: str, value: Any) -> bool:
    if kind == "text" or (kind == "text or null" and value is not None):
        return type(value) is str and _encodable(value)
    if kind == "integer":
        return type(value) is int and -LARGEST_INTEGER <= value <= LARGEST_INTEGER
    return kind == "text or null" or _faithful(value)


def _faithful(value: Any, depth: int = 0) -> bool:
    """Whether canonical JSON gives back exactly this value: 4500.0 would come back as 4500."""
    kind = type(value)
    if kind is str:
        return _encodable(value)
    if kind is int:
        return bool(-LARGEST_INTEGER <= value <= LARGEST_INTEGER)
    if kind is float:
        return math.isfinite(value) and not canonical(value).removeprefix(b"-").isdigit()
    if kind is dict and depth < _DEEPEST:
        return all(_encodable(key) and _faithful(item, depth + 1) for key, item in value.items())
    if kind is list and depth < _DEEPEST:
        return all(_faithful(item, depth + 1) for item in value)
    return kind is bool or value is None


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
