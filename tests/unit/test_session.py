"""Every call is checked before any effect and recorded as it was made (behaviour of the orders world, InvalidCall)."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders_cases import CUSTOMER, RECORDS

from simulator.canonical import canonical, sha256
from simulator.customer import Customer
from simulator.protocol import parse
from simulator.recorder import _call
from simulator.session import Session
from simulator.worlds.orders import World

REFUND = {
    "order_id": "order-b",
    "amount_cents": 4500,
    "currency": "EUR",
    "approval_id": None,
    "idempotency_key": "refund:order-b",
}
VALID: dict[str, dict[str, Any]] = {
    "list_orders": {"customer_id": CUSTOMER},
    "ask_customer": {"question": "Which one?"},
    "verify_identity": {"customer_id": CUSTOMER, "order_id": "order-b"},
    "get_order": {"order_id": "order-b"},
    "consult_refund_policy": {"order_id": "order-b"},
    "request_refund_approval": {"order_id": "order-b", "amount_cents": 4500, "currency": "EUR"},
    "issue_refund": REFUND,
    "inspect_order_status": {"order_id": "order-b"},
}


def opened() -> Session:
    return Session(World(RECORDS, CUSTOMER, Customer(["A reply."]), {}))


def sent(line: str) -> tuple[Session, dict[str, Any]]:
    """A session that a protocol line was given to, and the line's record."""
    session = opened()
    for tool in ("verify_identity", "consult_refund_policy"):
        session.call(tool, VALID[tool])
    before = orjson.dumps(session.world.objects())
    message = parse(line.encode())
    record = _call(session, message.get("tool"), message.get("arguments"), line.encode())
    assert session.calls[-1] is record
    if record.get("error") == "InvalidCall":
        assert orjson.dumps(session.world.objects()) == before
    return session, record


def refused(line: str) -> Any:
    """The arguments on record of a line that is refused."""
    session, record = sent(line)
    assert (record["error"], record["raw_sha256"]) == ("InvalidCall", sha256(line.encode()))
    assert set(record) == {"tool", "arguments", "raw_sha256", "error"}
    canonical(session.calls)
    return record["arguments"]


def line(tool: Any, arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


@pytest.mark.parametrize("tool", VALID)
def test_a_valid_call_is_recorded_by_argument_names(tool: str) -> None:
    _, record = sent(line(tool, VALID[tool]))
    assert (record["tool"], record["arguments"], set(record)) == (tool, VALID[tool], {"tool", "arguments", "result"})


@pytest.mark.parametrize(("tool", "name"), [(tool, name) for tool, arguments in VALID.items() for name in arguments])
def test_a_missing_or_misspelt_name(tool: str, name: str) -> None:
    fewer = {key: value for key, value in VALID[tool].items() if key != name}
    assert refused(line(tool, fewer)) == fewer
    assert refused(line(tool, {**fewer, name.upper(): VALID[tool][name]})) == {
        **fewer,
        name.upper(): VALID[tool][name],
    }


@pytest.mark.parametrize("tool", VALID)
def test_an_extra_name(tool: str) -> None:
    assert refused(line(tool, VALID[tool] | {"more": 1})) == VALID[tool] | {"more": 1}


@pytest.mark.parametrize("tool", ["", "issue_Refund", "_issue_refund", "call", "objects", "__init__", "list_orders "])
def test_an_unknown_tool(tool: str) -> None:
    assert refused(line(tool, REFUND)) == REFUND


@pytest.mark.parametrize("tool", [None, 5, True, ["issue_refund"], {"issue_refund": 1}])
def test_a_tool_that_is_no_text(tool: Any) -> None:
    _, record = sent(line(tool, REFUND))
    assert (record["tool"], record["arguments"], record["error"]) == ("", REFUND, "InvalidCall")


def test_the_name_of_a_tool_is_kept_to_200_characters() -> None:
    for name, kept in (
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200),
        ("\U0001f600" * 300, "\U0001f600" * 200),
        ("a\ud800b", "a?b"),
        ("\0<b>", "\0<b>"),
    ):
        assert sent(line(name, {}))[1]["tool"] == kept


@pytest.mark.parametrize("arguments", [None, [], "text", 5, 1.5, True, ["order-b"]])
def test_arguments_that_are_no_object(arguments: Any) -> None:
    assert refused(line("get_order", arguments)) == arguments


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("4500.0", None),
        ("4.5e3", None),
        ("-0.0", None),
        ("1e20", None),
        ("9007199254740992", None),
        ("-9007199254740992", None),
        ("1" * 400, None),
        ("NaN", None),
        ("Infinity", None),
        ("-Infinity", None),
        ("1e999", None),
        ('"\\ud800"', None),
        ("true", True),
        ("false", False),
        ("null", None),
        ('"4500"', "4500"),
        ("4500.5", 4500.5),
        ("1e21", 1e21),
        ("[4500]", [4500]),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_an_amount_that_is_no_integer(written: str, kept: Any) -> None:
    raw = line("request_refund_approval", VALID["request_refund_approval"]).replace("4500", written)
    whole = refused(raw)
    if kept is None and written != "null":
        assert whole is None
    else:
        assert whole == VALID["request_refund_approval"] | {"amount_cents": kept}
        assert type(whole["amount_cents"]) is type(kept)


