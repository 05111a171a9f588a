"""Matrices of a cluster from the command line: started, watched, stopped, looked at and copied, over real HTTP.

The way in is replaced (tests/integration/people_server.py), and the cells run on this machine: what the command line
says and does is what it says and does on a cluster.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from people_server import PeopleServer, install_fake_cluster, people_server, run_cells
from recorded_trial import eventually

from grading.store import Store, matrices, placing, publishing, reading
from grading.store.owners import Owner, enrol

ROOT = Path(__file__).resolve().parents[2]
TABLE = [
    "condition             trials  contract  completed  wrong-order commits",
    "descriptive-control   8/8     8         6          0",
    "first-record-mutant   8/8     2         3          5",
]
ON = ("--on", "kubernetes")


class Laptop:
    """A folder of a person's own, and cellwise run in it."""

    def __init__(self, folder: Path, server: PeopleServer) -> None:
        self.folder = folder / "laptop"
        self.folder.mkdir()
        site = install_fake_cluster(folder)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CELLWISE")},
            "PYTHONPATH": f"{site}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "FAKE_CLUSTER_URL": server.url,
            "COLUMNS": "200",
        }

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "grading.command_line", *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cellwise(self, *arguments: str, status: int = 0, **environment: str) -> tuple[str, str]:
        """Standard output and standard error of a command that ends with that exit status."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=240)
        assert process.returncode == status, (process.returncode, out, err)
        assert "Traceback" not in err
        return out, err

    def json(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cellwise(*arguments, "--json", status=status)[0])
        return found


@pytest.fixture
def server(store_url: str) -> Iterator[PeopleServer]:
    with Store.open(store_url) as store, people_server(store) as running:
        yield running


@pytest.fixture
def one_server(tmp_path: Path) -> Iterator[PeopleServer]:
    with Store.open(tmp_path / "store.db") as store, people_server(store) as running:
        yield running


@pytest.fixture
def laptop(tmp_path: Path, request: pytest.FixtureRequest) -> Laptop:
    name = "server" if "server" in request.fixturenames else "one_server"
    return Laptop(tmp_path, request.getfixturevalue(name))


class Cells:
    """Runs the cells of placed matrices in the background, until the block ends."""

    def __init__(self, store: Store, folder: Path, *, slowly: float = 0.0) -> None:
        self._store, self._folder, self._slowly = store, folder, slowly
        self._stop = threading.Event()
        self.error: BaseException | None = None

    def __enter__(self) -> "Cells":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.2):
                run_cells(self._store, self._folder, slowly=self._slowly)
        except BaseException as error:
            self.error = error


def test_the_packaged_study_is_registered_watched_and_told_as_locally(
    server: PeopleServer, laptop: Laptop, tmp_path: Path
) -> None:
    with Cells(server.store, tmp_path):
        out, err = laptop.cellwise(
            "run", "order-resolution", *ON, "--phoenix", "off", "--trials-per-pod", "2", "--parallelism", "3"
        )
    assert out.splitlines() == TABLE
    assert "matrix 1 on kind-cellwise, namespace cellwise" in err
    placed = placing.placements(server.store)[0].placement
    assert (placed.trials_per_pod, placed.parallelism) == (2, 3)
    again = laptop.json("run", "order-resolution", *ON, "--phoenix", "off")
    assert (again["state"], again["status"], again["phoenix"]) == ("complete", 0, None)
    assert again["summary"]["complete"] is True
    assert again["cluster"]["context"] == "kind-cellwise"
    assert again["cluster"]["namespace"] == "cellwise"
    assert sorted(set(again) - {"cluster", "lost", "failed_cells"}) == [
        "advancing_seconds", "id", "manifest", "matrix", "phoenix", "state", "status", "summary", "version",
    ]  # fmt: skip
    status = laptop.json("status", *ON)
    assert (status["trials"]["graded"], status["cluster"]["on_cluster"]) == (16, True)
    assert laptop.cellwise("status", *ON)[0].splitlines()[2:5] == TABLE


def test_only_leaves_the_rest_and_resume_finishes_it(one_server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    with Cells(one_server.store, tmp_path):
        out, err = laptop.cellwise(
            "run", "order-resolution", *ON, "--phoenix", "off", "--only", "condition=first-record-mutant", status=4
        )
        assert out.splitlines()[2].split() == ["first-record-mutant", "8/8", "2", "3", "5", "0"]
        assert "8 trials are left" in err
        assert "cellwise resume order-resolution --on kubernetes" in err
        out, _ = laptop.cellwise("resume", *ON, "--phoenix", "off")
    assert out.splitlines() == TABLE


def test_ctrl_c_only_stops_watching(one_server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    watching = laptop.start("run", "order-resolution", *ON, "--phoenix", "off")
    assert eventually(lambda: len(reading.matrices(one_server.store)) == 1, 60)
    time.sleep(2)
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 4, err
    assert "the cluster goes on" in err
    assert "cellwise cancel order-resolution --on kubernetes ends it" in err
    assert out.splitlines()[1].split()[:2] == ["descriptive-control", "0/8"]
    assert reading.matrices(one_server.store)[0].state == "running"
    again = laptop.start("status", *ON, "--watch")
    with Cells(one_server.store, tmp_path):
        out, err = again.communicate(timeout=120)
    assert (again.returncode, out.splitlines()[2:5]) == (0, TABLE), err


def test_pausing_resuming_and_cancelling(server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    watching = laptop.start("run", "order-resolution", *ON, "--phoenix", "off")
    assert eventually(lambda: [one.state for one in reading.matrices(server.store)] == ["running"], 60)
    out, err = laptop.cellwise("pause", *ON)
    assert (out, "order-resolution (matrix 1) is paused" in err) == ("", True)
    assert laptop.json("pause", "1", *ON) == {
        "version": 1, "matrix": "order-resolution", "id": 1, "state": "paused", "changed": False,
    }  # fmt: skip
    # Who watches is told why nothing goes on.
    _, err = watching.communicate(timeout=60)
    assert watching.returncode == 4
    assert "16 trials are left, the matrix is paused" in err
    laptop.cellwise("cancel", "order-resolution", *ON)
    assert reading.matrices(server.store)[0].state == "cancelled"
    for command in (("resume", "order-resolution"), ("run", "order-resolution"), ("pause", "order-resolution")):
        assert "cancelled" in laptop.cellwise(*command, *ON, status=2)[1]
    assert run_cells(server.store, tmp_path) == []


def test_an_intake_that_restarts_is_waited_for(one_server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    watching = laptop.start("run", "order-resolution", *ON, "--phoenix", "off")
    assert eventually(lambda: [one.state for one in reading.matrices(one_server.store)] == ["running"], 60)
    one_server.stop()
    run_cells(one_server.store, tmp_path)
    time.sleep(3)
    assert watching.poll() is None
    one_server.start()
    out, err = watching.communicate(timeout=120)
    assert (watching.returncode, out.splitlines()) == (0, TABLE), err


def test_where_phoenix_is_and_what_is_not_published(one_server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    store = one_server.store
    with Cells(store, tmp_path):
        laptop.cellwise("run", "order-resolution", *ON, "--phoenix", "off")
    owner = Owner.this_process()
    enrol(store, owner)
    held = publishing.acquire_publication(store, 1, "http://phoenix:6006", owner.id, lease_seconds=60)
    assert held is not None
    publishing.release_publication(
        store, held, published=True, detail="http://cellwise-phoenix.cellwise.svc:6006/datasets/1/compare"
    )
    out, err = laptop.cellwise("run", "order-resolution", *ON)
    assert out.splitlines() == TABLE
    assert "Compare in Phoenix: http://cellwise-phoenix.cellwise.svc:6006/datasets/1/compare" in err
    assert (
        "kubectl --context kind-cellwise --namespace cellwise port-forward service/cellwise-phoenix 6006:6006, "
        "then http://localhost:6006/datasets/1/compare"
    ) in err


def test_a_cluster_without_the_right_or_the_same_version(one_server: PeopleServer, laptop: Laptop) -> None:
    _, err = laptop.cellwise("run", "order-resolution", *ON, status=2, FAKE_CLUSTER_TOKEN="viewer")
    assert "you may not do that: viewer may not create matrices.cellwise.dev" in err
    assert "does not accept this token" in laptop.cellwise("status", *ON, status=2, FAKE_CLUSTER_TOKEN="none")[1]
    assert "has no matrix yet" in laptop.cellwise("status", *ON, status=2)[1]
    assert "nothing" in laptop.cellwise("status", "nothing", *ON, status=2)[1]
    assert "nothing called 'mars' runs matrices: kubernetes" in laptop.cellwise("status", "--on", "mars", status=2)[1]
    assert "add --on kubernetes" in laptop.cellwise("status", "--context", "c", status=2)[1]
    assert "add --on kubernetes" in laptop.cellwise("run", "order-resolution", "--queue", "q", status=2)[1]
    assert "leave it away" in laptop.cellwise("run", "order-resolution", *ON, "--phoenix", "http://p", status=2)[1]
    assert reading.matrices(one_server.store) == []
    assert list(laptop.folder.iterdir()) == []


def test_an_agent_of_ones_own_needs_an_image(one_server: PeopleServer, laptop: Laptop) -> None:
    laptop.cellwise("init", "refunds")
    _, err = laptop.cellwise("run", "refunds/matrix.yaml", *ON, status=2)
    assert "runs in an image alone" in err
    path = laptop.folder / "refunds" / "matrix.yaml"
    image = "registry.example/refunds@sha256:" + "c" * 64
    own = "    agent: agent:answer\n"
    assert own in path.read_text()
    path.write_text(path.read_text().replace(own, f"{own}    image: {image}\n    provider: openai\n"))
    _, err = laptop.cellwise("run", "refunds/matrix.yaml", "--phoenix", "off", status=2)
    assert "have images, whose agents run on a cluster alone" in err
    watching = laptop.start("run", "refunds/matrix.yaml", *ON)
    assert eventually(lambda: len(placing.placements(one_server.store)) == 1, 60)
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    placed = placing.placements(one_server.store)[0].placement
    assert set(placed.images.values()) == {image}
    assert set(placed.providers.values()) == {"openai"}
    assert placed.images.keys() == placed.providers.keys()


def test_logs_are_those_of_the_cells_jobs(one_server: PeopleServer, laptop: Laptop) -> None:
    from grading.store import launching

    watching = laptop.start("run", "order-resolution", *ON)
    assert eventually(lambda: [one.state for one in reading.matrices(one_server.store)] == ["running"], 60)
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    cell = reading.cells(one_server.store, 1)[0]
    name = f"{cell.condition}/{cell.case_id}"
    assert "no Job was made" in laptop.cellwise("logs", name)[1]
    launched = launching.plan(one_server.store, 1, cell.id)
    assert launched is not None
    launching.waiting(one_server.store, launched.id, "Unschedulable: 0/2 nodes are available")
    for word in (name, str(cell.id)):
        out, err = laptop.cellwise("logs", word, "--tail", "5")
        assert out == f"cellwise-cells {launched.id} follow=False tail=5: began\n"
        assert f"Job {launched.job}: planned, Unschedulable" in err
    assert "has no cell" in laptop.cellwise("logs", "none/none", status=2)[1]
    status = laptop.cellwise("status", *ON)[0]
    assert f"waiting:\n  {name.replace('/', ' / ')}: Unschedulable: 0/2 nodes are available\n" in status


def _hashes(store: Store, matrix_id: int) -> dict[tuple[str, str, int], tuple[str | None, str | None]]:
    return {
        (one.condition, one.case_id, one.repetition): (one.content_hash, one.ledger_hash)
        for one in reading.trials(store, matrix_id)
    }


def test_a_pulled_matrix_is_the_clusters_and_compares_the_same(
    server: PeopleServer, laptop: Laptop, tmp_path: Path
) -> None:
    with Cells(server.store, tmp_path):
        laptop.cellwise("run", "order-resolution", *ON, "--phoenix", "off")
    out, _ = laptop.cellwise("pull")
    assert out.splitlines() == TABLE
    again = laptop.json("pull", "order-resolution", *ON)
    assert (again["added"], again["state"], again["refused"], again["graded_otherwise"]) == (0, "complete", [], [])
    with Store.open(laptop.folder / ".cellwise" / "cellwise.db", create=False) as local:
        assert _hashes(local, 1) == _hashes(server.store, 1)
        assert reading.manifest(local, 1) == reading.manifest(server.store, 1)
        for trial, there in zip(reading.trials(local, 1), reading.trials(server.store, 1), strict=True):
            assert trial.trial_key == there.trial_key
            ours, theirs = reading.attempts(local, trial.id), reading.attempts(server.store, there.id)
            assert [(one.number, one.state, one.owner, one.leased_at, one.ended) for one in ours] == [
                (one.number, one.state, one.owner, one.leased_at, one.ended) for one in theirs
            ]
    here = laptop.cellwise("compare", "order-resolution", "--json")[0]
    where = server.store.engine.url.render_as_string(hide_password=False)
    there = laptop.cellwise("compare", "order-resolution", "--json", "--store", where)[0]
    assert json.loads(here) == json.loads(there)
    laptop.cellwise("export", "order-resolution", "packet.json")
    laptop.cellwise("replay", "packet.json")
    laptop.cellwise("report", "order-resolution")


def test_a_running_matrix_is_pulled_in_pieces(one_server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    with Cells(one_server.store, tmp_path):
        laptop.cellwise(
            "run", "order-resolution", *ON, "--phoenix", "off", "--only", "condition=first-record-mutant", status=4
        )
    first = laptop.json("pull", status=4)
    assert (first["state"], first["state_there"], first["trials"]) == ("paused", "running", 16)
    assert first["added"] > 0
    with Cells(one_server.store, tmp_path):
        laptop.cellwise("resume", *ON, "--phoenix", "off")
    second = laptop.json("pull")
    assert (second["state"], second["summary"]["complete"]) == ("complete", True)
    with Store.open(laptop.folder / ".cellwise" / "cellwise.db", create=False) as local:
        assert _hashes(local, 1) == _hashes(one_server.store, 1)


def test_reused_trials_bring_the_matrix_that_ran_them(one_server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    study = ROOT / "grading" / "studies" / "order-resolution"
    for name in ("matrix.yaml", "cases.yaml"):
        (laptop.folder / name).write_text((study / name).read_text())
    with Cells(one_server.store, tmp_path):
        laptop.cellwise("run", "matrix.yaml", *ON, "--phoenix", "off")
        text = (laptop.folder / "matrix.yaml").read_text()
        (laptop.folder / "matrix.yaml").write_text(text.replace("repetitions: 2", "repetitions: 4"))
        _, err = laptop.cellwise("run", "matrix.yaml", *ON, "--phoenix", "off", "--reuse", "order-resolution")
    assert "16 finished trials taken over" in err
    pulled = laptop.json("pull", "2")
    assert pulled["origins"] == [reading.matrices(one_server.store)[0].manifest_hash]
    with Store.open(laptop.folder / ".cellwise" / "cellwise.db", create=False) as local:
        by_hash = {one.manifest_hash: one for one in reading.matrices(local)}
        for there in reading.matrices(one_server.store):
            here = by_hash[there.manifest_hash]
            assert here.state == "complete"
            assert _hashes(local, here.id) == _hashes(one_server.store, there.id)


def test_a_store_that_ran_the_same_itself_is_not_touched(
    one_server: PeopleServer, laptop: Laptop, tmp_path: Path
) -> None:
    study = ROOT / "grading" / "studies" / "order-resolution"
    (laptop.folder / "cases.yaml").write_text((study / "cases.yaml").read_text())
    text = (study / "matrix.yaml").read_text().replace("order: strict", "order: parallel")
    (laptop.folder / "matrix.yaml").write_text(text)
    laptop.cellwise("run", "matrix.yaml", "--phoenix", "off")
    with Cells(one_server.store, tmp_path):
        laptop.cellwise("run", "matrix.yaml", *ON, "--phoenix", "off")
    assert "--store names another store" in laptop.cellwise("pull", status=2)[1]
    with Store.open(laptop.folder / ".cellwise" / "cellwise.db", create=False) as local:
        ours = _hashes(local, 1)
        assert reading.matrices(local)[0].state == "complete"
    assert [one[0] for one in ours.values()] == [one[0] for one in _hashes(one_server.store, 1).values()]
    assert [one[1] for one in ours.values()] != [one[1] for one in _hashes(one_server.store, 1).values()]
    laptop.cellwise("pull", "--store", "other.db")


def test_a_forged_ledger_is_not_taken(one_server: PeopleServer, laptop: Laptop, tmp_path: Path) -> None:
    """The cluster's store itself was tampered with: hashes that fit do not help, the calls are replayed here."""
    with Cells(one_server.store, tmp_path):
        laptop.cellwise("run", "order-resolution", *ON, "--phoenix", "off")
    from simulator.sealing import seal

    trial = next(
        one for one in reading.trials(one_server.store, 1, ledgers=True) if one.condition == "first-record-mutant"
    )
    assert trial.ledger is not None
    ledger = json.loads(trial.ledger)
    ledger["content"]["objects"][0]["order"]["refund_transaction_count"] = 7
    document = seal(ledger["content"], ledger["envelope"])
    sealed = json.loads(document)
    with one_server.store.transaction("deliver") as connection:
        connection.execute(
            sa.text("UPDATE ledger SET document = :d, content_hash = :c, ledger_hash = :l WHERE attempt_id = :a"),
            {"d": document, "c": sealed["content_hash"], "l": sealed["ledger_hash"], "a": trial.evidence_attempt_id},
        )
    out, err = laptop.cellwise("pull", status=1)
    assert f"first-record-mutant / {trial.case_id} / {trial.repetition}, attempt 1: content.objects" in err
    assert out.splitlines()[2].split()[:2] == ["first-record-mutant", "7/8"]
    for _ in range(2):
        with Store.open(laptop.folder / ".cellwise" / "cellwise.db", create=False) as local:
            assert [one.kind for one in reading.incidents(local, 1)] == ["replay_mismatch"]
            assert reading.matrices(local)[0].state == "paused"
        laptop.cellwise("pull", status=1)


