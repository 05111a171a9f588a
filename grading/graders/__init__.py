"""Graders: what a ledger is worth against the evaluator's expectation. Each world's is one module here, by its name.

A grader module has what :class:`Grader` asks for. Its grades are plain slotted values, since a grade is made for every
trial; :class:`GradeDocument` is the same as a wire format, for whatever is stored, exported or read back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple, Protocol, cast

from pydantic import BaseModel, Field, JsonValue, model_validator

from simulator.ledger import Sha256
from simulator.model import WireModel

Verdict = Literal["passed", "failed", "unscored"]


class Check(NamedTuple):
    """One criterion, whether it was met, and what was observed."""

    name: str
    passed: bool | None
    """None where the criterion is shown and not judged."""
    observed: JsonValue


def verdict_of(checks: Sequence["Check | CheckDocument"]) -> Verdict:
    """The conjunction of what was judged. Where nothing was judged there is no verdict, and surely no pass."""
    verdict: Verdict = "unscored"
    for check in checks:
        if check.passed is False:
            return "failed"
        if check.passed:
            verdict = "passed"
    return verdict


@dataclass(frozen=True, slots=True)
class Grade:
    """A grader's verdict on one ledger."""

    grader: Literal["structural"]
    grader_version: str
    """SHA-256 of the grader's source: grades are only ever added, keyed by it."""
    verdict: Verdict
    task_completed: bool | None
    """Whether the customer has what was asked for; None where that was not judged."""
    checks: tuple[Check, ...]

    @classmethod
    def structural(cls, grader_version: str, checks: tuple[Check, ...], task_completed: bool | None) -> "Grade":
        return cls("structural", grader_version, verdict_of(checks), task_completed, checks)

    @property
    def failed_checks(self) -> list[str]:
        return [check.name for check in self.checks if check.passed is False]

    def observed(self, name: str) -> Any:
        """What the check of that name observed.

        Raises:
            KeyError: where the grade has no such check.
        """
        for check in self.checks:
            if check.name == name:
                return check.observed
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """The JSON value that :class:`GradeDocument` describes."""
        return {
            "version": 1,
            "grader": self.grader,
            "grader_version": self.grader_version,
            "verdict": self.verdict,
            "task_completed": self.task_completed,
            "checks": [{"name": name, "passed": passed, "observed": seen} for name, passed, seen in self.checks],
        }


class CheckDocument(WireModel):
    """A check as stored."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    passed: bool | None
    observed: JsonValue


class GradeDocument(WireModel):
    """A grade as stored; one whose verdict is not what its checks give is refused."""

    version: Literal[1] = 1
    grader: Literal["structural"]
    grader_version: Sha256
    verdict: Verdict
    task_completed: bool | None
    checks: list[CheckDocument]

    @model_validator(mode="after")
    def _verdict_follows_from_checks(self) -> "GradeDocument":
        names = [check.name for check in self.checks]
        if len(set(names)) < len(names):
            raise ValueError("two checks have the same name")
        follows = verdict_of(self.checks)
        if self.verdict != follows:
            raise ValueError(f"the verdict is {self.verdict!r}, its checks give {follows!r}")
        return self

    @property
    def failed_checks(self) -> list[str]:
        return [check.name for check in self.checks if check.passed is False]


class Grader(Protocol):
    """What a grader module offers."""

    @property
    def Expectation(self) -> type[BaseModel]:  # noqa: N802 - the module's class
        """What the evaluator expects of a case; it never leaves grading."""

    def check_case(
        self, records: Sequence[Mapping[str, Any]], customer_id: str, replies: Sequence[str], expectation: Any
    ) -> list[str]:
        """What makes a case of valid parts contradict itself, each problem led by its field's dotted path."""

    def grade(self, projection: Mapping[str, Any], expectation: Any) -> Grade:
        """The verdict on what :func:`grading.projection.structural` shows of a ledger."""

    def violation(self, projection: Mapping[str, Any], expectation: Any) -> list[str]:
        """What makes the journal of a lost attempt its trial's evidence."""


class UnknownGrader(ValueError):  # noqa: N818 - reads as what is wrong
    """No grader is there for that world."""


def load_grader(world: str) -> Grader:
    """The grader of a world.

    Raises:
        UnknownGrader: where there is none.
    """
    name = f"{__name__}.{world}"
    if not world.isidentifier():
        raise UnknownGrader(f"no grader for a world called {world!r}")
    try:
        return cast("Grader", import_module(name))
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UnknownGrader(f"no grader for a world called {world!r}: grading/graders/{world}.py is missing") from error
