"""Whatever an agent does to itself or to the bench, its trial ends: the error is named, what it did before is in the
ledger and graded, and no process of it is left."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from recorded_trial import Bench, assignment, bench, descendants, descriptors, eventually, graded, marked, refunds

from simulator.agent_host import become_subreaper
from simulator.agent_process import AgentNotStartable
from simulator.journal_reading import read_journal
from simulator.recorder import Lease, ProviderFailed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at through /proc")


@pytest.fixture(autouse=True, scope="module")
def _as_in_a_worker() -> None:
    become_subreaper()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        yield one
    assert descendants() <= one.processes_before  # others of this run may have ended meanwhile


def own(opened: Bench, source: str) -> str:
    """An agent of one's own, in a module of its own."""
    module = f"own_{abs(hash(source)):x}"
    (opened.log.parent / f"{module}.py").write_text(dedent(source))
    return f"{module}:agent"


def left_by(opened: Bench) -> set[int]:
    """What runs below this process, but for the fork servers."""
    hosts = {host.pid for host in opened.recorder._hosts.values()}
    return descendants() - opened.processes_before - hosts


@pytest.mark.parametrize(
    ("agent", "settings", "limits", "error", "check"),
    [
        ("crashing", {"after_refund": True}, {}, "RuntimeError", "execution_error"),
        ("overrunning", {"place": "sleep", "after_refund": True}, {"seconds": 2.0}, "TimeLimit", "budget"),
        ("overrunning", {"place": "c", "after_refund": True}, {"seconds": 2.0}, "TimeLimit", "budget"),
        ("overrunning", {"place": "grandchild", "after_refund": True}, {"seconds": 2.0}, "TimeLimit", "budget"),
        ("memory-eating", {"after_refund": True}, {"memory_mb": 128}, "MemoryLimit", "budget"),
        ("silent", {"after_refund": True}, {}, "AgentExited", "execution_error"),
        ("null", {}, {}, "InvalidOutput", "execution_error"),
        ("refund-both", {}, {"tool_calls": 5}, "CallLimit", "budget"),
    ],
)
def test_packaged(
    opened: Bench, agent: str, settings: dict[str, Any], limits: dict[str, Any], error: str, check: str
) -> None:
    ledger = opened.run(agent, settings, **limits)
    content = ledger["content"]
    assert (content["error"], content["message"], content["claims"]["claimed_outcome"]) == (error, "", "needs_review")
    if agent != "null":
        assert refunds(ledger) == {"order-a": 1, "order-b": 0, "order-c": 0}
        assert graded(ledger).observed("wrong_order_commits") == 1
    assert check in graded(ledger).failed_checks
    assert graded(ledger).verdict == "failed"
    assert left_by(opened) == set()
    assert b"a text that may hold" not in str(ledger).encode()


def test_the_control_passes_beside_them(opened: Bench) -> None:
    opened.run("crashing")
    ledger = opened.run("descriptive-control", reuse=True)
    assert graded(ledger).failed_checks == []
    assert refunds(ledger) == {"order-a": 0, "order-b": 1, "order-c": 0}


