"""The cells API: what the recorders in a cluster's pods ask its intake, over the store (simulator/pod_protocol.py).

Who asks is told by ``identify``, which is handed in: this knows nothing of Kubernetes. A pod reaches its own launch,
index and attempts alone. A ledger goes through the same code as one of a local worker. The store's functions wait for a
database, and a ledger's validation takes its time: both are done in threads.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grading.grading import MatrixGrading, Received, received
from grading.group_commit import GroupCommit
from grading.intake import LARGEST_LEDGER
from grading.manifest import Manifest, trial_name
from grading.planning import registered_manifest
from grading.recovering import Unanswered, recover
from grading.request_body import RequestRefused, Room
from grading.store import (
    NotFound,
    StateError,
    Store,
    StoreAway,
    StoreError,
    claiming,
    delivering,
    journaling,
    launching,
    losing,
    reading,
)
from grading.store.claiming import PodClaim, Settling, Stop
from simulator.journal import line
from simulator.ledger import Software
from simulator.model import WireModel
from simulator.pod_protocol import (
    LONGEST_MESSAGE,
    AssignmentRequest,
    Following,
    JournalLines,
    Refusal,
    Unusable,
)

LARGEST_JOURNAL = LARGEST_LEDGER
"""Bytes of one request: a recorder's calls and their answers are less (simulator/recorder.py, LARGEST_RECORD)."""
LARGEST_QUESTION = 64 * 1024
LARGEST_IN_ALL = 4 * LARGEST_LEDGER
"""Bytes of all bodies that are read or worked on at once: what comes beyond has to wait."""

_LARGEST_TOGETHER = 256 * 1024
"""Bytes of a request that is worked on together with others: a larger one would keep them waiting."""