def test_pausing_and_cancelling_a_local_matrix(one_server: PeopleServer, laptop: Laptop) -> None:
    laptop.cellwise("run", "order-resolution", "--phoenix", "off", "--only", "condition=first-record-mutant", status=4)
    assert "is paused" in laptop.cellwise("pause")[1]
    assert "was paused already" in laptop.cellwise("pause", "order-resolution")[1]
    assert laptop.json("status")["state"] == "paused"
    assert laptop.cellwise("resume", "--phoenix", "off")[0].splitlines() == TABLE
    assert "cannot pause it" in laptop.cellwise("pause", status=2)[1]
    laptop.cellwise("run", "order-resolution", "--phoenix", "off", "--store", "b.db", "--only",
                    "condition=first-record-mutant", status=4)  # fmt: skip
    laptop.cellwise("cancel", "--store", "b.db")
    for command in ("run", "resume"):
        _, err = laptop.cellwise(command, "order-resolution", "--phoenix", "off", "--store", "b.db", status=2)
        assert "was cancelled and never runs again" in err
    with Store.open(laptop.folder / "b.db", create=False) as local:
        assert reading.matrices(local)[0].state == "cancelled"
        assert reading.counts(local, 1)["open"] == 8
        with pytest.raises(Exception, match="cancelled"):
            matrices.resume(local, 1)
