"""cellwise replay: what a packet says, made again from what it holds."""

import json as json_format
import os
from pathlib import Path

import typer

from grading.commands import MISSING, fail
from grading.cost import dollar_text
from grading.replay_packet import PROVES, PROVES_NOT, Report, replay_packet


def replay(path: Path, *, expect_sha256: str | None, json: bool) -> None:
    try:
        report = replay_packet(path, expected_sha256=expect_sha256, processes=_processors())
    except OSError as error:
        raise fail(f"{path}: cannot be read: {error.strerror}") from error
    if json:
        print(json_format.dumps(report.to_json()))
    else:
        _print(report)
    if report.missing:
        raise typer.Exit(MISSING)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print(report: Report) -> None:
    print(f"{report.name}: {report.replayed} of {report.trials} trials replayed, {report.missing} missing")
    header = ("arm", "trials", "contract", "completed", "wrong-order commits", "unqualified messages")
    rows: list[tuple[str, ...]] = [header]
    for arm in ("baseline", "candidate"):
        totals = report.totals[arm]
        rows.append(
            (
                arm,
                f"{totals['graded'] - totals['unscored']}/{totals['planned']}",
                *(str(totals[name]) for name in ("passed", "completed")),
                str(totals["counters"].get("wrong_order_commits", 0)),
                str(totals["unqualified_messages"]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    cost = report.totals["cost"]
    complete = cost["complete_micro_dollars"]
    print(
        f"agents' cost, {report.profile}: known ${dollar_text(cost['known_subtotal_micro_dollars'])}, "
        f"{cost['unknown']} unknown, complete {'unknown' if complete is None else '$' + dollar_text(complete)}"
    )
    print(f"pairs run in planned order: {report.pairs_in_order} of {report.pairs}; incidents: {report.incidents}")
    print(f"SHA-256 of the file: {report.sha256}{' (as expected)' if report.anchored else ''}")
    for title, lines in (("This proves", PROVES), ("It does not prove", PROVES_NOT), ("Note", report.notes)):
        if lines:
            print(f"{title}:")
        for line in lines:
            print(f"  - {line}")
