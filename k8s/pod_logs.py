"""What the pods of some launches wrote, by a person's own right to read pods and their logs."""

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from grading.launchers import ClusterUnavailable
from k8s.kubeconfig import API_SECONDS, asking, core_api

LAUNCH_LABEL = "cellwise.dev/launch"
_FOLLOW_SECONDS = 86_400
"""How long a pod that is followed may be silent."""
_CHUNK = 256 * 1024


class PodLogs:
    """What pods wrote, several at once where they are followed."""

    def __init__(self, configuration: Any, namespace: str, *, follow: bool, tail: int | None) -> None:
        self._configuration = configuration
        self._namespace = namespace
        self._follow = follow
        self._tail = tail

    def lines(self, launches: Sequence[str]) -> Iterator[str]:
        pods = self._pods(launches)
        streams = [(pod, container) for pod in pods for container in _containers(pod)]
        if not self._follow:
            for pod, container in streams:
                yield from self._of(pod, container)
            return
        told: queue.Queue[str | Exception | None] = queue.Queue(maxsize=10_000)

        def follow(pod: Any, container: str) -> None:
            try:
                for line in self._of(pod, container):
                    told.put(line)
            except Exception as error:
                told.put(error)
            finally:
                told.put(None)

        for pod, container in streams:
            threading.Thread(target=follow, args=(pod, container), daemon=True).start()
        left = len(streams)
        while left:
            line = told.get()
            if isinstance(line, Exception):
                raise line
            if line is None:
                left -= 1
            else:
                yield line

    def _pods(self, launches: Sequence[str]) -> list[Any]:
        if not launches:
            return []
        namespace = self._namespace
        with asking(
            "list the cell's pods",
            missing=f"there is no namespace {namespace}",
            forbidden=f"you may not list pods in namespace {namespace}: ask for verb list on pods and get on pods/log "
            "there",
        ):
            found = core_api(self._configuration).list_namespaced_pod(
                namespace,
                label_selector=f"{LAUNCH_LABEL} in ({','.join(launches)})",
                _request_timeout=API_SECONDS,
            )
        return sorted(found.items, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    def _of(self, pod: Any, container: str) -> Iterator[str]:
        from kubernetes.client.exceptions import ApiException

        name = pod.metadata.name
        try:
            with asking(
                f"read the log of {name}",
                missing=f"the pod {name} is gone",
                forbidden=f"you may not read logs in namespace {self._namespace}: ask for verb get on pods/log there",
            ):
                answer = core_api(self._configuration).read_namespaced_pod_log(
                    name,
                    self._namespace,
                    container=container,
                    follow=self._follow,
                    **({"tail_lines": self._tail} if self._tail is not None else {}),
                    _preload_content=False,
                    _request_timeout=(API_SECONDS, _FOLLOW_SECONDS if self._follow else API_SECONDS),
                )
                rest = b""
                for piece in answer.stream(_CHUNK):
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        yield f"{name}/{container}: {line.decode(errors='backslashreplace')}"
                if rest:
                    yield f"{name}/{container}: {rest.decode(errors='backslashreplace')}"
        except ClusterUnavailable as error:
            # A container that has not started, or a pod that went meanwhile: the others still have something to say.
            cause = error.__cause__
            if isinstance(cause, ApiException) and cause.status in (400, 404):
                yield f"{name}/{container}: (no log: {_waiting(pod, container) or error})"
                return
            raise


def _containers(pod: Any) -> list[str]:
    """The recorder, and the agent beside it, which is an init container that stays."""
    return [one.name for one in [*(pod.spec.init_containers or []), *pod.spec.containers]]


def _waiting(pod: Any, container: str) -> str | None:
    statuses = [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]
    found = next((one for one in statuses if one.name == container), None)
    waiting = found.state.waiting if found is not None and found.state is not None else None
    if waiting is not None:
        return f"{waiting.reason}: {waiting.message}" if waiting.message else str(waiting.reason)
    return None if found is not None else f"pod is {pod.status.phase}"
