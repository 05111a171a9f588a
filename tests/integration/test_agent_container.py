"""An agent of one's own in a container beside the recorder: what ends with a trial, what is evidence."""

import signal
import socket
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pod_bench import AgentContainer, Intake, Pod, intake_with
from recorded_trial import assignment, bench, descendants, eventually

Start = Callable[..., AgentContainer]

OWN = """
    import os, signal, subprocess, sys, time
    from simulator import Output
    from simulator.agents import descriptive_control

    ANSWER = Output(message="done", claimed_outcome="needs_review")

    def refunds(request, tools):
        return descriptive_control.agent(request, tools)

    def crashes(request, tools):
        tools.list_orders(customer_id=request.customer_id)
        os.kill(os.getpid(), signal.SIGSEGV)

    def eats(request, tools):
        tools.list_orders(customer_id=request.customer_id)
        kept = []
        while True:
            kept.append(bytearray(b"1") * 16_000_000)

    def leaves(request, tools):
        # Two processes that leave the group and ignore what they are told.
        for _ in range(2):
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(600)
                os._exit(0)
        return ANSWER

    def hangs(request, tools):
        leaves(request, tools)
        time.sleep(600)

    def sees(request, tools):
        with open("/proc/self/environ", "rb") as file:
            kernel = file.read().replace(b"\\0", b"").decode()
        own = "/proc/self/fd/"
        links = [own + each for each in os.listdir(own)]
        sockets = sum(os.readlink(each).startswith("socket") for each in links if os.path.lexists(each))
        return Output(message=repr([dict(os.environ), kernel, sockets]), claimed_outcome="needs_review")

    def ends_its_host(request, tools):
        tools.list_orders(customer_id=request.customer_id)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    def kills_itself(request, tools):
        os.kill(os.getpid(), signal.SIGKILL)
    """


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
    started: list[AgentContainer] = []

    def start(environ: dict[str, str] | None = None, code: str = "") -> AgentContainer:
        started.append(AgentContainer(tmp_path, tmp_path / "agent.sock", environ, code))
        return started[-1]

    yield start
    for one in started:
        one.close()


def own(function: str, **changes: Any) -> dict[str, Any]:
    return assignment(f"own:{function}", **changes)


def pod_beside(folder: Path, intake: Intake, **environ: str | None) -> Pod:
    return Pod(folder, intake, {"CELLWISE_AGENT_SOCKET": str(folder / "agent.sock"), **environ})


def test_a_trial_in_a_container_is_the_local_one_but_for_its_isolation(tmp_path: Path, container: Start) -> None:
    with bench(tmp_path) as local:
        expected = local.run("own:refunds")
    container()
    with intake_with(own("refunds")) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0
        ledger = orjson.loads(intake.ledgers[1])
    assert ledger["content_hash"] == expected["content_hash"]
    assert (ledger["envelope"]["isolation"], expected["envelope"]["isolation"]) == ("container", "process")


def test_a_pod_with_a_container_asks_for_each_trial_once_its_agent_is_there(tmp_path: Path, container: Start) -> None:
    """It never takes the next trial with a ledger's answer: the container may not come back."""
    container()
    with intake_with(*[own("refunds")] * 3) as intake:
        intake.answers_next = True
        assert pod_beside(tmp_path, intake).ended() == 0
        assert intake.asked_next == []
        assert (len(intake.asked), list(intake.ledgers)) == (3, [1, 2, 3])


def test_a_container_that_starts_later_is_waited_for(tmp_path: Path, container: Start) -> None:
    with intake_with(own("refunds")) as intake:
        pod = pod_beside(tmp_path, intake)
        assert eventually(lambda: intake.asked)
        time.sleep(0.5)
        container()
        assert pod.ended() == 0


@pytest.mark.parametrize(
    ("function", "changes", "error"),
    [
        ("crashes", {}, "AgentExited"),
        ("eats", {"memory_mb": 256}, "MemoryLimit"),
        ("hangs", {"seconds": 1.0}, "TimeLimit"),
        ("kills_itself", {}, "AgentExited"),
        ("leaves", {}, None),
    ],
)
def test_however_an_agent_ends_is_evidence_and_nothing_of_it_is_left(
    tmp_path: Path, container: Start, function: str, changes: dict[str, Any], error: str | None
) -> None:
    beside = container()
    with intake_with(own(function, **changes), own(function, **changes)) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0
        assert [intake.content(attempt)["error"] for attempt in (1, 2)] == [error, error]
    assert eventually(lambda: not descendants(beside.pid))
    assert beside.starts == 1


def test_a_killed_recorder_takes_its_trial_along_and_the_container_serves_the_next(
    tmp_path: Path, container: Start
) -> None:
    beside = container()
    with intake_with(own("hangs")) as intake:
        pod = pod_beside(tmp_path, intake)
        assert eventually(lambda: len(descendants(beside.pid)) == 3)
        pod.process.kill()
        pod.process.communicate()
        assert eventually(lambda: not descendants(beside.pid))
    with intake_with(own("hangs", seconds=0.5)) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0


def test_the_fork_servers_end_is_evidence_and_the_container_comes_back(tmp_path: Path, container: Start) -> None:
    beside = container()
    with intake_with(own("ends_its_host"), own("ends_its_host")) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0
        assert [intake.content(attempt)["error"] for attempt in (1, 2)] == ["AgentExited", "AgentExited"]
        assert [len(intake.content(attempt)["calls"]) for attempt in (1, 2)] == [1, 1]
    assert eventually(lambda: beside.starts == 3)


