"""The manifest: a matrix with everything resolved, and one hash. It is registered before anything runs.

It holds nothing of the machine: no path, no parallelism, no environment variable's value. Numbers with a fraction that
must stay exact (margin, confidence, cost) are decimal text. Loading the document back gives the same hash; a hash shows
integrity, not origin.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator

from grading.agents import resolve_agents
from grading.cases import Case, Identifier, WorldName, load_cases
from grading.file_error import FileError
from grading.judge.configuration import RegisteredJudge, registered
from grading.matrix_file import (
    Confidence,
    MatrixFile,
    MeasurementProfile,
    Share,
    Slug,
    case_files,
    read_matrix,
)
from grading.redaction import RegisteredRedaction
from grading.schedule import SCHEDULE_RULE, Planned, PresentedOrder, planned, presented
from grading.slices import SlicePlan, read_slice_plan
from simulator.assignment import Agent, Assignment, Isolation, Limits, Request
from simulator.canonical import canonical, canonical_hash, sha256
from simulator.ledger import Sha256
from simulator.model import WireModel
from simulator.source import simulator_identity, source_hash

METHOD: Literal["customer_clusters"] = "customer_clusters"
"""Mean of the customers' mean differences, with one-sided bounds."""


class Condition(WireModel):
    """A condition with its agent's settings, sources and limits resolved."""

    name: Identifier
    agent: Agent
    limits: Limits


class RegisteredGrader(WireModel):
    """A grader and the hash of its source: its verdicts belong to this version."""

    name: Literal["structural"]
    version: Sha256


class Schedule(WireModel):
    """Which trial comes when, see grading/schedule.py."""

    rule: Literal["rotating"]
    order: Literal["strict", "parallel"]


class Member(WireModel):
    """A case's place in the population that a comparison speaks of."""

    case: Identifier
    customer: Identifier
    labels: dict[str, str]


class Simulator(WireModel):
    """The software that runs the trials."""

    version: str
    source: Sha256


class Manifest(WireModel):
    """Everything that decides what a matrix's results mean."""

    version: Literal[1] = 1
    name: Slug
    world: WorldName
    cases: Annotated[list[Case], Field(min_length=1)]
    conditions: Annotated[list[Condition], Field(min_length=1)]
    """The baseline first, the others as written."""
    baseline: Identifier | None
    repetitions: Annotated[int, Field(ge=1, le=10_000)]
    presented_order: PresentedOrder
    schedule: Schedule
    graders: list[RegisteredGrader]
    judge: RegisteredJudge | None = None
    slice_plan: SlicePlan | None = None
    """The plan itself, bound before anything ran."""
    redaction: RegisteredRedaction | None = None
    isolation: Isolation
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)] | None
    population: list[Member]
    estimand: str
    margin: Share
    confidence: Confidence
    minimum_clusters: Annotated[int, Field(ge=2)]
    method: Literal["customer_clusters"]
    measurement_profile: MeasurementProfile
    simulator: Simulator

    @model_validator(mode="after")
    def _holds_together(self) -> "Manifest":
        names = [condition.name for condition in self.conditions]
        if len(set(names)) < len(names) or len({case.id for case in self.cases}) < len(self.cases):
            raise ValueError("the names of conditions and the ids of cases must be different ones")
        if self.baseline is not None and self.baseline != names[0]:
            raise ValueError("the baseline must be the first condition")
        if self.population != _population(self.cases):
            raise ValueError("the population is not that of the cases")
        return self

    def document(self) -> bytes:
        """Its canonical JSON: what is stored, exported and hashed."""
        return canonical(self.model_dump(mode="json"))

    def hash(self) -> str:
        return sha256(self.document())

    @classmethod
    def from_document(cls, document: bytes) -> "Manifest":
        """The manifest of a stored document.

        Raises:
            pydantic.ValidationError: where it is none of this version.
        """
        return cls.model_validate_json(document)

    def planned(self) -> Iterator[Planned]:
        """Every trial in planned order."""
        return planned(self.repetitions, len(self.cases), len(self.conditions))


