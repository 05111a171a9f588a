"""cellwise power: how many customers a comparison needs."""

import json as json_format

from grading.commands import MISSING, fail
from grading.statistics.decision_rule import Rule
from grading.statistics.power import least_clusters


def power(
    worse: float,
    better: float,
    *,
    margin: float,
    confidence: float,
    minimum_clusters: int,
    probability: float,
    at_most: int,
    json: bool,
) -> None:
    try:
        rule = Rule(margin, confidence, minimum_clusters)
        found = least_clusters(worse, better, rule, probability, at_most)
    except ValueError as error:
        raise fail(str(error)) from None
    if json:
        document = {
            "version": 1,
            "customers": found.clusters,
            "probability": found.probability,
            "searched_to": found.searched_to,
            "worse": worse,
            "better": better,
            "margin": margin,
            "confidence": confidence,
            "minimum_clusters": minimum_clusters,
        }
        print(json_format.dumps(document))
    elif found.clusters is None:
        print(f"none up to {at_most}: the best probability found is {100 * found.probability:.1f} %")
    else:
        print(f"{found.clusters} customers find non-inferiority with a probability of {100 * found.probability:.1f} %")
        print("The shares are your assumption; repetitions do not stand for customers.")
    if found.clusters is None:
        raise fail("no number of customers that was tried is enough", MISSING)
