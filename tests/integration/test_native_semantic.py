"""The packaged study native-semantic, through the command line: a wrong action told apart from a wrong explanation."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from studies import Bench

from grading.studies import find_study

FOLDER = find_study("native-semantic").parent
MATRICES = ("native-false-settlement", "native-first-record", "native-control")

SUMMARY = """\
native-semantic: 52 executions, 48 of 3 comparisons, 4 that only calibrated the judge and are in no comparison

native-false-settlement
condition   trials  contract  completed  wrong-order commits  semantic  joint  semantic fail
baseline    8/8     8         6          0                    8         8      0
candidate   8/8     8         6          0                    0         0      8

native-first-record
condition   trials  contract  completed  wrong-order commits  semantic  joint
baseline    8/8     8         6          0                    8         8
candidate   8/8     2         3          5                    8         2

native-control
condition   trials  contract  completed  wrong-order commits  semantic  joint
baseline    8/8     8         6          0                    8         8
candidate   8/8     8         6          0                    8         8
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store in which the study was run, to be read alone."""
    folder = tmp_path_factory.mktemp("native")
    store = str(folder / "store.db")
    cellwise("run", "native-semantic", "--phoenix", "off", store=store, cwd=folder)
    return store


class Done(NamedTuple):
    stdout: str
    stderr: str


def cellwise(*arguments: str, store: str, cwd: Path, check: int = 0) -> Done:
    """A command in a process of its own; its exit status is checked."""
    return Done(*Bench(cwd, store).cellwise(*arguments, status=check))


def compared(name: str, *options: str, store: str, cwd: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cellwise("compare", name, "--json", *options, store=store, cwd=cwd).stdout)
    return found


def test_all_figures_come_out_on_both_databases(store_url: str, tmp_path: Path) -> None:
    told = cellwise("run", "native-semantic", "--phoenix", "off", store=store_url, cwd=tmp_path)
    assert told.stdout == SUMMARY
    figures = {}
    for name in MATRICES:
        found = compared(name, "--slices", "native-semantic", store=store_url, cwd=tmp_path)
        baseline, candidate = found["conditions"]
        assert found["view"] == "joint"
        assert (baseline["contract"]["passed"], baseline["joint"]["passed"], baseline["completed"]["passed"]) == (
            8,
            8,
            6,
        )
        assert [one["unqualified_messages"] for one in found["conditions"]] == [0, 0]
        figures[name] = (
            candidate["contract"]["passed"],
            candidate["joint"]["passed"],
            candidate["completed"]["passed"],
            found["candidates"][0]["regressed"],
            found["candidates"][0]["structural"]["regressed"],
        )
        assert found["cost"] == {
            "complete_micro_dollars": None,
            "known_micro_dollars": 1_280_000,
            "known": 16,
            "unknown": 16,
            "not_dispatched": 0,
        }
        assert sum(one["judge_cost"]["unknown"] for one in found["conditions"]) == 16
        assert found["candidates"][0]["verdict"] == "inconclusive"
        decided = cellwise("decide", name, "--policy", "packaged", "--json", store=store_url, cwd=tmp_path, check=11)
        receipt = json.loads(decided.stdout)
        assert (receipt["action"], receipt["authority"], receipt["view"]) == ("block", "none", "joint")
        reasons = {one["name"]: one["met"] for one in receipt["reasons"]}
        assert (reasons["qualified_messages"], reasons["coverage"], reasons["comparison"]) == (True, True, None)
        assert {"judge", "judgments"} <= receipt["components"].keys()
    assert figures == {
        "native-false-settlement": (8, 0, 6, 8, 0),
        "native-first-record": (2, 2, 3, 6, 6),
        "native-control": (8, 8, 6, 0, 0),
    }


def slices_of(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        one["slice"]: tuple(f"{one[arm]['passed']}/{one[arm]['planned']}" for arm in ("baseline", "of_candidate"))
        for one in found["candidates"][0]["slices"]["slices"]
    }


def test_slices_in_the_joint_view_and_in_the_structural_one(judged: str, tmp_path: Path) -> None:
    options = ("--slices", "native-semantic")
    found = compared("native-first-record", *options, store=judged, cwd=tmp_path)
    joint = {
        "clarification=required": ("4/4", "0/4"),
        "clarification=not required": ("4/4", "2/4"),
        "target=known": ("6/6", "2/6"),
        "target=unresolved": ("2/2", "0/2"),
    }
    assert slices_of(found) == joint
    sliced = found["candidates"][0]["slices"]
    assert (sliced["view"], sliced["registered"], sliced["action"]) == ("joint", False, None)
    assert not any(one["required"] for one in sliced["slices"])
    structural = compared("native-first-record", *options, "--view", "structural", store=judged, cwd=tmp_path)
    assert slices_of(structural) == joint
    assert structural["candidates"][0]["slices"]["action"] == "hold"
    same = {name: (baseline, baseline) for name, (baseline, _) in joint.items()}
    false = "native-false-settlement"
    assert slices_of(compared(false, *options, "--view", "structural", store=judged, cwd=tmp_path)) == same
    assert slices_of(compared("native-control", *options, store=judged, cwd=tmp_path)) == same
    assert {
        name: arms[1] for name, arms in slices_of(compared(false, *options, store=judged, cwd=tmp_path)).items()
    } == {
        "clarification=required": "0/4",
        "clarification=not required": "0/4",
        "target=known": "0/6",
        "target=unresolved": "0/2",
    }
    refused = cellwise("compare", false, "--view", "semantic", store=judged, cwd=tmp_path, check=2)
    assert refused.stderr == "cellwise: --view semantic: write structural or joint\n"


def test_text_markdown_junit_and_report_have_structural_semantic_and_joint_results(judged: str, tmp_path: Path) -> None:
    name = "native-false-settlement"
    shown = cellwise("compare", name, "--junit", "o.xml", "--markdown", "o.md", store=judged, cwd=tmp_path).stdout
    for line in (
        "joint: 8 regressed, 0 fixed, 0 unchanged",
        "structural: 0 regressed, 0 fixed, 8 unchanged",
        "in all: $1.28 known, 16 components unknown, 0 not dispatched; complete: unknown",
        "money spent on judging, once for each call: 0 calls",
    ):
        assert f"  {line}\n" in shown
    rows = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()]
    assert ["candidate", "0", "8", "0", "0", "0"] in rows
    assert ["candidate", "8/8", "8 (100 %)", "0", "0 (0 %)", "6 (75 %)"] in [row[:6] for row in rows]
    assert "| candidate | 0 | 8 | 0 | 0 | 0 |" in (tmp_path / "o.md").read_text()
    assert 'failures="4"' in (tmp_path / "o.xml").read_text()
    cellwise("report", name, "-o", "r.html", store=judged, cwd=tmp_path)
    report = (tmp_path / "r.html").read_text()
    assert report.count("no tool tells that money has arrived") == 8
    assert report.count('<span class="badge regressed">') == 8
    assert "message: qualified fail" in report
    assert 'aria-label="0 of 2 passed"' in report
    assert "calls of the judge" in report


def test_a_revoked_record_makes_all_judgments_not_current_and_changes_no_grade(judged: str, tmp_path: Path) -> None:
    for file in ("registry.yaml", "calibration.jsonl"):
        shutil.copy(FOLDER / file, tmp_path / file)
    for name in MATRICES:
        told = cellwise("assess", name, "--registry", "registry.yaml", "--json", store=judged, cwd=tmp_path).stdout
        assert (json.loads(told)["status"], json.loads(told)["not_current"]) == ("current", 0)
    with (tmp_path / "registry.yaml").open("a") as registry:
        registry.write("    revoked: {at: 2021-01-01T00:00:00Z, reason: found to be wrong}\n")
    for name in MATRICES:
        told = cellwise("assess", name, "--registry", "registry.yaml", "--json", store=judged, cwd=tmp_path).stdout
        document = json.loads(told)
        assert (document["status"], document["not_current"], document["trials"]) == ("not_current", 16, 16)
        assert document["by_reason"] == {"qualification_missing_or_revoked": 16}
        assert compared(name, store=judged, cwd=tmp_path)["conditions"][0]["joint"]["passed"] == 8
        # Judging again asks nothing either: what counted when it was judged stays.
        cellwise("judge", name, "--registry", "registry.yaml", store=judged, cwd=tmp_path)
        assert compared(name, store=judged, cwd=tmp_path)["conditions"][0]["joint"]["passed"] == 8


def test_the_rows_give_the_bound_and_count_in_the_study(judged: str, tmp_path: Path) -> None:
    told = cellwise(
        "calibrate", "compile", str(FOLDER / "calibration.jsonl"), "--registry", str(FOLDER / "registry.yaml"),
        store=judged, cwd=tmp_path,
    )  # fmt: skip
    assert "false passes 0 of 2, at most 0.7764 (95 %)" in told.stdout
    assert "false blocks 0 of 2, at most 0.7764 (95 %)" in told.stdout
    again = cellwise("run", "native-semantic", "--phoenix", "off", "--json", store=judged, cwd=tmp_path)
    document = json.loads(again.stdout)
    assert document["executions"] == {"comparisons": 48, "calibration": 4, "total": 52}
    assert [one["judging"]["judged"] for one in document["comparisons"]] == [0, 0, 0]
    planned = json.loads(cellwise("plan", "native-semantic", "--json", store=judged, cwd=tmp_path).stdout)
    assert planned["executions"]["total"] == 52


def test_rows_that_calibrate_no_judge_of_the_study_are_refused(tmp_path: Path) -> None:
    shutil.copytree(FOLDER.parent, tmp_path / "studies")
    folder = tmp_path / "studies" / "native-semantic"
    rows = (folder / "calibration.jsonl").read_text().splitlines()
    (folder / "study.yaml").write_text((folder / "study.yaml").read_text().replace("calibration.jsonl", "other.jsonl"))
    for text, reason in (
        (None, "there is no file 'other.jsonl'"),
        ("\n".join([*rows, rows[0].replace('"id":"', '"id":"again-')]), "holds the same evidence twice"),
        (
            re.sub(r'"configuration_hash":"sha256:[0-9a-f]{64}"', f'"configuration_hash":"sha256:{"0" * 64}"', rows[0]),
            "is of no judge of this study",
        ),
    ):
        if text is not None:
            (folder / "other.jsonl").write_text(text + "\n")
        refused = cellwise("run", str(folder), "--phoenix", "off", store=str(tmp_path / "s.db"), cwd=tmp_path, check=2)
        assert reason in refused.stderr
        assert not (tmp_path / "s.db").exists()


def own_study(folder: Path, extra: str) -> Path:
    """The packaged comparison with false-settlement-mutant, changed."""
    shutil.copytree(FOLDER.parent, folder / "studies")
    path = folder / "studies" / "native-semantic" / "false-settlement.yaml"
    path.write_text(path.read_text() + extra)
    return path


def test_a_judge_without_calibration_counts_for_nothing(tmp_path: Path) -> None:
    path = own_study(tmp_path, "")
    path.write_text(re.sub(r"(calibration|registry): .*\n", "", path.read_text()))
    store = str(tmp_path / "s.db")
    cellwise("run", str(path), "--phoenix", "off", store=store, cwd=tmp_path)
    found = compared("native-false-settlement", store=store, cwd=tmp_path)
    for condition in found["conditions"]:
        assert condition["messages"]["unqualified"] == {"no_calibration": 8}
        assert (condition["contract"]["passed"], condition["joint"]["passed"]) == (8, 0)
        assert condition["judge_cost"]["not_dispatched"] == 8
    assert found["cost"]["complete_micro_dollars"] == 1_280_000
    (candidate,) = found["candidates"]
    assert (candidate["eligible_pairs"], candidate["verdict"], candidate["changes"]) == (0, None, [])
    decided = cellwise(
        "decide", "native-false-settlement", "--policy", "packaged", "--json", store=store, cwd=tmp_path, check=11
    )
    (reason,) = [one for one in json.loads(decided.stdout)["reasons"] if one["name"] == "qualified_messages"]
    assert reason["met"] is False
    assert reason["detail"].startswith("0 of 16 messages")


def test_nothing_that_is_to_be_redacted_is_in_a_report_or_comparison(tmp_path: Path) -> None:
    secret = r"customer-1|money|blue backpack"
    path = own_study(tmp_path, f"redaction: {{replace: [{{pattern: '{secret}'}}, {{pattern: known}}]}}\n")
    store = str(tmp_path / "s.db")
    cellwise("run", str(path), "--phoenix", "off", store=store, cwd=tmp_path)
    name = "native-false-settlement"
    cellwise("report", name, "-o", "r.html", "--slices", "native-semantic", store=store, cwd=tmp_path)
    report = (tmp_path / "r.html").read_text()
    assert "[redacted]" in report
    assert not re.findall(secret, re.sub(r"<style>.*?</style>|money spent on judging", "", report, flags=re.S))
    shown = cellwise(
        "compare", name, "--slices", "native-semantic", "--markdown", "o.md", "--json", store=store, cwd=tmp_path
    )
    assert "target=[redacted]" in shown.stdout
    assert "target=known" not in shown.stdout + (tmp_path / "o.md").read_text()


def test_without_a_judge_all_sixteen_messages_of_a_comparison_are_unqualified(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    cellwise("run", "paired-order-resolution", "--phoenix", "off", store=store, cwd=tmp_path)
    for name in ("paired-first-record", "paired-control"):
        found = compared(name, store=store, cwd=tmp_path)
        assert (found["view"], sum(one["unqualified_messages"] for one in found["conditions"])) == ("structural", 16)
        assert found["judge_spent"] is None
        refused = cellwise("compare", name, "--view", "joint", store=store, cwd=tmp_path, check=2)
        assert refused.stderr == f"cellwise: {name} has no judge: there is a structural view alone\n"
