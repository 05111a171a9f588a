"""Studies and the command line as a person uses it, each command in a process of its own."""

import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import sqlalchemy as sa
from recorded_trial import eventually, marked
from store_session import violations

from grading import command_line
from grading.store import Store, reading

Kill = tuple[str, int, str]

TABLE = """\
condition             trials  contract  completed  wrong-order commits
descriptive-control   8/8     8         6          0
first-record-mutant   8/8     2         3          5
"""

ROOT = Path(__file__).resolve().parents[2]


class Command:
    """The command line in a process of its own, forked from this one, which has all of it imported already.

    Args:
        killed: ``(transaction, nth, "before" or "after")``: where it kills itself with SIGKILL.
    """

    def __init__(
        self, folder: Path, environment: dict[str, str], arguments: Sequence[str], killed: Kill | None = None
    ) -> None:
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when it was read
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._become(folder, environment, arguments, killed)

    def _become(self, folder: Path, environment: dict[str, str], arguments: Sequence[str], killed: Kill | None) -> None:
        code = 1
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(self._out.fileno(), 1)
            os.dup2(self._err.fileno(), 2)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            warnings.resetwarnings()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = [str(ROOT), *(path for path in sys.path if path != str(ROOT))]
            sys.argv = ["cellwise", *arguments]
            if killed is not None:
                kill_at(*killed)
            command_line.main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        if not eventually(lambda: self.poll() is not None, timeout):
            self.send_signal(signal.SIGKILL)
            raise TimeoutError("it did not end")
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]


def kill_at(name: str, nth: int, moment: str) -> None:
    """Has this process kill itself before or after the nth commit of a transaction. Each commit is noted in a file."""
    real = Store.transaction
    seen: Counter[str] = Counter()

    @contextmanager
    def transaction(self: Store, doing: Any) -> Iterator[Any]:
        seen[doing] += 1
        now = doing == name and seen[doing] == nth
        with real(self, doing) as connection:
            yield connection
            if now and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        if now:
            os.kill(os.getpid(), signal.SIGKILL)
        with Path("transactions").open("a") as file:
            file.write(doing + "\n")

    Store.transaction = transaction  # type: ignore[method-assign]


class Bench:
    """A folder with a store, and cellwise run in it. Every process started in it is found by its mark."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CELLWISE")},
            "PYTHONPATH": str(ROOT),
            "CELLWISE_STORE": store,
            "COLUMNS": "200",
            "BENCH": str(folder),
        }

    def start(self, *arguments: str, killed: Kill | None = None) -> Command:
        return Command(self.folder, self.environment, arguments, killed)

    def cellwise(self, *arguments: str, status: int | None = 0) -> tuple[str, str]:
        """What a command prints on standard output and standard error; its exit status is checked."""
        process = self.start(*arguments)
        out, err = process.communicate()
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

    def discarded_after_acting(self) -> dict[str, int]:
        """By condition: attempts that were replaced although they had asked for an approval or a refund."""
        asked = (
            "SELECT t.condition, count(*) FROM attempt a JOIN trial t ON t.id = a.trial_id"
            " WHERE a.after_consequential_call AND a.state IN ('lost', 'fenced') AND a.id <> t.evidence_attempt_id"
            " GROUP BY t.condition"
        )
        with self.opened() as store, store.reading() as connection:
            return {row[0]: row[1] for row in connection.execute(sa.text(asked))}

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

    def interrupt_when(self, process: Command, happened: Callable[[], Any], times: int = 1) -> None:
        assert eventually(happened, 60)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)


def rows(table: str) -> dict[str, list[str]]:
    """The table's cells by condition."""
    return {line[0]: line[1:] for line in (re.split(r"\s{2,}", line) for line in table.splitlines()[1:])}
