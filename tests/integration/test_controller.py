"""The controller as a process: its Lease, its probes and metrics, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cell_site import Site, opened

from k8s import controller, health, metrics

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with opened(str(tmp_path / "store.db"), tmp_path) as make:
        yield make()


def eventually(question: Callable[[], object], seconds: float = 40) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if question():
            return True
        time.sleep(0.05)
    return False


def free_port() -> int:
    import socket

    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def started(site: Site, folder: Path, port: int, **environment: str) -> subprocess.Popen[str]:
    (folder / "settings.yaml").write_text(
        "version: 1\nnamespace: release\ncells_namespace: cells\nintake_url: http://intake:8080\n"
        "trial_image: trial\nrecorded_job_seconds: 0\nreconcile_seconds: 0.1\n"
    )
    (folder / "kubeconfig").write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{site.cluster.url}'}}}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    code = f"import k8s.controller as c; c.PORT = {port}; raise SystemExit(c.main())"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "CELLWISE_SETTINGS": str(folder / "settings.yaml"),
            "CELLWISE_STORE": site.store.place,
            "KUBECONFIG": str(folder / "kubeconfig"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_it_runs_a_matrix_answers_probes_and_lets_go_of_its_lease(site: Site, tmp_path: Path) -> None:
    matrix = site.matrix(cases=2)
    port = free_port()
    process = started(site, tmp_path, port)
    try:
        assert eventually(lambda: len(site.jobs) == 2), process.poll()
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        holder = site.cluster.objects["leases"]["cellwise-controller"]["spec"]["holderIdentity"]
        assert holder
        for _ in range(100):
            site.cluster.run_jobs()
            for pod in site.pods:
                site.work(pod)
            if site.matrix_state(matrix) == "complete" and not site.jobs:
                break
            time.sleep(0.1)
        assert site.matrix_state(matrix) == "complete"
        told = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert re.search(r"^cellwise_jobs_created_total 2\.0$", told, re.MULTILINE)
        assert re.search(r"^cellwise_controller_leading 1\.0$", told, re.MULTILINE)
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert site.cluster.objects["leases"]["cellwise-controller"]["spec"]["holderIdentity"] == ""
    assert '"event": "matrix_finished"' in said
    assert f'"matrix": {matrix}' in said


def test_a_second_one_stands_by_until_the_first_has_ended(site: Site, tmp_path: Path) -> None:
    site.cluster.put(
        "leases",
        {
            "metadata": {"name": "cellwise-controller"},
            "spec": {
                "holderIdentity": "another",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.000000Z",
            },
        },
    )
    site.matrix()
    process = started(site, tmp_path, free_port())
    try:
        assert eventually(lambda: site.cluster.count("GET", ".*/leases/.*") >= 2)
        assert site.jobs == []
        lease = site.cluster.objects["leases"]["cellwise-controller"]
        site.cluster.change("leases", "cellwise-controller", spec={**lease["spec"], "holderIdentity": ""})
        assert eventually(lambda: len(site.jobs) == 1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("environment", "code", "message"),
    [
        ({"CELLWISE_STORE": ""}, 78, "controller: CELLWISE_STORE is not set"),
        ({"CELLWISE_SETTINGS": "/nowhere.yaml"}, 78, "controller: /nowhere.yaml"),
        ({"CELLWISE_STORE": "/nowhere/store.db"}, 75, "controller: /nowhere/store.db: there is no store here"),
    ],
)
def test_what_it_cannot_start_without_is_said(
    site: Site, tmp_path: Path, environment: dict[str, str], code: int, message: str
) -> None:
    process = started(site, tmp_path, free_port(), **environment)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.startswith(message)


def test_a_loop_that_no_longer_goes_round_is_not_well(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    one = controller.Controller(site.store, site.reconciler._api, site.settings, "me")
    with health.served(0, metrics.REGISTRY, {"/healthz": lambda: one.advances}, host="127.0.0.1") as port:
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        monkeypatch.setattr(controller, "_NOT_ADVANCING_SECONDS", 0.0)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 503
        assert httpx.get(f"http://127.0.0.1:{port}/other").status_code == 404
