"""The matrix file: cases x conditions x repetitions, as a person writes them."""

import glob
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, StringConstraints

from grading.cases import Identifier
from grading.file_error import FileError, nearest
from grading.judge.configuration import WrittenJudge
from grading.redaction import Redaction
from grading.schedule import PresentedOrder
from grading.yaml_file import Document, read
from simulator.assignment import Limits
from simulator.ledger import Sha256
from simulator.model import WireModel

CASE_SUFFIXES = (".yaml", ".yml", ".json")

_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,14})(\.[0-9]{1,12})?")


def _slug(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise ValueError("must be 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends")
    return text


def _decimal(text: str) -> str:
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"'{text[:60]}' is no decimal such as 0.03")
    return text.rstrip("0").rstrip(".") if "." in text else text


_IMAGE = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?(?::[0-9]{1,5})?"  # registry, perhaps with its port
    r"(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)+(?::\w[\w.-]{0,127})?"  # name, perhaps with a tag
    r"@sha256:[0-9a-f]{64}"
)
_LONGEST_IMAGE = 500


def _image(text: str) -> str:
    if len(text) <= _LONGEST_IMAGE and _IMAGE.fullmatch(text):
        return text
    if "@" not in text:
        raise ValueError(
            f"'{text[:80]}' has no digest, so that it could change unseen: write registry/name@sha256:..., as the "
            "registry tells it after a push"
        )
    raise ValueError(f"'{text[:80]}' is no image such as registry.example/team/agent@sha256: and 64 of 0-9 and a-f")


def _below_one(text: str) -> str:
    if not 0 <= Decimal(text) < 1:
        raise ValueError("must be at least 0 and below 1")
    return text


def _confidence(text: str) -> str:
    if not Decimal("0.5") <= Decimal(text) < 1:
        raise ValueError("must be at least 0.5 and below 1")
    return text


def _environment_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", text):
        hint = ": give the name alone, values are never stored" if "=" in text else ""
        raise ValueError(f"is no name of an environment variable{hint}")
    return text


Slug = Annotated[
    str, AfterValidator(_slug), Field(json_schema_extra={"pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"})
]
DecimalText = Annotated[str, AfterValidator(_decimal), Field(json_schema_extra={"type": ["number", "string"]})]
"""An exact decimal, kept as text because a float would not be."""
Share = Annotated[DecimalText, AfterValidator(_below_one)]
Confidence = Annotated[DecimalText, AfterValidator(_confidence)]
EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
Image = Annotated[
    str,
    AfterValidator(_image),
    Field(json_schema_extra={"pattern": "^[^@]+/[^@]+@sha256:[0-9a-f]{64}$", "maxLength": _LONGEST_IMAGE}),
]
"""A container image by digest: what runs under it can never be another one."""


class SyntheticMeasurements(WireModel):
    """Invented figures of every trial, labelled so wherever they are shown."""

    latency_ms: Annotated[int, Field(ge=0, le=86_400_000)]
    cost: DecimalText
    """US dollars."""


class SyntheticProfile(WireModel):
    """A measurement profile of invented figures."""

    synthetic: SyntheticMeasurements


MeasurementProfile = Literal["measured"] | SyntheticProfile


class WrittenCondition(WireModel):
    """An agent with its settings."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: Identifier = Field(examples=["candidate"])
    """What tables call the condition."""
    agent: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(
        examples=["descriptive-control", "agent:answer"]
    )
    """A packaged agent, or module:function found from this file's folder."""
    settings: dict[str, JsonValue] = Field({}, examples=[{"temperature": 0.2}])
    """Keyword arguments of the agent's function."""
    env: list[EnvironmentName] = Field([], examples=[["OPENAI_API_KEY"]])
    """Names of the environment variables that the agent receives; it sees no other ones."""
    sources: list[str] = Field([], examples=[["prompts/*.txt"]])
    """Further files, folders or globs that the agent is made of: when one changes, its trials run anew."""
    image: Image | None = Field(None, examples=[f"registry.example/team/agent@sha256:{'0' * 64}"])
    """The container image that holds a module:function agent: then it runs on a cluster alone, in its own container."""
    provider: Slug | None = Field(None, examples=["openai"])
    """Whose model the agent asks: a cluster runs so many of a provider's trials at a time as its operator allows."""
    reuse: bool | None = None
    """One process for many trials; possible for packaged deterministic agents alone, and their default."""
    limits: Limits | None = None
    """Where it differs from the limits of the matrix."""


