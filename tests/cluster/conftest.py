"""A real cluster for these tests, from the kubeconfig in CELLWISE_TEST_KUBECONFIG; without one they are skipped.

The images must be on its nodes: CELLWISE_TEST_TRIAL_IMAGE, CELLWISE_TEST_CONTROL_IMAGE, and CELLWISE_TEST_AGENT_IMAGE
(tests/cluster/agent, by digest). CELLWISE_TEST_CLUSTER names a command that can kill the cluster's components and lose
its nodes (``kill NAME``, ``start NAME``, ``lose N``, ``return N``), CELLWISE_TEST_SERVICE_ACCOUNT_KEY the file of the
key that it signs tokens with.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "cellwise"
NAMESPACE = "cellwise"
CELLS = "cellwise-cells"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take a node or the control plane away come last: the others need not wait for what they left."""
    items.sort(key=lambda item: item.get_closest_marker("breaks_cluster") is not None)


def _required(name: str, what: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set: {what}")
    return value


@dataclass(frozen=True)
class Cluster:
    """kubectl and helm on the cluster under test. Every call has a time limit."""

    kubeconfig: str

    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": self.kubeconfig}

    def run(self, *command: str, timeout: float = 60, given: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self.environment(), timeout=timeout, input=given, capture_output=True, text=True
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout + ("" if check else done.stderr)

    def kubectl(self, *arguments: str, timeout: float = 60, given: str | None = None, check: bool = True) -> str:
        limited = ("kubectl", f"--request-timeout={int(timeout)}s", *arguments)
        return self.run(*limited, timeout=timeout + 30, given=given, check=check)

    def get(self, *arguments: str, namespace: str = CELLS) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("-n", namespace, "get", *arguments, "-o", "json"))[
            "items"
        ]
        return found

    def helm(self, *arguments: str, timeout: float = 300, check: bool = True) -> str:
        return self.run("helm", *arguments, timeout=timeout, check=check)

    def until(self, what: str, condition: Callable[[], Any], *, seconds: float = 120) -> Any:
        """What the condition gives once it is true; its errors count as not yet."""
        deadline, last = time.monotonic() + seconds, ""
        while time.monotonic() < deadline:
            try:
                if found := condition():
                    return found
            except (AssertionError, subprocess.TimeoutExpired, LookupError, ValueError) as error:
                last = str(error)[-400:]
            time.sleep(0.5)
        raise AssertionError(f"not within {seconds:.0f} s: {what}\n{last}")


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    found = Cluster(_required("CELLWISE_TEST_KUBECONFIG", "no cluster to test on"))
    for tool in ("kubectl", "helm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on the PATH")
    return found


class forwarded:  # noqa: N801 - reads as what it is
    """kubectl port-forward, as a context."""

    def __init__(self, cluster: Cluster, target: str, port: int) -> None:
        self._cluster, self._target, self._port = cluster, target, port

    def __enter__(self) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            local = free.getsockname()[1]
        self._process = subprocess.Popen(
            ["kubectl", "-n", NAMESPACE, "port-forward", self._target, f"{local}:{self._port}"],
            env=self._cluster.environment(),
            stdout=subprocess.DEVNULL,
        )

        def open_() -> bool:
            with socket.socket() as attempt:
                return attempt.connect_ex(("127.0.0.1", local)) == 0

        self._cluster.until("the port is forwarded", open_, seconds=30)
        return f"http://127.0.0.1:{local}"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


@dataclass(frozen=True)
class Images:
    trial: str
    control: str
    agent: str
    """By digest."""


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> Images:
    return Images(
        _required("CELLWISE_TEST_TRIAL_IMAGE", "the trial image on the cluster's nodes"),
        _required("CELLWISE_TEST_CONTROL_IMAGE", "the control image on the cluster's nodes"),
        _required("CELLWISE_TEST_AGENT_IMAGE", "the image of tests/cluster/agent, by digest"),
    )


@pytest.fixture(scope="session")
def faults(cluster: Cluster) -> Callable[..., str]:
    """``faults("lose", "2")``: what the machine below the cluster can do to it."""
    command = _required("CELLWISE_TEST_CLUSTER", "nothing here can kill the cluster's components")
    return lambda *arguments: cluster.run(command, *arguments, timeout=180)


def image_values(images: Images) -> list[str]:
    """helm's --set options for the images under test."""
    settings = []
    for name, image in (("trial", images.trial), ("control", images.control)):
        repository, _, tag = image.rpartition(":")
        settings += [f"images.{name}.repository={repository}", f"images.{name}.tag={tag}"]
    return [word for setting in settings for word in ("--set", setting)]


@dataclass(frozen=True)
class Installed:
    """The chart, installed."""

    cluster: Cluster
    images: Images

    def restart_count(self, component: str) -> int:
        pods = self.cluster.get("pods", "-l", f"app.kubernetes.io/component={component}", namespace=NAMESPACE)
        return sum(one["restartCount"] for pod in pods for one in pod["status"].get("containerStatuses", []))

    def pods_of(self, component: str) -> list[str]:
        pods = self.cluster.get("pods", "-l", f"app.kubernetes.io/component={component}", namespace=NAMESPACE)
        return [pod["metadata"]["name"] for pod in pods]

    def sql(self, statement: str) -> list[list[str]]:
        """Rows of the store, read without the code under test."""
        (pod, *_) = self.pods_of("postgresql")
        script = f'psql -U "$POSTGRES_USER" -d "$POSTGRES_DB" -At -F "|" -c "{statement}"'
        out = self.cluster.kubectl("-n", NAMESPACE, "exec", pod, "--", "sh", "-c", script)
        return [line.split("|") for line in out.splitlines()]


@pytest.fixture(scope="session")
def installed(cluster: Cluster, images: Images) -> Iterator[Installed]:
    """The chart with PostgreSQL and Phoenix inside, as on kind."""
    command = ["upgrade", "--install", RELEASE, str(ROOT / "charts/cellwise"), "-n", NAMESPACE, "--create-namespace"]
    command += ["-f", str(ROOT / "k8s/kind/values.yaml"), "-f", str(ROOT / "tests/cluster/values.yaml")]
    command += image_values(images)
    cluster.helm(*command, "--wait", "--timeout", "300s", timeout=330)
    yield Installed(cluster, images)
    if os.environ.get("CELLWISE_TEST_KEEP") != "1":
        cluster.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "120s", timeout=150, check=False)
        cluster.kubectl("delete", "namespace", NAMESPACE, CELLS, "--ignore-not-found", "--wait=false", check=False)


@dataclass(frozen=True)
class Answer:
    """What the command line printed."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cellwise:
    """The command line on this machine, on the cluster by its kubeconfig alone."""

    cluster: Cluster
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "grading.command_line", *arguments]

    def environment(self) -> dict[str, str]:
        return {**self.cluster.environment(), "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def __call__(self, *arguments: str, timeout: float = 300) -> Answer:
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            timeout=timeout,
            capture_output=True,
            text=True,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command(*arguments),
            env=self.environment(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Ends what a test that failed has left running: found later, it would fail another one."""
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def cellwise(installed: Installed) -> Iterator[Cellwise]:
    with tempfile.TemporaryDirectory() as folder:
        command = Cellwise(installed.cluster, Path(folder))
        yield command
        command.end()


@pytest.fixture
def matrix_name() -> str:
    """A name that no other test's matrix has."""
    return f"t-{uuid.uuid4().hex[:8]}"
