"""The plan runs everything once, turns the conditions' order fairly, and presents records alike to all of them."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from grading.schedule import Planned, at, planned, presented

sizes = st.integers(1, 7)


def test_two_conditions_two_cases_two_repetitions() -> None:
    assert list(planned(2, 2, 2)) == [
        Planned(0, 0, 0, 0), Planned(1, 0, 0, 1), Planned(2, 0, 1, 1), Planned(3, 0, 1, 0),
        Planned(4, 1, 0, 1), Planned(5, 1, 0, 0), Planned(6, 1, 1, 0), Planned(7, 1, 1, 1),
    ]  # fmt: skip


@given(sizes, sizes, sizes)
def test_every_trial_is_planned_once(repetitions: int, cases: int, conditions: int) -> None:
    plan = list(planned(repetitions, cases, conditions))
    assert [each.sequence for each in plan] == list(range(repetitions * cases * conditions))
    every = {(i, j, k) for i in range(repetitions) for j in range(cases) for k in range(conditions)}
    assert {(each.repetition, each.case, each.condition) for each in plan} == every


@given(sizes, sizes)
def test_with_two_conditions_the_candidate_goes_first_iff_repetition_plus_case_is_odd(reps: int, cases: int) -> None:
    for first, second in zip(*[iter(planned(reps, cases, 2))] * 2, strict=True):
        assert (first.repetition, first.case) == (second.repetition, second.case)
        assert first.condition == (first.repetition + first.case) % 2


@given(sizes, sizes, sizes)
def test_a_place_in_the_plan_follows_without_the_plan(repetitions: int, cases: int, conditions: int) -> None:
    for each in planned(repetitions, cases, conditions):
        assert at(each.sequence, cases, conditions) == each


@given(sizes, sizes)
def test_each_condition_takes_each_place_equally_often(cases: int, conditions: int) -> None:
    plan = list(planned(conditions, cases, conditions))
    places = Counter((each.sequence % conditions, each.condition) for each in plan)
    assert set(places.values()) == {cases}


def test_presented_orders() -> None:
    assert [presented("alternate", i) for i in range(4)] == ["forward", "reversed", "forward", "reversed"]
    assert [presented("forward", i) for i in range(2)] == ["forward", "forward"]
    assert [presented("reversed", i) for i in range(2)] == ["reversed", "reversed"]
