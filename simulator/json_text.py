"""JSON as orjson reads and writes it, also where orjson is not loaded.

Loading orjson takes a quarter of a recorder's start, and one trial reads and writes a few kilobytes. So where a process
has loaded it, as whatever handles many trials has by importing it, it does all the work; elsewhere the standard
library does what it surely does alike, and orjson is loaded for all else: a text that is no JSON, a number whose value
or text the two might see differently, a value that is more than plain JSON. Which one did it, nobody can tell but by
the time that it took.
"""

import json
import sys
from typing import Any, NoReturn

_MOST_CONTAINERS = 1000
"""Of what the standard library takes on: it has no limit of depth of its own, orjson reads 1024 levels, and more than
that is faster with orjson even if it must be loaded."""

_DEEPEST_WRITTEN = 254
"""Levels of objects and arrays that orjson writes."""

_LONGEST_FLOAT = 16
"""Characters of a number with a point, at most 15 of them digits: as many have one value alone and are the only
shortest text of it, so that no reader or writer may choose."""

_LONGEST_INTEGER = 18
"""Characters of an integer that surely has 64 bits."""


def orjson_is_loaded() -> bool:
    return "orjson" in sys.modules


def loads(data: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ValueError: it is none.
    """
    if not orjson_is_loaded() and data.count(b"{") + data.count(b"[") <= _MOST_CONTAINERS:
        try:
            if b"\\ud" not in data and b"\\uD" not in data:  # half a surrogate pair begins so
                return _DECODER.decode(data.decode())
        except (ValueError, RecursionError):
            pass
    import orjson

    return orjson.loads(data)


def dumps(value: Any) -> bytes:
    """The text of a value, without spaces.

    Raises:
        TypeError: it has none.
    """
    if not orjson_is_loaded() and _is_plain(value, -(2**63), 2**64 - 1):
        try:
            return _ENCODER.encode(value).encode()
        except UnicodeEncodeError as error:
            raise TypeError("half a surrogate pair has no UTF-8") from error
        except RecursionError:
            pass
    import orjson

    return orjson.dumps(value)


def dumps_sorted(value: Any) -> bytes:
    """The same with each object's members sorted by their names' code points, and integers up to 2^53 - 1 alone.

    Raises:
        TypeError: it has none.
    """
    if not orjson_is_loaded() and _is_plain(value, -(2**53) + 1, 2**53 - 1):
        try:
            return _SORTING_ENCODER.encode(value).encode()
        except UnicodeEncodeError as error:
            raise TypeError("half a surrogate pair has no UTF-8") from error
        except RecursionError:
            pass
    import orjson

    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER)


class _Otherwise(ValueError):  # noqa: N818 - reads as who reads it
    """A number for orjson to read."""


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise _Otherwise
    return int(text)


def _float(text: str) -> float:
    if len(text) > _LONGEST_FLOAT or "e" in text or "E" in text:
        raise _Otherwise
    return float(text)


def _no_number(text: str) -> NoReturn:
    """For NaN and the infinities, which the standard library reads."""
    raise _Otherwise


_DECODER = json.JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_no_number)
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
_SORTING_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), sort_keys=True)


def _is_plain(value: Any, least: int, most: int) -> bool:
    """Whether a value is what a JSON parser gives, or has a tuple for an array, with no number that is written in more
    than one way. Says nothing about texts."""
    level: list[Any] = [[value]]
    containers = 0
    for _ in range(_DEEPEST_WRITTEN + 1):
        below: list[Any] = []
        for container in level:
            items: Any = container
            if type(container) is dict:
                for name in container:
                    if type(name) is not str:
                        return False
                items = container.values()
            for item in items:
                kind = type(item)
                if kind is str or item is None or kind is bool:
                    continue
                if kind is int:
                    if not least <= item <= most:
                        return False
                elif kind is dict or kind is list or kind is tuple:
                    below.append(item)
                elif kind is not float or not _is_plain_float(item):
                    return False
        containers += len(below)
        if containers > _MOST_CONTAINERS:
            return False
        if not below:
            return True
        level = below
    return False


def _is_plain_float(number: float) -> bool:
    text = repr(number)
    return len(text) <= _LONGEST_FLOAT and "e" not in text and "n" not in text
