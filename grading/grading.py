"""Grading a matrix's ledgers as they come in: what every door to the store does with a ledger that it has validated."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from grading.graders import Grade, load_grader
from grading.intake import Quarantined, ValidLedger, validate
from grading.manifest import Manifest
from grading.projection import structural
from grading.store import Store, delivering, grades, reading
from grading.store.tables import TrialState
from simulator.canonical import canonical_of_parsed

GROUP = 256
"""Ledgers in one commit, at most."""


def stored_grade(attempt_id: int, grade: Grade) -> grades.Grade:
    """A grade as the store keeps it: of an attempt, keyed by its grader's version."""
    # What a check observed is a count, or was in the parsed ledger.
    checks = canonical_of_parsed(grade.to_json()["checks"]).decode()
    return grades.Grade(attempt_id, grade.grader, grade.grader_version, grade.verdict, grade.task_completed, checks)


@dataclass(frozen=True, slots=True)
class Received:
    """A validated ledger, on its way into the store."""

    attempt_id: int
    secret: str | None
    """As its sender gave it; None alone where the sender was identified otherwise."""
    case_id: str
    ledger: ValidLedger


def received(
    attempt_id: int,
    secret: str | None,
    case_id: str,
    document: bytes,
    *,
    assignment: dict[str, Any],
    trial: str,
    number: int,
) -> Received | delivering.Quarantined:
    """What arrived as the ledger of an attempt: validated, or what is to be quarantined of it."""
    try:
        return Received(attempt_id, secret, case_id, validate(document, assignment, trial, number))
    except Quarantined as error:
        return delivering.Quarantined(attempt_id, secret, error.kind, str(error), document)


def delivery(attempt_id: int, secret: str | None, ledger: ValidLedger) -> delivering.Delivery:
    return delivering.Delivery(
        attempt_id, secret, ledger.content_hash, ledger.ledger_hash, ledger.document, ledger.started, ledger.ended
    )


class MatrixGrading:
    """The graders of one matrix, with its expectations."""

    def __init__(self, manifest: Manifest) -> None:
        self.grader = load_grader(manifest.world)
        self.graders = [(one.name, one.version) for one in manifest.graders]
        self._expectations = {
            case.id: self.grader.Expectation.model_validate(case.expectation) for case in manifest.cases
        }

    def expectation(self, case_id: str) -> Any:
        return self._expectations[case_id]

    def deliver(self, store: Store, ledgers: Collection[Received]) -> list[delivering.DeliverOutcome]:
        """Takes ledgers in with their grades, in one transaction."""
        return delivering.deliver(
            store,
            [delivery(one.attempt_id, one.secret, one.ledger) for one in ledgers],
            grades=[self._graded(one.attempt_id, one.case_id, one.ledger.content) for one in ledgers],
            graders=self.graders,
        )

    def grade_delivered(self, store: Store, matrix_id: int) -> int:
        """Grades what came in without a grade: sealed from a journal, taken over for reuse, or left by a killed runner.

        Returns:
            How many grades were added.
        """
        return sum(
            grades.add_grades(store, group, self.graders).count("added")
            for group in self.of_stored(store, matrix_id, ["delivered"])
        )

    def of_stored(self, store: Store, matrix_id: int, states: Collection[TrialState]) -> Iterator[list[grades.Grade]]:
        """Grades of the evidence of trials in these states, a group at a time."""
        group: list[grades.Grade] = []
        for trial in reading.trials(store, matrix_id, states=states, ledgers=True):
            if trial.evidence_attempt_id is not None and trial.ledger is not None:
                content = orjson.loads(trial.ledger)["content"]
                group.append(self._graded(trial.evidence_attempt_id, trial.case_id, content))
            if len(group) >= GROUP:
                yield group
                group = []
        if group:
            yield group

    def _graded(self, attempt_id: int, case_id: str, content: dict[str, Any]) -> grades.Grade:
        return stored_grade(attempt_id, self.grader.grade(structural(content), self._expectations[case_id]))


def grade_stored(
    store: Store, matrix: reading.Matrix, manifest: Manifest, states: Collection[TrialState] = ("delivered", "graded")
) -> Counter[str]:
    """Grades the evidence of a matrix with the graders as they are now.

    Returns:
        How many grades were added, repeated and conflicting.
    """
    outcomes: Counter[str] = Counter()
    for group in MatrixGrading(manifest).of_stored(store, matrix.id, states):
        outcomes.update(grades.add_grades(store, group, {(one.grader, one.version) for one in group}))
    return outcomes
