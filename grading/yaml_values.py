"""Values from a document's nodes: each field's type says what a scalar is, and a text field gets what was written."""

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from grading.file_error import FileError, nearest, short
from grading.yaml_nodes import NULLS, ListNode, MappingNode, Node, ScalarNode
from simulator.canonical import LARGEST_INTEGER

Location = tuple[str | int, ...]

_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
# Wrong types are told by the conversion, in words for a person; pydantic's are echoes of it, one for each union member.
_ECHOES = frozenset({"literal_error", "none_required", "is_instance_of"})


class _Refused:
    """Stands for a value that was refused, so that the rest of the file is checked too."""


class Conversion:
    """Values from nodes, as the fields of a model ask for them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.problems: list[FileError] = []

    def convert(self, node: Node, annotation: Any, location: Location) -> Any:
        arms = _arms(annotation)
        if any(arm is JsonValue or arm is Any for arm in arms):
            return self._free(node, location)
        if isinstance(node, MappingNode):
            return self._mapping(node, arms, location)
        if isinstance(node, ListNode):
            return self._list(node, arms, location)
        assert isinstance(node, ScalarNode)
        return self._scalar(node, arms, location)

    def _mapping(self, node: MappingNode, arms: list[Any], location: Location) -> Any:
        for arm in arms:
            if isinstance(arm, type) and issubclass(arm, BaseModel):
                return self._fields(node, arm, location)
            if get_origin(arm) in (dict, Mapping):
                kind = get_args(arm)[1]
                return {key: self.convert(item, kind, (*location, key)) for key, (_, item) in node.items.items()}
        return self._refuse(node, location, f"must be {_expected(arms)}, not a mapping")

    def _fields(self, node: MappingNode, model: type[BaseModel], location: Location) -> dict[str, Any]:
        values = {}
        for key, (key_node, item) in node.items.items():
            known = model.model_fields.get(key)
            if known is None:
                self._refuse(key_node, location, f"unknown field '{short(key)}':{nearest(key, model.model_fields)}")
            else:
                values[key] = self.convert(item, known.annotation, (*location, key))
        return values

    def _list(self, node: ListNode, arms: list[Any], location: Location) -> Any:
        for arm in arms:
            if get_origin(arm) is list:
                kind = get_args(arm)[0]
                return [self.convert(item, kind, (*location, index)) for index, item in enumerate(node.items)]
        return self._refuse(node, location, f"must be {_expected(arms)}, not a list")

    def _scalar(self, node: ScalarNode, arms: list[Any], location: Location) -> Any:
        null = node.plain and node.text in NULLS
        if null and NoneType in arms:
            return None
        for arm in arms:
            if get_origin(arm) is Literal:
                return self._literal(node, arms, location)
        if node.plain and bool in arms and node.text in _BOOLEANS:
            return _BOOLEANS[node.text]
        if node.plain and int in arms and _INTEGER.fullmatch(node.text):
            return self._integer(node, location)
        if node.plain and float in arms and (_INTEGER.fullmatch(node.text) or _DECIMAL.fullmatch(node.text)):
            return self._number(node, location)
        if str in arms:
            if null:
                written = node.text or "nothing"
                return self._refuse(
                    node, location, f"a text is missing: found {written}, quote it if it is meant as text"
                )
            return node.text
        return self._refuse(node, location, f"must be {_expected(arms)}, not {_quoted(node)}{_advice(node, arms)}")

    def _literal(self, node: ScalarNode, arms: list[Any], location: Location) -> Any:
        choices = [choice for arm in arms if get_origin(arm) is Literal for choice in get_args(arm)]
        for choice in choices:
            if isinstance(choice, str) and choice == node.text:
                return choice
            if type(choice) is int and node.plain and str(choice) == node.text:
                return choice
        named = [str(choice) for choice in choices]
        if len(named) == 1:
            return self._refuse(node, location, f"must be {_expected(arms)}, not {_quoted(node)}")
        return self._refuse(node, location, f"{_quoted(node)} is not possible here:{nearest(node.text, named)}")

    def _free(self, node: Node, location: Location) -> Any:
        """A value that no model describes, such as an agent's setting."""
        if isinstance(node, MappingNode):
            return {key: self._free(item, (*location, key)) for key, (_, item) in node.items.items()}
        if isinstance(node, ListNode):
            return [self._free(item, (*location, index)) for index, item in enumerate(node.items)]
        assert isinstance(node, ScalarNode)
        if not node.plain:
            return node.text
        if node.text in NULLS:
            return None
        if node.text in _BOOLEANS:
            return _BOOLEANS[node.text]
        if _INTEGER.fullmatch(node.text):
            return self._integer(node, location)
        if _DECIMAL.fullmatch(node.text):
            return self._number(node, location)
        return node.text

    def _integer(self, node: ScalarNode, location: Location) -> Any:
        # Length first: Python refuses to read enormous integers.
        if len(node.text) > 17 or abs(int(node.text)) > LARGEST_INTEGER:
            return self._refuse(
                node, location, f"the integer {short(node.text)} is beyond 2^53 - 1: quote it if it is meant as text"
            )
        return int(node.text)

    def _number(self, node: ScalarNode, location: Location) -> Any:
        if len(node.text) < 400:
            exact, number = Decimal(node.text), float(node.text)
            # repr is the shortest text that gives the same float: what differs from it would be stored changed.
            if abs(exact) <= LARGEST_INTEGER and exact == Decimal(repr(number)):
                return number
        return self._refuse(
            node, location, f"the number {short(node.text)} cannot be kept exactly: shorten it, or quote it as text"
        )

    def _refuse(self, node: Node, location: Location, message: str) -> type[_Refused]:
        where = f"{where_of(location)}: " if location else ""
        self.problems.append(FileError(self._path, node.line, node.column, where + message))
        return _Refused


