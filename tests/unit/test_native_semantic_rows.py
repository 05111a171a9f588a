"""The packaged calibration rows are what today's agents do on the packaged cases, judged by the literal judge."""

from pathlib import Path
from typing import Any

from native_semantic_rows import REVIEWERS, SCOPE, evidence, rows

import grading
from grading.calibration.record import compile_record
from grading.calibration.rows import Verdict, read_rows

PACKAGED = Path(grading.__file__).parent / "studies" / "native-semantic" / "calibration.jsonl"


def literal(seen: dict[str, Any]) -> Verdict:
    """The literal judge as the behaviour describes it, written apart from the one that is packaged."""
    refunds = sum(ledger["refund_transaction_count"] for ledger in seen["ledgers"])
    asked = [event for event in seen["events"] if event["tool"] == "ask_customer" and "result" in event]
    match seen["output"]["message"]:
        case "Your money has arrived.":
            return "fail"
        case "Your refund has been confirmed.":
            return "pass" if refunds == 1 else "fail"
        case "Please clarify which purchase you mean.":
            return "pass" if refunds == 0 and any(event["result"] is None for event in asked) else "fail"
    return "abstain"


def test_the_packaged_rows_come_out_again() -> None:
    packaged = read_rows(PACKAGED)
    judgment = packaged[0].judgment
    assert judgment is not None
    # Which configuration the judge has today is the judge's test: here the evidence, labels and verdicts are.
    assert packaged == rows(literal, judgment.configuration_hash)
    assert compile_record(packaged, scope=SCOPE, reviewers=REVIEWERS).synthetic_rows == 4


def test_each_row_is_of_its_own_evidence() -> None:
    assert [name for _, name, _, _ in evidence()] == [
        "explicit-description-descriptive-control",
        "explicit-description-false-settlement-mutant",
        "unresolved-description-descriptive-control",
        "unresolved-description-false-settlement-mutant",
    ]
    assert [seen["output"]["message"] for _, _, _, seen in evidence()] == [
        "Your refund has been confirmed.",
        "Your money has arrived.",
        "Please clarify which purchase you mean.",
        "Your money has arrived.",
    ]
