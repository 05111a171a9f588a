"""cellwise status: what ran, what is left, what was tried again and why."""

import json as json_format
from typing import Any

from grading.commands import one_matrix, open_store
from grading.results import summary_of
from grading.store import Store, reading


def status(word: str | None, *, store: str, json: bool) -> None:
    with open_store(store) as opened:
        if word is None and not json and len(reading.matrices(opened)) > 1:
            _print_all(opened)
        matrix = one_matrix(opened, word)
        found = _status(opened, matrix)
        summary = summary_of(opened, matrix)
    if json:
        print(json_format.dumps({**found, "summary": summary.to_json()}))
        return
    print(f"{found['matrix']} {found['manifest'].removeprefix('sha256:')[:12]}: {found['state']}")
    print(", ".join(f"{count} {state}" for state, count in found["trials"].items() if count))
    print(summary.plain(), end="")
    for title, rows in (
        ("attempts that did not deliver", [f"{one['count']} {one['reason']}" for one in found["lost"]]),
        ("failed cells", [f"{one['condition']} / {one['case']}: {one['reason']}" for one in found["failed_cells"]]),
        ("incidents", [f"{one['kind']}: {one['detail']}" for one in found["incidents"]]),
        ("published", [f"{one['target']}: {one['state']}" for one in found["publications"]]),
    ):
        if rows:
            print(f"{title}:")
            for row in rows:
                print(f"  {row}")


def _status(store: Store, matrix: reading.Matrix) -> dict[str, Any]:
    lost = reading.lost_attempts(store, matrix.id)
    return {
        "version": 1,
        "matrix": matrix.name,
        "id": matrix.id,
        "manifest": matrix.manifest_hash,
        "state": matrix.state,
        "trials": reading.counts(store, matrix.id),
        "lost": [{"reason": reason, "count": count} for reason, count in sorted(lost.items())],
        "failed_cells": [
            {"condition": cell.condition, "case": cell.case_id, "reason": cell.reason}
            for cell in reading.cells(store, matrix.id)
            if cell.state == "failed"
        ],
        "incidents": [{"kind": one.kind, "detail": one.detail} for one in reading.incidents(store, matrix.id)],
        "publications": [
            {"target": one.target, "state": one.state, "compare": one.detail}
            for one in reading.publications(store, matrix.id)
        ],
    }


def _print_all(store: Store) -> None:
    for matrix in reading.matrices(store):
        counts = reading.counts(store, matrix.id)
        done = counts["graded"] + counts["missing"]
        short = matrix.manifest_hash.removeprefix("sha256:")[:12]
        print(f"{matrix.id}  {matrix.name} {short}  {matrix.state}  {done}/{sum(counts.values())}")
    print()
