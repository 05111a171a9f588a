"""The report: one HTML file to send around. It asks nothing of a network, and shows what others wrote as text.

The matrix's redaction is applied to what agents, customers, records and a judge wrote, and to the manifest. The size is
bounded: what is left out is counted, and said where it would have stood.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import orjson
from markupsafe import Markup, escape

from grading.comparison import CandidateComparison, MatrixComparison, PairChange, View, outcome
from grading.comparison_text import Section, cost_words, heading, percent, sections, signed
from grading.cost import CostTotal
from grading.facts import TrialFacts
from grading.ledger_difference import LedgerDifference, ledger_differences
from grading.redaction import Redactor
from grading.report.interval_chart import IntervalChart, interval_chart
from grading.semantic import joint, semantic_of
from grading.slices import Sliced
from grading.store import Store, judgments, reading
from grading.transcript import Attempt, Line, transcript
from grading.visible import visible

SHOWN_PAIRS = 100
"""Changed pairs with both transcripts."""
SHOWN_CASES = 1_000
"""Rows of the heat map."""
SHOWN_REPETITIONS = 100
"""Marks in a cell of the heat map."""
SHOWN_INCIDENTS = 100
LONGEST_MANIFEST = 256 * 1024
"""Bytes of manifest that are shown whole; of a longer one the cases are left out."""

_FOLDER = Path(__file__).parent
_MARKS = {"passed": "●", "failed": "✕", "missing": "–", "unscored": "?", "unfinished": "·"}


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One case under one condition."""

    passed: int
    planned: int
    level: int
    """0 all passed to 4 none passed; 5 without any verdict."""
    runs: tuple[tuple[str, str], ...]
    """The repetitions' marks in order, equal neighbours together: verdict and marks."""
    more: int
    """Repetitions that are counted and have no mark."""
    wrong_order_commits: int


@dataclass(frozen=True, slots=True)
class HeatRow:
    case: str
    customer: str
    change: str
    """regressed, fixed, mixed, unchanged or missing, over all candidates: the worst one."""
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class ChangedPair:
    """A pair with what both arms did."""

    candidate: str
    change: PairChange
    transcripts: tuple[list[tuple[str, Markup]], list[tuple[str, Markup]]]
    """Of each arm the lines, each with the classes of its look."""
    differences: tuple[LedgerDifference, ...]


def render_report(store: Store, found: MatrixComparison, sliced: Sequence[Sliced | None], now: datetime) -> bytes:
    """The report of a matrix, as an HTML document in UTF-8.

    Args:
        sliced: each candidate by the slices of a plan, or nothing.
        now: when it is made, by the clock of whoever makes it.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style, script = ((_FOLDER / name).read_text() for name in ("report.css", "report.js"))
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str and "\n" not in value else value,
    )
    redactor = Redactor(found.manifest.redaction)
    rows = sorted(heat_rows(found), key=lambda row: _URGENCY[row.change])
    chosen = chosen_pairs(found)
    incidents = list(islice(reading.incidents(store, found.matrix.id), SHOWN_INCIDENTS))
    listed = sections(found, sliced)
    whole = len(reading.manifest(store, found.matrix.id)) <= LONGEST_MANIFEST
    document = environment.get_template("report.html.j2").render(
        heading=heading(found),
        found=found,
        manifest=found.manifest,
        manifest_hash=found.matrix.manifest_hash,
        made=now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        coverage=listed[0],
        tables=[_split(section) for section in listed[1:]],
        rows=rows[:SHOWN_CASES],
        more_rows=len(rows) - SHOWN_CASES,
        marks=_MARKS,
        charts=[(one, interval_chart(one.decision)) for one in found.candidates],
        pairs=[_changed_pair(store, found, redactor, candidate, change) for candidate, change in chosen],
        changed=sum(len(one.changes) for one in found.candidates),
        incidents=[
            (
                one.kind,
                redactor.text(one.detail),
                datetime.fromtimestamp(one.created / 1e6, UTC).isoformat(timespec="seconds"),
            )
            for one in incidents
        ],
        more_incidents=sum(found.incidents.values()) - len(incidents),
        manifest_text=_manifest_text(found, redactor, whole),
        manifest_whole=whole,
        costs=list(_costs(found)),
        cost_words=cost_words,
        percent=percent,
        signed=signed,
        style=_Inline(style),
        script=_Inline(script),
        style_hash=_integrity(style),
        script_hash=_integrity(script),
    )
    return document.encode()


_URGENCY = {"regressed": 0, "mixed": 1, "missing": 2, "fixed": 3, "unchanged": 4}


class _Inline:
    """A file of our own that goes into the page as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __html__(self) -> str:
        return self._text


