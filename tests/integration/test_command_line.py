"""What a person at the command line can rely on: bad input ends with one message and status 2, and nothing is written."""

# ruff: noqa: E501 - one line for each kind of bad input
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

ROOT = Path(__file__).resolve().parents[2]
RUN = ("run", "matrix.yaml", "--phoenix", "off")
TABLE = [
    "condition             trials  contract  completed  wrong-order commits",
    "descriptive-control   8/8     8         6          0",
    "first-record-mutant   8/8     2         3          5",
]


def cellwise(folder: Path, *arguments: str, **environment: str | None) -> "subprocess.CompletedProcess[str]":
    """The command in a folder, without a terminal. A variable of None is unset."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "CELLWISE_STORE": None}
    given |= environment
    return subprocess.run(
        [sys.executable, "-P", "-m", "grading.command_line", *arguments],
        cwd=folder,
        env={name: value for name, value in given.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=300,
    )


def files(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def refused(folder: Path, *arguments: str, **environment: str | None) -> str:
    """The message of a command that must change nothing."""
    before = files(folder)
    ended = cellwise(folder, *arguments, **environment)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert files(folder) == before
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new study, never run."""
    folder = tmp_path_factory.mktemp("template") / "refunds"
    assert cellwise(folder.parent, "init", "refunds").returncode == 0
    return folder


