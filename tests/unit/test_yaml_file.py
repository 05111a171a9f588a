"""What is written is what is read: no scalar becomes another value, and every problem is told with its line."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, JsonValue

from grading import yaml_file
from grading.file_error import FileError
from grading.yaml_file import load
from simulator.model import WireModel


class Inner(WireModel):
    name: str
    count: Annotated[int, Field(ge=0)] = 0


class Everything(WireModel):
    text: str = "absent"
    maybe: str | None = "absent"
    integer: int = -1
    flag: bool | None = None
    number: float = -1.0
    choice: Literal["alternate", "forward"] = "forward"
    version: Literal[1] = 1
    texts: str | list[str] = []
    inner: Inner | None = None
    inners: list[Inner] = []
    labels: dict[str, str] = {}
    free: dict[str, JsonValue] = {}


def read(tmp_path: Path, content: str | bytes, name: str = "file.yaml") -> Everything:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load(path, Everything)


def refusal(tmp_path: Path, content: str | bytes) -> list[tuple[int | None, str]]:
    with pytest.raises(FileError) as caught:
        read(tmp_path, content)
    return [(each.line, each.message) for each in caught.value.problems]


@pytest.mark.parametrize(
    "written",
    ["no", "yes", "on", "0510210600", "1e3", "2026-08-01", "true", "12", "1_000", "0x1F", "12:30:45", ".inf", "4500.0",
     "NULL", "<b>bold</b>", "it's", "a # b".replace(" #", "#"), "=", "<<"],
)  # fmt: skip
def test_a_text_field_gets_exactly_what_was_written(tmp_path: Path, written: str) -> None:
    loaded = read(tmp_path, f"text: {written}\nlabels: {{? {written} : {written}}}\ntexts: [{written}]\n")
    assert (loaded.text, loaded.labels, loaded.texts) == (written, {written: written}, [written])


@settings(deadline=None)  # a file is written each time
@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=50))
def test_any_text_survives_as_json_writes_it(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("texts")
    escaped = json.dumps({"text": text, "labels": {text: text}, "free": {"value": text}})
    loaded = read(folder, escaped, "file.json")
    assert (loaded.text, loaded.labels, loaded.free) == (text, {text: text}, {"value": text})


@settings(deadline=None)  # a file is written each time
@given(st.from_regex(r"[A-Za-z0-9_.+-]{1,20}", fullmatch=True))
def test_any_plain_word_survives_in_a_text_field(tmp_path_factory: pytest.TempPathFactory, word: str) -> None:
    folder = tmp_path_factory.mktemp("words")
    if word == "null" or re.fullmatch(r"-|---|\.\.\.", word):
        return
    assert read(folder, f"text: {word}\n").text == word


@settings(deadline=None)  # a file is written each time
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53 - 1), 2**53 - 1)
    | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=12,
))  # fmt: skip
def test_free_json_values_load_as_themselves(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    folder = tmp_path_factory.mktemp("values")
    assert read(folder, json.dumps({"free": {"value": value}}), "file.json").free == {"value": value}
    assert read(folder, json.dumps({"free": {"value": value}}, indent="\t")).free == {"value": value}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("null", None), ("~", None), ("", None), ("true", True), ("false", False), ("0", 0), ("-7", -7), ("0.2", 0.2),
        ("-1.5", -1.5), ("1e3", "1e3"), ("0510210600", "0510210600"), ("no", "no"), ("2026-08-01", "2026-08-01"),
        (".inf", ".inf"), (".nan", ".nan"), (".5", ".5"), ("5.", "5."), ("True", "True"), ('"1"', "1"),
        ("'null'", "null"),
        ("9007199254740991", 2**53 - 1), ("|\n    1\n", "1\n"),
    ],
)  # fmt: skip
def test_free_values_use_few_and_plain_rules(tmp_path: Path, written: str, value: JsonValue) -> None:
    loaded = read(tmp_path, f"free:\n  key: {written}\n").free["key"]
    assert loaded == value
    assert type(loaded) is type(value)


def test_null_is_for_fields_that_may_be_null(tmp_path: Path) -> None:
    assert read(tmp_path, "maybe: null").maybe is None
    assert read(tmp_path, "maybe:").maybe is None
    assert read(tmp_path, 'maybe: "null"').maybe == "null"
    assert refusal(tmp_path, "text: null") == [
        (1, "text: a text is missing: found null, quote it if it is meant as text")
    ]
    assert read(tmp_path, 'text: ""').text == ""


@pytest.mark.parametrize("written", ["4500.0", "true", '"4500"', "1e3", "007", "+1", "0x1F", "1_000", "null", "[1]"])
def test_an_integer_field_takes_integers_alone(tmp_path: Path, written: str) -> None:
    ((line, message),) = refusal(tmp_path, f"\ninteger: {written}")
    assert line == 2
    assert message.startswith("integer: must be an integer, not ")


def test_integers_and_numbers_that_json_cannot_keep_are_refused(tmp_path: Path) -> None:
    assert read(tmp_path, "integer: -9007199254740991").integer == -(2**53 - 1)
    for written in ("9007199254740992", "1" * 5000):
        ((_, message),) = refusal(tmp_path, f"integer: {written}")
        assert "beyond 2^53 - 1" in message
        assert len(message) < 200
    for written in ("0.12345678901234567890", "100000000000000000.0", "0." + "1" * 5000):
        ((_, message),) = refusal(tmp_path, f"free: {{a: {written}}}")
        assert "cannot be kept exactly" in message


@pytest.mark.parametrize(
    ("written", "advice"),
    [("yes", ": write true"), ("on", ": write true"), ("no", ": write false"), ("off", ": write false"),
     ('"true"', ": remove the quotes"), ("True", ""), ("1", "")],
)  # fmt: skip
def test_a_boolean_field_takes_true_and_false_alone(tmp_path: Path, written: str, advice: str) -> None:
    shown = written if written.startswith('"') else f"'{written}'"
    assert refusal(tmp_path, f"flag: {written}") == [(1, f"flag: must be true or false or null, not {shown}{advice}")]
    assert read(tmp_path, "flag: true").flag is True
    assert read(tmp_path, "flag: false").flag is False


def test_number_and_choice_fields(tmp_path: Path) -> None:
    assert read(tmp_path, "number: 0.5").number == 0.5
    assert read(tmp_path, "number: 3").number == 3.0
    assert refusal(tmp_path, "number: 1e3") == [(1, "number: must be a number, not '1e3'")]
    assert refusal(tmp_path, "choice: alternat") == [
        (1, "choice: 'alternat' is not possible here: did you mean 'alternate'? (known: alternate, forward)")
    ]
    assert refusal(tmp_path, "version: 2") == [(1, "version: must be 1, not '2'")]


def test_every_problem_is_told_at_its_line(tmp_path: Path) -> None:
    content = """\
