"""A calibration record as a person reads it, and as JSON. Every figure is derived here and now from the outcomes."""

from collections.abc import Iterator, Mapping
from typing import Any

from grading.calibration.policy import CalibrationPolicy, Counts, RowsNeeded, rows_needed
from grading.calibration.record import CalibrationRecord, JudgedRow
from grading.calibration.split import HeldOutReport
from grading.visible import visible

NOT_PROVEN = (
    "The hash shows integrity, not origin: that the reviewers are different people and that the rows are like what is "
    "to be judged is for you to know."
)


def record_json(record: CalibrationRecord, policy: CalibrationPolicy) -> dict[str, Any]:
    """What a record comes to, and what a policy still needs."""
    return {
        "version": 1,
        "hash": record.hash,
        "scope": record.scope.model_dump(),
        "split": record.split,
        "configuration_hash": record.configuration_hash,
        "synthetic_rows": record.synthetic_rows,
        "counts": counts_json(record.counts),
        "by_slice": [
            {"slice": name, "value": value, **counts_json(counts)} for (name, value), counts in record.by_slice.items()
        ],
        "agreement": record.agreement,
        "disagreements": [
            row.model_dump(include={"id", "evidence_hash", "reviews", "adjudication"}) for row in record.disagreements
        ],
        "more_rows": _needed_json(rows_needed(record.counts, policy)),
    }


def counts_json(counts: Counts) -> dict[str, Any]:
    return {
        "truthful": counts.truthful,
        "false": counts.false,
        "false_passes": counts.false_passes,
        "false_pass_upper_95": counts.false_pass_upper,
        "false_blocks": counts.false_blocks,
        "false_block_upper_95": counts.false_block_upper,
        "abstentions": counts.abstentions,
    }


def record_text(record: CalibrationRecord, policy: CalibrationPolicy) -> str:
    """The same for a person."""
    return "\n".join(_record_lines(record, policy)) + "\n"


def held_out_json(report: HeldOutReport) -> dict[str, Any]:
    return {
        "version": 1,
        "calibration": {"hash": report.calibration.hash, **counts_json(report.calibration.counts)},
        "held_out": {"hash": report.held_out.hash, **counts_json(report.held_out.counts)},
        "by_slice": [
            {"slice": name, "value": value, **counts_json(counts)}
            for (name, value), counts in report.held_out.by_slice.items()
        ],
        "agreement": report.held_out.agreement,
        "authority": "none",
    }


def held_out_text(report: HeldOutReport) -> str:
    """The judge on rows that it was not calibrated on, beside those that it was."""
    lines = ["Calibration"]
    lines += _counts_lines(report.calibration.counts)
    lines += ["Held out"]
    lines += _counts_lines(report.held_out.counts)
    lines += _slice_lines(report.held_out.by_slice)
    lines += ["Held-out rows show what to expect of the judge; they qualify nothing.", NOT_PROVEN]
    return "\n".join(lines) + "\n"


def _record_lines(record: CalibrationRecord, policy: CalibrationPolicy) -> Iterator[str]:
    scope = record.scope
    yield f"Calibration record {record.hash}"
    yield visible(f"  judge configuration {record.configuration_hash}")
    yield visible(f"  scope {scope.criterion} / {scope.policy_version} / {scope.world}")
    if record.synthetic_rows:
        yield f"  {record.synthetic_rows} of {len(record.rows)} rows are synthetic"
    yield from _counts_lines(record.counts)
    yield from _slice_lines(record.by_slice)
    alpha = record.agreement
    said = "undefined: only one label was ever given" if alpha is None else f"{alpha:.3f}"
    yield f"  reviewer agreement (Krippendorff's alpha): {said}"
    yield f"  disagreements: {len(record.disagreements) or 'none'}"
    for row in record.disagreements:
        yield from _disagreement(row)
    yield from _needed_lines(rows_needed(record.counts, policy))
    yield NOT_PROVEN


def _counts_lines(counts: Counts) -> Iterator[str]:
    yield f"  {counts.truthful} truthful, {counts.false} false, {counts.abstentions} abstentions"
    yield f"  false passes {counts.false_passes} of {counts.false}, at most {counts.false_pass_upper:.4f} (95 %)"
    yield f"  false blocks {counts.false_blocks} of {counts.truthful}, at most {counts.false_block_upper:.4f} (95 %)"


def _slice_lines(slices: Mapping[tuple[str, str], Counts]) -> Iterator[str]:
    for (name, value), counts in slices.items():
        yield visible(
            f"  {name}: {value}: false passes {counts.false_passes} of {counts.false} (at most "
            f"{counts.false_pass_upper:.4f}), false blocks {counts.false_blocks} of {counts.truthful} (at most "
            f"{counts.false_block_upper:.4f}), {counts.abstentions} abstentions"
        )


def _disagreement(row: JudgedRow) -> Iterator[str]:
    one, other = row.reviews
    said = f"{one.reviewer}: {one.label}, {other.reviewer}: {other.label}"
    yield visible(f"    {row.id}: {said}")
    if row.adjudication is not None:
        decided = row.adjudication
        yield visible(f"      {decided.reviewer} decided {decided.label}: {decided.reason}")


def _needed_lines(needed: RowsNeeded) -> Iterator[str]:
    for what, more in (
        ("truthful rows", needed.truthful),
        ("false rows", needed.false),
        ("rows of either class, for the share of abstentions", needed.of_either),
    ):
        if more is None:
            yield f"  no number of further {what} meets the policy"
        elif more:
            yield f"  at least {more} more {what} are needed, if the judge is right on each"
    if needed == RowsNeeded(0, 0, 0):
        yield "  the policy needs no more rows"


def _needed_json(needed: RowsNeeded) -> dict[str, int | None]:
    return {"truthful": needed.truthful, "false": needed.false, "of_either": needed.of_either}
