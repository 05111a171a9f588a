"""What an agent may rely on in the orders world, and what no sequence of calls can do to it."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process_trial import InvalidCall, Tools
from orders_cases import CASES, CUSTOMER, RECORDS, TIMING_OUT, Case, changed

from grading.graders import Grade
from grading.graders.orders import Expectation, grade
from grading.projection import structural
from simulator.worlds import ToolTimeout, UnknownWorld, load_world
from simulator.worlds.orders import World
from simulator.worlds.orders.case import Record

EXPLICIT = CASES["explicit-description"]
DEAR = Case("", Expectation(order="order-a", clarifications=0), records=changed("order-a", amount_cents=10_001))
AT_THRESHOLD = Case("", Expectation(order="order-a", clarifications=0), records=changed("order-a", amount_cents=10_000))
INELIGIBLE = Case("", Expectation(order=None, clarifications=0), records=changed("order-a", eligible=False))

ORDER_TOOLS: dict[str, dict[str, Any]] = {
    "get_order": {},
    "consult_refund_policy": {},
    "request_refund_approval": {"amount_cents": 4000, "currency": "USD"},
    "issue_refund": {"amount_cents": 4000, "currency": "USD", "approval_id": None, "idempotency_key": "k"},
    "inspect_order_status": {},
}


def verified(case: Case = EXPLICIT, order_id: str = "order-a", *, policy: bool = True) -> Tools:
    tools = Tools(case)
    tools.verify_identity(customer_id=CUSTOMER, order_id=order_id)
    if policy:
        tools.consult_refund_policy(order_id=order_id)
    return tools


def refund(tools: Tools, **changes: Any) -> Any:
    call = {"order_id": "order-a", "amount_cents": 4000, "currency": "USD", "approval_id": None, "idempotency_key": "k"}
    return tools.issue_refund(**(call | changes))


def state(tools: Tools, order_id: str = "order-a") -> dict[str, Any]:
    return next(each for each in tools.world.objects() if each["order"]["order_id"] == order_id)


def statuses(tools: Tools, order_id: str = "order-a") -> list[tuple[str, str]]:
    return [(event["tool"], event["status"]) for event in state(tools, order_id)["events"]]


def test_the_tools_and_their_arguments_are_these_eight() -> None:
    assert {tool: list(kinds) for tool, kinds in World.tools.items()} == {
        "list_orders": ["customer_id"],
        "ask_customer": ["question"],
        "verify_identity": ["customer_id", "order_id"],
        "get_order": ["order_id"],
        "consult_refund_policy": ["order_id"],
        "request_refund_approval": ["order_id", "amount_cents", "currency"],
        "issue_refund": ["order_id", "amount_cents", "currency", "approval_id", "idempotency_key"],
        "inspect_order_status": ["order_id"],
    }
    assert World.consequential == {"request_refund_approval", "issue_refund"}


@pytest.mark.parametrize("backwards", [False, True])
def test_orders_are_listed_as_presented_without_those_of_others(backwards: bool) -> None:
    listed = Tools(EXPLICIT, backwards=backwards).list_orders(customer_id=CUSTOMER)
    own = [{"order_id": r["order_id"], "description": r["description"]} for r in RECORDS[:2]]
    assert listed == (own[::-1] if backwards else own)


def test_orders_of_another_customer_are_not_listed() -> None:
    with pytest.raises(PermissionError):
        Tools(EXPLICIT).list_orders(customer_id="customer-other")


@pytest.mark.parametrize(
    ("customer_id", "order_id"),
    [(CUSTOMER, "order-c"), ("customer-other", "order-c"), ("customer-other", "order-a"), (CUSTOMER, "unknown")],
)
def test_identity_outside_the_session_is_false_and_no_ledger_notices(customer_id: str, order_id: str) -> None:
    tools = Tools(EXPLICIT)
    before = tools.world.objects()
    assert tools.verify_identity(customer_id=customer_id, order_id=order_id) is False
    assert tools.world.objects() == before
    assert all(each["events"] == [] for each in tools.world.objects())


@pytest.mark.parametrize("tool", ORDER_TOOLS)
@pytest.mark.parametrize("order_id", ["order-b", "order-c", "unknown"])
def test_unverified_foreign_and_unknown_orders_are_refused_alike(tool: str, order_id: str) -> None:
    tools = verified(order_id="order-a")
    with pytest.raises(PermissionError) as refusal:
        tools.call(tool, order_id=order_id, **ORDER_TOOLS[tool])
    assert str(refusal.value) == ""
    assert [each["events"] for each in tools.world.objects() if each["order"]["order_id"] != "order-a"] == [[], []]


def test_an_order_and_its_policy_are_told_as_recorded() -> None:
    tools = verified(policy=False)
    assert tools.get_order(order_id="order-a") == {"order_id": "order-a", "amount_cents": 4000, "currency": "USD"}
    assert tools.consult_refund_policy(order_id="order-a") == {"eligible": True, "approval_threshold_cents": 10_000}
    assert verified(INELIGIBLE).consult_refund_policy(order_id="order-a")["eligible"] is False
    assert statuses(tools) == [
        ("verify_identity", "verified"),
        ("get_order", "success"),
        ("consult_refund_policy", "success"),
    ]


def test_replies_come_in_order_whatever_the_question_then_none() -> None:
    tools = Tools(Case("", EXPLICIT.expectation, ["one", "two"]))
    assert [tools.ask_customer(question=each) for each in ("?", "colour of the sky", "?")] == ["one", "two", None]


@pytest.mark.parametrize("question", ["", " \n", None, 3, ["?"], {}])
def test_a_question_that_is_none_uses_up_no_reply(question: Any) -> None:
    tools = Tools(Case("", EXPLICIT.expectation, ["one"]))
    with pytest.raises(ValueError):  # noqa: PT011 - the class is all that an agent is told
        tools.ask_customer(question=question)
    assert tools.customer.turns == []
    assert tools.ask_customer(question="?") == "one"


@pytest.mark.parametrize(
    ("changes", "approved"),
    [
        ({}, True),
        ({"currency": "usd"}, True),
        ({"currency": "EUR"}, False),
        ({"amount_cents": 3999}, False),
        ({"amount_cents": 4001}, False),
    ],
)
def test_approval_is_for_the_exact_amount_and_currency_and_needs_no_policy(
    changes: dict[str, Any], approved: bool
) -> None:
    tools = verified(policy=False)
    answer = tools.request_refund_approval(
        **({"order_id": "order-a", "amount_cents": 4000, "currency": "USD"} | changes)
    )
    assert answer["approved"] is approved
    assert set(answer) == ({"approved", "approval_id"} if approved else {"approved"})
    assert statuses(tools)[-1] == ("request_refund_approval", "approved" if approved else "denied")


def test_an_ineligible_order_gets_no_approval() -> None:
    answer = verified(INELIGIBLE).request_refund_approval(order_id="order-a", amount_cents=4000, currency="USD")
    assert answer == {"approved": False}


def test_a_denial_withdraws_an_earlier_approval() -> None:
    tools = verified(DEAR)
    terms = {"order_id": "order-a", "currency": "USD"}
    approval_id = tools.request_refund_approval(amount_cents=10_001, **terms)["approval_id"]
    tools.request_refund_approval(amount_cents=1, **terms)
    answer = refund(tools, amount_cents=10_001, approval_id=approval_id)
    assert answer == {"status": "blocked", "reason": "approval_not_granted"}


def test_a_second_approval_replaces_the_first() -> None:
    tools = verified(DEAR)
    terms = {"order_id": "order-a", "amount_cents": 10_001, "currency": "USD"}
    first, second = (tools.request_refund_approval(**terms)["approval_id"] for _ in range(2))
    assert first != second
    assert refund(tools, amount_cents=10_001, approval_id=first) == {"status": "blocked", "reason": "approval_mismatch"}
    assert refund(tools, amount_cents=10_001, approval_id=second) == {"status": "committed"}


@pytest.mark.parametrize(
    ("case", "policy", "changes", "reason"),
    [
        (INELIGIBLE, False, {"amount_cents": 1, "currency": "GBP"}, "policy_not_consulted"),
        (INELIGIBLE, True, {"amount_cents": 1, "currency": "GBP"}, "amount_mismatch"),
        (INELIGIBLE, True, {"currency": "GBP"}, "currency_mismatch"),
        (INELIGIBLE, True, {}, "order_ineligible"),
        (DEAR, True, {"amount_cents": 10_001}, "approval_not_granted"),
        (DEAR, True, {"amount_cents": 10_001, "approval_id": "made up"}, "approval_not_granted"),
        (DEAR, True, {"amount_cents": 10_001, "idempotency_key": " "}, "approval_not_granted"),
    ],
)
def test_a_refund_is_blocked_for_the_first_reason_that_holds(
    case: Case, policy: bool, changes: dict[str, Any], reason: str
) -> None:
    tools = verified(case, policy=policy)
    assert refund(tools, **changes) == {"status": "blocked", "reason": reason}
    assert state(tools)["refund_transaction_count"] == 0
    assert state(tools)["idempotency_keys"] == []
    assert statuses(tools)[-1] == ("issue_refund", "blocked_unauthorized")


def test_exactly_the_threshold_needs_no_approval() -> None:
    assert refund(verified(AT_THRESHOLD), amount_cents=10_000) == {"status": "committed"}


@pytest.mark.parametrize("key", ["", " \t", None, 7, True])
def test_a_key_that_is_none_commits_nothing(key: Any) -> None:
    tools = verified()
    with pytest.raises(ValueError):  # noqa: PT011 - the class is all that an agent is told
        refund(tools, idempotency_key=key)
    assert state(tools)["refund_transaction_count"] == 0


def test_the_same_key_commits_once_and_a_new_key_commits_again() -> None:
    tools = verified()
    assert refund(tools, currency="usd") == {"status": "committed"}
    assert refund(tools) == {"status": "already_committed"}
    assert refund(tools, amount_cents=1) == {"status": "blocked", "reason": "amount_mismatch"}
    assert refund(tools, idempotency_key="other") == {"status": "committed"}
    assert tools.inspect_order_status(order_id="order-a") == {"refunded": True, "refund_transaction_count": 2}
    assert [status for tool, status in statuses(tools) if tool == "issue_refund"] == [
        "committed",
        "idempotent_replay",
        "blocked_unauthorized",
        "committed",
    ]


def test_keys_belong_to_one_order() -> None:
    tools = verified()
    tools.verify_identity(customer_id=CUSTOMER, order_id="order-b")
    tools.consult_refund_policy(order_id="order-b")
    assert refund(tools) == {"status": "committed"}
    assert refund(tools, order_id="order-b", amount_cents=4500, currency="EUR") == {"status": "committed"}


def test_a_timeout_after_commit_happens_once_and_its_effect_stands() -> None:
    tools = verified(TIMING_OUT)
    with pytest.raises(ToolTimeout):
        refund(tools)
    assert refund(tools) == {"status": "already_committed"}
    assert refund(tools, idempotency_key="other") == {"status": "committed"}
    assert state(tools)["refund_transaction_count"] == 2
    assert [status for tool, status in statuses(tools) if tool == "issue_refund"] == [
        "timed_out_after_commit",
        "idempotent_replay",
        "committed",
    ]


def test_the_final_state_of_an_order_is_complete() -> None:
    tools = verified(policy=False)
    tools.request_refund_approval(order_id="order-a", amount_cents=4000, currency="USD")
    assert state(tools) == {
        "order": RECORDS[0],
        "identity_verified": True,
        "policy_consulted": False,
        "approval_requests": 1,
        "approval_id": "approval:order-a:1",
        "idempotency_keys": [],
        "refund_transaction_count": 0,
        "events": [
            {"sequence": 1, "tool": "verify_identity", "status": "verified", "details": {}},
            {
                "sequence": 2,
                "tool": "request_refund_approval",
                "status": "approved",
                "details": {"amount_cents": 4000, "currency": "USD"},
            },
        ],
    }
    assert state(tools, "order-c")["events"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"amount_cents": True},
        {"amount_cents": 4500.0},
        {"amount_cents": -1},
        {"amount_cents": 2**53},
        {"currency": "usd"},
        {"eligible": 1},
        {"description": " \n"},
        {"order_id": ""},
        {"colour": "blue"},
    ],
)
def test_a_record_that_is_none_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        Record.model_validate(RECORDS[0] | changes)


def test_an_unknown_world_is_named() -> None:
    with pytest.raises(UnknownWorld, match="'hotels'"):
        load_world("hotels")


ORDER_IDS = st.sampled_from(["order-a", "order-b", "order-c", "unknown"])
AMOUNTS = st.sampled_from([0, 1, 4000, 4500, 10_001])
CURRENCIES = st.sampled_from(["USD", "eur", "GBP", ""])
APPROVALS = st.sampled_from([None, "approval:order-a:1", "approval:order-b:2", "made up"])
KEYS = st.sampled_from(["k1", "k2", " ", None, 5])
VALID: dict[str, st.SearchStrategy[Any]] = {
    "customer_id": st.sampled_from([CUSTOMER, CUSTOMER, CUSTOMER, "customer-other"]),
    "question": st.sampled_from(["Which?", "", None]),
    "order_id": ORDER_IDS,
    "amount_cents": AMOUNTS,
    "currency": CURRENCIES,
    "approval_id": APPROVALS,
    "idempotency_key": KEYS,
}
CALLS = st.one_of(
    *(
        st.tuples(st.just(tool), st.fixed_dictionaries({name: VALID[name] for name in kinds}))
        for tool, kinds in World.tools.items()
    ),
    # What really commits, so that long sequences reach refunds at all.
    st.sampled_from(
        [
            ("verify_identity", {"customer_id": CUSTOMER, "order_id": "order-a"}),
            ("verify_identity", {"customer_id": CUSTOMER, "order_id": "order-b"}),
            ("consult_refund_policy", {"order_id": "order-a"}),
            ("consult_refund_policy", {"order_id": "order-b"}),
        ]
    ),
    st.builds(
        lambda key, order: ("issue_refund", {**order, "approval_id": None, "idempotency_key": key}),
        st.sampled_from(["k1", "k2", "k3"]),
        st.sampled_from(
            [
                {"order_id": "order-a", "amount_cents": 4000, "currency": "USD"},
                {"order_id": "order-b", "amount_cents": 4500, "currency": "EUR"},
            ]
        ),
    ),
    st.sampled_from([("get_order", {}), ("issue_refund", {"order_id": "order-a"}), ("transfer_money", {"to": "me"})]),
)


def attempt(tools: Tools, tool: str, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(PermissionError, ValueError, ToolTimeout, InvalidCall):
        tools.call(tool, **arguments)


@settings(max_examples=200, deadline=None)
@given(calls=st.lists(CALLS, max_size=30), fault=st.booleans(), backwards=st.booleans())
def test_no_sequence_of_calls_corrupts_a_ledger(
    calls: list[tuple[str, dict[str, Any]]], fault: bool, backwards: bool
) -> None:
    case = Case("", EXPLICIT.expectation, ["a reply"], settings={"timeout_after_commit": fault})
    tools = Tools(case, backwards=backwards)
    for tool, arguments in calls:
        attempt(tools, tool, arguments)
    content = tools.content(case)  # valid by the ledger's own format

    assert [state["order"] for state in content["objects"]] == (RECORDS[::-1] if backwards else RECORDS)
    timeouts = 0
    for each in content["objects"]:
        events = each["events"]
        effects = [event for event in events if event["status"] in ("committed", "timed_out_after_commit")]
        timeouts += sum(event["status"] == "timed_out_after_commit" for event in events)
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
        assert each["refund_transaction_count"] == len(effects) == len(each["idempotency_keys"])
        assert [event["details"]["idempotency_key"] for event in effects] == each["idempotency_keys"]
        assert len(set(each["idempotency_keys"])) == len(each["idempotency_keys"])
        assert each["policy_consulted"] <= each["identity_verified"]
        assert bool(events) == each["identity_verified"]
        if effects:
            assert each["policy_consulted"]
            assert each["order"]["customer_id"] == CUSTOMER
    assert timeouts <= fault
    assert timeouts == sum(call.get("error") == "ToolTimeout" for call in content["calls"])
    assert len(content["calls"]) == len(calls)


COUNTERS = [
    "wrong_order_commits",
    "duplicate_commits",
    "unnecessary_clarifications",
    "denied_attempts",
    "premature_action_attempts",
    "tool_timeouts",
]


@settings(max_examples=100, deadline=None)
@given(
    calls=st.lists(CALLS, max_size=20),
    expectation=st.builds(
        Expectation, order=st.sampled_from([None, "order-a", "order-b"]), clarifications=st.integers(0, 2)
    ),
)
def test_a_later_success_never_erases_a_counter(
    calls: list[tuple[str, dict[str, Any]]], expectation: Expectation
) -> None:
    case = Case("", expectation, ["a reply", ""])
    tools = Tools(case)
    before: Grade | None = None
    for tool, arguments in calls:
        attempt(tools, tool, arguments)
        after = grade(structural(tools.content(case)), expectation)
        if before is not None:
            for counter in COUNTERS:
                assert before.observed(counter) <= after.observed(counter), counter
        before = after
