"""What leaves for Phoenix: JSON that every Phoenix accepts, and no more of it than a person would read.

Phoenix on PostgreSQL refuses NUL, no JSON knows NaN, and one enormous output makes a page that nobody can open. The
store keeps the whole; what was cut says how much.
"""

import math
from collections.abc import Mapping
from typing import Any

from simulator.canonical import NotCanonicalizable, canonical

LONGEST_TEXT = 20_000
"""Characters of one text."""
LARGEST_VALUE = 100_000
"""Bytes of a whole value's JSON."""
DEEPEST = 50


def text(value: str, longest: int = LONGEST_TEXT) -> str:
    """A text without NUL and lone surrogates, cut with a note where it is longer than ``longest`` characters."""
    if len(value) > longest:
        value = f"{value[:longest]} … [{len(value) - longest:,} more characters are in the store]"
    if "\x00" in value:
        value = value.replace("\x00", "␀")
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def json(value: Any, longest: int = LONGEST_TEXT, largest: int = LARGEST_VALUE) -> Any:
    """A JSON value of which every text is ``text``, and which is cut to a text where it is larger than ``largest``."""
    cleaned = _json(value, longest, DEEPEST)
    try:
        written = canonical(cleaned)
    except NotCanonicalizable as error:
        return f"[no JSON that can be shown: {error}]"
    if len(written) <= largest:
        return cleaned
    return text(written.decode(), min(longest, largest))


def _json(value: Any, longest: int, depth: int) -> Any:
    if isinstance(value, str):
        return text(value, longest)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == 0:
        return "[nested deeper than is shown; the whole is in the store]"
    if isinstance(value, Mapping):
        return {text(str(key), longest): _json(item, longest, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item, longest, depth - 1) for item in value]
    raise TypeError(f"{type(value).__name__} is no JSON value")


def name(value: str) -> str:
    """A name of an experiment that Phoenix can also export.

    Phoenix 20 puts it into an HTTP header when it exports an experiment (which is how evaluations are read back), and
    answers 500 for what is not Latin-1; such characters are written as escapes. The full name is in the metadata.
    """
    shown = "".join(
        character if character.isprintable() and character != '"' else " " for character in text(value, 200)
    )
    return shown.encode("latin-1", "backslashreplace").decode("latin-1")
