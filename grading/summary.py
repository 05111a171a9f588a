"""The table of a matrix: what each condition was graded to, and what is missing from it.

Every planned trial is in the denominator; one that is missing, unscored or not done yet is shown and never a pass.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from grading.visible import visible

if TYPE_CHECKING:
    from rich.table import Table

    from grading.semantic import Semantic, SemanticTally


class TrialRow(NamedTuple):
    """What the table needs of a planned trial, or of some of a cell that are alike. Each planned trial counts once."""

    condition: str
    case: str
    state: str
    """open, leased, delivered, graded or missing."""
    grade: Mapping[str, Any] | None
    """The grade document as a JSON value."""
    discarded: int = 0
    """Attempts at it that were replaced after they had called a refund or approval tool."""
    semantic: "Semantic | None" = None
    """What the judge's judgment came to; None where the matrix has no judge, or there is no ledger to judge."""
    trials: int = 1
    """How many this row stands for; 1 where there is a judgment."""


@dataclass(slots=True)
class Tally:
    """Counts over trials."""

    planned: int = 0
    graded: int = 0
    """With a verdict of passed or failed."""
    contract: int = 0
    completed: int = 0
    wrong_order_commits: int = 0
    unscored: int = 0
    missing: int = 0
    unfinished: int = 0
    """Neither graded nor given up yet."""
    discarded: int = 0
    semantic: "SemanticTally | None" = None
    """Where the matrix has a judge."""

    def add(self, row: TrialRow) -> None:
        self.planned += row.trials
        self.discarded += row.discarded
        grade = row.grade
        if row.state == "missing":
            self.missing += row.trials
        elif grade is None:
            self.unfinished += row.trials
        elif grade["verdict"] == "unscored":
            self.unscored += row.trials
        else:
            self.graded += row.trials
            self.contract += row.trials * (grade["verdict"] == "passed")
            self.completed += row.trials * (grade["task_completed"] is True)
            for check in grade["checks"]:
                if check["name"] == "wrong_order_commits":
                    self.wrong_order_commits += row.trials * check["observed"]
        if row.semantic is not None:
            from grading.semantic import SemanticTally

            self.semantic = self.semantic or SemanticTally()
            self.semantic.add(grade["verdict"] if grade is not None else "unscored", row.semantic)

    def to_json(self) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "planned": self.planned,
            "graded": self.graded,
            "contract": self.contract,
            "completed": self.completed,
            "wrong_order_commits": self.wrong_order_commits,
            "unscored": self.unscored,
            "missing": self.missing,
            "unfinished": self.unfinished,
            "discarded_after_action": self.discarded,
        }
        if self.semantic is not None:
            counts["semantic"] = self.semantic.to_json()
        return counts


@dataclass(slots=True)
class ConditionSummary:
    """A condition's counts, over all of its trials and for each case."""

    name: str
    total: Tally = field(default_factory=Tally)
    cases: dict[str, Tally] = field(default_factory=dict)


@dataclass(slots=True)
class Summary:
    """The conditions in the order in which they were met."""

    conditions: list[ConditionSummary]

    @property
    def complete(self) -> bool:
        """Whether every planned trial has a verdict, and where there is a judge, no judgment is pending."""
        return all(
            each.total.graded == each.total.planned and (each.total.semantic is None or not each.total.semantic.pending)
            for each in self.conditions
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "complete": self.complete,
            "conditions": [
                {
                    "condition": each.name,
                    **each.total.to_json(),
                    "cases": [{"case": case, **tally.to_json()} for case, tally in each.cases.items()],
                }
                for each in self.conditions
            ],
        }

    def rows(self) -> list[list[str]]:
        """The header and a row for each condition. A column that says what went missing is there only if something
        did."""
        totals = [each.total for each in self.conditions]
        columns = [
            ("condition", [visible(each.name) for each in self.conditions]),
            ("trials", [f"{total.graded}/{total.planned}" for total in totals]),
            ("contract", [str(total.contract) for total in totals]),
            ("completed", [str(total.completed) for total in totals]),
            ("wrong-order commits", [str(total.wrong_order_commits) for total in totals]),
        ]
        columns += _semantic_columns([total.semantic for total in totals])
        for title, counts in (
            ("missing", [total.missing for total in totals]),
            ("unfinished", [total.unfinished for total in totals]),
            ("unscored", [total.unscored for total in totals]),
            ("discarded after acting", [total.discarded for total in totals]),
        ):
            if any(counts):
                columns.append((title, [str(count) for count in counts]))
        return [[title for title, _ in columns], *map(list, zip(*(cells for _, cells in columns), strict=True))]

    def plain(self) -> str:
        """The table as plain text, a line for each condition, without trailing spaces."""
        from rich.cells import cell_len

        rows = self.rows()
        widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
        # The names stand a little apart from the numbers.
        widths[0] += 1
        lines = []
        for row in rows:
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines) + "\n"

    def table(self) -> "Table":
        """The same table for a terminal."""
        from rich.table import Table
        from rich.text import Text

        header, *rows = self.rows()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for position, title in enumerate(header):
            table.add_column(Text(title + (" " if position == 0 else "")), no_wrap=position > 0, overflow="fold")
        for row in rows:
            # Text takes names as they are: markup in them stays text.
            table.add_row(
                Text(row[0] + " "), *(Text(cell, _style(title, cell)) for title, cell in _numbers(header, row))
            )
        return table


def summarize(rows: Iterable[TrialRow]) -> Summary:
    """The summary of a matrix's trials, read once and not kept."""
    conditions: dict[str, ConditionSummary] = {}
    for row in rows:
        summary = conditions.get(row.condition)
        if summary is None:
            summary = conditions[row.condition] = ConditionSummary(row.condition)
        tally = summary.cases.get(row.case)
        if tally is None:
            tally = summary.cases[row.case] = Tally()
        tally.add(row)
        summary.total.add(row)
    return Summary(list(conditions.values()))


def _semantic_columns(tallies: "list[SemanticTally | None]") -> list[tuple[str, list[str]]]:
    """Semantic passes that count and joint passes, where there is a judge; beside them whatever else came of it."""
    if not any(tallies):
        return []

    def counted(count: Callable[["SemanticTally"], int]) -> list[int]:
        return [0 if tally is None else count(tally) for tally in tallies]

    columns = [
        ("semantic", counted(lambda tally: tally.states["qualified_pass"])),
        ("joint", counted(lambda tally: tally.joint)),
    ]
    for title, counts in (
        ("semantic fail", counted(lambda tally: tally.states["qualified_fail"])),
        ("abstained", counted(lambda tally: tally.states["qualified_abstention"])),
        ("unqualified", counted(lambda tally: tally.states["unqualified"])),
        ("judgment pending", counted(lambda tally: tally.states["pending"])),
    ):
        if any(counts):
            columns.append((title, counts))
    return [(title, [str(count) for count in counts]) for title, counts in columns]


def _numbers(header: list[str], row: list[str]) -> Iterable[tuple[str, str]]:
    return zip(header[1:], row[1:], strict=True)


def _style(title: str, cell: str) -> str:
    if title in ("trials", "contract", "completed", "semantic", "joint") or cell == "0":
        return ""
    return "bold red" if title == "wrong-order commits" else "yellow"
