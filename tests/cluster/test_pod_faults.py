"""What becomes of a trial whose pod comes to harm: each is in the store once, with its attempts and their reasons."""

import json
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import CELLS, NAMESPACE, Answer, Cellwise, Installed
from matrices import CONTROL, REFUNDS_THEN_WAITS, SLOW, study


class Sweep:
    """A matrix that runs on the cluster while a test does something to it."""

    def __init__(self, cellwise: Cellwise, name: str, conditions: str, **options: Any) -> None:
        self.name = name
        self._cellwise = cellwise
        self._cluster = cellwise.cluster
        self.path = study(cellwise.folder, name, conditions, **options)
        self.process = cellwise.start(
            "run", str(self.path), "--on", "kubernetes", "--namespace", NAMESPACE, "--phoenix", "off", "--json"
        )

    def pods(self) -> list[dict[str, Any]]:
        found = self._cluster.get("pods", "-l", "app.kubernetes.io/component=cell")
        return [pod for pod in found if pod["metadata"]["annotations"]["cellwise.dev/matrix"] == self.name]

    def running_pod(self) -> dict[str, Any]:
        """One whose recorder has begun its trial."""

        def begun() -> dict[str, Any] | None:
            running = [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]
            holders = self._holders() if running else set()
            return next((pod for pod in running if pod["metadata"]["uid"] in holders), None)

        found: dict[str, Any] = self._cluster.until("a pod holds a trial", begun, seconds=90)
        return found

    def _holders(self) -> set[str]:
        # All in one question: a command in a pod takes its time, and short trials are over after a few.
        installed = Installed(self._cluster, None)  # type: ignore[arg-type]
        rows = installed.sql("SELECT owner FROM attempt WHERE owner IS NOT NULL AND state = 'running'")
        return {row[0] for row in rows}

    def exit_codes(self) -> list[int]:
        """Of the recorders of all its pods that are still to be seen."""

        def ended() -> list[int] | None:
            states = [one["state"] for pod in self.pods() for one in pod["status"].get("containerStatuses", [])]
            done = [state["terminated"]["exitCode"] for state in states if "terminated" in state]
            return done if len(done) == len(states) else None

        found: list[int] = self._cluster.until("its pods have ended", ended, seconds=60)
        return found

    def end(self, *, seconds: float = 240) -> Answer:
        out, err = self.process.communicate(timeout=seconds)
        return Answer(self.process.returncode, out, err)

    def attempts(self, installed: Installed) -> list[tuple[str, str, str]]:
        """Case, state and reason of every attempt, in order."""
        rows = installed.sql(
            "SELECT t.case_id, a.state, coalesce(a.reason, '') FROM attempt a JOIN trial t ON t.id = a.trial_id"
            f" JOIN matrix m ON m.id = t.matrix_id WHERE m.name = '{self.name}' ORDER BY t.sequence, a.number"
        )
        return [(row[0], row[1], row[2]) for row in rows]

    def trials(self, installed: Installed) -> list[str]:
        rows = installed.sql(
            "SELECT t.state FROM trial t JOIN matrix m ON m.id = t.matrix_id"
            f" WHERE m.name = '{self.name}' ORDER BY t.sequence"
        )
        return [row[0] for row in rows]


def lost(attempts: list[tuple[str, str, str]]) -> list[str]:
    return [reason for _, state, reason in attempts if state == "lost"]


def test_a_pod_that_a_person_deletes_is_an_attempt(cellwise: Cellwise, installed: Installed, matrix_name: str) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 8, cases=2)
    pod = sweep.running_pod()
    installed.cluster.kubectl("-n", CELLS, "delete", "pod", pod["metadata"]["name"], "--wait=false")
    answer = sweep.end()
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded", "graded"]
    assert lost(sweep.attempts(installed)) == ["pod_deleted"]


