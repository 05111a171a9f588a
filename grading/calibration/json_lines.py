"""JSON Lines of one wire model: read with line numbers, written once and never over what is there.

Stricter than JSON parsers are: a repeated member name, NaN, an infinity and an integer that canonical JSON cannot carry
are refused, because each would let two readers see two documents.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from grading.file_error import FileError
from simulator.canonical import NotCanonicalizable, canonical

LARGEST_LINE = 16 * 2**20
"""Bytes of one document."""

Model = TypeVar("Model", bound=BaseModel)


def read_lines(path: Path, model: type[Model]) -> list[Model]:
    """Every document of a file, in order; blank lines are passed over.

    Raises:
        FileError: with every problem found, each at its line; nothing was taken in.
    """
    found: list[Model] = []
    problems: list[FileError] = []
    for number, line in _lines(path):
        try:
            found.append(parse(line, model))
        except ValueError as error:
            problems.append(FileError(path, number, None, str(error)))
    if problems:
        raise FileError.together(problems)
    if not found:
        raise FileError(path, None, None, "holds no document: one JSON object on each line is expected")
    return found


def parse(document: bytes, model: type[Model]) -> Model:
    """One JSON document as that model.

    Raises:
        ValueError: told in words for a person, each problem with the member it is about.
    """
    try:
        value = json.loads(document.decode(), object_pairs_hook=_members, parse_constant=_no_number)
        canonical(value)
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8: save it with that encoding") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from error
    except NotCanonicalizable as error:
        raise ValueError(f"holds a value that canonical JSON cannot carry: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        raise ValueError("; ".join(_explained(detail) for detail in error.errors(include_url=False))) from error
    if (where := _turned(value, parsed.model_dump(mode="json"))) is not None:
        raise ValueError(f"{where}: is a value of another type, such as true for 1")
    return parsed


def write_lines(path: Path, documents: Iterable[BaseModel]) -> int:
    """Writes one canonical document on each line of a file that does not exist yet; how many there were.

    Raises:
        FileError: where the file exists, or cannot be written; nothing is left behind.
    """
    lines = [canonical(document.model_dump(mode="json")) + b"\n" for document in documents]
    write_new(path, b"".join(lines))
    return len(lines)


def write_new(path: Path, data: bytes) -> None:
    """Writes a whole file under a name that nothing has yet, or nothing at all.

    Raises:
        FileError: where the file exists, or cannot be written.
    """
    check_new(path)
    written = path.with_name(f".cellwise-{os.getpid()}.new")  # not longer for a long name
    try:
        written.write_bytes(data)
        # A link, unlike a rename, refuses a name that is taken.
        os.link(written, path)
    except FileExistsError as error:
        raise FileError(path, None, None, "exists already and is not overwritten: give another name") from error
    except OSError as error:
        raise FileError(path, None, None, f"cannot be written: {error.strerror or error}") from error
    finally:
        written.unlink(missing_ok=True)


def check_new(path: Path) -> None:
    """Before any work whose result goes into a file that does not exist yet.

    Raises:
        FileError: where it exists, or could not be written.
    """
    try:
        if path.is_dir():
            raise FileError(path, None, None, "is a folder: name a file")
        if path.exists() or path.is_symlink():
            raise FileExistsError
        if not path.parent.is_dir():
            raise FileError(path, None, None, f"there is no folder {path.parent}: name a file in one that exists")
        if not os.access(path.parent, os.W_OK):
            raise FileError(path, None, None, f"cannot be written: the folder {path.parent} is not writable")
    except FileExistsError as error:
        raise FileError(path, None, None, "exists already and is not overwritten: give another name") from error
    except OSError as error:
        raise FileError(path, None, None, f"cannot be written: {error.strerror or error}") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LARGEST_LINE + 1):
                number += 1
                if len(line) > LARGEST_LINE:
                    raise FileError(path, number, None, f"the line is longer than {LARGEST_LINE // 2**20} MiB")
                if line.strip():
                    yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except OSError as error:
        raise FileError(path, None, None, f"cannot be read: {error.strerror or error}") from error


def _turned(given: Any, taken: Any, where: str = "") -> str | None:
    """Where a value was turned into another one: pydantic takes true and 1.0 for the literal 1, even when strict."""
    if isinstance(given, dict) and isinstance(taken, dict):
        pairs = ((f"{where}.{name}" if where else name, value, taken[name]) for name, value in given.items())
    elif isinstance(given, list) and isinstance(taken, list):
        pairs = ((f"{where}[{at}]", value, taken[at]) for at, value in enumerate(given))
    else:
        return None if type(given) is type(taken) and given == taken else where
    return next((found for place, one, other in pairs if (found := _turned(one, other, place)) is not None), None)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the member '{twice}' is written twice: keep one")
    return members


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _explained(detail: Any) -> str:
    where = ""
    for part in detail["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    if detail["type"] == "missing":
        return f"the member '{where}' is missing"
    if detail["type"] == "extra_forbidden":
        return f"the member '{where}' is unknown: remove it"
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
    return f"{where}: {message}" if where else message
