"""The recorder in a pod: how it ends, what the intake knows before an agent is answered, and what no agent sees."""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pod_bench import (
    LAUNCH,
    ROOT,
    TOKEN,
    Intake,
    Pod,
    after,
    dripping,
    half_an_answer,
    intake_with,
    no_answer,
    silent,
    status,
)
from recorded_trial import assignment, bench, descendants, eventually

from simulator.agents import packaged_agents
from simulator.recorder import software

CONTROL = "descriptive-control"
TOOLS = ["list_orders", "verify_identity", "get_order", "consult_refund_policy", "issue_refund"]
SHORT: dict[str, dict[str, Any]] = {
    "memory-eating": {"memory_mb": 96},
    "overrunning": {"seconds": 0.6},
}


def control(**changes: Any) -> dict[str, Any]:
    return assignment(CONTROL, **({"reuse": True} | changes))


def lingering(**settings: Any) -> dict[str, Any]:
    """Refunds, then sleeps for as long as it is let."""
    return assignment("overrunning", {"after_refund": True, **settings}, seconds=60.0)


@pytest.fixture
def intake() -> Iterator[Intake]:
    with intake_with(control()) as opened:
        yield opened


def test_a_trial_is_fetched_run_journaled_and_delivered(tmp_path: Path, intake: Intake) -> None:
    pod = Pod(tmp_path, intake)
    assert pod.ended() == 0
    assert [path for _, path in intake.requests] == ["/v1/assignment", "/v1/journal", "/v1/ledger"]
    assert intake.connections == 1
    asked = intake.asked[0]
    assert (asked.launch, asked.index, asked.software.model_dump()) == ("0123456789abcdef" * 2, 0, software())
    ledger = orjson.loads(intake.ledgers[1])
    assert ledger["envelope"]["place"] == {
        "launcher": "kubernetes",
        "host": "node-1",
        "worker": "cw-0123456789-1-g1-0-abcde",
    }
    assert (ledger["envelope"]["isolation"], ledger["envelope"]["software"]) == ("process", software())
    # The refund was with the intake before it was answered, and everything before it; what the ledger adds is no call.
    assert intake.tools() == TOOLS
    assert [line["call"] for line in intake.lines()[1:]] == ledger["content"]["calls"]
    assert [{name: line[name] for name in ("started", "ended")} for line in intake.lines()[1:]] == ledger["envelope"][
        "calls"
    ]
    trial, end = pod.said
    assert (trial["event"], trial["attempt"], trial["trial"], trial["outcome"]) == ("trial", 1, "trial-1", "accepted")
    assert (end["event"], end["status"], "reason" in end) == ("end", 0, False)


def test_a_trial_runs_where_what_would_be_slow_to_load_cannot_be(tmp_path: Path, intake: Intake) -> None:
    """Neither its recorder nor its agent loads what a trial of a packaged agent can do without, at any point of it."""
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    third = ("orjson", "pydantic")
    for name in (*third, "dataclasses", "hashlib", "inspect", "pathlib", "platform", "threading", "urllib", "uuid"):
        (lacking / f"{name}.py").write_text("raise ImportError")
    path = f"{lacking}:{ROOT}:{sysconfig.get_path('platlib')}"
    # Without site, which loads some of these in a virtual environment, and in the image none.
    pod = Pod(tmp_path, intake, {"PYTHONPATH": path}, [sys.executable, "-S", "-m", "simulator.pod"])
    assert (pod.ended(), pod.said[-1].get("reason")) == (0, None)
    assert intake.tools() == TOOLS
    assert pod.said[0]["outcome"] == "accepted"


@pytest.mark.parametrize("agent", packaged_agents())
def test_a_packaged_agents_content_hash_is_the_local_one(tmp_path: Path, agent: str) -> None:
    from simulator.agents import load_agent

    changes = {"reuse": load_agent(agent).reusable, **SHORT.get(agent, {})}
    with bench(tmp_path) as local:
        expected = local.run(agent, **changes)
    with intake_with(assignment(agent, **changes)) as intake:
        assert Pod(tmp_path, intake).ended() == 0
        ledger = orjson.loads(intake.ledgers[1])
    assert ledger["content_hash"] == expected["content_hash"]
    assert ledger["content"] == expected["content"]
    assert ledger["content"]["error"] == {
        "crashing": "RuntimeError",
        "memory-eating": "MemoryLimit",
        "null": "InvalidOutput",
        "overrunning": "TimeLimit",
        "silent": "AgentExited",
    }.get(agent)


