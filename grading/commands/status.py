"""cellwise status: what ran, what is left, what was tried again and why."""

import json as json_format
from typing import TYPE_CHECKING, Any

from grading.commands import one_matrix, open_store
from grading.commands.progress import Shown, until_done
from grading.commands.where import Where

if TYPE_CHECKING:
    from grading.commands.cluster import Connected
    from grading.store import Store, reading


def status(word: str | None, *, where: Where, watch: bool, store: str, json: bool) -> None:
    if not where.is_here:
        _on_cluster(word, where=where, watch=watch, json=json)
        return
    from grading.results import summary_of
    from grading.store import reading

    with open_store(store) as opened:
        if word is None and not json and not watch and len(reading.matrices(opened)) > 1:
            _print_all(opened)
        matrix = one_matrix(opened, word)
        if watch:
            until_done(_local_progress(opened, matrix), matrix.name)
            matrix = reading.find_matrix(opened, matrix.id)
        found = _status(opened, matrix)
        summary = summary_of(opened, matrix)
    if json:
        print(json_format.dumps({**found, "summary": summary.to_json()}))
        return
    _print(found, summary.plain())


def _on_cluster(word: str | None, *, where: Where, watch: bool, json: bool) -> None:
    from grading.commands.cluster import connected, follow, latest, status_document, tell_phoenix

    with connected(where, "viewer") as way:
        asked = latest(way, word)
        if watch:
            first = way.client.status(asked, summary=False)
            follow(way, first.id, first.name)
        elif word is None and not json:
            _print_listed(way)
        there = way.client.status(asked)
        found = {
            "version": 1,
            "matrix": there.name,
            "id": there.id,
            "manifest": there.manifest,
            "state": there.state,
            "trials": there.counts.model_dump(mode="json"),
            "lost": [one.model_dump(mode="json") for one in there.lost],
            "failed_cells": [one.model_dump(mode="json") for one in there.failed_cells],
            "incidents": [one.model_dump(mode="json") for one in there.incidents],
            "publications": [one.model_dump(mode="json") for one in there.publications],
            "cluster": status_document(way, there),
        }
        if json:
            print(json_format.dumps({**found, "summary": there.summary}))
            return
        _print(found, there.plain or "")
        tell_phoenix(way, there)


def _print(found: dict[str, Any], table: str) -> None:
    print(f"{found['matrix']} {found['manifest'].removeprefix('sha256:')[:12]}: {found['state']}")
    print(", ".join(f"{count} {state}" for state, count in found["trials"].items() if count))
    cluster: dict[str, Any] = found.get("cluster", {})
    if cluster.get("running"):
        print(f"{cluster['running']} attempts run now")
    print(table, end="")
    for title, rows in (
        ("waiting", [f"{one['condition']} / {one['case']}: {one['why']}" for one in cluster.get("waiting", [])]),
        ("attempts that did not deliver", [f"{one['count']} {one['reason']}" for one in found["lost"]]),
        ("failed cells", [f"{one['condition']} / {one['case']}: {one['reason']}" for one in found["failed_cells"]]),
        ("incidents", [f"{one['kind']}: {one['detail']}" for one in found["incidents"]]),
        ("published", [f"{one['target']}: {one['state']}" for one in found["publications"]]),
    ):
        if rows:
            print(f"{title}:")
            for row in rows:
                print(f"  {row}")


def _local_progress(store: "Store", matrix: "reading.Matrix") -> Any:
    """Asks how far a matrix is that some process of this store runs; None once it has ended or stopped."""
    from grading.store import reading

    first: int | None = None

    def ask() -> Shown | None:
        nonlocal first
        counts = reading.counts(store, matrix.id)
        done = counts["graded"] + counts["missing"]
        first = done if first is None else first
        running = reading.find_matrix(store, matrix.id).state in ("registered", "running")
        if not running or done == sum(counts.values()):
            return None
        remarks = f"{counts['leased']} leased" if counts["leased"] else ""
        return Shown(done, sum(counts.values()), done - first, remarks)

    return ask


def _status(store: "Store", matrix: "reading.Matrix") -> dict[str, Any]:
    from grading.store import reading

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


def _print_all(store: "Store") -> None:
    from grading.store import reading

    for matrix in reading.matrices(store):
        counts = reading.counts(store, matrix.id)
        done = counts["graded"] + counts["missing"]
        short = matrix.manifest_hash.removeprefix("sha256:")[:12]
        print(f"{matrix.id}  {matrix.name} {short}  {matrix.state}  {done}/{sum(counts.values())}")
    print()


def _print_listed(way: "Connected") -> None:
    listed = way.client.matrices()
    if len(listed) < 2:
        return
    for one in listed:
        done = one.counts.planned - one.counts.left
        short = one.manifest.removeprefix("sha256:")[:12]
        print(f"{one.id}  {one.name} {short}  {one.state}  {done}/{one.counts.planned}")
    print()
