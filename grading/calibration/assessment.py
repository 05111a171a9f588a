"""Which stored judgments would count today. It changes no grade and gives nobody permission for anything.

A qualification that ended leaves what was judged under it as it was: the evidence can be replayed and the old grades
explained. Whether the same judgment would be accepted now is a second question, answered from the operator's registry
and clock. Source: the order-resolution seed, kata 46.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from grading.calibration.registry import MISSING_OR_REVOKED, NotQualified, Registry
from grading.calibration.rows import Scope

Status = Literal["current", "not_current", "not_applicable"]


@dataclass(frozen=True, slots=True)
class StoredJudgment:
    """A judgment as store or packet hold it."""

    trial: str
    qualified: bool
    """Whether it counted when it was made. One that did not cannot come to count later."""
    calibration_hash: str | None
    """None where no calibrated judge was asked at all."""
    configuration_hash: str | None
    scope: Scope | None
    judged_at: int | None
    """Microseconds since 1970-01-01T00:00:00Z; None where no judge was called."""
    reason: str | None = None
    """Why it did not count then."""


@dataclass(frozen=True, slots=True)
class AssessedTrial:
    trial: str
    reason: NotQualified | str | None
    """Why its judgment would not count today; None where it would."""


@dataclass(frozen=True)
class Assessment:
    """The status of a matrix or packet at an instant."""

    when: int
    trials: tuple[AssessedTrial, ...]
    status: Status

    @property
    def by_reason(self) -> dict[str, int]:
        """How many trials' judgments would not count, for each reason."""
        return dict(sorted(Counter(one.reason for one in self.trials if one.reason is not None).items()))

    @property
    def not_current(self) -> int:
        return sum(one.reason is not None for one in self.trials)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "when": self.when,
            "status": self.status,
            "trials": len(self.trials),
            "not_current": self.not_current,
            "by_reason": self.by_reason,
            "assessed": [{"trial": one.trial, "reason": one.reason} for one in self.trials],
            "authority": "none",
        }


def assess(judgments: Iterable[StoredJudgment], registry: Registry, when: int) -> Assessment:
    """Asks a registry about every judgment.

    Args:
        judgments: one for each trial that has evidence, those that no calibrated judge saw too.
        when: microseconds since 1970-01-01T00:00:00Z, by the operator's clock.

    The status is ``not_applicable`` where no calibrated judge was asked about any trial, ``current`` where every
    judgment would count, ``not_current`` otherwise.
    """
    taken = list(judgments)
    trials = tuple(AssessedTrial(one.trial, _reason(one, registry, when)) for one in taken)
    if all(one.calibration_hash is None for one in taken):
        return Assessment(when, trials, "not_applicable")
    current = all(one.reason is None for one in trials)
    return Assessment(when, trials, "current" if current else "not_current")


def _reason(judgment: StoredJudgment, registry: Registry, when: int) -> NotQualified | str | None:
    if judgment.calibration_hash is None or judgment.scope is None or judgment.configuration_hash is None:
        return judgment.reason or MISSING_OR_REVOKED
    today = registry.check(judgment.calibration_hash, when, judgment.scope, judgment.configuration_hash)
    if today is None and not judgment.qualified:
        return judgment.reason or MISSING_OR_REVOKED
    return today