def is_echo(detail: Any) -> bool:
    kind = detail["type"]
    return detail["input"] is _Refused or kind.endswith("_type") or kind in _ECHOES


def _arms(annotation: Any) -> list[Any]:
    """The members of a union, or the type alone, freed from their annotations."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is JsonValue:
        return [annotation]
    if get_origin(annotation) in (Union, UnionType):
        return [arm for member in get_args(annotation) for arm in _arms(member)]
    return [annotation]


def _expected(arms: list[Any]) -> str:
    names = []
    for arm in arms:
        origin = get_origin(arm)
        if origin is Literal:
            names.append(" or ".join(str(choice) for choice in get_args(arm)))
        elif origin is list:
            names.append("a list")
        elif origin in (dict, Mapping):
            names.append("a mapping")
        elif arm is NoneType:
            names.append("null")
        elif isinstance(arm, type) and issubclass(arm, BaseModel):
            names.append(f"a mapping with the fields {', '.join(arm.model_fields)}")
        else:
            names.append({str: "text", int: "an integer", bool: "true or false", float: "a number"}.get(arm, str(arm)))
    return " or ".join(names)


def _advice(node: ScalarNode, arms: list[Any]) -> str:
    if not node.plain and any(arm in (int, float, bool) for arm in arms):
        return ": remove the quotes" if node.text in _BOOLEANS or _DECIMAL.fullmatch(node.text + ".0") else ""
    if bool in arms and node.text.lower() in {"yes", "on", "y"}:
        return ": write true"
    if bool in arms and node.text.lower() in {"no", "off", "n"}:
        return ": write false"
    if int in arms and _DECIMAL.fullmatch(node.text):
        return ": write it without a fraction"
    return ""


def _quoted(node: ScalarNode) -> str:
    if not node.plain:
        return f'"{short(node.text)}"'
    return f"'{short(node.text)}'" if node.text else "nothing"


def where_of(location: Location) -> str:
    where = ""
    for part in location:
        where += f"[{part}]" if isinstance(part, int) else f".{short(part)}" if where else short(part)
    return where