class MatrixFile(WireModel):
    """Every case is run under every condition, so many times."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: Literal[1]
    """The format of this file."""
    name: Slug = Field(examples=["refund-agent"])
    """What the study is called: small letters, digits and '-'."""
    cases: str | list[str] = Field(examples=["cases.yaml", "cases/*.yaml", ["cases/a.yaml", "cases/b.yaml"]])
    """Cases files, folders or globs, relative to this file."""
    conditions: list[WrittenCondition] = Field(min_length=1, max_length=256)
    """The agents to run, each with its settings."""
    baseline: str | None = None
    """The name of the condition that the others are compared with."""
    repetitions: Annotated[int, Field(ge=1, le=10_000)] = 1
    """How often each case runs under each condition; a comparison needs an even number."""
    presented_order: PresentedOrder = "alternate"
    """The order of the records: as written, reversed, or reversed in every other repetition."""
    order: Literal["strict", "parallel"] = "parallel"
    """strict: one trial after the other, in planned order."""
    graders: list[Literal["structural"]] = Field(["structural"])
    """What grades the ledgers."""
    judge: WrittenJudge | None = Field(
        None, examples=["literal", {"type": "openai", "model": "gpt-4o-mini-2024-07-18", "votes": 3}]
    )
    """What judges whether the agents' messages are true; it counts only where it is calibrated."""
    calibration: Sha256 | None = None
    """The calibration record that the judge is to count by: the hash that cellwise calibrate compile prints."""
    registry: Annotated[str, StringConstraints(min_length=1, max_length=1_000)] | None = Field(
        None, examples=["registry.yaml"]
    )
    """The operator's registry that trusts that record, relative to this file. No part of what is registered."""
    redaction: Redaction | None = None
    """What is replaced before anything leaves for a judge, for Phoenix or for a report."""
    limits: Limits = Limits()
    """Where a trial is ended; what was done until then is graded."""
    parallelism: Annotated[int, Field(ge=1, le=256)] | None = None
    """Trials at a time; without it, one for each processor. No part of what is registered."""
    trials_per_pod: Annotated[int, Field(ge=1, le=1_000)] = 1
    """On a cluster, how many repetitions of a cell one pod runs: more for cheap ones. No part of what is registered."""
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    """For whatever is drawn at random; 0 is a seed like any other."""
    isolation: Literal["process", "container"] = "process"
    """The least that stands between an agent and its recorder; container needs an image of every condition."""
    slice_plan: str | None = Field(None, examples=["slices.yaml"])
    """A file that puts every case into slices; a decision may require those of a plan that is named here."""
    estimand: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "difference in contract passes"
    """What a comparison estimates."""
    margin: Share = "0.03"
    """The largest loss that still counts as no worse."""
    confidence: Confidence = "0.95"
    """Of the comparison's bounds."""
    minimum_clusters: Annotated[int, Field(ge=2, le=1_000_000)] = 30
    """Customers below which a comparison is inconclusive."""
    measurement_profile: MeasurementProfile = Field(
        "measured", examples=[{"synthetic": {"latency_ms": 250, "cost": 0.08}}]
    )
    """Where latency and cost come from: measured, or invented figures, labelled so."""


