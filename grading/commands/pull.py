"""cellwise pull: a cluster's matrix in a local store, so that everything else works on it here."""

import json as json_format
import sys
from typing import Any

import typer

from grading.commands import LEFT, MISSING, fail, open_store
from grading.commands.cluster import connected, latest
from grading.commands.progress import Shown, watching
from grading.commands.where import Where
from grading.pulling import Pulled, PullProgress, PullRefused, pull
from grading.results import summary_of
from grading.store import NotFound, reading
from grading.store.copying import CopyConflict


def pull_matrix(word: str | None, *, where: Where, store: str, json: bool) -> None:
    with connected(where, "viewer") as way:
        asked = latest(way, word)
        # Before a store is made: a wrong word leaves nothing behind.
        status = way.client.status(asked, summary=False)
        with open_store(store, create=True) as opened:
            with watching(status.name) as show:

                def told(progress: PullProgress) -> None:
                    show(Shown(progress.done, progress.planned, progress.done))

                try:
                    pulled = pull(way.client, opened, status.id, watch=told)
                except CopyConflict as error:
                    raise fail(f"{error}; nothing of it was changed here, --store names another store") from error
                except (PullRefused, NotFound) as error:
                    raise fail(str(error), 1) from error
            matrix = pulled.matrix
            summary = summary_of(opened, matrix)
            counts = reading.counts(opened, matrix.id)
    _tell(pulled, status.state, with_judge=any(one.total.semantic is not None for one in summary.conditions))
    if json:
        print(json_format.dumps(_document(pulled, status.state, summary.to_json())))
    else:
        sys.stdout.write(summary.plain())
    if pulled.refused or pulled.disagreeing:
        raise typer.Exit(1)
    if counts["missing"]:
        raise typer.Exit(MISSING)
    if counts["open"] or counts["leased"] or counts["delivered"]:
        raise typer.Exit(LEFT)


def _document(pulled: Pulled, there: str, summary: dict[str, Any]) -> dict[str, Any]:
    matrix = pulled.matrix
    return {
        "version": 1,
        "matrix": matrix.name,
        "id": matrix.id,
        "manifest": matrix.manifest_hash,
        "state": matrix.state,
        "state_there": there,
        "trials": pulled.trials,
        "added": pulled.added,
        "refused": pulled.refused,
        "graded_otherwise": pulled.disagreeing,
        "origins": [each.matrix.manifest_hash for each in pulled.origins],
        "summary": summary,
    }


def _tell(pulled: Pulled, there: str, *, with_judge: bool) -> None:
    matrix = pulled.matrix
    short = matrix.manifest_hash.removeprefix("sha256:")[:12]
    for each in pulled.origins:
        print(f"{each.matrix.name} too, whose finished trials it took over: matrix {each.matrix.id}", file=sys.stderr)
    print(
        f"{matrix.name} {short}: matrix {matrix.id} here, {pulled.trials} trials looked at"
        + ("" if pulled.added else ", nothing new"),
        file=sys.stderr,
    )
    if there in ("registered", "running", "paused"):
        print(f"cellwise: it is {there} on the cluster: cellwise pull again adds what comes", file=sys.stderr)
    for why in pulled.refused:
        print(f"cellwise: not taken, its ledger is not valid here: {why}", file=sys.stderr)
    for why in pulled.disagreeing:
        print(f"cellwise: graded otherwise by the same grader: {why}", file=sys.stderr)
    if with_judge:
        print(f"cellwise: judgments are not copied: cellwise judge {matrix.name}", file=sys.stderr)
