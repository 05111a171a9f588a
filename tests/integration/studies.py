"""Studies and the command line as a person uses it, each command in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import sqlalchemy as sa
from recorded_trial import eventually, marked
from store_session import violations

from grading.store import Store, reading

TABLE = """\
condition             trials  contract  completed  wrong-order commits
descriptive-control   8/8     8         6          0
first-record-mutant   8/8     2         3          5
"""

COMMAND = [sys.executable, "-m", "grading.command_line"]
ROOT = Path(__file__).resolve().parents[2]


class Bench:
    """A folder with a store, and cellwise run in it. Every process started in it is found by its mark."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CELLWISE")},
            "PYTHONPATH": str(ROOT),
            "CELLWISE_STORE": store,
            "BENCH": str(folder),
        }

    def start(self, *arguments: str, script: Path | None = None) -> "subprocess.Popen[str]":
        command = COMMAND if script is None else [sys.executable, str(script)]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cellwise(self, *arguments: str, script: Path | None = None, status: int | None = 0) -> tuple[str, str]:
        """What a command prints on standard output and standard error; its exit status is checked."""
        process = self.start(*arguments, script=script)
        out, err = process.communicate(timeout=120)
        assert status is None or process.returncode == status, (process.returncode, out, err)
        return out, err

    def run(self, *arguments: str, status: int | None = 0) -> tuple[str, str]:
        return self.cellwise("run", *arguments, "--phoenix", "off", status=status)

    def resume(self, *arguments: str, status: int | None = 0) -> tuple[str, str]:
        return self.cellwise("resume", *arguments, "--phoenix", "off", status=status)

    def left(self) -> set[int]:
        """Living processes that belong to this bench."""
        return marked(f"BENCH={self.folder}") | marked(str(self.folder / ".cellwise"))

    def all_gone(self) -> bool:
        return bool(eventually(lambda: not self.left()))

    def opened(self) -> Store:
        return Store.open(self.store, create=False)

    def once(self) -> None:
        """Every trial of every matrix is graded by one ledger, and nothing in the store contradicts itself."""
        with self.opened() as store:
            assert violations(store) == []
            for matrix in reading.matrices(store):
                assert matrix.state == "complete"
                counts = reading.counts(store, matrix.id)
                assert counts["graded"] == sum(counts.values())
            with store.reading() as connection:
                doubled = sa.text(
                    "SELECT count(*) FROM (SELECT trial_id FROM attempt WHERE state = 'delivered'"
                    " GROUP BY trial_id HAVING count(*) > 1) AS twice"
                )
                assert connection.execute(doubled).scalar_one() == 0

    def delivered(self) -> int:
        with self.opened() as store, store.reading() as connection:
            counted: int = connection.execute(
                sa.text("SELECT count(*) FROM trial WHERE state IN ('delivered', 'graded')")
            ).scalar_one()
            return counted

    def study(self, conditions: str, *, repetitions: int = 1, more: str = "", agent: str = "", cases: int = 4) -> str:
        """Writes a matrix file with the packaged cases; its path."""
        packaged = ROOT / "grading" / "studies" / "order-resolution" / "cases.yaml"
        text = packaged.read_text()
        if cases < 4:
            text = "\n  - id: ".join(text.split("\n  - id: ")[: cases + 1]) + "\n"
        (self.folder / "cases.yaml").write_text(text)
        (self.folder / "own.py").write_text(dedent(agent))
        head = f"version: 1\nname: broken\ncases: cases.yaml\nrepetitions: {repetitions}\n"
        body = "conditions:\n" + indent(dedent(conditions).strip("\n"), "  ") + "\n"
        (self.folder / "matrix.yaml").write_text(head + dedent(more) + body)
        return "matrix.yaml"

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cellwise("status", "--json")[0])
        return found

    def interrupt_when(self, process: "subprocess.Popen[str]", happened: Callable[[], Any], times: int = 1) -> None:
        assert eventually(happened, 60)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)


def rows(table: str) -> dict[str, list[str]]:
    """The table's cells by condition."""
    return {line[0]: line[1:] for line in (re.split(r"\s{2,}", line) for line in table.splitlines()[1:])}
