"""A cluster's people API as a real HTTP server of this process, and a way into it in place of the one by kubeconfig."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import httpx
import uvicorn
from recorded_trial import eventually
from starlette.exceptions import HTTPException
from starlette.requests import Request

from grading.manifest import Manifest
from grading.people_service import Verb, people_app
from grading.runner import Runner
from grading.store import Store, placing, reading

RIGHTS = {"viewer": {"get"}, "editor": {"get", "create", "update"}}


def identify(request: Request, verb: Verb) -> str:
    """The holder of a bearer token that is the role's name."""
    role = request.headers.get("authorization", "").removeprefix("Bearer ")
    if role not in RIGHTS:
        raise HTTPException(401, "no token, or none that is known")
    if verb not in RIGHTS[role]:
        raise HTTPException(403, f"{role} may not {verb} matrices.cellwise.dev")
    return f"system:serviceaccount:cellwise:cellwise-{role}"


class PeopleServer:
    """The people API over a store, on one port for as long as it lives, which may stop and start again."""

    def __init__(self, store: Store) -> None:
        self.store = store
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._http = httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        app = people_app(self.store, identify, cells_namespace="cellwise-cells")
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        server = self._server
        assert eventually(lambda: server.started, 20)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            self._thread.join(20)
            assert not self._thread.is_alive()
            self._server = None

    def close(self) -> None:
        self._http.close()
        self.stop()

    def request(self, method: str, path: str, role: str | None = "editor", **rest: object) -> httpx.Response:
        headers = {"authorization": f"Bearer {role}"} if role is not None else {}
        return self._http.request(method, path, headers=headers, **rest)  # type: ignore[arg-type]


@contextmanager
def people_server(store: Store) -> Iterator[PeopleServer]:
    server = PeopleServer(store)
    server.start()
    try:
        yield server
    finally:
        server.close()


def run_cells(store: Store, folder: Path, *, slowly: float = 0.0) -> list[str]:
    """What the controller and its pods come to, done on this machine: every placed matrix that runs, as far as it is
    placed. Returns the states that they are left in."""
    states = []
    for placed in placing.placements(store):
        if placed.state != "running":
            continue
        time.sleep(slowly)
        matrix = reading.find_matrix(store, placed.matrix_id)
        manifest = Manifest.from_document(reading.manifest(store, matrix.id))
        covered = [
            cell.id for cell in reading.cells(store, matrix.id) if placed.placement.covers(cell.case_id, cell.condition)
        ]
        runner = Runner(store, matrix, manifest, root=folder, folder=folder / "cells", parallelism=2, only=covered)
        states.append(runner.run())
    return states


FAKE_CLUSTER = """
import contextlib
import os
from pathlib import Path


class Reached:
    trouble = None

    def __init__(self, role):
        self.role = role
        self.url = os.environ["FAKE_CLUSTER_URL"]

    def token(self, *, renew=False):
        return os.environ.get("FAKE_CLUSTER_TOKEN", self.role)


class Cluster:
    def __init__(self, context, namespace):
        self.context = context or "kind-cellwise"
        self.namespace = namespace or "cellwise"

    @contextlib.contextmanager
    def reach(self, role):
        yield Reached(role)

    def logs(self, namespace, launches, *, follow=False, tail=None):
        for launch in launches:
            yield f"{namespace} {launch} follow={follow} tail={tail}: began"
"""


def install_fake_cluster(folder: Path) -> Path:
    """A folder for PYTHONPATH whose entry point takes the place of the real one."""
    site = folder / "site"
    named = site / "fake_cluster-1.0.dist-info"
    named.mkdir(parents=True)
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-cluster\nVersion: 1.0\n")
    (named / "entry_points.txt").write_text("[cellwise.launchers]\nkubernetes = fake_cluster:Cluster\n")
    (site / "fake_cluster.py").write_text(dedent(FAKE_CLUSTER))
    return site
