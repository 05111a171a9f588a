"""The intake of a cluster: ``python -m k8s.intake``, the only way in for pods and people.

Three ports: the cells' (grading/cells_service.py), the people's (grading/people_service.py), and one for Prometheus and
the kubelet. SIGTERM drains: it is no longer ready, then takes no new connections, then answers what it was asked.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import anyio
import anyio.to_thread
import orjson
import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grading.cells_service import cells_app
from grading.file_error import FileError
from grading.people_service import people_app
from grading.store import Store, StoreAway, StoreError, claiming
from k8s.api import Api
from k8s.identity import Identity
from k8s.settings import Settings, SettingsMissing, read_settings, store_address

CELLS_PORT, PEOPLE_PORT, METRICS_PORT = 8080, 8081, 9090

_DRAIN_SECONDS = 4.0
"""Between not being ready and taking nothing more: until then the cluster's nodes may still send pods here."""
_ANSWER_SECONDS = 20
"""For what is being worked on when it ends."""
_KEEP_ALIVE_SECONDS = 75
_READY_SECONDS = 1.0
_CHECK_SECONDS = 3.0
_REOPEN_SECONDS = 2.0

_NAME = "cellwise.intake"

log = structlog.stdlib.get_logger(_NAME)


class Metrics:
    """What Prometheus may ask."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "cellwise_intake_requests", "Requests, by port, route and status", ["port", "route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "cellwise_intake_request_seconds",
            "From a request's head to the end of its answer",
            ["port", "route"],
            buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "cellwise_intake_requests_in_flight", "Requests that are being answered", ["port"], registry=self.registry
        )
        self.ledgers = Counter(
            "cellwise_intake_ledgers", "Ledgers, by what became of them", ["outcome"], registry=self.registry
        )
        self.api_calls = Counter(
            "cellwise_intake_api_calls", "Calls of the Kubernetes API to find out who asks", ["resource"],
            registry=self.registry,
        )  # fmt: skip
        self.store_seconds = Histogram(
            "cellwise_intake_transaction_seconds",
            "Writing transactions of the store, from their beginning until they were durable",
            ["transaction"],
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=self.registry,
        )
        self.attempts = Gauge("cellwise_intake_attempts_in_flight", "Attempts that pods hold", registry=self.registry)

    def watch(self, store: Store) -> None:
        """Measures a store's transactions."""
        store.watch = lambda name, seconds: self.store_seconds.labels(name).observe(seconds)


