"""The fast canonical form is the slow one, for every value that a JSON parser can give."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.canonical import NotCanonicalizable, canonical, canonical_of_parsed

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_it_is_the_same_for_whatever_was_parsed(value: object) -> None:
    parsed = orjson.loads(orjson.dumps(value))
    assert canonical_of_parsed(parsed) == canonical(parsed)


@pytest.mark.parametrize("text", ["1e16", "[1e16]", '{"a":-1E400}', "-0.0", '{"\U0001f600":1,"\uffff":2}', "[0.5,1]"])
def test_what_the_fast_encoder_would_write_otherwise(text: str) -> None:
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    assert canonical_of_parsed(parsed) == canonical(parsed)


def test_an_integer_that_canonical_json_cannot_carry_is_refused() -> None:
    with pytest.raises(NotCanonicalizable):
        canonical_of_parsed([2**53])
