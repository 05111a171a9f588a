"""What a person writes, read with line numbers and with no value turned into another.

A parser that guesses what a plain scalar is guesses wrong: an order called ``0510210600`` becomes a number, ``no`` a
boolean, ``2026-08-01`` a date. Here nothing is guessed: the field's type in a pydantic model says what a scalar is, and
a text field gets exactly what was written. JSON is YAML 1.2, so that JSON files load by the same path.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue, ValidationError

from simulator.canonical import LARGEST_INTEGER

LARGEST_FILE = 64 * 2**20
DEEPEST_NESTING = 64
LARGEST_EXPANSION = 2_000_000
"""Values that aliases may add, each long text counted once for every 64 characters."""
SHOWN_PROBLEMS = 20

Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_NULLS = frozenset({"", "~", "null"})
_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
# Wrong types are told by the conversion, in words for a person; pydantic's are echoes of it, one for each union member.
_ECHOES = frozenset({"literal_error", "none_required", "is_instance_of"})


class FileError(ValueError):
    """What is wrong with a file, where, and what to do. ``problems`` holds each one, in order; nothing was changed."""

    def __init__(self, path: Path | str, line: int | None, column: int | None, message: str) -> None:
        super().__init__(message)
        self.path = str(path)
        self.line = line
        self.column = column
        self.message = message
        self.problems: tuple[FileError, ...] = (self,)

    @classmethod
    def together(cls, problems: Iterable["FileError"]) -> "FileError":
        """One error for several problems: repeated ones once, ordered by line."""
        different = {(each.path, each.line, each.column, each.message): each for each in problems}
        ordered = sorted(different.values(), key=lambda each: (each.path, each.line or 0, each.column or 0))
        first = cls(ordered[0].path, ordered[0].line, ordered[0].column, ordered[0].message)
        first.problems = tuple(ordered)
        return first

    def __str__(self) -> str:
        lines = [each._line() for each in self.problems[:SHOWN_PROBLEMS]]
        if len(self.problems) > SHOWN_PROBLEMS:
            lines.append(f"... and {len(self.problems) - SHOWN_PROBLEMS} more")
        return "\n".join(lines)

    def _line(self) -> str:
        return f"{self.path}: {self.message}" if self.line is None else f"{self.path}:{self.line}: {self.message}"


@dataclass(slots=True)
class _Node:
    line: int
    column: int
    weight: int = 1


@dataclass(slots=True)
class _Scalar(_Node):
    text: str = ""
    plain: bool = True


@dataclass(slots=True)
class _List(_Node):
    items: list[_Node] = field(default_factory=list)


@dataclass(slots=True)
class _Mapping(_Node):
    items: dict[str, tuple[_Scalar, _Node]] = field(default_factory=dict)


class Document:
    """One file, parsed but not yet given a meaning."""

    def __init__(self, path: Path, root: _Node) -> None:
        self.path = path
        self._root = root

    def text(self, name: str) -> str | None:
        """The text of a top-level field, None where it is absent or no text: to choose the model by."""
        if isinstance(self._root, _Mapping) and name in self._root.items:
            node = self._root.items[name][1]
            return node.text if isinstance(node, _Scalar) else None
        return None

    def has(self, name: str) -> bool:
        """Whether there is a top-level field of that name."""
        return isinstance(self._root, _Mapping) and name in self._root.items

    def load(self, model: type[Model]) -> Model:
        """The file's content as that model.

        Raises:
            FileError: with every problem found, each at its line.
        """
        conversion = _Conversion(self)
        value = conversion.convert(self._root, model, ())
        try:
            loaded = model.model_validate(value)
        except ValidationError as error:
            details = error.errors(include_url=False)
            told = [each for each in details if not _is_echo(each)]
            if not told and not conversion.problems:
                told = details
            conversion.problems += [self._explained(each) for each in told]
        if conversion.problems:
            raise FileError.together(conversion.problems)
        return loaded

    def error(self, location: Location, message: str) -> FileError:
        """A problem with the value at a location such as ``("cases", 2, "id")``."""
        node, reached = self._follow(location)
        return FileError(self.path, node.line, node.column, f"{_where(reached)}: {message}" if reached else message)

    def line(self, location: Location) -> int:
        return self._follow(location)[0].line

    def _follow(self, location: Location) -> tuple[_Node, Location]:
        """The node at a location, and the location without its parts that lead nowhere: pydantic puts the names of
        union members among them."""
        node, reached = self._root, []
        for part in location:
            if isinstance(node, _Mapping) and part in node.items:
                node = node.items[str(part)][1]
            elif isinstance(node, _List) and isinstance(part, int) and part < len(node.items):
                node = node.items[part]
            else:
                continue
            reached.append(part)
        return node, tuple(reached)

    def _explained(self, detail: Any) -> FileError:
        kind, location, context = detail["type"], tuple(detail["loc"]), detail.get("ctx", {})
        if kind == "missing":
            return self.error(location[:-1], f"the field '{location[-1]}' is missing")
        messages = {
            "string_too_long": "must be at most {max_length} characters long",
            "greater_than_equal": "must be at least {ge}",
            "greater_than": "must be above {gt}",
            "less_than_equal": "must be at most {le}",
            "less_than": "must be below {lt}",
            "value_error": "{error}",
        }
        if (kind == "string_too_short" and context["min_length"] == 1) or context.get("pattern") == r"\S":
            message = "must not be blank"
        elif kind == "too_short":
            message = f"needs at least {context['min_length']}, has {context['actual_length']}"
        elif kind in messages:
            message = messages[kind].format(**context)
        else:
            message = detail["msg"]
        return self.error(location, message)


def load(path: Path, model: type[Model]) -> Model:
    """A file's content as a model: :func:`read`, then :meth:`Document.load`."""
    return read(path).load(model)


