"""What the report is made from: the heat map's cells, the chart's places, and which pairs are shown."""

from typing import Any

import pytest
from comparison_sample import CANDIDATE, compared, failed, manifest_of, regressed

from grading.report import SHOWN_PAIRS, SHOWN_REPETITIONS, chosen_pairs, heat_rows
from grading.report.interval_chart import interval_chart


def test_a_cell_has_its_repetitions_in_order_and_its_level() -> None:
    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any] | None:
        if condition != CANDIDATE:
            return {}
        if repetition == 3:
            return None
        return failed() if repetition in (0, 1) else {}

    (row,) = heat_rows(compared(manifest_of(1, repetitions=6), outcome))
    baseline, candidate = row.cells
    assert (baseline.level, baseline.runs, baseline.passed, baseline.planned) == (0, (("passed", "●●●●●●"),), 6, 6)
    assert candidate.runs == (("failed", "✕✕"), ("passed", "●"), ("missing", "–"), ("passed", "●●"))
    assert (candidate.level, candidate.passed, candidate.planned) == (2, 3, 6)
    assert row.change == "regressed"


@pytest.mark.parametrize(("failures", "level"), [(0, 0), (1, 1), (4, 2), (7, 3), (10, 4)])
def test_the_level_follows_the_share_that_passed(failures: int, level: int) -> None:
    found = compared(manifest_of(1, repetitions=10), regressed(0, repetitions=tuple(range(failures))))
    assert next(iter(heat_rows(found))).cells[1].level == level


def test_a_cell_without_a_verdict_is_no_pass() -> None:
    (row,) = heat_rows(compared(manifest_of(1), lambda condition, *_: None if condition == CANDIDATE else {}))
    assert (row.cells[1].level, row.change) == (5, "missing")


def test_many_repetitions_are_counted_and_not_all_drawn() -> None:
    (row,) = heat_rows(compared(manifest_of(1, repetitions=SHOWN_REPETITIONS + 50)))
    assert (len(row.cells[0].runs[0][1]), row.cells[0].more, row.cells[0].planned) == (100, 50, 150)


def test_every_changed_case_is_shown_once_before_any_twice() -> None:
    found = compared(manifest_of(80), regressed(*range(80)))
    shown = [change for _, change in chosen_pairs(found)]
    assert len(shown) == SHOWN_PAIRS
    assert len({change.case for change in shown}) == 80


def test_without_bounds_there_is_no_chart_and_with_them_it_says_them_in_words() -> None:
    few, many = compared(manifest_of(4)), compared(manifest_of(120))
    assert interval_chart(few.candidates[0].decision) is None
    chart = interval_chart(many.candidates[0].decision)
    assert chart is not None
    assert [bar.label for bar in chart.bars] == ["decision bounds", "normal", "cluster bootstrap"]
    assert "decision bounds from -0.025 to +0.000" in chart.words
    assert chart.margin < chart.bars[0].start < chart.zero == chart.point
