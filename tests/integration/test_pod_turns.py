"""Turns: a pod's ledger goes with the beginning of its next trial; nothing that matters happens before the answer."""

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from pod_bench import LAUNCH, TOKEN, Intake, Pod, after, half_an_answer, intake_with, no_answer, status
from recorded_trial import assignment, descendants, eventually

from simulator.canonical import canonical_hash
from simulator.pod import AGAIN, DONE, Settings
from simulator.pod import Pod as PodInProcess
from simulator.pod_agents import ForkedHosts
from simulator.recorder import AgentNotStartable, ProviderFailed, Recorder

TOOLS = ["list_orders", "verify_identity", "get_order", "consult_refund_policy", "issue_refund"]


def control(**changes: Any) -> dict[str, Any]:
    return assignment("descriptive-control", **({"reuse": True} | changes))


def reversed_records(given: dict[str, Any]) -> dict[str, Any]:
    """As every other repetition is presented."""
    return {**given, "records": given["records"][::-1]}


def thinking(seconds: float) -> dict[str, Any]:
    """Takes its time, then refunds."""
    return assignment("overrunning", {"seconds": seconds}, seconds=20.0, reuse=True)


def paths(intake: Intake) -> list[str]:
    return [path.removeprefix("/v1/") for _, path in intake.requests]


def outcomes(pod: Pod) -> list[tuple[int, str]]:
    return [(line["attempt"], line["outcome"]) for line in pod.said if line["event"] == "trial"]


def test_a_trial_takes_one_request(tmp_path: Path) -> None:
    with intake_with(*[control()] * 4) as intake:
        intake.answers_next = True
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert paths(intake) == ["assignment", "journal", "turn", "turn", "turn", "ledger"]
        assert intake.turns == [1, 2, 3]
        assert list(intake.ledgers) == [1, 2, 3, 4]
        assert len({orjson.loads(document)["content_hash"] for document in intake.ledgers.values()}) == 1
        for attempt in (1, 2, 3, 4):
            envelope = orjson.loads(intake.ledgers[attempt])["envelope"]
            assert (envelope["trial"], envelope["attempt"]) == (f"trial-{attempt}", 1)
            assert intake.tools(attempt) == TOOLS
            assert {line["attempt"] for line in intake.lines(attempt)} == {attempt}
            assert [line["call"] for line in intake.lines(attempt)[1:]] == intake.content(attempt)["calls"]
        assert outcomes(pod) == [(1, "accepted"), (2, "accepted"), (3, "accepted"), (4, "accepted")]
        assert [line["trial"] for line in pod.said[:-1]] == ["trial-1", "trial-2", "trial-3", "trial-4"]


def test_many_trials_are_the_same_whatever_reads_and_writes_their_json(tmp_path: Path) -> None:
    """Among them is the one after which orjson is loaded."""
    with intake_with(*[control()] * 60) as intake:
        intake.answers_next = True
        assert Pod(tmp_path, intake).ended() == 0
        assert len({orjson.loads(document)["content_hash"] for document in intake.ledgers.values()}) == 1
        assert len(intake.turns) == 59
        assert all(intake.tools(attempt) == TOOLS for attempt in range(1, 61))


def test_of_two_assignments_in_turn_each_is_known_once_it_was_run(tmp_path: Path) -> None:
    forward, backward = control(), reversed_records(control())
    assert canonical_hash(forward) != canonical_hash(backward)
    with intake_with(*[forward, backward] * 3) as intake:
        intake.answers_next = True
        assert Pod(tmp_path, intake).ended() == 0
        assert paths(intake) == ["assignment", "journal", "ledger", "journal", "turn", "turn", "turn", "turn", "ledger"]
        assert list(intake.ledgers) == [1, 2, 3, 4, 5, 6]


def test_an_agent_with_a_process_for_each_trial_takes_no_turns(tmp_path: Path) -> None:
    with intake_with(*[control(reuse=False)] * 2) as intake:
        intake.answers_next = True
        assert Pod(tmp_path, intake).ended() == 0
        assert paths(intake) == ["assignment", *["journal", "ledger"] * 2]


def test_no_refund_is_answered_while_its_trial_is_not_given_out(tmp_path: Path) -> None:
    with intake_with(*[control()] * 2) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [status(503)] * 100
        pod = Pod(tmp_path, intake, {"CELLWISE_RETRY_SECONDS": "1.5"})
        assert pod.ended() == 75
        assert pod.reason == "the intake is lost: /v1/turn: answered 503: made to answer 503"
        # What was finished is not lost with what was begun.
        assert paths(intake)[-1] == "ledger"
        assert (list(intake.ledgers), list(intake.journals)) == ([1], [1])
        assert outcomes(pod) == [(1, "accepted")]


