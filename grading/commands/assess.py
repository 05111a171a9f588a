"""cellwise assess: which of the stored judgments would count today."""

import json as json_format
import time
from collections.abc import Iterator
from pathlib import Path

from grading.calibration.assessment import Assessment, StoredJudgment
from grading.calibration.assessment import assess as assess_judgments
from grading.calibration.registry import Registry, microseconds
from grading.calibration.rows import Scope
from grading.commands import fail, one_matrix, open_store
from grading.manifest import Manifest
from grading.results import semantics
from grading.store import Store, reading
from grading.store.attempts import batches
from grading.visible import visible


def assess(word: str | None, *, registry: Path, at: str | None, store: str, json: bool) -> None:
    try:
        when = time.time_ns() // 1000 if at is None else microseconds(at)
    except ValueError as error:
        raise fail(f"--at: {error}") from error
    trusted = Registry.load(registry)
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        assessment = assess_judgments(judgments(opened, matrix), trusted, when)
    if json:
        print(json_format.dumps({**assessment.to_json(), "matrix": matrix.name}))
    else:
        print(text(matrix.name, assessment), end="")


def judgments(store: Store, matrix: reading.Matrix) -> Iterator[StoredJudgment]:
    """What was judged of every trial that has evidence. A matrix without a judge has nothing that was."""
    manifest = Manifest.from_document(reading.manifest(store, matrix.id))
    judge = manifest.judge
    for trials in batches(reading.trials(store, matrix.id, states=["delivered", "graded"]), 100):
        judged = semantics(store, trials, judge.configuration_hash()) if judge is not None else {}
        for trial in trials:
            name = f"{trial.condition}/{trial.case_id}/{trial.repetition}"
            found = judged.get(trial.id)
            if judge is None or found is None or found.document is None:
                yield StoredJudgment(name, False, None, None, None, None)
                continue
            document = found.document
            yield StoredJudgment(
                name,
                document["unqualified"] is None,
                document["calibration_hash"],
                document["configuration_hash"],
                Scope(criterion=document["criterion"], policy_version=judge.policy_version, world=manifest.world),
                document["checked_after"],
                document["unqualified"],
            )


def text(name: str, assessment: Assessment) -> str:
    """The assessment as a person reads it."""
    trials = len(assessment.trials)
    lines = [visible(f"{name}: {assessment.status}")]
    lines.append(f"  {trials - assessment.not_current} of {trials} judgments would count today")
    lines += [visible(f"  {reason}: {count}") for reason, count in assessment.by_reason.items()]
    if assessment.status == "not_applicable":
        lines.append("  no calibrated judge was asked about any trial")
    lines.append("What was graded stays as it is; this gives permission for nothing.")
    return "\n".join(lines) + "\n"
