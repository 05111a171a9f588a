"""The controller's process: it holds a Lease, steps, says how it is, and lets go of the Lease when told to end."""

import logging
import os
import random
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any

import structlog
from kubernetes.config import ConfigException

from grading.file_error import FileError
from grading.store import Store, StoreError
from k8s import health, metrics
from k8s.api import Api, ApiError
from k8s.lease import Lease
from k8s.reconciling import Reconciler
from k8s.settings import Settings, SettingsMissing, read_settings, store_address

log: Any = structlog.get_logger("cellwise.controller")

PORT = 9090
_SHORTEST_WAIT = 1.0
"""Seconds between two steps, at least: with hundreds of pods something always changes, and they need the processor."""
_ASK_SECONDS = 0.2
"""How soon it notices a new matrix, or the end of one, meanwhile."""
_LONGEST_WAIT = 10.0
_NOT_ADVANCING_SECONDS = 120.0
"""A loop that is slower is stuck: longer than any request may take with all its tries."""


class Controller:
    """The loop around a reconciler.

    Args:
        identity: whose bid for the Lease it is.
    """

    def __init__(self, store: Store, api: Api, settings: Settings, identity: str) -> None:
        self._api = api
        self._wait = settings.reconcile_seconds
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._reconciler = Reconciler(store, api, settings, wake=self._wake.set)
        self._lease = Lease(api, settings.namespace, settings.lease_name, identity)
        self._advanced = time.monotonic()
        self._counted = 0

    @property
    def advances(self) -> bool:
        """Whether the loop goes round, be it to stand by or to wait for the store."""
        return time.monotonic() - self._advanced < _NOT_ADVANCING_SECONDS

    @property
    def ready(self) -> bool:
        """Whether it has heard of everything: it then works, or could at once."""
        return all(mirror.synced for mirror in self._reconciler.mirrors)

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Until :meth:`stop`, which ends it after the step that it is in."""
        self._reconciler.start()
        self._lease.start()
        wait, leading = self._wait, False
        try:
            while not self._stopping.is_set():
                self._advanced = time.monotonic()
                if self._lease.held != leading:
                    leading = not leading
                    log.info("leading" if leading else "standing_by", identity=self._lease.identity)
                    metrics.LEADING.set(leading)
                moved = False
                if leading and self.ready:
                    wait, moved = self._step(wait)
                self._tell()
                self._rest(_SHORTEST_WAIT if moved else wait)
        finally:
            self._reconciler.stop()
            self._lease.release()
            log.info("stopped")

    def _step(self, wait: float) -> tuple[float, bool]:
        """One step, and how long to wait after it: longer each time while it fails."""
        try:
            with metrics.STEP_SECONDS.time():
                moved = self._reconciler.step()
        except (StoreError, ApiError) as error:
            metrics.STEPS.labels(outcome=type(error).__name__).inc()
            log.warning("step_failed", error=str(error), kind=type(error).__name__)
            return min(_LONGEST_WAIT, wait * random.uniform(1.5, 2.5)), False  # noqa: S311 - jitter
        metrics.STEPS.labels(outcome="moved" if moved else "still").inc()
        return self._wait, moved

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + _SHORTEST_WAIT
        while (left := until - time.monotonic()) > 0:
            if self._stopping.wait(min(_ASK_SECONDS, left)) or self._is_wanted():
                return
        self._wake.wait(max(0.0, seconds - _SHORTEST_WAIT))
        self._wake.clear()

    def _is_wanted(self) -> bool:
        try:
            return self._lease.held and self._reconciler.is_wanted()
        except StoreError:
            # The next step tells.
            return False

    def _tell(self) -> None:
        metrics.API_CALLS.inc(self._api.calls - self._counted)
        self._counted = self._api.calls
        for kind, mirror in zip(("jobs", "pods", "refusals"), self._reconciler.mirrors, strict=True):
            metrics.RELISTED.labels(kind=kind).set(mirror.relisted)
            metrics.MIRROR_SILENT.labels(kind=kind).set(mirror.silent_seconds)


def main() -> int:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stdout),
    )
    try:
        settings, address = read_settings(), store_address()
        api = Api.of_this_pod()
    except (FileError, SettingsMissing, ConfigException) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 78
    try:
        store = Store.open(address, create=False)
    except StoreError as error:
        # Its kubelet starts it again, with a pause that grows, until the store is there and up to date.
        print(f"controller: {error}", file=sys.stderr)
        return 75
    identity = f"{os.environ.get('HOSTNAME', 'controller')}-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    controller = Controller(store, api, settings, identity)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: controller.stop())
    with health.served(
        PORT, metrics.REGISTRY, {"/healthz": lambda: controller.advances, "/readyz": lambda: controller.ready}
    ):
        log.info("started", identity=identity, namespace=settings.namespace, cells_namespace=settings.cells_namespace)
        controller.run()
    store.close()
    api.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
