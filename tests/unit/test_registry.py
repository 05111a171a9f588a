"""An operator's registry decides whose word counts, and a record that is not the one it trusts is never used."""

from collections.abc import Callable
from pathlib import Path

import pytest
from calibration_rows import CONFIGURATION, REVIEWERS, SCOPE, rows

from grading.calibration.assessment import StoredJudgment, assess
from grading.calibration.record import compile_record, write_record
from grading.calibration.registry import Registry, microseconds
from grading.calibration.rows import write_rows
from grading.file_error import FileError

NOW = microseconds("2026-06-01T00:00:00Z")
HASH = compile_record(rows(2, 2), scope=SCOPE, reviewers=REVIEWERS).hash
STUDY = f"""\
version: 1
reviewers: [alice, bob, carol]
policy: {{minimum_truthful: 2, minimum_false: 2, false_pass_upper: 0.80, false_block_upper: 0.80}}
records:
  - hash: {HASH}
    rows: rows.jsonl
    scope: {{criterion: {SCOPE.criterion}, policy_version: {SCOPE.policy_version}, world: {SCOPE.world}}}
    valid_from: 2026-01-01T00:00:00Z
    valid_until: 2027-01-01T00:00:00Z
"""


@pytest.fixture
def load(write: Callable[[str, str], Path]) -> Callable[[str], Registry]:
    def loaded(text: str) -> Registry:
        path = write("registry.yaml", text)
        beside = path.parent / "rows.jsonl"
        if not beside.exists():
            write_rows(beside, rows(2, 2))
        return Registry.load(path)

    return loaded


def test_a_record_is_compiled_again_from_its_rows(load: Callable[[str], Registry]) -> None:
    registry = load(STUDY)
    assert registry.check(HASH, NOW, SCOPE, CONFIGURATION) is None
    assert registry.check(HASH, microseconds("2027-01-01T00:00:00Z"), SCOPE, CONFIGURATION) == (
        "qualification_not_current"
    )


