"""A packaged agent's process is forked, not started, and yet holds no secret and no descriptor of its worker's."""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from recorded_trial import assignment, bench, descendants, descriptors, eventually, graded, marked

from grading.launcher import Worker
from simulator.worker import _start_host
from simulator.zygote import Zygote

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every host is started")

SECRET = "not-for-agents-"


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker of a runner whose environment holds a secret, made up here so that no source holds it."""
    monkeypatch.setenv("KEY_OF_THE_OPERATOR", SECRET + "operator"[::-1])
    started = Worker("worker-1", tmp_path, tmp_path)
    yield started
    started.end(at_once=True)
    assert eventually(lambda: marked(str(tmp_path)) == set())


def hand_out(worker: Worker, agent: str, number: int = 1, **changes: Any) -> None:
    lease = {
        "attempt": number,
        "number": 1,
        "trial": f"trial-{number}",
        "secret": SECRET + "esael",
        "hash": f"{agent}-{number}",
    }
    worker.hand_out([(lease, assignment(agent, {"seconds": 300}, **changes))])


def reports(worker: Worker, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def heard() -> bool:
        with suppress(BlockingIOError):
            found.extend(head for head, _ in worker.reports() or ())
        return len(found) >= count

    assert eventually(heard, 30), found
    return found


def memory(pid: int) -> bytes:
    """All that a process has in memory."""
    held = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last, readable = re.match(r"([0-9a-f]+)-([0-9a-f]+) (.)", line).groups()  # type: ignore[union-attr]
            if readable == "r" and "[v" not in line:
                file.seek(int(first, 16))
                held.append(file.read(int(last, 16) - int(first, 16)))
    return b"".join(held)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.mark.parametrize("reuse", [True, False])
def test_no_process_of_a_packaged_agent_holds_a_secret_of_its_worker(worker: Worker, reuse: bool) -> None:
    for number in (1, 2):
        hand_out(worker, "overrunning", number, reuse=reuse, seconds=1.0 if number == 1 else 200.0)
    assert [list(report)[-1] for report in reports(worker, 3)] == ["began", "delivered", "began"]
    pid = worker._process.pid
    below = eventually(lambda: sorted(found) if len(found := descendants(pid)) == 3 else None)
    assert below, descendants(pid)  # the zygote, the host, the agent
    time.sleep(0.2)
    # They can be found where they are, so that not finding them means something.
    assert (SECRET + "rotarepo").encode() in memory(pid)
    assert (SECRET + "esael").encode() in memory(pid)
    for one in below:
        held = memory(one)
        assert b"list_orders" in held
        assert SECRET.encode() not in held
        assert Path(f"/proc/{one}/environ").read_bytes() == b""
        assert worker.journal.name.encode() not in Path(f"/proc/{one}/cmdline").read_bytes()


def test_a_forked_host_is_like_one_that_was_started(tmp_path: Path) -> None:
    zygote = Zygote.fork()
    assert zygote is not None
    held = socket.socket()  # opened after it was forked off, and never in it
    with (tmp_path / "log").open("wb", buffering=0) as log, held:
        process, control = zygote.fork_host("descriptive-control", tmp_path, log) or pytest.fail("no host")
        assert control.recv(100) == b'{"ready": true}\n'
        assert os.getsid(process.pid) == process.pid
        assert Path(f"/proc/{process.pid}/cwd").readlink() == tmp_path
        assert descriptors(process.pid) == 4
        targets = [Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in range(3)]
        assert targets == [Path("/dev/null"), tmp_path / "log", tmp_path / "log"]
        # The zygote's end does not end it; its control socket's does.
        zygote.close()
        assert zygote.fork_host(None, tmp_path, log) is None
        control.close()
        assert eventually(lambda: not lives(process.pid))


def test_a_host_that_does_not_end_is_killed(tmp_path: Path) -> None:
    zygote = Zygote.fork()
    assert zygote is not None
    with (tmp_path / "log").open("wb", buffering=0) as log:
        process, control = zygote.fork_host(None, tmp_path, log) or pytest.fail("no host")
        assert control.recv(100) == b'{"ready": true}\n'
        os.kill(process.pid, signal.SIGSTOP)
        started = time.monotonic()
        process.end(0.1)
        assert 0.1 <= time.monotonic() - started < 10
        assert not lives(process.pid)
        process.end(0.1)
        control.close()
    zygote.close()


def test_trials_go_on_without_the_zygote_once_it_was_killed(tmp_path: Path) -> None:
    with bench(tmp_path) as opened:
        zygote = Zygote.fork()
        assert zygote is not None
        opened.recorder._start_host = partial(_start_host, zygote, tmp_path, opened._log)
        before = graded(opened.run("descriptive-control", reuse=True))
        host = next(iter(opened.recorder._hosts.values()))
        os.kill(zygote.pid, signal.SIGKILL)
        assert graded(opened.run("descriptive-control", reuse=True)) == before
        assert next(iter(opened.recorder._hosts.values())) is host
        os.kill(host.pid, signal.SIGKILL)
        assert eventually(lambda: not lives(host.pid))
        assert graded(opened.run("descriptive-control", reuse=True)) == before
        assert graded(opened.run("descriptive-control")) == before
    assert eventually(lambda: marked(str(tmp_path)) == set())


def test_a_zygote_ends_with_its_worker(worker: Worker) -> None:
    hand_out(worker, "overrunning", reuse=True, seconds=200.0)
    reports(worker, 1)
    pid = worker._process.pid
    assert eventually(lambda: len(descendants(pid)) == 3)
    below = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not any(lives(one) for one in below))
