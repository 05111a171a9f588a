"""Whether a judge's word counts: now, in this scope, in this configuration.

Asked before a judge is called and again after it answered, since a qualification may end in between.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from grading.calibration.policy import CalibrationPolicy
from grading.calibration.record import CalibrationRecord
from grading.calibration.rows import Scope

Unqualified = Literal[
    "synthetic_qualification_not_permitted",
    "qualification_not_current",
    "evaluator_configuration_mismatch",
    "outside_qualified_scope",
    "insufficient_calibration_examples",
    "calibration_abstention_limit_exceeded",
    "calibration_error_bound_exceeded",
]
"""Reasons not to use a record, in their order: the first that applies is given."""


@dataclass(frozen=True)
class Qualification:
    """A trusted record under the operator's policy, for a span of time.

    Args:
        valid_from: microseconds since 1970-01-01T00:00:00Z; that instant is included.
        valid_until: likewise; that instant is excluded.
    """

    record: CalibrationRecord
    policy: CalibrationPolicy
    valid_from: int
    valid_until: int

    def check(self, when: int, scope: Scope, configuration_hash: str) -> Unqualified | None:
        """The first reason why a judgment at an instant does not count; None where it does."""
        policy, counts = self.policy, self.record.counts
        if self.record.synthetic_rows and not policy.synthetic_permitted:
            return "synthetic_qualification_not_permitted"
        if not self.valid_from <= when < self.valid_until:
            return "qualification_not_current"
        if configuration_hash != self.record.configuration_hash:
            return "evaluator_configuration_mismatch"
        if scope != self.record.scope:
            return "outside_qualified_scope"
        if counts.truthful < policy.minimum_truthful or counts.false < policy.minimum_false:
            return "insufficient_calibration_examples"
        if counts.abstentions > Fraction(policy.abstentions) * counts.rows:
            return "calibration_abstention_limit_exceeded"
        if counts.false_pass_upper > float(policy.false_pass_upper):
            return "calibration_error_bound_exceeded"
        if counts.false_block_upper > float(policy.false_block_upper):
            return "calibration_error_bound_exceeded"
        return None
