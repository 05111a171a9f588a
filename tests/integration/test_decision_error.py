"""How often the rule is wrong is known exactly, and docs/statistics.md shows the numbers of this very code."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grading.statistics.decision_rule import ClusterDifferences, Rule, is_non_inferior
from grading.statistics.power import SampleSize, least_clusters, non_inferiority_probability

ROOT = Path(__file__).parents[2]
RULE = Rule()


@pytest.fixture(scope="module")
def enumeration() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tests/benchmarks/decision_error.py"))


@pytest.fixture(scope="module")
def tables(enumeration: dict[str, Any]) -> dict[str, str]:
    return enumeration["tables"]()  # type: ignore[no-any-return]


def percentages(table: str) -> list[float]:
    return [float(cell.strip(" %")) for line in table.splitlines()[2:] for cell in line.split("|")[2:-1]]


def test_false_non_inferiority_at_the_margin_is_at_most_six_and_a_half_percent(tables: dict[str, str]) -> None:
    found = percentages(tables["rule"])
    assert len(found) == 20
    assert max(found) == 6.27


def test_the_naive_interval_is_wrong_up_to_one_time_in_five(tables: dict[str, str]) -> None:
    assert max(percentages(tables["naive"])) == 19.46


@pytest.mark.parametrize("name", ["rule", "naive", "size"])
def test_the_docs_show_the_tables_of_this_code(tables: dict[str, str], name: str) -> None:
    assert tables[name] in (ROOT / "docs/statistics.md").read_text()


@settings(deadline=None, max_examples=25)
@given(
    clusters=st.integers(30, 45),
    rates=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
    margin=st.sampled_from([0.03, 0.1, 0.2, 0.49]),
)
def test_the_probability_is_that_of_looking_at_every_single_outcome(
    enumeration: dict[str, Any], clusters: int, rates: tuple[float, float], margin: float
) -> None:
    rule = Rule(margin=margin)

    def accepted(differences: ClusterDifferences) -> bool:
        return is_non_inferior(differences, rule)

    one_by_one = enumeration["enumerated"](clusters, *rates, accepted)
    assert non_inferiority_probability(clusters, *rates, rule) == pytest.approx(one_by_one, abs=1e-9)


def test_the_probability_agrees_with_the_enumerated_table(enumeration: dict[str, Any]) -> None:
    expected = enumeration["false_non_inferiority"](100, lambda differences: is_non_inferior(differences, RULE))
    found = [non_inferiority_probability(100, fix + 0.03, fix, RULE) for fix in enumeration["FIX_RATES"]]
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_candidate_that_changes_nothing_needs_99_customers() -> None:
    assert least_clusters(0, 0, RULE) == SampleSize(99, 1.0, 99)
    assert least_clusters(0, 0, Rule(margin=0.05)).clusters == 59


def test_one_customer_fewer_is_not_enough() -> None:
    found = least_clusters(0.01, 0.01, RULE, probability=0.8)
    assert found.clusters == 303
    assert found.probability >= 0.8
    assert all(non_inferiority_probability(n, 0.01, 0.01, RULE) < 0.8 for n in range(30, 303))


def test_where_no_number_is_enough_the_best_found_is_told() -> None:
    found = least_clusters(0.02, 0, RULE, probability=0.9, at_most=200)
    assert (found.clusters, found.searched_to) == (None, 200)
    assert 0 < found.probability < 0.9


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"regress": 0.05, "fix": 0.02}, "inferior by the margin"),
        ({"regress": 0.7, "fix": 0.7}, "shares that add to 1"),
        ({"regress": 0.01, "fix": 0.0, "probability": 1.0}, "probability must lie"),
        ({"regress": 0.01, "fix": 0.0, "at_most": 10}, "at_most must be at least"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        least_clusters(rule=RULE, **arguments)  # type: ignore[arg-type]
