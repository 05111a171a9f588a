"""The way into a cluster by a person's kubeconfig rights alone: a port-forward to the intake, and a short-lived token.

What a person may do with matrices is decided in the cluster: whoever may request a token of the ServiceAccount
``cellwise-viewer`` may read, of ``cellwise-editor`` start, pause and cancel. The kubernetes client is loaded when it is
used: it takes longer to import than most commands of ours take.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading.launchers import ClusterRefused, ClusterUnavailable, Role

AUDIENCE = "cellwise-people"
SERVICE = "cellwise-intake"
PEOPLE_PORT = "people"
DEFAULT_NAMESPACE = "cellwise"
LAUNCH_LABEL = "cellwise.dev/launch"

TOKEN_SECONDS = 600
"""The shortest life that the API server gives a token."""
_RENEW_BEFORE_SECONDS = 120
_API_SECONDS = 20
_CONNECT_SECONDS = 15.0
_FOLLOW_SECONDS = 86_400
"""How long a pod that is followed may be silent."""
_CHUNK = 256 * 1024


class Cluster:
    """A cluster, as a kubeconfig context names it.

    Raises:
        ClusterUnavailable: where no configuration can be used.
    """

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self._configuration, found, own_namespace = _configured(context)
        self.context = found
        self.namespace = namespace or own_namespace or DEFAULT_NAMESPACE

    @contextmanager
    def reach(self, role: Role) -> Iterator["Reached"]:
        """A port-forward to a ready intake, and tokens of the ServiceAccount of a role.

        Raises:
            ClusterUnavailable: with what is missing: a right, the service, a ready pod.
        """
        tokens = _Tokens(self._configuration, self.namespace, role)
        tokens.now()
        intake = _Intake(self._configuration, self.namespace)
        intake.ready_pods()
        forward = _Forward(intake)
        try:
            yield Reached(forward, tokens)
        finally:
            forward.close()

    def logs(
        self, namespace: str | None, launches: Sequence[str], *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """The lines of the pods of some launches, by the person's own right to read pods and their logs."""
        yield from _Logs(self._configuration, namespace or self.namespace, follow=follow, tail=tail).lines(launches)


class Reached:
    """An open way to the people API."""

    def __init__(self, forward: "_Forward", tokens: "_Tokens") -> None:
        self._forward = forward
        self._tokens = tokens

    @property
    def url(self) -> str:
        return self._forward.url

    @property
    def trouble(self) -> str | None:
        return self._forward.trouble

    def token(self, *, renew: bool = False) -> str:
        return self._tokens.now(renew=renew)


def _configured(context: str | None) -> tuple[Any, str, str | None]:
    """The client's configuration, the context's name and its namespace, by KUBECONFIG or ~/.kube/config.

    Exec plugins, such as that of GKE, are run by the client whenever their token has run out.
    """
    from kubernetes import client, config
    from kubernetes.config.kube_config import KubeConfigMerger

    # The client itself looks at the variable once, when it is imported.
    where = os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    try:
        merged = KubeConfigMerger(where).config
        if merged is None:
            raise ClusterRefused(f"no cluster is configured: there is no {where}; KUBECONFIG names another file")
        named = {one["name"]: one["context"] for one in merged.value["contexts"]}
        wanted = context or merged.value.get("current-context")
        if not wanted or wanted not in named:
            known = ", ".join(sorted(named)) or "none"
            missing = f"no context is called '{wanted}'" if wanted else "the kubeconfig has no current context"
            raise ClusterRefused(f"{missing}: --context is one of {known} ({where})")
        configuration = client.Configuration()
        config.load_kube_config(
            config_file=where, context=wanted, client_configuration=configuration, persist_config=False
        )
    except ClusterUnavailable:
        raise
    except Exception as error:
        # A file that is malformed, or a plugin that fails, shows itself by whatever the client trips over.
        message = f"the kubeconfig {where} cannot be used: {_first_line(error)}"
        raise ClusterRefused(message) from error
    # The command line waits and tells why by itself.
    configuration.retries = 1
    return configuration, wanted, named[wanted].value.get("namespace")


def _core(configuration: Any) -> Any:
    """An API object of its own: the client's port-forward changes its ApiClient for as long as it connects."""
    from kubernetes import client

    return client.CoreV1Api(client.ApiClient(configuration))