def test_a_recorder_that_is_told_to_end_is_an_attempt(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    """SIGTERM, and its pod is not deleted: it ends in 75, and its Job has another pod run."""
    sweep = Sweep(cellwise, matrix_name, SLOW % 8, cases=2)
    name = sweep.running_pod()["metadata"]["name"]
    installed.cluster.kubectl("-n", CELLS, "exec", name, "-c", "recorder", "--", "sh", "-c", "kill -TERM 1")
    answer = sweep.end()
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded", "graded"]
    assert lost(sweep.attempts(installed)) == ["recorder_killed"]
    assert sorted(sweep.exit_codes()) == [0, 0, 75]


def test_an_agent_that_is_not_in_its_image_fails_its_cells_at_once(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    """The recorder ends in 78: no other pod of that cell would do better, and none runs."""
    conditions = f"{CONTROL}\n{{name: absent, agent: 'agents:not_written', image: '{installed.images.agent}'}}"
    sweep = Sweep(cellwise, matrix_name, conditions, cases=2)
    answer = sweep.end()
    assert answer.status == 3, answer.err
    assert "not_written" in answer.err
    found = {one["condition"]: one for one in answer.json()["summary"]["conditions"]}
    assert (found["control"]["graded"], found["absent"]["missing"]) == (2, 2)
    assert sorted(sweep.exit_codes()) == [0, 0, 78, 78]
    assert sorted(sweep.trials(installed)) == ["graded", "graded", "missing", "missing"]
    assert set(lost(sweep.attempts(installed))) <= {"agent_not_startable"}


def test_a_pod_that_is_evicted_through_the_api_is_not_charged(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 8, cases=2)
    pod = sweep.running_pod()
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod["metadata"]["name"], "namespace": CELLS},
    }
    place = f"/api/v1/namespaces/{CELLS}/pods/{pod['metadata']['name']}/eviction"
    installed.cluster.kubectl("create", "--raw", place, "-f", "-", given=json.dumps(eviction))
    answer = sweep.end()
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded", "graded"]
    assert lost(sweep.attempts(installed)) == ["disrupted"]


