"""The packaged studies on a cluster come to what they come to on one machine."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import NAMESPACE, Cellwise, Installed, forwarded
from matrices import CONTROL, study

from grading.store import Store, reading
from tests.integration.phoenix_fixture import shown

TABLE = """\
condition            trials  contract  completed  wrong-order commits
descriptive-control  8/8     8         6          0
first-record-mutant  8/8     2         3          5
"""


@pytest.fixture(scope="module")
def ran(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> tuple[Cellwise, Any, str]:
    cellwise = Cellwise(installed.cluster, tmp_path_factory.mktemp("study"))
    answer = cellwise("run", "order-resolution", "--on", "kubernetes", "--namespace", NAMESPACE)
    assert answer.status == 0, answer.err
    return cellwise, answer.out, answer.err


def test_the_table_is_the_local_one_and_each_cell_has_a_job(ran: tuple[Cellwise, str, str]) -> None:
    cellwise, out, err = ran
    for line in TABLE.splitlines():
        assert line.split() in [shown.split() for shown in out.splitlines()], out
    assert "Phoenix" in out + err
    local = cellwise("run", "order-resolution", "--phoenix", "off")
    assert [line for line in local.out.splitlines() if line in out.splitlines()] == local.out.splitlines()
    launches = [
        (job["metadata"]["annotations"]["cellwise.dev/condition"], job["metadata"]["annotations"]["cellwise.dev/case"])
        for job in cellwise.cluster.get("jobs", "-l", "app.kubernetes.io/component=cell")
        if job["metadata"]["annotations"]["cellwise.dev/matrix"] == "order-resolution"
    ]
    # What is recorded may have been deleted already; what is there is one for a cell.
    assert len(launches) == len(set(launches)) <= 8


def test_nothing_runs_again(ran: tuple[Cellwise, str, str]) -> None:
    cellwise, out, _ = ran
    again = cellwise("run", "order-resolution", "--on", "kubernetes", "--namespace", NAMESPACE)
    assert (again.status, again.out) == (0, out)


def test_content_hashes_are_those_of_one_machine_and_packets_replay(
    ran: tuple[Cellwise, str, str], tmp_path: Path
) -> None:
    cellwise, _, _ = ran
    pulled = str(tmp_path / "pulled.db")
    answer = cellwise("pull", "order-resolution", "--namespace", NAMESPACE, "--store", pulled)
    assert answer.status == 0, answer.err
    local = str(tmp_path / "local.db")
    assert cellwise("run", "order-resolution", "--phoenix", "off", "--store", local).status == 0
    assert _contents(pulled) == _contents(local)
    assert len(_contents(local)) == 16
    for store in (pulled, local):
        compared = cellwise("compare", "order-resolution", "--json", "--store", store)
        assert compared.status == 0, compared.err
    packet = tmp_path / "packet.json"
    exported = cellwise("export", "order-resolution", str(packet), "--store", pulled)
    assert exported.status == 0, exported.err
    replayed = cellwise("replay", str(packet))
    assert replayed.status == 0, replayed.err


def _contents(store: str) -> dict[tuple[str, str, int], str | None]:
    with Store.open(store) as opened:
        (matrix,) = reading.matrices(opened)
        return {
            (trial.condition, trial.case_id, trial.repetition): json.loads(trial.ledger or b"{}").get("content_hash")
            for trial in reading.trials(opened, matrix.id, ledgers=True)
        }


def test_twenty_repetitions_in_one_pod_are_twenty_attempts_each_with_its_ledger(
    cellwise: Cellwise, installed: Installed, matrix_name: str
) -> None:
    path = study(cellwise.folder, matrix_name, CONTROL, repetitions=20, more="trials_per_pod: 20\n")
    answer = cellwise("run", str(path), "--on", "kubernetes", "--namespace", NAMESPACE, "--json")
    assert answer.status == 0, answer.err
    (control,) = answer.json()["summary"]["conditions"]
    assert control["graded"] == 80
    rows = installed.sql(
        "SELECT count(*), count(DISTINCT a.trial_id), count(DISTINCT a.owner) FROM attempt a JOIN trial t ON"
        f" t.id = a.trial_id JOIN matrix m ON m.id = t.matrix_id WHERE m.name = '{matrix_name}'"
    )
    assert rows == [["80", "80", "4"]]


def test_every_text_arrives_as_it_was_written(cellwise: Cellwise, matrix_name: str) -> None:
    """What Kubernetes would expand in a pod's environment, and names longer than its own may be."""
    path = study(cellwise.folder, matrix_name, CONTROL, cases=1)
    cases = path.with_name(f"{matrix_name}-cases.yaml")
    long = "c" * 180 + "-ünï-$(HOME)-$$"
    text = cases.read_text()
    first = text.index("explicit-description")
    cases.write_text(text[:first] + long + text[first + len("explicit-description") :])
    changed = re.sub(
        r"utterance: .*", "utterance: 'Refund the hub $(HOSTNAME) $$ $(CELLWISE_LAUNCH) $$$$'", cases.read_text()
    )
    cases.write_text(changed)
    answer = cellwise("run", str(path), "--on", "kubernetes", "--namespace", NAMESPACE, "--json")
    assert answer.status in (0, 1, 3), answer.err
    store = str(cellwise.folder / "pulled.db")
    assert cellwise("pull", matrix_name, "--namespace", NAMESPACE, "--store", store).status == 0
    with Store.open(store) as opened:
        (matrix,) = reading.matrices(opened)
        (trial,) = reading.trials(opened, matrix.id, ledgers=True)
        content = json.loads(trial.ledger or b"")["content"]
    assert content["request"]["utterance"] == "Refund the hub $(HOSTNAME) $$ $(CELLWISE_LAUNCH) $$$$"
    assert trial.case_id == long


def test_phoenix_in_the_cluster_shows_both_conditions(ran: tuple[Cellwise, str, str], installed: Installed) -> None:
    with forwarded(installed.cluster, "svc/cellwise-phoenix", 6006) as url:

        def published() -> dict[str, Any] | None:
            try:
                named = httpx.get(f"{url}/v1/datasets", params={"limit": 1000}).raise_for_status().json()["data"]
                # The newest, where one cluster has seen several versions.
                of_study = [one for one in named if one["name"].startswith("order-resolution ")]
                found = shown(url, max(of_study, key=lambda one: one["created_at"])["name"])
            except httpx.HTTPError:
                return None
            runs = [len(one["runs"]) for one in found["experiments"].values()]
            return found if runs == [8, 8] else None

        found = installed.cluster.until("16 runs in Phoenix", published, seconds=120)
    assert len(found["examples"]) == 4
    assert sum(len(one["traces"]) for one in found["experiments"].values()) == 16