@contextmanager
def _asking(what: str, *, missing: str, forbidden: str) -> Iterator[None]:
    """Errors of the API server as what a person can do about them."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        refusals = {
            401: "the cluster does not know who you are: log in again, or mend the context's user",
            403: forbidden,
            404: missing,
        }
        if error.status in refusals:
            raise ClusterRefused(refusals[error.status]) from error
        raise ClusterUnavailable(f"{what}: the API server answers {error.status} {error.reason}") from error
    except (HTTPError, OSError) as error:
        raise ClusterUnavailable(f"the API server cannot be reached to {what}: {_first_line(error)}") from error


class _Tokens:
    """Tokens of a role's ServiceAccount, asked for by the person's right to do so, and renewed in time."""

    def __init__(self, configuration: Any, namespace: str, role: Role) -> None:
        self._configuration = configuration
        self._namespace = namespace
        self._account = f"cellwise-{role}"
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def now(self, *, renew: bool = False) -> str:
        with self._lock:
            if renew or time.monotonic() >= self._until:
                self._request()
            return self._token

    def _request(self) -> None:
        from kubernetes import client

        account, namespace = self._account, self._namespace
        wanted = client.AuthenticationV1TokenRequest(
            spec=client.V1TokenRequestSpec(audiences=[AUDIENCE], expiration_seconds=TOKEN_SECONDS)
        )
        with _asking(
            f"request a token of {account}",
            missing=f"there is no ServiceAccount {account} in namespace {namespace}: install Cellwise there, or name "
            "its namespace with --namespace",
            forbidden=f"you may not request a token of ServiceAccount {account} in namespace {namespace}: ask for the "
            f"Role {account} there (verb create on serviceaccounts/token, resourceNames [{account}])",
        ):
            given = _core(self._configuration).create_namespaced_service_account_token(
                account, namespace, wanted, _request_timeout=_API_SECONDS
            )
        self._token = given.status.token
        # By the time given, not by this machine's clock, which may be another one than the cluster's.
        seconds = given.spec.expiration_seconds or TOKEN_SECONDS
        self._until = time.monotonic() + max(seconds - _RENEW_BEFORE_SECONDS, seconds / 2)


@dataclass(frozen=True, slots=True)
class _Pod:
    name: str
    port: int


class _Intake:
    """The pods behind the intake's Service."""

    def __init__(self, configuration: Any, namespace: str) -> None:
        self._configuration = configuration
        self._namespace = namespace

    def ready_pods(self) -> list[_Pod]:
        """Those that are ready and not about to go.

        Raises:
            ClusterUnavailable: there is none.
        """
        namespace = self._namespace
        api = _core(self._configuration)
        with _asking(
            f"read the Service {SERVICE}",
            missing=f"there is no Service {SERVICE} in namespace {namespace}: install Cellwise there, or name its "
            "namespace with --namespace",
            forbidden=f"you may not read the Service {SERVICE} in namespace {namespace}: ask for the Role "
            "cellwise-viewer there",
        ):
            service = api.read_namespaced_service(SERVICE, namespace, _request_timeout=_API_SECONDS)
        target = next((one.target_port or one.port for one in service.spec.ports if one.name == PEOPLE_PORT), None)
        if target is None:
            raise ClusterUnavailable(f"the Service {SERVICE} in namespace {namespace} has no port '{PEOPLE_PORT}'")
        selector = ",".join(f"{name}={value}" for name, value in sorted((service.spec.selector or {}).items()))
        with _asking(
            "list the intake's pods",
            missing=f"there is no namespace {namespace}",
            forbidden=f"you may not list pods in namespace {namespace}: ask for the Role cellwise-viewer there",
        ):
            pods = api.list_namespaced_pod(namespace, label_selector=selector, _request_timeout=_API_SECONDS).items
        ready = [_Pod(pod.metadata.name, _port_of(pod, target)) for pod in pods if _is_ready(pod)]
        if not ready:
            states = ", ".join(f"{pod.metadata.name} {pod.status.phase}" for pod in pods) or "it has no pod"
            raise ClusterUnavailable(
                f"no pod of {SERVICE} in namespace {namespace} is ready ({states}): kubectl --namespace {namespace} "
                "describe pods tells why"
            )
        return ready

    def connect(self, pod: _Pod) -> Any:
        """A connection to a pod's people port: a socket of this process, and the thread that carries it."""
        from kubernetes.stream import portforward

        with _asking(
            f"forward a port to {pod.name}",
            missing=f"the pod {pod.name} is gone",
            forbidden=f"you may not forward a port in namespace {self._namespace}: ask for the Role cellwise-viewer "
            "there (verb create on pods/portforward)",
        ):
            api = _core(self._configuration)
            return portforward(
                api.connect_get_namespaced_pod_portforward, pod.name, self._namespace, ports=str(pod.port)
            )


