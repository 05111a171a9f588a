"""How much processor time a pod's whole life takes beside a bare interpreter's: one trial of the control, an intake in
another process' thread. Run from the top: ``python tests/benchmarks/pod_start.py [RUNS]``."""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "integration"), str(Path(__file__).resolve().parents[2])]

from pod_bench import Pod, assignment, intake_with  # noqa: E402


def used() -> float:
    """Seconds of processor time of this process's ended children and theirs."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    bare, pod = [], []
    for _ in range(runs):
        before = used()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare.append(used() - before)
        with (
            tempfile.TemporaryDirectory() as folder,
            intake_with(assignment("descriptive-control", reuse=True)) as intake,
        ):
            before = used()
            status = Pod(Path(folder), intake, {"PYTHONDONTWRITEBYTECODE": None}).ended()
            pod.append(used() - before)
            assert (status, list(intake.ledgers)) == (0, [1])
    print(f"bare {statistics.median(bare):.3f} s, a pod {statistics.median(pod):.3f} s of processor time")


if __name__ == "__main__":
    main()
