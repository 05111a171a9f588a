"""Costs are whole micro-dollars, never too small, and an unknown one never becomes zero."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grading.cost import (
    LARGEST,
    NOT_DISPATCHED,
    UNKNOWN,
    Cost,
    CostTotal,
    dollar_text,
    known,
    micro_dollars,
    total,
    total_spent,
)

decimal_texts = st.decimals(0, 10**9, places=12).map(lambda dollars: f"{dollars:f}")
components = st.one_of(
    st.integers(0, 10**9).map(lambda micro: Cost("known", micro)), st.just(UNKNOWN), st.just(NOT_DISPATCHED)
)


@pytest.mark.parametrize(
    ("dollars", "micro"),
    [
        ("0.08", 80_000),
        ("0", 0),
        ("0.000001", 1),
        ("0.0000001", 1),
        ("0.000000000001", 1),
        ("1.0000000", 1_000_000),
        ("1.0000001", 1_000_001),
        ("0.1234565", 123_457),
        ("007.5", 7_500_000),
        ("9007199254.740991", LARGEST),
    ],
)
def test_dollars_become_micro_dollars_rounded_up(dollars: str, micro: int) -> None:
    assert micro_dollars(dollars) == micro


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "+1",
        "1e3",
        "NaN",
        "Infinity",
        " 1",
        "1 ",
        "1\n",
        ".5",
        "5.",
        "1,5",
        "1_0",
        "٣",
        "1" * 13,
        "0." + "1" * 13,
    ],
)
def test_what_is_no_decimal_text_is_refused_with_the_text_named(text: str) -> None:
    with pytest.raises(ValueError, match="dollars as decimal text"):
        micro_dollars(text)


@pytest.mark.parametrize("value", [0.08, 8, True, None, Decimal("0.08")])
def test_a_number_is_no_decimal_text(value: object) -> None:
    with pytest.raises(ValueError, match="dollars as decimal text"):
        micro_dollars(value)  # type: ignore[arg-type]


def test_a_cost_that_canonical_json_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match=r"more than the largest that can be kept, 9007199254\.740991"):
        micro_dollars("9007199254.7409911")


@given(decimal_texts)
def test_rounding_up_adds_less_than_one_micro_dollar(text: str) -> None:
    excess = Decimal(micro_dollars(text)) - Decimal(text) * 1_000_000
    assert 0 <= excess < 1


@given(st.integers(0, LARGEST))
def test_shown_dollars_are_exact_and_read_back(micro: int) -> None:
    assert micro_dollars(dollar_text(micro)) == micro


def test_shown_dollars_have_two_places_or_as_many_as_they_need() -> None:
    assert [dollar_text(micro) for micro in (0, 1, 80_000, 1_280_000, 2_000_000, 1_234_567)] == [
        "0.00",
        "0.000001",
        "0.08",
        "1.28",
        "2.00",
        "1.234567",
    ]


def test_the_packaged_comparison_costs_what_its_profile_says() -> None:
    assert total(known("0.08") for _ in range(16)) == CostTotal(1_280_000, 16, 0, 0)


def test_one_unknown_makes_the_complete_total_null_beside_the_known_subtotal() -> None:
    study = total([known("0.08") for _ in range(16)] + [UNKNOWN] * 16 + [NOT_DISPATCHED] * 3)
    assert study == CostTotal(known_subtotal=1_280_000, known=16, unknown=16, not_dispatched=3)
    assert study.complete is None
    assert dollar_text(study.known_subtotal) == "1.28"


def test_a_known_zero_is_not_unknown_and_an_absent_cost_is_not_zero() -> None:
    assert total([known("0")]).complete == 0
    assert known(None) is UNKNOWN
    assert total([known(None)]).complete is None


def test_what_was_not_dispatched_leaves_the_total_complete_and_is_counted() -> None:
    assert total([known("0.5"), NOT_DISPATCHED]) == CostTotal(500_000, 1, 0, 1)
    assert total([known("0.5"), NOT_DISPATCHED]).complete == 500_000


@given(st.lists(components))
def test_a_total_accounts_for_every_component_in_any_order(listed: list[Cost]) -> None:
    found = total(listed)
    assert found == total(reversed(listed))
    assert found.known + found.unknown + found.not_dispatched == len(listed)
    assert (found.complete is None) == (UNKNOWN in listed)


def test_money_spent_counts_each_call_once_however_often_its_judgment_is_used() -> None:
    uses = [("call-1", known("0.01")), ("call-1", known("0.01")), ("call-2", UNKNOWN), ("call-2", UNKNOWN)]
    assert total_spent(uses) == CostTotal(10_000, 1, 1, 0)
    with pytest.raises(ValueError, match="call 'call-1' is given two costs"):
        total_spent([*uses, ("call-1", known("0.02"))])


def test_a_cost_cannot_contradict_itself() -> None:
    for state, micro in (("known", None), ("unknown", 0), ("not_dispatched", 0)):
        with pytest.raises(ValueError, match="cannot have micro_dollars"):
            Cost(state, micro)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="micro-dollars go from 0"):
        Cost("known", -1)


def test_a_total_that_canonical_json_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="the total is more than the largest"):
        total([Cost("known", LARGEST), Cost("known", 1)])
