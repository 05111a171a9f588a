"""The cells API on the wire: today's documents stay readable, and no others are taken."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from simulator import pod_protocol
from simulator.journal import begin_line, begin_members, call_line, call_members, line
from simulator.pod_delivery import assigned_of
from simulator.pod_intake import IntakeLost, Refused
from simulator.pod_protocol import (
    Assigned,
    AssignmentRequest,
    Following,
    JournalLines,
    LedgerAnswer,
    Refusal,
    TurnAnswer,
    Unusable,
)

GOLDEN: dict[str, dict[str, Any]] = orjson.loads((Path(__file__).parent / "golden" / "cells_api_v1.json").read_bytes())
MODELS = (AssignmentRequest, Assigned, Refusal, JournalLines, LedgerAnswer, Following, TurnAnswer, Unusable)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_document_of_version_1_is_read_and_written_back_the_same(model: Any) -> None:
    document = GOLDEN[model.__name__]
    read = model.model_validate_json(orjson.dumps(document))
    assert orjson.loads(read.model_dump_json()) == document


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("change", [{"version": 2}, {"version": True}, {"version": "1"}, {"another": 1}])
def test_another_version_and_further_members_are_refused(model: Any, change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate_json(orjson.dumps(GOLDEN[model.__name__] | change))


def test_the_pod_reads_what_the_intake_writes() -> None:
    document = GOLDEN["Assigned"]
    assert assigned_of(orjson.loads(Assigned.model_validate_json(orjson.dumps(document)).model_dump_json())) == document
    with pytest.raises(Refused, match="of a version that this pod's image does not know"):
        assigned_of(document | {"version": 2})
    with pytest.raises(IntakeLost, match="malformed: number"):
        assigned_of({name: value for name, value in document.items() if name != "number"})
    with pytest.raises(IntakeLost, match="not the one that its hash names"):
        assigned_of(document | {"hash": "sha256:" + "1" * 64})
    changed = document["assignment"] | {"replies": ["Another."]}
    with pytest.raises(IntakeLost, match="not the one that its hash names"):
        assigned_of(document | {"assignment": changed})
    checked: dict[str, bytes] = {}
    for _ in range(2):
        assert assigned_of(document, checked) == document
        assert list(checked) == [document["hash"]]
        # What stands in it is compared, not how Python compares it: 1 is not true.
        for other in (changed, document["assignment"] | {"version": True}):
            with pytest.raises(IntakeLost, match="not the one that its hash names"):
                assigned_of(document | {"assignment": other}, checked)


def test_an_assignment_of_an_intake_that_does_not_say_what_comes_after_is_read() -> None:
    document = {name: value for name, value in GOLDEN["Assigned"].items() if name != "after"}
    assert Assigned.model_validate_json(orjson.dumps(document)).after is None
    assert assigned_of(document) == document


def test_lines_are_those_of_a_journal_on_disk() -> None:
    calls = [
        {"tool": "list_orders", "arguments": {"customer_id": "ü"}, "result": [{"a": 1.5}, None]},
        {"tool": "issue_refund", "arguments": {"order_id": "b"}, "error": "ToolTimeout"},
        {"tool": "", "arguments": None, "raw_sha256": "sha256:" + "0" * 64, "error": "InvalidCall"},
    ]
    lines = [begin_line(7, "sha256:" + "0" * 64, 5), *(call_line(7, call, 5, 6) for call in calls)]
    body = b'{"version":1,"attempt":7,"first":0,"entries":[%b]}' % b",".join(lines)
    assert JournalLines.model_validate_json(body).lines() == lines


@pytest.mark.parametrize(
    "line",
    [
        {},
        [],
        {"attempt": 7},
        {"attempt": 7, "begin": {"assignment": "none", "started": 1}},
        {"attempt": 7, "call": {"tool": "x", "arguments": {}}, "started": 1, "ended": 2},
        {
            "attempt": 7,
            "call": {"tool": "x", "arguments": {}, "result": 1, "error": "ValueError"},
            "started": 1,
            "ended": 2,
        },
        {"attempt": 7, "call": {"tool": "x", "arguments": {}, "result": 1}, "started": 1.0, "ended": 2},
        {"attempt": 7, "ledger": {}},
    ],
)
def test_a_line_that_no_recorder_writes_is_refused(line: Any) -> None:
    with pytest.raises(ValidationError):
        JournalLines.model_validate_json(orjson.dumps({"version": 1, "attempt": 7, "first": 0, "entries": [line]}))


def test_lines_that_were_told_before_their_attempt_was_known_are_the_same_lines() -> None:
    call = {"tool": "issue_refund", "arguments": {"order_id": "ü", "cents": 1.5}, "error": "ToolTimeout"}
    members = [begin_members("sha256:" + "0" * 64, 5), call_members(call, 5, 6)]
    told = Following.model_validate_json(b'{"version":1,"entries":[%b]}' % b",".join(b"{%b}" % one for one in members))
    assert told.assignment == "sha256:" + "0" * 64
    assert told.members() == members
    assert [line(7, one) for one in members] == [begin_line(7, "sha256:" + "0" * 64, 5), call_line(7, call, 5, 6)]


BEGIN = {"begin": {"assignment": "sha256:" + "0" * 64, "started": 1}}
CALL = {"call": {"tool": "x", "arguments": {}, "result": 1}, "started": 1, "ended": 2}


@pytest.mark.parametrize(
    "entries", [[], [CALL], [CALL, BEGIN], [BEGIN, BEGIN], [BEGIN, CALL, BEGIN], [BEGIN, {}], [[]]]
)
def test_what_is_told_of_a_trial_begins_with_its_beginning(entries: list[Any]) -> None:
    with pytest.raises(ValidationError):
        Following.model_validate_json(orjson.dumps({"version": 1, "entries": entries}))


def test_an_attempt_is_not_told_before_it_is_known() -> None:
    with pytest.raises(ValidationError):
        Following.model_validate_json(orjson.dumps({"version": 1, "entries": [BEGIN | {"attempt": 7}]}))


@pytest.mark.parametrize("launch", ["", "0123", "0" * 31 + "G", "0" * 33])
def test_a_launch_is_32_hex_digits(launch: str) -> None:
    with pytest.raises(ValidationError):
        AssignmentRequest.model_validate_json(orjson.dumps(GOLDEN["AssignmentRequest"] | {"launch": launch}))


def test_the_golden_file_names_every_document() -> None:
    assert set(GOLDEN) == {model.__name__ for model in MODELS}
    assert {one.__name__ for one in MODELS} <= set(vars(pod_protocol))
