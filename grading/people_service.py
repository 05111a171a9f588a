"""The people API: what the command line asks a cluster's intake, over the store.

Who asks is told by ``identify``, which is handed in: this knows nothing of Kubernetes. The store's functions wait for a
database, so each request is worked on in a thread; what it answers are the models of :mod:`grading.people_protocol`.
"""

import base64
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from grading import people_protocol as people
from grading.foreign_manifest import ManifestRefused, accepted
from grading.manifest import Manifest, Simulator, differences
from grading.planning import register, registered_manifest
from grading.results import summary_of
from grading.store import (
    NotFound,
    StateError,
    Store,
    StoreError,
    copying,
    launching,
    matrices,
    placing,
    reading,
    reusing,
    whereabouts,
)
from simulator.model import WireModel
from simulator.source import simulator_identity
from simulator.version import VERSION

Verb = Literal["get", "create", "update"]
Identify = Callable[[Request, Verb], str | Awaitable[str]]
"""Who asks, as kept with what they placed.

It raises starlette's HTTPException: 401 for no or a bad token, 403 for one without this right, 503 where that cannot
be found out now. It may wait for a network: it is called in a thread, unless it is a coroutine function.
"""

Asked = TypeVar("Asked", bound=WireModel)

_INCIDENTS_SHOWN = 100
_MOST_ATTEMPTS = 1000
_RETRY_AFTER = {"retry-after": "2"}

log = logging.getLogger(__name__)


class _Refused(Exception):  # noqa: N818 - reads as what becomes of a request
    def __init__(self, status: int, error: str, place: str | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.problem = people.Problem(error=error, place=place)


def people_app(store: Store, identify: Identify, *, cells_namespace: str | None = None) -> Starlette:
    """The application of the people's port.

    Args:
        store: open until the application is gone.
        identify: see :data:`Identify`.
        cells_namespace: where the cells' pods are, for who wants to read their logs.
    """
    service = _PeopleService(store, cells_namespace)

    def route(path: str, method: str, verb: Verb, work: Callable[["_Asking"], WireModel | bytes], *takes: str) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answer(request, identify, verb, work, takes)

        return Route(path, endpoint, methods=[method])

    one = "/v1/matrices/{word}"
    return Starlette(
        routes=[
            route("/v1/whoami", "GET", "get", service.whoami),
            route("/v1/matrices", "GET", "get", service.matrices),
            route("/v1/matrices", "POST", "create", service.register),
            route(one, "GET", "get", service.status, "summary"),
            route(f"{one}/attempts", "GET", "get", service.attempts, "cell", "case", "condition"),
            route(f"{one}/manifest", "GET", "get", service.manifest),
            route(f"{one}/ledgers", "GET", "get", service.ledgers, "after", "limit"),
            route(f"{one}/incidents", "GET", "get", service.incidents, "after"),
            route(f"{one}/pause", "POST", "update", service.pause),
            route(f"{one}/resume", "POST", "update", service.resume),
            route(f"{one}/cancel", "POST", "update", service.cancel),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=2_000, compresslevel=5)],
        exception_handlers={HTTPException: _told},
    )


class _Asking:
    """One request, read: who asks, of which matrix, with what."""

    def __init__(self, actor: str, path: Mapping[str, str], query: Mapping[str, str], body: bytes) -> None:
        self.actor = actor
        self.query = query
        self.word = path.get("word", "")
        self.body = body

    def document(self, model: type[Asked]) -> Asked:
        """The body as a document; an empty one where every field has a default."""
        try:
            found = model.model_validate_json(self.body or b"{}")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise _Refused(422, first["msg"], place or None) from error
        try:
            json.loads(self.body or b"{}", object_pairs_hook=_members)
        except ValueError as error:
            raise _Refused(422, str(error)) from error
        return found

    def no_document(self) -> None:
        """Refuses a body where none is read: who sent it wants something else than what would happen."""
        if self.body:
            raise _Refused(422, "this request has no body")

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        text = self.query.get(name, str(default))
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and least <= int(text) <= most):
            raise _Refused(422, f"must be a number from {least} to {most}", name)
        return int(text)


