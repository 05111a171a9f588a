"""How fast the store carries trials, reported and not judged: machines differ. What memory it takes, judged."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from store_session import GRADERS, enrolled, passed, running_matrix

from grading.store import Store, reading
from grading.store.delivering import Delivery, deliver
from grading.store.grades import add_grades
from grading.store.leasing import claim, running

TRIALS, BATCH, LEDGER = 3000, 100, b"x" * 4096


def test_batches_of_a_hundred(
    store_url: str, record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(store_url) as store:
        matrix_id = running_matrix(store, cases=4, repetitions=TRIALS // 8)
        owner = enrolled(store)
        wall, cpu = time.perf_counter(), time.process_time()
        while claimed := claim(store, owner, matrix_id, limit=BATCH, lease_seconds=60):
            running(store, [one.attempt_id for one in claimed])
            deliveries = [
                Delivery(one.attempt_id, one.secret, f"c{one.attempt_id}", f"l{one.attempt_id}", LEDGER, 1, 2)
                for one in claimed
            ]
            assert set(deliver(store, deliveries)) == {"accepted"}
            add_grades(store, [passed(one.attempt_id) for one in claimed], GRADERS)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert reading.counts(store, matrix_id)["graded"] == TRIALS
        database = store.engine.dialect.name
    record_property("trials_a_second", round(TRIALS / wall))
    with capsys.disabled():
        print(f"\n{database}: {TRIALS / wall:.0f} trials a second, {cpu / TRIALS * 1e6:.0f} us of processor each")


_REGISTER = """
import resource, sys
from grading.store import Store, reading
from store_session import register_matrix
with Store.open(sys.argv[1]) as store:
    register_matrix(store, "warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from grading.store.registering import *
    identities = ((f"case-{n % 4}", "c", n // 4, n) for n in range(100_000))
    matrix_id = register(
        store, manifest_hash="big", name="big", manifest=b"", cells=[NewCell(f"case-{n}", "c", n, 0) for n in range(4)],
        assignments=(NewAssignment(f"h{n}", b"x" * 1000) for n in range(20_000)),
        trials=(NewTrial(c, k, i, s, f"key {s}", f"h{s % 20_000}") for c, k, i, s in identities),
    ).matrix_id
    assert sum(1 for _ in reading.trials(store, matrix_id, ledgers=True, grades=True)) == 100_000
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_hundred_thousand_trials_are_registered_and_read_in_little_memory(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _REGISTER, str(tmp_path / "store.db")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])},
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 40 * 1024, f"{ran.stdout} KiB more than a small one"
