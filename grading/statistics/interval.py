"""Two intervals that are shown beside a decision's bounds, and decide nothing.

Both estimate their width from what was observed, so both would be a point where every cluster shows the same
difference, as if a sample could prove that nothing else exists. There one cluster that got wholly better and one that
got wholly worse are added, which is what Bonett and Price do for paired proportions ("Adjusted Wald confidence interval
for a difference of binomial proportions based on paired data", Journal of Educational and Behavioral Statistics 37,
2012), and the interval says so.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

RESAMPLES = 10_000
_SEED = 20_120_806
"""Fixed, so that the same evidence shows the same interval to everyone."""
_DRAWS_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """Two-sided. ``adjusted`` tells that the two clusters were added."""

    lower: float
    upper: float
    adjusted: bool


def normal_interval(differences: Sequence[Fraction], confidence: float) -> Interval:
    """Mean of the clusters' differences plus and minus the normal quantile times the standard error.

    Raises:
        ValueError: for fewer than two clusters.
    """
    values, adjusted = _spread(differences)
    from scipy.special import ndtri

    n = len(values)
    mean = sum(values, Fraction(0)) / n
    # The adjusted interval divides by n, as its authors do; the plain one by n - 1.
    variance = sum(((value - mean) ** 2 for value in values), Fraction(0)) / (n if adjusted else n - 1)
    half = float(ndtri((1 + confidence) / 2)) * math.sqrt(variance / n)
    return Interval(max(-1.0, float(mean) - half), min(1.0, float(mean) + half), adjusted)


def bootstrap_interval(differences: Sequence[Fraction], confidence: float, resamples: int = RESAMPLES) -> Interval:
    """The percentile interval of means of clusters drawn with replacement (Efron 1979), with a fixed seed.

    A cluster is drawn as a whole, so that what its pairs share is not mistaken for evidence.

    Raises:
        ValueError: for fewer than two clusters.
    """
    values, adjusted = _spread(differences)
    import numpy as np

    n = len(values)
    # Drawing how often each distinct value occurs is drawing clusters, in a fraction of the work.
    counted = sorted(Counter(values).items())
    distinct = np.array([float(value) for value, _ in counted])
    shares = np.array([count / n for _, count in counted])
    generator = np.random.Generator(np.random.PCG64(_SEED))
    at_once = max(1, _DRAWS_AT_ONCE // len(counted))
    means = np.concatenate(
        [
            generator.multinomial(n, shares, size=min(at_once, resamples - start)) @ distinct / n
            for start in range(0, resamples, at_once)
        ]
    )
    tail = (1 - confidence) / 2
    lower, upper = np.quantile(means, [tail, 1 - tail], method="inverted_cdf")
    estimate = float(sum(differences, Fraction(0)) / len(differences))
    return Interval(max(-1.0, min(float(lower), estimate)), min(1.0, max(float(upper), estimate)), adjusted)


def _spread(differences: Sequence[Fraction]) -> tuple[Sequence[Fraction], bool]:
    if len(differences) < 2:
        raise ValueError(f"an interval needs at least two clusters: got {len(differences)}")
    if len(set(differences)) > 1:
        return differences, False
    return [*differences, Fraction(1), Fraction(-1)], True