_THREADS = 8
_AWAY_SECONDS = 2
_SETTLING_SECONDS = 2


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
    room = Room(LARGEST_IN_ALL)

    def route(path: str, largest: int, work: "_Work", key: "_Key | None" = None) -> Route:
        together = GroupCommit(work, key) if key is not None else None

        async def endpoint(request: Request) -> Response:
            told: dict[str, Any] = {}
            request.state.told = told
            try:
                # Before anything of the request is read: a stranger learns nothing, not even what would be wrong.
                cell = await identify(request)
                if cell is None:
                    raise RequestRefused(
                        401, "no pod of a cell: its token names none that runs for a launch of this store"
                    )
                told |= {"matrix": cell.launch.matrix_id, "cell": cell.launch.cell_id, "pod": cell.pod.name}
                async with room.body(request, largest) as body:
                    asked = _Asked(cell, request, body, told)
                    if together is not None and len(asked.body) <= _LARGEST_TOGETHER:
                        return await together.do(asked)
                    (answer,) = await anyio.to_thread.run_sync(work, [asked], limiter=threads)
                    if isinstance(answer, Exception):
                        raise answer
                    return answer
            except RequestRefused as refused:
                return _refusal(refused, told)
            except IdentityAway as error:
                return _refusal(RequestRefused(503, f"who asks cannot be found out now: {error}", _AWAY_SECONDS), told)
            except StoreAway as error:
                # What is wrong with the database is for who runs it: its address is in the text.
                told["detail"] = str(error)
                return _refusal(RequestRefused(503, "the store is away", _AWAY_SECONDS), told)
            except StoreError as error:
                told["detail"] = str(error)
                return _refusal(RequestRefused(500, "the store refuses it: the intake's log says why"), told)

        return Route(path, endpoint, methods=["POST"])

    return Starlette(
        routes=[
            route("/v1/assignment", LARGEST_QUESTION, service.assignments, _index),
            route("/v1/journal", LARGEST_JOURNAL, service.journals, _index),
            route("/v1/ledger", LARGEST_LEDGER, service.ledgers, _index),
            route("/v1/turn", LARGEST_LEDGER, service.turns, _index),
            route("/v1/unusable", LARGEST_QUESTION, service.unusable),
        ],
        exception_handlers={HTTPException: _unrouted},
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Asked:
    """A request of a pod, read."""

    cell: Cell
    request: Request
    body: bytes
    told: dict[str, Any]


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

    def assignments(self, asked: "Sequence[_Asked]") -> "list[_Answer]":
        """The next trial of each pod's index."""
        found = _each(asked, self._checked)
        return self._claimed(found)

    def _checked(self, asked: "_Asked") -> "_Asked":
        """Raises RequestRefused for a question that is not the pod's own, or of other software than its matrix."""
        question, cell = _document(AssignmentRequest, asked.body), asked.cell
        if (question.launch, question.index) != (cell.launch.id, cell.index):
            raise RequestRefused(403, f"this pod is index {cell.index} of another launch than it says")
        self._refuse_other_software(cell, question.software)
        return asked

    def _claimed(self, checked: "Sequence[_Asked | Exception]") -> "list[_Answer]":
        claims = iter(self._claims([one for one in checked if isinstance(one, _Asked)]))
        return [self._claim_answer(one, next(claims)) if isinstance(one, _Asked) else one for one in checked]

    def _claims(
        self,
        asked: "Sequence[_Asked]",
        begun: "Mapping[_Asked, claiming.Begun | None]" = MappingProxyType({}),
        *,
        are_enrolled: bool = False,
    ) -> "Sequence[claiming.Answer | NotFound]":
        if not asked:
            return []
        asks = [
            claiming.Ask(one.cell.launch.id, one.cell.index, one.cell.pod, are_enrolled, begun.get(one))
            for one in asked
        ]
        return claiming.claim_all(self._store, asks, lease_seconds=self._lease_seconds)

    def _claim_answer(self, asked: "_Asked", found: claiming.Answer | NotFound) -> "_Answer":
        if isinstance(found, NotFound):
            return found
        if isinstance(found, Stop):
            asked.told.update({"outcome": "stop", "detail": found.reason})
            return Response(status_code=204)
        if isinstance(found, Settling):
            return RequestRefused(503, "what a former pod of this index did is not settled yet", _SETTLING_SECONDS)
        attempt, document = self._assigned(asked.cell, found)
        asked.told.update({"outcome": "assigned", "trial": attempt.trial, "attempt": attempt.id})
        return _json(document)

    def _assigned(self, cell: Cell, found: PodClaim) -> tuple[_Attempt, bytes]:
        """The attempt, and simulator/pod_protocol.py's Assigned."""
        attempt = self._attempts.put(found.attempt_id, _Attempt.of(found, _holder(cell)))
        return attempt, _assigned(attempt, self._assignment(found.assignment_hash)[0], found)

    def journals(self, asked: "Sequence[_Asked]") -> "list[_Answer]":
        """What the pods' attempts have done so far: durable when this answers."""
        found = _each(asked, self._lines)
        told = [one for one in found if isinstance(one, journaling.Told)]
        refused = iter(journaling.journal_all(self._store, told) if told else ())
        return [
            self._journal_answer(one, of, next(refused)) if isinstance(of, journaling.Told) else of
            for one, of in zip(asked, found, strict=True)
        ]

    def _lines(self, asked: "_Asked") -> journaling.Told:
        sent = _document(JournalLines, asked.body)
        asked.told["attempt"] = sent.attempt
        if any(entry.attempt != sent.attempt for entry in sent.entries):
            raise RequestRefused(422, "entries: a line of another attempt")
        self._own(asked.cell, sent.attempt, asked.told)
        try:
            return journaling.Told(sent.attempt, asked.cell.pod.uid, sent.first, sent.lines())
        except TypeError as error:
            raise RequestRefused(422, f"entries: {error}") from error

    @staticmethod
    def _journal_answer(asked: "_Asked", of: journaling.Told, refused: StoreError | None) -> "_Answer":
        if isinstance(refused, StateError):
            return RequestRefused(410, str(refused))
        if refused is not None:
            return RequestRefused(409, str(refused))
        asked.told.update({"outcome": "kept", "lines": len(of.lines)})
        return Response(status_code=204)

    def ledgers(self, asked: "Sequence[_Asked]") -> "list[_Answer]":
        """The ledgers of the pods' attempts, validated, graded and in the store when this answers; for who asks for it
        the next trial of its index."""
        return self._taken(_each(asked, self._received))

    def turns(self, asked: "Sequence[_Asked]") -> "list[_Answer]":
        """The same of ledgers that come with the beginning of the next trial: its journal is in the store, too, when
        this answers that it has begun."""
        return self._taken(_each(asked, self._turn))

    def _taken(self, found: "Sequence[_Sent | Exception]") -> "list[_Answer]":
        outcomes = self._delivered([one for one in found if isinstance(one, _Sent)])
        following = self._following(outcomes)
        return [
            _ledger_answer(one, outcomes[one], following.get(one)) if isinstance(one, _Sent) else one for one in found
        ]

    def _received(self, asked: "_Asked") -> "_Sent":
        matrix_id, found = self._validated(asked, asked.body)
        return _Sent(asked, matrix_id, found, wants_next=asked.request.query_params.get("next") == "1")

    def _turn(self, asked: "_Asked") -> "_Sent":
        # A ledger is canonical JSON, which has no line's end.
        document, _, following = asked.body.partition(b"\n")
        begun = _begun(_document(Following, following))
        matrix_id, found = self._validated(asked, document)
        return _Sent(asked, matrix_id, found, wants_next=True, begun=begun)

    def _validated(self, asked: "_Asked", document: bytes) -> tuple[int, Received | delivering.Quarantined]:
        """The matrix, and the ledger of the attempt that the address names."""
        attempt_id = _attempt_named(asked.request)
        asked.told["attempt"] = attempt_id
        of = self._own(asked.cell, attempt_id, asked.told)
        found = received(
            attempt_id,
            None,
            of.case_id,
            document,
            assignment=self._assignment(of.assignment_hash)[1],
            trial=of.trial,
            number=of.number,
        )
        return of.matrix_id, found

    def _delivered(self, sent: "list[_Sent]") -> "dict[_Sent, str]":
        outcomes: dict[_Sent, str] = {}
        of_matrix: dict[int, list[tuple[_Sent, Received]]] = {}
        for one in sent:
            if isinstance(one.found, Received):
                of_matrix.setdefault(one.matrix_id, []).append((one, one.found))
        for matrix_id, pairs in of_matrix.items():
            _, grading = self._matrix(matrix_id)
            for (one, _), outcome in zip(
                pairs, grading.deliver(self._store, [ledger for _, ledger in pairs]), strict=True
            ):
                outcomes[one] = one.asked.told["outcome"] = outcome
        # Last: a group that fails is repeated, and what is quarantined twice is two incidents.
        none = [(one, one.found) for one in sent if isinstance(one.found, delivering.Quarantined)]
        if none:
            delivering.quarantine(self._store, [found for _, found in none])
        for one, found in none:
            outcomes[one] = "quarantined"
            one.asked.told.update({"outcome": "quarantined", "detail": found.detail})
        return outcomes

    def _following(self, outcomes: "dict[_Sent, str]") -> "dict[_Sent, _Next]":
        """The next trials of those pods that ask for one with a ledger. Its ledger is in the store: where there is no
        other trial now, or none can be claimed, the pod asks again by itself."""
        asking = {
            (one.asked.cell.launch.id, one.asked.cell.index): one
            for one, outcome in outcomes.items()
            if one.wants_next and outcome in ("accepted", "repeated")
        }
        following: dict[_Sent, _Next] = {}
        begun = {one.asked: one.begun for one in asking.values()}
        try:
            claims = self._claims([one.asked for one in asking.values()], begun, are_enrolled=True)
            for one, found in zip(asking.values(), claims, strict=True):
                if isinstance(found, PodClaim):
                    attempt, document = self._assigned(one.asked.cell, found)
                    following[one] = _Next(document, found.begun)
                    one.asked.told["next"] = attempt.id
        except StoreError as error:
            for one in asking.values():
                one.asked.told["detail"] = str(error)
        return following

    def unusable(self, asked: "Sequence[_Asked]") -> "list[_Answer]":
        """No ledger of an attempt will come: the cell fails where its agent does not load, else the trial is open."""
        return _each(asked, self._unusable)

    def _unusable(self, asked: "_Asked") -> Response:
        cell = asked.cell
        sent = _document(Unusable, asked.body)
        asked.told.update({"attempt": sent.attempt, "outcome": sent.kind})
        of = self._own(cell, sent.attempt, asked.told)
        held = claiming.attempt_of_pod(self._store, sent.attempt)
        if held.state not in ("leased", "running"):
            # The same again, where the answer was lost; or somebody has settled it otherwise.
            if held.state == "lost":
                return Response(status_code=204)
            raise RequestRefused(410, f"attempt {sent.attempt} no longer holds its trial")
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
            raise RequestRefused(403, f"attempt {attempt_id} is not this pod's")
        told["trial"] = found.trial
        return found

    def _settle(self, of: _Attempt, pod: claiming.Pod, reason: str) -> None:
        """Gives an attempt up, by what its journal says: what it did must not be washed away by another."""
        manifest, grading = self._matrix(of.matrix_id)
        unanswered = Unanswered(
            of.id, of.number, of.trial, of.case_id, self._assignment(of.assignment_hash)[1], reason, begun=True
        )
        place = {"launcher": "kubernetes", "host": pod.node, "worker": pod.name}
        journals = journaling.journals(self._store, [of.id])
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
        raise RequestRefused(409, reason)

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


@dataclass(frozen=True, eq=False, slots=True)
class _Sent:
    """A ledger of a pod's attempt, on its way into the store."""

    asked: _Asked
    matrix_id: int
    found: Received | delivering.Quarantined
    wants_next: bool
    begun: claiming.Begun | None = None
    """What the pod has begun already of its next trial."""


class _Next(NamedTuple):
    """A pod's next trial: simulator/pod_protocol.py's Assigned."""

    document: bytes
    begun: bool


_Told = dict[str, Any]
_Answer = Response | Exception
_Work = Callable[[Sequence[_Asked]], list[_Answer]]
_Key = Callable[[_Asked], Hashable]


def _index(asked: _Asked) -> Hashable:
    """What two requests must differ in to be worked on together."""
    return asked.cell.launch.id, asked.cell.index


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


Asked = TypeVar("Asked", bound=WireModel)


def _document(model: type[Asked], body: bytes) -> Asked:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise RequestRefused(422, f"{place}: {first['msg']}") from error


def _attempt_named(request: Request) -> int:
    text = request.query_params.get("attempt", "")
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16):
        raise RequestRefused(422, "attempt: the address names the attempt by its number, /v1/ledger?attempt=N")
    return int(text)


