"""Writing a packet from the store: one pass over the trials, in constant memory, and the file whole or not at all."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import orjson

from grading.arms import check_comparison
from grading.file_error import FileError
from grading.judge.configuration import RegisteredJudge
from grading.judge.judgment import NOT_JUDGED, Judgment
from grading.manifest import Manifest
from grading.packet import OPENING, Evidence, RowContradiction, Rows, Totals
from grading.planning import registered_manifest
from grading.store import Store, StoreError, judgments, reading
from grading.store.attempts import batches
from simulator.canonical import canonical, sha256


class NotExportable(StoreError):  # noqa: N818 - reads as what is wrong
    """The matrix has not come so far, or was graded otherwise than it registered. Nothing was written."""


def export(store: Store, matrix: reading.Matrix, path: Path) -> str:
    """Writes a comparison's packet, never over an existing file. Returns the SHA-256 of the file's bytes.

    Raises:
        NotAComparison: the matrix is none.
        NotExportable: trials are left to run or to grade.
        FileError: the file is there already, or cannot be written; nothing was.
    """
    manifest = registered_manifest(store, matrix.id)
    check_comparison(manifest)
    counts = reading.counts(store, matrix.id)
    left = counts["open"] + counts["leased"] + counts["delivered"]
    if left:
        raise NotExportable(
            f"{left} trials of {matrix.name} are neither graded nor given up: cellwise resume {matrix.id}"
        )
    _refuse_existing(path)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".cellwise-", dir=path.parent)
    except OSError as error:
        raise FileError(path, None, None, f"cannot be written: {error.strerror}") from error
    staged = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            digest = _write(_Hashed(file), store, matrix, manifest)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        _publish(staged, path)
    except OSError as error:
        raise FileError(path, None, None, f"cannot be written: {error.strerror}") from error
    finally:
        staged.unlink(missing_ok=True)
    return digest


class _Hashed:
    """A file that knows the SHA-256 of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


def _write(file: _Hashed, store: Store, matrix: reading.Matrix, manifest: Manifest) -> str:
    document = manifest.document()
    file.write(OPENING + b"\n")
    file.write(b'"manifest":%b,\n' % document)
    file.write(b'"manifest_hash":"%b",\n' % sha256(document).encode())
    totals = Totals()
    # Rows follow the artifacts, and both come from one pass: what is graded meanwhile must not come between them.
    with tempfile.TemporaryFile() as spooled:
        _section(file, "artifacts", _artifacts(store, matrix, manifest, totals, spooled))
        spooled.seek(0)
        _section(file, "rows", (line[:-1] for line in spooled))
    _section(file, "incidents", _incidents(store, matrix))
    file.write(b'"totals":%b,\n' % canonical(totals.to_json()))
    file.write(b'"packet_hash":"%b"}\n' % file.digest.encode())
    return file.digest


def _section(file: _Hashed, name: str, elements: Iterator[bytes]) -> None:
    file.write(b'"%b":[\n' % name.encode())
    before: bytes | None = None
    for element in elements:
        if before is not None:
            file.write(before + b",\n")
        before = element
    if before is not None:
        file.write(before + b"\n")
    file.write(b"],\n")


def _artifacts(
    store: Store, matrix: reading.Matrix, manifest: Manifest, totals: Totals, rows: IO[bytes]
) -> Iterator[bytes]:
    """The artifacts in planned order; every trial's row is written to ``rows`` on the way."""
    make = Rows(manifest)
    lost = _LostAttempts(store, matrix)
    reasons = {
        (cell.condition, cell.case_id): cell.reason
        for cell in reading.cells(store, matrix.id)
        if cell.state == "failed"
    }
    judged = _judged(store, manifest, reading.trials(store, matrix.id, ledgers=True, grades=True))
    for planned, (trial, stored) in zip(manifest.planned(), judged, strict=True):
        attempts = lost.of(trial.sequence)
        evidence, pending = None, None
        if trial.ledger is not None:
            grade = _registered_grade(store, manifest, trial)
            document = stored.document if stored is not None and stored.document is not None else b""
            judgment = Judgment.model_validate_json(document) if document else None
            pending = None if judgment is not None else stored.reason if stored is not None else NOT_JUDGED
            artifact = b'{"grades":%b,"judgments":[%b],"ledger":%b}' % (canonical([grade]), document, trial.ledger)
            ledger, reused = orjson.loads(trial.ledger), trial.reused_from is not None
            evidence = Evidence(sha256(artifact), ledger, grade, reused, judgment)
            yield artifact
        reason = reasons.get((trial.condition, trial.case_id)) if evidence is None else None
        try:
            row = make.row(planned, evidence, attempts, reason, pending)
        except RowContradiction as error:
            raise StoreError(f"the store contradicts itself on trial {trial.sequence}: {error}") from error
        totals.add(row)
        rows.write(canonical(row) + b"\n")


