"""A Kubernetes API server of kmock's with what the emulator lacks and the controller relies on: versions, watches that
resume and expire, bookmarks, selectors, preconditions; and a Job controller whose pods do what a test says.
"""

import asyncio
import copy
import itertools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import aiohttp.web
import kmock
from kubernetes import client

Document = dict[str, Any]
Fault = Callable[[kmock.Request], Any]
"""A status or an error that answers a request instead of the server; None where it does not."""

_PATH = re.compile(r"/apis?/(?:[a-z0-9.]+/)?v1/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?")
_KINDS = {"jobs": "Job", "pods": "Pod", "events": "Event", "leases": "Lease"}


class Refusal(Exception):  # noqa: N818 - an answer
    """A status with headers and a Status document."""

    def __init__(self, status: int, reason: str = "", message: str = "", **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.document = {"kind": "Status", "code": status, "reason": reason, "message": message}


class _Handler(kmock.KubernetesScaffold):
    async def _render_error(self, exc: Exception) -> aiohttp.web.StreamResponse:
        if isinstance(exc, Refusal):
            return aiohttp.web.json_response(exc.document, status=exc.status, headers=exc.headers)
        return await super()._render_error(exc)


def stamp(when: datetime | None = None) -> str:
    return (when or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeCluster:
    """Served in a thread of its own. Everything may be looked at and changed from the test's."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Document]] = {kind: {} for kind in _KINDS}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        """Method and path of each, the watches too; queries are in ``queries``."""
        self.queries: list[dict[str, str]] = []
        self.bookmarks = True
        self._version = itertools.count(100)
        self._latest = 99
        self._oldest = 0
        self._log: list[tuple[int, str, str, Document]] = []
        self._uids = itertools.count(1)
        self._lock = threading.RLock()
        self._cut = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._ended: asyncio.Event
        self.url = ""
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> "FakeCluster":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)
        self._loop.close()

    def configuration(self) -> client.Configuration:
        found = client.Configuration()
        found.host = self.url
        return found

    # What a test does to it

    def put(self, kind: str, document: Document) -> Document:
        """Creates or changes an object, as any client of the cluster might."""
        with self._lock:
            metadata = document["metadata"]
            known = self.objects[kind].get(metadata["name"])
            metadata.setdefault("uid", known["metadata"]["uid"] if known else f"uid-{next(self._uids)}")
            metadata.setdefault("creationTimestamp", stamp())
            self._change(kind, "MODIFIED" if known else "ADDED", document)
            return copy.deepcopy(document)

    def change(self, kind: str, name: str, **members: Any) -> None:
        """Replaces top-level members of an object; metadata is merged."""
        with self._lock:
            document = copy.deepcopy(self.objects[kind][name])
            document["metadata"] |= members.pop("metadata", {})
            self._change(kind, "MODIFIED", document | members)

    def remove(self, kind: str, name: str) -> None:
        """Deletes an object, and what belongs to it, at once."""
        with self._lock:
            document = self.objects[kind].pop(name)
            self._change(kind, "DELETED", document)
            if kind == "jobs":
                for pod in self.pods_of(document):
                    self.remove("pods", pod["metadata"]["name"])

    def compact(self) -> None:
        """Forgets what changed until now: who watches from before must list again."""
        with self._lock:
            self._oldest = self._latest
            self._log.clear()

    def cut_watches(self) -> None:
        """Breaks the connections of all watches."""
        with self._lock:
            self._cut += 1

    def count(self, method: str, path: str) -> int:
        return sum(1 for one in self.requests if one[0] == method and re.fullmatch(path, one[1]))

    def fail_once(self, method: str, path: str, answer: Any, *, times: int = 1) -> None:
        """Refuses the next requests of a kind so: a status, or a refusal."""
        left = [times]

        def fault(request: kmock.Request) -> Any:
            if request.method.value != method or not re.fullmatch(path, request.url.path) or left[0] == 0:
                return None
            left[0] -= 1
            return answer

        self.faults.append(fault)

    # Jobs and pods

    def pods_of(self, job: Document) -> list[Document]:
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self.objects["pods"].values()
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))
        ]

    def run_jobs(self) -> None:
        """One step of the Job controller: missing pods are created, Jobs whose indexes are done end."""
        with self._lock:
            for job in list(self.objects["jobs"].values()):
                spec = job.get("spec", {})
                if "completions" not in spec or spec.get("suspend") or _is_over(job):
                    continue
                self._run_job(job)

    def _run_job(self, job: Document) -> None:
        spec, done, failed, active = job["spec"], set(), set(), set()
        tries: dict[int, int] = {}
        for pod in self.pods_of(job):
            index = int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])
            phase = pod["status"]["phase"]
            if phase == "Succeeded":
                done.add(index)
            elif phase == "Failed":
                codes = [one["state"]["terminated"]["exitCode"] for one in pod["status"].get("containerStatuses", ())]
                disrupted = any(one["type"] == "DisruptionTarget" for one in pod["status"].get("conditions", ()))
                tries[index] = tries.get(index, 0) + (not disrupted)
                if 78 in codes or tries[index] > spec["backoffLimitPerIndex"]:
                    failed.add(index)
            else:
                active.add(index)
        for index in range(spec["completions"]):
            if index in done | failed | active or len(active) >= spec["parallelism"]:
                continue
            active.add(index)
            self._create_pod(job, index)
        status: Document = {"active": len(active), "succeeded": len(done), "failed": sum(tries.values())}
        if failed:
            status["failedIndexes"] = ",".join(map(str, sorted(failed)))
        if len(done | failed) == spec["completions"]:
            status["conditions"] = [{"type": "Failed" if failed else "Complete", "status": "True"}]
        if status != job.get("status"):
            self.change("jobs", job["metadata"]["name"], status=status)

    def _create_pod(self, job: Document, index: int) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        number = next(self._uids)
        annotations = {**template["metadata"]["annotations"], "batch.kubernetes.io/job-completion-index": str(index)}
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
        self.put(
            "pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-{index}-{number:05d}",
                    "labels": template["metadata"]["labels"],
                    "annotations": annotations,
                    "ownerReferences": [owner],
                },
                "spec": {**template["spec"], "nodeName": "node-1"},
                "status": {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
            },
        )

    def end_pod(self, name: str, code: int, *, reason: str | None = None, message: str = "", **status: Any) -> None:
        """A pod whose recorder ended with this code; ``status``: other members of its status."""
        word = reason or ("Completed" if code == 0 else "Error")
        state = {"terminated": {"exitCode": code, "reason": word, "message": message}}
        new = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [{"name": "recorder", "state": state, "restartCount": 0}],
        }
        self.change("pods", name, status=new | status)

    # The server

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        async with _Handler() as handler, kmock.Server(handler, user_agent="") as server:
            handler.fallback << self._answer
            self.url = str(server.url).rstrip("/")
            self._ready.set()
            await self._ended.wait()
            self.cut_watches()
            await asyncio.sleep(0.05)

    def _answer(self, request: kmock.Request) -> Any:
        with self._lock:
            self.requests.append((request.method.value, request.url.path))
            self.queries.append(dict(request.params))
            for fault in self.faults:
                if (answer := fault(request)) is not None:
                    raise Refusal(answer) if isinstance(answer, int) else answer
            found = _PATH.fullmatch(request.url.path)
            if found is None:
                raise Refusal(404, "NotFound", request.url.path)
            _, kind, name = found.groups()
            if request.params.get("watch"):
                return self._watch(kind, request)
            return getattr(self, f"_{request.method.value.lower()}")(kind, name, request)

    def _get(self, kind: str, name: str | None, request: kmock.Request) -> Any:
        if name is not None:
            if name not in self.objects[kind]:
                raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
            return copy.deepcopy(self.objects[kind][name])
        items = [copy.deepcopy(one) for one in self.objects[kind].values() if _selected(one, request)]
        first, limit = int(request.params.get("continue") or 0), int(request.params.get("limit") or 10**9)
        metadata = {"resourceVersion": str(self._latest)}
        if first + limit < len(items):
            metadata["continue"] = str(first + limit)
        return {"kind": f"{_KINDS[kind]}List", "metadata": metadata, "items": items[first : first + limit]}

    def _post(self, kind: str, name: str | None, request: kmock.Request) -> Any:
        document = request.data
        if document["metadata"]["name"] in self.objects[kind]:
            raise Refusal(409, "AlreadyExists", f'{kind} "{document["metadata"]["name"]}" already exists')
        return self.put(kind, document)

    def _put(self, kind: str, name: str, request: kmock.Request) -> Any:
        self._expect_version(kind, name, request)
        return self.put(kind, request.data)

    def _patch(self, kind: str, name: str, request: kmock.Request) -> Any:
        self._expect_version(kind, name, request)
        document = copy.deepcopy(self.objects[kind][name])
        document["spec"] |= request.data.get("spec", {})
        return self.put(kind, document)

    def _expect_version(self, kind: str, name: str, request: kmock.Request) -> None:
        if name not in self.objects[kind]:
            raise Refusal(404, "NotFound", name)
        wanted = request.data["metadata"].get("resourceVersion")
        if wanted not in (None, self.objects[kind][name]["metadata"]["resourceVersion"]):
            raise Refusal(409, "Conflict", "the object has been modified")

    def _delete(self, kind: str, name: str, request: kmock.Request) -> Any:
        if name not in self.objects[kind]:
            raise Refusal(404, "NotFound", name)
        uid = self.objects[kind][name]["metadata"]["uid"]
        if request.data["preconditions"]["uid"] != uid:
            raise Refusal(409, "Conflict", f"the UID in the precondition is not {uid}")
        self.remove(kind, name)
        return {"kind": "Status", "status": "Success"}

    async def _watch(self, kind: str, request: kmock.Request) -> AsyncIterator[Any]:
        yield b""
        seen, cut = int(request.params["resourceVersion"]), self._cut
        if seen < self._oldest:
            yield {
                "type": "ERROR",
                "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"},
            }
            return
        deadline = time.monotonic() + int(request.params["timeoutSeconds"])
        bookmark = time.monotonic()
        while time.monotonic() < deadline and not self._ended.is_set():
            with self._lock:
                new = [one for one in self._log if one[0] > seen and one[1] == kind and _selected(one[3], request)]
                latest = self._latest
            for _, _, change, document in new:
                yield {"type": change, "object": document}
            seen = latest
            if self._cut != cut:
                raise ConnectionResetError
            if self.bookmarks and time.monotonic() - bookmark > 0.2:
                bookmark = time.monotonic()
                metadata = {"resourceVersion": str(seen)}
                yield {"type": "BOOKMARK", "object": {"kind": _KINDS[kind], "metadata": metadata}}
            await asyncio.sleep(0.01)

    def _change(self, kind: str, change: str, document: Document) -> None:
        self._latest = next(self._version)
        document["metadata"]["resourceVersion"] = str(self._latest)
        if change != "DELETED":
            self.objects[kind][document["metadata"]["name"]] = document
        self._log.append((self._latest, kind, change, copy.deepcopy(document)))


def _is_over(job: Document) -> bool:
    return any(one["type"] in ("Complete", "Failed") for one in job.get("status", {}).get("conditions", ()))


def _selected(document: Document, request: kmock.Request) -> bool:
    labels = document["metadata"].get("labels") or {}
    for term in filter(None, request.params.get("labelSelector", "").split(",")):
        name, _, value = term.partition("=")
        if labels.get(name) != value:
            return False
    for term in filter(None, request.params.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = document
        for part in path.split("."):
            found = found.get(part, {})
        if found != value:
            return False
    return True
