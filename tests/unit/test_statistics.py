"""The numbers of a comparison agree with published worked examples, and keep what a reader takes for granted."""

import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grading.statistics import decision_rule
from grading.statistics.agreement import krippendorff_alpha
from grading.statistics.decision_rule import ClusterDifferences, Rule, summarize
from grading.statistics.interval import bootstrap_interval, normal_interval
from grading.statistics.latency import Latency, latency, percentile
from grading.statistics.paired import Comparison, Pair, compare, compare_candidates, holm
from grading.statistics.proportion import clopper_pearson_lower, clopper_pearson_upper
from grading.statistics.rates import Rate, describe, pass_hat_k

RULE = Rule()
outcomes = st.sampled_from([True, False, None])


@st.composite
def paired(draw: st.DrawFn, least: int = 0, missing: bool = True) -> list[Pair]:
    """Customers with one to four pairs each."""
    outcome = outcomes if missing else st.booleans()
    sizes = draw(st.lists(st.integers(1, 4), min_size=least, max_size=60))
    return [
        Pair(f"customer-{customer}", f"case-{customer}", repetition, draw(outcome), draw(outcome))
        for customer, size in enumerate(sizes)
        for repetition in range(size)
    ]


def one_pair_each(worse: int, better: int, same: int) -> list[Pair]:
    kinds = [(True, False)] * worse + [(False, True)] * better + [(True, True)] * same
    return [Pair(f"c{i}", f"case-{i}", 0, baseline, candidate) for i, (baseline, candidate) in enumerate(kinds)]


def counts(clusters: int, worse: int, better: int) -> ClusterDifferences:
    return ClusterDifferences(clusters, better - worse, better + worse, worse, better)


# Clopper-Pearson


def test_clopper_pearson_gives_the_bounds_of_the_nist_handbook() -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.4.1, solved there by iteration: 4 of 20, two-sided 90 %."""
    assert clopper_pearson_upper(4, 20) == pytest.approx(0.401029, abs=1e-6)
    assert clopper_pearson_lower(4, 20) == pytest.approx(0.071354, abs=1e-6)


def test_clopper_pearson_gives_the_interval_of_mendels_peas() -> None:
    """Conover, Practical Nonparametric Statistics (1971), as in R's binom.test: 682 of 925, two-sided 95 %."""
    assert clopper_pearson_lower(682, 925, 0.975) == pytest.approx(0.7076683, abs=5e-8)
    assert clopper_pearson_upper(682, 925, 0.975) == pytest.approx(0.7654066, abs=5e-8)


def test_clopper_pearson_without_a_success() -> None:
    assert round(clopper_pearson_upper(0, 2), 4) == 0.7764
    assert round(clopper_pearson_upper(0, 59), 4) == 0.0495
    assert clopper_pearson_upper(0, 58) > 0.05
    assert clopper_pearson_upper(0, 99) <= 0.03 < clopper_pearson_upper(0, 98)
    assert clopper_pearson_upper(3, 3) == 1.0
    assert clopper_pearson_lower(0, 3) == 0.0


