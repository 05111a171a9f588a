"""The cells API: what the recorders in a cluster's pods ask its intake, over the store (simulator/pod_protocol.py).

Who asks is told by ``identify``, which is handed in: this knows nothing of Kubernetes. A pod reaches its own launch,
index and attempts alone. A ledger goes through the same code as one of a local worker. The store's functions wait for a
database, and a ledger's validation takes its time: both are done in threads.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from grading.grading import MatrixGrading, received
from grading.intake import LARGEST_LEDGER
from grading.manifest import Manifest, trial_name
from grading.planning import registered_manifest
from grading.recovering import Unanswered, recover
from grading.store import (
    NotFound,
    StateError,
    Store,
    StoreAway,
    StoreError,
    claiming,
    delivering,
    launching,
    losing,
    reading,
)
from grading.store.claiming import PodClaim, Settling, Stop
from simulator.ledger import Software
from simulator.model import WireModel
from simulator.pod_protocol import (
    LONGEST_MESSAGE,
    AssignmentRequest,
    JournalLines,
    LedgerAnswer,
    Refusal,
    Unusable,
)

LARGEST_JOURNAL = LARGEST_LEDGER
"""Bytes of one request: a recorder's calls and their answers are less (simulator/recorder.py, LARGEST_RECORD)."""
LARGEST_QUESTION = 64 * 1024
LARGEST_IN_ALL = 4 * LARGEST_LEDGER
"""Bytes of all bodies that are read or worked on at once: what comes beyond has to wait."""

_THREADS = 8
_AWAY_SECONDS = 2
_SETTLING_SECONDS = 2
_FULL_SECONDS = 1
_BODY_SECONDS = 60.0
"""For a body to arrive: one that never does would keep its room from all others."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A pod that has proved which one it is."""

    launch: launching.Launch
    index: int
    """The completion index of the launch's Job."""
    pod: claiming.Pod


class IdentityAway(Exception):  # noqa: N818 - reads as what happened
    """Who asks cannot be found out now: nobody is let in."""


Identify = Callable[[Request], Awaitable[Cell | None]]
"""Which pod asks; None for anybody who is none of ours. Raises IdentityAway."""