def read(path: Path) -> Document:
    """Parse one file.

    Raises:
        FileError: where it cannot be read, or is not one plain YAML 1.2 document.
    """
    return Document(path, _Composition(path, _text_of(path)).root())


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: the nearest known one as a question, and all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    suggestion = f" did you mean '{close[0]}'?" if close else ""
    return f"{suggestion} (known: {', '.join(names)})" if names else ""


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise FileError(path, None, None, f"cannot be read: {error.strerror or error}") from error
    if len(data) > LARGEST_FILE:
        raise FileError(path, None, None, f"is larger than {LARGEST_FILE // 2**20} MiB: split it into several files")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(path, line, None, "is not UTF-8: save it with that encoding") from error
    for character, name in (("\0", "NUL"), ("\x85", "U+0085 (next line)")):
        if character in text:
            line = text.count("\n", 0, text.index(character)) + 1
            advice = "remove it" if character == "\0" else 'write it as "\\x85"'
            raise FileError(path, line, None, f"holds the character {name}: {advice}")
    if not text.strip():
        raise FileError(path, 1, 1, "is empty")
    return text


class _Composition:
    """Nodes from the parser's events, built without recursion so that no file can exhaust the stack."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        self._anchors: dict[str, _Node] = {}
        self._stack: list[tuple[_List | _Mapping, str | None, _Scalar | None]] = []
        self._root: _Node | None = None
        self._expanded = 0
        self._problems: list[FileError] = []

    def root(self) -> _Node:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        parser = YAML(typ="safe", pure=True)
        try:
            for event in parser.parse(self._text):
                self._take(event)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = "; ".join(each for each in (error.context, error.problem) if each)
            raise FileError(
                self._path, mark.line + 1 if mark else 1, mark.column + 1 if mark else 1, f"is not YAML: {what}"
            ) from error
        except YAMLError as error:
            position = getattr(error, "position", 0)
            line = self._text.count("\n", 0, position) + 1
            raise FileError(self._path, line, None, f"is not YAML: {getattr(error, 'reason', error)}") from error
        except (ValueError, RecursionError, AssertionError, IndexError, AttributeError) as error:
            if isinstance(error, FileError):
                raise
            # The parser's own slips on text that is no YAML, such as an escape beyond U+10FFFF.
            raise FileError(self._path, None, None, f"is not YAML: {error}") from error
        if self._root is None:
            raise FileError(self._path, 1, 1, "is empty")
        if self._problems:
            raise FileError.together(self._problems)
        return self._root

    def _take(self, event: Any) -> None:
        from ruamel.yaml import events

        if isinstance(event, events.DocumentStartEvent):
            if self._root is not None:
                self._refuse(event, "a second document begins here: write one document for each file")
            if event.tags or (event.version is not None and tuple(event.version) != (1, 2)):
                self._refuse(event, "directives are not supported: the file is read as YAML 1.2, remove the % line")
            return
        if isinstance(event, events.AliasEvent):
            self._place(self._alias(event))
            return
        if not isinstance(event, events.NodeEvent):
            if isinstance(event, events.CollectionEndEvent):
                self._close()
            return
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._refuse(event, f"the tag '{tag}' is not supported: remove it, the field says what the value is")
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        node: _Node
        if isinstance(event, events.ScalarEvent):
            text = self._sound(event)
            node = _Scalar(line, column, 1 + len(text) // 64, text, event.style is None)
        elif isinstance(event, events.SequenceStartEvent):
            node = _List(line, column)
        else:
            node = _Mapping(line, column)
        if isinstance(node, _Scalar):
            self._place(node)
            if event.anchor is not None:
                self._anchors[event.anchor] = node
            return
        if len(self._stack) >= DEEPEST_NESTING:
            self._refuse(event, f"is nested more than {DEEPEST_NESTING} levels deep")
        assert isinstance(node, _List | _Mapping)
        self._stack.append((node, event.anchor, None))

    def _sound(self, event: Any) -> str:
        text: str = event.value
        if text.isascii():
            if "\0" in text:
                self._refuse(event, "the text holds NUL, which no store accepts: remove it")
            return text
        if any("\ud800" <= character <= "\udfff" for character in text):
            # JSON writes a character beyond U+FFFF as two escapes: together they are that character.
            try:
                text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                self._refuse(event, "the text holds half of a surrogate pair, which is no character: remove it")
        if "\0" in text:
            self._refuse(event, "the text holds NUL, which no store accepts: remove it")
        return text

    def _alias(self, event: Any) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            open_anchors = {anchor for _, anchor, _ in self._stack}
            if event.anchor in open_anchors:
                self._refuse(event, f"the alias *{event.anchor} contains itself")
            self._refuse(event, f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
        self._expanded += node.weight
        if self._expanded > LARGEST_EXPANSION:
            self._refuse(
                event, f"aliases expand to more than {LARGEST_EXPANSION:,} values: write them out or split the file"
            )
        return node

    def _place(self, node: _Node) -> None:
        """Put a finished node where it belongs: as the root, an item, a key or a value."""
        if not self._stack:
            self._root = node
            return
        parent, anchor, key = self._stack[-1]
        parent.weight += node.weight
        if isinstance(parent, _List):
            parent.items.append(node)
        elif key is None:
            if not isinstance(node, _Scalar):
                raise self._at(node, "a key must be text")
            if node.plain and node.text in _NULLS:
                raise self._at(node, "a key is missing here: quote it if it is meant as text")
            if node.text in parent.items:
                first = parent.items[node.text][0].line
                self._problems.append(
                    self._at(node, f"the key '{_short(node.text)}' is written twice, first on line {first}: keep one")
                )
            self._stack[-1] = (parent, anchor, node)
        else:
            parent.items.setdefault(key.text, (key, node))
            self._stack[-1] = (parent, anchor, None)

    def _close(self) -> None:
        node, anchor, _ = self._stack.pop()
        if anchor is not None:
            self._anchors[anchor] = node
        self._place(node)

    def _at(self, node: _Node, message: str) -> FileError:
        return FileError(self._path, node.line, node.column, message)

    def _refuse(self, event: Any, message: str) -> NoReturn:
        raise FileError(self._path, event.start_mark.line + 1, event.start_mark.column + 1, message)


class _Refused:
    """Stands for a value that was refused, so that the rest of the file is checked too."""


class _Conversion:
    """Values from nodes, as the fields of a model ask for them."""

    def __init__(self, document: Document) -> None:
        self._path = document.path
        self.problems: list[FileError] = []

    def convert(self, node: _Node, annotation: Any, location: Location) -> Any:
        arms = _arms(annotation)
        if any(arm is JsonValue or arm is Any for arm in arms):
            return self._free(node, location)
        if isinstance(node, _Mapping):
            return self._mapping(node, arms, location)
        if isinstance(node, _List):
            return self._list(node, arms, location)
        assert isinstance(node, _Scalar)
        return self._scalar(node, arms, location)

    def _mapping(self, node: _Mapping, arms: list[Any], location: Location) -> Any:
        for arm in arms:
            if isinstance(arm, type) and issubclass(arm, BaseModel):
                return self._fields(node, arm, location)
            if get_origin(arm) in (dict, Mapping):
                kind = get_args(arm)[1]
                return {key: self.convert(item, kind, (*location, key)) for key, (_, item) in node.items.items()}
        return self._refuse(node, location, f"must be {_expected(arms)}, not a mapping")

    def _fields(self, node: _Mapping, model: type[BaseModel], location: Location) -> dict[str, Any]:
        values = {}
        for key, (key_node, item) in node.items.items():
            known = model.model_fields.get(key)
            if known is None:
                self._refuse(key_node, location, f"unknown field '{_short(key)}':{nearest(key, model.model_fields)}")
            else:
                values[key] = self.convert(item, known.annotation, (*location, key))
        return values

    def _list(self, node: _List, arms: list[Any], location: Location) -> Any:
        for arm in arms:
            if get_origin(arm) is list:
                kind = get_args(arm)[0]
                return [self.convert(item, kind, (*location, index)) for index, item in enumerate(node.items)]
        return self._refuse(node, location, f"must be {_expected(arms)}, not a list")

    def _scalar(self, node: _Scalar, arms: list[Any], location: Location) -> Any:
        null = node.plain and node.text in _NULLS
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

    def _literal(self, node: _Scalar, arms: list[Any], location: Location) -> Any:
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

    def _free(self, node: _Node, location: Location) -> Any:
        """A value that no model describes, such as an agent's setting."""
        if isinstance(node, _Mapping):
            return {key: self._free(item, (*location, key)) for key, (_, item) in node.items.items()}
        if isinstance(node, _List):
            return [self._free(item, (*location, index)) for index, item in enumerate(node.items)]
        assert isinstance(node, _Scalar)
        if not node.plain:
            return node.text
        if node.text in _NULLS:
            return None
        if node.text in _BOOLEANS:
            return _BOOLEANS[node.text]
        if _INTEGER.fullmatch(node.text):
            return self._integer(node, location)
        if _DECIMAL.fullmatch(node.text):
            return self._number(node, location)
        return node.text

    def _integer(self, node: _Scalar, location: Location) -> Any:
        # Length first: Python refuses to read enormous integers.
        if len(node.text) > 17 or abs(int(node.text)) > LARGEST_INTEGER:
            return self._refuse(
                node, location, f"the integer {_short(node.text)} is beyond 2^53 - 1: quote it if it is meant as text"
            )
        return int(node.text)

    def _number(self, node: _Scalar, location: Location) -> Any:
        if len(node.text) < 400:
            exact, number = Decimal(node.text), float(node.text)
            # repr is the shortest text that gives the same float: what differs from it would be stored changed.
            if abs(exact) <= LARGEST_INTEGER and exact == Decimal(repr(number)):
                return number
        return self._refuse(
            node, location, f"the number {_short(node.text)} cannot be kept exactly: shorten it, or quote it as text"
        )

    def _refuse(self, node: _Node, location: Location, message: str) -> type[_Refused]:
        where = f"{_where(location)}: " if location else ""
        self.problems.append(FileError(self._path, node.line, node.column, where + message))
        return _Refused


def _is_echo(detail: Any) -> bool:
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


def _advice(node: _Scalar, arms: list[Any]) -> str:
    if not node.plain and any(arm in (int, float, bool) for arm in arms):
        return ": remove the quotes" if node.text in _BOOLEANS or _DECIMAL.fullmatch(node.text + ".0") else ""
    if bool in arms and node.text.lower() in {"yes", "on", "y"}:
        return ": write true"
    if bool in arms and node.text.lower() in {"no", "off", "n"}:
        return ": write false"
    if int in arms and _DECIMAL.fullmatch(node.text):
        return ": write it without a fraction"
    return ""


def _quoted(node: _Scalar) -> str:
    if not node.plain:
        return f'"{_short(node.text)}"'
    return f"'{_short(node.text)}'" if node.text else "nothing"


def _short(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)


def _where(location: Location) -> str:
    where = ""
    for part in location:
        where += f"[{part}]" if isinstance(part, int) else f".{_short(part)}" if where else _short(part)
    return where
