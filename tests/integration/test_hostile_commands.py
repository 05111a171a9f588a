"""What a hostile or clumsy user gives to the commands around a store: one message, its status, nothing changed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import cellwise

from grading.command_line import main

PACKAGED = Path(__file__).resolve().parents[2] / "grading" / "studies" / "native-semantic"
ROWS, REGISTRY = str(PACKAGED / "calibration.jsonl"), str(PACKAGED / "registry.yaml")
REVIEWERS = ("--reviewer", "alice", "--reviewer", "bob")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")
    cellwise("run", "native-semantic", "--phoenix", "off", store=str(folder / "cellwise.db"), cwd=folder)
    return str(folder / "cellwise.db")


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs in this process what must end with 2 and write nothing, in an empty folder; its one message."""

    def run(*arguments: str, store: str, lines: int = 1) -> str:
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CELLWISE_STORE", store)
        monkeypatch.setattr(sys, "argv", ["cellwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert (ended.value.code, told.out, sorted(tmp_path.rglob("*"))) == (2, "", before), told.err
        assert told.err.startswith("cellwise: ")
        assert told.err.count("\n") == lines
        assert "[Errno" not in told.err
        return told.err

    return run


OUTPUTS = {
    "junit": ("compare", "1", "--junit"),
    "markdown": ("compare", "1", "--markdown"),
    "report": ("report", "1", "-o"),
    "export": ("export", "1"),
    "verdicts": ("judge", "1", "--registry", REGISTRY, "--verdicts"),
    "record": ("calibrate", "compile", ROWS, "--registry", REGISTRY, "--out"),
    "rows": ("calibrate", "import", "none.jsonl", "--out"),
    "to-adjudicate": ("calibrate", "import", "none.jsonl", "--out", "rows.jsonl", "--to-adjudicate"),
    "review": ("calibrate", "export", "1", *REVIEWERS, "--out"),
    "split": ("calibrate", "split", ROWS, "--seed", "1", "--held-out", "0.5", "--out"),
}


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_result_that_cannot_be_written(refused: Refused, store: str, tmp_path: Path, command: str) -> None:
    (tmp_path / "taken").write_text("mine")
    for name in ("taken", "taken/below", "x" * 300):
        told = refused(*OUTPUTS[command], name, store=store)
        assert name[:60] in told
    if command not in ("review", "split"):  # which write into folders
        for name in ("", "none/below"):
            assert "folder" in refused(*OUTPUTS[command], name, store=store)
    assert (tmp_path / "taken").read_text() == "mine"


def test_names_as_long_as_the_disk_allows_are_written(store: str, tmp_path: Path) -> None:
    cellwise("export", "1", "p" * 255, store=store, cwd=tmp_path)
    cellwise("compare", "1", "--junit", "j" * 255, store=store, cwd=tmp_path)
    cellwise("judge", "1", "--registry", REGISTRY, "--verdicts", "v" * 255, store=store, cwd=tmp_path)
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["j", "p", "v"]


def test_verdicts_that_cannot_be_written_are_told_before_a_judge_is_asked(
    refused: Refused, store: str, tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    told = refused("judge", "1", "--judge", "no-such-judge.yaml", "--verdicts", "taken", store=store)
    assert "taken: exists already and is not overwritten" in told


def test_rows_and_the_adjudicators_file_are_two(refused: Refused, store: str, tmp_path: Path) -> None:
    same = ("--out", "rows.jsonl", "--to-adjudicate", "./rows.jsonl")
    told = refused("calibrate", "import", "none.jsonl", *same, store=store)
    assert "name the same file rows.jsonl" in told


@pytest.mark.parametrize("name", ["", " ", "a\tb", "a" * 201, os.fsdecode(b"\x80")])
def test_names_that_no_document_holds(refused: Refused, store: str, tmp_path: Path, name: str) -> None:
    export = ("calibrate", "export", "1", "--out", "review", "--reviewer", "alice", "--reviewer")
    assert "--reviewer '" in refused(*export, name, store=store)
    for option in ("--policy-version", "--criterion"):
        for command in (("calibrate", "compile", ROWS, "--registry", REGISTRY), (*export, "bob")):
            assert f"{option} '" in refused(*command, option, name, store=store)


@pytest.mark.parametrize("share", ["1e-999999999", "1e999999999", "9" * 5000, "-1", "2", "1/0", "nan", "", "0x1"])
def test_shares_that_are_none(refused: Refused, store: str, tmp_path: Path, share: str) -> None:
    split = ("calibrate", "split", ROWS, "--seed", "1", "--out", "divided")
    assert "write a share from 0 to 1" in refused(*split, "--held-out", share, store=store)


def test_seeds_beyond_canonical_json(store: str, tmp_path: Path) -> None:
    split = ("calibrate", "split", ROWS, "--held-out", "0.5", "--out", "divided")
    finished = cellwise(*split, "--seed", str(2**53), store=store, cwd=tmp_path, check=2)
    assert ("Invalid value for '--seed'" in finished.stderr, list(tmp_path.iterdir())) == (True, [])


def test_two_results_in_one_file(refused: Refused, store: str, tmp_path: Path) -> None:
    for force in ((), ("--force",)):
        both = ("compare", "1", "--junit", "out", "--markdown", "./out", *force)
        assert "named for two results" in refused(*both, store=store)


def test_no_terminal_obeys_what_a_message_repeats(refused: Refused, store: str, tmp_path: Path) -> None:
    for command in (("calibrate", "compile", ROWS, "--world", "\x1b[2J"), ("plan", "\x1b[2J.yaml")):
        assert "\x1b" not in refused(*command, store=store)


@pytest.mark.parametrize("url", ["http://a b", "http://x?q", "http://x#y", "http://x\n", os.fsdecode(b"http://\x80")])
def test_addresses_that_are_none(refused: Refused, store: str, tmp_path: Path, url: str) -> None:
    assert "write embedded, off, or a URL" in refused("publish", "1", "--phoenix", url, store=store)


def test_an_empty_launcher_is_not_the_default(refused: Refused, store: str, tmp_path: Path) -> None:
    assert "nothing called ''" in refused("status", "--on", "", store=store)


@pytest.mark.parametrize("word", ["off", "nonsense", "ftp://x"])
def test_a_wrong_phoenix_leaves_no_key_behind(refused: Refused, store: str, tmp_path: Path, word: str) -> None:
    export = ("calibrate", "export", "1", *REVIEWERS, "--out", "review", "--phoenix", word)
    assert f"--phoenix {word}" in refused(*export, store=store)


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_instants_beyond_the_calendar(refused: Refused, store: str, tmp_path: Path, at: str) -> None:
    for command in (("decide", "1", "--policy", "packaged"), ("assess", "1", "--registry", REGISTRY)):
        told = refused(*command, "--at", at, store=store)
        assert f"--at: '{at}' is outside of the years 1 to 9999" in told


def test_a_receipt_without_an_end(refused: Refused, store: str, tmp_path: Path) -> None:
    told = refused("decide", "1", "--policy", "packaged", "--receipt", "/dev/zero", store=store)
    assert "larger than 16 MiB" in told


def test_what_is_no_regular_file_is_no_store(refused: Refused, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in ("/dev/null", "/dev/zero", str(tmp_path / "pipe")):
        for command in ("status", "migrate"):
            assert "this is a device or a pipe" in refused(command, store=place)
    assert "File name too long" in refused("status", store=str(tmp_path / ("x" * 300)))


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(store: str, tmp_path: Path, closed: str) -> None:
    command = f'"{sys.executable}" -m grading.command_line compare 1 --store "$1" {closed}'
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    finished = subprocess.run(["sh", "-c", command, "sh", store], cwd=tmp_path, env=here, capture_output=True)
    assert (finished.returncode, finished.stderr) == (0, b"")
