"""A matrix on a cluster and the cells API over its store, as pods see it: no Kubernetes, real stores, real ledgers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.applications import Starlette
from starlette.requests import Request

from grading.cells_service import Cell, IdentityAway, cells_app
from grading.manifest import Manifest, resolve
from grading.planning import register
from grading.store import Store, claiming, launching, matrices, placing, reading
from simulator.output import Output
from simulator.recorder import software
from simulator.replay import compose, open_session
from simulator.sealing import seal

STUDY = Path(__file__).resolve().parents[2] / "grading" / "studies" / "order-resolution" / "matrix.yaml"
START = 1_790_000_000_000_000
CONTROL = "descriptive-control"


def manifest_of(repetitions: int = 1) -> Manifest:
    document = orjson.loads(resolve(STUDY).manifest.document())
    return Manifest.from_document(orjson.dumps({**document, "repetitions": repetitions}))


class Cluster:
    """One matrix that runs in a cluster, with a launch of one of its cells for pods to work on."""

    def __init__(self, store: Store, manifest: Manifest, *, per_pod: int = 1) -> None:
        self.store = store
        self.manifest = manifest
        self.matrix_id = register(store, manifest).matrix_id
        if matrices.start(store, self.matrix_id):
            placing.place(store, self.matrix_id, placing.Placement(trials_per_pod=per_pod))
        self.cells = {(one.condition, one.case_id): one.id for one in reading.cells(store, self.matrix_id)}
        self.case = manifest.cases[0].id
        self.tokens: dict[str, Cell] = {}
        self.away = False
        self.asked = 0

    def launch(self, condition: str = CONTROL, case: str | None = None) -> launching.Launch:
        planned = launching.plan(self.store, self.matrix_id, self.cells[condition, case or self.case])
        assert planned is not None
        launching.created(self.store, planned.id, f"job-{planned.id}")
        return planned

    def pod(self, launch: launching.Launch, index: int = 0, name: str = "pod") -> str:
        """The token of a pod."""
        token = f"{name}-{launch.id}-{index}"
        self.tokens[token] = Cell(launch, index, claiming.Pod(f"uid-{token}", f"{name}-{index}", "node-1", "cells"))
        return token

    async def identify(self, request: Request) -> Cell | None:
        self.asked += 1
        if self.away:
            raise IdentityAway("the API server is away")
        return self.tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "))

    def app(self) -> Starlette:
        return cells_app(self.store, self.identify, lease_seconds=600)


class Client:
    """What a recorder sends."""

    def __init__(self, portal: BlockingPortal, app: Starlette, cluster: Cluster) -> None:
        self._portal = portal
        self._cluster = cluster
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://intake")

    def post(self, path: str, token: str | None, body: bytes, **headers: str) -> httpx.Response:
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        headers.setdefault("content-type", "application/json")

        async def send() -> httpx.Response:
            return await self._client.post(path, content=body, headers=headers)

        return self._portal.call(send)

    def stall(self, token: str, size: int) -> httpx.Response:
        """Says that it sends so many bytes, and sends one."""

        async def body() -> AsyncIterator[bytes]:
            yield b"{"
            await anyio.sleep(30)

        async def send() -> httpx.Response:
            headers = {"authorization": f"Bearer {token}", "content-length": str(size)}
            return await self._client.post("/v1/ledger?attempt=1", content=body(), headers=headers)

        return self._portal.call(send)

    def ask(self, token: str, **changes: Any) -> httpx.Response:
        cell = self._cluster.tokens[token]
        question = {"version": 1, "launch": cell.launch.id, "index": cell.index, "software": software(), **changes}
        return self.post("/v1/assignment", token, orjson.dumps(question))

    def assigned(self, token: str) -> dict[str, Any]:
        answer = self.ask(token)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def journal(self, token: str, attempt: int, entries: list[dict[str, Any]], first: int = 0) -> httpx.Response:
        sent = {"version": 1, "attempt": attempt, "first": first, "entries": entries}
        return self.post("/v1/journal", token, orjson.dumps(sent))

    def deliver(self, token: str, attempt: int, document: bytes, *, asked: str = "") -> httpx.Response:
        return self.post(f"/v1/ledger?attempt={attempt}{asked}", token, document)

    def turn(
        self, token: str, attempt: int, document: bytes, entries: list[dict[str, Any]], **changes: Any
    ) -> httpx.Response:
        """A ledger with journal lines of a trial whose attempt is not known; those that have one are sent without."""
        told = [{name: value for name, value in entry.items() if name != "attempt"} for entry in entries]
        following = orjson.dumps({"version": 1, "entries": told, **changes})
        return self.post(f"/v1/turn?attempt={attempt}", token, document + b"\n" + following)

    def unusable(self, token: str, attempt: int, kind: str, message: str = "") -> httpx.Response:
        sent = {"version": 1, "attempt": attempt, "kind": kind, "message": message}
        return self.post("/v1/unusable", token, orjson.dumps(sent))


@contextmanager
def client_of(cluster: Cluster) -> Iterator[Client]:
    with start_blocking_portal() as portal:
        yield Client(portal, cluster.app(), cluster)


def begin(assigned: dict[str, Any]) -> dict[str, Any]:
    return {"attempt": assigned["attempt"], "begin": {"assignment": assigned["hash"], "started": START}}


def calls_of(assigned: dict[str, Any], *, refund: bool = False) -> list[dict[str, Any]]:
    """The journal lines of an agent that looks at the customer's orders, and may pay one back unasked."""
    session, _ = open_session(assigned["assignment"])
    _use(session, assigned["assignment"], refund=refund)
    return [
        {"attempt": assigned["attempt"], "call": call, "started": START + 10 * n, "ended": START + 10 * n + 5}
        for n, call in enumerate(session.calls)
    ]


def ledger_of(assigned: dict[str, Any], *, message: str = "Somebody will look at it.", number: int | None = None,
              trial: str | None = None) -> bytes:  # fmt: skip
    """The sealed ledger of the same agent."""
    assignment = assigned["assignment"]
    session, customer = open_session(assignment)
    _use(session, assignment, refund=False)
    output = Output(message=message, claimed_outcome="needs_review")
    content = compose(assignment, session, customer, output.message, output.claims().model_dump(mode="json"), None)
    envelope = {
        "version": 1,
        "trial": trial or assigned["trial"],
        "attempt": number or assigned["number"],
        "started": START,
        "ended": START + 1000,
        "calls": [{"started": START + 10 * n, "ended": START + 10 * n + 5} for n in range(len(session.calls))],
        "usage": None,
        "software": software(),
        "isolation": "process",
        "place": {"launcher": "kubernetes", "host": "node-1", "worker": "pod-0"},
        "sealed_by": "recorder",
    }
    return seal(content, envelope)


def _use(session: Any, assignment: dict[str, Any], *, refund: bool) -> None:
    customer = assignment["request"]["customer_id"]
    session.call("list_orders", {"customer_id": customer})
    for record in assignment["records"]:
        session.call("get_order", {"order_id": record["order_id"]})
    if refund:
        order = assignment["records"][0]["order_id"]
        session.call(
            "issue_refund",
            {"order_id": order, "amount_cents": 1, "currency": "USD", "approval_id": None, "idempotency_key": "k"},
        )
