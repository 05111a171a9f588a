"""Where two ledgers differ: the business first, then the calls, then the answer."""

from in_process_trial import run
from orders_cases import CASES

from grading.ledger_difference import ledger_differences
from simulator.agents import load_agent

CASE = CASES["explicit-description"]


def test_equal_ledgers_differ_nowhere() -> None:
    content = run(load_agent("descriptive-control").function, CASE)
    assert ledger_differences(content, content) == []


def test_another_refunded_order_is_shown_by_record_and_call() -> None:
    control, mutant = (run(load_agent(name).function, CASE) for name in ("descriptive-control", "first-record-mutant"))
    found = ledger_differences(control, mutant)
    counts = [(one.where, one.baseline, one.candidate) for one in found if "transaction_count" in one.where]
    assert counts == [
        ("record 1 (order-a) refund_transaction_count", "0", "1"),
        ("record 2 (order-b) refund_transaction_count", "1", "0"),
    ]
    events = [one for one in found if one.where.startswith("record 1 (order-a) events")]
    assert events
    assert all(one.baseline is None for one in events), "the baseline did not touch that order"
    assert events[-1].candidate is not None
    assert events[-1].candidate.startswith("issue_refund: committed ")
    calls = [one for one in found if one.where.startswith("call")]
    assert all("order-a" in (one.candidate or "") and "order-b" in (one.baseline or "") for one in calls)
    assert [one.where for one in found] == sorted((one.where for one in found), key=lambda where: "call" in where)


def test_a_longer_answer_and_an_absent_call_are_shown() -> None:
    content = run(load_agent("descriptive-control").function, CASE)
    other = content | {"calls": content["calls"][:-1], "message": "Your money has arrived."}
    assert [(one.where, one.candidate) for one in ledger_differences(content, other)] == [
        (f"call {len(content['calls'])}", None),
        ("message", '"Your money has arrived."'),
    ]
