"""Who asks the intake: a pod of a cell, or a person. Nobody is let in whom the API server does not vouch for.

A pod costs two API calls (TokenReview, GET of the pod) with its first request, and two more with the first one after
each further minute: a cell whose pods each live less than a minute costs two calls a pod. A person's request costs two
(TokenReview, SubjectAccessReview), the same one again within ten seconds none. Only what was let in is remembered, by
the token's hash, and never beyond the token's own end.
"""

import base64
import binascii
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Literal, TypeVar

import anyio.to_thread
import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from grading.cells_service import Cell, IdentityAway
from grading.store import NotFound, Store, claiming, launching
from k8s.api import Api, ApiError
from k8s.settings import Settings

Verb = Literal["get", "create", "update"]
ApiCall = Literal["tokenreviews", "pods", "subjectaccessreviews"]

PEOPLE = ("cellwise-viewer", "cellwise-editor")
"""The ServiceAccounts, in the release's namespace, whose tokens people ask for by their own rights."""
LAUNCH = "cellwise.dev/launch"
INDEX = "batch.kubernetes.io/job-completion-index"

CELL_SECONDS = 60.0
PERSON_SECONDS = 10.0
_MOST_REMEMBERED = 4096
_LONGEST_TOKEN = 16_384
_PATIENCE_SECONDS = 2.0
_POD_NAME, _POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