def test_twenty_repetitions_in_one_pod_each_have_their_own_attempt(tmp_path: Path) -> None:
    with intake_with(*[control()] * 20) as intake:
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert list(intake.ledgers) == list(range(1, 21))
        assert len({orjson.loads(document)["content_hash"] for document in intake.ledgers.values()}) == 1
        assert all(intake.tools(attempt) == TOOLS for attempt in range(1, 21))
        assert [line.get("attempt") for line in pod.said] == [*range(1, 21), None]
        assert len(intake.asked) == 20


def test_twenty_repetitions_of_an_agent_that_is_not_reused(tmp_path: Path) -> None:
    with intake_with(*[assignment("silent", {"after_refund": True})] * 20) as intake:
        assert Pod(tmp_path, intake).ended() == 0
        assert {orjson.loads(document)["content"]["error"] for document in intake.ledgers.values()} == {"AgentExited"}
        assert len(intake.ledgers) == 20


def test_more_that_another_pod_has_taken_ends_in_0(tmp_path: Path, intake: Intake) -> None:
    intake.more = lambda number: True
    assert Pod(tmp_path, intake).ended() == 0
    assert [path for _, path in intake.requests][-1] == "/v1/assignment"


def test_nothing_to_do_ends_in_0(tmp_path: Path) -> None:
    with intake_with() as intake:
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert len(pod.said) == 1


def test_texts_that_look_like_variables_arrive_unchanged(tmp_path: Path) -> None:
    given = control()
    given["request"]["utterance"] = (
        "Refund $(CELLWISE_LAUNCH) $$(HOME) $$ ${HOME} the blue backpack bought on 2026-08-02"
    )
    with intake_with(given) as intake:
        assert Pod(tmp_path, intake).ended() == 0
        assert intake.content()["request"]["utterance"] == given["request"]["utterance"]


# ---- Exit codes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"CELLWISE_INTAKE": None}, "CELLWISE_INTAKE is not set"),
        ({"CELLWISE_INTAKE": "intake:8080"}, "CELLWISE_INTAKE is 'intake:8080', no URL"),
        ({"CELLWISE_LAUNCH": ""}, "CELLWISE_LAUNCH is not set"),
        ({"CELLWISE_POD_NAME": None}, "CELLWISE_POD_NAME is not set"),
        ({"CELLWISE_NODE": None}, "CELLWISE_NODE is not set"),
        ({"JOB_COMPLETION_INDEX": "-1"}, "JOB_COMPLETION_INDEX is '-1'"),
        ({"CELLWISE_TOKEN_FILE": "/nowhere/token"}, "there is no such file: is the token mounted?"),
        ({"CELLWISE_RETRY_SECONDS": "soon"}, "CELLWISE_RETRY_SECONDS is 'soon', no number of seconds"),
    ],
)
def test_a_wrong_environment_ends_in_78_and_says_which_variable(
    tmp_path: Path, intake: Intake, changes: dict[str, str | None], told: str
) -> None:
    pod = Pod(tmp_path, intake, changes)
    assert pod.ended() == 78
    assert told in pod.reason
    assert intake.requests == []


@pytest.mark.parametrize("code", [403, 409, 404, 422])
def test_an_assignment_that_is_never_given_ends_in_78(tmp_path: Path, intake: Intake, code: int) -> None:
    intake.faults["/v1/assignment"] = [status(code)]
    pod = Pod(tmp_path, intake)
    assert pod.ended() == 78
    assert pod.reason == f"/v1/assignment: answered {code}: made to answer {code}"


def test_an_agent_of_ones_own_without_an_image_ends_in_78(tmp_path: Path) -> None:
    with intake_with(assignment("own:agent")) as intake:
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 78
        assert "own:agent is an agent of one's own and its condition has no image" in pod.reason
        assert [(one.attempt, one.kind) for one in intake.unusable] == [(1, "agent_not_startable")]
        assert "write image: REGISTRY/NAME@sha256:..." in intake.unusable[0].message
        assert [line["outcome"] for line in pod.said[:-1]] == ["agent_not_startable"]


@pytest.mark.parametrize("outcome", ["fenced", "conflicting", "quarantined"])
def test_a_ledger_that_is_not_accepted_ends_in_75(tmp_path: Path, intake: Intake, outcome: str) -> None:
    intake.outcome = outcome
    pod = Pod(tmp_path, intake)
    assert pod.ended() == 75
    assert pod.reason == f"the ledger was {outcome}"
    assert pod.said[0]["outcome"] == outcome


