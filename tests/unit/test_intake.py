"""The intake lets in the one ledger that an attempt made, and says of any other what is wrong and where."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import orjson
import pytest
from sealed_ledger import TRIAL, assignment, document, members, parts

import grading.intake
from grading.intake import Quarantined, validate
from simulator.canonical import canonical
from simulator.sealing import seal

Path = tuple[str | int, ...]


def refused(changed: bytes, trial: str = TRIAL, number: int = 2) -> Quarantined:
    with pytest.raises(Quarantined) as caught:
        validate(changed, assignment(), trial, number)
    return caught.value


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list) or not value:
        yield path
    for key, item in items:
        yield from leaves(item, (*path, key))


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: Path, new: Any) -> Any:
    changed = deepcopy(value)
    at(changed, path[:-1])[path[-1]] = new
    return changed


def other(value: Any) -> Any:
    """Another value of the same type, so that the schema alone would not notice."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.25
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    return "something" if value is None else [1] if value == [] else {"a": 1}


LEAVES = list(leaves(members()))
OBSERVED = [
    path for path in LEAVES if path[0] == "envelope" or path[:2] in (("content", "message"), ("content", "claims"))
]


def test_the_document_itself() -> None:
    ledger = validate(document(), assignment(), TRIAL, 2)
    assert (ledger.document, ledger.content) == (document(), members()["content"])
    assert (ledger.content_hash, ledger.ledger_hash) == (members()["content_hash"], members()["ledger_hash"])
    assert (ledger.started, ledger.ended) == (1_790_000_000_000_000, 1_790_000_000_001_000)


@pytest.mark.parametrize("path", LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_any_leaf_changed(path: Path) -> None:
    for new in (other(at(members(), path)), None if at(members(), path) is not None else 0, [[]]):
        if new == at(members(), path):
            continue
        error = refused(canonical(put(members(), path, new)))
        assert error.kind in ("ledger_malformed", "hash_mismatch", "replay_mismatch")
        assert str(error)


@pytest.mark.parametrize("path", [path for path in LEAVES if path[0] == "content"], ids=lambda p: ".".join(map(str, p)))
def test_a_derived_leaf_changed_and_every_hash_made_anew(path: Path) -> None:
    """Only what the agent or the recorder alone observed can be changed so; all else a fresh world contradicts."""
    content, envelope = parts()
    value = at(members(), path)
    changed = seal(put(content, path[1:], other(value)), envelope)
    refused_call = path[1] == "calls" and at(members(), path[:3]).get("error") == "InvalidCall"
    if path in OBSERVED or path == ("content", "error") or (refused_call and path[3] != "error"):
        return
    error = refused(changed)
    if error.kind == "replay_mismatch":
        place = str(error).split(": ")[0]
        named = place.replace("[", ".").replace("]", "").split(".")
        # The place named is the leaf, the object it is in, or where the first consequence of the change shows.
        assert named[0] == "content"
        assert named[1] == path[1] or (path[1] == "calls" and named[1] in ("calls", "objects", "turns"))


def test_the_place_is_named() -> None:
    content, envelope = parts()
    for path, new, place in (
        (("calls", 0, "result", 0, "order_id"), "order-b", "content.calls[0].result[0].order_id: "),
        (("objects", 0, "refund_transaction_count"), 0, "content.objects[0].refund_transaction_count: "),
        (("objects", 2, "order", "amount_cents"), 4001, "content.objects[2].order.amount_cents: "),
        (("objects", 0, "events", 2, "status"), "blocked", "content.objects[0].events[2].status: "),
        (("turns", 0, "reply"), "Another.", "content.turns[0].reply: "),
        (("request", "utterance"), "Refund it.", "content.request.utterance: "),
        (("calls", 4, "tool"), "list_order", ""),
    ):
        changed = seal(put(content, path, new), envelope)
        if place:
            error = refused(changed)
            assert (error.kind, str(error)) == ("replay_mismatch", f"{place}a fresh world answers otherwise")


def test_a_valid_call_cannot_be_passed_off_as_refused() -> None:
    content, envelope = parts()
    call = {"tool": "get_order", "arguments": {"order_id": "order-a"}, "error": "InvalidCall"}
    content["calls"][1] = call | {"raw_sha256": "sha256:" + "0" * 64}
    assert str(refused(seal(content, envelope))) == ("content.calls[1]: get_order is valid, yet recorded as refused")
    content["calls"][1] = {"tool": "get_orders", "arguments": {}, "result": None}
    assert str(refused(seal(content, envelope))) == "content.calls[1]: get_orders is no call of this world"


@pytest.mark.parametrize("length", [0, 1, 100, len(document()) - 1])
def test_truncated(length: int) -> None:
    error = refused(document()[:length])
    assert error.kind == "ledger_malformed"


def test_enormous(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(b" " * (64 * 1024 * 1024 + 1)).kind == "ledger_malformed"
    monkeypatch.setattr(grading.intake, "LARGEST_LEDGER", len(document()))
    validate(document(), assignment(), TRIAL, 2)
    monkeypatch.setattr(grading.intake, "LARGEST_LEDGER", len(document()) - 1)
    assert "more than a ledger may have" in str(refused(document()))


def test_of_another_trial_or_attempt() -> None:
    assert str(refused(document(), trial="f" * 32)) == f"envelope: it is of {TRIAL}, attempt 2"
    assert refused(document(), number=1).kind == "ledger_malformed"


@pytest.mark.parametrize(
    ("path", "change"),
    [(("started",), 999), (("ended",), -1000), (("calls", 0, "started"), -1), (("calls", 3, "ended"), 500)],
)
def test_times_that_run_backwards(path: Path, change: int) -> None:
    content, envelope = parts()
    changed = seal(content, put(envelope, path, at(envelope, path) + change))
    assert str(refused(changed)) == "envelope.calls: times run backwards"


def test_times_for_more_or_fewer_calls() -> None:
    content, envelope = parts()
    assert (
        str(refused(seal(content, envelope | {"calls": envelope["calls"][:-1]})))
        == "envelope.calls: 7 times for 8 calls"
    )


@pytest.mark.parametrize(
    "rewritten",
    [
        json.dumps(members()).encode(),
        orjson.dumps(members(), option=orjson.OPT_INDENT_2),
        document() + b"\n",
        document().replace(b'"version":1}', b'"version":1,"version":1}'),
        document().replace(b'"amount_cents":4000.5', b'"amount_cents":4000.50'),
        document().replace("\u00e9".encode(), b"\\u00e9"),
    ],
    ids=["spaces", "indented", "a line's end", "a member twice", "a number otherwise", "an escape"],
)
def test_not_canonical(rewritten: bytes) -> None:
    assert rewritten != document()
    assert refused(rewritten).kind in ("hash_mismatch", "ledger_malformed")


@pytest.mark.parametrize("garbage", [b"null", b"[]", b"{}", b"\xff\xfe", b"NaN", b"[" * 100_000, b'{"version":1}'])
def test_garbage(garbage: bytes) -> None:
    assert refused(garbage).kind == "ledger_malformed"


def test_an_answer_and_an_error_do_not_go_together() -> None:
    content, envelope = parts()
    assert "claims nothing" in str(refused(seal(content | {"error": "TimeLimit"}, envelope)))
    assert "it is empty" in str(refused(seal(content | {"message": ""}, envelope)))
