"""Replay gives recorded calls to a fresh world and names the first place where it answers otherwise."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealed_ledger import assignment, members

from simulator.replay import ReplayError, first_difference, rebuild, replay


def test_a_fresh_world_comes_to_the_same_content() -> None:
    content = members()["content"]
    assert rebuild(assignment(), content) == content
    assert first_difference(rebuild(assignment(), content), content) is None


def test_records_reversed_answer_otherwise() -> None:
    given_ = assignment()
    given_["records"].reverse()
    content = members()["content"]
    assert first_difference(rebuild(given_, content), content) == "calls[0].result[0].description"


def test_refused_calls_are_not_carried_out() -> None:
    calls = members()["content"]["calls"]
    session, _ = replay(assignment(), calls)
    assert session.calls == calls
    only_refused, _ = replay(assignment(), [call for call in calls if call.get("error") == "InvalidCall"])
    assert all(one["events"] == [] for one in only_refused.world.objects())


def test_a_call_recorded_the_wrong_way_round() -> None:
    calls = members()["content"]["calls"]
    wrong: list[tuple[int, dict[str, Any], str]] = [
        (0, {**calls[0], "error": "InvalidCall"}, r"calls\[0\]: list_orders is valid, yet recorded as refused"),
        (4, {**calls[4], "error": "ValueError"}, r"calls\[4\]: issue_refund is no call of this world"),
    ]
    for index, call, told in wrong:
        with pytest.raises(ReplayError, match=told) as caught:
            replay(assignment(), [*calls[:index], call, *calls[index + 1 :]])
        assert caught.value.place == f"calls[{index}]"


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [
        (1, 1, None),
        (1, True, ""),
        (1, 1.0, ""),
        (0.0, 0, ""),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b"),
        ({"a": 1}, {"a": 1, "b": None}, "b"),
        ({"a": 1, "b": None}, {"a": 1}, "b"),
        ([1, 2], [1], "[1]"),
        ([], [0], "[0]"),
        ([], {}, ""),
        (None, False, ""),
    ],
)
def test_the_first_difference(expected: Any, found: Any, place: str | None) -> None:
    assert first_difference(expected, found) == place


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(values, values)
def test_none_exactly_where_values_and_types_are_equal(one: Any, other: Any) -> None:
    assert first_difference(one, one) is None
    assert (first_difference(one, other) is None) == (_typed(one) == _typed(other))


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _typed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (type(value), value)
