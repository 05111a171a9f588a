"""The way into a cluster by kubeconfig rights: what it asks for, and what it says where something is missing."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp.web
import kmock
import pytest

from grading.launchers import ClusterUnavailable
from k8s.access import Cluster
from k8s.port_forward import PortForward, ReadyPod

NAMESPACE = "/api/v1/namespaces/team"
TOKEN = f"{NAMESPACE}/serviceaccounts/cellwise-editor/token"
SERVICE = f"{NAMESPACE}/services/cellwise-intake"
PODS = f"{NAMESPACE}/pods"


class _Refused(Exception):  # noqa: N818 - an answer
    def __init__(self, status: int) -> None:
        self.status = status


class _Handler(kmock.RawHandler):
    async def _render_error(self, exc: Exception) -> aiohttp.web.StreamResponse:
        if isinstance(exc, _Refused):
            return aiohttp.web.json_response({"kind": "Status", "code": exc.status}, status=exc.status)
        return await super()._render_error(exc)


class ApiServer:
    """What is asked, and what is answered by path: a document, a text, or a status alone; 404 without an entry."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.credentials: set[str] = set()
        """What every request so far was authorized by."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with _Handler() as handler, kmock.Server(handler, user_agent="") as server:
            handler.fallback << self._answer
            self.url = str(server.url).rstrip("/")
            self._ready.set()
            await self._ended.wait()

    def _answer(self, request: kmock.Request) -> Any:
        data = request.data if request.method.value == "POST" else None
        self.asked.append((request.method.value, request.url.path, dict(request.params), data))
        self.credentials.add(request.headers.get("Authorization", ""))
        answer = self.answers.get(request.url.path, 404)
        answer = answer() if callable(answer) else answer
        if isinstance(answer, int):
            raise _Refused(answer)
        return answer

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(20)


@pytest.fixture(scope="module")
def running() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def api(running: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """An API server with Cellwise in the namespace ``team``, and a kubeconfig of two contexts."""
    running.asked.clear()
    running.credentials.clear()
    running.answers = {TOKEN: token("secret-1"), SERVICE: service("people"), PODS: pods(pod("intake-a"))}
    named = {"cluster": "c", "user": "u"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "mine",
        "contexts": [
            {"name": "mine", "context": {**named, "namespace": "team"}},
            {"name": "bare", "context": named},
        ],
        "clusters": [{"name": "c", "cluster": {"server": running.url}}],
        "users": [{"name": "u", "user": {"token": "kubeconfig-token"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return running


def token(text: str, seconds: int = 600) -> dict[str, Any]:
    return {
        "kind": "TokenRequest",
        "spec": {"audiences": ["cellwise-people"], "expirationSeconds": seconds},
        "status": {"token": text, "expirationTimestamp": "2026-01-01T00:00:00Z"},
    }


def service(*names: str, target: Any = "people") -> dict[str, Any]:
    ports = [{"name": name, "port": 8081, "targetPort": target} for name in names]
    return {"kind": "Service", "spec": {"selector": {"app": "intake", "part": "x"}, "ports": ports}}


def pod(name: str, *, ready: bool = True, going: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "intake", "ports": [{"name": "people", "containerPort": 9081}]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def pods(*items: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "PodList", "metadata": {}, "items": list(items)}


def unavailable(work: Callable[[], object]) -> str:
    with pytest.raises(ClusterUnavailable) as caught:
        work()
    return str(caught.value)


def reach(context: str | None = None, namespace: str | None = None) -> str:
    with Cluster(context, namespace).reach("editor") as reached:
        return reached.token()


def test_a_token_of_the_role_for_ten_minutes_and_our_audience(api: ApiServer) -> None:
    cluster = Cluster(None, None)
    assert (cluster.context, cluster.namespace) == ("mine", "team")
    with cluster.reach("editor") as reached:
        assert reached.url.startswith("http://127.0.0.1:")
        assert [reached.token(), reached.token()] == ["secret-1", "secret-1"]
        api.answers[TOKEN] = token("secret-2")
        assert reached.token() == "secret-1"
        assert reached.token(renew=True) == "secret-2"
    assert api.credentials == {"Bearer kubeconfig-token"}
    requests = [data for method, path, _, data in api.asked if (method, path) == ("POST", TOKEN)]
    assert len(requests) == 2
    assert requests[0]["spec"] == {"audiences": ["cellwise-people"], "expirationSeconds": 600}
    listed = next(params for _, path, params, _ in api.asked if path == PODS)
    assert listed["labelSelector"] == "app=intake,part=x"


def test_a_token_is_renewed_before_it_runs_out(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr("k8s.access.time.monotonic", lambda: now)
    with Cluster(None, None).reach("editor") as reached:
        api.answers[TOKEN] = token("secret-2")
        now += 479
        assert reached.token() == "secret-1"
        now += 2
        assert reached.token() == "secret-2"


def test_the_namespace_is_the_options_the_contexts_or_cellwise(api: ApiServer) -> None:
    assert Cluster(None, "other").namespace == "other"
    assert Cluster("bare", None).namespace == "cellwise"
    assert Cluster("mine", None).namespace == "team"


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        (TOKEN, 403, "may not request a token of ServiceAccount cellwise-editor in namespace team: ask for the Role "
                     "cellwise-editor"),
        (TOKEN, 404, "there is no ServiceAccount cellwise-editor in namespace team: install Cellwise there"),
        (TOKEN, 401, "does not know who you are"),
        (TOKEN, 500, "request a token of cellwise-editor: the API server answers 500"),
        (SERVICE, 404, "there is no Service cellwise-intake in namespace team: install Cellwise there"),
        (SERVICE, 403, "you may not read the Service cellwise-intake in namespace team: ask for the Role"),
        (SERVICE, service("cells"), "has no port 'people'"),
        (PODS, 403, "you may not list pods in namespace team"),
        (PODS, pods(), "no pod of cellwise-intake in namespace team is ready (it has no pod)"),
        (PODS, pods(pod("a", ready=False), pod("b", going=True)), "is ready (a Running, b Running): kubectl"),
        (SERVICE, service("people", target="none"), "the pod intake-a has no port called 'none'"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(
    api: ApiServer, path: str, answer: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k8s.access.READY_SECONDS", 0.0)
    api.answers[path] = answer
    assert told in unavailable(reach)


def test_an_intake_that_is_being_started_is_waited_for(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8s.access._AGAIN_SECONDS", 0.01)
    looks = iter([pods(pod("a", ready=False)), pods(pod("a", ready=False), pod("b", going=True)), pods(pod("a"))])
    api.answers[PODS] = lambda: next(looks)
    assert reach() == "secret-1"
    assert next(looks, None) is None


def test_an_intake_without_a_pod_is_not_waited_for(api: ApiServer) -> None:
    api.answers[PODS] = pods()
    unavailable(reach)
    assert len([path for _, path, _, _ in api.asked if path == PODS]) == 1


def test_configurations_that_cannot_be_used(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no context is called 'none': --context is one of bare, mine" in unavailable(lambda: Cluster("none", None))
    path = Path(os.environ["KUBECONFIG"])
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"current-context": ""}))
    assert "has no current context: --context is one of bare, mine" in unavailable(lambda: Cluster(None, None))
    assert Cluster("bare", None).context == "bare"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{port}"
    path.write_text(json.dumps(config))
    assert "the API server cannot be reached to request a token" in unavailable(reach)
    for text in ("{", "", "[]", "a: b", json.dumps(config | {"contexts": [{"name": "mine"}]})):
        path.write_text(text)
        told = unavailable(lambda: Cluster(None, None))
        assert "kubeconfig" in told
    nowhere = tmp_path / "nowhere"
    monkeypatch.setenv("KUBECONFIG", str(nowhere))
    assert f"there is no {nowhere}; KUBECONFIG names another file" in unavailable(lambda: Cluster(None, None))


def test_an_exec_plugin_gives_the_credentials(api: ApiServer, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\n"
        'echo \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", '
        '"status": {"token": "from-the-plugin", "expirationTimestamp": "2099-01-01T00:00:00Z"}}\'\n'
    )
    plugin.chmod(0o700)
    path = Path(os.environ["KUBECONFIG"])
    config = json.loads(path.read_text())
    config["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    }
    path.write_text(json.dumps(config))
    assert reach() == "secret-1"
    assert api.credentials == {"Bearer from-the-plugin"}
    # One that fails gives none: the API server then says what it says to a stranger.
    plugin.write_text("#!/bin/sh\nexit 3\n")
    api.credentials.clear()
    api.answers[TOKEN] = 401
    assert "does not know who you are" in unavailable(reach)
    assert api.credentials == {""}


def test_logs_of_every_container_of_the_launches_pods(api: ApiServer) -> None:
    first, second = pod("cw-1-g1-0"), pod("cw-1-g1-1")
    first["spec"] = {
        "initContainers": [{"name": "agent"}],
        "containers": [{"name": "recorder"}],
    }
    second["spec"] = {"containers": [{"name": "recorder"}]}
    second["status"]["containerStatuses"] = [
        {
            "name": "recorder", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        }
    ]  # fmt: skip
    api.answers["/api/v1/namespaces/cells/pods"] = pods(first, second)
    log = "/api/v1/namespaces/cells/pods/{}/log"
    api.answers[log.format("cw-1-g1-0")] = b"one\ntwo \xff\nthree"
    api.answers[log.format("cw-1-g1-1")] = 400
    lines = list(Cluster(None, None).logs("cells", ["a-b", "c-d"], tail=3))
    assert lines == [
        *(f"cw-1-g1-0/{name}: {line}" for name in ("agent", "recorder") for line in ("one", "two \\xff", "three")),
        "cw-1-g1-1/recorder: (no log: ImagePullBackOff: no such image)",
    ]
    asked = [params for _, path, params, _ in api.asked if path == "/api/v1/namespaces/cells/pods"]
    assert asked == [{"labelSelector": "cellwise.dev/launch in (a-b,c-d)"}]
    assert [params["tailLines"] for _, path, params, _ in api.asked if path.endswith("/log")] == ["3", "3", "3"]
    followed = list(Cluster(None, None).logs("cells", ["a-b"], follow=True))
    assert sorted(followed) == sorted(lines)
    assert list(Cluster(None, None).logs("cells", [])) == []
    api.answers[log.format("cw-1-g1-0")] = 403
    for follow in (False, True):
        told = unavailable(lambda follow=follow: list(Cluster(None, None).logs("cells", ["a-b"], follow=follow)))  # type: ignore[misc]
        assert "you may not read logs in namespace cells: ask for verb get on pods/log" in told


class _Carried:
    """A port-forward to a pod that answers each line with its own name before it, and may be ended."""

    def __init__(self, name: str) -> None:
        ours, self._theirs = socket.socketpair()
        self.local_ports = {8081: ours}
        self._name = name
        self._ours = ours
        threading.Thread(target=self._answer, daemon=True).start()

    def socket(self, _: int) -> socket.socket:
        return self._ours

    def error(self, _: int) -> str | None:
        return None

    def close(self) -> None:
        for end in (self._ours, self._theirs):
            end.close()

    def end(self) -> None:
        self._theirs.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> None:
        try:
            while data := self._theirs.recv(65536):
                self._theirs.sendall(self._name.encode() + b":" + data)
        except OSError:
            pass


class _Pods:
    """Pods that may go away, in place of those behind the intake's Service."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.connected: list[tuple[str, _Carried]] = []
        self.looks = 0

    def ready_pods(self) -> list[ReadyPod]:
        self.looks += 1
        if not self.names:
            raise ClusterUnavailable("no pod is ready")
        return [ReadyPod(name, 8081) for name in self.names]

    def connect(self, pod: ReadyPod) -> _Carried:
        if pod.name not in self.names:
            raise ClusterUnavailable(f"the pod {pod.name} is gone")
        carried = _Carried(pod.name)
        self.connected.append((pod.name, carried))
        return carried