@dataclass(frozen=True)
class ResolvedStudy:
    """A manifest, and what running it on this machine needs beside."""

    manifest: Manifest
    parallelism: int
    agent_root: Path
    """The folder that agents of one's own are imported from: the matrix file's."""
    matrix_file: Path
    registry: Path | None = None
    """The operator's registry, where the matrix file names one."""
    parallelism_asked: int | None = None
    """The matrix file's own, without this machine's."""
    images: Mapping[str, str] = field(default_factory=dict)
    """The images of conditions whose agents run from one, by digest: on a cluster alone."""
    providers: Mapping[str, str] = field(default_factory=dict)
    """Whose model a condition's agent asks, for the conditions that say so."""
    trials_per_pod: int = 1
    """Repetitions that one pod of a cluster runs."""


def resolve(matrix_file: Path) -> ResolvedStudy:
    """A matrix file with its cases and agents, checked and resolved.

    Raises:
        FileError: with every problem found; nothing was written.
    """
    document, matrix = read_matrix(matrix_file)
    problems: list[FileError] = []
    world, cases = "", list[Case]()
    agents: list[Agent] = []
    try:
        world, cases = load_cases(case_files(document, matrix))
    except FileError as error:
        problems += error.problems
    try:
        agents = resolve_agents(document, matrix)
    except FileError as error:
        problems += error.problems
    plan: SlicePlan | None = None
    if matrix.slice_plan is not None and cases:
        try:
            plan = read_slice_plan(matrix_file.parent / matrix.slice_plan, [case.id for case in cases])
        except FileError as error:
            problems += error.problems
    if problems:
        raise FileError.together(problems)
    return ResolvedStudy(
        manifest=_manifest(matrix, world, cases, agents, plan),
        parallelism=matrix.parallelism or _processors(),
        agent_root=matrix_file.parent.absolute(),
        matrix_file=matrix_file,
        registry=matrix_file.parent / matrix.registry if matrix.registry is not None else None,
        parallelism_asked=matrix.parallelism,
        images={one.name: one.image for one in matrix.conditions if one.image is not None},
        providers={one.name: one.provider for one in matrix.conditions if one.provider is not None},
        trials_per_pod=matrix.trials_per_pod,
    )


def assignment(manifest: Manifest, case: int, condition: int, repetition: int) -> Assignment:
    """What one trial is handed, by the positions of its case, condition and repetition: no expectation, no ids."""
    of_case, of_condition = manifest.cases[case], manifest.conditions[condition]
    records = of_case.records
    if presented(manifest.presented_order, repetition) == "reversed":
        records = records[::-1]
    return Assignment(
        world=manifest.world,
        world_settings=of_case.world_settings,
        request=Request(utterance=of_case.utterance, customer_id=of_case.customer_id),
        records=records,
        replies=of_case.replies,
        agent=of_condition.agent,
        limits=of_condition.limits,
    )


def trial_key(assignment_hash: str, repetition: int, simulator: Mapping[str, Any]) -> str:
    """What two trials share whose results may stand for each other: assignment, repetition and simulator."""
    return canonical_hash(
        {"version": 1, "assignment": assignment_hash, "repetition": repetition, "simulator": dict(simulator)}
    )


def trial_name(manifest_hash: str, condition: str, case_id: str, repetition: int) -> str:
    """A trial's name in its ledgers: the same in every store, and telling the recorder neither case nor condition."""
    identity = canonical_hash([manifest_hash, condition, case_id, repetition])
    return identity.removeprefix("sha256:")[:32]


