"""The operator's registry: whose labels count, which records are trusted, until when, under which policy.

It is the operator's own file. Nothing in it is ever taken from what is being judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from grading.calibration.policy import CalibrationPolicy
from grading.calibration.qualification import Qualification, Unqualified
from grading.calibration.record import CalibrationRecord, Exclusions, RowsRefused, compile_record, read_record
from grading.calibration.rows import Reason, Scope, read_rows
from grading.cases import Identifier, NotBlank
from grading.file_error import FileError
from grading.instant import instant
from grading.yaml_file import Document, read
from simulator.canonical import canonical_hash
from simulator.ledger import Sha256
from simulator.model import WireModel

MISSING_OR_REVOKED: Literal["qualification_missing_or_revoked"] = "qualification_missing_or_revoked"
NotQualified = Literal["qualification_missing_or_revoked"] | Unqualified

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(text: str) -> int:
    """Since 1970-01-01T00:00:00Z, of an instant written as 2026-12-01T00:00:00Z.

    Raises:
        ValueError: see grading.instant.
    """
    return (instant(text) - _EPOCH) // timedelta(microseconds=1)


def _instant(text: str) -> str:
    microseconds(text)
    return text


Instant = Annotated[str, AfterValidator(_instant)]


class Revocation(WireModel):
    """From when on a record is trusted no more, and why."""

    at: Instant
    reason: Reason


class RegisteredRecord(WireModel):
    """One trusted record. Its content comes from a compiled record's file or, recompiled, from its rows."""

    hash: Sha256
    record: NotBlank | None = None
    """A compiled record, relative to the registry."""
    rows: NotBlank | None = None
    """Its rows, relative to the registry: compiled again each time, with the reviewers and exclusions named here."""
    scope: Scope | None = None
    """What the rows are compiled for."""
    valid_from: Instant
    valid_until: Instant
    revoked: Revocation | None = None
    policy: CalibrationPolicy | None = None
    """In place of the registry's."""

    @model_validator(mode="after")
    def _holds_together(self) -> "RegisteredRecord":
        if (self.record is None) == (self.rows is None):
            raise ValueError("name either the record's file or the file of its rows")
        if (self.rows is None) != (self.scope is None):
            raise ValueError("the scope belongs to rows: a record's file holds its own")
        if microseconds(self.valid_from) >= microseconds(self.valid_until):
            raise ValueError("valid_from must be before valid_until")
        return self


class RegistryFile(WireModel):
    """What an operator writes."""

    version: Literal[1]
    reviewers: list[Identifier] = []
    """Whose labels are trusted."""
    excluded: Exclusions = Exclusions()
    policy: CalibrationPolicy = CalibrationPolicy()
    records: list[RegisteredRecord] = []


@dataclass(frozen=True)
class Calibration:
    """What a judge is asked against before it is called and after it answered: a calibration and the registry's word.

    Args:
        qualification: None where the registry does not know it.
        revoked: from which instant on it is revoked, in microseconds; None where it is not.
    """

    calibration_hash: str | None
    qualification: Qualification | None
    revoked: int | None

    @cached_property
    def inputs_hash(self) -> str:
        """Of everything but the clock that decides: where it is the same, so is every answer at an instant."""
        known = self.qualification
        return canonical_hash(
            {
                "version": 1,
                "calibration": None if known is None else known.record.hash,
                "policy": None if known is None else known.policy.model_dump(mode="json"),
                "valid_from": None if known is None else known.valid_from,
                "valid_until": None if known is None else known.valid_until,
                "revoked": self.revoked,
            }
        )

    def check(self, when: int, scope: Scope, configuration_hash: str) -> NotQualified | None:
        """The first reason why a judgment at an instant does not count; None where it does.

        Args:
            when: microseconds since 1970-01-01T00:00:00Z, by the operator's clock.
        """
        if self.qualification is None or (self.revoked is not None and when >= self.revoked):
            return MISSING_OR_REVOKED
        return self.qualification.check(when, scope, configuration_hash)


class Registry:
    """A registry with its records loaded and checked against the hashes that it trusts."""

    def __init__(
        self,
        reviewers: frozenset[str],
        excluded: Exclusions,
        policy: CalibrationPolicy,
        qualifications: Mapping[str, Qualification],
        revoked: Mapping[str, int],
    ) -> None:
        self.reviewers = reviewers
        self.excluded = excluded
        self.policy = policy
        self.qualifications = dict(qualifications)
        self._revoked = dict(revoked)

    @classmethod
    def load(cls, path: Path) -> "Registry":
        """The registry of a file.

        Raises:
            FileError: with every problem: of the file, of a record or of its rows, or where a record is not the one
                whose hash is trusted.
        """
        document = read(path)
        written = document.load(RegistryFile)
        qualifications: dict[str, Qualification] = {}
        revoked: dict[str, int] = {}
        problems: list[FileError] = []
        for index, entry in enumerate(written.records):
            if entry.hash in qualifications:
                problems.append(document.error(("records", index, "hash"), "is registered twice: keep one"))
                continue
            try:
                record = _record(document, index, entry, written)
            except FileError as error:
                problems.extend(error.problems)
                continue
            qualifications[entry.hash] = Qualification(
                record, entry.policy or written.policy, microseconds(entry.valid_from), microseconds(entry.valid_until)
            )
            if entry.revoked is not None:
                revoked[entry.hash] = microseconds(entry.revoked.at)
        if problems:
            raise FileError.together(problems)
        return cls(frozenset(written.reviewers), written.excluded, written.policy, qualifications, revoked)

    def check(
        self, calibration_hash: str | None, when: int, scope: Scope, configuration_hash: str
    ) -> NotQualified | None:
        """The first reason why a judgment under a calibration does not count at an instant; None where it does.

        Args:
            when: microseconds since 1970-01-01T00:00:00Z, by the operator's clock.
        """
        return self.calibration(calibration_hash).check(when, scope, configuration_hash)

    def calibration(self, calibration_hash: str | None) -> "Calibration":
        """One calibration as this registry sees it; one that it does not know qualifies nothing."""
        qualification = self.qualifications.get(calibration_hash) if calibration_hash is not None else None
        revoked = self._revoked.get(calibration_hash) if calibration_hash is not None else None
        return Calibration(calibration_hash, qualification, revoked)


def _record(document: Document, index: int, entry: RegisteredRecord, written: RegistryFile) -> CalibrationRecord:
    folder = document.path.parent
    if entry.record is not None:
        record = read_record(folder / entry.record)
    else:
        assert entry.rows is not None
        assert entry.scope is not None
        rows = read_rows(folder / entry.rows)
        try:
            record = compile_record(rows, scope=entry.scope, reviewers=written.reviewers, excluded=written.excluded)
        except RowsRefused as error:
            raise document.error(("records", index, "rows"), str(error)) from error
    if record.split != "calibration":
        raise document.error(
            ("records", index), "is a record of held-out rows: it reports on a judge and qualifies none"
        )
    if record.hash != entry.hash:
        raise document.error(
            ("records", index, "hash"),
            f"the record found there is {record.hash}: it is not the one trusted, so find out what changed",
        )
    return record