def _ask(forward: PortForward, data: bytes) -> bytes:
    host, _, port = forward.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.settimeout(10)
        received = b""
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
            while not received.endswith(data) and (piece := connection.recv(65536)):
                received += piece
        return received


def test_connections_go_to_a_ready_pod_and_to_another_one_when_it_is_gone() -> None:
    intake = _Pods("a", "b")
    forward = PortForward(intake)  # type: ignore[arg-type]
    try:
        assert [_ask(forward, b"hello"), _ask(forward, b"again")] == [b"a:hello", b"a:again"]
        intake.names = ["b"]
        assert _ask(forward, b"hello") == b"b:hello"
        assert forward.trouble is None
        intake.names = []
        assert _ask(forward, b"hello") == b""
        assert forward.trouble == "no pod is ready"
        intake.names = ["c"]
        assert _ask(forward, b"hello") == b"c:hello"
        assert forward.trouble is None
    finally:
        forward.close()
    with pytest.raises(OSError, match="refused"):
        _ask(forward, b"hello")


def test_a_pod_that_was_found_ready_is_not_looked_for_again() -> None:
    intake = _Pods("a", "b")
    known = intake.ready_pods()[1]
    intake.names.remove("a")
    forward = PortForward(intake, known)  # type: ignore[arg-type]
    try:
        assert _ask(forward, b"hello") == b"b:hello"
        intake.names = ["c"]
        assert _ask(forward, b"hello") == b"c:hello"
    finally:
        forward.close()
    assert intake.looks == 2


def test_a_pod_that_ends_ends_its_connections() -> None:
    intake = _Pods("a")
    forward = PortForward(intake)  # type: ignore[arg-type]
    try:
        host, _, port = forward.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.settimeout(10)
            connection.sendall(b"x")
            assert connection.recv(100) == b"a:x"
            intake.connected[0][1].end()
            assert connection.recv(100) == b""
    finally:
        forward.close()


def test_many_connections_at_once() -> None:
    forward = PortForward(_Pods("a"))  # type: ignore[arg-type]
    answers: list[bytes] = []
    try:
        threads = [
            threading.Thread(target=lambda n=n: answers.append(_ask(forward, str(n).encode()))) for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    finally:
        forward.close()
    assert sorted(answers) == sorted(f"a:{n}".encode() for n in range(20))
