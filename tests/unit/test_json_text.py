"""JSON is read and written as orjson does it, whether orjson is loaded or not."""

import json
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from enum import IntEnum
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.agent import _frame
from simulator.canonical import canonical, canonical_of_parsed
from simulator.json_text import dumps, dumps_sorted, loads
from simulator.protocol import parse

SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


@contextmanager
def without_orjson() -> Iterator[Callable[[], bool]]:
    """As in a process that has not loaded it. Tells whether it has been loaded since."""
    loaded = sys.modules.pop("orjson")
    try:
        yield lambda: "orjson" in sys.modules
    finally:
        sys.modules["orjson"] = loaded


def outcome(do: Callable[[Any], Any], value: Any) -> tuple[str, ...]:
    """What came of it: a result's parts, which tell 0 from 0.0, -0.0 and False; or the kind of error."""
    try:
        result = do(value)
    except ValueError:
        return ("ValueError",)
    except TypeError:
        return ("TypeError",)
    return tuple(spelled(result))


def spelled(value: Any) -> list[str]:
    """Each part with its type, however deep it is."""
    found, rest = [], [value]
    while rest:
        part = rest.pop()
        found.append(type(part).__name__)
        if type(part) is dict:
            rest += [*part.values(), *part]
            found.append(f"{len(part)}")
        elif type(part) is list:
            rest += part
            found.append(f"{len(part)}")
        else:
            found.append(repr(part))
    return found


def same(ours: Callable[[Any], Any], reference: Callable[[Any], Any], value: Any) -> bool:
    """Holds one against the other, and says whether ours could do without orjson."""
    expected = outcome(reference, value)
    assert outcome(ours, value) == expected
    with without_orjson() as loaded:
        assert outcome(ours, value) == expected
        return not loaded()


def nested(depth: int, opening: str = "[", closing: str = "]", inner: str = "") -> bytes:
    return (opening * depth + inner + closing * depth).encode()


def deep(depth: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = make(value)
    return value


TEXTS = [
    *(b"", b" ", b"\n", b"null", b" null\t\r\n ", b"nul", b"nulll", b"NULL", b"None", b"true", b"True", b"false"),
    *(b"0", b"-0", b"0.0", b"-0.0", b"00", b"01", b"-01", b"+1", b"-", b"1.", b".5", b"-.5", b"1.5.5", b"1_0", b"0x1"),
    *(b"1e5", b"1E5", b"1e+5", b"1e-5", b"1e", b"1e+", b"1.e5", b"0e0", b"-0e0", b"1e400", b"-1e400", b"1e-400"),
    *(b"1.7976931348623157e308", b"1.7976931348623159e308", b"4.9e-324", b"2.4e-324", b"2.5e-324"),
    *(b"0.1", b"0.30000000000000004", b"123456789012345.6", b"1234567890123456.7", b"9007199254740993.0"),
    *(b"0." + b"1" * 400, b"1" * 400, b"1" * 5000, b"0." + b"0" * 400 + b"1", b"1" * 309 + b".0"),
    *(b"%d" % (sign * (2**bits + off)) for bits in (31, 53, 59, 60, 63, 64) for off in (-1, 0, 1) for sign in (1, -1)),
    *(b"9" * 17, b"9" * 18, b"9" * 19, b"9" * 20, b"-" + b"9" * 18, b"-" + b"9" * 19),
    *(b"NaN", b"nan", b"-NaN", b"Infinity", b"-Infinity", b"[NaN]", b'{"a":-Infinity}', b"inf"),
    *(
        b'"a"',
        b'"a',
        b'a"',
        b"'a'",
        b'"\\',
        b'"\\"',
        b'"\\x"',
        b'"\\/"',
        b'"\\b\\f\\n\\r\\t\\"\\\\"',
        b'"\\v"',
        b'"\\0"',
    ),
    *(b'"%c"' % code for code in (*range(0x21), 0x7F, 0x80, 0xC0, 0xFF)),
    *(b'"\\u0000"', b'"\\u001f"', b'"\\u00e9"', b'"\\u00E9"', b'"\\u12"', b'"\\u12g4"', b'"\\u+123"', b'"\\u 123"'),
    *(b'"\\ud800"', b'"\\uDFFF"', b'"\\ud83d\\ude00"', b'"\\ude00\\ud83d"', b'"\\ud83d\\u0041"', b'"\\ud83d"'),
    *(b'"\\ud83dx\\ude00"', b'"\\\\ud800"', b'"\\\\\\ud800"', b'"\\U0001f600"', b'{"\\ud800":1}', b'"\\ud83d\\"'),
    *(b'"\xed\xa0\x80"', b'"\xed\xbf\xbf"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b'"\xe2\x82"', b'"\xef\xbf\xbf"'),
    *('"😀é\u2028\x7f"'.encode(), b"\xef\xbb\xbf1", b'"\xef\xbb\xbf"', b"\xff", b"\xc2\xa01", b"1\x0c", b"1\x0b"),
    *("[1]".encode(code) for code in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le")),
    *(b"[]", b"[", b"]", b"[1,]", b"[,1]", b"[1 2]", b"[1,,2]", b"[1]]", b"[ 1 , 2 ]", b"[1\x00]", b"1 1", b"{} {}"),
    *(
        b"{}",
        b"{",
        b"}",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,}',
        b"{a:1}",
        b"{1:1}",
        b'{"a" : 1 , "b" : 2}',
        b'{"a":1 "b":2}',
    ),
    *(b'{"a":1,"a":2}', b'{"a":1,"b":2,"a":3}', b'{"":0,"":1}', b'{"a":{"a":1,"a":2}}', b'{"a":1,"\\u0061":2}'),
    *(b"// 1", b"/* */ 1", b"1 // 1", b"[1] #", b"\x00", b"1\x00", b"\x001"),
    *(nested(depth) for depth in (1, 254, 255, 500, 990, 1000, 1001, 1023, 1024, 1025, 1026, 5000, 100_000)),
    *(nested(depth, '{"a":', "}", "1") for depth in (254, 255, 1000, 1001, 1024, 1025, 100_000)),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"[]," * 5000 + b"1]", b'"' + b"[" * 5000 + b'"'),
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:40])
def test_a_text_is_read_as_orjson_reads_it(text: bytes) -> None:
    same(loads, orjson.loads, text)