class _Refused(Exception):  # noqa: N818 - reads as what becomes of a request
    def __init__(self, status: int, reason: str, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


def cells_app(store: Store, identify: Identify, *, lease_seconds: float) -> Starlette:
    """The application of the cells' port.

    What each request came to is left in ``request.state.told`` (matrix, cell, trial, attempt, outcome), for whoever
    writes logs or counts.

    Args:
        store: open until the application is gone.
        lease_seconds: how long a pod holds a trial: longer than a pod can live.
    """
    service = _Cells(store, lease_seconds)
    threads = anyio.CapacityLimiter(_THREADS)
    room = _Room(LARGEST_IN_ALL)

    def route(path: str, largest: int, work: "_Work") -> Route:
        async def endpoint(request: Request) -> Response:
            told: dict[str, Any] = {}
            request.state.told = told
            try:
                # Before anything of the request is read: a stranger learns nothing, not even what would be wrong.
                cell = await identify(request)
                if cell is None:
                    raise _Refused(401, "no pod of a cell: its token names none that runs for a launch of this store")
                told |= {"matrix": cell.launch.matrix_id, "cell": cell.launch.cell_id, "pod": cell.pod.name}
                with room.taken(_declared(request, largest)):
                    body = await _body(request, largest)
                    return await anyio.to_thread.run_sync(work, cell, request, body, told, limiter=threads)
            except _Refused as refused:
                return _refusal(refused, told)
            except IdentityAway as error:
                return _refusal(_Refused(503, f"who asks cannot be found out now: {error}", _AWAY_SECONDS), told)
            except StoreAway as error:
                # What is wrong with the database is for who runs it: its address is in the text.
                told["detail"] = str(error)
                return _refusal(_Refused(503, "the store is away", _AWAY_SECONDS), told)
            except StoreError as error:
                told["detail"] = str(error)
                return _refusal(_Refused(500, "the store refuses it: the intake's log says why"), told)

        return Route(path, endpoint, methods=["POST"])

    return Starlette(
        routes=[
            route("/v1/assignment", LARGEST_QUESTION, service.assignment),
            route("/v1/journal", LARGEST_JOURNAL, service.journal),
            route("/v1/ledger", LARGEST_LEDGER, service.ledger),
            route("/v1/unusable", LARGEST_QUESTION, service.unusable),
        ],
        exception_handlers={HTTPException: _unrouted},
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What never changes of a pod's attempt."""

    id: int
    number: int
    trial: str
    matrix_id: int
    cell_id: int
    case_id: str
    assignment_hash: str
    holder: tuple[str, str, int]
    """Pod, launch and index."""

    @classmethod
    def of(cls, found: PodClaim | claiming.Held, holder: tuple[str, str, int]) -> "_Attempt":
        return cls(
            found.attempt_id,
            found.number,
            trial_name(found.manifest_hash, found.condition, found.case_id, found.repetition),
            found.matrix_id,
            found.cell_id,
            found.case_id,
            found.assignment_hash,
            holder,
        )


class _Cells:
    """What each request comes to. Blocking: every method is called in a thread. Keeps copies of what never changes."""

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._matrices: _Recent[int, tuple[Manifest, MatrixGrading]] = _Recent(64)
        self._assignments: _Recent[str, tuple[bytes, dict[str, Any]]] = _Recent(1000)
        self._attempts: _Recent[int, _Attempt] = _Recent(10_000)

    def assignment(self, cell: Cell, _: Request, body: bytes, told: "_Told") -> Response:
        """The next trial of the pod's index."""
        asked = _document(AssignmentRequest, body)
        if (asked.launch, asked.index) != (cell.launch.id, cell.index):
            raise _Refused(403, f"this pod is index {cell.index} of another launch than it says")
        self._refuse_other_software(cell, asked.software)
        found = claiming.claim(self._store, cell.launch.id, cell.index, cell.pod, lease_seconds=self._lease_seconds)
        if isinstance(found, Stop):
            told |= {"outcome": "stop", "detail": found.reason}
            return Response(status_code=204)
        if isinstance(found, Settling):
            raise _Refused(503, "what a former pod of this index did is not settled yet", _SETTLING_SECONDS)
        attempt = self._attempts.put(found.attempt_id, _Attempt.of(found, _holder(cell)))
        told |= {"outcome": "assigned", "trial": attempt.trial, "attempt": attempt.id}
        return _json(_assigned(attempt, self._assignment(found.assignment_hash)[0], more=found.more))

    def journal(self, cell: Cell, _: Request, body: bytes, told: "_Told") -> Response:
        """What the pod's attempt has done so far: durable when this answers."""
        sent = _document(JournalLines, body)
        told["attempt"] = sent.attempt
        if any(entry.attempt != sent.attempt for entry in sent.entries):
            raise _Refused(422, "entries: a line of another attempt")
        self._own(cell, sent.attempt, told)
        try:
            lines = sent.lines()
        except TypeError as error:
            raise _Refused(422, f"entries: {error}") from error
        try:
            claiming.journal(self._store, sent.attempt, cell.pod.uid, sent.first, lines)
        except StateError as error:
            raise _Refused(410, str(error)) from error
        except StoreAway:
            raise
        except StoreError as error:
            raise _Refused(409, str(error)) from error
        told |= {"outcome": "kept", "lines": len(sent.entries)}
        return Response(status_code=204)

    def ledger(self, cell: Cell, request: Request, body: bytes, told: "_Told") -> Response:
        """The ledger of the pod's attempt: validated, graded and in the store when this answers."""
        attempt_id = _attempt_named(request)
        told["attempt"] = attempt_id
        of = self._own(cell, attempt_id, told)
        _, grading = self._matrix(of.matrix_id)
        found = received(
            attempt_id,
            None,
            of.case_id,
            body,
            assignment=self._assignment(of.assignment_hash)[1],
            trial=of.trial,
            number=of.number,
        )
        if isinstance(found, delivering.Quarantined):
            told |= {"outcome": "quarantined", "detail": found.detail}
            delivering.quarantine(self._store, [found])
            return _json(LedgerAnswer(outcome="quarantined").model_dump_json().encode())
        outcome = grading.deliver(self._store, [found])[0]
        told["outcome"] = outcome
        if outcome == "bad_secret" or outcome == "unknown":  # no pod's has a secret, and attempts are never removed
            raise _Refused(403, f"attempt {attempt_id} is not this pod's")
        return _json(LedgerAnswer(outcome=outcome).model_dump_json().encode())

    def unusable(self, cell: Cell, _: Request, body: bytes, told: "_Told") -> Response:
        """No ledger of the attempt will come: the cell fails where its agent does not load, else the trial is open."""
        sent = _document(Unusable, body)
        told |= {"attempt": sent.attempt, "outcome": sent.kind}
        of = self._own(cell, sent.attempt, told)
        held = claiming.attempt_of_pod(self._store, sent.attempt)
        if held.state not in ("leased", "running"):
            # The same again, where the answer was lost; or somebody has settled it otherwise.
            if held.state == "lost":
                return Response(status_code=204)
            raise _Refused(410, f"attempt {sent.attempt} no longer holds its trial")
        if sent.kind == "agent_not_startable":
            # The cell first: a trial that were open in between would be handed to another pod.
            self._fail(of.cell_id, f"the agent cannot be started: {sent.message}")
            losing.lose(self._store, [losing.Lost(sent.attempt, "agent_not_startable")])
            return Response(status_code=204)
        self._settle(of, cell.pod, sent.kind)
        return Response(status_code=204)

    def _own(self, cell: Cell, attempt_id: int, told: "_Told") -> _Attempt:
        """An attempt of this very pod."""
        found = self._attempts.get(attempt_id)
        if found is None:
            with suppress(NotFound):
                held = claiming.attempt_of_pod(self._store, attempt_id)
                holder = (held.pod_uid, held.launch_id, held.launch_index)
                found = self._attempts.put(attempt_id, _Attempt.of(held, holder))
        if found is None or found.holder != _holder(cell):
            raise _Refused(403, f"attempt {attempt_id} is not this pod's")
        told["trial"] = found.trial
        return found

    def _settle(self, of: _Attempt, pod: claiming.Pod, reason: str) -> None:
        """Gives an attempt up, by what its journal says: what it did must not be washed away by another."""
        manifest, grading = self._matrix(of.matrix_id)
        unanswered = Unanswered(
            of.id, of.number, of.trial, of.case_id, self._assignment(of.assignment_hash)[1], reason, begun=True
        )
        place = {"launcher": "kubernetes", "host": pod.node, "worker": pod.name}
        journals = claiming.journals(self._store, [of.id])
        recovery = recover(
            [unanswered], journals, grading.grader, grading.expectation, place, isolation=manifest.isolation
        )
        recovery.write(self._store)
        if recovery.sealings or recovery.deliveries:
            grading.grade_delivered(self._store, of.matrix_id)

    def _refuse_other_software(self, cell: Cell, software: Software) -> None:
        registered = self._matrix(cell.launch.matrix_id)[0].simulator
        if (software.version, software.source) == (registered.version, registered.source):
            return
        reason = (
            f"the trial image runs simulator {software.version} {software.source}, the matrix was registered with "
            f"{registered.version} {registered.source}: deploy the release that registered it, or register it anew"
        )
        self._fail(cell.launch.cell_id, reason)
        raise _Refused(409, reason)

    def _fail(self, cell_id: int, reason: str) -> None:
        try:
            losing.fail_cell(self._store, cell_id, reason.replace("\0", "\\0"))
        except StateError:  # it is done: nothing of it runs any more
            return

    def _matrix(self, matrix_id: int) -> tuple[Manifest, MatrixGrading]:
        found = self._matrices.get(matrix_id)
        if found is None:
            manifest = registered_manifest(self._store, matrix_id)
            found = self._matrices.put(matrix_id, (manifest, MatrixGrading(manifest)))
        return found

    def _assignment(self, assignment_hash: str) -> tuple[bytes, dict[str, Any]]:
        """Document and value."""
        found = self._assignments.get(assignment_hash)
        if found is None:
            document = reading.assignments(self._store, [assignment_hash])[assignment_hash]
            found = self._assignments.put(assignment_hash, (document, orjson.loads(document)))
        return found


_Told = dict[str, Any]
_Work = Callable[[Cell, Request, bytes, _Told], Response]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Recent(Generic[Key, Value]):
    """Copies of what the store never changes, the least recently used one forgotten first. Threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        try:
            # Each of these is one step for other threads; that another one forgets the key in between is no harm.
            self._known.move_to_end(key)
            return self._known[key]
        except KeyError:
            return None

    def put(self, key: Key, value: Value) -> Value:
        self._known[key] = value
        if len(self._known) > self._most:
            with suppress(KeyError):
                self._known.popitem(last=False)
        return value


class _Room:
    """How much of the memory the bodies of requests may take together."""

    def __init__(self, most: int) -> None:
        self._left = most

    def taken(self, size: int) -> "_Taken":
        if size > self._left:
            raise _Refused(503, "too much is being sent at once", _FULL_SECONDS)
        self._left -= size
        return _Taken(self, size)

    def give_back(self, size: int) -> None:
        self._left += size


class _Taken:
    def __init__(self, room: _Room, size: int) -> None:
        self._room, self._size = room, size

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._room.give_back(self._size)


def _declared(request: Request, largest: int) -> int:
    """The body's length as its head says: refused before any of it is read."""
    told = request.headers.get("content-length")
    if told is None:
        raise _Refused(411, "the request does not say how long its body is (Content-Length)")
    if not (told.isascii() and told.isdigit()):
        raise _Refused(400, "Content-Length is no number")
    if len(told) > 15 or int(told) > largest:
        raise _Refused(413, f"{told[:15]} bytes are more than such a request may have ({largest})")
    return int(told)


async def _body(request: Request, largest: int) -> bytes:
    pieces, size = [], 0
    try:
        with anyio.fail_after(_BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > largest:
                    raise _Refused(413, f"more bytes than such a request may have ({largest})")
                pieces.append(piece)
    except TimeoutError:
        raise _Refused(408, f"the body did not arrive within {_BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise _Refused(400, "the connection was lost before the body had arrived") from None
    return b"".join(pieces)


Asked = TypeVar("Asked", bound=WireModel)


def _document(model: type[Asked], body: bytes) -> Asked:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise _Refused(422, f"{place}: {first['msg']}") from error


def _attempt_named(request: Request) -> int:
    text = request.query_params.get("attempt", "")
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16):
        raise _Refused(422, "attempt: the address names the attempt by its number, /v1/ledger?attempt=N")
    return int(text)


def _holder(cell: Cell) -> tuple[str, str, int]:
    return cell.pod.uid, cell.launch.id, cell.index


def _assigned(attempt: _Attempt, document: bytes, *, more: bool) -> bytes:
    """simulator/pod_protocol.py's Assigned; the assignment is sent as it is stored, whatever its model may become."""
    return orjson.dumps(
        {
            "version": 1,
            "attempt": attempt.id,
            "number": attempt.number,
            "trial": attempt.trial,
            "hash": attempt.assignment_hash,
            "assignment": orjson.Fragment(document),
            "more": more,
        }
    )


def _json(document: bytes) -> Response:
    return Response(document, media_type="application/json")


def _refusal(refused: _Refused, told: _Told) -> Response:
    told.setdefault("detail", refused.reason)
    headers = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    document = Refusal(reason=refused.reason[:LONGEST_MESSAGE]).model_dump_json()
    return Response(document, refused.status, headers, "application/json")


async def _unrouted(_: Request, error: Exception) -> Response:
    """What has no such path, or another method."""
    assert isinstance(error, HTTPException)
    document = Refusal(reason=error.detail or "refused").model_dump_json()
    return Response(document, error.status_code, dict(error.headers or {}), "application/json")