class Readiness:
    """Whether the store can be written, looked at once a second at most."""

    def __init__(self, store: Callable[[], Store | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = anyio.Lock()
        self._looked: float | None = None
        self._problem: str | None = None
        self.draining = False

    async def problem(self) -> str | None:
        """Why it is not ready, None where it is."""
        if self.draining:
            return "it is ending"
        async with self._lock:
            if self._looked is None or self._clock() - self._looked >= _READY_SECONDS:
                self._problem = await self._look()
                self._looked = self._clock()
        return self._problem

    async def _look(self) -> str | None:
        store = self._store()
        if store is None:
            return "the store is not open yet"
        try:
            with anyio.fail_after(_CHECK_SECONDS):
                await anyio.to_thread.run_sync(store.check_writable, abandon_on_cancel=True)
        except TimeoutError:
            return f"the store does not answer within {_CHECK_SECONDS:g} s"
        except StoreError as error:
            return str(error)
        return None


class Telling:
    """Counts each request of a port and writes one line of log for it: no body, no token."""

    def __init__(self, app: ASGIApp, port: str, metrics: Metrics) -> None:
        self._app = app
        self._port = port
        self._metrics = metrics
        self._log = _log_of_requests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        status = 500
        began = time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with self._metrics.in_flight.labels(self._port).track_inprogress():
                await self._app(scope, receive, sending)
        finally:
            self._tell(scope, state, status, time.perf_counter() - began)

    def _tell(self, scope: Scope, state: dict[str, Any], status: int, seconds: float) -> None:
        route = route_of(scope["path"])
        self._metrics.requests.labels(self._port, route, str(status)).inc()
        self._metrics.seconds.labels(self._port, route).observe(seconds)
        told = state.get("told") or {}
        if route in ("/v1/ledger", "/v1/turn") and "outcome" in told:
            self._metrics.ledgers.labels(told["outcome"]).inc()
        line = {"port": self._port, "route": route, "status": status, "seconds": round(seconds, 4), **told}
        if "denied" in state:
            line["denied"] = state["denied"]
        if status >= 500 and status != 503:
            self._log.error("request", **line)
        elif status >= 400:
            self._log.warning("request", **line)
        else:
            self._log.info("request", **line)


def _log_of_requests() -> Any:
    """Lines as :func:`log_as_json` has them, past the standard library's logging: each trial has one."""
    of_requests = structlog.wrap_logger(
        structlog.BytesLogger(sys.stdout.buffer),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return of_requests.bind(logger=_NAME)


def route_of(path: str) -> str:
    """A path without what differs from request to request; ``other`` for those that nothing serves."""
    parts = path.split("/")
    if path in (
        "/v1/assignment",
        "/v1/journal",
        "/v1/ledger",
        "/v1/turn",
        "/v1/unusable",
        "/v1/whoami",
        "/v1/matrices",
    ):
        return path
    if path.startswith("/v1/matrices/") and len(parts) == 4:
        return "/v1/matrices/{word}"
    last = parts[-1]
    if path.startswith("/v1/matrices/") and len(parts) == 5 and last in _OF_A_MATRIX:
        return f"/v1/matrices/{{word}}/{last}"
    return "other"


_OF_A_MATRIX = frozenset({"attempts", "manifest", "ledgers", "incidents", "pause", "resume", "cancel"})


def watch_app(metrics: Metrics, readiness: Readiness, store: Callable[[], Store | None]) -> Starlette:
    """The port of Prometheus and the kubelet."""

    async def measured(_: Request) -> Response:
        metrics.attempts.set(await _in_flight(store()))
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        problem = await readiness.problem()
        return PlainTextResponse(f"{problem or 'ok'}\n", 200 if problem is None else 503)

    return Starlette(
        routes=[Route("/metrics", measured), Route("/healthz", healthy), Route("/readyz", ready)],
    )


async def _in_flight(store: Store | None) -> float:
    if store is None:
        return float("nan")
    try:
        with anyio.fail_after(_CHECK_SECONDS):
            return await anyio.to_thread.run_sync(claiming.count_held, store, abandon_on_cancel=True)
    except (TimeoutError, StoreError):
        return float("nan")


class Intake:
    """The process, from its start to its drained end.

    Args:
        address: of the store.
        sockets: bound ones, for cells, people, and metrics.
    """

    def __init__(
        self,
        settings: Settings,
        address: str,
        api: Api,
        sockets: tuple[socket.socket, socket.socket, socket.socket],
        *,
        drain_seconds: float = _DRAIN_SECONDS,
    ) -> None:
        self._settings = settings
        self._address = address
        self._api = api
        self._sockets = sockets
        self._drain_seconds = drain_seconds
        self._store: Store | None = None
        self._metrics = Metrics()
        self._readiness = Readiness(lambda: self._store)
        self._ending = anyio.Event()
        self._servers: list[uvicorn.Server] = []

    def end(self) -> None:
        """Drains. To be called in the event loop."""
        self._readiness.draining = True
        self._ending.set()

    async def run(self) -> None:
        """Serves until it is told to end.

        Raises:
            StoreError: the store is none, or one of a newer version. While it is away it waits.
        """
        failure: StoreError | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._drain)
                # First of all, so that the kubelet hears that it lives while the store is away.
                watching = self.server(watch_app(self._metrics, self._readiness, lambda: self._store))
                tasks.start_soon(watching.serve, [self._sockets[2]])
                try:
                    self._store = await self._opened()
                except StoreError as error:
                    failure = error
                if self._store is not None:
                    await self._serve(self._store)
                watching.should_exit = True
                self._ending.set()
        finally:
            for one in self._sockets:
                one.close()
            if self._store is not None:
                self._store.close()
            self._api.close()
        if failure is not None:
            raise failure

    async def _serve(self, store: Store) -> None:
        self._metrics.watch(store)
        settings = self._settings
        identity = Identity(
            self._api, store, settings, count=lambda resource: self._metrics.api_calls.labels(resource).inc()
        )
        cells = cells_app(store, identity.cell, lease_seconds=settings.lease_seconds)
        people = people_app(store, identity.person, cells_namespace=settings.cells_namespace)
        self._servers = [
            self.server(Telling(cells, "cells", self._metrics)),
            self.server(Telling(people, "people", self._metrics)),
        ]
        if self._ending.is_set():
            return
        log.info("serving", cells=_port(self._sockets[0]), people=_port(self._sockets[1]))
        async with anyio.create_task_group() as tasks:
            for server, bound in zip(self._servers, self._sockets, strict=False):
                tasks.start_soon(server.serve, [bound])
        log.info("ended")

    async def _opened(self) -> Store | None:
        """The store, waited for while it is away; None where it is to end before."""
        while not self._ending.is_set():
            try:
                return await anyio.to_thread.run_sync(lambda: Store.open(self._address, create=False))
            except StoreAway as error:
                log.warning("the store is away", detail=str(error))
            with anyio.move_on_after(_REOPEN_SECONDS):
                await self._ending.wait()
        return None

    async def _drain(self) -> None:
        await self._ending.wait()
        if self._servers and not all(server.should_exit for server in self._servers):
            log.info("draining")
            await anyio.sleep(self._drain_seconds)
        for server in self._servers:
            server.should_exit = True

    @staticmethod
    def server(app: ASGIApp) -> uvicorn.Server:
        return _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_ANSWER_SECONDS,
                server_header=False,
                proxy_headers=False,
            )
        )


