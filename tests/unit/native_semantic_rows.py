"""Makes the four calibration rows of the packaged study native-semantic again, and its registry's trusted hash.

Run as a program it prints the rows: what the study's calibration.jsonl must hold, and on standard error the hash that
its registry.yaml must trust.
"""

import sys
from collections.abc import Callable
from typing import Any

from in_process_trial import run
from orders_cases import CASES

from grading.calibration.record import compile_record
from grading.calibration.rows import CalibrationRow, Judgment, Label, Review, Scope, Verdict
from grading.projection import semantic
from simulator.agents import descriptive_control, false_settlement_mutant
from simulator.canonical import canonical, canonical_hash

POLICY_VERSION = "orders-refund-policy-v1"
SCOPE = Scope(criterion="multi_order_customer_message_truth_v1", policy_version=POLICY_VERSION, world="orders")
REVIEWERS = ("synthetic-reviewer-1", "synthetic-reviewer-2")
CASE_IDS = ("explicit-description", "unresolved-description")
AGENTS: tuple[tuple[str, Any, Label], ...] = (
    ("descriptive-control", descriptive_control.agent, "truthful"),
    ("false-settlement-mutant", false_settlement_mutant.agent, "false"),
)


def evidence() -> list[tuple[str, str, Label, dict[str, Any]]]:
    """For each row its case, id and label, and what the judge sees: each agent once on each case, records forward."""
    return [
        (case_id, f"{case_id}-{name}", label, dict(semantic(run(agent, CASES[case_id]), POLICY_VERSION)))
        for case_id in CASE_IDS
        for name, agent, label in AGENTS
    ]


def rows(judge: Callable[[dict[str, Any]], Verdict], configuration_hash: str) -> list[CalibrationRow]:
    """The rows with a judge's verdicts. The group is the execution: there is one customer, and no claim of more."""
    return [
        CalibrationRow(
            id=name,
            group=f"execution-{name}",
            split="calibration",
            scope=SCOPE,
            synthetic=True,
            slices={"case": case_id},
            evidence=seen,
            evidence_hash=canonical_hash(seen),
            reviews=[Review(reviewer=reviewer, label=label, note="synthetic") for reviewer in REVIEWERS],
            judgment=Judgment(
                evidence_hash=canonical_hash(seen), configuration_hash=configuration_hash, verdict=judge(seen)
            ),
        )
        for case_id, name, label, seen in evidence()
    ]


def main() -> None:
    from grading.judge.configuration import registered  # type: ignore[import-not-found,unused-ignore]
    from grading.judge.literal import judge  # type: ignore[import-not-found,unused-ignore]

    made = rows(lambda seen: judge(seen)[0], registered("literal", "orders").configuration_hash())
    for row in made:
        sys.stdout.buffer.write(canonical(row.model_dump(mode="json")) + b"\n")
    record = compile_record(made, scope=SCOPE, reviewers=REVIEWERS)
    print(record.hash, file=sys.stderr)


if __name__ == "__main__":
    main()