def _holder(cell: Cell) -> tuple[str, str, int]:
    return cell.pod.uid, cell.launch.id, cell.index


def _assigned(attempt: _Attempt, document: bytes, found: PodClaim) -> bytes:
    """simulator/pod_protocol.py's Assigned; the assignment is sent as it is stored, whatever its model may become."""
    return orjson.dumps(
        {
            "version": 1,
            "attempt": attempt.id,
            "number": attempt.number,
            "trial": attempt.trial,
            "hash": attempt.assignment_hash,
            "assignment": orjson.Fragment(document),
            "more": found.more,
            "after": found.after,
        }
    )


Found = TypeVar("Found")


def _each(asked: Sequence[_Asked], work: Callable[[_Asked], Found]) -> list[Found | Exception]:
    """The same for each, none of them failing for another one; but nothing can be done while the store is away."""
    found: list[Found | Exception] = []
    for one in asked:
        try:
            found.append(work(one))
        except StoreAway:
            raise
        except (RequestRefused, StoreError) as error:
            found.append(error)
    return found


def _begun(following: Following) -> claiming.Begun:
    try:
        members = following.members()
    except TypeError as error:
        raise RequestRefused(422, f"entries: {error}") from error
    return claiming.Begun(following.assignment, lambda attempt: [line(attempt, one) for one in members])


def _ledger_answer(sent: _Sent, outcome: str, following: _Next | None) -> _Answer:
    if outcome in ("bad_secret", "unknown"):  # no pod's has a secret, and attempts are never removed
        return RequestRefused(403, f"attempt {sent.asked.told['attempt']} is not this pod's")
    answer: dict[str, Any] = {"version": 1, "outcome": outcome}
    if following is not None:
        answer["next"] = orjson.Fragment(following.document)
        if sent.begun is not None:
            answer["begun"] = following.begun
    return _json(orjson.dumps(answer))


def _json(document: bytes) -> Response:
    return Response(document, media_type="application/json")


def _refusal(refused: RequestRefused, told: _Told) -> Response:
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
