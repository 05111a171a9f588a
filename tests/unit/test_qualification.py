"""With 30 rows a class a judge counts or does not exactly as the policy says, and the first reason is the one told."""

from typing import Any

import pytest
from calibration_rows import CONFIGURATION, OTHER_CONFIGURATION, OTHER_SCOPE, REVIEWERS, SCOPE, row, rows

from grading.calibration.policy import CalibrationPolicy
from grading.calibration.qualification import Qualification
from grading.calibration.record import compile_record

FROM, UNTIL = 1_000, 2_000
POLICY = CalibrationPolicy(
    minimum_truthful=30, minimum_false=30, false_pass_upper="0.10", false_block_upper="0.10", abstentions="0.10"
)
"""0 of 30 is bounded by 0.0950, 1 of 30 by 0.1486."""


def qualification(policy: CalibrationPolicy = POLICY, *, synthetic: bool = False, **made: Any) -> Qualification:
    sample = rows(**({"truthful": 30, "false": 30} | made), synthetic=synthetic)
    return Qualification(compile_record(sample, scope=SCOPE, reviewers=REVIEWERS), policy, FROM, UNTIL)


def check(qualified: Qualification, when: int = FROM, scope: Any = SCOPE, configuration: str = CONFIGURATION) -> Any:
    return qualified.check(when, scope, configuration)


def test_thirty_right_rows_a_class_are_enough_for_their_policy() -> None:
    assert check(qualification()) is None


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        (FROM - 1, "qualification_not_current"),
        (FROM, None),
        (UNTIL - 1, None),
        (UNTIL, "qualification_not_current"),
        (UNTIL + 1, "qualification_not_current"),
    ],
)
def test_it_ends_at_the_instant_it_ends(when: int, reason: str | None) -> None:
    assert check(qualification(), when) == reason


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"truthful": 29}, "insufficient_calibration_examples"),
        ({"false": 29}, "insufficient_calibration_examples"),
        # 6 of 60 is the limit itself; six abstentions on false rows are no false pass and no false block.
        ({"false_abstentions": 6}, None),
        ({"false_abstentions": 7}, "calibration_abstention_limit_exceeded"),
        ({"false_passes": 1}, "calibration_error_bound_exceeded"),
        ({"false_fails": 1}, "calibration_error_bound_exceeded"),
        ({"truthful_abstentions": 1}, "calibration_error_bound_exceeded"),
    ],
)
def test_each_threshold_is_exact(made: dict[str, int], reason: str | None) -> None:
    assert check(qualification(**made)) == reason


def test_one_synthetic_row_makes_a_record_synthetic() -> None:
    sample = [*rows(30, 30), row(900, synthetic=True)]
    record = compile_record(sample, scope=SCOPE, reviewers=REVIEWERS)
    assert check(Qualification(record, POLICY, FROM, UNTIL)) == "synthetic_qualification_not_permitted"
    permitted = POLICY.model_copy(update={"synthetic_permitted": True})
    assert check(Qualification(record, permitted, FROM, UNTIL)) is None


WRONG: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("synthetic_qualification_not_permitted", {"synthetic": True}, {}),
    ("qualification_not_current", {}, {"when": UNTIL}),
    ("evaluator_configuration_mismatch", {}, {"configuration": OTHER_CONFIGURATION}),
    ("outside_qualified_scope", {}, {"scope": OTHER_SCOPE}),
    ("insufficient_calibration_examples", {"policy": POLICY.model_copy(update={"minimum_truthful": 31})}, {}),
    ("calibration_abstention_limit_exceeded", {"false_abstentions": 7}, {}),
    ("calibration_error_bound_exceeded", {"false_passes": 1}, {}),
]
"""Each reason with what brings it about, in their order."""


@pytest.mark.parametrize("first", range(len(WRONG)))
def test_of_several_reasons_the_first_is_told(first: int) -> None:
    made: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    for _, for_record, for_check in WRONG[first:]:
        made |= for_record
        asked |= for_check
    assert check(qualification(**made), **asked) == WRONG[first][0]
    for _, for_record, for_check in WRONG[first : first + 1]:
        assert check(qualification(**for_record), **for_check) == WRONG[first][0]


def test_the_default_policy_takes_59_false_rows_without_an_error() -> None:
    policy = CalibrationPolicy()
    assert check(qualification(policy, false=59)) is None
    assert check(qualification(policy, false=58)) == "insufficient_calibration_examples"
    assert round(qualification(policy, false=59).record.counts.false_pass_upper, 4) == 0.0495
    assert check(qualification(policy, false=59, false_passes=1)) == "calibration_error_bound_exceeded"
    assert check(qualification(policy, false=93, false_passes=1)) is None
