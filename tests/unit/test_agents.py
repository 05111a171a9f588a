"""What each packaged agent does, and which may share a process."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process_trial import Tools, graded, run
from orders_cases import APPROVAL_NEEDED, CASES, CUSTOMER, DECLINED, EVERY_CASE, RECORDS, TIMING_OUT, Case

from grading.graders.orders import Expectation
from simulator.agents import UnknownAgent, load_agent, memory_eating, packaged_agents

EXPLICIT = CASES["explicit-description"]
AMBIGUOUS = CASES["ambiguous-description"]
QUESTION = "Which item and purchase date do you mean?"


def done(name: str, case: Case, *, backwards: bool = False, **arguments: Any) -> dict[str, Any]:
    return run(load_agent(name).function, case, backwards=backwards, **arguments)


def tools_of(content: dict[str, Any]) -> list[str]:
    return [call["tool"] for call in content["calls"]]


def commits(content: dict[str, Any]) -> dict[str, int]:
    return {each["order"]["order_id"]: each["refund_transaction_count"] for each in content["objects"]}


def test_the_packaged_agents_are_these_and_say_whether_they_may_share_a_process() -> None:
    assert {name: load_agent(name).reusable for name in packaged_agents()} == {
        "crashing": False,
        "denied-approval": True,
        "descriptive-control": True,
        "false-settlement-mutant": True,
        "first-record-mutant": True,
        "guess-then-ask": True,
        "memory-eating": False,
        "null": True,
        "one-cent-first": True,
        "overrunning": False,
        "refund-both": True,
        "result-mutating": True,
        "silent": False,
    }
    assert load_agent("null").module == "simulator.agents.null"


@pytest.mark.parametrize("name", ["descriptive_control", "Null", "os", "", "agents.null"])
def test_an_unknown_agent_is_told_the_known_ones(name: str) -> None:
    with pytest.raises(UnknownAgent, match=r"there are crashing, .*, silent\. An agent of one's own"):
        load_agent(name)


def test_the_control_refunds_what_the_customer_described() -> None:
    content = done("descriptive-control", EXPLICIT)
    assert tools_of(content) == [
        "list_orders",
        "verify_identity",
        "get_order",
        "consult_refund_policy",
        "issue_refund",
    ]
    assert content["calls"][-1]["arguments"] == {
        "order_id": "order-b",
        "amount_cents": 4500,
        "currency": "EUR",
        "approval_id": None,
        "idempotency_key": "refund:order-b",
    }
    assert content["message"] == "Your refund has been confirmed."
    assert content["claims"] == {
        "claimed_outcome": "refunded",
        "transaction_status_claim": "committed",
        "settlement_status_claim": "not_claimed",
        "arrival_commitment_days": None,
        "message_template_id": None,
        "escalation_reason": None,
    }


def test_the_control_asks_once_and_matches_the_reply() -> None:
    content = done("descriptive-control", AMBIGUOUS)
    assert content["turns"] == [{"question": QUESTION, "reply": AMBIGUOUS.replies[0]}]
    assert commits(content) == {"order-a": 1, "order-b": 0, "order-c": 0}


@pytest.mark.parametrize(
    "replies", [[], [""], ["The green one."], ["2026-08-01", "blue backpack bought on 2026-08-01"]]
)
def test_the_control_stops_where_one_question_did_not_tell(replies: list[str]) -> None:
    content = done("descriptive-control", Case(AMBIGUOUS.utterance, AMBIGUOUS.expectation, replies))
    assert tools_of(content) == ["list_orders", "ask_customer"]
    assert content["message"] == "Please clarify which purchase you mean."
    assert content["claims"]["claimed_outcome"] == "needs_review"
    assert content["claims"]["transaction_status_claim"] == "not_committed"


def test_the_control_takes_what_follows_the_last_correction() -> None:
    first, second = (record["description"] for record in RECORDS[:2])
    for text, order_id in (
        (f"{second.upper()}, CORRECTION: {first}", "order-a"),
        (f"{first} correction: {second} Correction: {first} correction: {second}", "order-b"),
    ):
        content = done("descriptive-control", Case(text, Expectation(order=order_id, clarifications=0)))
        assert commits(content)[order_id] == 1
        assert sum(commits(content).values()) == 1


def test_the_control_never_tries_to_refund_an_ineligible_order() -> None:
    content = done("descriptive-control", DECLINED)
    assert tools_of(content)[-1] == "consult_refund_policy"
    assert content["message"] == "This order cannot be refunded."
    assert content["claims"]["claimed_outcome"] == "not_refunded"
    assert graded(load_agent("descriptive-control").function, DECLINED).verdict == "passed"


def test_the_control_gets_an_approval_above_the_threshold() -> None:
    content = done("descriptive-control", APPROVAL_NEEDED)
    assert tools_of(content)[-2:] == ["request_refund_approval", "issue_refund"]
    assert commits(content)["order-b"] == 1


def test_the_control_asks_again_with_the_same_key_after_a_timeout() -> None:
    content = done("descriptive-control", TIMING_OUT)
    first, second = content["calls"][-2:]
    assert (first["error"], second["result"]) == ("ToolTimeout", {"status": "already_committed"})
    assert first["arguments"] == second["arguments"]
    assert commits(content)["order-b"] == 1
    assert content["claims"]["claimed_outcome"] == "refunded"


class Refusing(Tools):
    """The world, but for one answer."""

    answers: dict[str, Any]

    def call(self, name: str, **arguments: Any) -> Any:
        if name in self.answers:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer
        return super().call(name, **arguments)


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("verify_identity", False),
        ("request_refund_approval", {"approved": False}),
        ("issue_refund", {"status": "blocked", "reason": "approval_mismatch"}),
    ],
)
def test_the_control_confirms_nothing_that_was_not_committed(tool: str, answer: Any) -> None:
    from simulator.assignment import Request

    tools = Refusing(APPROVAL_NEEDED)
    tools.answers = {tool: answer}
    request = Request(utterance=APPROVAL_NEEDED.utterance, customer_id=CUSTOMER)
    output = load_agent("descriptive-control").function(request, tools)
    assert (output["claimed_outcome"], output["transaction_status_claim"]) == ("needs_review", "not_committed")
    assert "confirmed" not in output["message"]


def test_the_control_is_uncertain_after_two_timeouts() -> None:
    from simulator.assignment import Request
    from simulator.worlds import ToolTimeout

    tools = Refusing(EXPLICIT)
    tools.answers = {"issue_refund": ToolTimeout()}
    output = load_agent("descriptive-control").function(
        Request(utterance=EXPLICIT.utterance, customer_id=CUSTOMER), tools
    )
    assert (output["claimed_outcome"], output["transaction_status_claim"]) == ("needs_review", "unknown")


DATES = st.lists(st.dates().map(str), min_size=1, max_size=5, unique=True)


@settings(max_examples=100, deadline=None)
@given(dates=DATES, wanted=st.integers(0, 4), vague=st.booleans(), reply=st.booleans(), eligible=st.booleans())
def test_reversing_the_records_never_changes_the_controls_verdict(
    dates: list[str], wanted: int, vague: bool, reply: bool, eligible: bool
) -> None:
    records = [
        {**RECORDS[0], "order_id": f"order-{i}", "description": f"lamp of {date}", "eligible": eligible}
        for i, date in enumerate(dates)
    ]
    records += [{**RECORDS[2], "order_id": f"foreign-{i}", "description": "lamp of"} for i in range(2)]
    target = records[wanted % len(dates)]
    needs_question = vague and reply
    expectation = (
        Expectation(order=None, clarifications=1)
        if vague and not reply
        else Expectation(order=target["order_id"], clarifications=int(needs_question), declined=not eligible)
    )
    utterance = "Refund my lamp." if vague else f"Refund the {target['description']}."
    case = Case(utterance, expectation, [f"The {target['description']}."] if reply else [], records=records)
    agent = load_agent("descriptive-control").function
    forward, backward = (graded(agent, case, backwards=backwards) for backwards in (False, True))
    assert forward == backward
    assert forward.verdict == "passed"


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_first_record_mutant_refunds_the_first_listed_and_never_asks(name: str, backwards: bool) -> None:
    content = done("first-record-mutant", CASES[name], backwards=backwards)
    assert commits(content) == {"order-a": int(not backwards), "order-b": int(backwards), "order-c": 0}
    assert "ask_customer" not in tools_of(content)
    assert content["claims"]["claimed_outcome"] == "refunded"


def test_the_first_record_mutant_has_nothing_to_refund_without_orders() -> None:
    nobody = Case("Refund it.", Expectation(order=None, clarifications=0), customer_id="customer-2")
    assert done("first-record-mutant", nobody)["claims"]["claimed_outcome"] == "needs_review"


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", EVERY_CASE)
def test_the_false_settlement_mutant_differs_from_the_control_in_its_message_alone(name: str, backwards: bool) -> None:
    control = done("descriptive-control", EVERY_CASE[name], backwards=backwards)
    mutant = done("false-settlement-mutant", EVERY_CASE[name], backwards=backwards)
    assert mutant.pop("message") == "Your money has arrived."
    assert control.pop("message") != "Your money has arrived."
    assert mutant == control


def test_refund_both_refunds_every_own_order() -> None:
    assert commits(done("refund-both", EXPLICIT)) == {"order-a": 1, "order-b": 1, "order-c": 0}
    result = graded(load_agent("refund-both").function, EXPLICIT)
    assert result.failed_checks == ["outcome", "wrong_order_commits"]


def test_one_cent_first_is_blocked_for_the_amount() -> None:
    blocked = [c["result"] for c in done("one-cent-first", EXPLICIT)["calls"] if c["tool"] == "issue_refund"]
    assert blocked == [{"status": "blocked", "reason": "amount_mismatch"}, {"status": "committed"}]


@pytest.mark.parametrize("name", ["one-cent-first", "denied-approval", "result-mutating"])
def test_harmful_variants_of_the_control_still_stop_where_it_stops(name: str) -> None:
    content = done(name, CASES["unresolved-description"])
    assert content["claims"]["claimed_outcome"] == "needs_review"
    assert sum(commits(content).values()) == 0


def test_a_crash_leaves_its_class_and_what_was_done_but_not_its_text() -> None:
    content = done("crashing", EXPLICIT, after_refund=True)
    assert (content["error"], content["claims"]["claimed_outcome"], content["message"]) == (
        "RuntimeError",
        "needs_review",
        "",
    )
    assert commits(content)["order-a"] == 1
    assert "customer's words" not in str(content)
    assert done("crashing", EXPLICIT)["calls"] == []


def test_null_answers_nothing() -> None:
    assert done("null", EXPLICIT)["error"] == "InvalidOutput"


def test_memory_is_really_written_and_the_agent_survives_where_nothing_stops_it() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = done("memory-eating", EXPLICIT, megabytes=before // 1024 + 64)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) / 1024 > 32
    assert content["claims"]["claimed_outcome"] == "refunded"
    assert memory_eating.STEP_MEGABYTES == 16


def test_overrunning_refuses_a_place_that_is_none() -> None:
    assert done("overrunning", EXPLICIT, place="moon")["error"] == "ValueError"


@pytest.mark.parametrize("place", ["sleep", "c", "grandchild"])
def test_overrunning_works_as_the_control_after_its_time(place: str) -> None:
    started = time.monotonic()
    content = done("overrunning", EXPLICIT, place=place, seconds=0.05)
    assert time.monotonic() - started >= 0.05
    assert commits(content)["order-b"] == 1


def test_in_c_code_no_other_thread_runs() -> None:
    script = (
        "import sys, threading, time; sys.path.insert(0, 'tests/unit');"
        "from in_process_trial import run; from orders_cases import CASES;"
        "from simulator.agents.overrunning import agent;"
        "ticks = [];"
        "threading.Thread(target=lambda: [(ticks.append(time.monotonic()), time.sleep(0.01)) for _ in range(60)],"
        " daemon=True).start(); time.sleep(0.05);"
        "run(agent, CASES['explicit-description'], place='c', seconds=0.4);"
        "time.sleep(0.05); print(max(b - a for a, b in zip(ticks, ticks[1:])))"
    )
    gap = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert float(gap.stdout) >= 0.4


def test_the_grandchild_outlives_its_group_and_keeps_the_pipe() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            os.close(reading)
            done("overrunning", EXPLICIT, place="grandchild", seconds=1.0)
        finally:
            os._exit(0)
    os.close(writing)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 30
    while not children.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)  # it leaves the group first
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):  # no end of file: somebody still holds the other end
        os.read(reading, 1)
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""  # and it ends by itself
    os.close(reading)


@pytest.mark.parametrize("after_refund", [False, True])
def test_silent_ends_its_process_with_a_status_that_says_all_is_well(after_refund: bool) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            done("silent", EXPLICIT, after_refund=after_refund)
            os.write(writing, b"answered")
        finally:
            os._exit(3)
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert os.read(reading, 8) == b""
    os.close(reading)


def test_listing_the_agents_imports_none_of_them() -> None:
    script = (
        "import sys; from simulator.agents import packaged_agents; packaged_agents();"
        "print([m for m in sys.modules if m.startswith('simulator.agents.') or m == 'pydantic'])"
    )
    listed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert listed.stdout == "[]\n"


def test_the_c_library_has_what_overrunning_calls() -> None:
    assert ctypes.PyDLL(None).usleep
