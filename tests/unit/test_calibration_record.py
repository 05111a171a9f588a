"""A record's figures come from its rows alone, and rows that are no fair sample make none."""

import random
from pathlib import Path
from typing import Any

import pytest
from calibration_rows import (
    CONFIGURATION,
    OTHER_CONFIGURATION,
    OTHER_SCOPE,
    REVIEWERS,
    SCOPE,
    disputed,
    row,
    rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.calibration.policy import CalibrationPolicy, Counts, RowsNeeded, rows_needed
from grading.calibration.record import (
    CalibrationRecord,
    Exclusions,
    RowsRefused,
    compile_record,
    read_record,
    write_record,
)
from grading.calibration.report import record_json, record_text
from grading.calibration.rows import CalibrationRow, Judgment
from grading.file_error import FileError

GOLDEN = Path(__file__).parent / "golden" / "calibration_record_v1.json"


def compiled(made: list[CalibrationRow], **changes: Any) -> CalibrationRecord:
    return compile_record(made, **({"scope": SCOPE, "reviewers": REVIEWERS} | changes))


def test_four_right_rows_prove_very_little() -> None:
    counts = compiled(rows(2, 2)).counts
    assert counts == Counts(truthful=2, false=2, false_passes=0, false_blocks=0, abstentions=0)
    assert round(counts.false_pass_upper, 4) == 0.7764
    assert counts.false_pass_upper == pytest.approx(1 - 0.05**0.5, abs=1e-12)
    assert counts.false_block_upper == counts.false_pass_upper


def test_every_count_and_bound_is_derived() -> None:
    counts = compiled(rows(40, 60, false_passes=2, false_fails=1, truthful_abstentions=3, false_abstentions=4)).counts
    assert counts == Counts(truthful=40, false=60, false_passes=2, false_blocks=4, abstentions=7)
    # The upper ends of the 90 % Clopper-Pearson intervals of 2 of 60 and 4 of 40, found by bisection of the exact tail.
    assert counts.false_pass_upper == pytest.approx(_bisected(2, 60), abs=1e-9)
    assert counts.false_block_upper == pytest.approx(_bisected(4, 40), abs=1e-9)


def _bisected(errors: int, total: int) -> float:
    from math import comb

    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        tail = sum(comb(total, k) * middle**k * (1 - middle) ** (total - k) for k in range(errors + 1))
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return low


def test_a_class_without_rows_is_bounded_by_one() -> None:
    counts = compiled(rows(3, 0)).counts
    assert (counts.false_pass_upper, counts.false) == (1.0, 0)


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_is_irrelevant(order: random.Random) -> None:
    made = rows(5, 7, false_passes=1, truthful_abstentions=2)
    shuffled = list(made)
    order.shuffle(shuffled)
    assert compiled(shuffled).hash == compiled(made).hash


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 11), st.sampled_from(["pass", "fail", "abstain"]))
def test_another_verdict_is_another_record(position: int, verdict: Any) -> None:
    made = rows(5, 7)
    before = made[position].judgment
    assert before is not None
    made[position] = made[position].model_copy(update={"judgment": before.model_copy(update={"verdict": verdict})})
    assert (compiled(made).hash == compiled(rows(5, 7)).hash) == (verdict == before.verdict)


def with_judgment(number: int, configuration: str) -> CalibrationRow:
    made = row(number)
    judgment = Judgment(evidence_hash=made.evidence_hash, configuration_hash=configuration, verdict="pass")
    return made.model_copy(update={"judgment": judgment})


@pytest.mark.parametrize(
    ("made", "changes", "told"),
    [
        ([], {}, "there are none"),
        ([row(1, split="held_out")], {}, "row 'row-0001': belongs to the split 'held_out', not 'calibration'"),
        (
            [row(1, scope=OTHER_SCOPE)],
            {},
            "row 'row-0001': is of another scope, multi_order_customer_message_truth_v1 / policy-2 / orders instead of "
            "multi_order_customer_message_truth_v1 / policy-1 / orders",
        ),
        ([row(1), row(2, id="row-0001")], {}, "the id 'row-0001' is used by 2 rows"),
        ([row(1), row(2, group="customer-1")], {}, "the group 'customer-1' is used by 2 rows"),
        (
            [row(1), row(2, evidence={"message": "message 1"})],
            {},
            f"the evidence '{row(1).evidence_hash}' is used by 2 rows",
        ),
        ([row(1)], {"excluded": Exclusions(ids=["row-0001"])}, "its id 'row-0001' is excluded"),
        ([row(1)], {"excluded": Exclusions(groups=["customer-1"])}, "its group 'customer-1' is excluded"),
        ([row(1)], {"excluded": Exclusions(evidence=[row(1).evidence_hash])}, "is excluded"),
        (
            [with_judgment(1, CONFIGURATION), with_judgment(2, OTHER_CONFIGURATION)],
            {},
            "the judgments are by 2 configurations",
        ),
        ([row(1)], {"reviewers": ["alice"]}, "'bob' is not among the trusted reviewers"),
        ([disputed(1, "false", "fail")], {"reviewers": ["alice", "bob"]}, "'carol' is not among the trusted reviewers"),
        ([row(1, judgment=None)], {}, "row 'row-0001': has no judgment"),
    ],
)
def test_what_is_no_fair_sample_is_refused(made: list[CalibrationRow], changes: dict[str, Any], told: str) -> None:
    with pytest.raises(RowsRefused) as refused:
        compiled(made, **changes)
    assert any(told in problem for problem in refused.value.problems)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(RowsRefused) as refused:
        compiled([row(1, split="held_out"), row(2, scope=OTHER_SCOPE)], reviewers=["alice"])
    assert len(refused.value.problems) == 4


