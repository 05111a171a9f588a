"""Every packaged comparison runs, is exported and replays in another folder, whatever the store."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from grading import command_line
from grading.arms import NotAComparison
from grading.commands.export import export
from grading.commands.replay import replay
from grading.commands.run import run
from grading.packet_writing import NotExportable
from grading.store import Store, reading
from grading.studies import find_study
from grading.yaml_file import FileError

# Contract passes and completed tasks of the candidate; the baseline's are 8 and 6.
STUDIES = {
    "order-resolution": {"order-resolution": (2, 3)},
    "paired-order-resolution": {"paired-first-record": (2, 3), "paired-control": (8, 6)},
    "native-semantic": {
        "native-false-settlement": (8, 6),
        "native-first-record": (2, 3),
        "native-control": (8, 6),
    },
}

Run = Callable[..., Any]


@pytest.fixture
def run_study(capsys: pytest.CaptureFixture[str]) -> Run:
    def runs(study: str, store: str, *, only: list[str] | None = None) -> Any:
        capsys.readouterr()
        arguments: Any = {"only": only, "reuse": None, "parallelism": None, "phoenix": "off", "store": store}
        if only is None:
            run(study, json=True, **arguments)
        else:
            with pytest.raises(typer.Exit) as ended:
                run(study, json=True, **arguments)
            assert ended.value.exit_code == 4
        return json.loads(capsys.readouterr().out)

    return runs


def export_and_replay(store: str, matrix: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    export(matrix, folder / f"{matrix}.json", store=store, json=True)
    told = json.loads(capsys.readouterr().out)
    elsewhere = folder / "elsewhere" / "packet.json"
    elsewhere.parent.mkdir(exist_ok=True)
    elsewhere.write_bytes((folder / f"{matrix}.json").read_bytes())
    replay(elsewhere, expect_sha256=told["sha256"], json=True)
    return json.loads(capsys.readouterr().out)


def check(report: Any, candidate: tuple[int, int]) -> None:
    baseline, other = report["totals"]["baseline"], report["totals"]["candidate"]
    assert (baseline["passed"], baseline["completed"]) == (8, 6)
    assert (other["passed"], other["completed"]) == candidate
    assert baseline["unqualified_messages"] + other["unqualified_messages"] == 16
    assert report["totals"]["cost"]["complete_micro_dollars"] == 1_280_000
    assert (report["trials"], report["missing"], report["pairs_in_order"], report["pairs"]) == (16, 0, 8, 8)
    assert report["anchored"] is True


@pytest.mark.parametrize("study", STUDIES)
def test_packaged_comparisons_come_out_and_replay_elsewhere(
    study: str, tmp_path: Path, run_study: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "store.db")
    result = run_study(study, store)
    comparisons = result.get("comparisons", [result])
    assert [each["matrix"] for each in comparisons] == list(STUDIES[study])
    assert [each["state"] for each in comparisons] == ["complete"] * len(comparisons)
    for matrix, candidate in STUDIES[study].items():
        check(export_and_replay(store, matrix, tmp_path, capsys), candidate)


def test_a_packet_from_postgresql(
    postgresql_url: str, tmp_path: Path, run_study: Run, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    run_study("paired-order-resolution", postgresql_url)
    for matrix, candidate in STUDIES["paired-order-resolution"].items():
        check(export_and_replay(postgresql_url, matrix, tmp_path, capsys), candidate)


def test_the_same_export_again_gives_the_same_bytes_and_touches_no_file(
    tmp_path: Path, run_study: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "store.db")
    run_study("order-resolution", store)
    export("order-resolution", tmp_path / "one.json", store=store, json=False)
    export("order-resolution", tmp_path / "two.json", store=store, json=False)
    before = (tmp_path / "one.json").read_bytes()
    assert before == (tmp_path / "two.json").read_bytes()
    # Its lines make one JSON document.
    assert len(json.loads(before)["rows"]) == 16
    for taken in (tmp_path / "one.json", tmp_path):
        with pytest.raises(FileError, match="is there already, nothing was written"):
            export("order-resolution", taken, store=store, json=False)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileError, match="is there already"):
        export("order-resolution", tmp_path / "dangling", store=store, json=False)
    with pytest.raises(FileError, match="there is no folder"):
        export("order-resolution", tmp_path / "no" / "packet.json", store=store, json=False)
    assert (tmp_path / "one.json").read_bytes() == before
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_what_is_not_finished_or_no_comparison_is_not_exported(
    tmp_path: Path, run_study: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "store.db")
    run_study("order-resolution", store, only=["case=explicit-description"])
    with pytest.raises(NotExportable, match="12 trials of order-resolution are neither graded nor given up"):
        export("order-resolution", tmp_path / "packet.json", store=store, json=False)
    cases = find_study("order-resolution").parent / "cases.yaml"
    (tmp_path / "cases.yaml").write_text(cases.read_text())
    (tmp_path / "matrix.yaml").write_text(
        "version: 1\nname: lone\ncases: cases.yaml\nconditions: [{name: one, agent: descriptive-control}]\n"
    )
    run_study(str(tmp_path / "matrix.yaml"), store)
    with pytest.raises(NotAComparison) as caught:
        export("lone", tmp_path / "packet.json", store=store, json=False)
    assert len(caught.value.reasons) == 3
    assert command_line.exit_code(caught.value) == 2
    assert not (tmp_path / "packet.json").exists()


def test_an_exported_grade_is_the_registered_graders(
    tmp_path: Path, run_study: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Grading again with a changed grader adds grades to the store and changes no packet."""
    from grading.store import grades

    store = str(tmp_path / "store.db")
    run_study("order-resolution", store)
    export("order-resolution", tmp_path / "before.json", store=store, json=False)
    with Store.open(store) as opened:
        (matrix,) = reading.matrices(opened)
        for trial in reading.trials(opened, matrix.id, grades=True):
            (old,) = trial.grades
            newer = grades.Grade(old.attempt_id, old.grader, "sha256:" + "0" * 64, "failed", False, old.checks)
            grades.add_grades(opened, [newer], {(newer.grader, newer.version)})
    export("order-resolution", tmp_path / "after.json", store=store, json=False)
    assert (tmp_path / "before.json").read_bytes() == (tmp_path / "after.json").read_bytes()
