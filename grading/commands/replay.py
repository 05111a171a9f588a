"""cellwise replay: what a packet says, made again from what it holds."""

import json as json_format
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from grading.commands import MISSING, fail
from grading.cost import dollar_text
from grading.replay_packet import PROVES, PROVES_NOT, Report, replay_packet


def replay(path: Path, *, expect_sha256: str | None, trust_calibration: Sequence[str] = (), json: bool = False) -> None:
    try:
        report = replay_packet(
            path, expected_sha256=expect_sha256, trusted_calibrations=trust_calibration, processes=processors()
        )
    except OSError as error:
        raise fail(f"{path}: cannot be read: {error.strerror}") from error
    if json:
        print(json_format.dumps(report.to_json()))
    else:
        _print(report)
    if report.missing:
        raise typer.Exit(MISSING)


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print(report: Report) -> None:
    print(f"{report.name}: {report.replayed} of {report.trials} trials replayed, {report.missing} missing")
    header = ["arm", "trials", "contract", "completed", "wrong-order commits", "unqualified messages"]
    if report.judge is not None:
        header[5:5] = ["joint", "qualified pass", "fail", "abstention"]
        header.append("pending")
    rows: list[list[str]] = [header]
    for arm in ("baseline", "candidate"):
        totals = report.totals[arm]
        row = [arm, f"{totals['graded'] - totals['unscored']}/{totals['planned']}"]
        row += [str(totals[name]) for name in ("passed", "completed")]
        row.append(str(totals["counters"].get("wrong_order_commits", 0)))
        if report.judge is not None:
            row += [str(totals[name]) for name in ("joint", "qualified_pass", "qualified_fail", "qualified_abstention")]
        row.append(str(totals["unqualified_messages"]))
        if report.judge is not None:
            row.append(str(totals["pending_messages"]))
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"cost, agents' {report.profile}: {_cost(report.totals['cost'])}")
    if report.judge is not None:
        calls = report.judge_calls
        print(f"  of it carried for judging: {_cost(report.totals['judge_cost'])}")
        if any(calls[state] for state in ("known", "unknown", "not_dispatched")):
            print(f"  the judge's calls, once each: {_cost(calls)}")
        trusted = {True: "trusted by you", False: "not trusted, so no judgment counts", None: "none registered"}
        print(f"calibration {report.calibration or ''}: {trusted[report.calibration_trusted]}".replace(" :", ":"))
    print(f"pairs run in planned order: {report.pairs_in_order} of {report.pairs}; incidents: {report.incidents}")
    print(f"SHA-256 of the file: {report.sha256}{' (as expected)' if report.anchored else ''}")
    for title, lines in (("This proves", PROVES), ("It does not prove", PROVES_NOT), ("Note", report.notes)):
        if lines:
            print(f"{title}:")
        for line in lines:
            print(f"  - {line}")


def _cost(cost: dict[str, Any]) -> str:
    complete = cost["complete_micro_dollars"]
    return (
        f"known ${dollar_text(cost['known_subtotal_micro_dollars'])}, {cost['unknown']} unknown, "
        f"complete {'unknown' if complete is None else '$' + dollar_text(complete)}"
    )
