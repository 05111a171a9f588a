"""Every packaged comparison runs, is exported and replays in another folder, whatever the store."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from packets import changed, load

from grading import command_line
from grading.arms import NotAComparison
from grading.commands.assess import assess
from grading.commands.export import export
from grading.commands.replay import replay
from grading.commands.run import run
from grading.file_error import FileError
from grading.packet_reading import PacketRefused
from grading.packet_writing import NotExportable
from grading.replay_packet import replay_packet
from grading.store import Store, reading
from grading.studies import find_study

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
    assert report["totals"]["cost"]["known_subtotal_micro_dollars"] == 1_280_000
    # What the literal judge costs nobody knows.
    assert report["totals"]["cost"]["complete_micro_dollars"] == (None if report["judge"] else 1_280_000)
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
        with pytest.raises(FileError, match="nothing was written: name"):
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


JUDGED = {
    # Structurally passed, jointly passed, completed; of the candidate. The baseline's are 8, 8 and 6.
    "native-false-settlement": (8, 0, 6),
    "native-first-record": (2, 2, 3),
    "native-control": (8, 8, 6),
}
REVOKED = "    revoked: {at: 2026-01-01T00:00:00Z, reason: a reviewer was mistaken}\n"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The store of the packaged semantic study, judged by the literal judge, and the calibration that it counts by."""
    folder = tmp_path_factory.mktemp("judged")
    for name in ("order-resolution", "native-semantic"):
        shutil.copytree(find_study(name).parent, folder / name)
    calibration = re.search("sha256:[0-9a-f]{64}", (folder / "native-semantic/registry.yaml").read_text())
    assert calibration is not None
    for name in ("false-settlement", "first-record", "control"):
        path = folder / "native-semantic" / f"{name}.yaml"
        settings = {"judge": "literal", "calibration": calibration[0], "registry": "registry.yaml"}
        written = [line for line in path.read_text().splitlines() if line.partition(":")[0] not in settings]
        path.write_text("\n".join([*written, *(f"{key}: {value}" for key, value in settings.items()), ""]))
    run(
        str(folder / "native-semantic/study.yaml"), only=None, reuse=None, parallelism=None, phoenix="off",
        store=str(folder / "store.db"), json=False,
    )  # fmt: skip
    return folder, calibration[0]


@pytest.mark.parametrize("name", JUDGED)
def test_judgments_travel_and_count_where_their_calibration_is_trusted(
    judged: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder, calibration = judged
    packet = tmp_path / "packet.json"
    export(name, packet, store=str(folder / "store.db"), json=True)
    known = json.loads(capsys.readouterr().out)["sha256"]

    replay(packet, expect_sha256=known, trust_calibration=[calibration], json=True)
    told = json.loads(capsys.readouterr().out)
    columns = ("passed", "joint", "completed")
    assert [told["totals"]["baseline"][each] for each in columns] == [8, 8, 6]
    assert tuple(told["totals"]["candidate"][each] for each in columns) == JUDGED[name]
    cost = {"known_subtotal_micro_dollars": 1_280_000, "known": 16, "unknown": 16, "not_dispatched": 0}
    assert told["totals"]["cost"] == {**cost, "complete_micro_dollars": None}
    assert told["calibration_trusted"] is True

    replay(packet, expect_sha256=known, trust_calibration=(), json=False)
    shown = capsys.readouterr().out
    assert "not trusted, so no judgment counts" in shown
    assert "16 messages counted when they were judged and are unqualified here" in shown

    assessed: Any = {"at": "2026-11-01T00:00:00Z", "packet": packet, "expect_sha256": known, "store": "", "json": True}
    registry = folder / "native-semantic/registry.yaml"
    assess(None, registry=registry, **assessed)
    now = json.loads(capsys.readouterr().out)
    assert (now["status"], now["trials"], now["not_current"], now["packet"]) == ("current", 16, 0, known)
    revoked = folder / "native-semantic/revoked.yaml"
    revoked.write_text(registry.read_text() + REVOKED)
    assess(None, registry=revoked, **assessed)
    now = json.loads(capsys.readouterr().out)
    assert (now["status"], now["by_reason"]) == ("not_current", {"qualification_missing_or_revoked": 16})

    with pytest.raises(PacketRefused, match="expected was"):
        assess(None, registry=registry, **{**assessed, "expect_sha256": "0" * 64})


def test_what_the_literal_judge_never_says_is_refused(
    judged: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = judged
    export("native-control", tmp_path / "packet.json", store=str(folder / "store.db"), json=True)
    packet = load(tmp_path / "packet.json")
    for field, value in (("returned_model", "m"), ("input_tokens", 1), ("cached", True), ("call", "0" * 32)):

        def change(other: Any, field: str = field, value: Any = value) -> None:
            other["artifacts"][3]["judgments"][0]["votes"][0][field] = value

        (tmp_path / "changed.json").write_bytes(changed(packet, change))
        with pytest.raises(PacketRefused) as caught:
            replay_packet(tmp_path / "changed.json")
        assert (caught.value.trial, caught.value.field) == (3, f"judgments[0].votes[0].{field}")


def test_a_matrix_and_a_packet_are_not_assessed_together(capsys: pytest.CaptureFixture[str]) -> None:
    for word, packet, expected in (("one", Path("packet.json"), None), ("one", None, "0" * 64)):
        with pytest.raises(typer.Exit):
            assess(word, registry=Path("r"), at=None, packet=packet, expect_sha256=expected, store="", json=False)
    told = capsys.readouterr().err
    assert "either a matrix or a --packet" in told
    assert "name that too" in told
