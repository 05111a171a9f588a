"""A ledger of fixed content and envelope: every kind of call, a question, an answer."""

from typing import Any

import orjson
from orders_cases import CASES

from simulator.assignment import Agent, Assignment, Limits, Request
from simulator.output import Output
from simulator.replay import compose, open_session
from simulator.sealing import seal

TRIAL = "0123456789abcdef0123456789abcdef"


def assignment() -> dict[str, Any]:
    case = CASES["ambiguous-description"]
    return Assignment(
        world="orders",
        request=Request(utterance=case.utterance, customer_id=case.customer_id),
        records=case.records,
        replies=case.replies,
        agent=Agent(name="own:agent", source="sha256:" + "1" * 64),
        limits=Limits(),
    ).model_dump(mode="json")


def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    session, customer = open_session(assignment())
    own = {"order_id": "order-a"}
    session.call("list_orders", {"customer_id": "customer-1"})
    session.call("get_order", own)
    session.call("ask_customer", {"question": "Which one, caf\u00e9 or \U0001f392?"})
    session.call("verify_identity", {"customer_id": "customer-1", **own})
    session.refuse("issue_refund", {**own, "amount_cents": 4000.5}, b"a frame")
    session.refuse("x" * 300, float("nan"), b"another frame")
    session.call("consult_refund_policy", own)
    refund = {**own, "amount_cents": 4000, "currency": "usd", "approval_id": None, "idempotency_key": "refund:order-a"}
    session.call("issue_refund", refund)
    output = Output(message="Your refund has been confirmed.", claimed_outcome="refunded")
    content = compose(assignment(), session, customer, output.message, output.claims().model_dump(mode="json"), None)
    start = 1_790_000_000_000_000
    envelope = {
        "version": 1,
        "trial": TRIAL,
        "attempt": 2,
        "started": start,
        "ended": start + 1000,
        "calls": [{"started": start + 10 * n, "ended": start + 10 * n + 5} for n in range(len(session.calls))],
        "usage": {
            "provider": "none",
            "model": None,
            "response_ids": ["a"],
            "input_tokens": 1,
            "output_tokens": 2,
            "cost": "0.08",
            "cost_source": "invented",
        },
        "software": {"version": "0.1.0", "source": "sha256:" + "2" * 64, "python": "3.11.7"},
        "isolation": "process",
        "place": {"launcher": "processes", "host": "host", "worker": "host-1-a-1"},
        "sealed_by": "recorder",
    }
    return content, envelope


def document() -> bytes:
    return seal(*parts())


def members() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(document())
    return found
