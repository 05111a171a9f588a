"""cellwise logs: what a cell's pods wrote, and what became of its attempts."""

import sys
from datetime import UTC, datetime

from grading.commands import fail
from grading.commands.cluster import Connected, connected, latest
from grading.commands.where import Where
from grading.people_protocol import AttemptLine, Attempts, CellTerms, LaunchLine

SHOWN_ATTEMPTS = 50


def logs(cell: str, *, matrix: str | None, where: Where, follow: bool, tail: int | None) -> None:
    with connected(where, "viewer") as way:
        found = _found(way, latest(way, matrix), cell)
        _tell(found)
        launches = [one.id for one in found.launches]
        if not launches:
            print("cellwise: no Job was made for this cell yet", file=sys.stderr)
            return
        written = False
        for line in way.cluster.logs(found.cells_namespace, launches, follow=follow, tail=tail):
            written = True
            print(line, flush=follow)
        if not written:
            print("cellwise: its pods are gone or have written nothing: what ran is in the store", file=sys.stderr)


def _found(way: Connected, word: str | int, cell: str) -> Attempts:
    """The attempts of ``condition/case``, or of a cell's number. Names may hold slashes themselves."""
    if cell.isascii() and cell.isdigit() and len(cell) < 16:
        return way.client.attempts_of_cell(word, int(cell))
    status = way.client.status(word)
    conditions = (status.summary or {}).get("conditions", [])
    assert isinstance(conditions, list)
    known = [
        (str(one["condition"]), str(of_case["case"]))
        for one in conditions
        if isinstance(one, dict)
        for of_case in _listed(one.get("cases"))
    ]
    named = [(condition, case) for condition, case in known if f"{condition}/{case}" == cell]
    if not named:
        from grading.file_error import nearest

        raise fail(f"{status.name} has no cell {cell}:{nearest(cell, [f'{a}/{b}' for a, b in known])}")
    if len(named) > 1:
        raise fail(f"{status.name} has several cells called {cell}: give its number, which its Jobs' names hold")
    return way.client.attempts(word, CellTerms(condition=named[0][0], case=named[0][1]))


def _listed(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _tell(found: Attempts) -> None:
    for launch in found.launches:
        print(_launch(launch), file=sys.stderr)
    for one in found.attempts[-SHOWN_ATTEMPTS:]:
        print(_attempt(one), file=sys.stderr)
    left_out = len(found.attempts) - SHOWN_ATTEMPTS
    if left_out > 0 or found.more:
        print(f"  ({max(left_out, 0)}{' or more' if found.more else ''} attempts are not shown)", file=sys.stderr)


def _launch(one: LaunchLine) -> str:
    told = f"Job {one.job}: {one.state}"
    for why in (one.reason, one.waiting):
        told += f", {why}" if why else ""
    return told


def _attempt(one: AttemptLine) -> str:
    told = f"  repetition {one.repetition}, attempt {one.number}: {one.state}"
    told += f" ({one.reason})" if one.reason else ""
    told += f", {_time(one.started or one.leased)}"
    if one.pod is not None:
        told += f", pod {one.pod} on {one.node}"
    return told + (", after a refund or approval call" if one.acted and one.state != "delivered" else "")


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