def test_the_same_ledger_again_is_as_good_as_accepted(tmp_path: Path, intake: Intake) -> None:
    intake.outcome = "repeated"
    assert Pod(tmp_path, intake).ended() == 0


def test_a_ledger_that_is_too_large_ends_in_75(tmp_path: Path, intake: Intake) -> None:
    intake.faults["/v1/ledger"] = [status(413)]
    pod = Pod(tmp_path, intake)
    assert pod.ended() == 75
    assert "413" in pod.reason


@pytest.mark.parametrize(
    "changes",
    [{"hash": "sha256:" + "0" * 64}, {"attempt": "1"}, {"more": 1}, {"assignment": []}],
    ids=["another assignment", "attempt", "more", "assignment"],
)
def test_an_assignment_that_is_none_is_not_run(tmp_path: Path, intake: Intake, changes: dict[str, Any]) -> None:
    from simulator.canonical import canonical_hash

    given = control()
    whole = {"version": 1, "attempt": 1, "number": 1, "trial": "t", "assignment": given, "more": False}
    body = json.dumps(whole | {"hash": canonical_hash(given)} | changes).encode()

    def answered(handler: Any) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    intake.faults["/v1/assignment"] = [answered]
    pod = Pod(tmp_path, intake)
    assert pod.ended() == 75
    assert "the assignment is" in pod.reason
    assert intake.ledgers == {}


# ---- The next trial with a ledger's answer -------------------------------------------------------------------------


def paths(intake: Intake) -> list[str]:
    return [path for _, path in intake.requests]


def test_a_pod_runs_all_its_trials_with_one_question(tmp_path: Path) -> None:
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next, intake.tells_after = True, False
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert paths(intake) == ["/v1/assignment", *["/v1/journal", "/v1/ledger"] * 3]
        assert intake.asked_next == [1, 2], "with the last ledger there is nothing to ask for"
        assert list(intake.ledgers) == [1, 2, 3]
        assert all(intake.tools(attempt) == TOOLS for attempt in (1, 2, 3))
        assert [(line["attempt"], line["trial"], line["outcome"]) for line in pod.said[:-1]] == [
            (number, f"trial-{number}", "accepted") for number in (1, 2, 3)
        ]


def test_where_no_next_trial_comes_the_pod_asks_for_it(tmp_path: Path) -> None:
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next, intake.tells_after = True, False
        intake.faults["/v1/ledger"] = [None, after(lambda: setattr(intake, "answers_next", False))]
        assert Pod(tmp_path, intake).ended() == 0
        assert paths(intake) == [
            *["/v1/assignment", *["/v1/journal", "/v1/ledger"] * 2],
            *["/v1/assignment", "/v1/journal", "/v1/ledger"],
        ]
        assert list(intake.ledgers) == [1, 2, 3]


@pytest.mark.parametrize("outcome", ["accepted", "repeated"])
def test_a_pod_whose_answer_with_the_next_trial_is_lost_goes_on_with_that_trial(tmp_path: Path, outcome: str) -> None:
    def unsaid(handler: Any) -> bool:
        handler.answer = lambda *_, **__: None
        handler._ledger(1)
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        intake.outcome = outcome
        return True

    with intake_with(*[control()] * 3) as intake:
        intake.answers_next, intake.tells_after = True, False
        intake.faults["/v1/ledger"] = [unsaid]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert paths(intake) == [
            *["/v1/assignment", "/v1/journal", "/v1/ledger", "/v1/ledger"],
            *["/v1/journal", "/v1/ledger"] * 2,
        ]
        assert intake.asked_next == [1, 1, 2]
        assert [line.get("attempt") for line in pod.said] == [1, 2, 3, None]
        assert list(intake.ledgers) == [1, 2, 3]


