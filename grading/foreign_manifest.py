"""A manifest that arrived from elsewhere: what must hold before it is registered here.

A matrix file of this machine is checked line by line as it is resolved. Of a document that somebody sent nothing is
known, so all of it is checked again: that it says what resolving it here would have said.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from grading.agents import UnusableAgent, agent_elsewhere
from grading.cases import cases_file_model, known_worlds, resolved_case
from grading.graders import load_grader
from grading.manifest import Condition, Manifest, Simulator
from grading.matrix_file import WrittenCondition
from grading.people_protocol import MOST_TRIALS
from simulator.canonical import NotCanonicalizable, canonical
from simulator.source import simulator_identity, source_hash

_MOST_CONDITIONS = 256
_OWN_VARIABLES = ("CELLWISE", "PHOENIX", "KUBERNETES", "PG", "POSTGRES")


class ManifestRefused(ValueError):  # noqa: N818 - reads as what becomes of it
    """A manifest that is not registered: ``place`` is where in it, dotted; empty for the whole."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


def accepted(document: Mapping[str, Any], images: Mapping[str, str]) -> Manifest:
    """The manifest of a document that was sent, to run on this cluster.

    Args:
        document: as a JSON value.
        images: by condition, the image that its agent is to run in.

    Raises:
        ManifestRefused: with the first thing that is wrong.
    """
    if (where := _forbidden_text(document, "")) is not None:
        raise ManifestRefused(where, "holds a NUL character, which no database keeps: remove it")
    try:
        manifest = Manifest.from_document(canonical(document))
    except NotCanonicalizable as error:
        raise ManifestRefused("", f"has no canonical JSON: {error}") from error
    except ValidationError as error:
        raise _refused("", error) from error
    _check_software(manifest)
    if manifest.schedule.order != "parallel":
        raise ManifestRefused("schedule.order", "on a cluster trials run in parallel: write 'order: parallel'")
    if len(manifest.conditions) > _MOST_CONDITIONS:
        raise ManifestRefused("conditions", f"are {len(manifest.conditions)}: {_MOST_CONDITIONS} at most")
    planned = len(manifest.cases) * len(manifest.conditions) * manifest.repetitions
    if planned > MOST_TRIALS:
        raise ManifestRefused("repetitions", f"{planned} trials are planned: {MOST_TRIALS} at most in one matrix")
    _check_cases(manifest)
    _check_judge(manifest)
    for name in images:
        if name not in [condition.name for condition in manifest.conditions]:
            raise ManifestRefused("conditions", f"an image is given for '{name}', and no condition is called so")
    for index, condition in enumerate(manifest.conditions):
        _check_agent(f"conditions.{index}", condition, images.get(condition.name))
    return manifest


def _check_software(manifest: Manifest) -> None:
    """Ledgers are made, checked and graded by this cluster's software: the manifest must be about that."""
    ours = Simulator(**simulator_identity())
    if manifest.simulator != ours:
        raise ManifestRefused(
            "simulator",
            f"the manifest is of simulator {_told(manifest.simulator)}, this cluster runs {_told(ours)}: use the "
            "command line of the cluster's version, or upgrade the cluster",
        )
    if manifest.world not in known_worlds():
        raise ManifestRefused("world", f"no world is called '{manifest.world}' here")
    version = source_hash(f"grading.graders.{manifest.world}")
    if not manifest.graders:
        raise ManifestRefused("graders", "names no grader, and what is not graded is never done")
    for index, grader in enumerate(manifest.graders):
        if grader.version != version:
            raise ManifestRefused(
                f"graders.{index}.version",
                f"the manifest is of grader {grader.version}, this cluster has {version}: use the command line of the "
                "cluster's version, or upgrade the cluster",
            )


def _check_judge(manifest: Manifest) -> None:
    """Whoever registers a matrix chooses where its judge is: what the cluster itself is opened by is not sent there."""
    connection = manifest.judge.connection if manifest.judge is not None else None
    key = connection.api_key_env if connection is not None else None
    if key is not None and key.upper().startswith(_OWN_VARIABLES):
        message = f"{key} is a variable of the cluster itself: name the judge's key"
        raise ManifestRefused("judge.connection.api_key_env", message)


def _told(simulator: Simulator) -> str:
    return f"{simulator.version} ({simulator.source.removeprefix('sha256:')[:12]})"


def _check_cases(manifest: Manifest) -> None:
    grader = load_grader(manifest.world)
    model = cases_file_model(manifest.world)
    for index, case in enumerate(manifest.cases):
        place = f"cases.{index}"
        written = {"version": 1, "world": manifest.world, "cases": [case.model_dump(mode="json")]}
        try:
            loaded: Any = model.model_validate_json(canonical(written))
        except ValidationError as error:
            raise _refused(place, error, skip=2) from error
        of_world = loaded.cases[0]
        if resolved_case(of_world, None) != case:
            raise ManifestRefused(place, "is not written out as a resolved case: fields are missing or rounded")
        for problem in grader.check_case(case.records, case.customer_id, case.replies, of_world.expectation):
            where, message = problem.split(": ", 1)
            raise ManifestRefused(f"{place}.{where.removeprefix('request.')}", message)


def _check_agent(place: str, condition: Condition, image: str | None) -> None:
    agent = condition.agent
    try:
        written = WrittenCondition(
            name=condition.name,
            agent=agent.name,
            settings=agent.settings,
            env=agent.env,
            reuse=agent.reuse,
            image=image,
        )
    except ValidationError as error:
        raise _refused(f"{place}.agent", error) from error
    try:
        resolved = agent_elsewhere(written)
    except UnusableAgent as error:
        raise ManifestRefused(f"{place}.agent.name", str(error)) from error
    if resolved.source != agent.source:
        what = f"the image {image}" if image is not None else f"the agent '{agent.name}' of this cluster"
        raise ManifestRefused(f"{place}.agent.source", f"is {agent.source}, {what} is {resolved.source}")
    if resolved != agent:
        raise ManifestRefused(f"{place}.agent", f"is not how the agent '{agent.name}' is registered here")


def _forbidden_text(value: Any, place: str) -> str | None:
    """Where a text, or a name, holds a NUL."""
    if isinstance(value, str):
        return place if "\0" in value else None
    inner: Iterator[tuple[Any, Any]]
    if isinstance(value, Mapping):
        if any("\0" in name for name in value):
            return place
        inner = iter(value.items())
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        return None
    found = (_forbidden_text(each, f"{place}.{name}" if place else str(name)) for name, each in inner)
    return next((where for where in found if where is not None), None)


def _refused(place: str, error: ValidationError, *, skip: int = 0) -> ManifestRefused:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    parts = [place, *(str(part) for part in first["loc"][skip:])]
    return ManifestRefused(".".join(part for part in parts if part), first["msg"])