integer: 4500.0
inners:
  - {name: a, count: -1}
  - nam: b
  - {name: c, count: yes}
labels: []
unknown: 1
"""
    assert refusal(tmp_path, content) == [
        (1, "integer: must be an integer, not '4500.0': write it without a fraction"),
        (3, "inners[0].count: must be at least 0"),
        (4, "inners[1]: unknown field 'nam': did you mean 'name'? (known: count, name)"),
        (4, "inners[1]: the field 'name' is missing"),
        (5, "inners[2].count: must be an integer, not 'yes'"),
        (6, "labels: must be a mapping, not a list"),
        (7, "unknown field 'unknown': (known: choice, flag, free, inner, inners, integer, labels, maybe, number, text,"
            " texts, version)"),
    ]  # fmt: skip


def test_an_error_reads_as_path_line_message(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("text: a\ninteger: x\nflag: maybe\n")
    with pytest.raises(FileError) as caught:
        load(path, Everything)
    assert str(caught.value) == (
        f"{path}:2: integer: must be an integer, not 'x'\n"
        f"{path}:3: flag: must be true or false or null, not 'maybe'"
    )  # fmt: skip
    assert (caught.value.line, caught.value.column) == (2, 10)


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"", 1, "is empty"),
        (b"  \n# only a comment\n", 1, "is empty"),
        (b"just a sentence", 1, "must be a mapping with the fields"),
        (b"- a\n- b\n", 1, "must be a mapping with the fields"),
        (b"text: a\ntext: b\n", 2, "the key 'text' is written twice, first on line 1"),
        (b"free:\n  a: 1\n  'a': 2\n", 3, "the key 'a' is written twice, first on line 2"),
        (b"text: !!str 1", 1, "the tag 'tag:yaml.org,2002:str' is not supported"),
        (b"text: ! 1", 1, "the tag '!' is not supported"),
        (b"free: !!python/object:os.system {}", 1, "is not supported"),
        (b"free: &a\n  b: *a\n", 2, "the alias *a contains itself"),
        (b"free: {a: *b}", 1, "the alias *b has no anchor &b before it"),
        (b"text: a\n---\ntext: b\n", 2, "a second document begins here"),
        (b"%YAML 1.1\n---\ntext: no\n", None, "directives are not supported"),
        (b"text: a\0b", 1, "holds the character NUL"),
        (b'text: "a\\0b"', 1, "the text holds NUL"),
        (b'text: "a\\u0000\xc3\xa9"', 1, "the text holds NUL"),
        (b'text: "\\ud800"', 1, "half of a surrogate pair"),
        (b'labels: {"\\udc00": a}', 1, "half of a surrogate pair"),
        (b'free: {a: ["\\ud83d", "\\ude00"]}', 1, "half of a surrogate pair"),
        (b"text: \xff\xfe", 1, "is not UTF-8"),
        ("text: a".encode("utf-16"), 1, "is not UTF-8"),
        (b"text: \xed\xa0\x80", 1, "is not UTF-8"),
        (b"text: a\n  b: c: d\n", 2, "is not YAML"),
        (b"text: [a\n", 2, "is not YAML"),
        (b"text: a\x07b", 1, "is not YAML"),
        (b'text: "\\U00110000"', None, "is not YAML"),
        (b"\x7fELF\x02\x01\x01", 1, "is not YAML"),
        ("text: a\u0085b".encode(), 1, 'write it as "\\x85"'),
        (b"? [a, b]\n: c\n", 1, "a key must be text"),
        (b"free: {~: 1}", 1, "a key is missing here"),
        (b"free: " + b"[" * 200 + b"]" * 200, 1, "is nested more than 64 levels deep"),
        (b"free: " + b"{a: " * 100_000, 1, ""),
    ],
)  # fmt: skip
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, content: bytes, line: int | None, message: str) -> None:
    told = refusal(tmp_path, content)
    assert message in told[0][1]
    if line is not None:
        assert told[0][0] == line


def test_aliases_share_values_but_cannot_explode(tmp_path: Path) -> None:
    assert read(tmp_path, "inners: [&a {name: x}, *a]").inners == [Inner(name="x"), Inner(name="x")]
    bomb = "free:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 30):
        bomb += f"  a{level}: &a{level} [" + ", ".join([f"*a{level - 1}"] * 9) + "]\n"
    ((_, message),) = refusal(tmp_path, bomb)
    assert "aliases expand to more than 2,000,000 values" in message
    long_text = "free:\n  a: &a " + "x" * 1_000_000 + "\n  b: [" + ", ".join(["*a"] * 500) + "]\n"
    assert "aliases expand" in refusal(tmp_path, long_text)[0][1]


def test_json_surrogate_pairs_are_one_character(tmp_path: Path) -> None:
    assert read(tmp_path, '{"text": "\\ud83d\\ude00"}', "file.json").text == "\U0001f600"


def test_a_file_too_large_or_absent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match="cannot be read: No such file"):
        load(tmp_path / "absent.yaml", Everything)
    with pytest.raises(FileError, match="cannot be read: Is a directory"):
        load(tmp_path, Everything)
    monkeypatch.setattr(yaml_file, "LARGEST_FILE", 2**20)
    ((_, message),) = refusal(tmp_path, "text: " + "a" * 2**20)
    assert message == "is larger than 1 MiB: split it into several files"