@pytest.mark.parametrize("fault", [status(503), status(401), half_an_answer, no_answer])
def test_a_turn_that_goes_wrong_is_given_again(tmp_path: Path, fault: Any) -> None:
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [fault, None, fault]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert list(intake.ledgers) == [1, 2, 3]
        assert outcomes(pod) == [(1, "accepted"), (2, "accepted"), (3, "accepted")]
        assert all(intake.tools(attempt) == TOOLS for attempt in (1, 2, 3))


@pytest.mark.parametrize("outcome", ["accepted", "repeated"])
def test_a_turn_whose_answer_is_lost_goes_on_with_the_trial_that_it_brought(tmp_path: Path, outcome: str) -> None:
    def unsaid(handler: Any) -> bool:
        handler.answer = lambda *_, **__: None
        handler._turn(1)
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
        intake.outcome = outcome
        return True

    with intake_with(*[control()] * 3) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [unsaid]
        assert Pod(tmp_path, intake).ended() == 0
        assert intake.turns == [1, 1, 2]
        assert list(intake.ledgers) == [1, 2, 3]


def test_what_was_begun_in_vain_is_thrown_away(tmp_path: Path) -> None:
    with intake_with(*[control()] * 2) as intake:
        intake.answers_next = True
        # A pause in the meantime: nothing more is given out.
        intake.faults["/v1/turn"] = [after(lambda: setattr(intake, "answers_next", False))]
        intake.faults["/v1/assignment"] = [None, lambda handler: handler.answer(204) or True]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert paths(intake) == ["assignment", "journal", "turn", "assignment"]
        assert (list(intake.ledgers), list(intake.journals)) == ([1], [1])
        assert outcomes(pod) == [(1, "accepted")]


def test_a_trial_of_another_assignment_is_run_from_its_start(tmp_path: Path) -> None:
    other = reversed_records(control())
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [after(lambda: intake.assignments.__setitem__(1, other))]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        # Its journal came by itself; the last one's assignment had been known since the first.
        assert paths(intake) == ["assignment", "journal", "turn", "journal", "turn", "ledger"]
        assert intake.lines(2)[0]["begin"]["assignment"] == canonical_hash(other)
        assert list(intake.ledgers) == [1, 2, 3]
        assert outcomes(pod) == [(1, "accepted"), (2, "accepted"), (3, "accepted")]


@pytest.mark.parametrize("outcome", ["conflicting", "quarantined", "fenced"])
def test_a_ledger_that_is_not_accepted_ends_the_pod_and_what_it_began(tmp_path: Path, outcome: str) -> None:
    with intake_with(*[control()] * 2) as intake:
        intake.answers_next = True
        intake.outcome = outcome
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 75
        assert pod.reason == f"the ledger was {outcome}"
        assert paths(intake) == ["assignment", "journal", "turn"]
        assert list(intake.journals) == [1]
        assert outcomes(pod) == [(1, outcome)]


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"hash": "sha256:" + "0" * 64}, 75, "the intake is lost: the assignment is not the one that its hash names"),
        ({"attempt": "2"}, 75, "the intake is lost: the assignment is malformed: attempt"),
        ({"version": 2}, 78, "the assignment is of a version that this pod's image does not know"),
    ],
)
def test_a_trial_that_is_none_is_not_gone_on_with(
    tmp_path: Path, changes: dict[str, Any], code: int, told: str
) -> None:
    given = control()
    following = {"version": 1, "attempt": 2, "number": 1, "trial": "trial-2", "assignment": given, "more": False}
    following = {**following, "hash": canonical_hash(given), **changes}
    body = json.dumps({"version": 1, "outcome": "accepted", "next": following, "begun": True}).encode()

    def fault(handler: Any) -> bool:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    with intake_with(*[given] * 2) as intake:
        intake.faults["/v1/turn"] = [fault]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == code
        assert pod.reason.startswith(told)
        assert paths(intake) == ["assignment", "journal", "turn"]
        assert outcomes(pod) == [(1, "accepted")]


@pytest.mark.parametrize("code", [403, 404, 413, 422])
def test_an_intake_that_takes_no_turns_gets_the_ledger_by_itself(tmp_path: Path, code: int) -> None:
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [status(code)]
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert paths(intake) == ["assignment", "journal", "turn", "ledger", *["journal", "ledger"] * 2]
        assert list(intake.ledgers) == [1, 2, 3]
        assert outcomes(pod) == [(1, "accepted"), (2, "accepted"), (3, "accepted")]


