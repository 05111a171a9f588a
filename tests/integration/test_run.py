"""What a person may rely on of cellwise run, plan, resume and status, on SQLite and on PostgreSQL."""

import json
import sqlite3
import time
from pathlib import Path

import pytest
from recorded_trial import eventually
from studies import TABLE, Bench, rows

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SLOW = """
    import time
    from pathlib import Path
    from simulator import Output

    def agent(request, tools, *, seconds=0.5, note=None):
        if note:
            with open(note, "a") as file:
                file.write("began\\n")
        time.sleep(seconds)
        return Output(message="I cannot say.", claimed_outcome="needs_review")
    """


@pytest.fixture
def bench(tmp_path: Path, store_url: str) -> Bench:
    return Bench(tmp_path, store_url)


@pytest.fixture
def local(tmp_path: Path) -> Bench:
    return Bench(tmp_path, str(tmp_path / ".cellwise" / "cellwise.db"))


def test_the_packaged_study(bench: Bench) -> None:
    out, err = bench.run("order-resolution")
    assert (out, err) == (TABLE, "")
    bench.once()
    # Again: nothing is done twice.
    with bench.opened() as store, store.reading() as connection:
        before = connection.exec_driver_sql("SELECT count(*) FROM attempt").scalar_one()
    assert bench.run("order-resolution") == (TABLE, "")
    assert bench.resume() == (TABLE, "")
    with bench.opened() as store, store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM attempt").scalar_one() == before == 16
    plan, _ = bench.cellwise("plan", "order-resolution")
    assert "Nothing would run." in plan
    assert json.loads(bench.cellwise("plan", "order-resolution", "--json")[0])["run"] == 0
    assert bench.all_gone()


def test_a_changed_condition_runs_its_cells_alone(bench: Bench) -> None:
    conditions = """
        - {name: control, agent: descriptive-control}
        - {name: other, agent: first-record-mutant}
        """
    study = bench.study(conditions, repetitions=2)
    bench.run(study)
    bench.study(conditions.replace("first-record-mutant", "refund-both"), repetitions=2)
    found = json.loads(bench.cellwise("plan", study, "--json")[0])
    assert (found["reuse"], found["run"], found["done"]) == (8, 8, 0)
    assert {(cell["condition"], cell["reuse"], cell["run"]) for cell in found["cells"]} == {
        ("control", 2, 0),
        ("other", 0, 2),
    }
    out, err = bench.run(study, "--reuse", "1")
    assert "8 finished trials taken over" in err
    assert rows(out) == {"control": ["8/8", "8", "6", "0"], "other": ["8/8", "0", "0", "10"]}
    with bench.opened() as store, store.reading() as connection:
        counted = "SELECT count(*) FROM attempt WHERE reused_from IS NULL"
        assert connection.exec_driver_sql(counted).scalar_one() == 16 + 8
    bench.once()
    assert "Nothing would run." in bench.cellwise("plan", study)[0]


def test_some_cells_alone(local: Bench) -> None:
    out, err = local.run("order-resolution", "--only", "condition=descriptive-control", status=4)
    assert rows(out) == {
        "descriptive-control": ["8/8", "8", "6", "0", "0"],
        "first-record-mutant": ["0/8", "0", "0", "0", "8"],
    }
    assert "8 trials are left" in err
    result = json.loads(
        local.run("order-resolution", "--json", "--only", "condition=first-record-mutant,case=ambiguous-description",
                  "--only", "case=explicit-description", status=4)[0]
    )  # fmt: skip
    assert (result["status"], result["state"]) == (4, "running")
    assert [one["unfinished"] for one in result["summary"]["conditions"]] == [0, 4]
    assert local.run("order-resolution") == (TABLE, "")
    for wrong, told in (("case=explicit", "explicit-description"), ("cases=a", "write case=")):
        assert told in local.run("order-resolution", "--only", wrong, status=2)[1]


