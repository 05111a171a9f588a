"""A mirror of what the cluster has of one kind: listed once, then kept up to date by a watch in a thread of its own."""

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from k8s.api import Api, ApiError, Document, Expired, Query

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
_MOST_DEPARTED = 20_000


class Mirror:
    """The objects under a path.

    It may be behind the cluster: absence here is no proof, ask the API before acting on it.

    Args:
        changed: called, from its thread, after each change.
    """

    def __init__(self, api: Api, path: str, query: Query = (), *, changed: Callable[[], object] = lambda: None) -> None:
        self._api = api
        self._path = path
        self._query = tuple(query)
        self._changed = changed
        self._lock = threading.Lock()
        self._objects: dict[str, Document] = {}
        self._departed: OrderedDict[str, Document] = OrderedDict()
        self._version: str | None = None
        self._synced = threading.Event()
        self._stopping = threading.Event()
        self._heard = time.monotonic()
        self.relisted = 0
        """How often everything was listed."""

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"mirror of {self._path}", daemon=True).start()

    def stop(self) -> None:
        """Has the thread end with its next event; it is a daemon, and nothing waits for it."""
        self._stopping.set()

    def wait_until_synced(self, seconds: float) -> bool:
        return self._synced.wait(seconds)

    @property
    def synced(self) -> bool:
        return self._synced.is_set()

    @property
    def silent_seconds(self) -> float:
        """How long ago the API server was heard."""
        return time.monotonic() - self._heard

    def objects(self) -> dict[str, Document]:
        """Everything by uid, as it is now known; the documents are not to be changed."""
        with self._lock:
            return dict(self._objects)

    def departed(self, uid: str) -> Document | None:
        """How an object was seen last that is no longer there."""
        with self._lock:
            return self._departed.get(uid)

    def all_departed(self) -> list[Document]:
        """Everything that is no longer there and was not forgotten yet."""
        with self._lock:
            return list(self._departed.values())

    def forget(self, uid: str) -> None:
        """What became of a departed object is in the store."""
        with self._lock:
            self._departed.pop(uid, None)

    def put(self, document: Document) -> None:
        """Takes in what an own write was answered with, so that it is known before its event arrives."""
        uid = document["metadata"]["uid"]
        with self._lock:
            if uid not in self._objects and uid not in self._departed:
                self._objects[uid] = _trimmed(document)

    def drop(self, uid: str) -> None:
        """Takes out what the API server said is gone."""
        with self._lock:
            self._depart(uid, self._objects.get(uid))

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._stopping.is_set():
            try:
                if self._version is None:
                    self._relist()
                began = time.monotonic()
                self._follow()
                wait = _FIRST_WAIT
                if time.monotonic() - began < wait:
                    # A server that ends every watch at once is not asked without pause.
                    self._stopping.wait(wait)
            except Expired:
                self._version = None
            except ApiError as error:
                pause = error.retry_after if error.retry_after is not None else random.uniform(wait / 2, wait)  # noqa: S311
                wait = min(wait * 2, _LONGEST_WAIT)
                self._stopping.wait(pause)

    def _relist(self) -> None:
        listed, version = self._api.list_all(self._path, self._query)
        found = {one["metadata"]["uid"]: _trimmed(one) for one in listed}
        with self._lock:
            for uid in self._objects.keys() - found.keys():
                self._depart(uid, self._objects[uid])
            self._objects = found
        self._version = version
        self._heard = time.monotonic()
        self.relisted += 1
        self._synced.set()
        self._changed()

    def _follow(self) -> None:
        assert self._version is not None
        for kind, document in self._api.watch(self._path, self._version, self._query):
            self._heard = time.monotonic()
            metadata = document["metadata"]
            if kind != "BOOKMARK":
                with self._lock:
                    if kind == "DELETED":
                        self._depart(metadata["uid"], _trimmed(document))
                    else:
                        self._objects[metadata["uid"]] = _trimmed(document)
            self._version = metadata["resourceVersion"]
            if kind != "BOOKMARK":
                self._changed()
            if self._stopping.is_set():
                return

    def _depart(self, uid: str, document: Document | None) -> None:
        self._objects.pop(uid, None)
        if document is not None:
            self._departed[uid] = document
            while len(self._departed) > _MOST_DEPARTED:
                self._departed.popitem(last=False)


def _trimmed(document: Document) -> Document:
    """Without who set which field: half of a pod's document, and nobody asks."""
    document["metadata"].pop("managedFields", None)
    return document
