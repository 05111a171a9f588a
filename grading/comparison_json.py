"""A comparison as JSON, for whatever reads it next: every case that changed, every figure, nothing rounded."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grading.comparison import Arm, CandidateComparison, MatrixComparison
from grading.cost import CostTotal
from grading.slices import Sliced
from grading.statistics import paired
from grading.statistics.rates import Description, Rate

VERSION = 1


def to_json(found: MatrixComparison, sliced: Sequence[Sliced] = ()) -> dict[str, Any]:
    """The JSON value; ``version`` is raised with every change that a reader could stumble over."""
    return {
        "version": VERSION,
        "matrix": found.matrix.name,
        "id": found.matrix.id,
        "manifest": found.matrix.manifest_hash,
        "state": found.matrix.state,
        "complete": found.complete,
        "coverage": {"observed": found.observed, "planned": found.planned},
        "exploratory": list(found.exploratory),
        "view": found.view,
        "baseline": found.baseline,
        "conditions": [_arm(arm) for arm in found.arms],
        "candidates": [
            _candidate(candidate, sliced[position] if position < len(sliced) else None)
            for position, candidate in enumerate(found.candidates)
        ],
        "cost": cost(found.cost),
        "judge_spent": None if found.judge_spent is None else cost(found.judge_spent),
        "lost_attempts": found.lost,
        "incidents": found.incidents,
    }


def _arm(arm: Arm) -> dict[str, Any]:
    return {
        "condition": arm.name,
        "planned": arm.planned,
        "missing": arm.missing,
        "unfinished": arm.unfinished,
        "unscored": arm.unscored,
        "taken_over": arm.reused,
        "lost_attempts": arm.lost_attempts,
        "discarded_after_acting": arm.discarded_after_acting,
        "contract": _rate(arm.contract),
        "completed": _rate(arm.completed),
        "joint": _rate(arm.joint),
        "qualified_messages": arm.qualified_messages,
        "unqualified_messages": arm.messages.states["unqualified"],
        "messages": {
            "qualified_pass": arm.messages.states["qualified_pass"],
            "qualified_fail": arm.messages.states["qualified_fail"],
            "qualified_abstention": arm.messages.states["qualified_abstention"],
            "unqualified": dict(sorted(arm.messages.unqualified.items())),
            "pending": dict(sorted(arm.messages.pending.items())),
        },
        "wrong_order_commits": arm.wrong_order_commits,
        "avoidable_questions": arm.avoidable_questions,
        "latency_ms": asdict(arm.latency),
        "elapsed_ms": asdict(arm.elapsed),
        "mean_calls": arm.calls,
        "mean_turns": arm.turns,
        "cost": cost(arm.cost),
        "agent_cost": cost(arm.agent_cost),
        "judge_cost": cost(arm.judge_cost),
        "repetitions_disagree": list(arm.disagreeing),
    }


def _candidate(candidate: CandidateComparison, sliced: Sliced | None) -> dict[str, Any]:
    return {
        "candidate": candidate.candidate,
        "verdict": None if candidate.decision is None else candidate.decision.verdict,
        "comparison": _comparison(candidate.decision),
        **_description(candidate.description),
        "structural": _description(candidate.structural),
        "changes": [
            {
                "change": change.change,
                "case": change.case,
                "repetition": change.repetition,
                "baseline_failed": list(change.baseline.failed_checks),
                "candidate_failed": list(change.candidate.failed_checks),
                "baseline_message": change.baseline.message,
                "candidate_message": change.candidate.message,
            }
            for change in candidate.changes
        ],
        "order": {
            "pairs": candidate.order.pairs,
            "in_planned_order": candidate.order.in_planned_order,
            "median_gap_ms": candidate.order.median_gap_ms,
        },
        "slices": None
        if sliced is None
        else {
            "plan": sliced.plan.name,
            "registered": sliced.registered,
            "view": sliced.view,
            "action": sliced.action,
            "slices": [
                {
                    "slice": one.name,
                    "required": one.required,
                    "verdict": None if one.comparison is None else one.comparison.verdict,
                    "comparison": _comparison(one.comparison),
                    **_description(one.description),
                }
                for one in sliced.slices
            ],
        },
    }


def _comparison(found: paired.Comparison | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _description(found: Description) -> dict[str, Any]:
    return {
        "cases": found.cases,
        "pairs": found.pairs,
        "eligible_pairs": found.eligible_pairs,
        "complete_pairs": found.complete_pairs,
        "customers": found.customers,
        "eligible_customers": found.eligible_customers,
        "fixed": found.fixed,
        "regressed": found.regressed,
        "unchanged": found.unchanged,
        "missing": found.missing,
        "baseline": _rate(found.baseline),
        "of_candidate": _rate(found.candidate),
        "baseline_by_customer": found.baseline_by_customer,
        "candidate_by_customer": found.candidate_by_customer,
        "trial_weighted_difference": found.trial_weighted_difference,
        "customer_weighted_difference": found.customer_weighted_difference,
    }


def _rate(rate: Rate) -> dict[str, Any]:
    return {"passed": rate.passed, "observed": rate.observed, "planned": rate.planned, "value": rate.value}


def cost(total: CostTotal) -> dict[str, Any]:
    return {
        "complete_micro_dollars": total.complete,
        "known_micro_dollars": total.known_subtotal,
        "known": total.known,
        "unknown": total.unknown,
        "not_dispatched": total.not_dispatched,
    }
