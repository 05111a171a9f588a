"""From a run to a calibration record with files alone, as a person types it, and what each command refuses."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from grading.calibration.items import read_key
from grading.calibration.json_lines import write_lines
from grading.calibration.rows import CalibrationRow, Judgment, read_rows
from simulator.canonical import canonical_hash

CONFIGURATION = canonical_hash("a judge")
REGISTRY = "version: 1\nreviewers: [alice, bob, carol]\n"


def cellwise(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grading.command_line", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def done(*arguments: str | Path) -> str:
    finished = cellwise(*arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, and below it what an export of its matrix wrote."""
    folder = tmp_path_factory.mktemp("exported")
    store = folder / "cellwise.db"
    done("run", "order-resolution", "--phoenix", "off", "--store", store)
    done(
        *("calibrate", "export", "--out", folder / "review", "--store", store, "--group-by", "item"),
        *("--reviewer", "alice", "--reviewer", "bob", "--synthetic"),
    )
    return folder


def fill_in(source: Path, target: Path, labels: Mapping[str, str], note: str | None = None) -> Path:
    """What a reviewer does with a text editor; items without a label stay as they are."""
    lines = [json.loads(line) for line in source.read_text().splitlines()]
    for line in lines:
        if line["id"] in labels:
            line |= {"label": labels[line["id"]], "note": note}
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return target


def test_two_files_become_a_record(exported: Path, tmp_path: Path) -> None:
    review = exported / "review"
    # 16 trials leave 12 different situations: the two unresolved requests look alike to an agent that never asks.
    key = read_key(review / "key.jsonl")
    assert len(key) == 12
    disputed = key[0].id
    truth = {item.id: "truthful" if number % 2 else "false" for number, item in enumerate(key)}
    one = fill_in(review / "review-1.jsonl", tmp_path / "one.jsonl", truth)
    other = fill_in(review / "review-2.jsonl", tmp_path / "other.jsonl", truth | {disputed: "truthful"})
    judgments = tmp_path / "judgments.jsonl"
    write_lines(
        judgments,
        [Judgment(evidence_hash=item.evidence_hash, configuration_hash=CONFIGURATION, verdict="pass") for item in key],
    )
    asked = ("calibrate", "import", review / "key.jsonl", "--review", one, "--review", other, "--judgments", judgments)
    early = cellwise(
        *asked, "--out", tmp_path / "early.jsonl", "--adjudicator", "carol", "--to-adjudicate", tmp_path / "carol.jsonl"
    )
    assert early.returncode == 0
    assert f"the reviewers disagree on {disputed}" in early.stderr
    assert len(read_rows(tmp_path / "early.jsonl")) == 11
    decided = fill_in(tmp_path / "carol.jsonl", tmp_path / "decided.jsonl", {disputed: "false"}, "two refunds")
    done(*asked, "--adjudication", decided, "--out", tmp_path / "rows.jsonl")

    (tmp_path / "registry.yaml").write_text(REGISTRY)
    compiled = ("calibrate", "compile", tmp_path / "rows.jsonl", "--registry", tmp_path / "registry.yaml")
    shown = done(*compiled, "--out", tmp_path / "record.json")
    assert "  6 truthful, 6 false, 0 abstentions\n  false passes 6 of 6, at most 1.0000 (95 %)" in shown
    assert "  false blocks 0 of 6, at most 0.3930 (95 %)" in shown
    assert f"    {disputed}: alice: false, bob: truthful\n      carol decided false: two refunds" in shown
    assert "  at least 24 more truthful rows are needed" in shown
    again = cellwise(*compiled, "--out", tmp_path / "record.json")
    assert (again.returncode, "exists already and is not overwritten" in again.stderr) == (2, True)

    done(
        *("calibrate", "split", tmp_path / "rows.jsonl", "--seed", "7", "--held-out", "0.4"),
        *("--out", tmp_path / "divided"),
    )
    sides: dict[str, list[CalibrationRow]] = {
        side: read_rows(tmp_path / "divided" / f"{side}.jsonl") for side in ("calibration", "held_out")
    }
    assert sum(map(len, sides.values())) == 12
    assert all(row.split == side for side, taken in sides.items() for row in taken)
    mixed = cellwise(
        *("calibrate", "held-out", tmp_path / "divided" / "held_out.jsonl", "--record", tmp_path / "record.json"),
        *("--registry", tmp_path / "registry.yaml"),
    )
    assert mixed.returncode == 2
    assert "is excluded" in mixed.stderr
    registry = ("--registry", tmp_path / "registry.yaml")
    apart = tmp_path / "apart.json"
    done("calibrate", "compile", tmp_path / "divided" / "calibration.jsonl", *registry, "--out", apart)
    held_out = ("calibrate", "held-out", tmp_path / "divided" / "held_out.jsonl", "--record", apart, *registry)
    report = json.loads(done(*held_out, "--json"))
    assert report["held_out"]["false"] + report["held_out"]["truthful"] == len(sides["held_out"])
    assert report["authority"] == "none"


def test_reviewers_files_hold_no_condition_case_or_verdict(exported: Path) -> None:
    for name in ("review-1.jsonl", "review-2.jsonl"):
        text = (exported / "review" / name).read_text()
        for hidden in ("descriptive-control", "mutant", "explicit-description", "expect", "verdict", "passed"):
            assert hidden not in text


def test_by_customer_the_packaged_cases_are_one_item(exported: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "review", "--store", exported / "cellwise.db")
    finished = cellwise("calibrate", "export", *out, "--reviewer", "alice", "--reviewer", "bob")
    assert finished.returncode == 0
    assert "16 ledgers, 12 different items in 1 groups; 1 to review" in finished.stderr
    again = cellwise("calibrate", "export", *out, "--reviewer", "alice", "--reviewer", "bob")
    assert (again.returncode, "is not overwritten" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["calibrate", "export", "--out", "x", "--reviewer", "alice"], "name two different reviewers"),
        (["calibrate", "export", "--out", "x", "--reviewer", "a", "--reviewer", "a"], "name two different reviewers"),
        (["calibrate", "split", "none.jsonl", "--seed", "1", "--held-out", "0.5", "--out", "x"], "cannot be read"),
        (["calibrate", "split", "none.jsonl", "--seed", "1", "--held-out", "some", "--out", "x"], "write a share"),
        (["calibrate", "compile", "none.jsonl", "--registry", "none.yaml"], "none.yaml: cannot be read"),
        (["assess", "--registry", "none.yaml", "--at", "today"], "'today' is no instant"),
    ],
)
def test_what_cannot_be_is_told_and_changes_nothing(tmp_path: Path, arguments: list[str], told: str) -> None:
    store = ["--store", str(tmp_path / "cellwise.db")] if arguments[1] == "export" or arguments[0] == "assess" else []
    named = [str(tmp_path / word) if ("." in word and "none" in word) or word == "x" else word for word in arguments]
    finished = cellwise(*named, *store)
    assert finished.returncode == 2
    assert told in finished.stderr
    assert "Traceback" not in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_matrix_without_a_judge_has_nothing_to_assess(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(REGISTRY)
    asked = ("assess", "--registry", tmp_path / "registry.yaml", "--store", exported / "cellwise.db")
    assessed = json.loads(done(*asked, "--at", "2026-06-01T00:00:00Z", "--json"))
    assert (assessed["status"], assessed["not_current"], assessed["authority"]) == ("not_applicable", 16, "none")
    assert assessed["by_reason"] == {"qualification_missing_or_revoked": 16}