def test_a_next_trial_beside_a_ledger_that_is_not_accepted_is_not_run(tmp_path: Path) -> None:
    with intake_with(control(), control()) as intake:
        intake.tells_after = False
        intake.faults["/v1/ledger"] = [answering(following(), outcome="conflicting")]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 75
        assert pod.reason == "the ledger was conflicting"
        assert paths(intake) == ["/v1/assignment", "/v1/journal", "/v1/ledger"]


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({"hash": "sha256:" + "0" * 64}, 75, "the intake is lost: the assignment is not the one that its hash names"),
        ({"attempt": "2"}, 75, "the intake is lost: the assignment is malformed: attempt"),
        ({"more": 1}, 75, "the intake is lost: the assignment is malformed: more"),
        ({"assignment": []}, 75, "the intake is lost: the assignment is malformed: assignment"),
        ({"version": 2}, 78, "the assignment is of a version that this pod's image does not know: use the chart's"),
    ],
    ids=["another assignment", "attempt", "more", "assignment", "version"],
)
def test_a_next_trial_that_is_none_is_not_run(tmp_path: Path, changes: dict[str, Any], status: int, told: str) -> None:
    with intake_with(control(), control()) as intake:
        intake.tells_after = False
        intake.faults["/v1/ledger"] = [answering(following() | changes)]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == status
        assert pod.reason.startswith(told)
        assert paths(intake) == ["/v1/assignment", "/v1/journal", "/v1/ledger"]
        assert intake.journals.keys() == {1}


def following() -> dict[str, Any]:
    from simulator.canonical import canonical_hash

    given = control()
    whole = {"version": 1, "attempt": 2, "number": 1, "trial": "trial-2", "assignment": given, "more": False}
    return {**whole, "hash": canonical_hash(given)}


def answering(following: dict[str, Any], outcome: str = "accepted") -> Any:
    """A ledger's answer with this as the next trial."""
    body = json.dumps({"version": 1, "outcome": outcome, "next": following}).encode()

    def fault(handler: Any) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    return fault


# ---- An intake that is away ----------------------------------------------------------------------------------------


def test_nobody_there_ends_in_75_once_the_budget_is_used_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    started = time.monotonic()
    pod = Pod(tmp_path, f"http://127.0.0.1:{port}", {"CELLWISE_RETRY_SECONDS": "1.5"})
    assert pod.ended() == 75
    assert pod.reason == "the intake is lost: /v1/assignment: ConnectionRefusedError: Connection refused"
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("path", ["/v1/assignment", "/v1/journal", "/v1/ledger"])
@pytest.mark.parametrize(
    "fault",
    [status(503), status(429), status(500), half_an_answer, no_answer, silent(3.0), dripping],
    ids=["503", "429", "500", "half an answer", "no answer", "silence", "byte by byte"],
)
def test_an_intake_that_comes_back_loses_nothing(tmp_path: Path, intake: Intake, path: str, fault: Any) -> None:
    intake.faults[path] = [fault, fault]
    pod = Pod(tmp_path, intake, {"CELLWISE_REQUEST_SECONDS": "0.5"})
    assert pod.ended() == 0
    assert intake.tools() == TOOLS
    assert list(intake.ledgers) == [1]


def test_an_intake_that_took_a_ledger_and_could_not_say_so_gets_it_again(tmp_path: Path, intake: Intake) -> None:
    def taken(handler: Any) -> bool:
        handler._ledger(1)
        return True

    def unsaid(handler: Any) -> bool:
        handler.answer = lambda *_, **__: None
        handler._ledger(1)
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        return True

    intake.faults["/v1/ledger"] = [unsaid, taken]
    assert Pod(tmp_path, intake).ended() == 0
    assert [path for _, path in intake.requests].count("/v1/ledger") == 2


def test_retry_after_is_honoured(tmp_path: Path, intake: Intake) -> None:
    intake.faults["/v1/assignment"] = [status(503, Retry_After="2")]
    assert Pod(tmp_path, intake).ended() == 0
    (first, _), (second, _) = intake.requests[:2]
    assert 2.0 <= second - first < 4.0


def test_a_renewed_token_is_read_for_each_request(tmp_path: Path, intake: Intake) -> None:
    def renewed() -> None:
        intake.tokens = {"token-2"}
        new = tmp_path / "new"
        new.write_text("token-2\n")
        new.rename(tmp_path / "token")

    intake.faults["/v1/journal"] = [after(renewed)]
    assert Pod(tmp_path, intake).ended() == 0
    # Refused with the old one, which had been read before it was renewed; the new one goes on.
    assert [path for _, path in intake.requests] == ["/v1/assignment", "/v1/journal", "/v1/journal", "/v1/ledger"]


