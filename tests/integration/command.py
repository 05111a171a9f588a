"""The command line as a process of its own, as a person runs it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def cellwise(*arguments: str, store: str, cwd: Path, check: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command on a store; fails with its output where the exit status is another one than ``check``."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CELLWISE_STORE": store}
    done = subprocess.run(
        [sys.executable, "-m", "grading.command_line", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if check is not None and done.returncode != check:
        raise AssertionError(f"cellwise {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
