"""No group helps to calibrate a judge and then to examine it."""

from fractions import Fraction

import pytest
from calibration_rows import CONFIGURATION, REVIEWERS, SCOPE, row, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.calibration.record import RowsRefused, compile_record
from grading.calibration.report import held_out_json, held_out_text
from grading.calibration.split import SplitRefused, held_out_report, split_of, split_rows

GROUPS = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.integers(0, 2**31), st.fractions(0, 1), st.randoms(use_true_random=False))
def test_a_group_is_on_one_side_whatever_else_there_is(groups, seed, share, order) -> None:  # type: ignore[no-untyped-def]
    made = [row(number, group=f"customer-{group}") for number, group in enumerate(groups)]
    try:
        divided = split_rows(made, seed=seed, held_out=share)
    except SplitRefused:
        assert 0 < share < 1
        assert len({split_of(each.group, seed=seed, held_out=share) for each in made}) == 1
        return
    sides: dict[str, set[str]] = {}
    for each in divided:
        sides.setdefault(each.group, set()).add(each.split)
    assert all(len(side) == 1 for side in sides.values())
    assert [each.id for each in divided] == [each.id for each in made]
    order.shuffle(made)
    again = {each.id: each.split for each in split_rows(made, seed=seed, held_out=share)}
    assert again == {each.id: each.split for each in divided}
    # More rows move none of these.
    assert all(split_of(each.group, seed=seed, held_out=share) == each.split for each in divided)


def test_the_share_is_met_on_average() -> None:
    sides = [split_of(f"customer-{number}", seed=7, held_out=Fraction(3, 10)) for number in range(4000)]
    assert abs(sides.count("held_out") / 4000 - 0.3) < 0.03


def test_nothing_or_everything_may_be_held_out() -> None:
    assert {each.split for each in split_rows(rows(3, 3), seed=1, held_out=Fraction(0))} == {"calibration"}
    assert {each.split for each in split_rows(rows(3, 3), seed=1, held_out=Fraction(1))} == {"held_out"}


def test_what_was_held_out_never_calibrates() -> None:
    divided = split_rows(rows(10, 10), seed=1, held_out=Fraction(1, 2))
    assert split_rows(divided, seed=1, held_out=Fraction(1, 2)) == divided
    with pytest.raises(SplitRefused, match="is held out and would now calibrate"):
        split_rows(divided, seed=2, held_out=Fraction(1, 2))


def test_one_group_cannot_be_divided() -> None:
    with pytest.raises(SplitRefused, match="all 1 groups would be on the side"):
        split_rows([row(1), row(2, group="customer-1")], seed=1, held_out=Fraction(1, 2))


def test_a_share_is_between_none_and_all() -> None:
    with pytest.raises(SplitRefused, match="between 0 and 1"):
        split_rows(rows(2, 2), seed=1, held_out=Fraction(3, 2))


def test_the_held_out_report_shows_the_judge_on_rows_it_never_saw() -> None:
    record = compile_record(rows(5, 5), scope=SCOPE, reviewers=REVIEWERS)
    unseen = [row(100, "false", "pass", split="held_out"), row(101, "truthful", "pass", split="held_out")]
    report = held_out_report(record, unseen, reviewers=REVIEWERS)
    assert report.held_out.counts.false_passes == 1
    assert "  false passes 1 of 1, at most 1.0000 (95 %)" in held_out_text(report)
    assert held_out_json(report)["held_out"]["false_block_upper_95"] == pytest.approx(0.95)
    assert held_out_json(report)["authority"] == "none"


@pytest.mark.parametrize(
    ("unseen", "told"),
    [
        (row(100, group="customer-1", split="held_out"), "its group 'customer-1' is excluded"),
        (row(1, split="held_out", group="new"), "its id 'row-0001' is excluded"),
        (row(100), "belongs to the split 'calibration', not 'held_out'"),
        (
            row(
                100,
                split="held_out",
                judgment=row(100).judgment.model_copy(update={"configuration_hash": "sha256:" + "2" * 64}),  # type: ignore[union-attr]
            ),
            f"the calibration is of {CONFIGURATION}",
        ),
    ],
)
def test_rows_that_had_a_part_in_it_are_refused(unseen, told) -> None:  # type: ignore[no-untyped-def]
    record = compile_record(rows(5, 5), scope=SCOPE, reviewers=REVIEWERS)
    with pytest.raises(RowsRefused) as refused:
        held_out_report(record, [unseen], reviewers=REVIEWERS)
    assert any(told in problem for problem in refused.value.problems)
