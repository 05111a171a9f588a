"""Release decisions: the first thing that does not hold decides, and the receipt says everything that was looked at."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from comparison_sample import BASELINE, CANDIDATE, compared, failed, manifest_of, regressed

from grading.comparison import Circumstances, MatrixComparison, NotComparable
from grading.decision import BadReceipt, Receipt, check_receipt, decide
from grading.file_error import FileError
from grading.policy import PACKAGED, load_policy
from grading.slices import SlicePlan
from simulator.canonical import sha256

GOLDEN = Path(__file__).parent / "golden" / "receipt_v1.json"
NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
JUNIT = b'<testsuite tests="2" failures="0" errors="0"><testcase name="a"/><testcase name="b"/></testsuite>'
EVIDENCE = b"every tool was called with every wrong argument\n"
WritePolicy = Callable[..., Path]


@pytest.fixture
def policy_file(tmp_path: Path) -> WritePolicy:
    """A policy that 120 customers without a regression pass; keyword arguments change or, with None, remove fields."""

    def write(*, junit: bytes = JUNIT, evidence: bytes | None = EVIDENCE, **changes: Any) -> Path:
        (tmp_path / "junit.xml").write_bytes(junit)
        if evidence is not None:
            (tmp_path / "boundary.txt").write_bytes(evidence)
        policy: dict[str, Any] = {
            "version": 1,
            "name": "refunds",
            "not_before": "2026-08-01T00:00:00Z",
            "expires": "2027-01-01T00:00:00Z",
            "prerequisites": [
                {
                    "name": "tool_boundary",
                    "evidence": "boundary.txt",
                    "sha256": sha256(EVIDENCE),
                    "expires": "2026-12-01T00:00:00Z",
                }
            ],
            "tests": {"report": "junit.xml", "sha256": sha256(junit)},
            "least_qualified_messages": "0",
        } | changes
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps({name: value for name, value in policy.items() if value is not None}))
        return path

    return write


def receipt(found: MatrixComparison, policy: Path, now: datetime = NOW, earlier: Receipt | None = None) -> Receipt:
    return decide(found, load_policy(policy, now), now, earlier)


def status(made: Receipt) -> tuple[str, str, str, int]:
    return made.level, made.action, made.authority, made.exit_status


def unmet(made: Receipt) -> list[str]:
    return [one.name for one in made.reasons if one.met is False]


PASSES = compared(manifest_of(120))


# The rules that docs/comparing.md gives, row by row


def test_an_unmet_prerequisite_locks(policy_file: WritePolicy) -> None:
    made = receipt(PASSES, policy_file(prerequisites=[{"name": "tool_boundary"}], tests=None))
    assert status(made) == ("locked", "block", "none", 11)
    assert unmet(made) == ["tool_boundary", "tests"]


def test_failed_tests_leave_it_buildable(policy_file: WritePolicy) -> None:
    junit = b'<testsuite><testcase name="a"/><testcase name="b"><failure/></testcase></testsuite>'
    made = receipt(compared(manifest_of(120), regressed(*range(120))), policy_file(junit=junit))
    assert status(made) == ("buildable", "block", "none", 11)
    assert unmet(made) == ["tests", "comparison"]


def test_a_failed_comparison_blocks(policy_file: WritePolicy) -> None:
    made = receipt(compared(manifest_of(120), regressed(*range(60))), policy_file())
    assert status(made) == ("evidence_ready", "block", "none", 11)
    assert (unmet(made), made.results[0].verdict, made.results[0].difference) == (["comparison"], "failed", -0.5)


def test_an_inconclusive_comparison_holds(policy_file: WritePolicy) -> None:
    made = receipt(compared(manifest_of(60)), policy_file())
    assert status(made) == ("evidence_ready", "hold", "none", 10)
    assert unmet(made) == []
    assert made.results[0].lower == pytest.approx(-(1 - 0.05 ** (1 / 60)))


def test_everything_met_passes_the_lab_and_authorizes_the_lab_alone(policy_file: WritePolicy) -> None:
    made = receipt(PASSES, policy_file())
    assert status(made) == ("evidence_ready", "lab_pass", "lab_only", 0)
    assert all(one.met for one in made.reasons)
    assert made.expires == "2026-12-01T00:00:00Z", "the prerequisite's evidence expires before the policy"


# What makes a candidate check fail


@pytest.mark.parametrize(
    ("changes", "around", "name"),
    [
        ({"least_isolation": "container"}, Circumstances(), "isolation"),
        ({"least_qualified_messages": "0.001"}, Circumstances(), "qualified_messages"),
        ({}, Circumstances(incidents={"bad_hash": 1}), "incidents"),
    ],
)
def test_a_failed_candidate_check_blocks(
    changes: dict[str, Any], around: Circumstances, name: str, policy_file: WritePolicy
) -> None:
    made = receipt(compared(manifest_of(120), around=around), policy_file(**changes))
    assert (status(made), unmet(made)) == (("evidence_ready", "block", "none", 11), [name])


def test_coverage_is_compared_exactly(policy_file: WritePolicy) -> None:
    def one_missing(condition: str, case: int, repetition: int) -> dict[str, Any] | None:
        return None if (condition, case, repetition) == (CANDIDATE, 0, 0) else {}

    found = compared(manifest_of(250), one_missing)
    assert unmet(receipt(found, policy_file())) == ["coverage"]
    enough = receipt(found, policy_file(least_coverage="0.999"))
    assert (unmet(enough), enough.action) == ([], "lab_pass")
    assert enough.results[0].difference == -0.5 / 250, "the missing one counts as failed"


# Prerequisites and tests


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"evidence": None}, "boundary.txt: cannot be read: No such file or directory"),
        ({"evidence": b"other"}, "another hash"),
    ],
)
def test_evidence_that_does_not_hold_is_an_unmet_prerequisite(
    changes: dict[str, Any], detail: str, policy_file: WritePolicy
) -> None:
    made = receipt(PASSES, policy_file(**changes))
    (reason,) = [one for one in made.reasons if one.part == "prerequisite"]
    assert (made.level, reason.met) == ("locked", False)
    assert detail in reason.detail


def test_evidence_expires_at_its_instant(policy_file: WritePolicy) -> None:
    before = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    assert receipt(PASSES, policy_file(), before).action == "lab_pass"
    after = receipt(PASSES, policy_file(), datetime(2026, 12, 1, tzinfo=UTC))
    assert (after.level, unmet(after)) == ("locked", ["tool_boundary"])


@pytest.mark.parametrize(
    ("junit", "detail"),
    [
        (b"<testsuite><testcase/><testcase><error/></testcase></testsuite>", "1 of 2 tests failed"),
        (b'<testsuites><testsuite errors="1"/></testsuites>', "1 of 0 tests failed"),
        (b'<testsuite failures="many"><testcase/></testsuite>', "failures is many"),
        (b"<testsuite></testsuite>", "no test ran"),
        (b"<testsuite><testcase><skipped/></testcase></testsuite>", "no test ran"),
        (b"<html/>", "its root is html"),
        (b"not XML", "no JUnit XML"),
    ],
)
def test_a_report_that_shows_no_passing_test_is_failed_tests(
    junit: bytes, detail: str, policy_file: WritePolicy
) -> None:
    made = receipt(PASSES, policy_file(junit=junit))
    assert made.level == "buildable"
    assert detail in next(one.detail for one in made.reasons if one.part == "tests")


def test_a_report_with_another_hash_is_failed_tests(policy_file: WritePolicy) -> None:
    made = receipt(PASSES, policy_file(tests={"report": "junit.xml", "sha256": sha256(b"other")}))
    assert (made.level, made.action) == ("buildable", "block")


# Time and components


def test_before_its_time_it_is_locked_and_after_it_expired(policy_file: WritePolicy) -> None:
    early = receipt(PASSES, policy_file(), datetime(2026, 7, 31, 23, 59, 59, tzinfo=UTC))
    assert (status(early), unmet(early)) == (("locked", "block", "none", 11), ["not_before"])
    late = receipt(PASSES, policy_file(prerequisites=[]), datetime(2027, 1, 1, tzinfo=UTC))
    assert (status(late), unmet(late)) == (("expired", "block", "none", 12), ["expires"])


def test_a_component_with_another_hash_than_the_policy_names_expires(policy_file: WritePolicy) -> None:
    made = receipt(PASSES, policy_file(components={"simulator": "sha256:" + "0" * 64}))
    assert (status(made), unmet(made)) == (("expired", "block", "none", 12), ["simulator"])
    same = receipt(PASSES, policy_file(components={"simulator": made.components["simulator"]}))
    assert same.action == "lab_pass"


@pytest.mark.parametrize(
    ("outcome", "component"),
    [
        (lambda c, j, i: {"ledger_hash": "sha256:" + "b" * 64} if (c, j, i) == (CANDIDATE, 7, 1) else {}, "evidence"),
        (lambda *_: {"grader_version": "sha256:" + "0" * 64}, "graders"),
    ],
)
def test_an_earlier_receipt_expires_with_any_component(outcome: Any, component: str, policy_file: WritePolicy) -> None:
    policy = policy_file()
    first = receipt(PASSES, policy)
    assert receipt(PASSES, policy, earlier=first).action == "lab_pass"
    again = receipt(compared(manifest_of(120), outcome), policy, earlier=first)
    assert again.exit_status == 12
    assert unmet(again) == [component]


def test_an_earlier_receipt_expires_at_its_own_time(policy_file: WritePolicy) -> None:
    policy = policy_file()
    first = receipt(PASSES, policy)
    again = receipt(PASSES, policy, datetime(2026, 12, 1, tzinfo=UTC), first)
    assert again.exit_status == 12
    assert "receipt" in unmet(again)


def test_a_changed_receipt_is_refused(policy_file: WritePolicy) -> None:
    policy = policy_file(prerequisites=[{"name": "tool_boundary"}])
    forged = receipt(PASSES, policy).model_copy(update={"action": "lab_pass"})
    with pytest.raises(BadReceipt, match="was changed"):
        check_receipt(forged)
    with pytest.raises(BadReceipt):
        receipt(PASSES, policy, earlier=forged)


def test_the_receipt_names_every_component(policy_file: WritePolicy) -> None:
    plan = SlicePlan(version=1, name="all", cases={f"case-{n}": {"all": "yes"} for n in range(120)})
    made = receipt(compared(manifest_of(120, slice_plan=plan)), policy_file())
    assert sorted(made.components) == [
        f"agent {BASELINE}", f"agent {CANDIDATE}", "cases", "decision", "evidence", "graders", "manifest", "policy",
        "prerequisite tool_boundary", "simulator", "slice_plan", "statistics", "tests",
    ]  # fmt: skip


# The rule


@pytest.mark.parametrize(
    ("field", "looser", "stricter"),
    [("margin", "0.031", "0.03"), ("confidence", "0.94", "0.95"), ("minimum_clusters", 29, 30)],
)
def test_a_policy_looser_than_the_manifest_is_refused(
    field: str, looser: Any, stricter: Any, policy_file: WritePolicy
) -> None:
    with pytest.raises(FileError, match=f"{field}: .* is looser than the registered"):
        receipt(PASSES, policy_file(**{field: looser}))
    assert receipt(PASSES, policy_file(**{field: stricter})).action == "lab_pass"


def test_a_stricter_policy_decides_by_its_own_rule(policy_file: WritePolicy) -> None:
    made = receipt(PASSES, policy_file(margin="0.02"))
    assert (made.margin, made.action) == (0.02, "hold")
    made = receipt(PASSES, policy_file(minimum_clusters=121))
    assert (made.action, made.results[0].lower) == ("hold", None)


def halves(required: list[str]) -> SlicePlan:
    labels = {f"case-{n}": {"half": "first" if n < 120 else "second"} for n in range(240)}
    return SlicePlan(version=1, name="halves", cases=labels, required=required)


def test_a_required_slice_is_compared_like_the_whole(policy_file: WritePolicy) -> None:
    policy = policy_file()
    worse = regressed(*range(60, 90))
    free = receipt(compared(manifest_of(240, slice_plan=halves([]))), policy)
    assert [one.name for one in free.results] == ["comparison"]
    both = halves(["half=first", "half=second"])
    passing = receipt(compared(manifest_of(240, slice_plan=both)), policy)
    assert (passing.action, [one.verdict for one in passing.results]) == ("lab_pass", ["non_inferior"] * 3)
    failing = receipt(compared(manifest_of(240, slice_plan=both), worse), policy)
    assert (failing.action, failing.level) == ("block", "evidence_ready")
    assert "slice half=first" in unmet(failing)


def test_a_small_required_slice_makes_it_inconclusive(policy_file: WritePolicy) -> None:
    labels = {f"case-{n}": {"rare": "yes" if n == 0 else "no"} for n in range(120)}
    plan = SlicePlan(version=1, name="rare", cases=labels, required=["rare=yes"])
    made = receipt(compared(manifest_of(120, slice_plan=plan)), policy_file())
    assert (made.action, made.results[1].verdict, made.results[1].lower) == ("hold", None, None)


def test_trials_taken_over_hold(policy_file: WritePolicy) -> None:
    found = compared(manifest_of(120), lambda _, case, __: {"reused": True} if case == 3 else {})
    made = receipt(found, policy_file())
    assert (made.action, made.level) == ("hold", "evidence_ready")


@pytest.mark.parametrize("repetitions", [1, 3])
def test_an_odd_number_of_repetitions_is_no_comparison(repetitions: int, policy_file: WritePolicy) -> None:
    with pytest.raises(NotComparable, match="odd"):
        receipt(compared(manifest_of(4, repetitions=repetitions)), policy_file())


def test_another_baseline_or_a_third_condition_is_no_comparison(policy_file: WritePolicy) -> None:
    with pytest.raises(NotComparable, match="two conditions"):
        receipt(compared(manifest_of(4), baseline=CANDIDATE), policy_file())


# Files


def test_the_packaged_policy_has_its_two_prerequisites_unmet() -> None:
    made = receipt(compared(manifest_of(4, customers=1), lambda *_: failed()), PACKAGED)
    assert status(made) == ("locked", "block", "none", 11)
    assert [(one.name, one.met) for one in made.reasons if one.part == "prerequisite"] == [
        ("tool_boundary", False),
        ("semantic_multi_order", False),
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"expires": "tomorrow"}, "is no instant"),
        ({"expires": "2027-01-01T00:00:00"}, "says no time zone"),
        ({"expires": "9999-12-31T23:59:59-23:59"}, "outside of the years"),
        ({"expires": "2026-01-01T00:00:00Z"}, "must come after not_before"),
        ({"expires": None}, "expires"),
        ({"prerequisites": None}, "prerequisites"),
        ({"prerequisites": [{"name": "a"}, {"name": "a"}]}, "'a' is named twice"),
        ({"least_coverage": "1.1"}, "from 0 to 1"),
        ({"least_isolation": "none"}, "least_isolation"),
        ({"margins": "0.1"}, "margins"),
    ],
)
def test_a_bad_policy_is_refused_with_what_is_wrong(
    changes: dict[str, Any], problem: str, policy_file: WritePolicy
) -> None:
    with pytest.raises(FileError, match=problem):
        load_policy(policy_file(**changes), NOW)


def test_a_receipt_is_written_as_the_golden_file_has_it(policy_file: WritePolicy) -> None:
    made = receipt(compared(manifest_of(4, customers=1), regressed(0)), policy_file())
    document = json.loads(made.document())
    assert Receipt.model_validate_json(made.document()) == made
    # Hashes change with our own sources: here their places count, not their values.
    document["components"] = sorted(document["components"])
    document["receipt_hash"] = "sha256"
    assert document == json.loads(GOLDEN.read_text())