class _Server(uvicorn.Server):
    """One of several in a process, which takes the signals itself."""

    def capture_signals(self) -> Any:
        return nullcontext()


def bound(port: int) -> socket.socket:
    """A socket that takes connections of both families where the machine has both.

    Its protocol is named: asyncio has answers sent at once (TCP_NODELAY) on sockets alone that say they are TCP, and an
    answer of two parts otherwise waits 40 ms for the first one's acknowledgement.
    """
    dualstack = socket.has_dualstack_ipv6()
    listening = socket.socket(socket.AF_INET6 if dualstack else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dualstack:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(("", port))
        listening.listen(2048)
    except BaseException:
        listening.close()
        raise
    return listening


def _port(of: socket.socket) -> int:
    port: int = of.getsockname()[1]
    return port


def log_as_json(level: int = logging.INFO) -> None:
    """One JSON object a line on standard output, what libraries log too."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(sort_keys=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # It says of each server when it starts and ends; that is said here, for all of them.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


@contextmanager
def _ended_by_signals(intake: Intake) -> Iterator[None]:
    import asyncio

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, intake.end)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _run(made: Callable[[], Intake]) -> None:
    intake = made()
    with _ended_by_signals(intake):
        await intake.run()


def main() -> None:
    """``python -m k8s.intake``: settings from the file that CELLWISE_SETTINGS names, the store from CELLWISE_STORE."""
    from kubernetes.config import ConfigException

    log_as_json()
    try:
        settings, address = read_settings(), store_address()
        api = Api.of_this_pod()
        sockets = bound(CELLS_PORT), bound(PEOPLE_PORT), bound(METRICS_PORT)
        # Of a saturated intake's processor, asyncio's own loop and parser take the larger part.
        anyio.run(_run, lambda: Intake(settings, address, api, sockets), backend_options={"use_uvloop": True})
    except (FileError, SettingsMissing, StoreError, ConfigException, OSError) as error:
        log.error("cannot start", detail=str(error))
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