class _Text(str):
    __slots__ = ()


class _Number(int):
    pass


class _Members(dict[Any, Any]):
    pass


class _Elements(list[Any]):
    pass


class _Kind(IntEnum):
    ONE = 1


_Pair = namedtuple("_Pair", "a b")
FLOATS = [
    *(0.0, -0.0, 0.1, 0.3, 0.1 + 0.2, 1.0, -1.5, 60.0, 0.001, 1e-3, 1e-4, 1e-5, 9.9e-5, 1.5e-7, 5e-324, 2.0**-44),
    *(1e14, 1e15, 1e16, 1e17, 1e21, 1e22, 1e23, 9007199254740993.0, 123456789012345.6, 1.7976931348623157e308),
    *(float("nan"), float("inf"), -float("inf")),
]
VALUES: list[Any] = [
    *FLOATS,
    *(None, True, False, 0, -1, "", "a", [], {}, (), (1, (2,)), [()], {"a": ()}),
    *(sign * (2**bits + off) for bits in (53, 63, 64, 70) for off in (-1, 0, 1) for sign in (1, -1)),
    *(10**400, [10**400], {"a": -(10**20)}, {1: 2}, {None: 1}, {True: 1}, {1.5: 1}, {(): 1}, {"a": 1, 2: 3}),
    *(_Text("x"), [_Text("x")], {_Text("x"): 1}, _Number(3), _Members(a=1), _Elements([1]), _Pair(1, 2), _Kind.ONE),
    *({_Kind.ONE: 1}, [_Elements([_Text("\ud800")])]),
    *("\ud800", "\udfff", ["\ud83d\ude00"], {"\udc00": 1}, "".join(map(chr, range(0x300))), "😀\u2028\uffff\x7f"),
    *(b"x", bytearray(b"x"), {1, 2}, object(), date(2026, 8, 1), iter([]), 1j, range(3), type, orjson.Fragment(b"1")),
    *({"b": 1, "a": 2, "B": 3, "": 4, "aa": {"z": 1, "y": 2}}, {"\U0001f600": 1, "\ufb33": 2, "\xe9": 3, "z": 4}),
    *(deep(depth, lambda value: [value]) for depth in (100, 253, 254, 255, 256, 1000, 50_000)),
    *(deep(depth, lambda value: {"a": value}) for depth in (253, 254, 255, 1000)),
    *([[]] * 999, [[]] * 1000, [[]] * 5000, [{}, {"a": [[]]}] * 400),
]


def shown(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize("value", VALUES, ids=shown)
def test_a_value_is_written_as_orjson_writes_it(value: Any) -> None:
    same(dumps, orjson.dumps, value)
    same(dumps_sorted, lambda given: orjson.dumps(given, option=SORTED), value)


def test_what_holds_itself_is_refused() -> None:
    members: dict[str, Any] = {}
    elements = [members, members]
    members["a"] = elements
    same(dumps, orjson.dumps, members)
    same(dumps, orjson.dumps, elements)


characters = st.characters() | st.sampled_from('"\\/\x00\x1f\x7f\u2028\ud800\udfff😀é')
any_texts = st.text(characters, max_size=10)
any_floats = st.floats() | st.sampled_from(FLOATS) | st.decimals(allow_nan=False, places=3).map(float)
any_integers = st.integers() | st.integers(-(2**66), 2**66)
plain_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


def composed(leaves: st.SearchStrategy[Any], names: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4) | st.tuples(inner, inner),
        max_leaves=16,
    )


