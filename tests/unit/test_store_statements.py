"""The lists that the store's statements are given."""

from hypothesis import given
from hypothesis import strategies as st

from grading.store.attempts import padded


@given(st.lists(st.integers(), unique=True))
def test_a_list_is_padded_to_few_lengths_and_says_the_same(values: list[int]) -> None:
    found = padded(values)
    assert found[: len(values)] == values
    assert set(found) == set(values)
    assert len(found) in {0, 1, 2, 4, 8, 16, 32, 64, 128}
    assert len(found) < 2 * max(len(values), 1)
