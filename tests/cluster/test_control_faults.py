"""The parts of Cellwise in the cluster, and of the cluster itself, may be killed at any moment: no trial is lost."""

import threading
import time
from collections.abc import Callable

import pytest
from conftest import NAMESPACE, Cellwise, Installed
from matrices import CONTROL, SLOW
from test_pod_faults import Sweep, lost


def kill(installed: Installed, component: str) -> None:
    """All pods of a component, without a chance to say anything."""
    for pod in installed.pods_of(component):
        delete = ["delete", "pod", pod, "--grace-period=0", "--force", "--wait=false"]
        installed.cluster.kubectl("-n", NAMESPACE, *delete, check=False)


def test_a_controller_killed_ten_times_leaves_every_trial_once(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 1, cases=40)
    for _ in range(10):
        time.sleep(3)
        kill(installed, "controller")
    answer = sweep.end(seconds=400)
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded"] * 40
    attempts = sweep.attempts(installed)
    assert [state for _, state, _ in attempts if state == "delivered"] == ["delivered"] * 40
    assert lost(attempts) == []


@pytest.mark.parametrize("component", ["intake", "postgresql"])
def test_a_part_that_is_killed_midway_costs_no_attempt_that_did_something(
    cellwise: Cellwise, installed: Installed, matrix_name: str, component: str
) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 5, cases=12)
    sweep.running_pod()
    for _ in range(2):
        kill(installed, component)
        time.sleep(6)
    answer = sweep.end(seconds=400)
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded"] * 12
    assert set(lost(sweep.attempts(installed))) <= {"intake_lost"}


def test_two_controllers_do_each_thing_once(cellwise: Cellwise, installed: Installed, matrix_name: str) -> None:
    scale = ["-n", NAMESPACE, "scale", "deployment", "cellwise-controller"]
    installed.cluster.kubectl(*scale, "--replicas=2")
    try:
        sweep = Sweep(cellwise, matrix_name, CONTROL, cases=12)
        answer = sweep.end()
    finally:
        installed.cluster.kubectl(*scale, "--replicas=1")
    assert answer.status == 0, answer.err
    assert [state for _, state, _ in sweep.attempts(installed)] == ["delivered"] * 12


def test_an_upgrade_during_a_matrix_loses_nothing(cellwise: Cellwise, installed: Installed, matrix_name: str) -> None:
    from conftest import RELEASE, ROOT

    sweep = Sweep(cellwise, matrix_name, SLOW % 5, cases=12)
    sweep.running_pod()
    command = ["upgrade", RELEASE, str(ROOT / "charts/cellwise"), "-n", NAMESPACE, "--reuse-values"]
    command += ["--set-string", f"podAnnotations.again={time.time():.0f}"]
    installed.cluster.helm(*command, "--wait", "--timeout", "240s")
    answer = sweep.end(seconds=400)
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded"] * 12
    assert set(lost(sweep.attempts(installed))) <= {"intake_lost"}


@pytest.mark.breaks_cluster
def test_the_api_server_and_etcd_are_killed_midway(
    cellwise: Cellwise, installed: Installed, matrix_name: str, faults: Callable[..., str]
) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 5, cases=12)
    sweep.running_pod()
    for component in ("kube-apiserver", "etcd"):
        faults("kill", component)
        time.sleep(5)
        faults("start", component)
        time.sleep(5)
    watcher = threading.Timer(400, sweep.process.kill)
    watcher.start()
    try:
        sweep.process.communicate()
    finally:
        watcher.cancel()
    # The watching command may have lost its way in; the matrix goes on by itself.
    there = ("--on", "kubernetes", "--namespace", NAMESPACE)
    answer = cellwise("resume", matrix_name, *there)
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded"] * 12
    attempts = sweep.attempts(installed)
    assert len([state for _, state, _ in attempts if state == "delivered"]) == 12
    assert set(lost(attempts)) <= {"intake_lost", "disrupted", "node_lost"}
