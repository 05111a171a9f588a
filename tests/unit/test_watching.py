"""What a command on a cluster loads before it asks anything, and how often one that watches a matrix asks again."""

import subprocess
import sys

import pytest

from grading.commands.cluster import Look, pause_after


@pytest.mark.parametrize(
    ("done", "seconds", "expected"),
    [
        ((0, 0, 0), (0.0, 0.0, 0.0), 1.0),
        ((0, 0, 0), (0.0, 27.0, 30.0), 3.0),  # nothing is done yet: as long again as it took so far
        ((0, 45, 50), (0.0, 22.5, 25.0), 7.5),
        ((0, 189, 190), (0.0, 94.5, 95.0), 0.5),
        ((0, 197, 198), (0.0, 98.5, 99.0), 0.2),
        ((0, 199, 200), (0.0, 99.5, 100.0), 0.2),
        ((0, 0, 1), (0.0, 90.0, 100.0), 10.0),
        ((100, 160, 180), (0.0, 30.0, 40.0), 1.0),  # what was done before counts for nothing
        ((100, 100, 100), (0.0, 0.0, 0.0), 1.0),
        ((100, 110, 110), (0.0, 20.0, 30.0), 10.0),  # it stands still: as fast as before on the whole
        ((0, 10, 110), (0.0, 20.0, 30.0), 0.9),  # it has become faster
    ],
)
def test_a_tenth_of_what_is_still_to_come(
    done: tuple[int, int, int], seconds: tuple[float, float, float], expected: float
) -> None:
    first, before, now = map(Look, seconds, done)
    assert pause_after(200 - now.done, first, before, now) == pytest.approx(expected)


def test_a_command_on_a_cluster_loads_no_store() -> None:
    commands = ", ".join(f"grading.commands.{name}" for name in ("cluster_run", "status", "stop", "logs"))
    code = (
        f"import grading.command_line, {commands}, sys; print([m for m in ('sqlalchemy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
