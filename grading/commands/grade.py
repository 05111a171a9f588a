"""cellwise grade: grading again what is stored."""

import json as json_format
import sys
from pathlib import Path

from grading.commands import one_matrix, open_store
from grading.commands.judge import judge_stage, noted_registry, tell
from grading.grading import grade_stored
from grading.planning import registered_manifest
from grading.results import summary_of


def grade(word: str | None, *, registry: Path | None, store: str, json: bool) -> None:
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        manifest = registered_manifest(opened, matrix.id)
        outcomes = grade_stored(opened, matrix, manifest)
        judged = None
        if manifest.judge is not None:
            asked_of = registry or noted_registry(opened, matrix)
            judged = judge_stage(opened, matrix, manifest, manifest.judge, registry=asked_of)
        summary = summary_of(opened, matrix)
    counted = {name: outcomes[name] for name in ("added", "repeated", "conflicting")}
    if json:
        document = {"version": 1, "matrix": matrix.name, **counted, "summary": summary.to_json()}
        if judged is not None:
            document["judging"] = judged.to_json()
        print(json_format.dumps(document))
        return
    print(
        f"{outcomes['added']} grades added, {outcomes['repeated']} were there already"
        + (f", {outcomes['conflicting']} contradict an earlier one of this version" if outcomes["conflicting"] else ""),
        file=sys.stderr,
    )
    if judged is not None:
        tell(judged, matrix.name)
    print(summary.plain(), end="")
