"""Canonical JSON (RFC 8785) and its SHA-256: what every hash in Cellwise is computed over.

Two encoders give the same bytes: orjson, a hundred times faster, wherever its output is canonical, and the rfc8785
library for the rest, namely numbers with a fraction (orjson writes ``1e16`` where RFC 8785 wants sixteen zeros) and
member names outside the Basic Multilingual Plane (RFC 8785 sorts UTF-16 code units, orjson code points).
"""

import re
import sys
from typing import Any

from simulator.json_text import dumps_sorted

_PLAIN = frozenset({str, int, bool, type(None)})

_FOLDED = bytes.maketrans(b"123456789eE,[", b"000000000..::")
"""One sign for every digit, for what begins a fraction or an exponent, and for what a member's or element's number may
follow: looking for a few signs is several times faster than for classes of them."""

_FRACTION = re.compile(rb":-?0+\.")
"""In folded text, a member or element with a fraction or an exponent, which orjson may write otherwise; or a text that
looks so."""

LARGEST_INTEGER = 2**53 - 1


class NotCanonicalizable(ValueError):  # noqa: N818 - named after the condition, like the errors of json
    """The value has no canonical JSON: NaN, a lone surrogate, an integer beyond 2^53 - 1, or no JSON at all."""


def canonical(value: Any) -> bytes:
    """The canonical JSON of a JSON value.

    Raises:
        NotCanonicalizable: for a value that RFC 8785 cannot write.
    """
    try:
        if _needs_rfc8785(value):
            # Loaded where a value needs it: most trials have none.
            import rfc8785

            return rfc8785.dumps(value)
        return dumps_sorted(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise NotCanonicalizable(str(error)) from error


def canonical_of_parsed(value: Any) -> bytes:
    """The same, several times faster, for a value that a JSON parser gave: it holds no NaN and nothing but JSON."""
    try:
        data = dumps_sorted(value)
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise NotCanonicalizable(str(error)) from error
    if not data.isascii() or not data.startswith((b"{", b"[")):
        return canonical(value)
    folded = data.translate(_FOLDED)
    return canonical(value) if b"0." in folded and _FRACTION.search(folded) else data


def sha256(data: bytes) -> str:
    """The digest of some bytes, in the form ``sha256:<64 hex digits>`` that every document uses."""
    if "hashlib" in sys.modules:
        import hashlib

        return "sha256:" + hashlib.sha256(data).hexdigest()
    # OpenSSL, which hashlib loads, hashes several times faster, but loading it takes longer than a recorder of a few
    # trials takes to hash without it: whoever hashes much imports hashlib. The standard library's random does it so.
    try:
        from _sha256 import sha256 as hashed  # type: ignore[import-not-found]
    except ImportError:  # since Python 3.12 it has another name
        from hashlib import sha256 as hashed
    return f"sha256:{hashed(data).hexdigest()}"


def canonical_hash(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON."""
    return sha256(canonical(value))


def _needs_rfc8785(value: Any) -> bool:
    containers: list[Any] = [[value]]
    # Grows while it is read: every container below, but no text, integer, truth value or null, of which most are.
    for container in containers:
        items: Any = container
        if type(container) is dict:
            names = "".join(container)
            if not names.isascii() and max(names) > "\uffff":
                return True
            items = container.values()
        for item in items:
            kind = type(item)
            if kind not in _PLAIN:
                if kind is not dict and kind is not list:
                    return True
                containers.append(item)
    return False
