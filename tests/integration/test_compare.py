"""From a run to a decision, through the command line: the packaged figures on both databases."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from grading.studies import find_study
from tests.integration.command import cellwise

SLICES = """\
version: 1
name: clarifications
cases:
  explicit-description: {clarification: not required, target: known}
  ambiguous-description: {clarification: required, target: known}
  customer-correction: {clarification: not required, target: known}
  unresolved-description: {clarification: required, target: unresolved}
required: [clarification=required]
"""


def write_comparison(folder: Path, name: str, candidate: str, extra: str = "") -> Path:
    """A comparison of the packaged cases: the control against a candidate."""
    shutil.copy(find_study("order-resolution").parent / "cases.yaml", folder / "cases.yaml")
    (folder / "slices.yaml").write_text(SLICES)
    path = folder / f"{name}.yaml"
    path.write_text(
        f"""\
version: 1
name: {name}
cases: cases.yaml
conditions:
  - {{name: baseline, agent: descriptive-control}}
  - {{name: candidate, agent: {candidate}}}
baseline: baseline
repetitions: 2
order: strict
measurement_profile:
  synthetic: {{latency_ms: 250, cost: 0.08}}
{extra}"""
    )
    return path


def test_a_run_is_compared_sliced_decided_and_reported(store_url: str, tmp_path: Path) -> None:
    matrix = write_comparison(tmp_path, "first-record", "first-record-mutant", "slice_plan: slices.yaml\n")
    cellwise("run", str(matrix), "--phoenix", "off", store=store_url, cwd=tmp_path)
    told = cellwise("compare", "--json", "--junit", "out.xml", "--markdown", "out.md", store=store_url, cwd=tmp_path)
    document = json.loads(told.stdout)
    assert document["coverage"] == {"observed": 16, "planned": 16}
    rows = {one["condition"]: one for one in document["conditions"]}
    assert {
        name: (one["contract"]["passed"], one["completed"]["passed"], one["wrong_order_commits"])
        for name, one in rows.items()
    } == {"baseline": (8, 6, 0), "candidate": (2, 3, 5)}
    assert rows["candidate"]["unqualified_messages"] == 8
    assert sum(one["cost"]["complete_micro_dollars"] for one in rows.values()) == 1_280_000
    assert rows["candidate"]["latency_ms"] == {"known": 8, "unknown": 0, "p50": 250, "p95": 250}
    (candidate,) = document["candidates"]
    assert (candidate["regressed"], candidate["fixed"], candidate["verdict"]) == (6, 0, "inconclusive")
    assert candidate["order"]["in_planned_order"] == candidate["order"]["pairs"] == 8
    slices = candidate["slices"]
    assert (slices["registered"], slices["action"]) == (True, "hold")
    assert {one["slice"]: (one["baseline"]["passed"], one["of_candidate"]["passed"]) for one in slices["slices"]} == {
        "clarification=not required": (4, 2),
        "clarification=required": (4, 0),
        "target=known": (6, 2),
        "target=unresolved": (2, 0),
    }
    assert [one["slice"] for one in slices["slices"] if one["required"]] == ["clarification=required"]
    assert ElementTree.parse(tmp_path / "out.xml").getroot()[0].get("failures") == "4"
    assert (tmp_path / "out.md").read_text().startswith("## first-record ")

    decided = cellwise(
        "decide", "first-record", "--policy", "packaged", "--json", store=store_url, cwd=tmp_path, check=11
    )
    receipt = json.loads(decided.stdout)
    assert (receipt["level"], receipt["action"], receipt["authority"]) == ("locked", "block", "none")
    (tmp_path / "receipt.json").write_text(decided.stdout)
    again = cellwise(
        "decide", "first-record", "--policy", "packaged", "--receipt", "receipt.json", "--at", "2100-01-01T00:00:00Z",
        store=store_url, cwd=tmp_path, check=12,
    )  # fmt: skip
    assert "expired / block / none" in again.stdout

    cellwise("report", "-o", "report.html", store=store_url, cwd=tmp_path)
    assert "inconclusive" in (tmp_path / "report.html").read_text()
    diff = json.loads(cellwise("diff", "1", "1", "--json", store=store_url, cwd=tmp_path).stdout)
    assert diff["trials"]["reused"] == 16


@pytest.mark.parametrize(("candidate", "regressed"), [("false-settlement-mutant", 0), ("descriptive-control", 0)])
def test_candidates_that_only_say_something_else_equal_the_baseline(
    candidate: str, regressed: int, tmp_path: Path
) -> None:
    matrix = write_comparison(tmp_path, "same", candidate)
    store = str(tmp_path / "store.db")
    cellwise("run", str(matrix), "--phoenix", "off", store=store, cwd=tmp_path)
    told = cellwise("compare", "--json", "--slices", "slices.yaml", store=store, cwd=tmp_path)
    (found,) = json.loads(told.stdout)["candidates"]
    assert found["regressed"] == regressed
    assert (found["slices"]["registered"], [one["required"] for one in found["slices"]["slices"]]) == (
        False,
        [False] * 4,
    )
    assert [
        f"{one['of_candidate']['passed']}/{one['of_candidate']['planned']}" for one in found["slices"]["slices"]
    ] == ["4/4", "4/4", "6/6", "2/2"]


def test_a_diff_tells_what_was_taken_over_and_what_was_run_again_and_why(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    first = write_comparison(tmp_path, "study", "first-record-mutant")
    cellwise("run", str(first), "--phoenix", "off", store=store, cwd=tmp_path)
    second = write_comparison(tmp_path, "study", "false-settlement-mutant")
    cellwise("run", str(second), "--phoenix", "off", "--reuse", "1", store=store, cwd=tmp_path)
    diff = json.loads(cellwise("diff", "1", "2", "--json", store=store, cwd=tmp_path).stdout)
    assert {fate: count for fate, count in diff["trials"].items() if count} == {"reused": 8, "rerun": 8}
    assert diff["why"] == [
        {
            "fate": "rerun",
            "reason": "the sources of candidate changed, the settings of candidate changed",
            "trials": 8,
        }
    ]
    assert diff["verdicts"] == [{"condition": "candidate", "before": "failed", "now": "passed", "trials": 6}]
    compared = json.loads(cellwise("compare", "2", "--json", store=store, cwd=tmp_path).stdout)
    assert compared["exploratory"] == ["8 trials were taken over from another matrix"]


def test_an_incomplete_matrix_says_so_first_and_by_its_exit_status(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    matrix = write_comparison(tmp_path, "half", "first-record-mutant")
    only = ("--only", "condition=baseline")
    cellwise("run", str(matrix), "--phoenix", "off", *only, store=store, cwd=tmp_path, check=4)
    told = cellwise("compare", store=store, cwd=tmp_path, check=4).stdout
    assert told.splitlines()[2:4] == ["Coverage: INCOMPLETE", "  8 of 16 trials have a verdict (50 %): 8 unfinished"]
    cellwise("report", store=store, cwd=tmp_path, check=4)
    assert "Coverage: INCOMPLETE" in (tmp_path / "report.html").read_text()


def test_no_file_is_overwritten_and_bad_input_changes_nothing(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    matrix = write_comparison(tmp_path, "study", "descriptive-control")
    cellwise("run", str(matrix), "--phoenix", "off", store=store, cwd=tmp_path)
    (tmp_path / "kept").write_text("mine")
    for arguments in (("compare", "--junit", "kept"), ("compare", "--markdown", "kept"), ("report", "-o", "kept")):
        refused = cellwise(*arguments, store=store, cwd=tmp_path, check=2)
        assert refused.stderr == "cellwise: kept exists already: nothing was written; --force replaces it\n"
        assert (refused.stdout, (tmp_path / "kept").read_text()) == ("", "mine")
    cellwise("compare", "--junit", "kept", "--force", store=store, cwd=tmp_path)
    assert (tmp_path / "kept").read_text().startswith("<?xml")
    refused = cellwise("compare", "--baseline", "basline", store=store, cwd=tmp_path, check=2)
    assert (
        refused.stderr
        == "cellwise: study has no condition basline: did you mean 'baseline'? (known: baseline, candidate)\n"
    )
    (tmp_path / "slices.yaml").write_text(SLICES.replace("  customer-correction", "  customer-corection"))
    refused = cellwise("compare", "--slices", "slices.yaml", store=store, cwd=tmp_path, check=2)
    assert "slices.yaml:6: cases.customer-corection: the matrix has no such case" in refused.stderr
    refused = cellwise("decide", "study", "--policy", "nowhere.yaml", store=store, cwd=tmp_path, check=2)
    assert "nowhere.yaml" in refused.stderr
    assert not list(tmp_path.glob(".*.*")), "no partial file is left"


def test_a_slice_plan_that_does_not_fit_keeps_a_matrix_from_running(tmp_path: Path) -> None:
    matrix = write_comparison(tmp_path, "study", "descriptive-control", "slice_plan: slices.yaml\n")
    (tmp_path / "slices.yaml").write_text(SLICES.replace("[clarification=required]", "[clarification=maybe]"))
    refused = cellwise("run", str(matrix), "--phoenix", "off", store=str(tmp_path / "s.db"), cwd=tmp_path, check=2)
    assert "no case is labelled clarification=maybe" in refused.stderr
    assert not (tmp_path / "s.db").exists()


def test_power_says_how_many_customers_are_needed(tmp_path: Path) -> None:
    told = cellwise("power", "--worse", "0", "--better", "0", "--json", store="unused", cwd=tmp_path)
    assert json.loads(told.stdout)["customers"] == 99
    refused = cellwise("power", "--worse", "0.1", "--better", "0", store="unused", cwd=tmp_path, check=2)
    assert "no number of customers can show otherwise" in refused.stderr
