"""What is wrong with a file that a person wrote: where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

SHOWN_PROBLEMS = 20


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


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: the nearest known one as a question, and all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    suggestion = f" did you mean '{close[0]}'?" if close else ""
    return f"{suggestion} (known: {', '.join(names)})" if names else ""


def short(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in shown)
