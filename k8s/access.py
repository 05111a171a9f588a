"""The way into a cluster by a person's kubeconfig rights alone: a port-forward to the intake, and a short-lived token.

What a person may do with matrices is decided in the cluster: whoever may request a token of the ServiceAccount
``cellwise-viewer`` may read, of ``cellwise-editor`` start, pause and cancel.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from grading.launchers import Role
from k8s.kubeconfig import api_of, asking, configured
from k8s.pod_logs import PodLogs
from k8s.port_forward import IntakePods, NotReadyYet, PortForward, ReadyPod

AUDIENCE = "cellwise-people"
DEFAULT_NAMESPACE = "cellwise"

TOKEN_SECONDS = 600
"""The shortest life that the API server gives a token."""
_RENEW_BEFORE_SECONDS = 120
READY_SECONDS = 20.0
"""How long a command waits for an intake that has pods, none of them ready."""
_AGAIN_SECONDS = 1.0


class Cluster:
    """A cluster, as a kubeconfig context names it.

    Raises:
        ClusterUnavailable: where no configuration can be used.
    """

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self._configuration, found, own_namespace = configured(context)
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
        intake = IntakePods(self._configuration, self.namespace)
        forward = PortForward(intake, _await_ready(intake))
        try:
            yield Reached(forward, tokens)
        finally:
            forward.close()

    def logs(
        self, namespace: str | None, launches: Sequence[str], *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """The lines of the pods of some launches, by the person's own right to read pods and their logs."""
        yield from PodLogs(self._configuration, namespace or self.namespace, follow=follow, tail=tail).lines(launches)


def _await_ready(intake: IntakePods) -> ReadyPod:
    """Waits for a pod of an intake that is being started, or whose node is slow to say that it is ready."""
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            return intake.ready_pods()[0]
        except NotReadyYet:
            if time.monotonic() >= until:
                raise
            time.sleep(_AGAIN_SECONDS)


class Reached:
    """An open way to the people API."""

    def __init__(self, forward: PortForward, tokens: "_Tokens") -> None:
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
        account, namespace = self._account, self._namespace
        wanted = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS},
        }
        with asking(
            f"request a token of {account}",
            missing=f"there is no ServiceAccount {account} in namespace {namespace}: install Cellwise there, or name "
            "its namespace with --namespace",
            forbidden=f"you may not request a token of ServiceAccount {account} in namespace {namespace}: ask for the "
            f"Role {account} there (verb create on serviceaccounts/token, resourceNames [{account}])",
        ):
            path = f"/api/v1/namespaces/{quote(namespace, safe='')}/serviceaccounts/{account}/token"
            given = api_of(self._configuration).create(path, wanted)
        self._token = given["status"]["token"]
        # By the time given, not by this machine's clock, which may be another one than the cluster's.
        seconds = given["spec"].get("expirationSeconds") or TOKEN_SECONDS
        self._until = time.monotonic() + max(seconds - _RENEW_BEFORE_SECONDS, seconds / 2)