def test_an_outage_during_a_refund_is_not_charged_to_the_agent(tmp_path: Path) -> None:
    with intake_with(control(seconds=1.5)) as intake:
        intake.faults["/v1/journal"] = [status(503, Retry_After="3")]
        assert Pod(tmp_path, intake).ended() == 0
        assert intake.content()["error"] is None
        assert intake.content()["calls"][-1]["result"] == {"status": "committed"}


def test_an_intake_lost_during_a_refund_ends_in_75_and_the_agent_is_not_answered(
    tmp_path: Path, intake: Intake
) -> None:
    intake.faults["/v1/journal"] = [status(503)] * 100
    pod = Pod(tmp_path, intake, {"CELLWISE_RETRY_SECONDS": "1.5"})
    assert pod.ended() == 75
    assert pod.reason == "the intake is lost: /v1/journal: answered 503: made to answer 503"
    assert (intake.ledgers, intake.journals) == ({}, {})
    assert pod.said[0]["outcome"] == "lost"


def test_an_intake_away_while_the_agent_thinks_is_no_reason_to_end_it(tmp_path: Path) -> None:
    with intake_with(assignment("overrunning", {"seconds": 3.0}, seconds=10.0)) as intake:
        intake.faults["/v1/journal"] = [status(503)]
        assert Pod(tmp_path, intake).ended() == 0
        # The beginning was to be told after two seconds, and went with the refund.
        assert [path for _, path in intake.requests].count("/v1/journal") == 2
        assert "begin" in intake.lines()[0]
        assert intake.content()["error"] is None


def test_what_is_not_consequential_is_told_within_two_seconds(tmp_path: Path) -> None:
    with intake_with(assignment("overrunning", seconds=30.0)) as intake:
        pod = Pod(tmp_path, intake)
        assert eventually(lambda: intake.lines(), seconds=20)
        asked, told = (
            next(at for at, path in intake.requests if path == of) for of in ("/v1/assignment", "/v1/journal")
        )
        assert 1.9 < told - asked < 5.0
        pod.process.kill()
        pod.process.communicate()


# ---- Ends from outside ---------------------------------------------------------------------------------------------


def test_sigterm_ends_the_agent_and_the_pod_in_75_with_its_journal_sent(tmp_path: Path) -> None:
    with intake_with(lingering()) as intake:
        pod = Pod(tmp_path, intake)
        assert eventually(lambda: "issue_refund" in intake.tools())
        below = descendants(pod.process.pid)
        assert len(below) == 2  # the fork server and the agent
        started = time.monotonic()
        pod.process.send_signal(signal.SIGTERM)
        assert pod.ended() == 75
        assert time.monotonic() - started < 5
        assert pod.reason == "terminated"
        assert not any(Path(f"/proc/{pid}").exists() for pid in below)
        assert intake.ledgers == {}


def test_sigterm_sends_what_the_intake_had_not_been_told(tmp_path: Path) -> None:
    with intake_with(assignment("overrunning", seconds=60.0)) as intake:
        pod = Pod(tmp_path, intake)
        assert eventually(lambda: intake.asked)
        assert eventually(lambda: len(descendants(pod.process.pid)) == 2)
        pod.process.send_signal(signal.SIGTERM)
        assert pod.ended() == 75
        assert [list(line) for line in intake.lines()] == [["attempt", "begin"]]


def test_sigterm_while_the_intake_is_away_ends_in_75_soon(tmp_path: Path) -> None:
    with intake_with(control()) as intake:
        intake.faults["/v1/assignment"] = [status(503, Retry_After="100")]
        pod = Pod(tmp_path, intake, {"CELLWISE_RETRY_SECONDS": "300"})
        assert eventually(lambda: intake.requests)
        time.sleep(0.2)
        pod.process.send_signal(signal.SIGTERM)
        assert pod.ended(seconds=5) == 75


@pytest.mark.parametrize("path", ["/v1/assignment", "/v1/journal", "/v1/ledger"])
def test_sigterm_during_a_request_never_ends_in_0(tmp_path: Path, intake: Intake, path: str) -> None:
    pod = Pod(tmp_path, intake)
    intake.faults[path] = [after(lambda: (pod.process.send_signal(signal.SIGTERM), time.sleep(0.3)))]
    assert pod.ended() == 75


def test_a_recorder_killed_after_a_refund_has_left_it_with_the_intake(tmp_path: Path) -> None:
    with intake_with(lingering()) as intake:
        pod = Pod(tmp_path, intake)
        assert eventually(lambda: "issue_refund" in intake.tools())
        below = descendants(pod.process.pid)
        pod.process.kill()
        assert pod.process.wait() == -signal.SIGKILL
        assert intake.lines()[-1]["call"]["tool"] == "issue_refund"
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
        pod.process.communicate()


