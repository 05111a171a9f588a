"""The transcript of a trial as a person would read it: who said what, what was called, and what came of every order.

Whatever an agent, a customer or a record wrote is shown as text: markup stays text, and what a terminal would obey is
written out. World by world nothing is known here: names of fields become words, and ``*_cents`` become amounts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from grading.visible import visible
from simulator.sealing import ATTEMPT_LOST, LIMIT_ERRORS

ASK_TOOL = "ask_customer"
"""The tool of every world that talks to the customer."""

_BAR = "│ "
_VERDICT_STYLES = {"passed": "bold green", "failed": "bold red", "unscored": "bold yellow"}
_SEMANTIC_STYLES = {
    "qualified_pass": "bold green",
    "qualified_fail": "bold red",
    "qualified_abstention": "bold yellow",
    "unqualified": "bold yellow",
    "pending": "bold yellow",
}
_CHECK_MARKS = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("·", "dim")}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at the trial, as the store knows it."""

    number: int
    state: str
    """leased, running, delivered, lost or fenced."""
    reason: str | None = None
    """Why it was lost or fenced."""
    acted: bool = False
    """Whether a refund or approval tool was called in it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, indented by so many columns."""

    indent: int
    text: Text


class Transcript:
    """A readable transcript: a rich renderable, and the same as plain text."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = tuple(lines)

    @property
    def plain(self) -> str:
        return "\n".join((" " * line.indent + line.text.plain).rstrip() for line in self.lines) + "\n"

    def __rich__(self) -> Group:
        return Group(*(Padding(line.text, (0, 0, 0, line.indent)) for line in self.lines))


def transcript(
    trial: str,
    ledger: Mapping[str, Any] | None,
    grade: Mapping[str, Any] | None,
    attempts: Sequence[Attempt] = (),
    semantic: Mapping[str, Any] | None = None,
) -> Transcript:
    """The transcript of one trial.

    Args:
        trial: how the trial is called, such as its condition, case and repetition.
        ledger: the ledger document as a JSON value, None where the trial has none.
        grade: the grade document as a JSON value, None where it is not graded.
        attempts: all attempts at the trial, in order.
        semantic: the semantic result and the joint grade as a JSON value, None where the matrix has no judge.
    """
    lines = [Line(0, Text(visible(trial), "bold"))]
    if ledger is None:
        lines += _section("Ledger")
        lines.append(Line(2, Text("none: no attempt has delivered what it did", "yellow")))
    else:
        content, envelope = ledger["content"], ledger["envelope"]
        lines += _origin(ledger)
        lines += _request(content["request"])
        lines += _calls(content["calls"], envelope["calls"], envelope["started"])
        lines += _answer(content)
        lines += _objects(content["objects"])
    lines += _grade(grade)
    lines += _semantic(semantic)
    lines += _attempts(attempts)
    return Transcript(lines)


def _section(title: str) -> list[Line]:
    return [Line(0, Text()), Line(0, Text(title, "bold underline"))]


def _origin(ledger: Mapping[str, Any]) -> Iterator[Line]:
    envelope = ledger["envelope"]
    place, software = envelope["place"], envelope["software"]
    took = _duration(envelope["ended"] - envelope["started"])
    sealed = ""
    if envelope["sealed_by"] != "recorder":
        lost = ledger["content"]["error"] == ATTEMPT_LOST
        sealed = f", sealed from the journal of {'an attempt that was lost' if lost else 'an evicted pod'}"
    where = f"attempt {envelope['attempt']}, {took} on {place['host']} ({place['launcher']}, {place['worker']}){sealed}"
    yield Line(0, Text(visible(where), "dim"))
    yield Line(0, Text(visible(f"cellwise {software['version']}, isolation: {envelope['isolation']}"), "dim"))
    yield Line(0, Text(visible(f"content {ledger['content_hash']} (integrity, not origin)"), "dim"))


def _request(request: Mapping[str, Any]) -> Iterator[Line]:
    yield from _section("Customer " + visible(request["customer_id"]))
    yield from _said(request["utterance"], 2, "cyan")


def _calls(calls: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]], start: int) -> Iterator[Line]:
    yield from _section("What the agent did")
    if not calls:
        yield Line(2, Text("no tool was called", "dim"))
    for position, call in enumerate(calls):
        # The journal of a lost attempt may end before the time of its last call was written.
        time = times[position] if position < len(times) else None
        yield from _call(position + 1, call, time, start)


def _call(number: int, call: Mapping[str, Any], time: Mapping[str, Any] | None, start: int) -> Iterator[Line]:
    when = (
        "" if time is None else f"+{_duration(time['started'] - start)} ({_duration(time['ended'] - time['started'])})"
    )
    head = Text(f"{number}. ", "dim")
    if call["tool"] == ASK_TOOL and "result" in call:
        head.append("asks the customer", "bold")
        yield Line(2, head.append(f"  {when}", "dim"))
        # A redaction may have changed the argument's name; it has no other.
        yield from _said(str(next(iter(call["arguments"].values()), "")), 5, "")
        if call["result"] is None:
            yield Line(5, Text("the customer has no reply left", "yellow"))
        else:
            yield Line(5, Text("the customer replies", "bold"))
            yield from _said(call["result"], 5, "cyan")
        return
    head.append(visible(call["tool"]) or "(a tool without a name)", "bold")
    head.append("  " + (_arguments(call["arguments"]) or "without arguments"))
    yield Line(2, head.append(f"  {when}", "dim"))
    if "error" in call:
        yield Line(5, Text(f"→ {_error(call['error'])}", "red"))
    else:
        for line in _value_lines(call["result"]):
            yield Line(5, Text("→ " + line, "yellow" if _refused(call["result"]) else ""))


def _answer(content: Mapping[str, Any]) -> Iterator[Line]:
    yield from _section("What the agent answered")
    error = content["error"]
    if error is not None:
        yield Line(2, Text(visible(f"ended by {error}: {_ending(error)}"), "red"))
    if content["message"]:
        yield from _said(content["message"], 2, "")
    else:
        yield Line(2, Text("no message", "dim"))
    for name, value in content["claims"].items():
        if value is not None:
            yield Line(2, Text(f"{_words(name)}: {_value(value)}"))


def _objects(objects: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    yield from _section("What became of each record")
    for state in objects:
        record = next((value for value in state.values() if isinstance(value, Mapping)), {})
        events = state.get("events", [])
        facts = {name: value for name, value in state.items() if value is not record and name != "events"}
        yield Line(2, Text(_object(record), "bold"))
        if not events and not any(facts.values()):
            yield Line(5, Text("untouched", "dim"))
            continue
        yield Line(5, Text("in the end: " + (_object({k: v for k, v in facts.items() if v}) or "nothing changed")))
        for event in events:
            details = _object(event["details"])
            step = f"{event['sequence']}. {event['tool']}: {_words(event['status'])}"
            yield Line(5, Text(visible(step) + (f" ({details})" if details else "")))


def _grade(grade: Mapping[str, Any] | None) -> Iterator[Line]:
    yield from _section("Grade")
    if grade is None:
        yield Line(2, Text("not graded", "yellow"))
        return
    completed = {True: "task completed", False: "task not completed", None: "completion not judged"}
    verdict = Text(grade["verdict"], _VERDICT_STYLES[grade["verdict"]])
    yield Line(2, verdict.append(f", {completed[grade['task_completed']]}", "not bold default"))
    for check in grade["checks"]:
        mark, style = _CHECK_MARKS[check["passed"]]
        judged = "" if check["passed"] is not None else "  (shown, not judged)"
        observed = _value(check["observed"]) if check["observed"] is not None else "none"
        yield Line(2, Text(f"{mark} {_words(check['name'])}: {observed}{judged}", style))
    if not grade["checks"]:
        yield Line(2, Text("there was nothing to judge by", "dim"))
    yield Line(2, Text(visible(f"{grade['grader']} grader {grade['grader_version']}"), "dim"))


def _semantic(semantic: Mapping[str, Any] | None) -> Iterator[Line]:
    if semantic is None:
        return
    yield from _section("Is the message true?")
    reason = f": {_words(semantic['reason'])}" if semantic["reason"] else ""
    yield Line(2, Text(visible(_words(semantic["state"]) + reason), _SEMANTIC_STYLES[semantic["state"]]))
    if semantic["verdict"] is not None and semantic["state"] == "unqualified":
        yield Line(2, Text(f"the judge said {semantic['verdict']}, which does not count", "yellow"))
    if semantic["explanation"]:
        # Written by a model that read what the agent wrote: as little trusted as the agent's own words.
        yield from _said(semantic["explanation"], 2, "")
    cost = semantic["cost"]
    amount = "unknown" if cost["state"] == "unknown" else "not dispatched"
    if cost["state"] == "known":
        amount = f"{cost['micro_dollars']} micro-dollars"
    yield Line(2, Text(f"cost {amount}" + (", from calls made for other trials" if semantic["cached"] else ""), "dim"))
    joint = Text("joint: ")
    yield Line(2, joint.append(semantic["joint"], _VERDICT_STYLES[semantic["joint"]]))
    judgment = semantic["judgment"]
    if judgment is not None:
        calibration = judgment["calibration_hash"] or "none"
        yield Line(2, Text(f"judge {judgment['configuration_hash']}, calibration {calibration}", "dim"))


def _attempts(attempts: Sequence[Attempt]) -> Iterator[Line]:
    if not attempts:
        return
    yield from _section("Attempts")
    for attempt in attempts:
        reason = f", {attempt.reason}" if attempt.reason else ""
        acted = ", after it had called a refund or approval tool" if attempt.acted else ""
        style = "yellow" if attempt.state in ("lost", "fenced") else ""
        yield Line(2, Text(visible(f"{attempt.number}. {attempt.state}{reason}{acted}"), style))


def _said(words: str, indent: int, style: str) -> Iterator[Line]:
    """What somebody said. The bar before every line keeps a text from looking like a part of the transcript."""
    for line in words.replace("\r\n", "\n").split("\n"):
        yield Line(indent, Text(_BAR, "dim").append(visible(line), style or None))


def _arguments(arguments: Any) -> str:
    if arguments is None:
        return "(arguments that cannot be written as canonical JSON)"
    return _object(arguments) if isinstance(arguments, Mapping) else _value(arguments)


def _value_lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [_value(item) for item in value] or ["nothing"]
    return [_value(value)]


def _value(value: Any) -> str:
    """A JSON value in words; text without quotes only where it cannot be mistaken for another value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        shown = visible(value)
        return f"“{shown}”" if not value or value != value.strip() or any(c in value for c in ",:;()“”") else shown
    if isinstance(value, Mapping):
        return _object(value) or "none"
    if isinstance(value, list):
        return "; ".join(_value(item) for item in value) or "none"
    return str(value)


