"""From a grader's verdict to what the store keeps."""

from grading.graders import Grade
from grading.store import grades
from simulator.canonical import canonical


def stored_grade(attempt_id: int, grade: Grade) -> grades.Grade:
    """A grade as the store keeps it: of an attempt, keyed by its grader's version."""
    checks = canonical(grade.to_json()["checks"]).decode()
    return grades.Grade(attempt_id, grade.grader, grade.grader_version, grade.verdict, grade.task_completed, checks)