def test_a_fenced_pod_ends_its_agent_and_itself_in_75(tmp_path: Path) -> None:
    with intake_with(lingering()) as intake:
        intake.fenced = True
        started = time.monotonic()
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 75
        assert time.monotonic() - started < 20
        assert pod.reason == "fenced: answered 410: another attempt has begun"
        assert pod.said[0]["outcome"] == "fenced"
        assert intake.ledgers == {}


def test_a_pod_that_is_fenced_while_its_agent_thinks_ends_too(tmp_path: Path) -> None:
    with intake_with(assignment("overrunning", seconds=60.0)) as intake:
        intake.fenced = True
        assert Pod(tmp_path, intake).ended(seconds=20) == 75


# ---- What an agent can see -----------------------------------------------------------------------------------------


SPY = """
import json, os, sys
sys.path.insert(0, {root!r})
parent = os.getpid()
from simulator import pod
from simulator.agents import descriptive_control

def readable(path):
    try:
        with open(path, "rb") as file:
            return file.read(4096).replace(b"\\0", b"").decode() if path.endswith("environ") else "opened"
    except PermissionError:
        return "refused"

def spy(request, tools):
    own = "/proc/self/fd"
    links = [own + "/" + each for each in os.listdir(own)]
    seen = {{
        "variables": dict(os.environ),
        "own": readable("/proc/self/environ"),
        "fork server's": readable(f"/proc/{{os.getppid()}}/environ"),
        "recorder's": readable(f"/proc/{{parent}}/environ"),
        "recorder's memory": readable(f"/proc/{{parent}}/mem"),
        "open": sorted(os.readlink(each).partition(":")[0] for each in links if os.path.lexists(each)),
        "apart": os.getsid(0) != os.getsid(parent),
    }}
    return {{"message": json.dumps(seen), "claimed_outcome": "needs_review"}}

descriptive_control.agent = spy
pod.main()
"""


def test_an_agent_sees_the_variables_that_its_condition_names_and_nothing_else(tmp_path: Path) -> None:
    """The spy stands in the control's place, in the process that is forked for it. Nobody is root, as in a pod."""
    code = SPY.format(root=str(ROOT))
    with tempfile.TemporaryDirectory() as folder, intake_with(control(env=["MODEL_KEY", "UNSET_KEY"])) as intake:
        Path(folder).chmod(0o755)
        token = Path(folder) / "token"
        token.write_text(TOKEN)
        given = {
            "CELLWISE_INTAKE": intake.url,
            "CELLWISE_LAUNCH": LAUNCH,
            "CELLWISE_POD_NAME": "pod",
            "CELLWISE_NODE": "node",
            "CELLWISE_TOKEN_FILE": str(token),
            "JOB_COMPLETION_INDEX": "0",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "MODEL_KEY": "a value",
            "OTHER_KEY": "a secret",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=given,
            cwd=folder,
            capture_output=True,
            timeout=60,
            check=False,
            user=65534 if os.geteuid() == 0 else None,
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(intake.content()["message"])
    assert seen == {
        "variables": {"MODEL_KEY": "a value"},
        "own": "",
        "fork server's": "",
        "recorder's": "refused",
        "recorder's memory": "refused",
        "open": ["/dev/null", "/dev/null", "/dev/null", "socket"],
        "apart": True,
    }


KILLER = """
import os, signal, sys
sys.path.insert(0, {root!r})
from simulator import pod
from simulator.agents import descriptive_control

def killer(request, tools):
    tools.list_orders(customer_id=request.customer_id)
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()

descriptive_control.agent = killer
pod.main()
"""


def test_an_agent_that_kills_its_fork_server_harms_its_own_trial_alone(tmp_path: Path) -> None:
    with intake_with(control(), control()) as intake:
        (tmp_path / "token").write_text(TOKEN)
        code = KILLER.format(root=str(ROOT))
        pod = Pod(tmp_path, intake, command=[sys.executable, "-c", code])
        assert pod.ended() == 0
        assert (intake.content(1)["error"], len(intake.content(1)["calls"])) == ("AgentExited", 1)
        # The second ran in a fresh interpreter, which knows nothing of the killer.
        assert (intake.content(2)["error"], intake.tools(2)) == (None, TOOLS)