def _judged(
    store: Store, manifest: Manifest, trials: Iterator[reading.Trial]
) -> Iterator[tuple[reading.Trial, judgments.StoredJudgment | None]]:
    """The trials, each with what judging by the registered judge and calibration came to."""
    for group in batches(trials, 100):
        found: dict[int, judgments.StoredJudgment] = {}
        if manifest.judge is not None:
            evidence = [one.evidence_attempt_id for one in group if one.evidence_attempt_id is not None]
            found = judgments.latest(store, evidence, manifest.judge.configuration_hash())
        for trial in group:
            stored = found.get(trial.evidence_attempt_id or 0)
            if stored is not None and manifest.judge is not None:
                stored = _registered_judgment(store, manifest.judge, stored)
            yield trial, stored


def _registered_judgment(
    store: Store, judge: RegisteredJudge, latest: judgments.StoredJudgment
) -> judgments.StoredJudgment | None:
    """The latest under the registered calibration: the same judge may have been asked under another one since."""

    def registered(one: judgments.StoredJudgment) -> bool:
        if one.configuration_hash != judge.configuration_hash():
            return False
        return one.document is None or orjson.loads(one.document)["calibration_hash"] == judge.calibration

    if registered(latest):
        return latest
    return next(filter(registered, reversed(judgments.history(store, latest.attempt_id))), None)


def _registered_grade(store: Store, manifest: Manifest, trial: reading.Trial) -> dict[str, Any]:
    """The grade by the grader that the manifest registered, which need not be the latest one."""
    (registered,) = manifest.graders
    wanted = (registered.name, registered.version)
    assert trial.evidence_attempt_id is not None
    found = next((one for one in trial.grades if (one.grader, one.version) == wanted), None)
    if found is None:
        earlier = reading.grades_of(store, trial.evidence_attempt_id)
        found = next((one for one in earlier if (one.grader, one.version) == wanted), None)
    if found is None:
        raise NotExportable(
            f"trial {trial.sequence} has no grade by {registered.name} {registered.version}, which its manifest "
            "registered: with a changed grader, run the file again with --reuse, which is a new matrix"
        )
    return {
        "version": 1,
        "grader": found.grader,
        "grader_version": found.version,
        "verdict": found.verdict,
        "task_completed": found.task_completed,
        "checks": orjson.loads(found.checks),
    }


class _LostAttempts:
    """The attempts that are no evidence, asked for in planned order."""

    def __init__(self, store: Store, matrix: reading.Matrix) -> None:
        self._found = reading.unused_attempts(store, matrix.id)
        self._next = next(self._found, None)

    def of(self, sequence: int) -> list[dict[str, Any]]:
        attempts = []
        while self._next is not None and self._next.sequence == sequence:
            attempts.append(
                {
                    "number": self._next.number,
                    "state": self._next.state,
                    "reason": self._next.reason,
                    "after_consequential_call": self._next.after_consequential_call,
                }
            )
            self._next = next(self._found, None)
        return attempts


def _incidents(store: Store, matrix: reading.Matrix) -> Iterator[bytes]:
    for one in reading.incidents(store, matrix.id):
        place = reading.attempt_place(store, one.attempt_id) if one.attempt_id is not None else None
        yield canonical(
            {
                "kind": one.kind,
                "detail": one.detail,
                "sequence": place.sequence if place else None,
                "attempt": place.number if place else None,
                "document_sha256": sha256(one.document) if one.document is not None else None,
            }
        )


def _refuse_existing(path: Path) -> None:
    try:
        taken, has_folder = path.exists() or path.is_symlink(), path.parent.is_dir()
    except OSError as error:
        raise FileError(path, None, None, f"cannot be written: {error.strerror}") from error
    if taken and path.is_dir():
        raise FileError(path, None, None, "is a folder, nothing was written: name a file")
    if taken:
        raise FileError(path, None, None, "is there already, nothing was written: name another file")
    if not has_folder:
        raise FileError(path, None, None, f"there is no folder {path.parent}")


def _publish(staged: Path, path: Path) -> None:
    """Gives the finished file its name in one step that fails where somebody has taken the name meanwhile."""
    try:
        path.hardlink_to(staged)
    except FileExistsError:
        _refuse_existing(path)
        raise
    except OSError:
        # No hard links here: the name is reserved first, and only what we reserved ourselves is replaced.
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            _refuse_existing(path)
            raise
        staged.replace(path)
    with suppress(OSError):  # some filesystems cannot
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
