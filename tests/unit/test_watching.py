"""How often a command that watches a matrix on a cluster asks how far it is."""

import pytest

from grading.commands.cluster import pause_after
from grading.people_protocol import TrialCounts


def counts(done: int, planned: int = 200) -> TrialCounts:
    return TrialCounts(open=planned - done, leased=0, delivered=0, graded=done, missing=0)


@pytest.mark.parametrize(
    ("done", "first_done", "seconds", "expected"),
    [
        (0, 0, 0.0, 1.0),
        (0, 0, 30.0, 3.0),  # nothing is done yet: as long again as it took so far
        (50, 0, 25.0, 7.5),
        (190, 0, 95.0, 1.0),
        (200, 0, 100.0, 1.0),
        (1, 0, 100.0, 10.0),
        (120, 100, 40.0, 10.0),  # what was done before counts for nothing
        (100, 100, 0.0, 1.0),
    ],
)
def test_a_tenth_of_what_is_still_to_come(done: int, first_done: int, seconds: float, expected: float) -> None:
    assert pause_after(counts(done), first_done, seconds) == expected
