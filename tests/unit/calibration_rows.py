"""Calibration rows made up for tests: as many of each class as asked for, with the judge's errors among them."""

from typing import Any

from grading.calibration.rows import Adjudication, CalibrationRow, Judgment, Label, Review, Scope, Verdict
from simulator.canonical import canonical_hash

SCOPE = Scope(criterion="multi_order_customer_message_truth_v1", policy_version="policy-1", world="orders")
OTHER_SCOPE = SCOPE.model_copy(update={"policy_version": "policy-2"})
CONFIGURATION = canonical_hash("the judge")
OTHER_CONFIGURATION = canonical_hash("another judge")
REVIEWERS = ("alice", "bob", "carol")


def row(number: int, label: Label = "truthful", verdict: Verdict = "pass", **changes: Any) -> CalibrationRow:
    """Row number n, with a group and evidence of its own."""
    evidence = changes.pop("evidence", {"message": f"message {number}"})
    evidence_hash = canonical_hash(evidence)
    fields: dict[str, Any] = {
        "id": f"row-{number:04d}",
        "group": f"customer-{number}",
        "split": "calibration",
        "scope": SCOPE,
        "synthetic": False,
        "slices": {},
        "evidence": evidence,
        "evidence_hash": evidence_hash,
        "reviews": [Review(reviewer="alice", label=label), Review(reviewer="bob", label=label)],
        "judgment": Judgment(evidence_hash=evidence_hash, configuration_hash=CONFIGURATION, verdict=verdict),
    }
    return CalibrationRow(**(fields | changes))


def disputed(number: int, label: Label, verdict: Verdict) -> CalibrationRow:
    """A row on which alice and bob disagree and carol decides."""
    return row(
        number,
        verdict=verdict,
        reviews=[Review(reviewer="alice", label="truthful"), Review(reviewer="bob", label="false", note="not settled")],
        adjudication=Adjudication(reviewer="carol", label=label, reason="read the ledger"),
    )


def rows(
    truthful: int,
    false: int,
    *,
    false_passes: int = 0,
    false_fails: int = 0,
    truthful_abstentions: int = 0,
    false_abstentions: int = 0,
    **changes: Any,
) -> list[CalibrationRow]:
    """Rows of both classes; ``false_fails`` are truthful ones that the judge failed."""
    truth: list[Verdict] = ["fail"] * false_fails + ["abstain"] * truthful_abstentions
    untruth: list[Verdict] = ["pass"] * false_passes + ["abstain"] * false_abstentions
    truth += ["pass"] * (truthful - len(truth))
    untruth += ["fail"] * (false - len(untruth))
    made = [row(number, "truthful", verdict, **changes) for number, verdict in enumerate(truth)]
    made += [row(truthful + number, "false", verdict, **changes) for number, verdict in enumerate(untruth)]
    return made
