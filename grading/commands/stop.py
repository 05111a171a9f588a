"""cellwise pause and cancel: a matrix that starts no further trials, for now or for good."""

import json as json_format
import sys
from typing import Literal

from grading.commands import fail, one_matrix, open_store
from grading.commands.where import Where

_DONE = {"pause": "paused", "cancel": "cancelled"}
_MEANS = {
    "pause": "trials that run may still arrive, cellwise resume goes on",
    "cancel": "what was finished stays, the rest never runs",
}


def stop(what: Literal["pause", "cancel"], word: str | None, *, where: Where, store: str, json: bool) -> None:
    if where.is_here:
        from grading.store import StateError, matrices

        with open_store(store) as opened:
            matrix = one_matrix(opened, word)
            move = matrices.pause if what == "pause" else matrices.cancel
            try:
                changed = move(opened, matrix.id)
            except StateError as error:
                raise fail(f"{matrix.name}: {error}") from error
        matrix_id, name = matrix.id, matrix.name
    else:
        from grading.commands.cluster import connected, latest

        with connected(where, "editor") as way:
            asked = latest(way, word)
            answer = way.client.pause(asked) if what == "pause" else way.client.cancel(asked)
        matrix_id, name, changed = answer.id, answer.name, answer.changed
    if json:
        document = {"version": 1, "matrix": name, "id": matrix_id, "state": _DONE[what], "changed": changed}
        print(json_format.dumps(document))
    elif changed:
        print(f"{name} (matrix {matrix_id}) is {_DONE[what]}: {_MEANS[what]}", file=sys.stderr)
    else:
        print(f"{name} (matrix {matrix_id}) was {_DONE[what]} already", file=sys.stderr)