def test_or_read_from_its_own_file(load: Callable[[str], Registry], tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", compile_record(rows(2, 2), scope=SCOPE, reviewers=REVIEWERS))
    lines = [line for line in STUDY.splitlines() if "scope:" not in line]
    registry = load("\n".join(lines).replace("rows: rows.jsonl", "record: record.json"))
    assert registry.check(HASH, NOW, SCOPE, CONFIGURATION) is None


@pytest.mark.parametrize("calibration", [None, "sha256:" + "0" * 64])
def test_what_is_not_registered_does_not_count(load: Callable[[str], Registry], calibration: str | None) -> None:
    assert load(STUDY).check(calibration, NOW, SCOPE, CONFIGURATION) == "qualification_missing_or_revoked"


def test_a_revoked_record_counts_until_it_was_revoked(load: Callable[[str], Registry]) -> None:
    registry = load(STUDY + "    revoked: {at: 2026-06-01T00:00:00Z, reason: the labels were guessed}\n")
    assert registry.check(HASH, NOW - 1, SCOPE, CONFIGURATION) is None
    assert registry.check(HASH, NOW, SCOPE, CONFIGURATION) == "qualification_missing_or_revoked"


def test_what_decides_has_one_hash_that_follows_the_registry(load: Callable[[str], Registry]) -> None:
    calibration = load(STUDY).calibration(HASH)
    assert calibration.check(NOW, SCOPE, CONFIGURATION) is None
    assert load(STUDY + "# a remark\n").calibration(HASH).inputs_hash == calibration.inputs_hash
    changes = ["    policy: {minimum_truthful: 1}\n", "    revoked: {at: 2026-06-01T00:00:00Z, reason: guessed}\n"]
    others = {load(STUDY + change).calibration(HASH).inputs_hash for change in changes}
    others |= {
        load(STUDY.replace("2027", "2028")).calibration(HASH).inputs_hash,
        load(STUDY).calibration(None).inputs_hash,
    }
    assert len(others | {calibration.inputs_hash}) == 5


def test_an_entrys_policy_stands_in_place_of_the_registrys(load: Callable[[str], Registry]) -> None:
    registry = load(STUDY + "    policy: {minimum_truthful: 30}\n")
    assert registry.check(HASH, NOW, SCOPE, CONFIGURATION) == "insufficient_calibration_examples"


def test_the_default_policy_is_the_strict_one(load: Callable[[str], Registry]) -> None:
    policy = load("version: 1\n").policy
    assert policy.model_dump() == {
        "minimum_truthful": 30,
        "minimum_false": 59,
        "false_pass_upper": "0.05",
        "false_block_upper": "0.10",
        "abstentions": "0.10",
        "synthetic_permitted": False,
    }


@pytest.mark.parametrize(
    ("before", "after", "line", "told"),
    [
        (HASH, "sha256:" + "1" * 64, 5, f"the record found there is {HASH}: it is not the one trusted"),
        ("[alice, bob, carol]", "[alice]", 6, "'bob' is not among the trusted reviewers"),
        ("records:", "excluded: {groups: [customer-1]}\nrecords:", 7, "its group 'customer-1' is excluded"),
        ("policy_version: policy-1", "policy_version: policy-2", 6, "is of another scope"),
        ("2027-01-01T00:00:00Z", "2027-01-01", 9, "says no time zone"),
        ("2027-01-01T00:00:00Z", "next year", 9, "is no instant such as"),
        ("2027-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 5, "valid_from must be before valid_until"),
        ("false_pass_upper: 0.80", "false_pass_upper: 1.80", 3, "must be between 0 and 1"),
        ("minimum_false: 2", "minimum_false: 0", 3, "must be at least 1"),
        ("minimum_false", "minimum_fals", 3, "did you mean 'minimum_false'?"),
        ("    rows: rows.jsonl\n", "", 5, "name either the record's file or the file of its rows"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    load: Callable[[str], Registry], before: str, after: str, line: int, told: str
) -> None:
    assert before in STUDY
    with pytest.raises(FileError) as refused:
        load(STUDY.replace(before, after))
    assert told in str(refused.value)
    assert f"registry.yaml:{line}:" in str(refused.value)


def test_a_record_of_held_out_rows_qualifies_nothing(load: Callable[[str], Registry], tmp_path: Path) -> None:
    record = compile_record(rows(2, 2, split="held_out"), scope=SCOPE, reviewers=REVIEWERS, split="held_out")
    write_record(tmp_path / "record.json", record)
    lines = [line for line in STUDY.splitlines() if "scope:" not in line]
    with pytest.raises(FileError, match="held-out rows: it reports on a judge and qualifies none"):
        load("\n".join(lines).replace("rows: rows.jsonl", "record: record.json").replace(HASH, record.hash))


def judged(number: int, *, qualified: bool = True, calibration: str | None = HASH) -> StoredJudgment:
    reason = None if qualified else "qualification_not_current"
    return StoredJudgment(f"trial-{number}", qualified, calibration, CONFIGURATION, SCOPE, NOW - 5, reason)


def test_sixteen_judgments_under_a_record_that_counts_are_current(load: Callable[[str], Registry]) -> None:
    assessment = assess([judged(number) for number in range(16)], load(STUDY), NOW)
    assert (assessment.status, assessment.not_current) == ("current", 0)
    assert assessment.to_json()["authority"] == "none"


def test_revoking_it_leaves_none_of_them(load: Callable[[str], Registry]) -> None:
    registry = load(STUDY + "    revoked: {at: 2026-05-01T00:00:00Z, reason: the labels were guessed}\n")
    assessment = assess([judged(number) for number in range(16)], registry, NOW)
    assert (assessment.status, assessment.not_current) == ("not_current", 16)
    assert assessment.by_reason == {"qualification_missing_or_revoked": 16}


def test_where_no_calibrated_judge_was_asked_there_is_nothing_to_assess(load: Callable[[str], Registry]) -> None:
    unjudged = [StoredJudgment(f"trial-{number}", False, None, None, None, None) for number in range(16)]
    assessment = assess(unjudged, load(STUDY), NOW)
    assert (assessment.status, assessment.not_current) == ("not_applicable", 16)


def test_a_judgment_that_did_not_count_then_does_not_come_to_count(load: Callable[[str], Registry]) -> None:
    assessment = assess([judged(1), judged(2, qualified=False)], load(STUDY), NOW)
    assert assessment.status == "not_current"
    assert [one.reason for one in assessment.trials] == [None, "qualification_not_current"]


def test_the_packaged_studys_registry_trusts_its_own_four_rows() -> None:
    import grading

    folder = Path(grading.__file__).parent / "studies" / "native-semantic"
    registry = Registry.load(folder / "registry.yaml")
    (qualification,) = registry.qualifications.values()
    counts = qualification.record.counts
    assert (counts.truthful, counts.false, counts.false_passes, counts.false_blocks, counts.abstentions) == (
        2,
        2,
        0,
        0,
        0,
    )
    assert round(counts.false_pass_upper, 4) == 0.7764
    assert qualification.record.synthetic_rows == 4
    record = qualification.record
    assert registry.check(record.hash, NOW, record.scope, record.configuration_hash) is None
    assert microseconds("2026-06-01T02:00:00+02:00") == NOW
