"""How often the decision rule is wrong, as the tables of docs/statistics.md.

Clusters with one pair have differences of -1, 0 or 1, so every outcome is a pair of counts and the error is enumerated
exactly. Run as a script it prints the tables; ``--sweep`` adds every number of clusters from 30 to 400, and customers
with several pairs by simulation.
"""

import math
import sys
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from scipy.stats import multinomial

from grading.statistics.decision_rule import ClusterDifferences, Rule, is_non_inferior, summarize
from grading.statistics.power import least_clusters, non_inferiority_probability

CLUSTERS = (60, 100, 200, 400)
FIX_RATES = (0.0, 0.01, 0.02, 0.05, 0.1)
RULE = Rule(margin=0.03, confidence=0.95, minimum_clusters=30)


def naive(differences: ClusterDifferences) -> bool:
    """What many tools do: the lower end of the two-sided 95 % normal interval against the margin."""
    return differences.mean - 1.959963984540054 * differences.standard_error >= -RULE.margin


def enumerated(clusters: int, regress: float, fix: float, accepted: Callable[[ClusterDifferences], bool]) -> float:
    """The probability of the outcomes that are accepted, each of them looked at: no assumption about their shape."""
    probability = 0.0
    for better in range(clusters + 1):
        for worse in range(clusters - better + 1):
            differences = ClusterDifferences(clusters, better - worse, better + worse, worse, better)
            if accepted(differences):
                counts = [worse, better, clusters - worse - better]
                probability += multinomial.pmf(counts, clusters, [regress, fix, 1 - regress - fix])
    return probability


def false_non_inferiority(clusters: int, accepted: Callable[[ClusterDifferences], bool]) -> list[float]:
    """``enumerated`` at a true difference of minus the margin, for every fix rate; each outcome is judged once."""
    worse, better = np.indices((clusters + 1, clusters + 1)).reshape(2, -1)
    counts = np.stack([worse, better, clusters - worse - better], axis=1)
    counts = counts[counts[:, 2] >= 0]
    probabilities = np.array(
        [multinomial.pmf(counts, clusters, [fix + RULE.margin, fix, 1 - 2 * fix - RULE.margin]) for fix in FIX_RATES]
    )
    # Outcomes that are all but impossible at every rate are not looked at: together they weigh less than 1e-9.
    possible = probabilities.max(axis=0) > 1e-15
    taken = [accepted(ClusterDifferences(clusters, b - w, b + w, w, b)) for w, b, _ in counts[possible].tolist()]
    return [float(rates[possible][taken].sum()) for rates in probabilities]


def error_table(accepted: Callable[[ClusterDifferences], bool]) -> str:
    lines = ["| clusters | " + " | ".join(f"fix {fix:g}" for fix in FIX_RATES) + " |", "|---:" * 6 + "|"]
    for clusters in CLUSTERS:
        rates = false_non_inferiority(clusters, accepted)
        lines.append(f"| {clusters} | " + " | ".join(f"{100 * rate:.2f} %" for rate in rates) + " |")
    return "\n".join(lines)


def size_table() -> str:
    lines = ["| made worse | made better | 50 % | 80 % | 90 % |", "|---:" * 5 + "|"]
    for regress, fix in (
        (0.0, 0.0),
        (0.005, 0.005),
        (0.01, 0.01),
        (0.02, 0.02),
        (0.01, 0.03),
        (0.01, 0.0),
        (0.05, 0.05),
    ):
        sizes = [least_clusters(regress, fix, RULE, probability).clusters for probability in (0.5, 0.8, 0.9)]
        lines.append(f"| {100 * regress:g} % | {100 * fix:g} % | " + " | ".join(str(size) for size in sizes) + " |")
    return "\n".join(lines)


def tables() -> dict[str, str]:
    return {
        "rule": error_table(lambda differences: is_non_inferior(differences, RULE)),
        "naive": error_table(naive),
        "size": size_table(),
    }


def sweep() -> None:
    fix_rates = [step / 1000 for step in range(101)]
    found = [
        (non_inferiority_probability(clusters, fix + RULE.margin, fix, RULE), clusters, fix)
        for clusters in range(30, 401)
        for fix in fix_rates
    ]
    above = sum(probability > 0.065 for probability, _, _ in found)
    on_grid = max(item for item in found if item[2] in FIX_RATES)
    print(f"every n 30 to 400, fix rates of the table: at most {on_grid}")
    print(f"every n 30 to 400, fix 0 to 0.1 by 0.001: at most {max(found)}; {above} of {len(found)} above 6.5 %")


def simulate(clusters: int, pairs: int, samples: int = 20_000) -> None:
    """Customers with several pairs, at a true difference of -0.03."""
    generator = np.random.default_rng(7)
    for name, draw in (
        ("independent pairs, 2 % fixed, 5 % regressed", _independent),
        ("whole customers, 2 % fixed, 5 % regressed", _whole),
        ("all lose 2 % of their pairs, give or take, and 1.02 % of the customers lose all", _hidden_disaster),
    ):
        wrong = sum(
            is_non_inferior(summarize(Fraction(int(value), pairs) for value in draw(generator, clusters, pairs)), RULE)
            for _ in range(samples)
        )
        error = 1.96 * math.sqrt(wrong * (samples - wrong) / samples) / samples
        print(f"| {clusters} | {pairs} | {name} | {100 * wrong / samples:.1f} % (± {100 * error:.1f}) |")


def _independent(generator: np.random.Generator, clusters: int, pairs: int) -> np.ndarray:
    counts = generator.multinomial(pairs, [0.05, 0.02, 0.93], size=clusters)
    return counts[:, 1] - counts[:, 0]


def _whole(generator: np.random.Generator, clusters: int, pairs: int) -> np.ndarray:
    return pairs * generator.choice([-1, 1, 0], p=[0.05, 0.02, 0.93], size=clusters)


def _hidden_disaster(generator: np.random.Generator, clusters: int, pairs: int) -> np.ndarray:
    lost = 0.01 / 0.98
    return np.where(generator.random(clusters) < lost, -pairs, -generator.binomial(pairs, 0.02, size=clusters))


if __name__ == "__main__":
    for name, table in tables().items():
        print(f"{name}\n\n{table}\n")
    if "--sweep" in sys.argv:
        sweep()
        for clusters in (60, 200):
            for pairs in (2, 10, 50):
                simulate(clusters, pairs, 4_000)
