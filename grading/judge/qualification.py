"""Whether a judge's word counts, asked before a call and again after it.

What decides that (calibration record, registry, clock) is the operator's and comes in as an object; without any
calibration no judgment counts.
"""

from typing import Protocol

from grading.calibration.rows import Scope
from simulator.canonical import canonical_hash

NO_CALIBRATION = "no_calibration"
CONFIGURATION_MISMATCH = "evaluator_configuration_mismatch"


class Qualification(Protocol):
    """The operator's decision, from the operator's files."""

    @property
    def calibration_hash(self) -> str | None:
        """The calibration record that it rests on."""

    @property
    def inputs_hash(self) -> str:
        """Of everything but the clock that decides: judgments are keyed by it."""

    def check(self, when: int, scope: Scope, configuration_hash: str) -> str | None:
        """The reason why a judgment does not count, None where it does.

        Args:
            when: microseconds since 1970-01-01T00:00:00Z.
            configuration_hash: the judge's; after a call, of the configuration with the model that the provider says
                answered.
        """


class Uncalibrated:
    """No calibration: nothing counts."""

    calibration_hash = None
    inputs_hash = canonical_hash({"version": 1, "calibration": None})

    def check(self, when: int, scope: Scope, configuration_hash: str) -> str | None:
        return NO_CALIBRATION
