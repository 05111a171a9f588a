"""Leader election on a coordination.k8s.io Lease, so that one controller does the work at a time.

It saves work and conflicts, no more: between two looks at the clock two may believe that they lead. What keeps two
from doing harm is the store, which fences. Source: the algorithm of client-go's leaderelection, which never compares
the clocks of two machines either: a holder is gone whose record did not change for a lease's length by one's own clock.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from k8s.api import Api, ApiError, Document

DURATION_SECONDS = 15.0
RENEW_SECONDS = 4.0
"""Three renewals may fail before another takes over."""


class Lease:
    """This process's bid for a Lease.

    Args:
        identity: whose bid it is: the pod's name and something that a restart changes.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration_seconds: float = DURATION_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._name = name
        self.identity = identity
        self._duration = duration_seconds
        self._clock = clock
        self._held_until = 0.0
        self._seen: tuple[str, float] | None = None
        """The record's version, and when it was first seen."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> bool:
        return self._clock() < self._held_until

    def start(self, renew_seconds: float = RENEW_SECONDS) -> None:
        """Bids and renews in a thread of its own: a long step of the loop does not lose the Lease."""
        self._thread = threading.Thread(target=self._run, args=(renew_seconds,), name="lease", daemon=True)
        self._thread.start()

    def bid(self) -> bool:
        """Takes or renews the Lease where that is due; whether it is held.

        Raises:
            ApiError: where the API server does not answer; what was held stays held until its time is over.
        """
        asked = self._clock()
        current = self._api.find(self._path)
        try:
            if current is None:
                self._api.create(self._collection, self._record(None))
            elif self._may_take(current):
                self._api.replace(self._path, self._record(current))
            else:
                self._held_until = 0.0
                return False
        except ApiError as error:
            if error.status != 409:
                raise
            # Somebody else was faster. It may have been this one, with an answer that was lost: the next look tells.
            return self.held
        self._held_until = asked + self._duration
        return True

    def release(self) -> None:
        """Lets go of it, so that the next one need not wait until it runs out."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        held, self._held_until = self.held, 0.0
        if not held:
            return
        try:
            current = self._api.find(self._path)
            if current is not None and current["spec"].get("holderIdentity") == self.identity:
                # Unchanged since: a precondition by its version.
                spec = {**current["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self._api.request("PUT", self._path, body={**current, "spec": spec}, patience_seconds=2.0)
        except ApiError:
            return  # It runs out by itself.

    def _run(self, renew_seconds: float) -> None:
        while not self._stopping.is_set():
            try:
                self.bid()
            except ApiError:
                self._stopping.wait(1.0)
                continue
            self._stopping.wait(renew_seconds)

    def _may_take(self, current: Document) -> bool:
        spec = current.get("spec") or {}
        holder = spec.get("holderIdentity")
        version = str(current["metadata"]["resourceVersion"])
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._clock())
        if holder in (None, "", self.identity):
            return True
        lasts = float(spec.get("leaseDurationSeconds") or self._duration)
        return self._clock() - self._seen[1] > lasts

    def _record(self, current: Document | None) -> Document:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (current or {}).get("spec") or {}
        taken_over = before.get("holderIdentity") != self.identity
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": round(self._duration),
            "acquireTime": now if taken_over else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (1 if taken_over and current else 0),
        }
        metadata = {"name": self._name} if current is None else current["metadata"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
