"""The rule that calls a candidate non-inferior, superior or failed, and nothing else.

The unit is the cluster: one customer, whose difference is the mean over that customer's pairs of candidate minus
baseline, so it lies in [-1, 1]. The bounds are one-sided:

- lower, fewer than ten clusters that differ: minus the Clopper-Pearson upper bound of the share of clusters that got
  worse. It holds for any distribution, because a cluster that got worse loses 1 at the most. A t bound is no bound
  there: with nothing observed to differ its width is zero, and nothing was learnt about what was not observed.
- lower, from ten on: the t bound. Where every cluster has the very same difference v it would have no width; then at
  least a share q = (1 - confidence)^(1/n) of all clusters is at v or better, the others at -1 or better, hence
  q v - (1 - q).
- upper: the t bound always. It can only make a comparison fail.

The same functions decide a comparison, plan its size (``power``) and are enumerated in ``docs/statistics.md``.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from grading.statistics.proportion import clopper_pearson_upper

T_FROM = 10
"""The least number of clusters that differ from which on the lower bound is the t bound."""

Verdict = Literal["superior", "non_inferior", "failed", "inconclusive"]
"""The strongest that holds: what is superior is non-inferior too."""

LowerMethod = Literal["clopper_pearson", "t", "unanimous"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a manifest registers about a decision. A share of 0.03 is written 0.03, never 3."""

    margin: float = 0.03
    confidence: float = 0.95
    minimum_clusters: int = 30

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin must be a share from 0 to below 1: got {self.margin}")
        if not 0.5 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0.5 and 1, both excluded: got {self.confidence}")
        if self.minimum_clusters < 2:
            raise ValueError(f"minimum_clusters must be at least 2: got {self.minimum_clusters}")


class ClusterDifferences(NamedTuple):
    """All that the rule looks at. Sums are exact, so neither the input's order nor rounding decides anything."""

    clusters: int
    total: Fraction | int
    """Sum of the clusters' differences."""
    squares: Fraction | int
    """Sum of their squares."""
    worse: int
    better: int

    @property
    def mean(self) -> float:
        return float(self.total / self.clusters)

    @property
    def unanimous(self) -> bool:
        """Whether every cluster has the same difference."""
        return self.clusters * self.squares == self.total * self.total

    @property
    def standard_error(self) -> float:
        """Of the mean, from the sample variance with n - 1."""
        n = self.clusters
        return math.sqrt((n * self.squares - self.total * self.total) / (n * n * (n - 1)))


class Bounds(NamedTuple):
    lower: float
    upper: float
    lower_method: LowerMethod


def summarize(differences: Iterable[Fraction]) -> ClusterDifferences:
    """The summary of one difference for each cluster, in [-1, 1]."""
    counted = Counter(differences)
    return ClusterDifferences(
        clusters=sum(counted.values()),
        total=sum((value * count for value, count in counted.items()), Fraction(0)),
        squares=sum((value * value * count for value, count in counted.items()), Fraction(0)),
        worse=sum(count for value, count in counted.items() if value < 0),
        better=sum(count for value, count in counted.items() if value > 0),
    )


def bounds(differences: ClusterDifferences, confidence: float) -> Bounds:
    """The two one-sided bounds, each at ``confidence``. Needs two clusters."""
    method = _lower_method(differences)
    upper = differences.mean + t_quantile(differences.clusters - 1, confidence) * differences.standard_error
    return Bounds(lower_bound(differences, confidence), min(1.0, upper), method)


def lower_bound(differences: ClusterDifferences, confidence: float) -> float:
    n = differences.clusters
    method = _lower_method(differences)
    if method == "clopper_pearson":
        return -clopper_pearson_upper(differences.worse, n, confidence)
    if method == "unanimous":
        share: float = (1 - confidence) ** (1 / n)
        return share * differences.mean - (1 - share)
    return max(-1.0, differences.mean - t_quantile(n - 1, confidence) * differences.standard_error)


def is_non_inferior(differences: ClusterDifferences, rule: Rule) -> bool:
    return differences.clusters >= rule.minimum_clusters and lower_bound(differences, rule.confidence) >= -rule.margin


def verdict(found: Bounds, margin: float) -> Verdict:
    if found.lower > 0:
        return "superior"
    if found.lower >= -margin:
        return "non_inferior"
    if found.upper < -margin:
        return "failed"
    return "inconclusive"


def p_value(differences: ClusterDifferences, threshold: float) -> float:
    """Against a true difference of ``threshold`` or below: 1 minus the confidence at which the lower bound meets it.

    With ``threshold`` minus the margin it belongs to non-inferiority, with 0 to superiority. It is what Holm's method
    needs, and says the same as the lower bound: below 1 - confidence where that one is above the threshold.
    """
    n = differences.clusters
    method = _lower_method(differences)
    if method == "clopper_pearson":
        if threshold >= 0:
            return 1.0
        from scipy.special import bdtr

        return float(bdtr(differences.worse, n, -threshold))
    if method == "unanimous":
        if differences.mean <= threshold:
            return 1.0
        return float(((1 + threshold) / (1 + differences.mean)) ** n)
    from scipy.special import stdtr

    return float(stdtr(n - 1, (threshold - differences.mean) / differences.standard_error))


@lru_cache(maxsize=65_536)
def t_quantile(degrees_of_freedom: int, confidence: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, confidence))


def _lower_method(differences: ClusterDifferences) -> LowerMethod:
    if differences.worse + differences.better < T_FROM:
        return "clopper_pearson"
    return "unanimous" if differences.unanimous else "t"
