"""From a grader's verdict to what the store keeps."""

from collections import Counter
from collections.abc import Collection

import orjson

from grading.graders import Grade, load_grader
from grading.manifest import Manifest
from grading.projection import structural
from grading.store import Store, grades, reading
from grading.store.tables import TrialState
from simulator.canonical import canonical

_GROUP = 200


def stored_grade(attempt_id: int, grade: Grade) -> grades.Grade:
    """A grade as the store keeps it: of an attempt, keyed by its grader's version."""
    checks = canonical(grade.to_json()["checks"]).decode()
    return grades.Grade(attempt_id, grade.grader, grade.grader_version, grade.verdict, grade.task_completed, checks)


def grade_stored(
    store: Store, matrix: reading.Matrix, manifest: Manifest, states: Collection[TrialState] = ("delivered", "graded")
) -> Counter[str]:
    """Grades the evidence of a matrix with the graders as they are now.

    Returns:
        How many grades were added, repeated and conflicting.
    """
    grader = load_grader(manifest.world)
    expectations = {case.id: grader.Expectation.model_validate(case.expectation) for case in manifest.cases}
    outcomes: Counter[str] = Counter()
    group: list[grades.Grade] = []

    def write() -> None:
        if group:
            versions = {(one.grader, one.version) for one in group}
            outcomes.update(grades.add_grades(store, group, versions))
            group.clear()

    for trial in reading.trials(store, matrix.id, states=states, ledgers=True):
        if trial.ledger is not None and trial.evidence_attempt_id is not None:
            content = orjson.loads(trial.ledger)["content"]
            found = grader.grade(structural(content), expectations[trial.case_id])
            group.append(stored_grade(trial.evidence_attempt_id, found))
        if len(group) >= _GROUP:
            write()
    write()
    return outcomes
