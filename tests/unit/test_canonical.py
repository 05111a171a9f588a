"""Canonical JSON is RFC 8785's, byte for byte, whichever of the two encoders wrote it."""

import hashlib
import json
import struct
import sys
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from simulator.canonical import LARGEST_INTEGER, NotCanonicalizable, canonical, canonical_hash, sha256

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = texts | st.sampled_from(["\U0001f600", "\ufb33", "\u20ac", "\r", "1", "\x80", "\xf6", ""])
integers = st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_the_same_as_the_reference_encoder(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(values)
def test_canonical_again(value: Any) -> None:
    # A whole float beyond the integers is read back as an integer that canonical JSON refuses: read as a float here.
    again = json.loads(canonical(value), parse_int=lambda text: int(text) if abs(int(text)) < 2**53 else float(text))
    assert canonical(again) == canonical(value)


# RFC 8785, appendix B: IEEE 754 bits and the number's text.
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_of_the_standard(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == text.encode()
    assert canonical({"n": [number]}) == b'{"n":[%b]}' % text.encode()


def test_the_order_of_the_standard() -> None:
    """RFC 8785, 3.2.3: members are sorted by UTF-16 code units, so a surrogate pair comes before U+FB33."""
    unsorted = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\x80": "Control",
        "\xf6": "Latin Small Letter O With Diaeresis",
    }
    assert list(json.loads(canonical(unsorted)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_the_sample_of_the_standard() -> None:
    """RFC 8785, 3.2.2 to 3.2.4."""
    sample = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"\u002f",
        "literals": [None, True, False],
    }
    assert (
        canonical(sample)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        "\ud800",
        {"\udc00": 1},
        2**53,
        -(2**53),
        10**30,
        pytest.param(object(), id="object"),
        {1: 2},
        b"x",
    ],
    ids=repr,
)
def test_what_has_no_canonical_form(value: Any) -> None:
    for placed in (value, [value], {"a": [value]}):
        with pytest.raises(NotCanonicalizable):
            canonical(placed)


def test_too_deep() -> None:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotCanonicalizable):
        canonical(value)


def test_the_largest_integers() -> None:
    assert canonical([2**53 - 1, -(2**53) + 1]) == b"[9007199254740991,-9007199254740991]"


@pytest.mark.parametrize("loaded", [True, False], ids=["hashlib", "built in"])
def test_hashes(loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not loaded:
        monkeypatch.delitem(sys.modules, "hashlib")
    assert sha256(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert sha256(bytes(range(256)) * 99) == f"sha256:{hashlib.sha256(bytes(range(256)) * 99).hexdigest()}"
    assert canonical_hash({"b": 1, "a": 2}) == sha256(b'{"a":2,"b":1}')
