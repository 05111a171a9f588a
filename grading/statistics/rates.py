"""Descriptive numbers of paired evidence: rates with their coverage, what changed. No claim beyond the trials seen."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from typing import Literal

from grading.statistics.paired import Pair, check_pairs, cluster_differences

Change = Literal["fixed", "regressed", "mixed", "unchanged", "missing"]
"""Of a case over its repetitions. ``mixed``: some fixed, others regressed. ``missing``: no pair has both trials."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of the trials that were seen passed, beside how many were planned."""

    passed: int
    observed: int
    planned: int

    @property
    def value(self) -> float | None:
        return self.passed / self.observed if self.observed else None

    @property
    def coverage(self) -> float | None:
        return self.observed / self.planned if self.planned else None


@dataclass(frozen=True, slots=True)
class CaseChange:
    """Pairs of one case, counted. The repetitions of an arm disagree where some passed and others did not."""

    case: str
    fixed: int
    regressed: int
    unchanged: int
    missing: int
    baseline_disagrees: bool
    candidate_disagrees: bool

    @property
    def change(self) -> Change:
        if self.fixed and self.regressed:
            return "mixed"
        if self.fixed or self.regressed:
            return "fixed" if self.fixed else "regressed"
        return "unchanged" if self.unchanged else "missing"


@dataclass(frozen=True, slots=True)
class Description:
    """Of a whole comparison or one slice. Rates, changes and differences are of the eligible pairs alone."""

    cases: int
    pairs: int
    eligible_pairs: int
    complete_pairs: int
    """Eligible, and both trials are there: what the differences and changes are taken over."""
    customers: int
    eligible_customers: int
    """Customers with an eligible pair."""
    fixed: int
    regressed: int
    unchanged: int
    missing: int
    baseline: Rate
    candidate: Rate
    baseline_by_customer: float | None
    """Mean over customers of the customer's own rate."""
    candidate_by_customer: float | None
    trial_weighted_difference: float | None
    customer_weighted_difference: float | None
    changes: tuple[CaseChange, ...]
    """In the order in which the cases were first given."""

    @property
    def comparable(self) -> bool:
        """Whether a comparison may be made: two customers or more, and every pair eligible."""
        return self.customers >= 2 and self.eligible_pairs == self.pairs


def describe(pairs: Iterable[Pair]) -> Description:
    """Count and weigh.

    Raises:
        ValueError: a pair is given twice, or a case belongs to two customers.
    """
    listed = list(pairs)
    check_pairs(listed)
    eligible = [pair for pair in listed if pair.eligible]
    complete = [pair for pair in eligible if pair.complete]
    steps = [_step(pair) for pair in complete]
    by_customer = cluster_differences(complete, "left_out")
    return Description(
        cases=len({pair.case for pair in listed}),
        pairs=len(listed),
        eligible_pairs=len(eligible),
        complete_pairs=len(complete),
        customers=len({pair.cluster for pair in listed}),
        eligible_customers=len({pair.cluster for pair in eligible}),
        fixed=steps.count(1),
        regressed=steps.count(-1),
        unchanged=steps.count(0),
        missing=len(eligible) - len(complete),
        baseline=trial_weighted(pair.baseline for pair in eligible),
        candidate=trial_weighted(pair.candidate for pair in eligible),
        baseline_by_customer=customer_weighted((pair.cluster, pair.baseline) for pair in eligible),
        candidate_by_customer=customer_weighted((pair.cluster, pair.candidate) for pair in eligible),
        trial_weighted_difference=sum(steps) / len(steps) if steps else None,
        customer_weighted_difference=_mean(by_customer),
        changes=_changes(eligible),
    )


def trial_weighted(outcomes: Iterable[bool | None]) -> Rate:
    """Every trial counts alike; ``None`` is missing and lowers the coverage."""
    listed = list(outcomes)
    return Rate(passed=listed.count(True), observed=len(listed) - listed.count(None), planned=len(listed))


def customer_weighted(outcomes: Iterable[tuple[str, bool | None]]) -> float | None:
    """Every customer with a trial that is there counts alike, however many trials that customer has."""
    by_customer: dict[str, list[bool]] = defaultdict(list)
    for customer, outcome in outcomes:
        if outcome is not None:
            by_customer[customer].append(outcome)
    return _mean([Fraction(sum(own), len(own)) for own in by_customer.values()])


def pass_hat_k(cases: Iterable[Sequence[bool | None]], k: int) -> float | None:
    """pass^k: the chance that k repetitions of a case, drawn without replacement from those planned, all pass.

    With c passes in n repetitions a case counts C(c, k) / C(n, k), the unbiased estimate of tau-bench (Yao et al.
    2024); the result is the mean over cases. This is not pass@k, the chance that at least one passes. A missing
    repetition, ``None``, is never a pass and stays in n.

    Returns:
        ``None`` without a case, and where a case has fewer than k repetitions: no number for what was not planned.

    Raises:
        ValueError: k below 1.
    """
    if k < 1:
        raise ValueError(f"pass^k needs k of at least 1: got {k}")
    estimates = []
    for repetitions in cases:
        if k > len(repetitions):
            return None
        estimates.append(Fraction(comb(list(repetitions).count(True), k), comb(len(repetitions), k)))
    return _mean(estimates)


def _changes(pairs: Iterable[Pair]) -> tuple[CaseChange, ...]:
    by_case: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_case[pair.case].append(pair)
    changes = []
    for case, own in by_case.items():
        steps = [_step(pair) for pair in own if pair.complete]
        changes.append(
            CaseChange(
                case=case,
                fixed=steps.count(1),
                regressed=steps.count(-1),
                unchanged=steps.count(0),
                missing=len(own) - len(steps),
                baseline_disagrees={True, False} <= {pair.baseline for pair in own},
                candidate_disagrees={True, False} <= {pair.candidate for pair in own},
            )
        )
    return tuple(changes)


def _step(pair: Pair) -> int:
    """1 fixed, -1 regressed, 0 unchanged, of a complete pair."""
    return (pair.candidate is True) - (pair.baseline is True)


def _mean(values: Sequence[Fraction]) -> float | None:
    return float(sum(values, Fraction(0)) / len(values)) if values else None
