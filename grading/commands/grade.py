"""cellwise grade: grading again what is stored."""

import json as json_format
import sys
from collections import Counter
from pathlib import Path

import orjson

from grading.commands import one_matrix, open_store
from grading.commands.judge import judge_stage, noted_registry, tell
from grading.graders import load_grader
from grading.grading import stored_grade
from grading.manifest import Manifest
from grading.projection import structural
from grading.results import summary_of
from grading.store import grades, reading

_GROUP = 200


def grade(word: str | None, *, registry: Path | None, store: str, json: bool) -> None:
    outcomes: Counter[str] = Counter()
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        manifest = Manifest.from_document(reading.manifest(opened, matrix.id))
        grader = load_grader(manifest.world)
        expectations = {case.id: grader.Expectation.model_validate(case.expectation) for case in manifest.cases}
        group: list[grades.Grade] = []

        def write() -> None:
            if group:
                versions = {(one.grader, one.version) for one in group}
                outcomes.update(grades.add_grades(opened, group, versions))
                group.clear()

        for trial in reading.trials(opened, matrix.id, states=["delivered", "graded"], ledgers=True):
            if trial.ledger is not None and trial.evidence_attempt_id is not None:
                content = orjson.loads(trial.ledger)["content"]
                found = grader.grade(structural(content), expectations[trial.case_id])
                group.append(stored_grade(trial.evidence_attempt_id, found))
            if len(group) >= _GROUP:
                write()
        write()
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
