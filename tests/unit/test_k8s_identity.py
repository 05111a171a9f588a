"""Who is let in by the intake: the pod of a launch's Job at its index, and a person with the right. Nobody else."""

import base64
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kmock as kmock_package
import orjson
import pytest
import pytest_asyncio
from kubernetes import client
from starlette.exceptions import HTTPException
from starlette.requests import Request

from grading.cells_service import IdentityAway
from grading.store import Store, claiming, launching, matrices, placing, reading, registering
from k8s.api import Api
from k8s.identity import Identity
from k8s.settings import Settings

SETTINGS = Settings(
    namespace="release", cells_namespace="cells", intake_url="http://intake:8080", trial_image="image@sha256:0"
)
CELLS = "system:serviceaccount:cells:cellwise-cells"
EDITOR = "system:serviceaccount:release:cellwise-editor"
TOKEN_REVIEWS = "post /apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "post /apis/authorization.k8s.io/v1/subjectaccessreviews"
POD = "get /api/v1/namespaces/cells/pods/cw-1-0-abcde"

# Not its emulator, which would keep every review as an object.
pytestmark = [pytest.mark.asyncio, pytest.mark.kmock(cls=kmock_package.RawHandler)]


def token_of(name: str, ends_in: float = 3600) -> str:
    claims = orjson.dumps({"sub": name, "exp": int(time.time() + ends_in)})
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"


class Cluster:
    """An API server that knows some tokens, and one pod."""

    def __init__(self, kmock: Any, store: Store) -> None:
        self.kmock = kmock
        self.store = store
        self.clock = 0.0
        self.calls: Counter[str] = Counter()
        self.launch = launched(store)
        self.users: dict[tuple[str, str], dict[str, Any]] = {}
        self.allowed = True
        self.knows_audiences = True
        self.pod: dict[str, Any] | None = {
            "metadata": {
                "name": "cw-1-0-abcde",
                "uid": "pod-uid",
                "annotations": {"cellwise.dev/launch": self.launch.id, "batch.kubernetes.io/job-completion-index": "1"},
                "ownerReferences": [
                    {
                        "apiVersion": "batch/v1",
                        "kind": "Job",
                        "name": self.launch.job,
                        "uid": "job-uid",
                        "controller": True,
                    }
                ],
            },
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running"},
        }
        kmock[TOKEN_REVIEWS] << self._review
        kmock[ACCESS_REVIEWS] << self._access
        kmock[POD] << self._pod
        configuration = client.Configuration(host=str(kmock.url).rstrip("/"))
        self.api = Api(configuration)
        self.identity = Identity(
            self.api,
            store,
            SETTINGS,
            count=lambda call: self.calls.update([call]),
            clock=lambda: self.clock,
        )

    def pod_token(self, *, audience: str = "cellwise-cells", account: str = CELLS, ends_in: float = 3600) -> str:
        uid = "pod-uid"
        made = token_of(f"{account}/{uid}/{audience}", ends_in)
        self.users[made, audience] = {
            "username": account,
            "extra": {
                "authentication.kubernetes.io/pod-name": ["cw-1-0-abcde"],
                "authentication.kubernetes.io/pod-uid": [uid],
            },
        }
        return made

    def person_token(self, *, audience: str = "cellwise-people", account: str = EDITOR) -> str:
        made = token_of(f"{account}/{audience}")
        self.users[made, audience] = {"username": account, "uid": "u", "groups": ["system:serviceaccounts"]}
        return made

    def _review(self, request: Any) -> dict[str, Any]:
        spec = request.data["spec"]
        user = self.users.get((spec["token"], spec["audiences"][0]))
        if user is None:
            return {"status": {"authenticated": False, "error": "invalid bearer token"}}
        status = {"authenticated": True, "user": user}
        return {"status": {**status, "audiences": spec["audiences"]} if self.knows_audiences else status}

    def _access(self, request: Any) -> dict[str, Any]:
        self.asked = request.data["spec"]
        return {"status": {"allowed": self.allowed}}

    def _pod(self, _: Any) -> Any:
        return kmock_package.Response(status=404, payload={"code": 404}) if self.pod is None else self.pod


