"""Settling what pods leave behind: an attempt of a pod that is gone is decided by its journal, and graded where it is
evidence. The same code as for a runner's killed workers (grading/recovering.py); only the reasons come from elsewhere.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from grading.graders import Grader, load_grader
from grading.grading import stored_grade
from grading.manifest import Manifest, trial_name
from grading.planning import registered_manifest
from grading.projection import structural
from grading.recovering import Recovery, Unanswered, overrun, recover
from grading.store import Store, claiming, grades, journaling, reading
from k8s.reasons import End

_GROUP = 256
"""Grades in one commit."""
_MOST_ASSIGNMENTS = 1000


@dataclass(frozen=True, slots=True)
class Registered:
    """A matrix's manifest with what grading needs of it."""

    manifest: Manifest
    grader: Grader
    expectations: dict[str, Any]
    graders: list[tuple[str, str]]


class Settler:
    """Writes what became of attempts. It keeps nothing but copies of what the store has."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._registered: dict[int, Registered] = {}
        self._assignments: dict[str, dict[str, Any]] = {}

    def registered(self, matrix_id: int) -> Registered:
        """A matrix's manifest, read once: it never changes."""
        if matrix_id not in self._registered:
            manifest = registered_manifest(self._store, matrix_id)
            grader = load_grader(manifest.world)
            self._registered[matrix_id] = Registered(
                manifest,
                grader,
                {case.id: grader.Expectation.model_validate(case.expectation) for case in manifest.cases},
                [(one.name, one.version) for one in manifest.graders],
            )
        return self._registered[matrix_id]

    def settle(self, held: claiming.Held, end: End) -> Recovery:
        """Decides an attempt of whose pod nothing more will come."""
        of = self.registered(held.matrix_id)
        # One at a time: a journal speaks of the attempt that it was sent for and of no other.
        journals = journaling.journals(self._store, [held.attempt_id])
        one = Unanswered(
            held.attempt_id,
            held.number,
            trial_name(held.manifest_hash, held.condition, held.case_id, held.repetition),
            held.case_id,
            self._assignment(held.assignment_hash),
            end.reason,
            # A pod that asked for its trial counts as having begun it: its first lines may not have arrived.
            begun=True,
        )
        place = {"launcher": "kubernetes", "host": held.node, "worker": held.pod_name}
        isolation = of.manifest.isolation
        if end.kind == "overrun":
            recovery = overrun(one, journals, place, isolation=isolation, began=held.leased_at)
        else:
            recovery = recover([one], journals, of.grader, of.expectations.__getitem__, place, isolation=isolation)
        recovery.write(self._store)
        return recovery

    def grade(self, matrix_id: int) -> int:
        """Grades what was delivered and not graded, as by a sealing, or an intake that was killed; returns how many."""
        of = self.registered(matrix_id)
        rows: list[grades.Grade] = []
        graded = 0
        for trial in reading.trials(self._store, matrix_id, states=["delivered"], ledgers=True):
            if trial.evidence_attempt_id is None or trial.ledger is None:
                continue
            content = orjson.loads(trial.ledger)["content"]
            grade = of.grader.grade(structural(content), of.expectations[trial.case_id])
            rows.append(stored_grade(trial.evidence_attempt_id, grade))
            if len(rows) >= _GROUP:
                graded += grades.add_grades(self._store, rows, of.graders).count("added")
                rows = []
        if rows:
            graded += grades.add_grades(self._store, rows, of.graders).count("added")
        return graded

    def _assignment(self, of_hash: str) -> dict[str, Any]:
        if of_hash not in self._assignments:
            if len(self._assignments) >= _MOST_ASSIGNMENTS:
                self._assignments.clear()
            document = reading.assignments(self._store, [of_hash])[of_hash]
            self._assignments[of_hash] = orjson.loads(document)
        return self._assignments[of_hash]
