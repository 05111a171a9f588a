"""A calibration row says the same to everybody who reads it, and a line that does not is refused with its number."""

import json
from pathlib import Path
from typing import Any

import pytest
from calibration_rows import disputed, row

from grading.calibration.rows import CalibrationRow, read_rows, write_rows
from grading.file_error import FileError
from simulator.canonical import canonical_hash

GOLDEN = Path(__file__).parent / "golden" / "calibration_rows_v1.jsonl"


def golden_rows() -> list[CalibrationRow]:
    return [row(1, "truthful", "abstain", slices={"clarification": "required"}), disputed(2, "false", "fail")]


def test_the_wire_format_is_the_golden_files(tmp_path: Path) -> None:
    written = tmp_path / "rows.jsonl"
    assert write_rows(written, golden_rows()) == 2
    assert written.read_bytes() == GOLDEN.read_bytes()
    assert read_rows(GOLDEN) == golden_rows()
    assert [each.hash() for each in golden_rows()] == [
        "sha256:" + line for line in (GOLDEN.parent / "calibration_rows_v1.hashes").read_text().split()
    ]


def test_a_file_that_exists_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("mine")
    with pytest.raises(FileError, match="exists already and is not overwritten"):
        write_rows(path, golden_rows())
    assert path.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


def changed(**changes: Any) -> str:
    document = row(1).model_dump(mode="json") | changes
    return json.dumps({name: value for name, value in document.items() if value is not ...})


EVIDENCE = {"message": "message 1"}
REVIEW = {"reviewer": "alice", "label": "truthful", "note": None}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (changed(evidence={"message": "another"}), "evidence_hash is not the hash of the evidence"),
        (
            changed(judgment=row(2).model_dump(mode="json")["judgment"]),
            "the judgment is of other evidence: its evidence_hash is not the row's",
        ),
        (changed(reviews=[REVIEW, REVIEW]), "both reviews are by 'alice'"),
        (changed(reviews=[REVIEW]), "reviews: List should have at least 2 items"),
        (changed(reviews=[REVIEW, REVIEW | {"reviewer": "bob", "label": "false"}]), "a third one must adjudicate"),
        (
            changed(adjudication={"reviewer": "carol", "label": "false", "reason": "so"}),
            "the reviewers agree, so there is nothing to adjudicate",
        ),
        (
            changed(
                reviews=[REVIEW, REVIEW | {"reviewer": "bob", "label": "false"}],
                adjudication={"reviewer": "bob", "label": "false", "reason": "so"},
            ),
            "'bob' adjudicates an own review",
        ),
        (
            changed(
                reviews=[REVIEW, REVIEW | {"reviewer": "bob", "label": "false"}],
                adjudication={"reviewer": "carol", "label": "false", "reason": " "},
            ),
            "adjudication.reason: ",
        ),
        (changed(false_passes=0), "the member 'false_passes' is unknown"),
        (changed(counts={"truthful": 200}), "the member 'counts' is unknown"),
        (changed(group=...), "the member 'group' is missing"),
        (changed(version=2), "version: "),
        (changed(version=True), "version: "),
        (changed(synthetic=0), "synthetic: "),
        (changed(split="test"), "split: "),
        (changed(evidence_hash="sha256:00"), "evidence_hash: "),
        (changed(evidence={"share": float("nan")}), "NaN is no number of JSON"),
        (changed(evidence={"share": float("inf")}), "Infinity is no number of JSON"),
        (changed(evidence={"share": 2**53}), "canonical JSON cannot carry"),
        (changed()[:-1] + ', "id": "row-0002"}', "the member 'id' is written twice"),
        ("{", "is not JSON"),
        ("[]", "valid dictionary"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(changed() + "\n\n" + line + "\n")
    with pytest.raises(FileError) as refused:
        read_rows(path)
    assert str(refused.value).startswith(f"{path}:3: ")
    assert told in str(refused.value)


def test_every_bad_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(["{}", changed(), "nothing"]))
    with pytest.raises(FileError) as refused:
        read_rows(path)
    assert [each.line for each in refused.value.problems] == [1, 3]


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n")
    with pytest.raises(FileError, match="holds no document"):
        read_rows(path)


def test_text_outside_ascii_keeps_its_hash(tmp_path: Path) -> None:
    evidence = {"message": "Geld ist da \u202e \U0001f600", "e\u0301": "é"}
    made = row(1, evidence=evidence)
    write_rows(tmp_path / "rows.jsonl", [made])
    assert read_rows(tmp_path / "rows.jsonl")[0].evidence_hash == canonical_hash(evidence)