def launched(store: Store) -> launching.Launch:
    matrix_id = registering.register(
        store,
        manifest_hash="sha256:" + "ab" * 32,
        name="study",
        manifest=b"{}",
        cells=[registering.NewCell("case", "baseline", 0, 0)],
        assignments=[registering.NewAssignment("a", b"{}")],
        trials=[registering.NewTrial("case", "baseline", i, i, "k", "a") for i in range(2)],
    ).matrix_id
    matrices.start(store, matrix_id)
    placing.place(store, matrix_id, placing.Placement())
    launch = launching.plan(store, matrix_id, reading.cells(store, matrix_id)[0].id)
    assert launch is not None
    launching.created(store, launch.id, "job-uid")
    return launching.find(store, launch.id)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


@pytest_asyncio.fixture
async def cluster(kmock: Any, store: Store) -> Any:
    made = Cluster(kmock, store)
    yield made
    made.api.close()


def asking(token: str | None, scheme: str = "Bearer") -> Request:
    headers = [] if token is None else [(b"authorization", f"{scheme} {token}".encode())]
    return Request({"type": "http", "headers": headers, "state": {}})


async def denied(cluster: Cluster, token: str | None, scheme: str = "Bearer") -> str:
    request = asking(token, scheme)
    assert await cluster.identity.cell(request) is None
    reason: str = request.state.denied
    return reason


async def refused(cluster: Cluster, token: str | None, verb: Any = "get") -> tuple[int, str]:
    with pytest.raises(HTTPException) as caught:
        await cluster.identity.person(asking(token), verb)
    return caught.value.status_code, caught.value.detail


async def test_a_pod_is_known_by_its_token(cluster: Cluster) -> None:
    cell = await cluster.identity.cell(asking(cluster.pod_token()))
    assert cell is not None
    assert (cell.launch, cell.index) == (cluster.launch, 1)
    assert cell.pod == claiming.Pod("pod-uid", "cw-1-0-abcde", "node-1", "cells")
    assert cluster.calls == {"tokenreviews": 1, "pods": 1}


async def test_it_costs_two_calls_a_minute(cluster: Cluster) -> None:
    token = cluster.pod_token()
    for cluster.clock in (0.0, 10.0, 59.0):
        assert await cluster.identity.cell(asking(token)) is not None
    assert sum(cluster.calls.values()) == 2
    cluster.clock = 60.0
    assert await cluster.identity.cell(asking(token)) is not None
    assert sum(cluster.calls.values()) == 4


async def test_it_is_not_remembered_beyond_the_tokens_end(cluster: Cluster) -> None:
    token = cluster.pod_token(ends_in=20)
    assert await cluster.identity.cell(asking(token)) is not None
    cluster.users.clear()
    cluster.clock = 21.0
    assert await denied(cluster, token) == "the token is not valid here"


async def test_a_refusal_is_not_remembered(cluster: Cluster) -> None:
    token = cluster.pod_token()
    users, cluster.users = cluster.users, {}
    assert await denied(cluster, token) == "the token is not valid here"
    cluster.users = users
    assert await cluster.identity.cell(asking(token)) is not None


async def test_tokens_that_are_none(cluster: Cluster) -> None:
    assert await denied(cluster, None) == "no token"
    assert await denied(cluster, cluster.pod_token(), "Basic") == "no token"
    assert await denied(cluster, "") == "no token"
    assert await denied(cluster, "x" * 20_000) == "no token"
    assert cluster.calls == {}, "the API server is not asked about nothing"
    assert await denied(cluster, token_of("expired or forged")) == "the token is not valid here"
    assert await denied(cluster, cluster.pod_token(audience="cellwise-people")) == "the token is not valid here"
    other = cluster.pod_token(account="system:serviceaccount:cells:default")
    assert await denied(cluster, other) == "the token is of another account than the cells'"
    elsewhere = cluster.pod_token(account="system:serviceaccount:other:cellwise-cells")
    assert await denied(cluster, elsewhere) == "the token is of another account than the cells'"


async def test_an_api_server_that_knows_no_audiences_vouches_for_nothing(cluster: Cluster) -> None:
    cluster.knows_audiences = False
    assert await denied(cluster, cluster.pod_token()) == "the token is not valid here"


async def test_a_token_that_is_bound_to_no_pod(cluster: Cluster) -> None:
    token = cluster.pod_token()
    cluster.users[token, "cellwise-cells"]["extra"] = {}
    assert await denied(cluster, token) == "the token is bound to no pod"


