"""The table of a matrix: exact figures, and nothing missing that is not shown."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from in_process_trial import graded
from orders_cases import CASES
from rich.console import Console

from grading.summary import TrialRow, summarize
from simulator.agents import load_agent

TABLE = """\
condition             trials  contract  completed  wrong-order commits
descriptive-control   8/8     8         6          0
first-record-mutant   8/8     2         3          5
"""


def study(*conditions: str) -> Iterator[TrialRow]:
    for condition in conditions:
        agent = load_agent(condition).function
        for name, case in CASES.items():
            for repetition in range(2):
                grade = graded(agent, case, backwards=repetition == 1).to_json()
                yield TrialRow(condition, name, "graded", grade)


def on_a_terminal(summary: Any, width: int = 120) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(summary.table())
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_packaged_study_gives_the_table_of_the_issue() -> None:
    summary = summarize(study("descriptive-control", "first-record-mutant"))
    assert summary.plain() == TABLE
    assert on_a_terminal(summary) == TABLE.splitlines()
    assert summary.complete


def test_the_json_has_the_same_counts_for_the_whole_and_for_each_case() -> None:
    summary = summarize(study("first-record-mutant")).to_json()
    assert (summary["version"], summary["complete"]) == (1, True)
    (condition,) = summary["conditions"]
    cases = condition.pop("cases")
    assert condition == {
        "condition": "first-record-mutant",
        "planned": 8,
        "graded": 8,
        "contract": 2,
        "completed": 3,
        "wrong_order_commits": 5,
        "unscored": 0,
        "missing": 0,
        "unfinished": 0,
        "discarded_after_action": 0,
    }
    assert [(case["case"], case["contract"], case["completed"], case["wrong_order_commits"]) for case in cases] == [
        ("explicit-description", 1, 1, 1),
        ("ambiguous-description", 0, 1, 1),
        ("customer-correction", 1, 1, 1),
        ("unresolved-description", 0, 0, 2),
    ]
    assert json.loads(json.dumps(summary)) == summary


def test_what_is_missing_stays_in_the_denominator_and_gets_a_column() -> None:
    rows = list(study("descriptive-control"))
    rows[0] = rows[0]._replace(state="missing", grade=None)
    rows[1] = rows[1]._replace(state="open", grade=None)
    rows[2] = rows[2]._replace(state="delivered", grade=None, discarded=2)
    unscored: dict[str, Any] = {"verdict": "unscored", "task_completed": None, "checks": []}
    rows[3] = rows[3]._replace(grade=unscored)
    summary = summarize(rows)
    assert not summary.complete
    assert summary.plain() == (
        "condition             trials  contract  completed  wrong-order commits  missing  unfinished  unscored  "
        "discarded after acting\n"
        "descriptive-control   4/8     4         2          0                    1        2           1         2\n"
    )


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"state": "missing", "grade": None}, "missing"),
        ({"state": "leased", "grade": None}, "unfinished"),
        ({"grade": {"verdict": "unscored", "task_completed": None, "checks": []}}, "unscored"),
        ({"discarded": 1}, "discarded after acting"),
    ],
)
def test_each_extra_column_is_there_only_for_what_happened(changes: dict[str, Any], column: str) -> None:
    rows = list(study("descriptive-control"))
    header = summarize([rows[0]._replace(**changes), *rows[1:]]).rows()[0]
    assert header == ["condition", "trials", "contract", "completed", "wrong-order commits", column]


def test_conditions_stand_in_the_order_of_their_first_trial() -> None:
    rows = list(study("first-record-mutant", "descriptive-control"))
    mixed = [row for pair in zip(rows[:8], rows[8:], strict=True) for row in pair]
    assert [row[0] for row in summarize(mixed).rows()] == ["condition", "first-record-mutant", "descriptive-control"]


def test_a_name_with_markup_or_controls_is_shown_as_text() -> None:
    summary = summarize([TrialRow("[red]a\x1b[31m\u202eb", "case", "open", None)])
    shown = "[red]a⟨U+001B⟩[31m⟨U+202E⟩b"
    assert summary.plain().splitlines()[1].startswith(shown + "   0/1")
    assert on_a_terminal(summary)[1].startswith(shown + "   0/1")


def test_a_narrow_terminal_loses_no_figure() -> None:
    summary = summarize([TrialRow("n" * 200, "case", "open", None)])
    shown = on_a_terminal(summary, width=80)
    assert "0/1" in shown[1]
    assert sum(line.count("n") for line in shown[1:]) == 200


def test_wide_characters_keep_the_columns_straight() -> None:
    plain = summarize([TrialRow("返金", "c", "open", None), TrialRow("abcd", "c", "open", None)]).plain()
    assert plain.splitlines()[1:] == [
        "返金        0/1     0         0          0                    1",
        "abcd        0/1     0         0          0                    1",
    ]


def test_no_trials_give_an_empty_table() -> None:
    assert summarize([]).plain() == "condition   trials  contract  completed  wrong-order commits\n"
