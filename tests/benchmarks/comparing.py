"""How long compare and report take on a large matrix.

    python tests/benchmarks/comparing.py [--cases 500] [--repetitions 50] [--judge] [--runs 3] [--keep FOLDER]

It runs the matrix first, through the command line: the packaged study's four cases under further ids, two conditions.
Nothing here asserts a time.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "grading/studies"
JUDGE = """judge: literal
calibration: sha256:48d05820f81b48787fdedff41fb152c60231b24ff3d82112831e9a9b4003f752
registry: registry.yaml
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="keeps the study and its store here; used again where it is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_study(folder, arguments.cases, arguments.repetitions, judge=arguments.judge)
        # Again where it has run already, which then takes no time.
        cellwise(folder, "run", str(folder / "matrix.yaml"), "--phoenix", "off", statuses=(0,))
        for command in (["compare", "large"], ["report", "large", "-o", str(folder / "report.html")]):
            measured = []
            for _ in range(arguments.runs):
                (folder / "report.html").unlink(missing_ok=True)
                measured.append(cellwise(folder, *command, statuses=(0, 1)))
            told = {
                "what": command[0],
                "trials": arguments.cases * 2 * arguments.repetitions,
                "judge": arguments.judge,
                "wall_seconds": [round(wall, 2) for wall, _ in measured],
                "processor_seconds": round(statistics.median(used for _, used in measured), 2),
            }
            print(json.dumps(told), flush=True)


def write_study(folder: Path, cases: int, repetitions: int, *, judge: bool) -> None:
    yaml = YAML(typ="safe")
    packaged = yaml.load(STUDIES / "order-resolution/cases.yaml")
    packaged["cases"] = [
        {**packaged["cases"][number % 4], "id": f"{packaged['cases'][number % 4]['id']}-{number}"}
        for number in range(cases)
    ]
    with (folder / "cases.yaml").open("w") as file:
        yaml.dump(packaged, file)
    shutil.copy(STUDIES / "native-semantic/registry.yaml", folder)
    shutil.copy(STUDIES / "native-semantic/calibration.jsonl", folder)
    (folder / "matrix.yaml").write_text(
        "version: 1\nname: large\ncases: cases.yaml\nbaseline: control\nconditions:\n"
        "  - {name: control, agent: descriptive-control}\n  - {name: candidate, agent: first-record-mutant}\n"
        f"repetitions: {repetitions}\nmeasurement_profile:\n  synthetic: {{latency_ms: 250, cost: 0.08}}\n"
        + (JUDGE if judge else "")
    )


def cellwise(folder: Path, *command: str, statuses: tuple[int, ...]) -> tuple[float, float]:
    """Seconds that a command takes, by the clock and of the processor."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    store = ["--store", str(folder / "store.db")]
    done = subprocess.run(
        [sys.executable, "-m", "grading.command_line", *command, *store], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    assert done.returncode in statuses, done.returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