class Identity:
    """Answers for one release.

    Args:
        count: told of every API call.
        clock: seconds that never run backwards, and
        now: seconds since 1970, which a token's end is compared with.
    """

    def __init__(
        self,
        api: Api,
        store: Store,
        settings: Settings,
        *,
        count: Callable[[ApiCall], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._store = store
        self._settings = settings
        self._count = count
        self._now = now
        self._cells: _Remembered[bytes, Cell] = _Remembered(clock)
        self._people: _Remembered[tuple[bytes, Verb], str] = _Remembered(clock)

    async def cell(self, request: Request) -> Cell | None:
        """The pod of a cell that asks; None for anybody else, with the reason in ``request.state.denied``.

        Raises:
            IdentityAway: the API server does not answer.
            StoreAway: the launch cannot be read.
        """
        token = _token_of(request)
        if token is None:
            request.state.denied = "no token"
            return None
        key = hashlib.sha256(token.encode()).digest()
        known = self._cells.get(key)
        if known is not None:
            return known
        try:
            cell = await anyio.to_thread.run_sync(self._cell, token)
        except _Denied as denied:
            request.state.denied = str(denied)
            return None
        except ApiError as error:
            raise IdentityAway(f"the API server: {error}") from error
        self._cells.put(key, cell, self._lasting(token, CELL_SECONDS))
        return cell

    async def person(self, request: Request, verb: Verb) -> str:
        """The account of a person who may do that to the matrices of this release.

        Raises:
            HTTPException: 401 for no token or one of somebody else, 403 for one without that right, 503 where the API
                server does not answer.
        """
        token = _token_of(request)
        if token is None:
            raise HTTPException(401, "no token")
        key = hashlib.sha256(token.encode()).digest(), verb
        known = self._people.get(key)
        if known is not None:
            return known
        try:
            name = await anyio.to_thread.run_sync(self._person, token, verb)
        except _Denied as denied:
            raise HTTPException(401, str(denied)) from denied
        except ApiError as error:
            raise HTTPException(503, f"the API server: {error}") from error
        self._people.put(key, name, self._lasting(token, PERSON_SECONDS))
        return name

    def _cell(self, token: str) -> Cell:
        settings = self._settings
        user = self._reviewed(token, settings.cells_audience)
        account = f"system:serviceaccount:{settings.cells_namespace}:{settings.cells_service_account}"
        if user.get("username") != account:
            raise _Denied("the token is of another account than the cells'")
        name, uid = _single(user, _POD_NAME), _single(user, _POD_UID)
        if name is None or uid is None:
            raise _Denied("the token is bound to no pod")
        self._count("pods")
        try:
            pod = self._api.request(
                "GET",
                f"/api/v1/namespaces/{settings.cells_namespace}/pods/{name}",
                patience_seconds=_PATIENCE_SECONDS,
            )
        except ApiError as error:
            if error.status == 404:
                raise _Denied("its pod is gone") from error
            raise
        launch, index = self._work_of(pod, uid)
        node = str(pod.get("spec", {}).get("nodeName") or "")
        return Cell(launch, index, claiming.Pod(uid, name, node, settings.cells_namespace))

    def _work_of(self, pod: dict[str, Any], uid: str) -> tuple[launching.Launch, int]:
        """The launch and the index that a pod works on, as its Job's controller and the store say alike."""
        metadata = pod["metadata"]
        if metadata.get("uid") != uid:
            raise _Denied("its pod is gone, another one has its name")
        # One that is being ended may still tell what it did.
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            raise _Denied("its pod has ended")
        annotations = metadata.get("annotations") or {}
        owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
        if owner is None or (owner.get("apiVersion"), owner.get("kind")) != ("batch/v1", "Job"):
            raise _Denied("its pod belongs to no Job")
        try:
            launch = launching.find(self._store, str(annotations.get(LAUNCH, "")))
        except NotFound as error:
            raise _Denied("its pod's launch is not in the store") from error
        # The uid is stored a moment after the Job was created; until then the name says the same, since none but the
        # controller creates Jobs there and two cannot have one name.
        if owner.get("name") != launch.job or launch.job_uid not in (None, owner.get("uid")):
            raise _Denied("its pod belongs to another Job than its launch")
        index = str(annotations.get(INDEX, ""))
        if not (index.isascii() and index.isdigit() and len(index) < 8 and int(index) < launch.completions):
            raise _Denied("its pod has no index of its launch")
        return launch, int(index)

    def _person(self, token: str, verb: Verb) -> str:
        settings = self._settings
        user = self._reviewed(token, settings.people_audience)
        name = str(user.get("username"))
        if name not in [f"system:serviceaccount:{settings.namespace}:{one}" for one in PEOPLE]:
            raise _Denied(f"the token is of another account than {' or '.join(PEOPLE)}")
        self._count("subjectaccessreviews")
        review = self._api.request(
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": name,
                    "uid": user.get("uid", ""),
                    "groups": user.get("groups") or [],
                    "extra": user.get("extra") or {},
                    "resourceAttributes": {
                        "group": "cellwise.dev",
                        "resource": "matrices",
                        "verb": verb,
                        "namespace": settings.namespace,
                    },
                },
            },
            patience_seconds=_PATIENCE_SECONDS,
        )
        status = review.get("status") or {}
        if status.get("allowed") is not True or status.get("denied"):
            account = name.rpartition(":")[2]
            raise HTTPException(403, f"{account} may not {verb} matrices.cellwise.dev in {settings.namespace}")
        return name

    def _reviewed(self, token: str, audience: str) -> dict[str, Any]:
        """Whom a token is of, for this audience alone."""
        self._count("tokenreviews")
        review = self._api.request(
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            body={
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": {"token": token, "audiences": [audience]},
            },
            patience_seconds=_PATIENCE_SECONDS,
        )
        status = review.get("status") or {}
        # An API server that knows no audiences leaves them out, and has then not checked them.
        if status.get("authenticated") is not True or audience not in (status.get("audiences") or ()):
            raise _Denied("the token is not valid here")
        user: dict[str, Any] = status.get("user") or {}
        return user

    def _lasting(self, token: str, most: float) -> float:
        """How long an answer is remembered: never longer than its token, which was found valid, is."""
        end = _end_of(token)
        return most if end is None else min(most, end - self._now())


class _Denied(Exception):  # noqa: N818 - reads as what happened
    """The API server answered, and it is none of ours."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Remembered(Generic[Key, Value]):
    """Answers for a while, the oldest forgotten first where there are too many. Of one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        found = self._known.get(key)
        if found is None:
            return None
        until, value = found
        if self._clock() < until:
            return value
        del self._known[key]
        return None

    def put(self, key: Key, value: Value, seconds: float) -> None:
        self._known.pop(key, None)
        self._known[key] = self._clock() + seconds, value
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)


def _token_of(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN or not token.isascii():
        return None
    return token


def _single(user: dict[str, Any], name: str) -> str | None:
    values = (user.get("extra") or {}).get(name)
    return values[0] if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str) else None


def _end_of(token: str) -> float | None:
    """When a token says that it ends, in seconds since 1970; None where it does not say so."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        end = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))["exp"]
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None
    return float(end) if isinstance(end, int | float) else None