any_values = composed(
    st.none()
    | st.booleans()
    | any_integers
    | any_floats
    | any_texts
    | st.builds(_Text, any_texts)
    | st.builds(_Number, any_integers)
    | st.binary(max_size=3)
    | st.dates(),
    any_texts | st.builds(_Text, any_texts) | st.integers() | st.none(),
)
json_values = composed(st.none() | st.booleans() | any_integers | st.floats() | any_texts, any_texts)
plain_values = composed(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | plain_texts | st.just(0.125), plain_texts
)
many = settings(max_examples=400, deadline=None)


@many
@given(any_values)
def test_any_value_is_written_as_orjson_writes_it(value: Any) -> None:
    same(dumps, orjson.dumps, value)
    same(dumps_sorted, lambda given: orjson.dumps(given, option=SORTED), value)


@many
@given(plain_values)
def test_plain_json_needs_no_orjson(value: Any) -> None:
    assert same(dumps, orjson.dumps, value)
    assert same(dumps_sorted, lambda given: orjson.dumps(given, option=SORTED), value)
    assert same(loads, orjson.loads, orjson.dumps(value))


@many
@given(any_floats)
def test_any_number_is_written_as_orjson_writes_it(number: float) -> None:
    same(dumps, orjson.dumps, number)
    same(dumps, orjson.dumps, {"a": [number]})


numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@many
@given(numbers | st.from_regex(r"[-+]?[0-9]{0,20}\.?[0-9]{0,3}[eE]?[-+]?[0-9]{0,3}", fullmatch=True))
def test_any_number_is_read_as_orjson_reads_it(text: str) -> None:
    same(loads, orjson.loads, text.encode())
    same(loads, orjson.loads, b'{"a":[%b]}' % text.encode())


@many
@given(st.binary(max_size=20))
def test_any_bytes_are_read_as_orjson_reads_them(data: bytes) -> None:
    same(loads, orjson.loads, data)
    same(loads, orjson.loads, b'"' + data + b'"')


pieces = st.sampled_from(
    [
        *('"', "\\", "\\u", "\\ud83d", "\\ude00", "ud8", "{", "}", "[", "]", ",", ":", " ", "\n", "\t", "0", "-", "."),
        *(
            "e",
            "E",
            "+",
            "1",
            "99999999999",
            "NaN",
            "Infinity",
            "null",
            "true",
            '"a"',
            '"a":',
            "\ufeff",
            "\x00",
            "\x0b",
        ),
    ]
)


@st.composite
def mutated_texts(draw: st.DrawFn) -> bytes:
    """A JSON text as some writer writes it, with a few places cut out or overwritten."""
    value = draw(json_values)
    written = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 0, 1])))
    text = written.encode(errors=draw(st.sampled_from(["surrogatepass", "replace"])))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        piece = draw(pieces.map(str.encode) | st.binary(max_size=2))
        text = text[:at] + piece + text[at + draw(st.integers(0, 4)) :]
    return text


@settings(max_examples=1500, deadline=None)
@given(mutated_texts())
def test_a_mutated_text_is_read_as_orjson_reads_it(text: bytes) -> None:
    same(loads, orjson.loads, text)


@many
@given(st.lists(pieces, max_size=12).map("".join))
def test_what_looks_like_json_is_read_as_orjson_reads_it(text: str) -> None:
    same(loads, orjson.loads, text.encode())


def parsed(line: bytes) -> Any:
    try:
        return parse(line)
    except RecursionError as error:
        raise ValueError from error


@settings(max_examples=1500, deadline=None)
@given(mutated_texts())
@example(b'{"a":1,"a":2}')
def test_an_agents_line_is_the_same_call_to_either(line: bytes) -> None:
    assert same(parsed, parsed, line)


@pytest.mark.parametrize("line", TEXTS, ids=lambda line: repr(line)[:40])
def test_any_of_those_texts_as_an_agents_line(line: bytes) -> None:
    assert same(parsed, parsed, line)


@many
@given(st.dictionaries(plain_texts, any_texts | any_integers | any_floats | json_values, max_size=4))
def test_a_call_is_sent_in_the_same_bytes_by_either(arguments: dict[str, Any]) -> None:
    """A refused call's ledger has the hash of its bytes."""
    same(lambda given: _frame("tool", given), lambda given: _frame("tool", given), arguments)


@many
@given(json_values)
def test_canonical_json_is_the_same_by_either(value: Any) -> None:
    same(canonical, canonical, value)
    if outcome(orjson.dumps, value)[0] == "bytes":
        given = orjson.loads(orjson.dumps(value))
        same(canonical_of_parsed, canonical_of_parsed, given)


def test_no_error_of_depth_escapes_near_the_end_of_the_stack() -> None:
    def at(depth: int) -> bool:
        if depth:
            return at(depth - 1)
        return same(dumps, orjson.dumps, deep(250, lambda value: [value])) and same(loads, orjson.loads, nested(200))

    assert at(0)
    at(500)
