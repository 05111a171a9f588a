"""From a grader's verdict to what the store keeps."""

from grading.graders import Grade
from grading.store import grades
from simulator.canonical import canonical_of_parsed


def stored_grade(attempt_id: int, grade: Grade) -> grades.Grade:
    """A grade as the store keeps it: of an attempt, keyed by its grader's version."""
    # What a check observed is a count, or was in the parsed ledger.
    checks = canonical_of_parsed(grade.to_json()["checks"]).decode()
    return grades.Grade(attempt_id, grade.grader, grade.grader_version, grade.verdict, grade.task_completed, checks)
