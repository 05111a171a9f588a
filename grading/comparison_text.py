"""A comparison in words and tables, as plain text, Markdown and JUnit.

Coverage comes first everywhere, and what is incomplete is said before any result. Names are other people's text: what
a terminal, Markdown or XML would obey is shown as text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args
from xml.etree import ElementTree

from grading.comparison import Arm, CandidateComparison, MatrixComparison
from grading.cost import CostTotal, dollar_text
from grading.judge.judgment import SemanticState
from grading.matrix_file import SyntheticProfile
from grading.slices import Sliced
from grading.statistics import paired
from grading.statistics.rates import Description, Rate
from grading.visible import visible

SHOWN_CASES = 20


@dataclass(slots=True)
class Section:
    """A heading with remarks and, maybe, a table whose first row is its header."""

    title: str
    remarks: list[str] = field(default_factory=list)
    table: list[list[str]] = field(default_factory=list)


def sections(found: MatrixComparison, sliced: Sequence[Sliced | None] = ()) -> list[Section]:
    """Everything that is shown, in its order. ``sliced`` has one entry for each candidate, or none at all."""
    listed = [_coverage(found), _arms(found)]
    if found.manifest.judge is not None:
        listed += [_messages(found), _costs(found)]
    for position, candidate in enumerate(found.candidates):
        listed.append(_difference(found, candidate))
        if candidate.changes:
            listed.append(_changes(found, candidate))
        of_slices = sliced[position] if position < len(sliced) else None
        if of_slices is not None:
            listed.append(_slices(candidate, of_slices))
    listed.append(_circumstances(found))
    return listed


def heading(found: MatrixComparison) -> str:
    short = found.matrix.manifest_hash.removeprefix("sha256:")[:12]
    against = ", ".join(one.candidate for one in found.candidates)
    if found.baseline is None:
        return f"{found.matrix.name} {short}"
    return f"{found.matrix.name} {short}: {against} against {found.baseline}"


def plain(found: MatrixComparison, sliced: Sequence[Sliced | None] = ()) -> str:
    """For a terminal or a log."""
    lines = [visible(heading(found))]
    for section in sections(found, sliced):
        lines += ["", visible(section.title)]
        lines += [f"  {line}" for line in _aligned([[visible(cell) for cell in row] for row in section.table])]
        lines += [f"  {visible(remark)}" for remark in section.remarks]
    return "\n".join(lines) + "\n"


def markdown(found: MatrixComparison, sliced: Sequence[Sliced | None] = ()) -> str:
    """For a pull request."""
    lines = [f"## {_escaped(heading(found))}"]
    for section in sections(found, sliced):
        lines += ["", f"### {_escaped(section.title)}", ""]
        if section.table:
            header, *rows = section.table
            lines.append("| " + " | ".join(map(_escaped, header)) + " |")
            lines.append("|---" + "|---:" * (len(header) - 1) + "|")
            lines += ["| " + " | ".join(map(_escaped, row)) + " |" for row in rows]
            if section.remarks:
                lines.append("")
        lines += [f"- {_escaped(remark)}" for remark in section.remarks]
    return "\n".join(lines) + "\n"


def junit(found: MatrixComparison) -> bytes:
    """For CI: a suite for each candidate and a test for each case. A regressed pair is a failure, a missing one an
    error; the verdict on the whole is a test of its own, skipped while it is inconclusive."""
    root = ElementTree.Element("testsuites", name=visible(found.matrix.name))
    for candidate in found.candidates:
        suite = ElementTree.SubElement(root, "testsuite", name=visible(f"{found.matrix.name}: {candidate.candidate}"))
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in (
            ("manifest", found.matrix.manifest_hash),
            ("baseline", found.baseline or "none"),
            ("coverage", _coverage_words(found)),
            ("verdict", _verdict(candidate)),
            ("view", found.view),
            *((f"messages of {arm.name}", _states_words(arm)) for arm in found.arms),
        ):
            ElementTree.SubElement(properties, "property", name=visible(name), value=visible(value))
        counts = {"failure": 0, "error": 0, "skipped": 0}

        def test(name: str, kind: str | None, message: str, suite: ElementTree.Element = suite) -> None:
            classname = visible(f"{found.matrix.name}.{candidate.candidate}")  # noqa: B023 - called within the loop
            case = ElementTree.SubElement(suite, "testcase", name=visible(name), classname=classname)
            if kind is not None:
                counts[kind] += 1  # noqa: B023
                ElementTree.SubElement(case, kind, message=visible(message))

        missing = found.planned - found.observed
        pending = f"; {_count(found.pending, 'message')} still to be judged" if found.pending else ""
        test("coverage", "error" if missing or pending else None, _coverage_words(found) + pending)
        for change in candidate.description.changes:
            if change.regressed:
                test(change.case, "failure", f"{_count(change.regressed, 'pair')} regressed, {change.fixed} fixed")
            elif change.missing:
                test(change.case, "error", f"{_count(change.missing, 'pair')} without both verdicts")
            else:
                test(change.case, None, "")
        verdict = _verdict(candidate)
        kind = {"failed": "failure", "inconclusive": "skipped", "no comparison": "skipped"}.get(verdict)
        test("comparison", kind, f"{verdict}: {_difference_words(candidate)}")
        suite.set("tests", str(len(suite.findall("testcase"))))
        suite.set("failures", str(counts["failure"]))
        suite.set("errors", str(counts["error"]))
        suite.set("skipped", str(counts["skipped"]))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def percent(share: float | None) -> str:
    """A share to a tenth of a percent, and never 100 % for less than all."""
    if share is None:
        return "none"
    shown = f"{100 * share:.1f}".removesuffix(".0")
    if shown == "100" and share < 1:
        shown = "99.9"
    return f"{shown} %"


def signed(value: float | None) -> str:
    return "none" if value is None else f"{value:+.3f}"


def cost_words(total: CostTotal) -> str:
    """The complete total, or the known part with how much is unknown: never a zero for what is not known."""
    if total.complete is not None:
        return f"${dollar_text(total.complete)}"
    if not total.known:
        return "unknown"
    return f"unknown (${dollar_text(total.known_subtotal)} known, {total.unknown} unknown)"


def _coverage(found: MatrixComparison) -> Section:
    section = Section("Coverage" if found.complete else "Coverage: INCOMPLETE")
    section.remarks.append(_coverage_words(found))
    if found.view == "joint":
        section.remarks.append(
            "what counts as a pass: the contract, and a qualified judge's pass of the message (joint)"
        )
    if found.pending:
        section.remarks.append(
            f"{_count(found.pending, 'message')} still to be judged: cellwise judge {found.matrix.name}"
        )
    if found.observed < found.planned:
        section.remarks.append("a trial without a verdict is never a pass; the decision takes it as the worst case")
    for reason in found.exploratory:
        section.remarks.append(f"exploratory: {reason}")
    return section


def _states_words(arm: Arm) -> str:
    return ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(arm.messages.states.items()))


def _coverage_words(found: MatrixComparison) -> str:
    words = f"{found.observed} of {found.planned} trials have a verdict ({percent(found.coverage)})"
    counts = [
        (sum(arm.missing for arm in found.arms), "missing"),
        (sum(arm.unfinished for arm in found.arms), "unfinished"),
        (sum(arm.unscored for arm in found.arms), "unscored"),
    ]
    told = ", ".join(f"{count} {word}" for count, word in counts if count)
    return words + (f": {told}" if told else "")


def _arms(found: MatrixComparison) -> Section:
    judged = found.manifest.judge is not None
    header = [
        "condition", "trials", "contract", *(["semantic", "joint"] if judged else []), "completed",
        "wrong-order commits", "avoidable questions", "p50 ms", "p95 ms", "calls", "turns", "cost",
    ]  # fmt: skip
    extras = [
        (title, counts)
        for title, counts in (
            ("missing", [arm.missing for arm in found.arms]),
            ("unfinished", [arm.unfinished for arm in found.arms]),
            ("unscored", [arm.unscored for arm in found.arms]),
            ("attempts lost", [arm.lost_attempts for arm in found.arms]),
            ("discarded after acting", [arm.discarded_after_acting for arm in found.arms]),
            ("taken over", [arm.reused for arm in found.arms]),
        )
        if any(counts)
    ]
    rows = [
        _arm_row(arm, judged) + [str(counts[position]) for _, counts in extras]
        for position, arm in enumerate(found.arms)
    ]
    section = Section("Conditions", table=[header + [title for title, _ in extras], *rows])
    if isinstance(found.manifest.measurement_profile, SyntheticProfile):
        measured = ", ".join(f"{arm.name} p50 {_ms(arm.elapsed.p50)}, p95 {_ms(arm.elapsed.p95)}" for arm in found.arms)
        section.remarks.append("latency and cost are invented figures of the synthetic measurement profile")
        section.remarks.append(f"elapsed by the clock: {measured}")
    if any(arm.latency.unknown for arm in found.arms):
        unknown = ", ".join(f"{arm.name} {arm.latency.unknown}" for arm in found.arms if arm.latency.unknown)
        section.remarks.append(f"trials without a latency: {unknown}")
    if found.manifest.judge is None:
        section.remarks.append("messages: no judge read them, all are unqualified (no_judge)")
    return section


def _messages(found: MatrixComparison) -> Section:
    """The states apart: none of them stands for another one, and none but the first is a pass."""
    section = Section("Messages, by the judge's qualified word")
    section.table = [["condition", "pass", "fail", "abstained", "unqualified", "pending"]]
    for arm in found.arms:
        section.table.append([arm.name, *(str(arm.messages.states[state]) for state in get_args(SemanticState))])
        for name, reasons in (("unqualified", arm.messages.unqualified), ("pending", arm.messages.pending)):
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            if told:
                section.remarks.append(f"{arm.name}, {name}: {told}")
    return section


def _costs(found: MatrixComparison) -> Section:
    """What agent and judge cost apart, and together."""
    section = Section("Costs")
    section.table = [["condition", "agent", "judge", "both"]]
    section.table += [
        [arm.name, cost_words(arm.agent_cost), cost_words(arm.judge_cost), cost_words(arm.cost)] for arm in found.arms
    ]
    total = found.cost
    section.remarks.append(
        f"in all: ${dollar_text(total.known_subtotal)} known, {_count(total.unknown, 'component')} unknown, "
        f"{total.not_dispatched} not dispatched; complete: "
        + ("unknown" if total.complete is None else f"${dollar_text(total.complete)}")
    )
    if found.judge_spent is not None:
        calls = found.judge_spent.known + found.judge_spent.unknown
        told = f": {cost_words(found.judge_spent)}" if calls else ""
        section.remarks.append(f"money spent on judging, once for each call: {_count(calls, 'call')}{told}")
    return section


def _arm_row(arm: Arm, judged: bool) -> list[str]:
    return [
        arm.name,
        f"{arm.contract.observed}/{arm.planned}",
        _rate(arm.contract),
        *([str(arm.messages.states["qualified_pass"]), _rate(arm.joint)] if judged else []),
        _rate(arm.completed),
        str(arm.wrong_order_commits),
        str(arm.avoidable_questions),
        _number(arm.latency.p50),
        _number(arm.latency.p95),
        "none" if arm.calls is None else f"{arm.calls:.2f}",
        "none" if arm.turns is None else f"{arm.turns:.2f}",
        cost_words(arm.cost),
    ]


def _difference(found: MatrixComparison, candidate: CandidateComparison) -> Section:
    about = candidate.description
    section = Section(f"{candidate.candidate} against {found.baseline}: {_verdict(candidate)}")
    views = (
        [("pairs", about)] if found.view == "structural" else [("joint", about), ("structural", candidate.structural)]
    )
    section.remarks += [_pair_words(title, each) for title, each in views]
    section.remarks += [
        _difference_words(candidate),
        *bounds_words(candidate.decision),
    ]
    order = candidate.order
    if order.pairs:
        section.remarks.append(
            f"run in planned order: {order.in_planned_order} of {order.pairs} pairs ({percent(order.share)}), "
            f"median gap between the two starts {order.median_gap_ms:.0f} ms"
        )
    return section


def _pair_words(title: str, about: Description) -> str:
    words = f"{title}: {about.regressed} regressed, {about.fixed} fixed, {about.unchanged} unchanged"
    if about.missing:
        words += f", {about.missing} without both verdicts"
    if about.eligible_pairs < about.pairs:
        words += f", {about.pairs - about.eligible_pairs} of {about.pairs} pairs without two qualified verdicts"
    return words


def _difference_words(candidate: CandidateComparison) -> str:
    about, decision = candidate.description, candidate.decision
    if decision is None:
        return f"no comparison: only {about.eligible_pairs} of {about.pairs} pairs are eligible"
    words = f"difference {signed(decision.difference)} (mean over {_count(decision.clusters, 'customer')})"
    if about.missing:
        words += f", missing trials as the worst case; {signed(about.customer_weighted_difference)} without them"
    return words


def bounds_words(decision: paired.Comparison | None) -> list[str]:
    """The bounds that decide, and beside them the intervals that do not."""
    if decision is None:
        return []
    if decision.lower is None or decision.upper is None:
        least = decision.rule.minimum_clusters
        return [f"no bounds: {_count(decision.clusters, 'customer')}, the registered least is {least}"]
    level = percent(decision.rule.confidence)
    lines = [
        f"one-sided {level} bounds {signed(decision.lower)} (lower, {decision.lower_method}) and "
        f"{signed(decision.upper)} (upper, t); margin {decision.rule.margin:g}; "
        f"customers worse {decision.clusters_worse}, better {decision.clusters_better}"
    ]
    for name, interval in (("normal", decision.normal), ("cluster bootstrap", decision.bootstrap)):
        if interval is not None:
            adjusted = ", adjusted" if interval.adjusted else ""
            lines.append(f"two-sided {level} {name} {signed(interval.lower)} to {signed(interval.upper)}{adjusted}")
    if decision.candidates > 1:
        lines.append(f"p-values and verdict by Holm's method over {decision.candidates} candidates")
    return lines


def _changes(found: MatrixComparison, candidate: CandidateComparison) -> Section:
    changed = [one for one in candidate.description.changes if one.regressed or one.fixed]
    changed.sort(key=lambda one: (-one.regressed, -one.fixed))
    failed: dict[str, dict[str, None]] = {}
    for change in candidate.changes:
        failed.setdefault(change.case, {}).update(dict.fromkeys(change.why(found.view)))
    header = ["case", "change", "regressed", "fixed", "unchanged", "missing", "failed checks"]
    rows = [
        [
            one.case, one.change, str(one.regressed), str(one.fixed), str(one.unchanged), str(one.missing),
            ", ".join(failed.get(one.case, ())),
        ]
        for one in changed[:SHOWN_CASES]
    ]  # fmt: skip
    section = Section(f"{candidate.candidate}: cases that changed", table=[header, *rows])
    if len(changed) > SHOWN_CASES:
        section.remarks.append(f"and {len(changed) - SHOWN_CASES} more cases: every changed pair is in --json")
    return section


def _slices(candidate: CandidateComparison, sliced: Sliced) -> Section:
    kind = "registered" if sliced.registered else "exploratory"
    section = Section(f"{candidate.candidate}: slices by {sliced.plan.name}, {kind}, {sliced.view} view")
    header = [
        "slice", "cases", "customers", "eligible", "pairs", "baseline", "candidate", "regressed", "fixed", "unchanged",
        "by trials", "by customers",
    ]  # fmt: skip
    rows = []
    for one in sliced.slices:
        about = one.description
        rows.append(
            [
                one.name + (" (required)" if one.required else ""),
                str(about.cases),
                str(about.customers),
                str(about.eligible_customers),
                f"{about.complete_pairs}/{about.pairs}",
                _passed(about.baseline),
                _passed(about.candidate),
                str(about.regressed),
                str(about.fixed),
                str(about.unchanged),
                signed(about.trial_weighted_difference),
                signed(about.customer_weighted_difference),
            ]
        )
    section.table = [header, *rows]
    if sliced.view == "structural":
        section.remarks.append("the structural view describes and always holds: messages are not looked at")
    else:
        section.remarks += [f"slice {one.name}: {_slice_verdict(one.comparison)}" for one in sliced.slices]
    if not sliced.registered:
        section.remarks.append(
            "exploratory: the manifest did not bind this plan"
            + (", so that none of its slices is required" if sliced.plan.required else "")
        )
    return section


def _slice_verdict(comparison: paired.Comparison | None) -> str:
    if comparison is None:
        return "no comparison: it needs two customers and all pairs eligible"
    return "; ".join([comparison.verdict, f"difference {signed(comparison.difference)}", *bounds_words(comparison)])


def _circumstances(found: MatrixComparison) -> Section:
    section = Section("What happened around the trials")
    for arm in found.arms:
        if arm.disagreeing:
            shown = ", ".join(arm.disagreeing[:SHOWN_CASES])
            more = len(arm.disagreeing) - SHOWN_CASES
            rest = f" and {more} more" if more > 0 else ""
            section.remarks.append(
                f"repetitions disagree in {_count(len(arm.disagreeing), 'case')} of {arm.name}: {shown}{rest}"
            )
    if not any(arm.disagreeing for arm in found.arms):
        section.remarks.append("in no cell do repetitions disagree")
    lost = ", ".join(f"{count} {reason}" for reason, count in sorted(found.lost.items()))
    section.remarks.append(f"attempts lost: {lost or 'none'}")
    discarded = ", ".join(f"{arm.name} {arm.discarded_after_acting}" for arm in found.arms)
    section.remarks.append(f"attempts discarded after a refund or approval call: {discarded}")
    incidents = ", ".join(f"{count} {kind}" for kind, count in found.incidents.items())
    section.remarks.append(f"incidents: {incidents or 'none'}")
    return section


def _verdict(candidate: CandidateComparison) -> str:
    return "no comparison" if candidate.decision is None else candidate.decision.verdict


def _rate(rate: Rate) -> str:
    return f"{rate.passed} ({percent(rate.value)})" if rate.observed else "none"


def _passed(rate: Rate) -> str:
    return f"{rate.passed}/{rate.observed}"


def _number(value: int | None) -> str:
    return "none" if value is None else str(value)


def _ms(value: int | None) -> str:
    return "none" if value is None else f"{value} ms"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    from rich.cells import cell_len

    if not rows:
        return []
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: no markup, HTML, mention, emoji, formula or link. Used within a line only."""
    shown = visible(text)
    padded = f" {shown} "
    return "".join(
        character
        if character.isalnum() or character in " ,;%/()" or ord(character) > 127 or _harmless(character, before, after)
        else f"&#{ord(character)};"
        for before, character, after in zip(padded, shown, padded[2:], strict=False)
    )


def _harmless(character: str, before: str, after: str) -> bool:
    """Whether a mark between these two neighbours is no markup: 0.5, wrong_order, well-known, "name: value"."""
    if character == ".":
        return before.isdigit() and after.isdigit()
    if character == ":":
        return after == " "
    return character in "-_+=" and (before.isalnum() or before == " ") and after.isalnum()


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
