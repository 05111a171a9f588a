"""Comparisons without a store: facts of trials that never ran, with outcomes of one's choice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from grading.comparison import Circumstances, MatrixComparison, compare_facts
from grading.cost import known
from grading.facts import TrialFacts
from grading.manifest import Manifest, resolve
from grading.slices import SlicePlan
from grading.store import reading
from grading.studies import find_study

BASELINE, CANDIDATE = "descriptive-control", "first-record-mutant"
LEDGER_HASH = "sha256:" + "a" * 64

Outcome = Callable[[str, int, int], dict[str, Any] | None]
"""What a trial of that condition, case position and repetition has otherwise than a passed one; None: it is missing."""


def packaged_manifest() -> Manifest:
    return resolve(find_study("order-resolution")).manifest


def manifest_of(
    cases: int, *, repetitions: int = 2, customers: int | None = None, slice_plan: SlicePlan | None = None
) -> Manifest:
    """As many cases, dealt out to as many customers, one each by default."""
    packaged = packaged_manifest()
    made = [
        packaged.cases[0].model_copy(
            update={"id": f"case-{position}", "customer_id": f"customer-{position % (customers or cases)}"}
        )
        for position in range(cases)
    ]
    document = packaged.model_dump(mode="json") | {
        "cases": [case.model_dump(mode="json") for case in made],
        "population": [{"case": case.id, "customer": case.customer_id, "labels": case.labels} for case in made],
        "repetitions": repetitions,
        "slice_plan": slice_plan.model_dump(mode="json") if slice_plan is not None else None,
    }
    return Manifest.model_validate(document)


def facts_of(manifest: Manifest, outcome: Outcome = lambda *_: {}) -> list[TrialFacts]:
    """Every planned trial; one that nothing is said of passed and completed."""
    return [
        _fact(manifest, one.sequence, one.condition, one.case, one.repetition, outcome) for one in manifest.planned()
    ]


def compared(
    manifest: Manifest, outcome: Outcome = lambda *_: {}, around: Circumstances | None = None, **options: Any
) -> MatrixComparison:
    matrix = reading.Matrix(1, manifest.hash(), manifest.name, "complete", 0)
    return compare_facts(matrix, manifest, facts_of(manifest, outcome), around or Circumstances(), **options)


def regressed(*cases: int, repetitions: tuple[int, ...] = (0, 1)) -> Outcome:
    """The candidate fails these cases, refunding another order each time."""

    def outcome(condition: str, case: int, repetition: int) -> dict[str, Any]:
        if condition == BASELINE or case not in cases or repetition not in repetitions:
            return {}
        return failed(wrong_order_commits=1)

    return outcome


def failed(**facts: Any) -> dict[str, Any]:
    return {"verdict": "failed", "passed": False, "completed": False, "failed_checks": ("outcome",), **facts}


def _fact(
    manifest: Manifest, sequence: int, condition: int, case: int, repetition: int, outcome: Outcome
) -> TrialFacts:
    name, member = manifest.conditions[condition].name, manifest.population[case]
    passed = TrialFacts(
        trial_id=sequence + 1,
        attempt_id=sequence + 1,
        condition=name,
        case=member.case,
        customer=member.customer,
        repetition=repetition,
        sequence=sequence,
        state="graded",
        verdict="passed",
        passed=True,
        completed=True,
        failed_checks=(),
        wrong_order_commits=0,
        avoidable_questions=0,
        calls=5,
        turns=0,
        started=1_000_000 * sequence,
        ended=1_000_000 * sequence + 250_000,
        latency_ms=250,
        elapsed_ms=3,
        cost=known("0.08"),
        ledger_hash=LEDGER_HASH,
        grader_version=manifest.graders[0].version,
        reused=False,
        ledger_bytes=1000,
    )
    changes = outcome(name, case, repetition)
    if changes is None:
        changes = dict.fromkeys(
            ("attempt_id", "verdict", "passed", "completed", "calls", "turns", "started", "ended", "latency_ms"), None
        )
        changes |= {"state": "missing", "elapsed_ms": None, "ledger_hash": None, "grader_version": None}
        changes |= {"wrong_order_commits": None, "avoidable_questions": None, "cost": known(None)}
    return passed._replace(**changes)


def plan_file(folder: Path, text: str) -> Path:
    path = folder / "slices.yaml"
    path.write_text(text)
    return path