@pytest.mark.parametrize("amount", [2**53 - 1, -(2**53) + 1, 0, -1])
def test_amounts_at_the_edge_reach_the_world(amount: int) -> None:
    _, record = sent(line("issue_refund", REFUND | {"amount_cents": amount}))
    assert record["result"] == {"status": "blocked", "reason": "amount_mismatch"}


@pytest.mark.parametrize("name", ["order_id", "currency"])
@pytest.mark.parametrize("value", [None, 5, 5.5, True, ["a"], {"a": "b"}])
def test_ids_and_currency_are_text(name: str, value: Any) -> None:
    assert refused(line("issue_refund", REFUND | {name: value})) == REFUND | {name: value}


@pytest.mark.parametrize("value", [5, 5.5, False, ["a"], {}])
def test_an_approval_id_is_text_or_null(value: Any) -> None:
    assert refused(line("issue_refund", REFUND | {"approval_id": value})) == REFUND | {"approval_id": value}
    assert "result" in sent(line("issue_refund", REFUND | {"approval_id": "made up"}))[1]


@pytest.mark.parametrize("value", [None, 5, 5.5, True, [], {"a": [1.25, None]}, "", "  \t"])
def test_question_and_key_of_another_type_are_the_tools_own_error(value: Any) -> None:
    for tool, name in (("ask_customer", "question"), ("issue_refund", "idempotency_key")):
        session, record = sent(line(tool, VALID[tool] | {name: value}))
        assert (record["error"], record["arguments"]) == ("ValueError", VALID[tool] | {name: value})
        assert session.world.objects()[1]["refund_transaction_count"] == 0


@pytest.mark.parametrize("written", ["5.0", "NaN", "1e400", '"\\udfff"', '{"\\ud800": 1}', "[[1, 2.0]]", "9" * 20])
def test_question_and_key_that_are_no_exact_json(written: str) -> None:
    for tool, name in (("ask_customer", "question"), ("issue_refund", "idempotency_key")):
        raw = line(tool, VALID[tool] | {name: "HERE"}).replace('"HERE"', written)
        assert refused(raw) is None


def test_deep_nesting() -> None:
    def nested(depth: int) -> Any:
        value: Any = "x"
        for _ in range(depth):
            value = [value]
        return value

    # The arguments themselves are the first of the 64 levels that are kept.
    assert sent(line("ask_customer", {"question": nested(64)}))[1]["error"] == "ValueError"
    assert refused(line("ask_customer", {"question": nested(65)})) is None
    assert refused(line("nothing", {"question": nested(63)})) == {"question": nested(63)}
    assert refused(line("nothing", {"question": nested(64)})) is None


def test_results_are_copies() -> None:
    session, record = sent(line("list_orders", VALID["list_orders"]))
    record["result"][0]["description"] = "tampered"
    record["result"].clear()
    again = session.call("list_orders", VALID["list_orders"])["result"]
    assert [one["order_id"] for one in again] == ["order-a", "order-b"]
    assert again[0]["description"] == "blue backpack bought on 2026-08-01"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["order-b", CUSTOMER, "EUR", "\ud800", 4500, 4500.0, 2**53]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from([*VALID, "nothing", "x" * 250]) | json_values,
    st.dictionaries(st.sampled_from([*REFUND, "customer_id", "question", "more"]), json_values) | json_values,
)
def test_any_line_leaves_a_record_that_canonical_json_gives_back(tool: Any, arguments: Any) -> None:
    raw = line(tool, arguments)
    session, record = sent(raw)
    assert len(session.calls) == 3
    stored = json.loads(canonical(record))
    assert stored == record
    assert orjson.dumps(stored, option=orjson.OPT_SORT_KEYS) == orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    kept = record["arguments"]
    if kept is not None:
        # Kept only where canonical JSON gives back exactly what was sent, types included.
        assert _typed(json.loads(canonical(kept))) == _typed(parse(raw.encode())["arguments"])
    elif parse(raw.encode())["arguments"] is not None:
        assert record["error"] == "InvalidCall"


@given(st.sampled_from(list(VALID)), st.data())
def test_a_call_is_refused_exactly_where_its_arguments_do_not_fit(tool: str, data: st.DataObject) -> None:
    arguments = {name: data.draw(st.just(value) | json_values, name) for name, value in VALID[tool].items()}
    _, record = sent(line(tool, arguments))
    fits = all(_fits(World.tools[tool][name], value) for name, value in arguments.items())
    assert (record.get("error") != "InvalidCall") is fits


def _fits(kind: str, value: Any) -> bool:
    try:
        exact = _typed(json.loads(canonical(value))) == _typed(value)
    except ValueError:
        return False
    types = {"text": (str,), "integer": (int,), "text or null": (str, type(None))}
    return exact and (kind == "any" or type(value) in types[kind])


def _typed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _typed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (type(value).__name__, repr(value))