def _integrity(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def heat_rows(found: MatrixComparison) -> Iterator[HeatRow]:
    by_cell: dict[tuple[str, str], list[TrialFacts]] = {}
    for one in found.facts:
        by_cell.setdefault((one.case, one.condition), []).append(one)
    changes: dict[str, str] = {}
    for candidate in found.candidates:
        for change in candidate.description.changes:
            before = changes.get(change.case, "unchanged")
            changes[change.case] = min(before, change.change, key=lambda one: _URGENCY[one])
    redactor = Redactor(found.manifest.redaction)
    for member in found.manifest.population:
        yield HeatRow(
            member.case,
            redactor.text(member.customer),
            changes.get(member.case, "unchanged"),
            tuple(_heat_cell(by_cell[member.case, arm.name], found.view) for arm in found.arms),
        )


def _heat_cell(trials: list[TrialFacts], view: View) -> HeatCell:
    trials.sort(key=lambda one: one.repetition)
    states = [_state(one, view) for one in trials]
    passed, decided = states.count("passed"), states.count("passed") + states.count("failed")
    level = 5
    if decided:
        level = 0 if passed == len(trials) else 4 if not passed else 1 + min(2, (decided - passed) * 3 // decided)
    return HeatCell(
        passed=passed,
        planned=len(trials),
        level=level,
        runs=tuple(
            (state, escape(_MARKS[state] * len(list(group)))) for state, group in groupby(states[:SHOWN_REPETITIONS])
        ),
        more=max(0, len(states) - SHOWN_REPETITIONS),
        wrong_order_commits=sum(one.wrong_order_commits or 0 for one in trials),
    )


def _state(one: TrialFacts, view: View) -> str:
    if one.state == "missing":
        return "missing"
    if one.verdict is None:
        return "unfinished"
    return {True: "passed", False: "failed", None: "unscored"}[outcome(one, view)]


def chosen_pairs(found: MatrixComparison) -> list[tuple[CandidateComparison, PairChange]]:
    """The pairs to show: regressed ones first, and every case once before any a second time."""
    ranked = []
    for candidate in found.candidates:
        seen: dict[tuple[str, str], int] = {}
        for change in candidate.changes:
            times = seen[change.change, change.case] = seen.get((change.change, change.case), 0) + 1
            ranked.append(((times, change.change != "regressed", change.baseline.sequence), candidate, change))
    ranked.sort(key=lambda one: one[0])
    shown = [(candidate, change) for _, candidate, change in ranked[:SHOWN_PAIRS]]
    return sorted(shown, key=lambda one: (one[1].change != "regressed", one[1].baseline.sequence))


def _changed_pair(
    store: Store, found: MatrixComparison, redactor: Redactor, candidate: CandidateComparison, change: PairChange
) -> ChangedPair:
    judge = found.manifest.judge.configuration_hash() if found.manifest.judge is not None else None
    ledgers = [_ledger(store, redactor, one) for one in (change.baseline, change.candidate)]
    told = [
        _told(store, redactor, judge, one, ledger)
        for one, ledger in zip((change.baseline, change.candidate), ledgers, strict=True)
    ]
    differences = ledger_differences(ledgers[0]["content"], ledgers[1]["content"])
    return ChangedPair(candidate.candidate, change, (told[0], told[1]), tuple(differences))


def _ledger(store: Store, redactor: Redactor, one: TrialFacts) -> dict[str, Any]:
    assert one.attempt_id is not None, "a pair changes only between two verdicts, and a verdict has its evidence"
    ledger: dict[str, Any] = orjson.loads(reading.ledger_document(store, one.attempt_id))
    return {**ledger, "content": redactor.value(ledger["content"])}


def _semantic(store: Store, redactor: Redactor, judge: str | None, one: TrialFacts) -> dict[str, Any] | None:
    """What a trial's judgment comes to, as transcripts show it."""
    if judge is None or one.attempt_id is None:
        return None
    found = semantic_of(judgments.latest(store, [one.attempt_id], judge).get(one.attempt_id))
    told = found.to_json()
    explanation = redactor.text(found.explanation) if found.explanation is not None else None
    return {**told, "explanation": explanation, "joint": joint(one.verdict or "unscored", found)}


def _told(
    store: Store, redactor: Redactor, judge: str | None, one: TrialFacts, ledger: dict[str, Any]
) -> list[tuple[str, Markup]]:
    assert one.attempt_id is not None
    grades = [grade for grade in reading.grades_of(store, one.attempt_id) if grade.grader == "structural"]
    latest = grades[-1]
    grade = {
        "grader": latest.grader,
        "grader_version": latest.version,
        "verdict": latest.verdict,
        "task_completed": latest.task_completed,
        "checks": redactor.value(orjson.loads(latest.checks)),
    }
    tries = [
        Attempt(each.number, each.state, each.reason, each.after_consequential_call)
        for each in reading.attempts(store, one.trial_id)
    ]
    semantic = _semantic(store, redactor, judge, one)
    lines = transcript(f"{one.condition} / {one.case} / {one.repetition}", ledger, grade, tries, semantic).lines
    # Transcripts write out invisible characters themselves: here they are escaped, once.
    return [(_look(line), escape(line.text.plain)) for line in lines]


def _look(line: Line) -> str:
    """A line's indentation, and whether it is a heading or a thing to look at, from how a terminal would show it."""
    styles = f"{line.text.style} " + " ".join(str(span.style) for span in line.text.spans)
    found = [f"in{line.indent}"]
    if line.indent == 0 and "bold" in styles:
        found.append("head")
    if "red" in styles.split() or "yellow" in styles.split():
        found.append("look")
    return " ".join(found)


def _costs(found: MatrixComparison) -> Iterator[tuple[str, str, CostTotal]]:
    """Condition, what for, and how much."""
    if found.judge_spent is None:
        yield from ((arm.name, "agent", arm.agent_cost) for arm in found.arms)
        yield "all", "agent", found.cost
        return
    for arm in found.arms:
        yield arm.name, "agent", arm.agent_cost
        yield arm.name, "judge", arm.judge_cost
    yield "all", "agent and judge", found.cost
    yield "all", "calls of the judge", found.judge_spent


def _split(section: Section) -> dict[str, Any]:
    header, rows = (section.table[0], section.table[1:]) if section.table else ([], [])
    return {"title": section.title, "header": header, "rows": rows, "remarks": section.remarks}


def _manifest_text(found: MatrixComparison, redactor: Redactor, whole: bool) -> str:
    """Readable, not canonical: two-space indentation."""
    manifest = found.manifest.model_dump(mode="json")
    if not whole:
        for part in ("cases", "population"):
            manifest[part] = f"{len(manifest[part])} left out here"
        plan = manifest["slice_plan"]
        if plan is not None:
            plan["cases"] = f"{len(plan['cases'])} left out here"
    text = orjson.dumps(
        redactor.value(manifest, names=True), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    ).decode()
    return "\n".join(map(visible, text.split("\n")))


__all__ = ["IntervalChart", "render_report"]