def _members(pairs: list[tuple[str, object]]) -> None:
    """Refuses a member that is written twice: one reader would take the first, another the last."""
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"the member '{name[:200]}' is written twice: keep one")
        names.add(name)


async def _answer(
    request: Request,
    identify: Identify,
    verb: Verb,
    work: Callable[[_Asking], WireModel | bytes],
    takes: Collection[str],
) -> Response:
    try:
        # Before anything of the request is read: a stranger learns nothing, not even what would be wrong.
        actor = await run_in_threadpool(identify, request, verb)
        if inspect.isawaitable(actor):
            actor = await actor
        _check_parameters(request.query_params, takes)
        body = await _body(request)
        asking = _Asking(actor, request.path_params, request.query_params, body)
        found = await run_in_threadpool(work, asking)
    except _Refused as error:
        return _problem(error.status, error.problem)
    except NotFound as error:
        return _problem(404, people.Problem(error=str(error)))
    except StateError as error:
        return _problem(409, people.Problem(error=str(error)))
    except StoreError as error:
        log.warning("the store refused: %s", error)
        return _problem(503, people.Problem(error=str(error)), _RETRY_AFTER)
    if isinstance(found, bytes):
        return Response(found, media_type="application/json")
    return Response(found.model_dump_json(), media_type="application/json")


def _check_parameters(given: QueryParams, takes: Collection[str]) -> None:
    """Refuses what would be ignored: who sent it wants something else than what they would be told."""
    for name in given:
        if name not in takes:
            told = (
                f"no such parameter: this request takes {', '.join(takes)}"
                if takes
                else "this request takes no parameter"
            )
            raise _Refused(422, told, name[:200])
        if len(given.getlist(name)) > 1:
            raise _Refused(422, "is given twice: keep one", name)


async def _body(request: Request) -> bytes:
    """The whole body, of which no more is kept than is allowed."""
    too_large = _Refused(413, f"a request has at most {people.LARGEST_REQUEST} bytes")
    told = request.headers.get("content-length", "0")
    if told.isascii() and told.isdigit() and int(told[:20]) > people.LARGEST_REQUEST:
        raise too_large
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > people.LARGEST_REQUEST:
            raise too_large
        pieces.append(piece)
    return b"".join(pieces)


def _problem(status: int, problem: people.Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem.model_dump_json(), status, dict(headers or {}), "application/json")


