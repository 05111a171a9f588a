"""How many customers a comparison needs, and how often its rule is wrong: by exact enumeration of the rule itself.

The model: clusters are independent, and each got worse with one probability, better with another, or neither, by the
whole of 1 (one pair for each customer, or several that go together). Every outcome is put to ``decision_rule`` and
weighed with its trinomial probability, so nothing is approximated but the model.
"""

import math
from dataclasses import dataclass

from grading.statistics.decision_rule import T_FROM, ClusterDifferences, Rule, is_non_inferior


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The least number of clusters, and the probability it really gives. ``clusters`` is ``None`` if none is enough.

    The probability does not rise evenly: one cluster more can give a little less, because counts are whole numbers.
    """

    clusters: int | None
    probability: float
    """At ``clusters``; without one, the best that was found."""
    searched_to: int


def least_clusters(
    regress: float, fix: float, rule: Rule, probability: float = 0.8, at_most: int = 5_000
) -> SampleSize:
    """The least number of clusters at which non-inferiority is found with at least ``probability``.

    Args:
        regress: share of customers whom the candidate makes worse.
        fix: share of customers whom it makes better.

    Raises:
        ValueError: rates that are no shares, a probability outside (0, 1), a margin of one half or more, or a true
            difference at or below the margin, which no number of clusters should ever call non-inferior.
    """
    _check(regress, fix, rule)
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie between 0 and 1, both excluded: got {probability}")
    if at_most < rule.minimum_clusters:
        raise ValueError(f"at_most must be at least the minimum of {rule.minimum_clusters} clusters: got {at_most}")
    if fix - regress <= -rule.margin:
        raise ValueError(
            f"a candidate that makes {regress:g} worse and {fix:g} better is inferior by the margin of {rule.margin:g} "
            "or more: no number of customers can show otherwise"
        )
    best = 0.0
    for clusters in range(rule.minimum_clusters, at_most + 1):
        reached = non_inferiority_probability(clusters, regress, fix, rule)
        if reached >= probability:
            return SampleSize(clusters, reached, clusters)
        best = max(best, reached)
    return SampleSize(None, best, at_most)


def non_inferiority_probability(clusters: int, regress: float, fix: float, rule: Rule) -> float:
    """How often the rule calls a candidate with these true rates non-inferior.

    With ``fix - regress`` at minus the margin it is the rule's false non-inferiority.

    Raises:
        ValueError: rates that are no shares, or a margin of one half or more.
    """
    _check(regress, fix, rule)
    if clusters < rule.minimum_clusters:
        return 0.0
    import numpy as np
    from scipy.special import bdtr, gammaln, xlog1py, xlogy

    accepted = np.array(_accepted(clusters, fix, rule), dtype=np.int64).reshape(-1, 3)
    better, first, last = accepted[:, 0], accepted[:, 1], accepted[:, 2]
    log_better = (
        gammaln(clusters + 1)
        - gammaln(better + 1)
        - gammaln(clusters - better + 1)
        + xlogy(better, fix)
        + xlog1py(clusters - better, -fix)
    )
    # Given how many got better, those that got worse are binomial among the others.
    share = 0.0 if fix == 1 else min(1.0, regress / (1 - fix))
    others = clusters - better
    below = np.where(first > 0, bdtr(np.maximum(first - 1, 0), others, share), 0.0)
    return float(min(1.0, (np.exp(log_better) * (bdtr(last, others, share) - below)).sum()))


def _accepted(clusters: int, fix: float, rule: Rule) -> list[tuple[int, int, int]]:
    """The outcomes that are non-inferior, as runs (better, least worse, most worse).

    With the number better given, one more cluster worse never turns a refusal into an acceptance while the same bound
    is used: the mean falls and, down to a mean of minus one half, the standard error rises. So each of the two bounds
    has one run from its least number worse, and its end moves little from one number better to the next.
    """
    runs = []
    end = 0
    for better in range(*_likely(clusters, fix)):
        few = T_FROM - better
        if few > 0:
            exact = _last_accepted(clusters, better, 0, min(few - 1, clusters - better), 0, rule)
            if exact >= 0:
                runs.append((better, 0, exact))
        least = max(0, few)
        end = _last_accepted(clusters, better, least, clusters - better, end, rule)
        if end >= least:
            runs.append((better, least, end))
    return runs


def _last_accepted(clusters: int, better: int, least: int, most: int, guess: int, rule: Rule) -> int:
    """The largest number worse from ``least`` to ``most`` that is non-inferior, or ``least - 1``."""

    def accepted(worse: int) -> bool:
        differences = ClusterDifferences(clusters, better - worse, better + worse, worse, better)
        return is_non_inferior(differences, rule)

    worse = min(max(guess, least), most)
    if worse < least:
        return least - 1
    if accepted(worse):
        while worse < most and accepted(worse + 1):
            worse += 1
        return worse
    while worse >= least and not accepted(worse):
        worse -= 1
    return worse


def _likely(clusters: int, share: float) -> tuple[int, int]:
    """A range that a binomial count leaves with a probability below 1e-11 (Bernstein's inequality)."""
    deviations = 28.0
    spread = math.sqrt(2 * clusters * share * (1 - share) * deviations) + deviations
    middle = clusters * share
    return max(0, math.floor(middle - spread)), min(clusters, math.ceil(middle + spread)) + 1


def _check(regress: float, fix: float, rule: Rule) -> None:
    if rule.margin >= 0.5:
        raise ValueError(f"a margin of one half or more has no sample size here: got {rule.margin:g}")
    if not (0 <= regress <= 1 and 0 <= fix <= 1 and regress + fix <= 1):
        raise ValueError(f"regress and fix are shares that add to 1 at the most: got {regress} and {fix}")
