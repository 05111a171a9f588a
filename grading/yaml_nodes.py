"""A YAML document as nodes: what was written and where, with nothing decided yet about what it means."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from grading.file_error import FileError, short

DEEPEST_NESTING = 64
LARGEST_EXPANSION = 2_000_000
"""Values that aliases may add, each long text counted once for every 64 characters."""
NULLS = frozenset({"", "~", "null"})


@dataclass(slots=True)
class Node:
    line: int
    column: int
    weight: int = 1


@dataclass(slots=True)
class ScalarNode(Node):
    text: str = ""
    plain: bool = True


@dataclass(slots=True)
class ListNode(Node):
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class MappingNode(Node):
    items: dict[str, tuple[ScalarNode, Node]] = field(default_factory=dict)


class Composition:
    """Nodes from the parser's events, built without recursion so that no file can exhaust the stack."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text
        self._anchors: dict[str, Node] = {}
        self._stack: list[tuple[ListNode | MappingNode, str | None, ScalarNode | None]] = []
        self._root: Node | None = None
        self._expanded = 0
        self._problems: list[FileError] = []

    def root(self) -> Node:
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
        node: Node
        if isinstance(event, events.ScalarEvent):
            text = self._sound(event)
            node = ScalarNode(line, column, 1 + len(text) // 64, text, event.style is None)
        elif isinstance(event, events.SequenceStartEvent):
            node = ListNode(line, column)
        else:
            node = MappingNode(line, column)
        if isinstance(node, ScalarNode):
            self._place(node)
            if event.anchor is not None:
                self._anchors[event.anchor] = node
            return
        if len(self._stack) >= DEEPEST_NESTING:
            self._refuse(event, f"is nested more than {DEEPEST_NESTING} levels deep")
        assert isinstance(node, ListNode | MappingNode)
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

    def _alias(self, event: Any) -> Node:
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

    def _place(self, node: Node) -> None:
        """Put a finished node where it belongs: as the root, an item, a key or a value."""
        if not self._stack:
            self._root = node
            return
        parent, anchor, key = self._stack[-1]
        parent.weight += node.weight
        if isinstance(parent, ListNode):
            parent.items.append(node)
        elif key is None:
            if not isinstance(node, ScalarNode):
                raise self._at(node, "a key must be text")
            if node.plain and node.text in NULLS:
                raise self._at(node, "a key is missing here: quote it if it is meant as text")
            if node.text in parent.items:
                first = parent.items[node.text][0].line
                self._problems.append(
                    self._at(node, f"the key '{short(node.text)}' is written twice, first on line {first}: keep one")
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

    def _at(self, node: Node, message: str) -> FileError:
        return FileError(self._path, node.line, node.column, message)

    def _refuse(self, event: Any, message: str) -> NoReturn:
        raise FileError(self._path, event.start_mark.line + 1, event.start_mark.column + 1, message)
