"""What a person writes, read with line numbers and with no value turned into another.

A parser that guesses what a plain scalar is guesses wrong: an order called ``0510210600`` becomes a number, ``no`` a
boolean, ``2026-08-01`` a date. Here nothing is guessed: the field's type in a pydantic model says what a scalar is, and
a text field gets exactly what was written. JSON is YAML 1.2, so that JSON files load by the same path.
"""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grading.file_error import FileError
from grading.yaml_nodes import Composition, ListNode, MappingNode, Node, ScalarNode
from grading.yaml_values import Conversion, Location, is_echo, where_of

LARGEST_FILE = 64 * 2**20

Model = TypeVar("Model", bound=BaseModel)


class Document:
    """One file, parsed but not yet given a meaning."""

    def __init__(self, path: Path, root: Node) -> None:
        self.path = path
        self._root = root

    def text(self, name: str) -> str | None:
        """The text of a top-level field, None where it is absent or no text: to choose the model by."""
        if isinstance(self._root, MappingNode) and name in self._root.items:
            node = self._root.items[name][1]
            return node.text if isinstance(node, ScalarNode) else None
        return None

    def has(self, name: str) -> bool:
        """Whether there is a top-level field of that name."""
        return isinstance(self._root, MappingNode) and name in self._root.items

    def load(self, model: type[Model]) -> Model:
        """The file's content as that model.

        Raises:
            FileError: with every problem found, each at its line.
        """
        conversion = Conversion(self.path)
        value = conversion.convert(self._root, model, ())
        try:
            loaded = model.model_validate(value)
        except ValidationError as error:
            details = error.errors(include_url=False)
            told = [each for each in details if not is_echo(each)]
            if not told and not conversion.problems:
                told = details
            conversion.problems += [self._explained(each) for each in told]
        if conversion.problems:
            raise FileError.together(conversion.problems)
        return loaded

    def error(self, location: Location, message: str) -> FileError:
        """A problem with the value at a location such as ``("cases", 2, "id")``."""
        node, reached = self._follow(location)
        return FileError(self.path, node.line, node.column, f"{where_of(reached)}: {message}" if reached else message)

    def line(self, location: Location) -> int:
        return self._follow(location)[0].line

    def _follow(self, location: Location) -> tuple[Node, Location]:
        """The node at a location, and the location without its parts that lead nowhere: pydantic puts the names of
        union members among them."""
        node, reached = self._root, []
        for part in location:
            if isinstance(node, MappingNode) and part in node.items:
                node = node.items[str(part)][1]
            elif isinstance(node, ListNode) and isinstance(part, int) and part < len(node.items):
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
    return Document(path, Composition(path, _text_of(path)).root())


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
