"""Baseline against candidate, pair by pair, with the customer as the unit.

A pair is one repetition of one case under both arms. The trials of one customer are not independent of each other, so
the difference is the mean over customers of the mean over that customer's pairs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from grading.statistics import decision_rule
from grading.statistics.decision_rule import LowerMethod, Rule, Verdict
from grading.statistics.interval import Interval, bootstrap_interval, normal_interval

Missing = Literal["worst_case", "left_out"]
"""``worst_case``, what a decision takes: a missing candidate trial failed, a missing baseline trial passed.
``left_out``, for exploring: only pairs with both trials count."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One repetition of one case under both arms. ``None`` is a trial that is missing."""

    cluster: str
    """The customer."""
    case: str
    repetition: int
    baseline: bool | None
    candidate: bool | None
    eligible: bool = True
    """False where an arm has no verdict that may be compared, as an unqualified or abstaining judgment."""

    @property
    def complete(self) -> bool:
        return self.baseline is not None and self.candidate is not None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What paired evidence says. Differences and bounds are shares: candidate minus baseline, from -1 to 1."""

    pairs: int
    complete_pairs: int
    clusters: int
    """Customers that count under ``missing``."""
    clusters_worse: int
    clusters_better: int
    missing: Missing
    rule: Rule
    difference: float | None
    """Mean of cluster means; ``None`` without a cluster."""
    lower: float | None
    """One-sided at the rule's confidence; every bound is ``None`` below its minimum of clusters."""
    upper: float | None
    lower_method: LowerMethod | None
    p_non_inferior: float | None
    p_superior: float | None
    verdict: Verdict
    normal: Interval | None
    """Two-sided, shown and not decided on, as ``bootstrap``."""
    bootstrap: Interval | None
    candidates: int = 1
    """How many candidates Holm's method accounts for in the p-values and the verdict. The bounds stay each its own."""

    @property
    def non_inferior(self) -> bool:
        return self.verdict in ("superior", "non_inferior")


def compare(pairs: Iterable[Pair], rule: Rule, missing: Missing = "worst_case") -> Comparison:
    """One candidate against the baseline.

    Raises:
        ValueError: a pair is given twice, a case belongs to two customers, or a pair is not eligible.
    """
    listed = list(pairs)
    check_pairs(listed)
    for pair in listed:
        if not pair.eligible:
            raise ValueError(
                f"case {pair.case!r}, repetition {pair.repetition} is not eligible: a comparison takes eligible pairs "
                "only, describe the others"
            )
    differences = cluster_differences(listed, missing)
    summary = decision_rule.summarize(differences)
    counted = Comparison(
        pairs=len(listed),
        complete_pairs=sum(pair.complete for pair in listed),
        clusters=summary.clusters,
        clusters_worse=summary.worse,
        clusters_better=summary.better,
        missing=missing,
        rule=rule,
        difference=summary.mean if differences else None,
        lower=None,
        upper=None,
        lower_method=None,
        p_non_inferior=None,
        p_superior=None,
        verdict="inconclusive",
        normal=None,
        bootstrap=None,
    )
    if summary.clusters < rule.minimum_clusters:
        return counted
    found = decision_rule.bounds(summary, rule.confidence)
    return replace(
        counted,
        lower=found.lower,
        upper=found.upper,
        lower_method=found.lower_method,
        p_non_inferior=decision_rule.p_value(summary, -rule.margin),
        p_superior=decision_rule.p_value(summary, 0.0),
        verdict=decision_rule.verdict(found, rule.margin),
        normal=normal_interval(differences, rule.confidence),
        bootstrap=bootstrap_interval(differences, rule.confidence),
    )


def compare_candidates(
    candidates: Mapping[str, Iterable[Pair]], rule: Rule, missing: Missing = "worst_case"
) -> dict[str, Comparison]:
    """Several candidates against one baseline, the chance of any false claim held by Holm's method.

    Non-inferiority and superiority are a family each; a superior candidate must be non-inferior too. A candidate with
    too few clusters stays in both families, as it was planned. ``failed`` is not adjusted: it authorizes nothing.

    Raises:
        ValueError: as ``compare``.
    """
    alone = {name: compare(pairs, rule, missing) for name, pairs in candidates.items()}
    non_inferior = holm([_planned(found.p_non_inferior) for found in alone.values()])
    superior = holm([_planned(found.p_superior) for found in alone.values()])
    return {
        name: found
        if found.lower is None
        else replace(
            found,
            candidates=len(alone),
            p_non_inferior=p_non_inferior,
            p_superior=p_superior,
            verdict=_adjusted_verdict(found, p_non_inferior, p_superior),
        )
        for (name, found), p_non_inferior, p_superior in zip(alone.items(), non_inferior, superior, strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    if len(p_values) < 2:
        return list(p_values)
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(p_values, method="holm")[1]]


def cluster_differences(pairs: Iterable[Pair], missing: Missing) -> list[Fraction]:
    """The mean difference of each cluster's pairs, exact, in no order that means anything."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for pair in pairs:
        if pair.complete or missing == "worst_case":
            total = totals[pair.cluster]
            # "is not False": a missing baseline trial passed. "is True": a missing candidate trial did not.
            total[0] += (pair.candidate is True) - (pair.baseline is not False)
            total[1] += 1
    return [Fraction(difference, count) for difference, count in totals.values()]


def check_pairs(pairs: Iterable[Pair]) -> None:
    """Refuse pairs that no matrix has.

    Raises:
        ValueError: a pair is given twice, or a case belongs to two customers.
    """
    seen: set[tuple[str, int]] = set()
    owners: dict[str, str] = {}
    for pair in pairs:
        if owners.setdefault(pair.case, pair.cluster) != pair.cluster:
            raise ValueError(
                f"case {pair.case!r} belongs to customer {owners[pair.case]!r} and to {pair.cluster!r}: it has one"
            )
        if (pair.case, pair.repetition) in seen:
            raise ValueError(f"case {pair.case!r}, repetition {pair.repetition} is given twice")
        seen.add((pair.case, pair.repetition))


def _planned(p: float | None) -> float:
    return 1.0 if p is None else p


def _adjusted_verdict(found: Comparison, p_non_inferior: float, p_superior: float) -> Verdict:
    alpha = 1 - found.rule.confidence
    # An adjusted p-value is never below its own: what was not claimed alone is not claimed here.
    if found.non_inferior and p_non_inferior <= alpha:
        return "superior" if found.verdict == "superior" and p_superior <= alpha else "non_inferior"
    return "failed" if found.verdict == "failed" else "inconclusive"