def test_agreement_and_every_disagreement_are_kept() -> None:
    record = compiled([*rows(4, 4), disputed(100, "false", "pass"), disputed(101, "truthful", "pass")])
    assert [each.id for each in record.disagreements] == ["row-0100", "row-0101"]
    assert record.counts == Counts(truthful=5, false=5, false_passes=1, false_blocks=0, abstentions=0)
    # Ten units of two labels, ten of each label in all, two units differ: 1 - 19 * 4 / (2 * 10 * 10) by Krippendorff.
    assert record.agreement == pytest.approx(1 - 19 * 4 / 200, abs=1e-12)
    text = record_text(record, CalibrationPolicy())
    assert "    row-0100: alice: truthful, bob: false\n      carol decided false: read the ledger" in text
    assert [each["id"] for each in record_json(record, CalibrationPolicy())["disagreements"]] == [
        "row-0100",
        "row-0101",
    ]


def test_agreement_on_one_label_alone_is_undefined() -> None:
    assert compiled(rows(3, 0)).agreement is None


def test_slices_are_counted_apart() -> None:
    record = compiled(
        [
            row(1, "false", "pass", slices={"language": "de", "clarification": "required"}),
            row(2, "false", "fail", slices={"language": "de"}),
            row(3, "truthful", "abstain", slices={"language": "en"}),
        ]
    )
    assert record.by_slice == {
        ("clarification", "required"): Counts(0, 1, 1, 0, 0),
        ("language", "de"): Counts(0, 2, 1, 0, 0),
        ("language", "en"): Counts(1, 0, 0, 1, 1),
    }


@pytest.mark.parametrize(
    ("counts", "needed"),
    [
        # 0 of 29 truthful is bounded by 0.0981: the minimum of 30 is what asks for more.
        (Counts(0, 0, 0, 0, 0), RowsNeeded(30, 59, 0)),
        (Counts(30, 59, 0, 0, 0), RowsNeeded(0, 0, 0)),
        (Counts(30, 58, 0, 0, 0), RowsNeeded(0, 1, 0)),
        # One error in a class: 46 rows for 0.10 and 93 for 0.05, the known sizes of such samples.
        (Counts(30, 59, 1, 1, 0), RowsNeeded(16, 34, 0)),
        (Counts(30, 59, 0, 0, 10), RowsNeeded(0, 0, 11)),
    ],
)
def test_it_says_how_many_more_rows_the_default_policy_needs(counts: Counts, needed: RowsNeeded) -> None:
    assert rows_needed(counts, CalibrationPolicy()) == needed


def test_thresholds_that_no_number_of_rows_meets_are_called_so() -> None:
    policy = CalibrationPolicy(false_pass_upper="0", abstentions="0")
    assert rows_needed(Counts(30, 59, 0, 0, 1), policy) == RowsNeeded(0, None, None)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(0, 5), st.sampled_from(["0.05", "0.1", "0.3"]))
def test_that_many_rows_are_enough_and_one_fewer_is_not(rows_now: int, errors: int, bound: str) -> None:
    errors = min(errors, rows_now)
    policy = CalibrationPolicy(minimum_false=1, false_pass_upper=bound)
    more = rows_needed(Counts(0, rows_now, errors, 0, 0), policy).false
    assert more is not None
    assert Counts(0, rows_now + more, errors, 0, 0).false_pass_upper <= float(bound)
    if more:
        assert Counts(0, rows_now + more - 1, errors, 0, 0).false_pass_upper > float(bound)


def test_a_records_wire_format_is_the_golden_files(tmp_path: Path) -> None:
    record = compiled([row(1, slices={"language": "de"}), disputed(2, "false", "pass")])
    write_record(tmp_path / "record.json", record)
    assert (tmp_path / "record.json").read_bytes() == GOLDEN.read_bytes()
    again = read_record(GOLDEN)
    assert again == record
    assert again.hash == "sha256:" + (GOLDEN.parent / "calibration_record_v1.hash").read_text().strip()


@pytest.mark.parametrize("member", ["counts", "false_passes", "hash"])
def test_a_record_takes_no_supplied_figure(tmp_path: Path, member: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(GOLDEN.read_bytes()[:-1] + f',"{member}":0}}'.encode())
    with pytest.raises(FileError, match=f"the member '{member}' is unknown"):
        read_record(path)