def read_matrix(path: Path) -> tuple[Document, MatrixFile]:
    """A matrix file, and its document to tell where further problems are.

    Raises:
        FileError: with every problem of the file itself; its cases and agents are not looked at.
    """
    document = read(path)
    matrix = document.load(MatrixFile)
    problems = [*_contradictions(document, matrix)]
    names = [condition.name for condition in matrix.conditions]
    if matrix.baseline is not None and matrix.baseline not in names:
        message = f"no condition is called '{matrix.baseline}':{nearest(matrix.baseline, names)}"
        problems.append(document.error(("baseline",), message))
    if matrix.calibration is not None and matrix.judge is None:
        problems.append(document.error(("calibration",), "there is no judge that could count by it: write judge"))
    if matrix.registry is not None and matrix.calibration is None:
        problems.append(
            document.error(("registry",), "is asked about a calibration, and none is named: write calibration")
        )
    if problems:
        raise FileError.together(problems)
    return document, matrix


def case_files(document: Document, matrix: MatrixFile) -> list[Path]:
    """The cases files that a matrix names, each once: in the order written, those of a folder or glob by name.

    Raises:
        FileError: where an entry names no file.
    """
    folder = document.path.parent
    found: dict[Path, Path] = {}
    entries = [matrix.cases] if isinstance(matrix.cases, str) else matrix.cases
    problems = [] if entries else [document.error(("cases",), "names no cases file: write for example cases.yaml")]
    for index, entry in enumerate(entries):
        where = ("cases",) if isinstance(matrix.cases, str) else ("cases", index)
        try:
            paths, problem = _cases_of(folder, entry)
        except OSError as error:
            paths, problem = [], f"'{entry[:60]}' cannot be read: {error.strerror}"
        if problem is not None:
            problems.append(document.error(where, problem))
        for path in paths:
            found.setdefault(path.resolve(), path)
    if problems:
        raise FileError.together(problems)
    return list(found.values())


def _cases_of(folder: Path, entry: str) -> tuple[list[Path], str | None]:
    path = folder / entry
    if not entry.strip():
        return [], "must not be blank: name a cases file"
    if path.is_dir():
        paths = sorted(
            each for each in path.iterdir() if each.suffix in CASE_SUFFIXES and not each.name.startswith(".")
        )
        return paths, None if paths else f"the folder '{entry}' holds no cases file ({', '.join(CASE_SUFFIXES)})"
    if path.exists():
        return [path], None
    if glob.has_magic(entry):
        paths = [folder / each for each in sorted(glob.glob(entry, root_dir=folder, recursive=True))]  # noqa: PTH207 - skips hidden files
        paths = [each for each in paths if each.is_file()]
        return paths, None if paths else f"no file fits '{entry}'"
    return [], f"there is no file '{entry}' in {folder if str(folder) != '.' else 'this folder'}"


def _contradictions(document: Document, matrix: MatrixFile) -> Iterator[FileError]:
    seen: dict[str, int] = {}
    for index, condition in enumerate(matrix.conditions):
        where = ("conditions", index, "name")
        line = document.line(where)
        if condition.name in seen:
            message = f"'{condition.name}' is the name of another condition on line {seen[condition.name]}: rename one"
            yield document.error(where, message)
        seen.setdefault(condition.name, line)
        if condition.image is not None and ":" not in condition.agent:
            message = f"'{condition.agent}' is a packaged agent, which every cluster has an image of: remove this line"
            yield document.error(("conditions", index, "image"), message)
        if matrix.isolation == "container" and condition.image is None:
            message = f"'{condition.name}' has no image, which isolation: container needs: write image"
            yield document.error(("conditions", index), message)
        for position, name in enumerate(condition.env):
            if name in condition.env[:position]:
                yield document.error(("conditions", index, "env", position), f"'{name}' is named twice")
    for position, grader in enumerate(matrix.graders):
        if grader in matrix.graders[:position]:
            yield document.error(("graders", position), f"'{grader}' is named twice")
