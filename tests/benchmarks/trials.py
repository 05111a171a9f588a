"""How many trials a second one machine runs, keeps, validates and grades; and a peer beside it in the same run.

    ./dev bench [--repetitions 250] [--runs 3] [--without-peer]
    ./dev bench --memory --repetitions 1250

4 cases x 2 conditions x 250 repetitions with the reused deterministic agents, through the command line, on SQLite with
synchronous=FULL: a trial is counted once its ledger and grade are on disk. The peer is inspect_ai, running the same
scripted agents against the same world with the same grader in its solver and scorer (tests/benchmarks/peer.py).
Nothing here asserts a time.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "grading/studies/order-resolution"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Without what would have each process compile its modules anew."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=250)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--memory", action="store_true", help="measure memory in place of rates, in one run")
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(ours(arguments.repetitions, arguments.parallelism, reuse=True, memory=True)))
        return
    rates: dict[str, list[float]] = {}
    for _ in range(arguments.runs):
        found = [ours(arguments.repetitions, arguments.parallelism, reuse=True)]
        found.append(ours(max(2, arguments.repetitions // 10), arguments.parallelism, reuse=False))
        if not arguments.without_peer:
            found.append(peer(arguments.repetitions))
        for one in found:
            print(json.dumps(one), flush=True)
            rates.setdefault(str(one["what"]), []).append(float(one["trials_per_second"]))
    for what, values in rates.items():
        print(f"{what}: median {statistics.median(values):.0f} trials/s of {[round(value) for value in values]}")
    if "inspect_ai" in rates:
        ratio = statistics.median(rates["reused agents"]) / statistics.median(rates["inspect_ai"])
        print(f"ratio of the medians: {ratio:.1f}")


def ours(repetitions: int, parallelism: int, *, reuse: bool, memory: bool = False) -> dict[str, object]:
    """``memory``: whether to look at it, which takes the processors time."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder)
        matrix = (STUDY / "matrix.yaml").read_text().replace("order: strict", "order: parallel")
        matrix = re.sub(r"repetitions: \d+", f"repetitions: {repetitions}", matrix)
        if not reuse:
            matrix = re.sub(r"(    agent: .*)", r"\1\n    reuse: false", matrix)
        (study / "matrix.yaml").write_text(matrix)
        (study / "cases.yaml").write_text((STUDY / "cases.yaml").read_text())
        command = [sys.executable, "-m", "grading.command_line", "run", str(study / "matrix.yaml"), "--phoenix", "off"]
        command += ["--store", str(study / "store/cellwise.db"), "--parallelism", str(parallelism), "--json"]
        used = processor_seconds()
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=ENVIRONMENT)
        watched = Memory(process.pid) if memory else None
        assert process.stdout is not None
        result = json.loads(process.stdout.read())
        process.wait()
        seconds = time.monotonic() - started
        trials = sum(one["graded"] for one in result["summary"]["conditions"])
        assert trials == 8 * repetitions, result
        advancing = result["advancing_seconds"]
        return {
            "what": "reused agents" if reuse else "a fresh process for each trial",
            "trials": trials,
            "trials_per_second": round(trials / advancing, 1),
            "advancing_seconds": round(advancing, 2),
            "processor_ms_per_trial": round((processor_seconds() - used) / trials * 1000, 2),
            "whole_command_seconds": round(seconds, 2),
            **({"peak_memory_mb": round(watched.peak() / 1e6)} if watched else {}),
        }


def peer(repetitions: int) -> dict[str, object]:
    """A process for each condition, side by side: one alone leaves the second processor idle."""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    command = [str(ROOT / ".venv-benchmarks/bin/python"), str(ROOT / "tests/benchmarks/peer.py"), str(repetitions)]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        running = [
            subprocess.Popen([*command, condition], cwd=folder, env=environment, stdout=subprocess.PIPE)
            for folder, condition in ((one, "descriptive-control"), (other, "first-record-mutant"))
        ]
        found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    trials = sum(each["trials"] for each in found)
    return {
        "what": "inspect_ai",
        "trials": trials,
        "trials_per_second": round(trials / max(each["seconds"] for each in found), 1),
        "processor_ms_per_trial": statistics.mean(each["processor_ms_per_trial"] for each in found),
    }


def processor_seconds() -> float:
    """Of every process that has ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Memory:
    """The highest sum of what a process and all below it hold, shared pages counted once in proportion (PSS)."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._highest = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            held = 0
            try:
                for one in [self._process, *self._process.children(recursive=True)]:
                    try:
                        held += pss(one.pid)
                    except (OSError, StopIteration):
                        continue
            except psutil.Error:
                return
            self._highest = max(self._highest, held)

    def peak(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._highest


def pss(pid: int) -> int:
    """Bytes. The kernel's own sum: the list that psutil adds up takes it many times as long."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
