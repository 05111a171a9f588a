"""The intake as a process of a cluster: its three ports, who is let in where, readiness, metrics, logs, and its end."""

import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import kmock as kmock_package
import orjson
import pytest
import sqlalchemy as sa
from cells import Cluster, begin, ledger_of, manifest_of
from kubernetes import client

from grading.store import Store, StoreError, launching
from k8s.api import Api
from k8s.intake import Intake, log_as_json, route_of
from k8s.settings import Settings
from simulator.recorder import software

pytestmark = [pytest.mark.asyncio, pytest.mark.kmock(cls=kmock_package.RawHandler)]

SETTINGS = Settings(
    namespace="release", cells_namespace="cells", intake_url="http://intake:8080", trial_image="image@sha256:0"
)
ACCOUNTS = {
    ("pod-token", "cellwise-cells"): {
        "username": "system:serviceaccount:cells:cellwise-cells",
        "extra": {
            "authentication.kubernetes.io/pod-name": ["pod-0"],
            "authentication.kubernetes.io/pod-uid": ["pod-uid"],
        },
    },
    ("person-token", "cellwise-people"): {"username": "system:serviceaccount:release:cellwise-editor"},
}


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as opened:
        yield opened


class Ports:
    """The three ports of a running intake."""

    def __init__(self, intake: Intake, numbers: list[int]) -> None:
        self.intake = intake
        self.cells, self.people, self.metrics = (f"http://127.0.0.1:{number}" for number in numbers)
        self.http = httpx.AsyncClient(timeout=10)

    async def ready(self) -> tuple[int, str]:
        answer = await self.http.get(f"{self.metrics}/readyz")
        return answer.status_code, answer.text

    async def becomes_ready(self) -> None:
        with anyio.fail_after(10):
            while True:
                try:
                    if (await self.ready())[0] == 200:
                        return
                except httpx.TransportError:
                    pass
                await anyio.sleep(0.05)


def sockets() -> Any:
    return tuple(socket.create_server(("127.0.0.1", 0)) for _ in range(3))


@asynccontextmanager
async def running(kmock: Any, address: str) -> AsyncIterator[Ports]:
    api = Api(client.Configuration(host=str(kmock.url).rstrip("/")))
    bound = sockets()
    intake = Intake(SETTINGS, address, api, bound, drain_seconds=0.2)
    ports = Ports(intake, [one.getsockname()[1] for one in bound])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(intake.run)
        try:
            yield ports
        finally:
            intake.end()
            await ports.http.aclose()


def api_server(kmock: Any, launch: launching.Launch) -> None:
    def review(request: Any) -> dict[str, Any]:
        spec = request.data["spec"]
        user = ACCOUNTS.get((spec["token"], spec["audiences"][0]))
        return {"status": {"authenticated": user is not None, "audiences": spec["audiences"], "user": user}}

    kmock["post /apis/authentication.k8s.io/v1/tokenreviews"] << review
    kmock["post /apis/authorization.k8s.io/v1/subjectaccessreviews"] << {"status": {"allowed": True}}
    kmock["get /api/v1/namespaces/cells/pods/pod-0"] << {
        "metadata": {
            "uid": "pod-uid",
            "annotations": {"cellwise.dev/launch": launch.id, "batch.kubernetes.io/job-completion-index": "0"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": launch.job, "uid": launch.job_uid, "controller": True}
            ],
        },
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running"},
    }


def question(launch: launching.Launch) -> bytes:
    return orjson.dumps({"version": 1, "launch": launch.id, "index": 0, "software": software()})