async def test_pods_that_are_none_of_the_launch(cluster: Cluster) -> None:
    token = cluster.pod_token()
    pod = cluster.pod
    assert pod is not None
    owner = pod["metadata"]["ownerReferences"][0]
    annotations = pod["metadata"]["annotations"]
    changes: list[tuple[dict[str, Any], str, Any, str]] = [
        (pod["metadata"], "uid", "another", "its pod is gone, another one has its name"),
        (pod["status"], "phase", "Failed", "its pod has ended"),
        (pod["status"], "phase", "Succeeded", "its pod has ended"),
        (owner, "controller", False, "its pod belongs to no Job"),
        (owner, "kind", "ReplicaSet", "its pod belongs to no Job"),
        (owner, "name", "cw-forged", "its pod belongs to another Job than its launch"),
        (owner, "uid", "job-of-that-name", "its pod belongs to another Job than its launch"),
        (annotations, "cellwise.dev/launch", "0" * 32, "its pod's launch is not in the store"),
        (annotations, "batch.kubernetes.io/job-completion-index", "2", "its pod has no index of its launch"),
        (annotations, "batch.kubernetes.io/job-completion-index", "-1", "its pod has no index of its launch"),
    ]
    for where, name, value, reason in changes:
        before, where[name] = where[name], value
        assert await denied(cluster, token) == reason
        where[name] = before
    cluster.pod = None
    assert await denied(cluster, token) == "its pod is gone"


async def test_a_pod_that_is_being_ended_may_tell_what_it_did(cluster: Cluster) -> None:
    assert cluster.pod is not None
    cluster.pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await cluster.identity.cell(asking(cluster.pod_token())) is not None


async def test_a_job_whose_uid_is_not_stored_yet_is_known_by_its_name(cluster: Cluster) -> None:
    with cluster.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE launch SET job_uid = NULL, state = 'planned'")
    assert await cluster.identity.cell(asking(cluster.pod_token())) is not None


@pytest.mark.parametrize("status", [403, 500])
async def test_nobody_is_let_in_without_the_api_server(cluster: Cluster, store: Store, status: int) -> None:
    token, person = cluster.pod_token(), cluster.person_token()
    api = Api(client.Configuration(host=str(cluster.kmock.url).rstrip("/") + f"/broken/{status}"), sleep=lambda _: None)
    cluster.kmock[f"/broken/{status}/apis/authentication.k8s.io/v1/tokenreviews"] << status
    identity = Identity(api, store, SETTINGS)
    with pytest.raises(IdentityAway, match="the API server"):
        await identity.cell(asking(token))
    with pytest.raises(HTTPException) as caught:
        await identity.person(asking(person), "get")
    assert caught.value.status_code == 503
    api.close()


async def test_a_person_is_known_and_has_the_right(cluster: Cluster) -> None:
    token = cluster.person_token()
    assert await cluster.identity.person(asking(token), "create") == EDITOR
    assert cluster.asked["user"] == EDITOR
    assert cluster.asked["groups"] == ["system:serviceaccounts"]
    assert cluster.asked["resourceAttributes"] == {
        "group": "cellwise.dev",
        "resource": "matrices",
        "verb": "create",
        "namespace": "release",
    }
    assert cluster.calls == {"tokenreviews": 1, "subjectaccessreviews": 1}
    cluster.clock = 9.0
    assert await cluster.identity.person(asking(token), "create") == EDITOR
    assert sum(cluster.calls.values()) == 2
    cluster.clock = 10.0
    cluster.allowed = False
    assert await refused(cluster, token, "create") == (
        403,
        "cellwise-editor may not create matrices.cellwise.dev in release",
    )
    assert await cluster.identity.cell(asking(token)) is None, "a person's token is no pod's"


async def test_rights_are_remembered_for_each_verb(cluster: Cluster) -> None:
    token = cluster.person_token()
    assert await cluster.identity.person(asking(token), "get") == EDITOR
    cluster.allowed = False
    assert (await refused(cluster, token, "update"))[0] == 403


async def test_who_is_no_person(cluster: Cluster) -> None:
    assert await refused(cluster, None) == (401, "no token")
    assert await refused(cluster, cluster.pod_token()) == (401, "the token is not valid here")
    admin = cluster.person_token(account="system:serviceaccount:release:default")
    assert (await refused(cluster, admin))[0] == 401
    user = cluster.person_token(account="ana@example.com")
    assert await refused(cluster, user) == (
        401,
        "the token is of another account than cellwise-viewer or cellwise-editor",
    )