def differences(old: Manifest, new: Manifest) -> list[str]:
    """What changed between two manifests, for a person; empty exactly where their hashes are equal."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    found: list[str] = []
    for plural, word, key in (("conditions", "condition", "name"), ("cases", "case", "id")):
        found += _of_named(word, _by(before.pop(plural), key), _by(after.pop(plural), key))
    found += _of_named("grader", _by(before.pop("graders"), "name"), _by(after.pop("graders"), "name"))
    # The population follows from the cases, which have been told.
    before.pop("population")
    after.pop("population")
    found += [_told(path, *values) for path, *values in _changes(before, after, "")]
    return found


def _manifest(
    matrix: MatrixFile, world: str, cases: list[Case], agents: list[Agent], slice_plan: SlicePlan | None
) -> Manifest:
    conditions = [
        Condition(name=written.name, agent=agent, limits=_limits(matrix.limits, written.limits))
        for written, agent in zip(matrix.conditions, agents, strict=True)
    ]
    conditions.sort(key=lambda condition: condition.name != matrix.baseline)
    manifest = Manifest(
        name=matrix.name,
        world=world,
        cases=cases,
        conditions=conditions,
        baseline=matrix.baseline,
        repetitions=matrix.repetitions,
        presented_order=matrix.presented_order,
        schedule=Schedule(rule=SCHEDULE_RULE, order=matrix.order),
        graders=[
            RegisteredGrader(name=name, version=source_hash(f"grading.graders.{world}")) for name in matrix.graders
        ],
        judge=registered(matrix.judge, world, matrix.calibration) if matrix.judge is not None else None,
        redaction=RegisteredRedaction.of(matrix.redaction) if matrix.redaction is not None else None,
        slice_plan=slice_plan,
        isolation=matrix.isolation,
        seed=matrix.seed,
        population=_population(cases),
        estimand=matrix.estimand,
        margin=matrix.margin,
        confidence=matrix.confidence,
        minimum_clusters=matrix.minimum_clusters,
        method=METHOD,
        measurement_profile=matrix.measurement_profile,
        simulator=Simulator(**simulator_identity()),
    )
    # Through the document once, so that a setting written 1.0, which canonical JSON writes 1, is the same
    # now and after a resume.
    return Manifest.from_document(manifest.document())


def _population(cases: list[Case]) -> list[Member]:
    return [Member(case=case.id, customer=case.customer_id, labels=case.labels) for case in cases]


def _limits(whole: Limits, own: Limits | None) -> Limits:
    if own is None:
        return whole
    return whole.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_ABSENT = object()


def _by(items: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {item[key]: item for item in items}


def _of_named(word: str, old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> list[str]:
    found = [f"{word} {name}: removed" for name in old if name not in new]
    found += [f"{word} {name}: added" for name in new if name not in old]
    for name in (name for name in new if name in old):
        for path, before, after in _changes(old[name], new[name], ""):
            if word == "condition" and path == "agent.source":
                found.append(f"agent {new[name]['agent']['name']}: source files")
            else:
                found.append(f"{word} {name}: {_told(path.removeprefix('agent.'), before, after)}")
    if [name for name in old if name in new] != [name for name in new if name in old]:
        found.append(f"{word}s: another order")
    return list(dict.fromkeys(found))


def _changes(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The leaves that differ, by dotted path."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            inner = f"{path}.{key}" if path else key
            yield from _changes(old.get(key, _ABSENT), new.get(key, _ABSENT), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(before, after, f"{path}[{index}]")
    elif old is _ABSENT or new is _ABSENT or canonical(old) != canonical(new):
        yield path, old, new


def _told(path: str, old: JsonValue | object, new: JsonValue | object) -> str:
    """Short values in full; of longer ones, hashes and lists, that they changed."""
    path = path.removesuffix(".source") + ": source files" if path.endswith("source") else path
    shown = [_shown(value) for value in (old, new)]
    if any(len(each) > 60 or each.startswith(("[", "{", '"sha256:')) for each in shown):
        return path
    return f"{path} {shown[0]} -> {shown[1]}"


def _shown(value: JsonValue | object) -> str:
    return "absent" if value is _ABSENT else canonical(value).decode()