def _is_ready(pod: Any) -> bool:
    conditions = pod.status.conditions or []
    return pod.metadata.deletion_timestamp is None and any(
        one.type == "Ready" and one.status == "True" for one in conditions
    )


def _port_of(pod: Any, target: Any) -> int:
    """The number behind a Service's target port, which may be the name of a container's."""
    if isinstance(target, int) or str(target).isdigit():
        return int(target)
    ports = [port for container in pod.spec.containers for port in container.ports or []]
    found = next((port.container_port for port in ports if port.name == target), None)
    if found is None:
        raise ClusterUnavailable(f"the pod {pod.metadata.name} has no port called '{target}'")
    return int(found)


class _Forward:
    """A port of this machine's loopback, each connection to it carried to a ready pod.

    A pod that goes away takes its connections with it; the next connection goes to another one.
    """

    def __init__(self, intake: _Intake) -> None:
        self._intake = intake
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        self._pod: _Pod | None = None
        self._closed = False
        self.trouble: str | None = None
        threading.Thread(target=self._accept, name="cellwise port-forward", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        # Closing alone would leave the thread waiting in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                forward, carried = self._connected()
            except ClusterUnavailable as error:
                self.trouble = str(error)
                return
            self.trouble = None
            try:
                self._carry(connection, carried)
            finally:
                forward.close()
            ended = forward.error(next(iter(forward.local_ports)))
            if ended:
                self.trouble = f"the port-forward ended: {_first_line(ended)}"
                self._pod = None

    def _connected(self) -> tuple[Any, socket.socket]:
        pod = self._pod
        if pod is not None:
            try:
                return self._to(pod)
            except ClusterUnavailable:
                # It is gone or about to go: look which ones are there now.
                self._pod = None
        last: ClusterUnavailable | None = None
        for pod in self._intake.ready_pods():
            try:
                connected = self._to(pod)
            except ClusterUnavailable as error:
                last = error
            else:
                self._pod = pod
                return connected
        raise last or ClusterUnavailable("no intake is ready")

    def _to(self, pod: _Pod) -> tuple[Any, socket.socket]:
        """Connects with a time limit: the client's websocket has none of its own."""
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def connect() -> None:
            try:
                results.put(self._intake.connect(pod))
            except ClusterUnavailable as error:
                results.put(error)

        threading.Thread(target=connect, daemon=True).start()
        try:
            found = results.get(timeout=_CONNECT_SECONDS)
        except queue.Empty:
            raise ClusterUnavailable(f"forwarding a port to {pod.name} takes too long") from None
        if isinstance(found, ClusterUnavailable):
            raise found
        return found, found.socket(pod.port)

    def _carry(self, connection: socket.socket, carried: Any) -> None:
        """Both directions until either side ends."""

        def back() -> None:
            with suppress(OSError):
                while data := carried.recv(_CHUNK):
                    connection.sendall(data)
            # The pod has said all: whoever waits for more learns it now.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

        reading = threading.Thread(target=back, daemon=True)
        reading.start()
        with suppress(OSError):
            while data := connection.recv(_CHUNK):
                carried.sendall(data)
        with suppress(OSError):
            carried.shutdown(socket.SHUT_RDWR)
        reading.join(_CONNECT_SECONDS)


class _Logs:
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
        with _asking(
            "list the cell's pods",
            missing=f"there is no namespace {namespace}",
            forbidden=f"you may not list pods in namespace {namespace}: ask for verb list on pods and get on pods/log "
            "there",
        ):
            found = _core(self._configuration).list_namespaced_pod(
                namespace,
                label_selector=f"{LAUNCH_LABEL} in ({','.join(launches)})",
                _request_timeout=_API_SECONDS,
            )
        return sorted(found.items, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    def _of(self, pod: Any, container: str) -> Iterator[str]:
        from kubernetes.client.exceptions import ApiException

        name = pod.metadata.name
        try:
            with _asking(
                f"read the log of {name}",
                missing=f"the pod {name} is gone",
                forbidden=f"you may not read logs in namespace {self._namespace}: ask for verb get on pods/log there",
            ):
                answer = _core(self._configuration).read_namespaced_pod_log(
                    name,
                    self._namespace,
                    container=container,
                    follow=self._follow,
                    **({"tail_lines": self._tail} if self._tail is not None else {}),
                    _preload_content=False,
                    _request_timeout=(_API_SECONDS, _FOLLOW_SECONDS if self._follow else _API_SECONDS),
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


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