def test_a_container_that_does_not_come_back_ends_the_pod_in_75_before_it_takes_another_attempt(
    tmp_path: Path, container: Start
) -> None:
    beside = container()
    with intake_with(own("ends_its_host"), own("ends_its_host")) as intake:
        beside._over = True
        pod = pod_beside(tmp_path, intake, CELLWISE_AGENT_START_SECONDS="1")
        assert pod.ended() == 75
        assert pod.reason.startswith("the agent's container did not come back: its container does not answer on ")
        assert (list(intake.ledgers), len(intake.asked)) == ([1], 1)


KILLS = """
def prepare(container):
    from pathlib import Path
    counted = Path({path!r})
    counted.write_text("low 0\\noom 0\\noom_kill 0\\n")
    container.MEMORY_EVENTS = (counted,)
"""


def test_a_process_that_the_kernel_ended_for_its_containers_memory_hit_the_memory_limit(
    tmp_path: Path, container: Start
) -> None:
    """The kernel's count is played: this test has no container whose memory it could use up."""
    counted = tmp_path / "memory.events"
    container(code=KILLS.format(path=str(counted)))
    with (tmp_path / "own.py").open("a") as file:
        file.write(
            "\ndef is_killed(request, tools):\n"
            f"    open({str(counted)!r}, 'w').write('low 0\\noom 1\\noom_kill 1\\n')\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
    with intake_with(own("is_killed")) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0
        assert intake.content()["error"] == "MemoryLimit"


def test_an_agent_sees_the_variables_that_its_condition_names_and_not_the_fork_servers_sockets(
    tmp_path: Path, container: Start
) -> None:
    container({"MODEL_KEY": "a value", "OTHER_KEY": "a secret", "CELLWISE_AGENT_SOCKET": "somewhere"})
    with intake_with(own("sees", env=["MODEL_KEY", "UNSET_KEY"])) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0
        assert intake.content()["message"] == repr([{"MODEL_KEY": "a value"}, "", 1])


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        ("raise KeyError('MODEL_KEY')", "broken:agent", "KeyError: 'MODEL_KEY'"),
        ("import sys; sys.exit(3)", "broken:agent", "SystemExit: 3"),
        ("import os; os._exit(3)", "broken:agent", "its process ended while loading"),
        ("x = 1", "broken:agent", "AttributeError: module 'broken' has no attribute 'agent'"),
        ("x = 1", "absent:agent", "ModuleNotFoundError: No module named 'absent'"),
        ("x = 1", "descriptive-control", "an agent in a container is a module:function, not 'descriptive-control'"),
    ],
)
def test_an_agent_that_does_not_load_is_told_and_ends_the_pod_in_78(
    tmp_path: Path, container: Start, module: str, name: str, told: str
) -> None:
    (tmp_path / "broken.py").write_text(module)
    container()
    with intake_with(assignment(name)) as intake:
        pod = pod_beside(tmp_path, intake)
        assert pod.ended() == 78
        assert pod.reason == f"the agent cannot be started: {told}"
        assert [(one.kind, one.message) for one in intake.unusable] == [("agent_not_startable", told)]


def test_a_container_that_never_answers_ends_the_pod_in_78(tmp_path: Path) -> None:
    with intake_with(own("refunds")) as intake:
        pod = pod_beside(tmp_path, intake, CELLWISE_AGENT_START_SECONDS="0.5")
        assert pod.ended() == 78
        assert pod.reason.endswith("agent.sock within 0.5 s: No such file or directory")


def test_a_container_runs_one_agent_with_one_set_of_variables(tmp_path: Path, container: Start) -> None:
    container()
    with intake_with(own("refunds")) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0
    with intake_with(own("leaves")) as intake:
        pod = pod_beside(tmp_path, intake)
        assert pod.ended() == 78
        assert "this container runs own:refunds with its own variables, not own:leaves" in pod.reason


@pytest.mark.parametrize("said", [b"", b"nonsense\n", b"[]\n", b'{"end": true}\n'])
def test_whoever_else_connects_holds_nobody_up(tmp_path: Path, container: Start, said: bytes) -> None:
    container()
    assert eventually((tmp_path / "agent.sock").exists)
    with socket.socket(socket.AF_UNIX) as other:
        assert eventually(lambda: _connected(other, tmp_path / "agent.sock"))
        other.sendall(said)
    with intake_with(own("refunds")) as intake:
        assert pod_beside(tmp_path, intake).ended() == 0


def _connected(one: socket.socket, path: Path) -> bool:
    try:
        one.connect(str(path))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("running", [False, True])
def test_sigterm_ends_a_container_at_once(tmp_path: Path, container: Start, running: bool) -> None:
    beside = container()
    with intake_with(own("hangs")) as intake:
        pod = pod_beside(tmp_path, intake) if running else None
        assert eventually((tmp_path / "agent.sock").exists)
        if running:
            assert eventually(lambda: len(descendants(beside.pid)) == 3)
        below = descendants(beside.pid)
        started = time.monotonic()
        assert beside.close() == 128 + signal.SIGTERM
        assert time.monotonic() - started < 2
        assert not any(Path(f"/proc/{pid}").exists() for pid in below)
        if pod is not None:
            assert pod.ended() == 0
            assert intake.content()["error"] == "AgentExited"