def _object(value: Mapping[str, Any]) -> str:
    return ", ".join(_field(name, item) for name, item in value.items())


def _field(name: str, value: Any) -> str:
    amount = name.removesuffix("_cents")
    if amount != name and isinstance(value, int) and not isinstance(value, bool):
        sign, cents = ("-", -value) if value < 0 else ("", value)
        return f"{_words(amount)} {sign}{cents // 100}.{cents % 100:02d}"
    return f"{_words(name)} {_value(value)}"


def _words(name: str) -> str:
    """An identifier as words, but for names that are no identifiers of ours."""
    return name.replace("_", " ") if name.isidentifier() and name.isascii() else visible(name)


def _refused(result: Any) -> bool:
    """Whether an answer says no without an error."""
    return result is False or (
        isinstance(result, Mapping) and (result.get("status") == "blocked" or result.get("approved") is False)
    )


def _error(error: str) -> str:
    told = {
        "PermissionError": "not permitted",
        "ValueError": "the value was not accepted",
        "ToolTimeout": "no answer in time, what was asked for may have happened",
        "InvalidCall": "refused before any effect, it is no valid call",
    }.get(error)
    return visible(error if told is None else f"{error}: {told}")


def _ending(error: str) -> str:
    if error == ATTEMPT_LOST:
        return "the attempt was lost after it had acted, this is what its journal holds"
    if error in LIMIT_ERRORS:
        return "a limit of the condition was reached"
    return "the agent gave no usable answer"


def _duration(microseconds: int) -> str:
    """A span with a unit that suits its size."""
    if abs(microseconds) < 1_000:
        return f"{microseconds} µs"
    if abs(microseconds) < 1_000_000:
        return f"{microseconds / 1_000:.1f} ms"
    return f"{microseconds / 1_000_000:.3f} s"