@pytest.fixture
def study(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "refunds"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose store holds the packaged study, complete. Tests only read it."""
    folder = tmp_path_factory.mktemp("finished")
    ended = cellwise(folder, "run", "order-resolution", "--phoenix", "off")
    assert (ended.returncode, ended.stdout.splitlines()) == (0, TABLE), ended.stderr
    return folder


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


ONE = "  - id: one-fits\n    customer_id: "
BAD_FILES = {
    "a case owned by nobody": ("cases.yaml", ONE + "ada", ONE + "zed", "cases.yaml:19: cases[0].customer_id: 'zed' owns"),
    "a boolean amount": ("cases.yaml", "amount_cents: 3900", "amount_cents: true", "cases.yaml:11: records[0].amount_cents: must be an integer, not 'true'"),
    "an unknown agent": ("matrix.yaml", "agent: agent:answer", "agent: descriptiv-control", "matrix.yaml:11: conditions[0].agent: no packaged agent is called 'descriptiv-control': did you mean 'descriptive-control'?"),
    "a duplicate id": ("cases.yaml", "id: two-fit", "id: one-fits", "cases.yaml:25: cases[1].id: 'one-fits' is used already at cases.yaml:18"),
    "no YAML": ("matrix.yaml", "version: 1", "version: [1", "matrix.yaml:"),
    "an id of 201 characters": ("cases.yaml", "id: one-fits", "id: " + "x" * 201, "cases.yaml:18: cases[0].id: must be at most 200 characters long, has 201"),
    "NUL": ("cases.yaml", "id: one-fits", 'id: "a\\0b"', "cases.yaml:18: the text holds NUL"),
    "a lone surrogate": ("cases.yaml", "id: one-fits", 'id: "a\\ud800b"', "cases.yaml:18: the text holds half of a surrogate pair"),
    "no time": ("matrix.yaml", "seconds: 30", "seconds: 0", "matrix.yaml:25: limits.seconds: must be above 0"),
    "a folder of cases that is not there": ("matrix.yaml", "cases: cases.yaml", "cases: nowhere/", "matrix.yaml:6: cases: there is no file 'nowhere/'"),
    "a path that no system takes": ("matrix.yaml", "cases: cases.yaml", "cases: " + "x" * 5000, "matrix.yaml:6: cases: "),
    "an agent with a syntax error": ("agent.py", "def answer(", "def answer((", "matrix.yaml:11: conditions[0].agent: importing 'agent' failed: SyntaxError"),
    "an agent without its library": ("agent.py", "from simulator import", "import numppy\nfrom simulator import", "importing 'agent' failed: ModuleNotFoundError: No module named 'numppy' (agent.py:"),
    "an agent that exits": ("agent.py", "from simulator import", "raise SystemExit(3)\nfrom simulator import", "importing 'agent' failed: SystemExit: 3 (agent.py:"),
    "a variable that the agent does not get": ("agent.py", "from simulator import", "import os\nos.environ['CELLWISE_TEST_KEY']\nfrom simulator import", "KeyError: 'CELLWISE_TEST_KEY', an environment variable that the agent does not get"),
    "wrong settings": ("matrix.yaml", "ask_when_unsure: true", "ask: true", "matrix.yaml:11: conditions[0].agent: 'agent:answer' cannot be called with"),
    "a module named like Cellwise's": ("matrix.yaml", "agent: agent:answer", "agent: grading:answer", "the module name 'grading' is Cellwise's own: rename your module"),
    "a module named like Python's": ("matrix.yaml", "agent: agent:answer", "agent: json:answer", "the module name 'json' belongs to Python itself"),
    "a file in place of a module": ("matrix.yaml", "agent: agent:answer", "agent: agent.py:answer", "write 'agent:FUNCTION'"),
}  # fmt: skip


def test_an_agent_of_an_image_runs_on_a_cluster_alone(study: Path) -> None:
    """Also where its module is not on this machine; what would run it can still be planned."""
    image = f"registry.example/team/agent@sha256:{'0' * 64}"
    edit(study / "matrix.yaml", "agent: agent:answer", f"agent: agent:answer\n    image: {image}")
    (study / "agent.py").unlink()
    assert refused(study, "run", "matrix.yaml", "--phoenix", "off") == (
        "cellwise: matrix.yaml: current, never-asks have images, whose agents run on a cluster alone: "
        "add --on kubernetes, or remove image\n"
    )
    planned = cellwise(study, "plan", "matrix.yaml")
    assert planned.returncode == 0, planned.stderr


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_told_at_its_line_and_nothing_is_written(what: str, study: Path) -> None:
    file, old, new, message = BAD_FILES[what]
    edit(study / file, old, new)
    assert message in refused(study, *RUN, CELLWISE_TEST_KEY="set")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "matrix.yaml:1: is empty"),
        (bytes(range(256)), "matrix.yaml:2: is not UTF-8"),
        (b"a: \0", "matrix.yaml:1: holds the character NUL"),
        (b"\n\xff", "matrix.yaml:2: is not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused_at_its_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_bytes(content)
    assert message in refused(tmp_path, *RUN)


STORE_WORDS = {
    "a folder": (".", ": a store is a file, this is a folder"),
    "a text file": ("notes.txt", "notes.txt: read: it is not a store: the file holds something else"),
    "another program's database": ("other.db", "other.db: it is not a store: it holds tables of something else (invoices)"),
    "a file on the way": ("notes.txt/cellwise.db", "notes.txt/cellwise.db"),
    "another kind": ("mysql://host/database", "mysql: a store is a SQLite file or a PostgreSQL database"),
    "nothing": ("", "a store is a file's path or a postgresql:// address"),
    "an unreachable server": ("postgresql://nobody:secret@127.0.0.1:1/x", "the server cannot be reached"),
}  # fmt: skip


@pytest.mark.parametrize("command", [("run", "order-resolution", "--phoenix", "off"), ("plan", "order-resolution"), ("status",)])  # fmt: skip
@pytest.mark.parametrize("what", STORE_WORDS)
def test_a_store_that_is_none_is_refused_and_left_as_it_was(
    what: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    word, message = STORE_WORDS[what]
    (tmp_path / "notes.txt").write_text("hello, this is no database at all")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE invoices (number)")
    connection.close()
    told = refused(tmp_path, *command, "--store", word)
    assert message in told
    assert "secret" not in told


def test_a_store_of_a_newer_version_is_left_as_it_was(finished: Path, tmp_path: Path) -> None:
    shutil.copyfile(finished / ".cellwise/cellwise.db", tmp_path / "newer.db")
    connection = sqlite3.connect(tmp_path / "newer.db")
    connection.execute("UPDATE cellwise_version SET version_num = '0999'")
    connection.commit()
    connection.close()
    for command in (("run", "order-resolution", "--phoenix", "off"), ("plan", "order-resolution"), ("status",), ("grade",),
                    ("show", "0"), ("resume", "--phoenix", "off"), ("publish",), ("phoenix",)):  # fmt: skip
        assert "newer.db: the store was written by a newer version" in refused(
            tmp_path, *command, "--store", "newer.db"
        )


WRONG_WORDS = {
    "an unknown study": (("run", "order-resolutoin"), "did you mean 'order-resolution'?"),
    "an empty study": (("run", ""), "STUDY: is empty"),
    "an endless study": (("run", "x" * 5000), "File name too long"),
    "an empty folder": (("run", "."), ".: the folder holds no matrix.yaml"),
    "an unknown option": (("run", "order-resolution", "--fast"), "No such option: --fast"),
    "an unknown command": (("rnu",), "No such command 'rnu'"),
    "a wrong Phoenix": (("run", "order-resolution", "--phoenix", "of"), "--phoenix of: write embedded, off, or a URL"),
    "a Phoenix without host": (("run", "order-resolution", "--phoenix", "http://"), "--phoenix http://: write"),
    "a Phoenix with half an address": (("run", "order-resolution", "--phoenix", "http://[x"), "--phoenix http://[x: write"),
    "a Phoenix with a wrong port": (("run", "order-resolution", "--phoenix", "http://x:99999"), "--phoenix http://x:99999"),
    "no parallelism": (("run", "order-resolution", "--parallelism", "0"), "--parallelism"),
    "a filter of no kind": (("run", "order-resolution", "--only", "cas=x"), "--only cas=x: write case=.., condition=.."),
    "a filter of nothing": (("run", "order-resolution", "--only", ""), "--only : write case=.., condition=.."),
    "a filter twice": (("run", "order-resolution", "--only", "case=a,case=b"), "--only case=a,case=b: write"),
    "a filter that fits nothing": (("run", "order-resolution", "--only", "case=explicit-x"), "--only case=explicit-x: there is no such case:"),
    "a reused matrix without a store": (("run", "order-resolution", "--phoenix", "off", "--reuse", "x"), "there is no store here"),
    "a planned reuse without a store": (("plan", "order-resolution", "--reuse", "x"), "there is no store here to reuse x from"),
    "no store": (("status",), "there is no store here: cellwise run makes one, --store names another"),
    "no store to grade": (("grade", "--json"), "there is no store here"),
    "no store to show from": (("show", "1", "--json"), "there is no store here"),
    "no store to resume": (("resume",), "there is no store here"),
    "no store to publish": (("publish",), "there is no store here"),
    "no store to look at": (("phoenix",), "there is no store here"),
    "publishing nowhere": (("publish", "--phoenix", "off"), "--phoenix off publishes nothing"),
    "no such schema": (("schema", "agent"), "there is a schema for matrix, cases, slices, policy, judge, none for agent"),
    "no such world": (("schema", "cases", "--world", "../order"), "no world is called '../order': did you mean 'orders'?"),
    "a folder without a name": (("init", ""), "init needs the name of a folder"),
    "a folder with an endless name": (("init", "x" * 5000), "File name too long"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_WORDS)
def test_a_wrong_word_writes_nothing(what: str, tmp_path: Path) -> None:
    arguments, message = WRONG_WORDS[what]
    assert message in refused(tmp_path, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "order-resolution", "--phoenix", "off", "--reuse", "x"), "the store has no matrix 'x'"),
        (("status", "x"), "the store has no matrix 'x'"),
        (("show", "16"), "has no trial 16: write a number from 0 to 15, or condition/case/repetition"),
        (("show", "a/b/c/d"), "has no trial a/b/c/d"),
        (("show", "1", "--matrix", "99"), "the store has no matrix '99'"),
        (("resume", "--only", "case=x", "--phoenix", "off"), "--only case=x: there is no such case"),
    ],
)  # fmt: skip
def test_a_wrong_word_leaves_a_store_as_it_was(arguments: tuple[str, ...], message: str, finished: Path) -> None:
    assert message in refused(finished, *arguments)


def test_a_postgresql_database_of_something_else_is_left_alone(postgresql_url: str, tmp_path: Path) -> None:
    empty = cellwise(tmp_path, "plan", "order-resolution", "--store", postgresql_url)
    assert (empty.returncode, empty.stderr) == (0, "")
    assert empty.stdout.splitlines()[-1] == "16 trials would run; 0 of them could be taken over with --reuse."
    assert "there is no store here" in refused(tmp_path, "status", "--store", postgresql_url)
    engine = create_engine(postgresql_url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        assert inspect(engine).get_table_names() == []
    finally:
        engine.dispose()


def test_odd_names_run_as_they_are_written(study: Path) -> None:
    markup = "[bold]<b>a/b</b>, c=d & 'e' [/]"
    edit(study / "cases.yaml", "id: one-fits", f'id: "{markup}"')
    edit(study / "cases.yaml", "id: two-fit", "id: " + "x" * 200)
    edit(study / "matrix.yaml", "name: current", 'name: "[red]c/d[/red]"')
    edit(study / "matrix.yaml", "baseline: current", 'baseline: "[red]c/d[/red]"\nseed: 0')
    edit(study / "matrix.yaml", "seconds: 30", "seconds: 0.001")
    edit(study / "matrix.yaml", "repetitions: 2", "repetitions: 1")
    ended = cellwise(study, *RUN, "--only", f"case={markup},condition=[red]c/d[/red]")
    assert ended.returncode == 4, ended.stderr
    assert "[red]c/d[/red]   1/4 " in ended.stdout
    shown = cellwise(study, "show", f"[red]c/d[/red]/{markup}/0")
    assert shown.stdout.splitlines()[0].rstrip() == f"[red]c/d[/red] / {markup} / 0"
    document = json.loads(cellwise(study, "show", "0", "--json").stdout)
    assert document["trial"] == {"condition": "[red]c/d[/red]", "case": markup, "repetition": 0}
    assert document["ledger"]["content"]["error"] == "TimeLimit"
    other = json.loads(cellwise(study, "show", f"never-asks/{'x' * 200}/0", "--json").stdout)
    assert (other["state"], other["ledger"], other["grades"], other["attempts"]) == ("open", None, [], [])


def test_a_name_that_two_trials_share_is_not_guessed(study: Path) -> None:
    edit(study / "cases.yaml", "id: one-fits", "id: c")
    edit(study / "cases.yaml", "id: two-fit", "id: b/c")
    edit(study / "matrix.yaml", "name: current", "name: a/b")
    edit(study / "matrix.yaml", "baseline: current", "baseline: a/b")
    edit(study / "matrix.yaml", "name: never-asks", "name: a")
    assert cellwise(study, *RUN, "--only", "case=c,condition=a").returncode == 4
    told = refused(study, "show", "a/b/c/0")
    assert "has several trials called a/b/c/0: write a number, " in told


def test_a_study_of_ones_own_from_init_to_another_place(tmp_path: Path) -> None:
    begun = cellwise(tmp_path, "init", "my studies/Rückgabe 2/")
    assert (begun.returncode, begun.stderr) == (0, "Run it: cellwise run 'my studies/Rückgabe 2/matrix.yaml'\n")
    assert "is there already, nothing was written" in refused(tmp_path, "init", "my studies/Rückgabe 2")
    (tmp_path / "elsewhere").mkdir()
    ended = cellwise(
        tmp_path / "elsewhere", "run", "../my studies/Rückgabe 2", "--phoenix", "off", "--json", HOME=None, LC_ALL="C"
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert (result["matrix"], result["state"], result["phoenix"], result["status"]) == (
        "r-ckgabe-2",
        "complete",
        None,
        0,
    )
    rows = {one["condition"]: one for one in result["summary"]["conditions"]}
    assert {name: (row["contract"], row["completed"], row["wrong_order_commits"]) for name, row in rows.items()} == {
        "current": (8, 6, 0),
        "never-asks": (4, 5, 3),
    }
    again = cellwise(
        tmp_path, "plan", "my studies/Rückgabe 2/matrix.yaml", "--store", "elsewhere/.cellwise/cellwise.db"
    )
    assert again.stdout.splitlines()[-1] == "Nothing would run."
    before = files(tmp_path)
    fresh = cellwise(tmp_path, "plan", "my studies/Rückgabe 2/matrix.yaml", "--json")
    assert (json.loads(fresh.stdout)["run"], fresh.returncode) == (16, 0)
    assert files(tmp_path) == before


def test_what_an_agent_prints_and_how_it_is_written_do_not_matter(study: Path) -> None:
    edit(study / "agent.py", "def answer(", "print('hello')\n\n\nasync def answer(")
    edit(study / "matrix.yaml", "# env: [MY_API_KEY]", "env: [CELLWISE_TEST_KEY]")
    edit(study / "matrix.yaml", "repetitions: 2", "repetitions: 1")
    ended = cellwise(study, *RUN, "--json", CELLWISE_TEST_KEY=None)
    assert (ended.returncode, json.loads(ended.stdout)["status"]) == (0, 0)
    assert "cellwise: current: not set in this environment: CELLWISE_TEST_KEY\n" in ended.stderr
    contract = {one["condition"]: one["contract"] for one in json.loads(ended.stdout)["summary"]["conditions"]}
    assert contract == {"current": 4, "never-asks": 2}


def test_resuming_goes_by_the_file_that_it_was_started_from(study: Path, tmp_path: Path) -> None:
    started = cellwise(tmp_path, "run", "refunds", "--phoenix", "off", "--only", "case=two-fit", "--json")
    assert (started.returncode, json.loads(started.stdout)["status"]) == (4, 4)
    study.rename(tmp_path / "moved")
    told = refused(tmp_path, "resume", "--phoenix", "off")
    assert f"{study / 'matrix.yaml'}: refunds was started from this file, which is gone" in told
    (tmp_path / "moved").rename(study)
    edit(study / "matrix.yaml", "repetitions: 2", "repetitions: 4")
    told = refused(tmp_path, "resume", "--phoenix", "off")
    assert "has changed since refunds" in told
    assert "\n  repetitions 2 -> 4\n" in told
    planned = json.loads(cellwise(tmp_path, "plan", "refunds", "--json").stdout)
    assert (planned["done"], planned["reuse"], planned["run"]) == (0, 4, 28)
    reused = cellwise(tmp_path, "run", "refunds", "--phoenix", "off", "--reuse", "1")
    assert "4 finished trials taken over from refunds" in reused.stderr
    assert reused.stdout.splitlines()[1:] == [
        "current      16/16   16        12         0",
        "never-asks   16/16   8         10         6",
    ]
    edit(study / "matrix.yaml", "repetitions: 4", "repetitions: 2")
    study.rename(tmp_path / "moved")
    finished = cellwise(tmp_path, "run", "moved", "--phoenix", "off")
    assert finished.returncode == 0, finished.stderr
    assert cellwise(tmp_path, "resume", "1", "--phoenix", "off").returncode == 0
    shutil.rmtree(tmp_path / ".cellwise")
    assert "there is no store here" in refused(tmp_path, "resume", "--phoenix", "off")


def test_two_stores_know_nothing_of_each_other(finished: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.db"
    ended = cellwise(tmp_path, "run", "order-resolution", "--phoenix", "off", CELLWISE_STORE=f"sqlite:///{second}",
                     )  # fmt: skip
    assert ended.stdout.splitlines() == TABLE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["second.db", "second.db.d"]
    assert json.loads(cellwise(finished, "plan", "order-resolution", "--json").stdout)["done"] == 16
    assert (
        json.loads(cellwise(finished, "plan", "order-resolution", "--store", str(second), "--json").stdout)["done"]
        == 16
    )


def test_grading_again_adds_nothing_where_the_graders_are_the_same(finished: Path) -> None:
    ended = cellwise(finished, "grade", "--json")
    result = json.loads(ended.stdout)
    assert (result["added"], result["repeated"], result["conflicting"], ended.returncode) == (0, 16, 0, 0)


@pytest.mark.parametrize(
    "arguments", [("status",), ("show", "1"), ("grade",), ("plan", "order-resolution"), ("resume", "--phoenix", "off"),
                  ("run", "order-resolution", "--phoenix", "off")]
)  # fmt: skip
def test_json_is_one_document_and_nothing_else(arguments: tuple[str, ...], finished: Path) -> None:
    ended = cellwise(finished, *arguments, "--json", FORCE_COLOR="1")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["version"] == 1
    assert ended.stdout.count("\n") == 1


def test_a_failure_leaves_standard_output_empty_also_with_json(finished: Path) -> None:
    for arguments in (("run", "nope", "--json"), ("show", "99", "--json"), ("status", "nope", "--json")):
        refused(finished, *arguments)


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"COLUMNS": "40", "NO_COLOR": "1"},
        {"TERM": "dumb"},
    ],
)
def test_any_terminal_will_do(environment: dict[str, str], finished: Path, tmp_path: Path) -> None:
    shown = cellwise(finished, "show", "1", **environment)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "premature action attempts" in shown.stdout
    planned = cellwise(finished, "plan", "order-resolution", **environment)
    assert "".join(planned.stdout.split()).count("descriptive-control") + planned.stdout.count(
        "descriptive-c\n"
    ) >= 1 or ("…" not in planned.stdout)
    assert cellwise(tmp_path, "init", "studié", **environment).returncode == 0
    ran = cellwise(tmp_path, "run", "studié", "--phoenix", "off", "--only", "case=one-fits", **environment)
    assert ran.returncode == 4, ran.stderr


@pytest.fixture
def shell(finished: Path) -> str:
    return f"cd '{finished}' && export PYTHONPATH='{ROOT}' && '{sys.executable}' -P -m grading.command_line"


@pytest.mark.parametrize("command", ["show 1", "status", "schema cases", "show 1 --json", "plan order-resolution"])
def test_a_reader_that_has_had_enough_is_no_error_to_speak_of(command: str, shell: str) -> None:
    ended = subprocess.run(["bash", "-c", f"{shell} {command} | true"], capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", ["show 1", "status", "plan order-resolution --json"])
def test_output_that_cannot_be_written_is_told_in_one_line(command: str, shell: str) -> None:
    ended = subprocess.run(["bash", "-c", f"{shell} {command} > /dev/full"], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, "cellwise: [Errno 28] No space left on device\n")


def test_every_command_has_an_example(tmp_path: Path) -> None:
    said = cellwise(tmp_path, "--help").stdout
    commands = [line.split()[0] for line in said.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert {"init", "schema", "plan", "run", "resume", "status", "show", "grade", "publish", "phoenix"} <= set(commands)
    commands.remove("calibrate")  # a group: its commands have their own
    for command in commands:
        told = cellwise(tmp_path, command, "--help").stdout
        assert told.startswith(f"Usage: cellwise {command} ")
        assert f": cellwise {command}" in " ".join(told.split())


def test_help_loads_neither_the_store_nor_a_model(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']\nfrom grading.command_line import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'sqlalchemy', 'pydantic', 'numpy', 'scipy', 'alembic', 'httpx', 'ruamel', 'orjson', 'grading.runner'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stderr == "[]\n"