@given(st.integers(1, 300), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_clopper_pearson_is_what_scipy_stats_says_and_contains_the_share(
    n: int, data: st.DataObject, at: float
) -> None:
    successes = data.draw(st.integers(0, n))
    interval = stats.binomtest(successes, n).proportion_ci(2 * at - 1, method="exact")
    lower, upper = clopper_pearson_lower(successes, n, at), clopper_pearson_upper(successes, n, at)
    assert lower == pytest.approx(interval.low, abs=1e-9)
    assert upper == pytest.approx(interval.high, abs=1e-9)
    assert lower <= successes / n <= upper
    assert lower < upper
    assert upper == pytest.approx(1 - clopper_pearson_lower(n - successes, n, at), abs=1e-12)
    if successes:
        assert clopper_pearson_upper(successes - 1, n, at) < upper or upper == 1.0


@pytest.mark.parametrize(("successes", "trials", "at"), [(-1, 3, 0.95), (4, 3, 0.95), (0, 0, 0.95), (1, 3, 1.0)])
def test_clopper_pearson_refuses_counts_that_no_sample_has(successes: int, trials: int, at: float) -> None:
    with pytest.raises(ValueError, match="got"):
        clopper_pearson_upper(successes, trials, at)


# The decision rule


def test_the_t_bounds_are_those_of_students_sleep_data() -> None:
    """Student, "The probable error of a mean", Biometrika 6 (1908); R prints 0.7001142 and 2.4598858, p 0.002833."""
    extra_hours = [
        Fraction(tenths, 100) for tenths in (12, 24, 13, 13, 0, 10, 18, 8, 46, 14)
    ]  # a tenth, to fit [-1, 1]
    # One difference is zero: nine differ, so the t bound is asked for through a tenth that is all but zero.
    nearly = [value or Fraction(1, 10**12) for value in extra_hours]
    summary = summarize(nearly)
    found = decision_rule.bounds(summary, 0.975)
    assert found.lower_method == "t"
    assert 10 * found.lower == pytest.approx(0.7001142, abs=5e-8)
    assert 10 * found.upper == pytest.approx(2.4598858, abs=5e-8)
    assert 2 * decision_rule.p_value(summary, 0.0) == pytest.approx(0.002833, abs=5e-7)


def test_with_fewer_than_ten_clusters_that_differ_the_lower_bound_is_exact() -> None:
    nothing_differs = compare(one_pair_each(0, 0, 99), RULE)
    assert nothing_differs.lower == -clopper_pearson_upper(0, 99)
    assert (nothing_differs.upper, nothing_differs.verdict) == (0.0, "non_inferior")
    assert compare(one_pair_each(0, 0, 98), RULE).verdict == "inconclusive"
    nine = compare(one_pair_each(4, 5, 91), RULE)
    assert (nine.lower_method, nine.lower) == ("clopper_pearson", -clopper_pearson_upper(4, 100))
    ten = compare(one_pair_each(4, 6, 90), RULE)
    assert ten.lower_method == "t"
    by_scipy = stats.ttest_1samp([-1] * 4 + [1] * 6 + [0] * 90, 0, alternative="greater").confidence_interval(0.95)
    assert ten.lower == pytest.approx(by_scipy.low, abs=1e-12)


@pytest.mark.parametrize(
    ("worse", "better", "same", "verdict"),
    [
        (0, 12, 48, "superior"),
        (5, 5, 390, "non_inferior"),
        (20, 2, 78, "failed"),
        (5, 6, 49, "inconclusive"),
        (0, 0, 30, "inconclusive"),
        (30, 0, 0, "failed"),
        (0, 30, 0, "superior"),
    ],
)
def test_each_verdict(worse: int, better: int, same: int, verdict: str) -> None:
    found = compare(one_pair_each(worse, better, same), RULE)
    assert found.verdict == verdict
    assert found.non_inferior == (verdict in ("superior", "non_inferior"))


def test_below_the_minimum_of_clusters_there_are_no_bounds() -> None:
    found = compare(one_pair_each(0, 29, 0), RULE)
    assert (found.verdict, found.clusters, found.difference) == ("inconclusive", 29, 1.0)
    assert (found.lower, found.upper, found.lower_method, found.normal, found.bootstrap) == (None,) * 5
    assert (found.p_non_inferior, found.p_superior) == (None, None)
    assert compare([], RULE).difference is None


def test_a_customer_with_many_pairs_counts_once() -> None:
    pairs = [Pair("big", "b", repetition, True, False) for repetition in range(50)]
    pairs += [Pair(f"c{i}", f"case-{i}", 0, True, True) for i in range(49)]
    found = compare(pairs, RULE)
    assert (found.difference, found.clusters_worse, found.clusters) == (-1 / 50, 1, 50)
    assert describe(pairs).trial_weighted_difference == -50 / 99
    assert describe(pairs).customer_weighted_difference == -1 / 50


def test_missing_trials_are_the_worst_case_in_a_decision() -> None:
    pairs = one_pair_each(0, 0, 100)
    pairs[0] = replace(pairs[0], candidate=None)
    pairs[1] = replace(pairs[1], baseline=None, candidate=False)
    pairs[2] = replace(pairs[2], baseline=None, candidate=None)
    pairs[3] = replace(pairs[3], baseline=False, candidate=None)
    decided = compare(pairs, RULE)
    assert (decided.difference, decided.clusters_worse, decided.clusters) == (-3 / 100, 3, 100)
    assert (decided.pairs, decided.complete_pairs) == (100, 96)
    explored = compare(pairs, RULE, "left_out")
    assert (explored.difference, explored.clusters, explored.missing) == (0.0, 96, "left_out")


def test_where_all_customers_agree_the_decision_still_has_a_width() -> None:
    """Each customer lost one pair of fifty: that 60 of them did says little about the one that would lose all."""
    pairs = [Pair(f"c{c}", f"case-{c}", r, True, r > 0) for c in range(60) for r in range(50)]
    found = compare(pairs, RULE)
    share = 0.05 ** (1 / 60)
    assert found.difference == -0.02
    assert found.lower_method == "unanimous"
    assert found.lower == pytest.approx(share * -0.02 - (1 - share))
    assert found.verdict == "inconclusive"


def test_the_normal_interval_and_the_bootstrap_are_never_a_point() -> None:
    unchanged = compare(one_pair_each(0, 0, 40), RULE)
    assert unchanged.normal is not None
    assert unchanged.bootstrap is not None
    # Bonett and Price (2012): one better and one worse of 42, 1.959964 * sqrt(2 / 42 / 42).
    assert unchanged.normal.upper == pytest.approx(1.959964 * (2**0.5) / 42, abs=1e-7)
    assert unchanged.normal.lower == -unchanged.normal.upper
    assert unchanged.bootstrap.lower < 0 < unchanged.bootstrap.upper
    assert unchanged.normal.adjusted
    assert unchanged.bootstrap.adjusted


def test_the_normal_interval_is_mean_and_standard_error() -> None:
    values = [Fraction(v) for v in [-1] * 4 + [1] * 6 + [0] * 90]
    found = normal_interval(values, 0.95)
    half = 1.959963984540054 * stats.sem([float(v) for v in values])
    assert found.lower == pytest.approx(0.02 - half)
    assert found.upper == pytest.approx(0.02 + half)
    assert not found.adjusted


def test_the_bootstrap_agrees_with_the_exact_distribution_of_the_resampled_mean() -> None:
    """With differences of 0 and 1 the resampled sum is binomial."""
    found = bootstrap_interval([Fraction(1)] * 20 + [Fraction(0)] * 80, 0.95, resamples=100_000)
    assert found.lower == pytest.approx(stats.binom.ppf(0.025, 100, 0.2) / 100, abs=0.011)
    assert found.upper == pytest.approx(stats.binom.ppf(0.975, 100, 0.2) / 100, abs=0.011)


@settings(deadline=None, max_examples=25)
@given(paired(least=30))
def test_bounds_and_intervals_contain_the_difference_and_have_a_width(pairs: list[Pair]) -> None:
    found = compare(pairs, RULE)
    assert found.lower is not None
    assert found.upper is not None
    assert found.difference is not None
    assert -1 <= found.lower <= found.difference + 1e-12
    assert found.difference - 1e-12 <= found.upper <= 1
    for interval in (found.normal, found.bootstrap):
        assert interval is not None
        assert interval.lower - 1e-12 <= found.difference <= interval.upper + 1e-12
        assert interval.lower < interval.upper


@settings(deadline=None, max_examples=25)
@given(paired(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_decides_nothing(pairs: list[Pair], shuffle: random.Random) -> None:
    shuffled = list(pairs)
    shuffle.shuffle(shuffled)
    assert compare(shuffled, RULE) == compare(pairs, RULE)
    assert replace(describe(shuffled), changes=()) == replace(describe(pairs), changes=())


@settings(deadline=None, max_examples=25)
@given(paired(least=30, missing=False))
def test_swapping_the_arms_mirrors_the_difference_and_the_normal_interval(pairs: list[Pair]) -> None:
    found = compare(pairs, RULE)
    mirrored = compare([replace(pair, baseline=pair.candidate, candidate=pair.baseline) for pair in pairs], RULE)
    assert found.difference is not None
    assert mirrored.difference == -found.difference
    assert (mirrored.clusters_worse, mirrored.clusters_better) == (found.clusters_better, found.clusters_worse)
    assert found.normal is not None
    assert mirrored.normal is not None
    assert mirrored.normal.lower == pytest.approx(-found.normal.upper, abs=1e-12)
    if found.lower_method == "t":
        assert found.upper is not None
        assert mirrored.lower == pytest.approx(-found.upper, abs=1e-12)


@given(st.integers(30, 300), st.data())
def test_a_cluster_that_got_worse_never_helps_under_the_same_bound(n: int, data: st.DataObject) -> None:
    """In the region that decides: a mean above minus one half."""
    better = data.draw(st.integers(0, n - 1))
    worse = data.draw(st.integers(0, min(n - better - 1, better + n // 2 - 1)))
    before, after = counts(n, worse, better), counts(n, worse + 1, better)
    if decision_rule.bounds(before, 0.95).lower_method == decision_rule.bounds(after, 0.95).lower_method:
        assert decision_rule.lower_bound(after, 0.95) < decision_rule.lower_bound(before, 0.95)


@given(st.integers(30, 300), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_more_confidence_never_gives_a_narrower_bound(n: int, data: st.DataObject, confidence: float) -> None:
    better = data.draw(st.integers(0, n))
    differences = counts(n, data.draw(st.integers(0, n - better)), better)
    wide, narrow = decision_rule.bounds(differences, confidence), decision_rule.bounds(differences, confidence - 0.1)
    assert wide.lower <= narrow.lower
    assert narrow.upper <= wide.upper


@given(st.integers(30, 300), st.data(), st.sampled_from([0.0, 0.01, 0.03, 0.1]))
def test_the_p_value_says_what_the_lower_bound_says(n: int, data: st.DataObject, margin: float) -> None:
    better = data.draw(st.integers(0, n))
    differences = counts(n, data.draw(st.integers(0, n - better)), better)
    p = decision_rule.p_value(differences, -margin)
    assert 0 <= p <= 1
    if abs(p - 0.05) > 1e-9:
        assert (p < 0.05) == (decision_rule.lower_bound(differences, 0.95) > -margin)


def test_pairs_that_no_matrix_has_are_refused_by_name() -> None:
    pair = Pair("a", "refund", 0, True, True)
    with pytest.raises(ValueError, match="case 'refund', repetition 0 is given twice"):
        compare([pair, pair], RULE)
    with pytest.raises(ValueError, match="case 'refund' belongs to customer 'a' and to 'b'"):
        describe([pair, Pair("b", "refund", 1, True, True)])
    with pytest.raises(ValueError, match="case 'refund', repetition 0 is not eligible"):
        compare([replace(pair, eligible=False)], RULE)


@pytest.mark.parametrize(
    "wrong", [{"margin": -0.1}, {"margin": 3.0}, {"confidence": 95.0}, {"confidence": 0.5}, {"minimum_clusters": 1}]
)
def test_a_rule_that_cannot_be_meant_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Rule(**wrong)  # type: ignore[arg-type]


# Several candidates


def test_holm_rejects_what_benjamini_and_hochberg_report_for_the_thrombolysis_trial() -> None:
    """Benjamini and Hochberg, JRSS B 57 (1995), section 4.1: of 15, Bonferroni and Hochberg both reject three."""
    p_values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344]
    p_values += [0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    adjusted = holm(p_values)
    assert [p <= 0.05 for p in adjusted] == [True] * 3 + [False] * 12
    assert adjusted[:4] == pytest.approx([0.0015, 0.0056, 0.0247, 0.114])


def test_holm_gives_the_example_of_the_encyclopedia_in_the_order_given() -> None:
    """Wikipedia, "Holm-Bonferroni method": 0.01, 0.04, 0.03, 0.005 at 5 %: the first and the fourth are rejected."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


def test_a_claim_that_holds_alone_may_not_hold_among_several() -> None:
    good, close = one_pair_each(0, 0, 300), one_pair_each(0, 0, 100)
    alone = compare(close, RULE)
    assert alone.verdict == "non_inferior"
    both = compare_candidates({"close": close, "other": one_pair_each(5, 6, 49), "good": good}, RULE)
    assert list(both) == ["close", "other", "good"]
    assert both["good"].verdict == "non_inferior"
    assert both["close"].verdict == "inconclusive"
    assert both["close"].p_non_inferior == pytest.approx(2 * 0.97**100)
    assert (both["close"].lower, both["close"].candidates) == (alone.lower, 3)


def test_a_candidate_with_too_few_customers_still_counts_as_planned() -> None:
    close = one_pair_each(0, 0, 100)
    with_small = compare_candidates({"close": close, "small": one_pair_each(0, 0, 5)}, RULE)
    assert with_small["close"].verdict == "inconclusive"
    assert with_small["small"].p_non_inferior is None


@settings(deadline=None, max_examples=25)
@given(paired(least=30))
def test_one_candidate_alone_is_not_adjusted(pairs: list[Pair]) -> None:
    alone: Comparison = compare(pairs, RULE)
    assert compare_candidates({"only": pairs}, RULE) == {"only": alone}


# Rates and changes


def test_rates_show_their_coverage_and_never_count_a_missing_trial() -> None:
    pairs = [
        Pair("a", "one", 0, True, False),
        Pair("a", "one", 1, True, None),
        Pair("b", "two", 0, False, True),
        Pair("b", "two", 1, False, True),
    ]
    found = describe(pairs)
    assert (found.baseline, found.candidate) == (Rate(2, 4, 4), Rate(2, 3, 4))
    assert (found.candidate.value, found.candidate.coverage) == (2 / 3, 0.75)
    assert (found.fixed, found.regressed, found.unchanged, found.missing) == (2, 1, 0, 1)
    assert (found.baseline_by_customer, found.candidate_by_customer) == (0.5, 0.5)
    assert found.trial_weighted_difference == 1 / 3
    assert found.customer_weighted_difference == 0.0
    assert [(change.case, change.change) for change in found.changes] == [("one", "regressed"), ("two", "fixed")]
    assert Rate(0, 0, 0).value is None


def test_a_slice_counts_eligible_pairs_alone_and_says_how_many_there_were() -> None:
    pairs = [Pair("a", "one", 0, True, False), Pair("b", "two", 0, True, True, eligible=False)]
    found = describe(pairs)
    assert (found.cases, found.pairs, found.customers) == (2, 2, 2)
    assert (found.eligible_pairs, found.eligible_customers, found.regressed) == (1, 1, 1)
    assert (found.baseline, found.candidate) == (Rate(1, 1, 1), Rate(0, 1, 1))
    assert not found.comparable
    assert describe([replace(pair, eligible=True) for pair in pairs]).comparable
    assert not describe(pairs[:1]).comparable
    assert describe([]).trial_weighted_difference is None


def test_a_case_says_how_its_repetitions_changed_and_whether_they_disagree() -> None:
    mixed, none = describe(
        [
            Pair("a", "mixed", 0, True, False),
            Pair("a", "mixed", 1, False, True),
            Pair("a", "none", 0, None, True),
        ]
    ).changes
    assert (mixed.change, mixed.baseline_disagrees, mixed.candidate_disagrees) == ("mixed", True, True)
    assert (none.change, none.missing, none.baseline_disagrees) == ("missing", 1, False)


def test_pass_hat_k_is_the_chance_that_all_k_pass() -> None:
    cases = [[True, True, False, True], [True, True, True, True]]
    assert pass_hat_k(cases, 1) == 7 / 8
    assert pass_hat_k(cases, 2) == (3 / 6 + 1) / 2
    assert pass_hat_k(cases, 4) == 0.5
    assert pass_hat_k(cases, 5) is None
    assert pass_hat_k([[True, True], [True]], 2) is None
    assert pass_hat_k([[True, None]], 2) == 0.0
    assert pass_hat_k([], 1) is None
    with pytest.raises(ValueError, match="k of at least 1"):
        pass_hat_k(cases, 0)


# Latency


def test_percentiles_are_latencies_that_some_trial_had() -> None:
    assert latency(range(1, 21)) == Latency(20, 0, 10, 19)
    assert latency(range(1, 20)) == Latency(19, 0, 10, 19)
    assert latency([250] * 16) == Latency(16, 0, 250, 250)
    assert latency([5, None, 3]) == Latency(2, 1, 3, 5)
    assert latency([None]) == Latency(0, 1, None, None)
    with pytest.raises(ValueError, match="never negative: got -1 ms"):
        latency([-1])


@given(st.lists(st.integers(0, 10**6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_reaches_the_share(values: list[int], percent: int) -> None:
    found = percentile(sorted(values), percent)
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


# Agreement


@pytest.mark.parametrize(
    ("reviewers", "alpha"),
    [
        pytest.param(["0100000010", "1110010000"], 0.095, id="A: two observers, binary"),
        pytest.param(["aabbdcccedda", "babbbccceddd"], 0.692, id="B: two observers, nominal"),
        pytest.param(
            ["123321412...", "1233224125.3", ".3332342251.", "12332441251."],
            0.743,
            id="C: four observers, labels missing",
        ),
    ],
)
def test_alpha_is_that_of_krippendorffs_own_examples(reviewers: list[str], alpha: float) -> None:
    """Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), examples A, B and C."""
    units = [[None if label == "." else label for label in unit] for unit in zip(*reviewers, strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(alpha, abs=5e-4)


def test_alpha_is_that_of_the_encyclopedias_example() -> None:
    """Wikipedia, "Krippendorff's alpha", a computational example: three coders, nominal 0.691."""
    coders = ["*****34121133*3", "1*213343*******", "**21344*21133*4"]
    units = [[None if label == "*" else label for label in unit] for unit in zip(*coders, strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(0.691, abs=5e-4)


def test_alpha_is_undefined_where_nothing_could_disagree() -> None:
    assert krippendorff_alpha([]) is None
    assert krippendorff_alpha([["a"], ["b", None]]) is None
    assert krippendorff_alpha([["a", "a"], ["a", "a"]]) is None
    assert krippendorff_alpha([["a", "a"], ["b", "b"]]) == 1.0


@given(st.lists(st.lists(st.sampled_from(["x", "y", "z", None]), max_size=4), max_size=12), st.randoms())
def test_alpha_depends_neither_on_order_nor_on_the_names_of_labels(
    units: list[list[str | None]], shuffle: random.Random
) -> None:
    renamed = [[{"x": 1, "y": 2, "z": 3, None: None}[label] for label in unit] for unit in units]
    for unit in renamed:
        shuffle.shuffle(unit)
    shuffle.shuffle(renamed)
    assert krippendorff_alpha(renamed) == krippendorff_alpha(units)


def test_importing_the_statistics_loads_neither_numpy_nor_scipy() -> None:
    modules = "agreement decision_rule interval latency paired power proportion rates"
    imports = "; ".join(f"import grading.statistics.{name}" for name in modules.split())
    script = (
        f"{imports}; import grading.cost, sys; print([m for m in ('numpy', 'scipy', 'pandas') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
