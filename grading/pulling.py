"""A cluster's matrix in a store of this machine: everything checked again here, nothing overwritten.

What comes is judged as the intake judges what a recorder sends: assignments are made again from the manifest, every
ledger is validated against them, and every grade is given here. A pull may be stopped and repeated:
it adds what is new.
"""

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from grading.grading import grade_stored
from grading.intake import Quarantined, validate
from grading.manifest import Manifest, trial_name
from grading.people_client import PeopleClient
from grading.people_protocol import CopiedAttempt, CopiedTrial, MatrixStatus
from grading.planning import register
from grading.store import Store, copying, reading
from grading.store.attempts import batches
from simulator.canonical import sha256

_GROUP = 100
"""Trials in one commit."""


class PullRefused(Exception):  # noqa: N818 - reads as what becomes of it
    """What the cluster sent is not a matrix that may be kept; the message says why."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    name: str
    done: int
    planned: int


@dataclass(slots=True)
class Pulled:
    """What a pull came to."""

    matrix: reading.Matrix
    trials: int = 0
    """Trials that were looked at."""
    added: int = 0
    """Attempts, ledgers and states that are new here."""
    refused: list[str] = field(default_factory=list)
    """Trials that were not taken, each with what is wrong with its ledger: kept as incidents."""
    disagreeing: list[str] = field(default_factory=list)
    """Trials that the cluster graded otherwise, by the same version of the grader."""
    origins: list["Pulled"] = field(default_factory=list)
    """Matrices that this one has taken trials over from."""


def pull(
    client: PeopleClient,
    store: Store,
    word: str | int,
    *,
    watch: Callable[[PullProgress], None] = lambda _: None,
) -> Pulled:
    """Copies a matrix, finished or running, and those whose trials it has taken over.

    Raises:
        PullRefused: the manifest or a trial is not what its hash says.
        CopyConflict: the store has attempts of its own at these trials.
        PeopleRefused, PeopleUnavailable: the cluster.
    """
    return _Pull(client, store, watch).matrix(word)


class _Pull:
    def __init__(self, client: PeopleClient, store: Store, watch: Callable[[PullProgress], None]) -> None:
        self._client = client
        self._store = store
        self._watch = watch
        self._known: dict[str, Pulled] = {}

    def matrix(self, word: str | int) -> Pulled:
        status = self._client.status(word, summary=False)
        manifest = self._manifest(status)
        registered = register(self._store, manifest)
        matrix = reading.find_matrix(self._store, registered.matrix_id)
        pulled = self._known[status.manifest] = Pulled(matrix)
        theirs: dict[int, tuple[str, str]] = {}
        assignments: dict[str, dict[str, Any]] = {}
        planned = status.counts.planned
        for group in batches(self._client.trials(status.id), _GROUP):
            for origin in _origins(group):
                if origin not in self._known:
                    pulled.origins.append(self.matrix(origin))
            copies = list(self._checked(matrix, group, assignments, pulled))
            pulled.added += copying.write_trials(self._store, matrix.id, copies)
            pulled.trials += len(group)
            theirs.update(_graded(group))
            self._watch(PullProgress(matrix.name, pulled.trials, planned))
        self._incidents(status, matrix)
        grade_stored(self._store, matrix, manifest, states=["delivered"])
        pulled.disagreeing = self._disagreeing(matrix, theirs)
        failed = {(cell.condition, cell.case): cell.reason for cell in status.failed_cells}
        copying.settle(self._store, matrix.id, status.state, failed)
        pulled.matrix = reading.find_matrix(self._store, matrix.id)
        return pulled

    def _manifest(self, status: MatrixStatus) -> Manifest:
        document = self._client.manifest(status.id)
        if sha256(document) != status.manifest:
            raise PullRefused(f"{status.name}: the manifest's hash is {sha256(document)}, not {status.manifest}")
        try:
            manifest = Manifest.from_document(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise PullRefused(
                f"{status.name}: the manifest cannot be read by this version of Cellwise: {place}: {first['msg']}"
            ) from error
        if manifest.document() != document:
            raise PullRefused(f"{status.name}: the manifest is not in canonical form")
        return manifest

    def _checked(
        self,
        matrix: reading.Matrix,
        trials: list[CopiedTrial],
        assignments: dict[str, dict[str, Any]],
        pulled: Pulled,
    ) -> Iterator[copying.CopiedTrial]:
        """The trials of which every ledger is valid here; the others are told and kept as incidents."""
        # Of this matrix as it was registered here: what the cluster calls an assignment must be among them.
        wanted = {one.assignment for one in trials} - assignments.keys()
        assignments.update(
            (name, orjson.loads(document)) for name, document in reading.assignments(self._store, wanted).items()
        )
        for one in trials:
            named = f"{one.condition} / {one.case} / {one.repetition}"
            if one.assignment not in assignments:
                raise PullRefused(
                    f"{matrix.name}, trial {one.sequence} ({named}): the manifest gives no assignment {one.assignment}"
                )
            try:
                yield _copy(matrix, one, assignments[one.assignment])
            except _Invalid as invalid:
                why = f"{named}, attempt {invalid.number}: {invalid.error}"
                pulled.refused.append(why)
                kept = copying.CopiedIncident(
                    one.sequence, invalid.number, invalid.error.kind, f"pulled: {why}", invalid.at, invalid.document
                )
                copying.write_incidents(self._store, matrix.id, [kept])

    def _incidents(self, status: MatrixStatus, matrix: reading.Matrix) -> None:
        for group in batches(self._client.incidents(status.id), _GROUP):
            copies = [
                copying.CopiedIncident(
                    one.sequence,
                    one.number,
                    one.kind,
                    one.detail,
                    one.created,
                    _bytes(one.document) if one.document is not None else None,
                )
                for one in group
            ]
            copying.write_incidents(self._store, matrix.id, copies)

    def _disagreeing(self, matrix: reading.Matrix, theirs: dict[int, tuple[str, str]]) -> list[str]:
        found = []
        for trial in reading.trials(self._store, matrix.id, grades=True):
            version, verdict = theirs.get(trial.sequence, ("", ""))
            ours = next((one.verdict for one in trial.grades if one.version == version), verdict)
            if ours != verdict:
                found.append(f"{trial.condition} / {trial.case_id} / {trial.repetition}: {verdict} there, {ours} here")
        return found


class _Invalid(Exception):  # noqa: N818 - carried a few lines
    def __init__(self, number: int, at: int, document: bytes, error: Quarantined) -> None:
        super().__init__(str(error))
        self.number = number
        self.at = at
        self.document = document
        self.error = error


def _copy(matrix: reading.Matrix, one: CopiedTrial, assignment: dict[str, Any]) -> copying.CopiedTrial:
    name = trial_name(matrix.manifest_hash, one.condition, one.case, one.repetition)
    return copying.CopiedTrial(
        one.sequence,
        one.condition,
        one.case,
        one.repetition,
        one.assignment,
        one.state,
        one.evidence,
        tuple(_attempt(each, assignment, name) for each in one.attempts),
    )


def _attempt(one: CopiedAttempt, assignment: dict[str, Any], trial: str) -> copying.CopiedAttempt:
    ledger = None
    if one.ledger is not None:
        document = one.ledger.encode()
        try:
            valid = validate(document, assignment, trial, one.number)
        except Quarantined as error:
            raise _Invalid(one.number, one.ended or one.leased, document, error) from error
        ledger = copying.CopiedLedger(valid.content_hash, valid.ledger_hash, document)
    return copying.CopiedAttempt(
        number=one.number,
        state=one.state,
        reason=one.reason,
        budget=one.budget,
        owner=copying.CopiedOwner(**one.owner.model_dump()) if one.owner is not None else None,
        leased_at=one.leased,
        started=one.started,
        ended=one.ended,
        after_consequential_call=one.acted,
        origin=copying.Origin(one.origin.manifest, one.origin.sequence, one.origin.number)
        if one.origin is not None
        else None,
        ledger=ledger,
        journal=_bytes(one.journal) if one.journal is not None else None,
    )


def _origins(trials: list[CopiedTrial]) -> list[str]:
    """The manifests of the matrices whose ledgers stand for trials, each once."""
    named = [each.origin.manifest for one in trials for each in one.attempts if each.origin is not None]
    return list(dict.fromkeys(named))


def _graded(trials: list[CopiedTrial]) -> Iterator[tuple[int, tuple[str, str]]]:
    """By sequence number: version and verdict of the latest grade of the evidence."""
    for one in trials:
        for each in one.attempts:
            if each.number == one.evidence and each.grades:
                yield one.sequence, (each.grades[-1].version, each.grades[-1].verdict)


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PullRefused(f"the cluster sent something that is no base64: {error}") from error