async def _told(_: Request, error: Exception) -> Response:
    """What starlette itself refuses (no such path, another method) and what ``identify`` does."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 401:
        headers.setdefault("www-authenticate", "Bearer")
    if error.status_code == 503:
        headers.setdefault("retry-after", _RETRY_AFTER["retry-after"])
    return _problem(error.status_code, people.Problem(error=error.detail or "refused"), headers)


class _PeopleService:
    """What each request comes to. Blocking: every method is called in a thread."""

    def __init__(self, store: Store, cells_namespace: str | None) -> None:
        self._store = store
        self._cells_namespace = cells_namespace

    def whoami(self, asking: _Asking) -> people.WhoAmI:
        try:
            cellwise = version("cellwise")
        except PackageNotFoundError:
            cellwise = VERSION
        return people.WhoAmI(
            actor=asking.actor,
            cellwise=cellwise,
            simulator=Simulator(**simulator_identity()),
            cells_namespace=self._cells_namespace,
        )

    # Changing

    def register(self, asking: _Asking) -> people.Registered:
        """Each step is one that a second request finds done: a client that lost the answer asks again."""
        asked = asking.document(people.RegisterRequest)
        wanted = asked.placement
        try:
            manifest = accepted(asked.manifest, wanted.images)
        except ManifestRefused as error:
            raise _Refused(422, str(error), f"manifest.{error.place}".rstrip(".")) from error
        _check_placement(manifest, wanted)
        old = self._find(wanted.reuse) if wanted.reuse is not None else None
        earlier = [one for one in reading.matrices(self._store) if one.name == manifest.name]
        registered = register(self._store, manifest)
        matrix = reading.find_matrix(self._store, registered.matrix_id)
        if matrix.state == "cancelled":
            raise StateError(
                f"{matrix.name} (matrix {matrix.id}) was cancelled: it never runs again; what is changed in its file "
                "is a new matrix, and --reuse takes over what was finished"
            )
        placing.place(self._store, matrix.id, _placement(wanted, asking.actor))
        reused = 0
        if old is not None and old.id != matrix.id and matrix.state in ("registered", "running"):
            reused = len(reusing.reuse(self._store, matrix.id, old.id))
        self._go_on(matrix)
        previous = earlier[-1] if registered.created and earlier else None
        changes = []
        if previous is not None:
            changes = differences(registered_manifest(self._store, previous.id), manifest)
        return people.Registered(
            id=matrix.id,
            manifest=matrix.manifest_hash,
            created=registered.created,
            state=reading.find_matrix(self._store, matrix.id).state,
            changes=changes,
            previous=previous.id if previous is not None else None,
            reused=reused,
        )

    def resume(self, asking: _Asking) -> people.Changed:
        asked = asking.document(people.ResumeRequest)
        matrix = self._find(asking.word)
        placed = self._placed(matrix)
        if placed is None:
            raise StateError(f"{matrix.name} (matrix {matrix.id}) was never placed on this cluster: run it there first")
        if matrix.state == "cancelled":
            raise StateError(f"{matrix.name} (matrix {matrix.id}) was cancelled: it never runs again")
        manifest = registered_manifest(self._store, matrix.id)
        _check_only(manifest, asked.only)
        wanted = placing.Placement(
            trials_per_pod=asked.trials_per_pod or placed.trials_per_pod,
            parallelism=asked.parallelism or placed.parallelism,
            queue=asked.queue or placed.queue,
            images=placed.images,
            providers=placed.providers,
            only=_chosen(asked.only),
            actor=asking.actor,
        )
        placing.place(self._store, matrix.id, wanted)
        return self._changed(matrix, self._go_on(matrix))

    def pause(self, asking: _Asking) -> people.Changed:
        asking.no_document()
        matrix = self._find(asking.word)
        return self._changed(matrix, matrices.pause(self._store, matrix.id))

    def cancel(self, asking: _Asking) -> people.Changed:
        asking.no_document()
        matrix = self._find(asking.word)
        return self._changed(matrix, matrices.cancel(self._store, matrix.id))

    def _go_on(self, matrix: reading.Matrix) -> bool:
        """Has a matrix run, whatever state it stopped in; False where there was nothing to do."""
        state = reading.find_matrix(self._store, matrix.id).state
        if state == "registered":
            return matrices.start(self._store, matrix.id)
        if state == "paused":
            return matrices.resume(self._store, matrix.id)
        if state == "incomplete":
            # What a wrong configuration kept from running is tried again; what used up its attempts stays missing.
            return matrices.reopen(self._store, matrix.id) > 0
        return False

    def _changed(self, matrix: reading.Matrix, changed: bool) -> people.Changed:
        now = reading.find_matrix(self._store, matrix.id)
        return people.Changed(id=now.id, name=now.name, state=now.state, changed=changed)

    # Reading

    def matrices(self, _: _Asking) -> people.Matrices:
        return people.Matrices(
            matrices=[
                people.ListedMatrix(
                    id=one.id,
                    name=one.name,
                    manifest=one.manifest_hash,
                    state=one.state,
                    counts=people.TrialCounts(**reading.counts(self._store, one.id)),
                )
                for one in reading.matrices(self._store)
            ]
        )

    def status(self, asking: _Asking) -> people.MatrixStatus:
        store, matrix = self._store, self._find(asking.word)
        placed = self._placed(matrix)
        cells = reading.cells(store, matrix.id)
        chosen = None
        if placed is not None and placed.only:
            chosen = [cell.id for cell in cells if placed.covers(cell.case_id, cell.condition)]
        publications = reading.publications(store, matrix.id)
        shown: list[people.IncidentLine] = [
            people.IncidentLine(kind=one.kind, detail=one.detail)
            for one in copying.read_incidents(store, matrix.id, after=0, limit=_INCIDENTS_SHOWN)
        ]
        wants = asking.query.get("summary", "yes")
        if wants not in ("yes", "no"):
            raise _Refused(422, "must be yes or no", "summary")
        summary = summary_of(store, matrix) if wants == "yes" else None
        return people.MatrixStatus(
            id=matrix.id,
            name=matrix.name,
            manifest=matrix.manifest_hash,
            state=matrix.state,
            counts=people.TrialCounts(**reading.counts(store, matrix.id)),
            placed=people.TrialCounts(**reading.counts_of_cells(store, matrix.id, chosen)),
            running=whereabouts.running(store, matrix.id),
            lost=[
                people.LostAttempts(reason=reason, count=count)
                for reason, count in sorted(reading.lost_attempts(store, matrix.id).items())
            ],
            failed_cells=[
                people.FailedCell(condition=cell.condition, case=cell.case_id, reason=cell.reason or "")
                for cell in cells
                if cell.state == "failed"
            ],
            waiting=[
                people.WaitingCell(condition=one.condition, case=one.case_id, why=one.waiting)
                for one in launching.of_matrix(store, matrix.id)
                if one.state != "ended" and one.waiting is not None
            ],
            incidents=shown,
            publications=[
                people.PublicationLine(target=one.target, state=one.state, compare=one.detail) for one in publications
            ],
            on_cluster=placed is not None,
            actor=placed.actor if placed is not None else None,
            trials_per_pod=placed.trials_per_pod if placed is not None else None,
            parallelism=placed.parallelism if placed is not None else None,
            queue=placed.queue if placed is not None else None,
            phoenix=next((one.detail for one in reversed(publications) if one.detail is not None), None),
            summary=summary.to_json() if summary is not None else None,
            plain=summary.plain() if summary is not None else None,
        )

    def attempts(self, asking: _Asking) -> people.Attempts:
        matrix = self._find(asking.word)
        cell_ids = self._cells(asking, matrix)
        found = whereabouts.attempts(self._store, matrix.id, cell_ids=cell_ids, limit=_MOST_ATTEMPTS + 1)
        return people.Attempts(
            matrix=matrix.id,
            name=matrix.name,
            cells_namespace=self._cells_namespace,
            attempts=[
                people.AttemptLine(
                    condition=one.condition,
                    case=one.case_id,
                    repetition=one.repetition,
                    number=one.number,
                    state=one.state,
                    reason=one.reason,
                    pod=one.pod,
                    node=one.node,
                    launch=one.launch_id,
                    index=one.launch_index,
                    leased=one.leased_at,
                    started=one.started,
                    ended=one.ended,
                    acted=one.after_consequential_call,
                )
                for one in found[:_MOST_ATTEMPTS]
            ],
            launches=[
                people.LaunchLine(
                    id=one.id,
                    condition=one.condition,
                    case=one.case_id,
                    generation=one.generation,
                    job=one.job,
                    state=one.state,
                    reason=one.reason,
                    waiting=one.waiting,
                )
                for one in launching.of_matrix(self._store, matrix.id)
                if cell_ids is None or one.cell_id in cell_ids
            ],
            more=len(found) > _MOST_ATTEMPTS,
        )

    def manifest(self, asking: _Asking) -> bytes:
        return reading.manifest(self._store, self._find(asking.word).id)

    def ledgers(self, asking: _Asking) -> people.Ledgers:
        matrix = self._find(asking.word)
        after = asking.number("after", -1, least=-1, most=2**31 - 1)
        limit = asking.number("limit", 200, least=1, most=people.MOST_TRIALS_AT_ONCE)
        found = copying.read_trials(self._store, matrix.id, after=after, limit=limit, most_bytes=people.LARGEST_ANSWER)
        planned = sum(reading.counts(self._store, matrix.id).values())
        more = bool(found) and found[-1].sequence < planned - 1
        return people.Ledgers(trials=[_copied(one) for one in found], more=more)

    def incidents(self, asking: _Asking) -> people.Incidents:
        matrix = self._find(asking.word)
        after = asking.number("after", 0, least=0, most=2**53 - 1)
        found = copying.read_incidents(self._store, matrix.id, after=after, limit=_INCIDENTS_SHOWN)
        return people.Incidents(
            incidents=[
                people.CopiedIncident(
                    id=one.id,
                    sequence=one.sequence,
                    number=one.number,
                    kind=one.kind,
                    detail=one.detail,
                    created=one.created,
                    document=base64.b64encode(one.document).decode() if one.document is not None else None,
                )
                for one in found
            ],
            more=len(found) == _INCIDENTS_SHOWN,
        )

    def _find(self, word: str) -> reading.Matrix:
        if len(word) > 200 or "\0" in word:
            raise NotFound("no matrix has such a name: give an id, a name, or the beginning of a hash")
        return reading.find_matrix(self._store, word)

    def _placed(self, matrix: reading.Matrix) -> placing.Placement | None:
        found = (one.placement for one in placing.placements(self._store) if one.matrix_id == matrix.id)
        return next(found, None)

    def _cells(self, asking: _Asking, matrix: reading.Matrix) -> list[int] | None:
        """The cells that a query names: by id, or by case and condition. None for all of them."""
        terms = {name: asking.query[name] for name in ("cell", "case", "condition") if name in asking.query}
        if not terms:
            return None
        found = [
            cell.id
            for cell in reading.cells(self._store, matrix.id)
            if terms.get("cell", str(cell.id)) == str(cell.id)
            and terms.get("case", cell.case_id) == cell.case_id
            and terms.get("condition", cell.condition) == cell.condition
        ]
        if not found:
            named = ", ".join(f"{name} {value[:200]}" for name, value in terms.items())
            raise NotFound(f"{matrix.name} has no cell of {named}")
        return found


def _check_placement(manifest: Manifest, wanted: people.WantedPlacement) -> None:
    names = [condition.name for condition in manifest.conditions]
    for name in wanted.providers:
        if name not in names:
            raise _Refused(422, f"no condition is called '{name}'", "placement.providers")
    _check_only(manifest, wanted.only, "placement.only")


def _check_only(manifest: Manifest, only: list[people.CellTerms], place: str = "only") -> None:
    names = [condition.name for condition in manifest.conditions]
    ids = [case.id for case in manifest.cases]
    for index, one in enumerate(only):
        if one.case is not None and one.case not in ids:
            raise _Refused(422, f"there is no case '{one.case}'", f"{place}.{index}.case")
        if one.condition is not None and one.condition not in names:
            raise _Refused(422, f"there is no condition '{one.condition}'", f"{place}.{index}.condition")


def _placement(wanted: people.WantedPlacement, actor: str) -> placing.Placement:
    return placing.Placement(
        trials_per_pod=wanted.trials_per_pod,
        parallelism=wanted.parallelism,
        queue=wanted.queue,
        images=wanted.images,
        providers=wanted.providers,
        only=_chosen(wanted.only),
        actor=actor,
    )


def _chosen(only: list[people.CellTerms]) -> tuple[placing.Chosen, ...]:
    return tuple(placing.Chosen(case=one.case, condition=one.condition) for one in only)


def _copied(one: copying.CopiedTrial) -> people.CopiedTrial:
    return people.CopiedTrial(
        sequence=one.sequence,
        condition=one.condition,
        case=one.case_id,
        repetition=one.repetition,
        assignment=one.assignment_hash,
        state=one.state,
        evidence=one.evidence,
        attempts=[_copied_attempt(each) for each in one.attempts],
    )


def _copied_attempt(one: copying.CopiedAttempt) -> people.CopiedAttempt:
    return people.CopiedAttempt.model_validate(
        {
            "number": one.number,
            "state": one.state,
            "reason": one.reason,
            "budget": one.budget,
            "owner": asdict(one.owner) if one.owner is not None else None,
            "leased": one.leased_at,
            "started": one.started,
            "ended": one.ended,
            "acted": one.after_consequential_call,
            "origin": {
                "manifest": one.origin.manifest_hash,
                "sequence": one.origin.sequence,
                "number": one.origin.number,
            }
            if one.origin is not None
            else None,
            "ledger": one.ledger.document.decode() if one.ledger is not None else None,
            "journal": base64.b64encode(one.journal).decode() if one.journal is not None else None,
            "grades": [
                {"grader": each.grader, "version": each.version, "verdict": each.verdict} for each in one.grades
            ],
        }
    )