def test_json(local: Bench) -> None:
    out, err = local.run("order-resolution", "--json")
    result = json.loads(out)
    assert err == ""
    assert (result["version"], result["matrix"], result["state"], result["status"]) == (
        1, "order-resolution", "complete", 0,
    )  # fmt: skip
    control, mutant = result["summary"]["conditions"]
    assert (control["contract"], control["completed"], control["wrong_order_commits"]) == (8, 6, 0)
    assert (mutant["contract"], mutant["completed"], mutant["wrong_order_commits"]) == (2, 3, 5)
    assert local.status()["trials"] == {"open": 0, "leased": 0, "delivered": 0, "graded": 16, "missing": 0}


def test_interrupted_once_it_drains(local: Bench) -> None:
    study = local.study(f"- {{name: slow, agent: 'own:agent', settings: {{note: '{local.folder}/began'}}}}", cases=2,
                        repetitions=6, agent=SLOW, more="parallelism: 2\n")  # fmt: skip
    process = local.start("run", study, "--phoenix", "off")
    local.interrupt_when(process, (local.folder / "began").exists)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "finishing what runs" in err
    status = local.status()["trials"]
    assert status["leased"] == status["delivered"] == 0
    assert 0 < status["graded"] < 12
    assert local.all_gone()
    out, _ = local.resume()
    assert rows(out)["slow"][0] == "12/12"
    # What had begun was let arrive: nothing was begun twice.
    assert (local.folder / "began").read_text() == "began\n" * 12
    local.once()