def test_what_the_agent_can_see(opened: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_BENCH", "no agent may see this")
    monkeypatch.setenv("KEY_OF_THE_AGENT", "value")
    agent = own(
        opened,
        """
        import json, os, sys
        from pathlib import Path
        from simulator import Output

        def agent(request, tools, *, secret):
            held = {}
            for each in os.listdir("/proc/self/fd"):
                try:
                    held[each] = os.readlink(f"/proc/self/fd/{each}")
                except OSError:
                    pass  # the listing's own
            seen = {
                "environment": dict(os.environ),
                "initial": Path("/proc/self/environ").read_bytes().decode(),
                "arguments": Path("/proc/self/cmdline").read_bytes().decode(),
                "held": held,
                "request": [request.utterance, request.customer_id],
                "modules": [name for name in sys.modules if name.split(".")[0] == "grading"],
                "sessions": [os.getpgid(0) == os.getpid(), os.getppid() == os.getsid(0)],
            }
            return Output(message=json.dumps(seen), claimed_outcome="not_refunded")
        """,
    )
    import json

    ledger = opened.run(agent, {"secret": "of the agent"}, env=["KEY_OF_THE_AGENT", "NOT_SET"])
    seen = json.loads(ledger["content"]["message"])
    assert seen["environment"] == {"KEY_OF_THE_AGENT": "value"}
    assert seen["initial"] == "KEY_OF_THE_AGENT=value\0"
    assert seen["request"] == ["Refund the blue backpack bought on 2026-08-02.", "customer-1"]
    assert seen["modules"] == []
    assert seen["sessions"] == [True, True]
    held = dict(seen["held"])
    assert held.pop("0") == "/dev/null"
    assert held.pop("1") == held.pop("2") == str(opened.log)
    # The trial's own socket, and nothing else.
    assert [target.partition(":")[0] for target in held.values()] == ["socket"]
    for word in ("expectation", "clarifications", "order-b", "explicit-description", "baseline", "trial-1"):
        assert word not in json.dumps({key: value for key, value in seen.items() if key != "modules"})


def test_the_agent_reads_what_it_needs_and_no_more(opened: Bench) -> None:
    """The opening of a trial, byte for byte as it goes over the socket."""
    agent = own(
        opened,
        """
        from simulator import Output
        import simulator.agent_host as host

        heard = []
        real = host._answer
        host._answer = lambda opening, connection: heard.append(opening) or real(opening, connection)

        def agent(request, tools):
            return Output(message=repr(sorted(heard[0])), claimed_outcome="not_refunded")
        """,
    )
    ledger = opened.run(agent)
    assert ledger["content"]["message"] == "['agent', 'request', 'settings', 'version']"


def test_async_function(opened: Bench) -> None:
    agent = own(
        opened,
        """
        import asyncio

        async def agent(request, tools):
            await asyncio.sleep(0)
            orders = tools.list_orders(customer_id=request.customer_id)
            return {"message": str(len(orders)), "claimed_outcome": "not_refunded"}
        """,
    )
    assert opened.run(agent)["content"]["message"] == "2"


def test_calls_from_many_threads(opened: Bench) -> None:
    agent = own(
        opened,
        """
        import threading

        def agent(request, tools):
            answers = []
            def work():
                for _ in range(5):
                    answers.append(tools.verify_identity(customer_id=request.customer_id, order_id="order-b"))
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return {"message": str(answers.count(True)), "claimed_outcome": "not_refunded"}
        """,
    )
    ledger = opened.run(agent)
    assert ledger["content"]["message"] == "40"
    assert len(ledger["content"]["calls"]) == 40


def test_prints_a_lot(opened: Bench) -> None:
    agent = own(
        opened,
        """
        import sys

        def agent(request, tools):
            for _ in range(2000):
                print("x" * 1000)
                print("y" * 1000, file=sys.stderr)
            return {"message": "done", "claimed_outcome": "not_refunded"}
        """,
    )
    assert opened.run(agent)["content"]["message"] == "done"
    assert opened.log.stat().st_size >= 4_000_000


KILLS_ITS_FORK_SERVER = """
    import os, signal, time

    def agent(request, tools, *, refund=False, answers=False, leaves=False):
        if refund:
            terms = dict(order_id="order-a")
            tools.verify_identity(customer_id=request.customer_id, order_id="order-a")
            tools.consult_refund_policy(order_id="order-a")
            tools.issue_refund(
                order_id="order-a", amount_cents=4000, currency="USD", approval_id=None, idempotency_key="k"
            )
        parent = os.getppid()
        if leaves and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
        if answers and os.fork() == 0:
            os.setsid()
            time.sleep(0.3)
            os.kill(parent, signal.SIGKILL)
            os._exit(0)
        if not answers:
            os.kill(parent, signal.SIGKILL)
            time.sleep(60)
        return {"message": "done", "claimed_outcome": "not_refunded"}
    """


def test_kills_its_fork_server(opened: Bench) -> None:
    agent = own(opened, KILLS_ITS_FORK_SERVER)
    ledger = opened.run(agent, {"refund": True})
    assert ledger["content"]["error"] == "AgentExited"
    assert refunds(ledger)["order-a"] == 1
    again = opened.run(agent, {"refund": True})
    assert again["content"]["error"] == "AgentExited"
    assert again["content_hash"] == ledger["content_hash"]


def test_what_outlives_a_killed_fork_server_is_ended(opened: Bench) -> None:
    ledger = opened.run(own(opened, KILLS_ITS_FORK_SERVER), {"leaves": True})
    assert ledger["content"]["error"] == "AgentExited"
    assert left_by(opened) == set()


def test_an_answer_stands_whatever_the_agent_leaves_behind(opened: Bench) -> None:
    agent = own(opened, KILLS_ITS_FORK_SERVER)
    assert opened.run(agent, {"answers": True})["content"]["message"] == "done"
    assert left_by(opened) == set()


@pytest.mark.parametrize("reuse", [False, True])
def test_a_fork_server_killed_between_two_trials_is_replaced(opened: Bench, reuse: bool) -> None:
    first = opened.run("descriptive-control", reuse=reuse)
    (host,) = opened.recorder._hosts.values()
    os.kill(host.pid, signal.SIGKILL)
    time.sleep(0.1)
    second = opened.run("descriptive-control", reuse=reuse)
    assert second["content_hash"] == first["content_hash"]


def test_a_reused_process_killed_between_two_trials_is_replaced(opened: Bench) -> None:
    first = opened.run("descriptive-control", reuse=True)
    (process,) = left_by(opened)
    os.kill(process, signal.SIGKILL)
    assert eventually(lambda: left_by(opened) == set())
    time.sleep(0.1)
    assert opened.run("descriptive-control", reuse=True)["content_hash"] == first["content_hash"]


def test_exits_at_once_and_leaves_its_socket_to_a_child(opened: Bench) -> None:
    """Its end is told together with its start; the open socket alone would hide it until the time limit."""
    agent = own(
        opened,
        """
        import os, time

        def agent(request, tools):
            if os.fork() == 0:
                os.setsid()
                time.sleep(600)
            os._exit(0)
        """,
    )
    started = time.monotonic()
    for _ in range(5):
        assert opened.run(agent, seconds=30.0)["content"]["error"] == "AgentExited"
    assert time.monotonic() - started < 20
    assert left_by(opened) == set()


@pytest.mark.parametrize(
    ("sent", "error", "calls"),
    [
        (b"\x00\xff\xfe not json\n" + b'{"output": 5}\n', "InvalidOutput", 1),
        (b"[1, 2]\n" + b'{"tool": 5}\n' + b'{"tool": "list_orders", "tool": "get_order"}\n', "AgentExited", 3),
        (b'{"failed": "no name at all"}\n', "Exception", 0),
        (b'{"failed": "AttemptLost"}\n', "Exception", 0),
        (b'{"failed": "TimeLimit"}\n', "Exception", 0),
        (b'{"failed": "MemoryError"}\n', "MemoryLimit", 0),
        (b'{"output": {"message": "a lone \\ud800", "claimed_outcome": "refunded"}}\n', "InvalidOutput", 0),
        (b'{"output": {"message": "", "claimed_outcome": "refunded"}}\n', "InvalidOutput", 0),
        (b"[" * 100_000 + b"\n" + b'{"output": null}\n', "InvalidOutput", 1),
        (b'{"half a line', "AgentExited", 0),
    ],
)
def test_writes_to_its_socket_by_hand(opened: Bench, sent: bytes, error: str, calls: int) -> None:
    agent = own(
        opened,
        f"""
        import os

        def agent(request, tools):
            tools._connection.socket.sendall({sent!r})
            import time
            time.sleep(0.2)
            os._exit(0)
        """,
    )
    content = opened.run(agent)["content"]
    assert content["error"] == error
    assert [(call["tool"], call["arguments"], call["error"]) for call in content["calls"]] == [
        ("", None, "InvalidCall")
    ] * calls


def test_a_line_without_end(opened: Bench) -> None:
    agent = own(
        opened,
        """
        def agent(request, tools):
            tools._connection.socket.sendall(b"x" * 10_000_000)
        """,
    )
    assert opened.run(agent)["content"]["error"] == "ProtocolError"


def test_calls_of_many_megabytes(opened: Bench) -> None:
    """Past what a trial may take on record the call is not carried out, and what is on record fits the intake."""
    agent = own(
        opened,
        """
        def agent(request, tools):
            while True:
                tools.ask_customer(question="?" * 5_000_000)
        """,
    )
    ledger = opened.run(agent)
    assert ledger["content"]["error"] == "DiskLimit"
    assert len(ledger["content"]["calls"]) == 3
    assert "budget" in graded(ledger).failed_checks


def test_never_reads_an_answer(opened: Bench) -> None:
    agent = own(
        opened,
        """
        def agent(request, tools):
            while True:
                tools._connection.send(b'{"tool": "list_orders", "arguments": {"customer_id": "customer-1"}}')
        """,
    )
    ledger = opened.run(agent, seconds=2.0, tool_calls=100_000)
    assert ledger["content"]["error"] == "TimeLimit"


def test_ends_its_process_in_every_way(opened: Bench) -> None:
    agent = own(
        opened,
        """
        import os, signal, sys

        def agent(request, tools, *, how):
            tools.list_orders(customer_id=request.customer_id)
            if how == "exit":
                sys.exit(0)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "group":
                os.killpg(0, signal.SIGKILL)
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            sys.stdout = None
            raise KeyboardInterrupt
        """,
    )
    for how, error in (
        ("exit", "AgentExited"),
        ("kill", "AgentExited"),
        ("group", "AgentExited"),
        ("interrupt", "AgentExited"),
        ("stop", "TimeLimit"),
    ):
        content = opened.run(agent, {"how": how}, seconds=1.5 if how == "stop" else 20.0)["content"]
        assert (how, content["error"], len(content["calls"])) == (how, error, 1)
        assert left_by(opened) == set()


def test_leaves_children_that_multiply(opened: Bench) -> None:
    agent = own(
        opened,
        """
        import os, time

        def agent(request, tools):
            for _ in range(20):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        os.setsid()
                        time.sleep(600)
                    os._exit(0)
            return {"message": "done", "claimed_outcome": "not_refunded"}
        """,
    )
    for _ in range(3):
        assert opened.run(agent)["content"]["message"] == "done"
        assert left_by(opened) == set()


def test_provider_unavailable_is_no_evidence(opened: Bench) -> None:
    agent = own(
        opened,
        """
        from simulator import ProviderUnavailable

        def agent(request, tools):
            tools.list_orders(customer_id=request.customer_id)
            raise ProviderUnavailable("429")
        """,
    )
    with pytest.raises(ProviderFailed):
        opened.run(agent)
    journal = read_journal(opened.journal)[1]
    assert ([entry["call"]["tool"] for entry in journal.calls], journal.ledger) == (["list_orders"], None)
    assert left_by(opened) == set()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('no key')", "RuntimeError: no key"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(0)", "its process ended while loading"),
        ("import no_such_module_at_all", "ModuleNotFoundError"),
        ("", "has no attribute 'agent'"),
    ],
)
def test_an_agent_that_does_not_load(opened: Bench, source: str, told: str) -> None:
    agent = own(opened, source)
    for _ in range(2):
        with pytest.raises(AgentNotStartable, match=told):
            opened.recorder.run(Lease(1, 1, "trial", "secret"), assignment(agent), "sha256:" + "0" * 64)
    assert left_by(opened) == set()


def test_thousands_of_trials_leak_no_descriptor(opened: Bench) -> None:
    opened.run("descriptive-control")
    opened.run("silent")
    before = descriptors()
    for _ in range(60):
        opened.run("descriptive-control")
        opened.run("silent")
    assert descriptors() == before
    for host in opened.recorder._hosts.values():
        assert eventually(lambda host=host: descriptors(host.pid) == 4)


def test_a_loading_agent_ends_with_its_recorder(tmp_path: Path) -> None:
    """One whose import never comes to an end, too: it could not see that its recorder is gone."""
    import subprocess

    (tmp_path / "endless.py").write_text("while True:\n    pass\n")
    code = (
        "import sys; from pathlib import Path; from simulator.agent_process import AgentHost\n"
        f"root = {str(tmp_path)!r}\n"
        "AgentHost.start('endless:agent', Path(root), {'MARK': root}, open('/dev/null', 'wb'))"
    )
    recorder = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert eventually(lambda: len(marked(f"MARK={tmp_path}")) == 1)
        time.sleep(0.5)
    finally:
        recorder.kill()
        recorder.wait()
    assert eventually(lambda: marked(f"MARK={tmp_path}") == set())
