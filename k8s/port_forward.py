"""A port-forward to the intake of a cluster: a port of this machine's loopback, carried to whichever pod is ready."""

import queue
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from grading.launchers import ClusterUnavailable
from k8s.kubeconfig import api_of, asking, first_line

if TYPE_CHECKING:
    from k8s.api import Document

SERVICE = "cellwise-intake"
PEOPLE_PORT = "people"
_CONNECT_SECONDS = 15.0
_CHUNK = 256 * 1024


class NotReadyYet(ClusterUnavailable):
    """There are pods, and none of them is ready: one may be in a moment."""


@dataclass(frozen=True, slots=True)
class ReadyPod:
    name: str
    port: int


class IntakePods:
    """The pods behind the intake's Service."""

    def __init__(self, configuration: Any, namespace: str) -> None:
        self._configuration = configuration
        self._namespace = namespace

    def ready_pods(self) -> list[ReadyPod]:
        """Those that are ready and not about to go.

        Raises:
            NotReadyYet: there are others.
            ClusterUnavailable: there is none.
        """
        namespace = self._namespace
        api, path = api_of(self._configuration), f"/api/v1/namespaces/{quote(namespace, safe='')}"
        with asking(
            f"read the Service {SERVICE}",
            missing=f"there is no Service {SERVICE} in namespace {namespace}: install Cellwise there, or name its "
            "namespace with --namespace",
            forbidden=f"you may not read the Service {SERVICE} in namespace {namespace}: ask for the Role "
            "cellwise-viewer there",
        ):
            service = api.get(f"{path}/services/{SERVICE}")["spec"]
        ports = service.get("ports") or ()
        target = next((one.get("targetPort") or one["port"] for one in ports if one.get("name") == PEOPLE_PORT), None)
        if target is None:
            raise ClusterUnavailable(f"the Service {SERVICE} in namespace {namespace} has no port '{PEOPLE_PORT}'")
        selector = ",".join(f"{name}={value}" for name, value in sorted((service.get("selector") or {}).items()))
        with asking(
            "list the intake's pods",
            missing=f"there is no namespace {namespace}",
            forbidden=f"you may not list pods in namespace {namespace}: ask for the Role cellwise-viewer there",
        ):
            pods = api.get(f"{path}/pods", [("labelSelector", selector)]).get("items") or ()
        ready = [ReadyPod(pod["metadata"]["name"], _port_of(pod, target)) for pod in pods if _is_ready(pod)]
        if not ready:
            phases = [f"{pod['metadata']['name']} {(pod.get('status') or {}).get('phase')}" for pod in pods]
            states = ", ".join(phases) or "it has no pod"
            raise (NotReadyYet if pods else ClusterUnavailable)(
                f"no pod of {SERVICE} in namespace {namespace} is ready ({states}): kubectl --namespace {namespace} "
                "describe pods tells why"
            )
        return ready

    def connect(self, pod: ReadyPod) -> Any:
        """A connection to a pod's people port: a socket of this process, and the thread that carries it."""
        from kubernetes.stream import portforward

        with asking(
            f"forward a port to {pod.name}",
            missing=f"the pod {pod.name} is gone",
            forbidden=f"you may not forward a port in namespace {self._namespace}: ask for the Role cellwise-viewer "
            "there (verb create on pods/portforward)",
        ):
            return portforward(_Forwarding(self._configuration).to, pod.name, self._namespace, pod.port)


class _Forwarding:
    """The request that the client's ``portforward`` carries over a WebSocket, as its generated method does.

    That one comes with a module that takes more than a second to load.

    An ApiClient of its own: the client changes it for as long as it connects.
    """

    def __init__(self, configuration: Any) -> None:
        from kubernetes import client

        self.api_client = client.ApiClient(configuration)

    def to(self, name: str, namespace: str, port: int, *, _preload_content: bool) -> Any:
        """What ``portforward`` calls; the answer is read by it."""
        method, url, headers, body, post = self.api_client.param_serialize(
            method="GET",
            resource_path="/api/v1/namespaces/{namespace}/pods/{name}/portforward",
            path_params={"name": name, "namespace": namespace},
            query_params=[("ports", str(port))],
            auth_settings=["BearerToken"],
        )
        return self.api_client.call_api(method, url, header_params=headers, body=body, post_params=post).response


def _is_ready(pod: "Document") -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return "deletionTimestamp" not in pod["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )


def _port_of(pod: "Document", target: Any) -> int:
    """The number behind a Service's target port, which may be the name of a container's."""
    if isinstance(target, int) or str(target).isdigit():
        return int(target)
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]
    found = next((port["containerPort"] for port in ports if port.get("name") == target), None)
    if found is None:
        raise ClusterUnavailable(f"the pod {pod['metadata']['name']} has no port called '{target}'")
    return int(found)


class PortForward:
    """A port of this machine's loopback, each connection to it carried to a ready pod.

    A pod that goes away takes its connections with it; the next connection goes to another one.

    Args:
        found: a pod that was ready a moment ago, where one is known: it is tried first.
    """

    def __init__(self, intake: IntakePods, found: ReadyPod | None = None) -> None:
        self._intake = intake
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        self._pod = found
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
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
                self.trouble = f"the port-forward ended: {first_line(ended)}"
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

    def _to(self, pod: ReadyPod) -> tuple[Any, socket.socket]:
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
