"""Planning a matrix: its trials as they are registered, and what running a file would do, before it does it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from grading.manifest import Manifest, assignment, differences, trial_key
from grading.schedule import presented
from grading.store import NotFound, Store, StoreError, reading, registering
from simulator.canonical import canonical, sha256


class _Assignments:
    """The assignments of a manifest's trials: few, since repetitions share them."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._simulator = manifest.simulator.model_dump(mode="json")
        self._known: dict[tuple[int, int, str], tuple[str, bytes]] = {}

    def of(self, case: int, condition: int, repetition: int) -> tuple[str, bytes]:
        """Hash and document."""
        key = (case, condition, presented(self._manifest.presented_order, repetition))
        if key not in self._known:
            document = canonical(assignment(self._manifest, case, condition, repetition).model_dump(mode="json"))
            self._known[key] = (sha256(document), document)
        return self._known[key]

    def trial_key(self, case: int, condition: int, repetition: int) -> str:
        return trial_key(self.of(case, condition, repetition)[0], repetition, self._simulator)


def register(store: Store, manifest: Manifest) -> registering.Registered:
    """Registers a manifest with its cells and planned trials; nothing happens where it is registered already."""
    assignments, document = _Assignments(manifest), manifest.document()
    names = [condition.name for condition in manifest.conditions]
    cases = [case.id for case in manifest.cases]
    cells = (
        registering.NewCell(case_id, name, j, c) for c, name in enumerate(names) for j, case_id in enumerate(cases)
    )
    return registering.register(
        store,
        manifest_hash=sha256(document),
        name=manifest.name,
        manifest=document,
        cells=cells,
        assignments=_new_assignments(manifest, assignments),
        trials=(
            registering.NewTrial(
                case_id=cases[one.case],
                condition=names[one.condition],
                repetition=one.repetition,
                sequence=one.sequence,
                trial_key=assignments.trial_key(one.case, one.condition, one.repetition),
                assignment_hash=assignments.of(one.case, one.condition, one.repetition)[0],
            )
            for one in manifest.planned()
        ),
    )


def registered_manifest(store: Store, matrix_id: int) -> Manifest:
    """The manifest that a matrix was registered with.

    Raises:
        StoreError: it is of another version of Cellwise.
    """
    try:
        return Manifest.from_document(reading.manifest(store, matrix_id))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise StoreError(
            f"matrix {matrix_id} was registered by another version of Cellwise, whose manifest this one cannot read "
            f"({place}: {first['msg']}): use that version for it, or run its file again as a new matrix"
        ) from error


def _new_assignments(manifest: Manifest, assignments: _Assignments) -> Iterator[registering.NewAssignment]:
    for repetition in range(min(2, manifest.repetitions)):
        for case in range(len(manifest.cases)):
            for condition in range(len(manifest.conditions)):
                name, document = assignments.of(case, condition, repetition)
                yield registering.NewAssignment(name, document)


@dataclass(slots=True)
class CellPlan:
    """What would happen to one cell's trials."""

    condition: str
    case: str
    done: int = 0
    reuse: int = 0
    """Taken over from another matrix and graded again; needs ``run --reuse``."""
    run: int = 0


@dataclass(slots=True)
class Plan:
    """What running a file would do now."""

    name: str
    manifest_hash: str
    registered: reading.Matrix | None
    """The matrix of exactly this manifest, where there is one."""
    previous: reading.Matrix | None
    """The matrix to compare with and to reuse from, where this manifest is new."""
    changes: list[str] = field(default_factory=list)
    """What the manifest changes against the previous one."""
    cells: list[CellPlan] = field(default_factory=list)

    @property
    def done(self) -> int:
        return sum(cell.done for cell in self.cells)

    @property
    def reuse(self) -> int:
        return sum(cell.reuse for cell in self.cells)

    @property
    def run(self) -> int:
        return sum(cell.run for cell in self.cells)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "matrix": self.name,
            "manifest": self.manifest_hash,
            "registered": self.registered.id if self.registered else None,
            "previous": self.previous.id if self.previous else None,
            "changes": self.changes,
            "done": self.done,
            "reuse": self.reuse,
            "run": self.run,
            "cells": [
                {
                    "condition": cell.condition,
                    "case": cell.case,
                    "done": cell.done,
                    "reuse": cell.reuse,
                    "run": cell.run,
                }
                for cell in self.cells
            ],
        }


def plan(store: Store | None, manifest: Manifest, *, reuse: str | None = None) -> Plan:
    """What running a manifest would do.

    Args:
        store: None where there is no store yet.
        reuse: the matrix to reuse from, by id, name or hash; without it the latest of the same name.

    Raises:
        NotFound: there is no matrix of that word.
    """
    found = Plan(manifest.name, manifest.hash(), None, None)
    if store is not None:
        found.registered = _registered(store, found.manifest_hash)
        if reuse is not None or found.registered is None:
            found.previous = reading.find_matrix(store, reuse) if reuse is not None else _latest(store, manifest.name)
    if store is not None and found.previous is not None:
        found.changes = differences(registered_manifest(store, found.previous.id), manifest)
    cells = {
        (condition.name, case.id): CellPlan(condition.name, case.id)
        for condition in manifest.conditions
        for case in manifest.cases
    }
    found.cells = list(cells.values())
    done: set[tuple[str, str, int]] = set()
    if store is not None and found.registered is not None:
        for trial in reading.trials(store, found.registered.id):
            if trial.state not in ("open", "leased"):
                done.add((trial.condition, trial.case_id, trial.repetition))
    reusable = _finished_keys(store, found.previous) if store is not None and found.previous is not None else Counter()
    assignments = _Assignments(manifest)
    for one in manifest.planned():
        condition, case = manifest.conditions[one.condition].name, manifest.cases[one.case].id
        cell = cells[condition, case]
        if (condition, case, one.repetition) in done:
            cell.done += 1
            continue
        key = assignments.trial_key(one.case, one.condition, one.repetition) if reusable else ""
        if reusable[key] > 0:
            reusable[key] -= 1
            cell.reuse += 1
        else:
            cell.run += 1
    return found


def _finished_keys(store: Store, matrix: reading.Matrix) -> Counter[str]:
    return Counter(trial.trial_key for trial in reading.trials(store, matrix.id, states=["graded"]))


def _registered(store: Store, manifest_hash: str) -> reading.Matrix | None:
    return next((one for one in reading.matrices(store) if one.manifest_hash == manifest_hash), None)


def _latest(store: Store, name: str) -> reading.Matrix | None:
    try:
        return reading.find_matrix(store, name)
    except NotFound:
        return None
