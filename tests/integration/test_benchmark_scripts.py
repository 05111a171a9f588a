"""The benchmark scripts run, on a small scale: figures are measured seldom, and code changes often."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("script", "options", "told"),
    [
        ("replay.py", ["16"], "16 trials, 2 processes: "),
        ("comparing.py", ["--cases", "4", "--repetitions", "2", "--runs", "1", "--judge"], '"what": "report"'),
        ("trials.py", ["--repetitions", "2", "--runs", "1", "--without-peer"], "reused agents: median"),
        ("pod_start.py", ["1"], ""),
    ],
)
def test_a_benchmark_runs(script: str, options: list[str], told: str) -> None:
    command = [sys.executable, str(ROOT / "tests/benchmarks" / script), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout
    assert done.stdout.strip()
