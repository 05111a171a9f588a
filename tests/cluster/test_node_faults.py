"""Nodes that are drained, cut off, lost and come back, or never do: every trial is in the store once."""

import time
from collections.abc import Callable, Iterator

import pytest
from conftest import NAMESPACE, Cellwise, Installed
from matrices import SLOW
from test_pod_faults import Sweep, lost

pytestmark = pytest.mark.breaks_cluster


@pytest.fixture
def second(installed: Installed, faults: Callable[..., str]) -> Iterator[str]:
    """A node that only cells run on, back as it was afterwards: what Cellwise itself needs is on the first one."""
    nodes = sorted(node["metadata"]["name"] for node in installed.cluster.get("nodes"))
    if len(nodes) < 2:
        pytest.skip("the cluster has one node: it takes two to lose one")
    first, last = nodes[0], nodes[-1]
    installed.cluster.kubectl("cordon", last)
    for pod in installed.cluster.get("pods", namespace=NAMESPACE):
        if pod["spec"].get("nodeName") == last:
            installed.cluster.kubectl("-n", NAMESPACE, "delete", "pod", pod["metadata"]["name"], timeout=90)
    wait = ["-n", NAMESPACE, "wait", "--for=condition=Available", "deployment", "--all", "--timeout=120s"]
    installed.cluster.kubectl(*wait, timeout=130)
    installed.cluster.kubectl("uncordon", last)
    installed.cluster.kubectl("cordon", first)
    yield last
    faults("return", last.rpartition("-")[2])
    installed.cluster.kubectl("uncordon", first)
    installed.cluster.until(
        "the node is back",
        lambda: "True" in installed.cluster.kubectl("get", "node", last, "-o", READY, check=False),
        seconds=120,
    )
    installed.cluster.kubectl("uncordon", last)


READY = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'


def finishes(sweep: Sweep, installed: Installed, reasons: set[str], *, seconds: float = 400) -> None:
    answer = sweep.end(seconds=seconds)
    assert answer.status == 0, answer.err
    trials = sweep.trials(installed)
    assert trials == ["graded"] * len(trials)
    attempts = sweep.attempts(installed)
    assert len([state for _, state, _ in attempts if state == "delivered"]) == len(trials)
    assert set(lost(attempts)) <= reasons, attempts
    assert lost(attempts), "nothing was lost: the node was not used"


def test_a_node_that_is_drained(cellwise: Cellwise, installed: Installed, matrix_name: str, second: str) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 10, cases=6)
    sweep.running_pod()
    installed.cluster.kubectl("uncordon", sorted(n["metadata"]["name"] for n in installed.cluster.get("nodes"))[0])
    drain = ["drain", second, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s"]
    installed.cluster.kubectl(*drain, timeout=100)
    finishes(sweep, installed, {"disrupted"})


def test_a_node_that_is_cut_off_and_comes_back(
    cellwise: Cellwise, installed: Installed, matrix_name: str, second: str, faults: Callable[..., str]
) -> None:
    """Its containers go on: what they deliver counts, once."""
    sweep = Sweep(cellwise, matrix_name, SLOW % 20, cases=4)
    sweep.running_pod()
    number = second.rpartition("-")[2]
    faults("kill", f"kubelet-{number}")
    time.sleep(15)
    faults("start", f"kubelet-{number}")
    answer = sweep.end(seconds=400)
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded"] * 4
    assert len([one for one in sweep.attempts(installed) if one[1] == "delivered"]) == 4
    assert set(lost(sweep.attempts(installed))) <= {"disrupted", "node_lost"}


def test_a_node_that_is_lost_and_returned(
    cellwise: Cellwise, installed: Installed, matrix_name: str, second: str, faults: Callable[..., str]
) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 20, cases=4)
    sweep.running_pod()
    number = second.rpartition("-")[2]
    faults("lose", number)
    time.sleep(20)
    faults("return", number)
    finishes(sweep, installed, {"disrupted", "node_lost"})


def test_a_node_that_is_lost_and_deleted(
    cellwise: Cellwise, installed: Installed, matrix_name: str, second: str, faults: Callable[..., str]
) -> None:
    sweep = Sweep(cellwise, matrix_name, SLOW % 20, cases=4)
    sweep.running_pod()
    installed.cluster.kubectl("uncordon", sorted(n["metadata"]["name"] for n in installed.cluster.get("nodes"))[0])
    faults("lose", second.rpartition("-")[2])
    time.sleep(15)
    installed.cluster.kubectl("delete", "node", second, "--wait=false")
    finishes(sweep, installed, {"disrupted", "node_lost"})


def test_a_pod_stuck_on_a_lost_node_is_given_up(
    cellwise: Cellwise, installed: Installed, matrix_name: str, second: str, faults: Callable[..., str]
) -> None:
    """Nobody deletes the node: after a while (a setting, short here) its trials run in a further Job."""
    sweep = Sweep(cellwise, matrix_name, SLOW % 20, cases=2)
    sweep.running_pod()
    installed.cluster.kubectl("uncordon", sorted(n["metadata"]["name"] for n in installed.cluster.get("nodes"))[0])
    faults("lose", second.rpartition("-")[2])
    answer = sweep.end(seconds=500)
    assert answer.status == 0, answer.err
    assert sweep.trials(installed) == ["graded"] * 2
    attempts = sweep.attempts(installed)
    assert [state for _, state, _ in attempts if state != "lost"] == ["delivered"] * 2
    assert set(lost(attempts)) == {"node_lost"}