def test_a_ledger_does_not_wait_for_an_agent_that_takes_its_time(tmp_path: Path) -> None:
    with intake_with(*[thinking(1.5)] * 2) as intake:
        intake.answers_next = True
        assert Pod(tmp_path, intake).ended() == 0
        assert paths(intake) == ["assignment", "journal", "turn", "journal", "ledger"]
        at = [when for when, _ in intake.requests]
        assert at[2] - at[1] < 1.0, "the next agent's thinking was waited for"
        assert at[3] - at[2] > 1.0
        assert intake.tools(2) == intake.tools(1)


def test_an_intake_away_while_the_next_agent_thinks_gets_all_later(tmp_path: Path) -> None:
    with intake_with(*[thinking(1.0)] * 2) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [status(503)] * 3
        pod = Pod(tmp_path, intake)
        assert pod.ended() == 0
        assert list(intake.ledgers) == [1, 2]
        assert intake.content(2)["error"] is None
        assert outcomes(pod) == [(1, "accepted"), (2, "accepted")]


def test_sigterm_sends_the_ledger_of_a_finished_trial(tmp_path: Path) -> None:
    with intake_with(*[thinking(1.0)] * 2) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [status(503, Retry_After="100")] * 100
        pod = Pod(tmp_path, intake)
        assert eventually(lambda: "turn" in paths(intake), seconds=20)
        below = descendants(pod.process.pid)
        pod.process.send_signal(signal.SIGTERM)
        assert pod.ended(seconds=10) == 75
        assert pod.reason == "terminated"
        assert paths(intake)[-1] == "ledger"
        assert (list(intake.ledgers), list(intake.journals)) == ([1], [1])
        assert outcomes(pod) == [(1, "accepted")]
        assert not any(Path(f"/proc/{pid}").exists() for pid in below)


def test_sigterm_during_a_turn_never_ends_in_0(tmp_path: Path) -> None:
    with intake_with(*[control()] * 2) as intake:
        intake.answers_next = True
        pod = Pod(tmp_path, intake)
        intake.faults["/v1/turn"] = [after(lambda: (pod.process.send_signal(signal.SIGTERM), time.sleep(0.3)))]
        assert pod.ended() == 75
        assert list(intake.ledgers) == [1]


def test_a_finished_trial_whose_last_words_are_not_heard_is_said_to_be_lost(tmp_path: Path) -> None:
    with intake_with(*[control()] * 2) as intake:
        intake.answers_next = True
        intake.faults["/v1/turn"] = [status(503)] * 100
        intake.faults["/v1/ledger"] = [status(503)] * 100
        pod = Pod(tmp_path, intake, {"CELLWISE_RETRY_SECONDS": "1"})
        assert pod.ended() == 75
        assert outcomes(pod) == [(1, "lost")]


# ---- What goes wrong in a trial that was begun ----------------------------------------------------------------------


def in_process(folder: Path, intake: Intake) -> tuple[int, str | None]:
    token = folder / "token"
    token.write_text(TOKEN)
    settings = Settings(intake.url, LAUNCH, 0, "pod", "node", str(token), None, 10.0, 20.0, 10.0)
    pod = PodInProcess(settings, ForkedHosts())
    try:
        return pod.run()
    finally:
        pod._intake._connection.close()


def failing_second(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The second trial begins and ends with an error."""
    run, runs = Recorder.run, iter(range(100))

    def failing(recorder: Recorder, lease: Any, given: Any, of: str) -> bytes:
        if next(runs) == 1:
            if isinstance(error, ProviderFailed):
                recorder._journal.begin(lease.attempt, of, 1)
            raise error
        return run(recorder, lease, given, of)

    monkeypatch.setattr(Recorder, "run", failing)


def test_an_agent_that_cannot_be_started_any_more_fails_no_finished_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_second(monkeypatch, AgentNotStartable("killed"))
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next = True
        assert in_process(tmp_path, intake) == (DONE, None)
        assert paths(intake)[:4] == ["assignment", "journal", "ledger", "journal"]
        assert list(intake.ledgers) == [1, 2, 3]
        assert intake.unusable == []


def test_a_provider_that_fails_a_trial_that_was_begun_costs_that_trial_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_second(monkeypatch, ProviderFailed())
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next = True
        assert in_process(tmp_path, intake) == (AGAIN, "the agent's provider could not be reached")
        assert paths(intake) == ["assignment", "journal", "turn", "unusable"]
        assert [(one.attempt, one.kind) for one in intake.unusable] == [(2, "provider_unavailable")]
        assert list(intake.ledgers) == [1]


def test_an_error_of_our_own_loses_no_finished_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_second(monkeypatch, KeyError("a bug"))
    with intake_with(*[control()] * 3) as intake:
        intake.answers_next = True
        with pytest.raises(KeyError):
            in_process(tmp_path, intake)
        assert list(intake.ledgers) == [1]