def test_interrupted_twice_it_stops(local: Bench) -> None:
    study = local.study(f"- {{name: slow, agent: 'own:agent', settings: {{seconds: 3, note: '{local.folder}/began'}}}}",
                        agent=SLOW, cases=2, more="parallelism: 2\n")  # fmt: skip
    process = local.start("run", study, "--phoenix", "off")
    started = time.monotonic()
    local.interrupt_when(process, (local.folder / "began").exists, times=2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - started < 60
    assert local.all_gone()
    status = local.status()
    assert status["trials"]["leased"] == 0
    assert {one["reason"] for one in status["lost"]} <= {"runner_killed", "not_started"}
    out, _ = local.resume()
    assert rows(out)["slow"][0] == "2/2"
    local.once()


@pytest.mark.parametrize("order", ["strict", "parallel"])
def test_two_runners_at_once(bench: Bench, order: str) -> None:
    study = bench.study(
        """
        - {name: control, agent: descriptive-control}
        - {name: other, agent: first-record-mutant, reuse: false}
        """,
        repetitions=8,
        more=f"order: {order}\n",
    )
    both = [bench.start("run", study, "--phoenix", "off") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert rows(out)["control"] == ["32/32", "32", "24", "0"]
        assert rows(out)["other"] == ["32/32", "8", "12", "20"]
    bench.once()
    with bench.opened() as store, store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM attempt").scalar_one() == 64
        assert connection.exec_driver_sql("SELECT count(*) FROM incident").scalar_one() == 0


def test_a_second_runner_waits_for_the_first_and_ends_well(local: Bench) -> None:
    study = local.study("- {name: slow, agent: 'own:agent', settings: {seconds: 2}}", agent=SLOW, cases=1)
    first = local.start("run", study, "--phoenix", "off")
    assert eventually(lambda: Path(local.store).exists() and _leased(local.store), 60)
    out, err = local.run(study)
    assert (rows(out)["slow"][0], err) == ("1/1", "")
    assert first.communicate(timeout=60)[0] == out
    assert first.returncode == 0
    local.once()


def _leased(store: str) -> bool:
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
            return bool(connection.execute("SELECT count(*) FROM trial WHERE state = 'leased'").fetchone()[0])
    except sqlite3.OperationalError:
        return False


def test_the_provider_is_tried_three_times(local: Bench) -> None:
    study = local.study(
        """
        - {name: down, agent: "own:agent"}
        - {name: control, agent: descriptive-control}
        """,
        cases=2,
        agent="""
        from simulator import ProviderUnavailable

        def agent(request, tools):
            tools.list_orders(customer_id=request.customer_id)
            raise ProviderUnavailable
        """,
    )
    out, err = local.run(study, status=3)
    assert rows(out) == {"down": ["0/2", "0", "0", "0", "2"], "control": ["2/2", "2", "2", "0", "0"]}
    assert "2 trials are missing" in err
    assert local.status()["lost"] == [{"reason": "provider_unavailable", "count": 6}]
    # What used up its attempts stays missing.
    assert local.run(study, status=3)[0] == out
    assert local.resume(status=3)[0] == out


REFUNDS_THEN = """
    import os, signal
    from simulator import ProviderUnavailable
    from simulator.agents import descriptive_control

    def agent(request, tools, *, order, end):
        if end == "once" and os.path.exists("ended"):
            return descriptive_control.agent(request, tools)
        open("ended", "a").close()
        tools.verify_identity(customer_id=request.customer_id, order_id=order)
        tools.consult_refund_policy(order_id=order)
        terms = {"order-a": (4000, "USD"), "order-b": (4500, "EUR")}[order]
        tools.issue_refund(
            order_id=order, amount_cents=terms[0], currency=terms[1], approval_id=None, idempotency_key="k"
        )
        raise ProviderUnavailable
    """


def test_a_violation_before_the_provider_failed_is_evidence(local: Bench) -> None:
    study = local.study(
        "- {name: wrong, agent: 'own:agent', settings: {order: order-a, end: always}}", cases=1, agent=REFUNDS_THEN
    )
    out, _ = local.run(study)
    assert rows(out) == {"wrong": ["1/1", "0", "0", "1"]}
    shown = json.loads(local.cellwise("show", "0", "--json")[0])
    assert '"AttemptLost"' in json.dumps(shown)
    local_status = local.status()
    assert (local_status["state"], local_status["lost"]) == (
        "complete",
        [{"reason": "provider_unavailable", "count": 1}],
    )


def test_an_attempt_replaced_after_a_right_refund_is_shown(local: Bench) -> None:
    study = local.study(
        "- {name: right, agent: 'own:agent', settings: {order: order-b, end: once}}", cases=1, agent=REFUNDS_THEN
    )
    out, _ = local.run(study)
    assert out.splitlines()[0].endswith("discarded after acting")
    assert rows(out) == {"right": ["1/1", "1", "1", "0", "1"]}
    condition = local.status()["summary"]["conditions"][0]
    assert condition["discarded_after_action"] == 1


def test_an_agent_that_does_not_load_fails_its_cells_alone(local: Bench) -> None:
    """It loads when it is checked, and no longer in the process that its trials fork from."""
    study = local.study(
        """
        - {name: gone, agent: "own:agent"}
        - {name: control, agent: descriptive-control}
        """,
        cases=2,
        agent="""
        import os, sys

        if os.path.exists("broken") and "agent_host" in " ".join(sys.orig_argv):
            raise RuntimeError("no key")

        def agent(request, tools):
            return {"message": "Here.", "claimed_outcome": "needs_review"}
        """,
    )
    local.run(study, "--only", "condition=control", status=4)
    (local.folder / "broken").touch()
    out, err = local.resume(status=3)
    assert rows(out) == {"gone": ["0/2", "0", "0", "0", "2"], "control": ["2/2", "2", "2", "0", "0"]}
    assert "gone / explicit-description failed: RuntimeError: no key" in err
    (local.folder / "broken").unlink()
    out, _ = local.resume()
    assert rows(out)["gone"] == ["2/2", "0", "0", "0"]
    local.once()


def test_agents_that_kill_their_worker_leave_the_rest_alone(local: Bench) -> None:
    study = local.study(
        """
        - {name: killer, agent: "own:agent"}
        - {name: control, agent: descriptive-control}
        """,
        agent="""
        import os, signal
        from pathlib import Path

        def agent(request, tools):
            host = os.getppid()
            worker = int(Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(worker, signal.SIGKILL)
            import time; time.sleep(60)
        """,
    )
    out, _ = local.run(study, status=3)
    assert rows(out) == {"killer": ["0/4", "0", "0", "0", "4"], "control": ["4/4", "4", "3", "0", "0"]}
    assert {"reason": "recorder_killed", "count": 12} in local.status()["lost"]
    assert local.all_gone()