def test_a_refund_of_the_wrong_order_stays_when_its_pod_is_deleted(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    """A new attempt must not wash away what the agent did."""
    sweep = Sweep(cellwise, matrix_name, REFUNDS_THEN_WAITS % 60, cases=1)
    pod = sweep.running_pod()

    def refunded() -> bool:
        lines = installed.sql(
            "SELECT count(*) FROM journal_line l JOIN attempt a ON a.id = l.attempt_id"
            f" WHERE a.owner = '{pod['metadata']['uid']}'"
        )
        return int(lines[0][0]) > 2

    installed.cluster.until("the refund is journaled", refunded)
    installed.cluster.kubectl("-n", CELLS, "delete", "pod", pod["metadata"]["name"], "--wait=false")
    answer = sweep.end()
    (condition,) = answer.json()["summary"]["conditions"]
    assert condition["wrong_order_commits"] == 1
    assert sweep.trials(installed) == ["graded"]
    assert sweep.attempts(installed) == [("explicit-description", "lost", "pod_deleted")]


def test_finished_jobs_that_are_deleted_by_hand_lose_nothing(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    installed.cluster.kubectl("-n", NAMESPACE, "scale", "deployment", "cellwise-controller", "--replicas=1")
    sweep = Sweep(cellwise, matrix_name, CONTROL, cases=4)
    installed.cluster.until("its Jobs are there", lambda: len(sweep.pods()) >= 2)
    # Nobody reads them while they end and are deleted.
    installed.cluster.kubectl("-n", NAMESPACE, "scale", "deployment", "cellwise-controller", "--replicas=0")
    time.sleep(8)
    selector = "app.kubernetes.io/component=cell"
    installed.cluster.kubectl("-n", CELLS, "delete", "jobs", "-l", selector, "--wait=false")
    installed.cluster.kubectl("-n", NAMESPACE, "scale", "deployment", "cellwise-controller", "--replicas=1")
    answer = sweep.end()
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded"] * 4
    attempts = sweep.attempts(installed)
    assert len([one for one in attempts if one[1] == "delivered"]) == 4
    assert set(lost(attempts)) <= {"pod_deleted", "not_started"}


def test_an_image_that_cannot_be_pulled_fails_its_cells_and_nothing_else(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    nowhere = "localhost/nowhere@sha256:" + "0" * 64
    conditions = f"{CONTROL}\n{{name: absent, agent: 'agents:works', image: '{nowhere}'}}"
    answer = Sweep(cellwise, matrix_name, conditions, cases=2).end()
    assert answer.status == 3, answer.err
    assert "image" in answer.err
    found = {one["condition"]: one for one in answer.json()["summary"]["conditions"]}
    assert (found["control"]["graded"], found["absent"]["missing"]) == (2, 2)


def test_an_agent_past_its_containers_memory_is_evidence(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    image = installed.images.agent
    conditions = f"{{name: eater, agent: 'agents:eats_memory', image: '{image}', limits: {{memory_mb: 4096}}}}"
    sweep = Sweep(cellwise, matrix_name, conditions, cases=1)
    sweep.end()
    assert sweep.trials(installed) == ["graded"]
    assert _errors(cellwise, matrix_name) in (["MemoryLimit"], ["AgentExited"])


def test_an_agent_evicted_for_its_own_disk_is_evidence(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    image = installed.images.agent
    conditions = f"{{name: eater, agent: 'agents:eats_disk', image: '{image}', limits: {{seconds: 500}}}}"
    sweep = Sweep(cellwise, matrix_name, conditions, cases=1)
    # The kubelet looks at a volume's use about once a minute.
    sweep.end(seconds=420)
    assert sweep.trials(installed) == ["graded"]
    assert _errors(cellwise, matrix_name) == ["DiskLimit"]


def test_a_quota_that_is_used_up_fails_the_cell_with_its_reason(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    quota = ["create", "quota", "nothing", "--hard=pods=0"]
    installed.cluster.kubectl("-n", CELLS, *quota)
    try:
        answer = Sweep(cellwise, matrix_name, CONTROL, cases=1).end()
    finally:
        installed.cluster.kubectl("-n", CELLS, "delete", "quota", "nothing")
    assert answer.status == 3, answer.err
    assert "quota" in answer.err


def test_a_pod_that_fits_no_node_waits_and_says_so(cellwise: Cellwise, installed: Installed, matrix_name: str) -> None:
    nodes = [node["metadata"]["name"] for node in installed.cluster.get("nodes")]
    for node in nodes:
        installed.cluster.kubectl("cordon", node)
    try:
        sweep = Sweep(cellwise, matrix_name, CONTROL, cases=1)

        def told() -> bool:
            answer = cellwise("status", matrix_name, "--on", "kubernetes", "--namespace", NAMESPACE)
            return "nschedul" in answer.out + answer.err

        installed.cluster.until("status says why it waits", told, seconds=60)
        assert sweep.attempts(installed) == []
    finally:
        for node in nodes:
            installed.cluster.kubectl("uncordon", node)
    assert sweep.end().status == 0
    assert lost(sweep.attempts(installed)) == []


def test_a_matrix_is_paused_resumed_and_cancelled(cellwise: Cellwise, installed: Installed, matrix_name: str) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 15, cases=12, more="parallelism: 2\n")
    sweep.running_pod()
    there = ("--on", "kubernetes", "--namespace", NAMESPACE)
    # A node that is slow to say that it is ready keeps people out for a moment.
    installed.cluster.until("it is paused", lambda: cellwise("pause", matrix_name, *there).status == 0)
    sweep.process.terminate()
    sweep.process.communicate(timeout=60)
    installed.cluster.until(
        "nothing runs any more",
        lambda: not [pod for pod in sweep.pods() if pod["status"].get("phase") in ("Pending", "Running")],
    )
    before = sweep.trials(installed).count("graded")
    time.sleep(5)
    assert sweep.trials(installed).count("graded") == before < 12
    assert lost(sweep.attempts(installed)) == []
    resumed = subprocess.Popen(
        cellwise.command("resume", matrix_name, *there), env=cellwise.environment(), cwd=cellwise.folder
    )
    installed.cluster.until("more trials are graded", lambda: sweep.trials(installed).count("graded") > before)
    installed.cluster.until("it is cancelled", lambda: cellwise("cancel", matrix_name, *there).status == 0)
    assert resumed.wait(120) not in (0, None)
    installed.cluster.until("its Jobs are deleted", lambda: not sweep.pods())
    states = sweep.trials(installed)
    assert len(states) == 12
    assert "leased" not in states


def test_where_a_cell_runs_is_shown_before_it_has_said_anything(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 10, cases=1)
    sweep.running_pod()
    running = cellwise(*_logs(matrix_name))
    assert running.status == 0, running.err
    assert "Job cw-" in running.err
    assert "attempt 1: running" in running.err
    assert sweep.end().status == 0


def test_logs_of_a_cell_are_its_recorders_lines(cellwise: Cellwise, installed: Installed) -> None:
    """Of several cells, since the kubelets of one machine share a folder of logs, and each clears away now and then
    what the other one's pods wrote there."""
    said = []
    for _ in range(4):
        name = f"t-{uuid.uuid4().hex[:8]}"
        assert Sweep(cellwise, name, SLOW % 1, cases=1).end().status == 0
        answer = cellwise(*_logs(name))
        assert answer.status == 0, answer.err
        # Each line is told with its pod and container before it.
        texts = [line.partition("/recorder: ")[2] for line in answer.out.splitlines()]
        lines = [json.loads(text) for text in texts if text.startswith("{")]
        said += [line["outcome"] for line in lines if "trial" in line]
    assert said
    assert set(said) == {"accepted"}


def _logs(name: str) -> tuple[str, ...]:
    return ("logs", "slow/explicit-description", "--matrix", name, "--namespace", NAMESPACE)


def _errors(cellwise: Cellwise, name: str) -> list[str | None]:
    """The execution error of every trial's evidence."""
    from grading.store import Store, reading

    store = str(Path(cellwise.folder) / "pulled.db")
    pulled = cellwise("pull", name, "--namespace", NAMESPACE, "--store", store)
    assert pulled.status == 0, pulled.err
    with Store.open(store) as opened:
        (matrix,) = reading.matrices(opened)
        trials = list(reading.trials(opened, matrix.id, ledgers=True))
    return [json.loads(trial.ledger or b"{}")["content"]["error"] for trial in trials]


pytestmark = pytest.mark.usefixtures("installed")
