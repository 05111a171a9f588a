"""Agreement between reviewers beyond chance: Krippendorff's alpha for nominal labels.

Krippendorff, "Computing Krippendorff's Alpha-Reliability", University of Pennsylvania, 2011. Own code, because it is a
page of counting: in fractions it is exact, needs no numpy, and tells "undefined" from a number, where the package of
that name raises or answers NaN.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from fractions import Fraction


def krippendorff_alpha(units: Iterable[Iterable[Hashable | None]]) -> float | None:
    """How far the labels of each unit agree: 1 perfectly, 0 as by chance, below 0 less than by chance.

    Args:
        units: for each unit the labels it got, in any order, from any number of reviewers; ``None`` is no label. A unit
            with fewer than two labels has nothing to agree and is left out.

    Returns:
        ``None`` where it is undefined: no unit has two labels, or only one label occurs, so that chance could not have
        disagreed either.
    """
    totals: Counter[Hashable] = Counter()
    observed = Fraction(0)
    for unit in units:
        counts = Counter(label for label in unit if label is not None)
        size = counts.total()
        if size >= 2:
            totals.update(counts)
            observed += Fraction(_ordered_pairs_that_differ(counts), size - 1)
    expected = _ordered_pairs_that_differ(totals)
    if expected == 0:
        return None
    return float(1 - (totals.total() - 1) * observed / expected)


def _ordered_pairs_that_differ(counts: Counter[Hashable]) -> int:
    return counts.total() ** 2 - sum(count * count for count in counts.values())