async def test_a_trial_goes_through_it(
    kmock: Any, store: Store, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(store, manifest_of())
    launch = launching.find(store, cluster.launch().id)
    api_server(kmock, launch)
    log_as_json()
    pod, person = {"authorization": "Bearer pod-token"}, {"authorization": "Bearer person-token"}
    async with running(kmock, store_url) as ports:
        await ports.becomes_ready()
        answer = await ports.http.post(f"{ports.cells}/v1/assignment", headers=pod, content=question(launch))
        assert answer.status_code == 200, answer.text
        assigned = answer.json()
        lines = {"version": 1, "attempt": assigned["attempt"], "first": 0, "entries": [begin(assigned)]}
        answer = await ports.http.post(f"{ports.cells}/v1/journal", headers=pod, content=orjson.dumps(lines))
        assert answer.status_code == 204
        metrics = (await ports.http.get(f"{ports.metrics}/metrics")).text
        assert "cellwise_intake_attempts_in_flight 1.0" in metrics
        delivered = await ports.http.post(
            f"{ports.cells}/v1/ledger?attempt={assigned['attempt']}", headers=pod, content=ledger_of(assigned)
        )
        assert delivered.json() == {"version": 1, "outcome": "accepted"}
        for port, path, token in (
            (ports.cells, "/v1/assignment", person),
            (ports.people, "/v1/matrices", pod),
            (ports.cells, "/v1/assignment", {}),
            (ports.people, "/v1/matrices", {}),
        ):
            send = ports.http.post if port == ports.cells else ports.http.get
            assert (await send(port + path, headers=token)).status_code == 401
        listed = await ports.http.get(f"{ports.people}/v1/matrices", headers=person)
        assert listed.status_code == 200, listed.text
        assert (await ports.http.get(f"{ports.people}/v1/assignment", headers=person)).status_code == 404
        metrics = (await ports.http.get(f"{ports.metrics}/metrics")).text
    for line in (
        'cellwise_intake_requests_total{port="cells",route="/v1/assignment",status="200"} 1.0',
        'cellwise_intake_requests_total{port="cells",route="/v1/assignment",status="401"} 2.0',
        'cellwise_intake_ledgers_total{outcome="accepted"} 1.0',
        'cellwise_intake_api_calls_total{resource="pods"} 1.0',
        'cellwise_intake_transaction_seconds_count{transaction="deliver"} 1.0',
        "cellwise_intake_attempts_in_flight 0.0",
    ):
        assert line in metrics
    logged = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ledgers = [line for line in logged if line.get("route") == "/v1/ledger"]
    assert [
        (line["matrix"], line["cell"], line["trial"], line["attempt"], line["outcome"], line["status"], line["level"])
        for line in ledgers
    ] == [(cluster.matrix_id, launch.cell_id, assigned["trial"], assigned["attempt"], "accepted", 200, "info")]
    assert [line["denied"] for line in logged if "denied" in line] == ["the token is not valid here", "no token"]
    assert not any("token" in json.dumps(line) and "pod-token" in json.dumps(line) for line in logged)


async def test_it_is_ready_only_while_the_store_can_be_written(kmock: Any, store: Store, store_url: str) -> None:
    async with running(kmock, store_url) as ports:
        await ports.becomes_ready()
        inner = ports.intake._store
        assert inner is not None

        def away(*_: Any) -> None:
            raise sa.exc.OperationalError("UPDATE", {}, inner.engine.dialect.loaded_dbapi.OperationalError("gone"))

        sa.event.listen(inner.engine, "before_cursor_execute", away)
        await anyio.sleep(1.05)
        status, said = await ports.ready()
        assert status == 503
        assert "gone" in said
        assert (await ports.http.get(f"{ports.metrics}/healthz")).status_code == 200
        sa.event.remove(inner.engine, "before_cursor_execute", away)
        await ports.becomes_ready()


async def test_it_lives_and_waits_while_the_store_is_away(kmock: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    began = time.monotonic()
    async with running(kmock, f"postgresql://user@127.0.0.1:{port}/cellwise") as ports:
        with anyio.fail_after(10):
            while True:
                try:
                    status, said = await ports.ready()
                    break
                except httpx.TransportError:
                    await anyio.sleep(0.05)
        assert (status, said) == (503, "the store is not open yet\n")
        assert (await ports.http.get(f"{ports.metrics}/healthz")).status_code == 200
        assert "cellwise_intake_attempts_in_flight NaN" in (await ports.http.get(f"{ports.metrics}/metrics")).text
    assert time.monotonic() - began < 20, "it ends when it is told to"


async def test_it_ends_where_there_is_no_store(kmock: Any, tmp_path: Path) -> None:
    api = Api(client.Configuration(host=str(kmock.url)))
    with pytest.raises(StoreError, match="there is no store here"):
        await Intake(SETTINGS, str(tmp_path / "absent.db"), api, sockets()).run()


async def test_it_drains(kmock: Any, store: Store, store_url: str) -> None:
    cluster = Cluster(store, manifest_of())
    launch = launching.find(store, cluster.launch().id)
    api_server(kmock, launch)
    async with running(kmock, store_url) as ports:
        await ports.becomes_ready()
        ports.intake.end()
        assert await ports.ready() == (503, "it is ending\n")
        # What still arrives is answered: the cluster's nodes may not know yet.
        answer = await ports.http.post(
            f"{ports.cells}/v1/assignment", headers={"authorization": "Bearer pod-token"}, content=question(launch)
        )
        assert answer.status_code == 200


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


async def test_routes_are_few() -> None:
    assert [
        route_of(path)
        for path in ("/v1/ledger", "/v1/matrices/7", "/v1/matrices/x/pause", "/v1/matrices/x/y", "/admin", "/")
    ] == ["/v1/ledger", "/v1/matrices/{word}", "/v1/matrices/{word}/pause", "other", "other", "other"]
