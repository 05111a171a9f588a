"""Killed with SIGKILL wherever it may be, a run that is taken up again comes to the same end: every trial once, the
same table, no process left, and nothing that an agent did is washed away."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from recorded_trial import descendants, eventually
from studies import TABLE, Bench, rows

from grading.store import reading

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at through /proc")

# Every transaction that a run of a new matrix passes; test_all_transactions_are_named says so.
PASSED = ["migrate", "register", "enrol", "start", "claim", "renew", "running", "deliver", "finish"]


@pytest.fixture
def local(tmp_path: Path) -> Bench:
    return Bench(tmp_path, str(tmp_path / ".cellwise" / "cellwise.db"))


def killed_and_resumed(bench: Bench, name: str, nth: int, moment: str) -> None:
    process = bench.start("run", "order-resolution", "--phoenix", "off", killed=(name, nth, moment))
    out, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, (out, err)
    assert bench.all_gone()
    started = time.monotonic()
    out, err = bench.run("order-resolution")
    assert err == ""
    if discarded := bench.discarded_after_acting():
        # The kill came upon a trial between its refund and its end: a further column says so, by arm.
        assert rows(out) == {arm: [*cells, str(discarded.get(arm, 0))] for arm, cells in rows(TABLE).items()}
    else:
        assert out == TABLE
    # Far below the 60 s of a lease: on the same machine a dead runner is known to be dead.
    assert time.monotonic() - started < 45
    bench.once()
    assert not list((bench.folder / ".cellwise" / "workers").glob("*.journal"))


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", [name for name in PASSED if name != "running"])
def test_the_runner_at_a_commit(local: Bench, name: str, moment: str) -> None:
    killed_and_resumed(local, name, 1, moment)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["claim", "deliver", "finish"])
def test_the_runner_at_a_commit_on_postgresql(tmp_path: Path, postgresql_url: str, name: str, moment: str) -> None:
    killed_and_resumed(Bench(tmp_path, postgresql_url), name, 1, moment)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["reuse", "grade"])
def test_the_runner_at_a_commit_of_what_is_taken_over(local: Bench, name: str, moment: str) -> None:
    """Trials of another matrix come without a grade: theirs is a transaction of its own."""
    study = local.study("- {name: control, agent: descriptive-control}", cases=4)
    local.run(study)
    again = local.folder / study
    again.write_text(again.read_text().replace("name: control", "name: renamed"))
    process = local.start("run", study, "--phoenix", "off", "--reuse", "1", killed=(name, 1, moment))
    out, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, (out, err)
    assert local.all_gone()
    out, _ = local.run(study, "--reuse", "1")
    assert rows(out)["renamed"] == ["4/4", "4", "3", "0"]
    local.once()


def test_all_transactions_are_named(local: Bench) -> None:
    process = local.start("run", "order-resolution", "--phoenix", "off", killed=("nowhere", 1, "after"))
    assert process.communicate()[0] == TABLE
    assert set((local.folder / "transactions").read_text().split()) <= set(PASSED)


SLOW = """
    import os, time
    from simulator.agents import descriptive_control, first_record_mutant

    class Slowly:
        # Tools with a rest after each call, so that there is time to be killed in.
        def __init__(self, tools, seconds):
            self._tools, self._seconds = tools, seconds
        def __getattr__(self, name):
            def call(**arguments):
                answer = getattr(self._tools, name)(**arguments)
                time.sleep(self._seconds)
                return answer
            return call

    def agent(request, tools, *, wrong=False, seconds=0.05):
        one = first_record_mutant if wrong else descriptive_control
        return one.agent(request, Slowly(tools, seconds))
    """
BOTH = """
    - {name: descriptive-control, agent: "own:agent"}
    - {name: first-record-mutant, agent: "own:agent", settings: {wrong: true}}
    """


def workers(runner: int) -> list[int]:
    """Without what is forked from them, which has their command line."""
    found = {pid for pid in descendants(runner) if b"simulator.worker" in _command(pid)}
    return sorted(found - {below for pid in found for below in descendants(pid)})


def agents(runner: int) -> list[int]:
    """Processes of agents: below a fork server."""
    servers = [pid for pid in descendants(runner) if b"agent_host" in _command(pid)]
    return [pid for server in servers for pid in descendants(server)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("seed", range(3))
def test_the_runner_at_random(local: Bench, seed: int) -> None:
    """The table is that of an undisturbed run, but for attempts that had refunded the right order: those are shown, and
    but for none that had refunded a wrong one: those are evidence, failed like the mutant's."""
    chance = random.Random(seed)
    study = local.study(BOTH, repetitions=2, agent=SLOW, more="parallelism: 3\n")
    for _ in range(2):
        process = local.start("run", study, "--phoenix", "off")
        eventually(lambda: agents(process.pid), 30)  # noqa: B023 - asked within the round
        time.sleep(chance.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert local.all_gone()
    out, _ = local.run(study)
    local.once()
    found = rows(out)
    assert found["descriptive-control"][:4] == ["8/8", "8", "6", "0"]
    # The mutant's lost attempts are no completions, whatever they had done.
    assert found["first-record-mutant"][0] == "8/8"
    assert found["first-record-mutant"][3] == "5"


def test_workers_at_random(local: Bench) -> None:
    chance = random.Random(7)
    study = local.study(BOTH, repetitions=2, agent=SLOW, more="parallelism: 2\n")
    process = local.start("run", study, "--phoenix", "off")
    for _ in range(3):
        eventually(lambda: agents(process.pid), 30)
        time.sleep(chance.uniform(0.1, 0.4))
        for pid in workers(process.pid)[:1]:
            os.kill(pid, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    local.once()
    found = rows(out)
    assert found["descriptive-control"][:4] == ["8/8", "8", "6", "0"]
    assert (found["first-record-mutant"][0], found["first-record-mutant"][3]) == ("8/8", "5")
    assert local.all_gone()


def test_an_agent_that_is_killed_is_evidence_of_its_trial(local: Bench) -> None:
    study = local.study(BOTH.replace("wrong: true", "wrong: true, seconds: 0.4").replace(
        '"own:agent"}', '"own:agent", settings: {seconds: 0.4}}'), agent=SLOW, more="parallelism: 1\n")  # fmt: skip
    process = local.start("run", study, "--phoenix", "off")
    os.kill(eventually(lambda: agents(process.pid), 60)[0], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    local.once()
    assert {condition: cells[0] for condition, cells in rows(out).items()} == {
        "descriptive-control": "4/4",
        "first-record-mutant": "4/4",
    }
    with local.opened() as store:
        documents = [trial.ledger or b"" for trial in reading.trials(store, 1, ledgers=True)]
    assert sum(b'"error":"AgentExited"' in document for document in documents) == 1


KILLED_AROUND_A_CALL = """
    import os, signal, time
    from pathlib import Path
    from simulator.agents import descriptive_control, first_record_mutant

    def end():
        if os.path.exists("killed"):
            return
        open("killed", "w").close()
        parent = os.getppid()
        worker = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        runner = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill({"worker": worker, "runner": runner}[WHO], signal.SIGKILL)
        time.sleep(60)

    class Tools:
        def __init__(self, tools):
            self._tools = tools
        def __getattr__(self, name):
            def call(**arguments):
                if name == "issue_refund" and WHEN == "before":
                    end()
                answer = getattr(self._tools, name)(**arguments)
                if name == "issue_refund" and WHEN == "after":
                    end()
                return answer
            return call

    def agent(request, tools, *, wrong):
        return (first_record_mutant if wrong else descriptive_control).agent(request, Tools(tools))
    """


@pytest.mark.parametrize("who", ["worker", "runner"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("wrong", [True, False], ids=["wrong", "right"])
def test_killed_around_a_refund(local: Bench, who: str, when: str, wrong: bool) -> None:
    agent = KILLED_AROUND_A_CALL.replace("WHO", repr(who)).replace("WHEN", repr(when))
    study = local.study(f"- {{name: one, agent: 'own:agent', settings: {{wrong: {str(wrong).lower()}}}}}",
                        cases=1, agent=agent)  # fmt: skip
    if who == "runner":
        process = local.start("run", study, "--phoenix", "off")
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert local.all_gone()
    out, _ = local.run(study)
    local.once()
    status = local.status()
    reason = {"worker": "recorder_killed", "runner": "runner_killed"}[who]
    assert status["lost"] == [{"reason": reason, "count": 1}]
    with local.opened() as store:
        (trial,) = reading.trials(store, 1, ledgers=True)
        (first, *further) = reading.attempts(store, trial.id)
        journal = reading.journal_document(store, first.id)
    assert b"verify_identity" in journal
    assert (b"issue_refund" in journal) is (when == "after")
    if wrong and when == "after":
        # What it did stays: the attempt is the evidence, and no other one was made.
        assert rows(out) == {"one": ["1/1", "0", "0", "1"]}
        assert further == []
        assert b'"error":"AttemptLost"' in (trial.ledger or b"")
        assert b'"claimed_outcome":"needs_review"' in (trial.ledger or b"")
        assert b'"sealed_by":"journal"' in (trial.ledger or b"")
    elif wrong:
        assert rows(out) == {"one": ["1/1", "0", "0", "1"]}
        assert len(further) == 1
    else:
        discarded = ["1"] if when == "after" else []
        assert rows(out) == {"one": ["1/1", "1", "1", "0", *discarded]}
        assert status["summary"]["conditions"][0]["discarded_after_action"] == len(discarded)
        assert len(further) == 1


def test_a_journal_that_something_else_changed(local: Bench) -> None:
    """Nobody knows any more what the attempt did: that is an incident, and the run goes on."""
    agent = KILLED_AROUND_A_CALL.replace("WHO", "'runner'").replace("WHEN", "'after'")
    study = local.study("- {name: one, agent: 'own:agent', settings: {wrong: true}}", cases=1, agent=agent)
    local.start("run", study, "--phoenix", "off").communicate()
    assert local.all_gone()
    journals = (local.folder / ".cellwise" / "workers").glob("*.journal")
    (journal,) = [path for path in journals if path.stat().st_size]
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:1], lines[1].replace(b'"tool"', b'"toll"'), *lines[2:]]))
    out, _ = local.run(study)
    assert rows(out)["one"][0] == "1/1"
    local.once()
    (incident,) = local.status()["incidents"]
    assert incident["kind"] == "ledger_malformed"
    assert incident["detail"].endswith(".journal:2: no line of a journal")
