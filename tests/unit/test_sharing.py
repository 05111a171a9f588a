"""How running matrices share what the cluster has room for."""

from hypothesis import given
from hypothesis import strategies as st

from k8s.sharing import Claimant, Room, shares


def test_everybody_gets_the_same_and_what_one_leaves_the_others_have() -> None:
    claimants = [Claimant(1, 0, 100), Claimant(2, 0, 2), Claimant(3, 0, 100)]
    assert shares(claimants, 12) == {1: 5, 2: 2, 3: 5}


def test_a_newcomer_comes_first_until_it_has_its_share() -> None:
    assert shares([Claimant(1, 8, 50), Claimant(2, 0, 50)], 10) == {1: 0, 2: 2}
    assert shares([Claimant(1, 10, 50), Claimant(2, 0, 50)], 10) == {1: 0, 2: 0}


CLAIMANTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6)


@given(CLAIMANTS, st.integers(0, 60))
def test_no_share_is_wasted_and_none_is_unfair(drawn: list[tuple[int, int]], limit: int) -> None:
    claimants = [Claimant(number, *one) for number, one in enumerate(drawn)]
    given_ = shares(claimants, limit)
    in_flight = sum(one.in_flight for one in claimants)
    assert all(0 <= given_[one.matrix_id] <= one.wanting for one in claimants)
    assert sum(given_.values()) == max(0, min(limit - in_flight, sum(one.wanting for one in claimants)))
    for one in claimants:
        if given_[one.matrix_id] < one.wanting:
            has = one.in_flight + given_[one.matrix_id]
            assert all(
                given_[two.matrix_id] == 0 or two.in_flight + given_[two.matrix_id] <= has + 1 for two in claimants
            )


def test_room_is_what_matrix_and_provider_leave() -> None:
    room = Room({"openai": 5})
    assert room.left(1, None, None) is None
    assert room.left(1, None, "unlimited") is None
    room.take(1, "openai", 2)
    assert room.left(1, 3, "openai") == 1
    assert room.left(2, None, "openai") == 3
    room.take(2, "openai", 4)
    assert room.left(1, 3, "openai") == 0
