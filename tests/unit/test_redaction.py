"""What a redaction replaces, and that nothing else changes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process_trial import run
from orders_cases import CASES

from grading.file_error import FileError
from grading.matrix_file import read_matrix
from grading.projection import semantic
from grading.redaction import Redaction, Redactor, RegisteredRedaction, Replacement
from simulator.agents import load_agent

PACKAGED = Redactor(RegisteredRedaction.of(Redaction(packaged=["email", "card-number", "iban", "phone"])))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to anna.o'neil+x@mail.example.co.uk, please", "write to [email], please"),
        ("card 4111 1111 1111 1111.", "card [card number]."),
        ("card 4111-1111-1111-1111", "card [card number]"),
        ("IBAN DE89 3704 0044 0532 0130 00!", "IBAN [IBAN]!"),
        ("call +49 (0)30 1234567", "call [phone number]"),
        ("blue backpack bought on 2026-08-01, 40.00 USD", "blue backpack bought on 2026-08-01, 40.00 USD"),
        ("order-a refund:order-a approval:order-a:1", "order-a refund:order-a approval:order-a:1"),
    ],
)
def test_packaged_kinds(text: str, expected: str) -> None:
    assert PACKAGED.text(text) == expected


def test_the_packaged_kinds_leave_an_ordinary_trial_as_it_is() -> None:
    for case in CASES.values():
        seen = semantic(run(load_agent("descriptive-control").function, case), "p")
        assert PACKAGED.value(seen) == seen


def test_rules_apply_in_order_and_replacements_are_literal() -> None:
    rules = [Replacement(pattern="a+", replacement=r"\1b"), Replacement(pattern="b", replacement="c")]
    assert Redactor(RegisteredRedaction(rules=rules)).text("xaax") == r"x\1cx"


def test_names_that_an_agent_chose_are_redacted_and_ours_are_not() -> None:
    redactor = Redactor(
        RegisteredRedaction.of(Redaction(replace=[Replacement(pattern="calls|secret.", replacement="*")]))
    )
    value: dict[str, Any] = {
        "calls": [{"arguments": {"secret1": "secret2", "secret3": {"calls": 1}}, "result": "calls"}]
    }
    assert redactor.value(value) == {"calls": [{"arguments": {"*": "*", "* (2)": {"*": 1}}, "result": "*"}]}


@given(JSON)
def test_without_a_redaction_everything_leaves_as_it_is(value: Any) -> None:
    assert Redactor(None).value(value) is value


@given(JSON, st.text(min_size=1, max_size=1))
def test_nothing_that_a_rule_fits_is_left(value: Any, letter: str) -> None:
    import re

    rule = Replacement(pattern=re.escape(letter), replacement="")
    redacted = Redactor(RegisteredRedaction(rules=[rule])).value({"arguments": value})["arguments"]

    def texts(item: Any) -> list[str]:
        if isinstance(item, str):
            return [item]
        if isinstance(item, dict):
            # A repeated name gets a number, in characters of ours.
            return [name.split(" (")[0] for name in item] + [text for each in item.values() for text in texts(each)]
        return [text for each in item for text in texts(each)] if isinstance(item, list) else []

    if letter not in " ()0123456789":
        assert not [text for text in texts(redacted) if letter in text]


@pytest.mark.parametrize(
    ("redaction", "message"),
    [
        ("{}", "names nothing to replace"),
        ("{packaged: [passport]}", "packaged"),
        ("{packaged: [email, email]}", "twice"),
        ("{replace: [{pattern: '('}]}", "is no regular expression"),
        ("{replace: [{pattern: 'x*'}]}", "fits the empty text"),
    ],
)
def test_a_redaction_that_cannot_be_meant_is_refused(tmp_path: Path, redaction: str, message: str) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        f"version: 1\nname: a\ncases: c.yaml\nconditions: [{{name: a, agent: b}}]\nredaction: {redaction}\n"
    )
    with pytest.raises(FileError, match=message):
        read_matrix(path)
