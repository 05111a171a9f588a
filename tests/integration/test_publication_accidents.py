"""Whatever interrupts a publication, wherever: in the end a matrix is in Phoenix exactly once."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.publisher.phoenix import PhoenixUnavailable
from tests.phoenix_sample import sample
from tests.unit.phoenix_fake import ACCIDENTS, FakePhoenix, PublisherKilled
from tests.unit.test_reconcile import EARLIER, SMALL, TWO, assert_once, put


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(range(len(EARLIER))),
            st.dictionaries(st.integers(1, 75), st.sampled_from(ACCIDENTS), max_size=3),
        ),
        max_size=5,
    )
)
def test_after_any_interruptions_everything_is_there_exactly_once(story: list[tuple[int, dict[int, str]]]) -> None:
    phoenix = FakePhoenix()
    for number, accidents in story:
        phoenix.schedule(dict(accidents))
        with suppress(PublisherKilled, PhoenixUnavailable):
            put(phoenix, EARLIER[number])
    phoenix.schedule({})
    phoenix.settle()
    assert put(phoenix, SMALL).complete
    assert_once(phoenix, SMALL)


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_an_accident_at_each_single_request_is_survived(accident: str) -> None:
    least = sample(cases=TWO[:1], repetitions=1)
    counted = FakePhoenix()
    put(counted, least)
    for at in range(1, counted.requests + 1):
        phoenix = FakePhoenix()
        phoenix.schedule({at: accident})
        with suppress(PublisherKilled):
            put(phoenix, least)
        phoenix.settle()
        put(phoenix, least)
        assert_once(phoenix, least)
