"""What a replay makes of judgments: they are of their own trial's execution, and count only if the caller trusts their
calibration."""

from pathlib import Path
from typing import Any

import pytest
from packets import (
    CALIBRATION,
    JUDGE,
    JUDGED_AT,
    Packet,
    changed,
    judgment_of,
    seal_hashes,
    small_packet,
    vote,
    written,
)
from test_replay_packet import Change, ledger, refused, removing, replay, setting

from grading.cost import Cost
from grading.manifest import Manifest
from grading.packet_judgment import Calls, UsedCall
from grading.packet_reading import PacketRefused
from simulator.canonical import canonical

OTHER = "sha256:" + "d" * 64
PASSED = ("artifacts", 0, "judgments", 0)
EXPIRED = ("artifacts", 2, "judgments", 0)
REFUSED = ("artifacts", 4, "judgments", 0)
"""Before the call, of the trial planned as number 5."""


@pytest.fixture(scope="module")
def packet() -> Packet:
    return seal_hashes(small_packet(judged=True))


def test_each_state_of_a_message_is_told_and_judging_is_a_cost_of_its_own(packet: Packet, tmp_path: Path) -> None:
    report = replay(tmp_path, written(packet), trusted_calibrations=[CALIBRATION])
    baseline, candidate = report.totals["baseline"], report.totals["candidate"]
    states = ("joint", "qualified_pass", "qualified_fail", "qualified_abstention", "unqualified_messages",
              "pending_messages")  # fmt: skip
    assert [baseline[name] for name in states] == [1, 1, 1, 1, 1, 0]
    assert [candidate[name] for name in states] == [0, 0, 0, 1, 1, 1]
    # Three votes of 162 for the expired and for the cached one; what an unknown vote or an unreached judge cost, nobody
    # knows; not sent and refused before the call: nothing was spent.
    cost = {"known_subtotal_micro_dollars": 972, "known": 2, "unknown": 3, "not_dispatched": 2}
    assert report.totals["judge_cost"] == {**cost, "complete_micro_dollars": None}
    calls = {"known_subtotal_micro_dollars": 1_620, "known": 10, "unknown": 2, "not_dispatched": 0}
    assert report.judge_calls == {**calls, "complete_micro_dollars": None}
    assert report.calibration_trusted is True
    assert [row["semantic"]["cached"] for row in packet["rows"] if row["semantic"]] == [False] * 3 + [True] + [
        False
    ] * 3
    assert any("1 messages were not judged yet" in note for note in report.notes)


@pytest.mark.parametrize("trusted", [[], [OTHER]])
def test_under_a_calibration_that_the_caller_does_not_trust_nothing_counts(
    packet: Packet, tmp_path: Path, trusted: list[str]
) -> None:
    report = replay(tmp_path, written(packet), trusted_calibrations=trusted)
    for arm, unqualified in (("baseline", 4), ("candidate", 2)):
        totals = report.totals[arm]
        assert (totals["joint"], totals["unqualified_messages"]) == (0, unqualified)
        assert totals["qualified_pass"] == totals["qualified_fail"] == totals["qualified_abstention"] == 0
    assert report.totals["candidate"]["pending_messages"] == 1
    # What judging cost is not a question of trust, and neither is the structural column.
    assert report.totals["judge_cost"]["known_subtotal_micro_dollars"] == 972
    assert report.totals["baseline"]["passed"] == 1
    assert report.calibration_trusted is False
    assert any("4 messages counted when they were judged and are unqualified here" in note for note in report.notes)


def test_a_trusted_calibration_that_is_no_hash_is_told(packet: Packet, tmp_path: Path) -> None:
    assert refused(tmp_path, written(packet), trusted_calibrations=["mine"]).field == "--trust-calibration"


CONTRADICTED: dict[str, tuple[Change, int, str]] = {
    "another request": (setting(*PASSED, "request_hash", value=OTHER), 0, "judgments[0]"),
    "another request, in the receipt too": (
        lambda packet: [setting(*PASSED, *path, "request_hash", value=OTHER)(packet) for path in ((), ("receipt",))],
        0, "judgments[0].request_hash"),
    "the judgment of another trial": (
        lambda packet: packet["artifacts"][0].__setitem__("judgments", packet["artifacts"][3]["judgments"]),
        0, "judgments[0].request_hash"),
    "a message changed under its judgment": (
        setting("artifacts", 0, "ledger", "content", "message", value="Your money has arrived."), 0,
        "judgments[0].request_hash"),
    "a claim changed under its judgment": (
        setting("artifacts", 0, "ledger", "content", "claims", "settlement_status_claim", value="settled"), 0,
        "judgments[0].request_hash"),
    "another judge": (setting(*EXPIRED, "configuration_hash", value=OTHER), 2, "judgments[0].configuration_hash"),
    "another calibration": (setting(*EXPIRED, "calibration_hash", value=OTHER), 2, "judgments[0].calibration_hash"),
    "another calibration before the call": (
        setting(*REFUSED, "calibration_hash", value=OTHER), 5, "judgments[0].calibration_hash"),
    "another criterion": (setting(*PASSED, "criterion", value="kindness"), 0, "judgments[0].criterion"),
    "a verdict that the votes do not give": (setting(*PASSED, "verdict", value="fail"), 0, "judgments[0]"),
    "a vote left out": (removing(*PASSED, "votes", 2), 0, "judgments[0]"),
    "an explanation of nobody": (setting(*PASSED, "explanation", value="because"), 0, "judgments[0]"),
    "a cost that the votes do not come to": (setting(*EXPIRED, "cost", "micro_dollars", value=1), 2, "judgments[0]"),
    "a word that counts without a receipt": (setting(*PASSED, "receipt", value=None), 0, "judgments[0]"),
    "a receipt for what does not count": (
        lambda packet: packet["artifacts"][2]["judgments"][0].__setitem__(
            "receipt", packet["artifacts"][0]["judgments"][0]["receipt"]), 2, "judgments[0]"),
    "an expired one of another request": (
        setting(*EXPIRED, "request_hash", value=OTHER), 2, "judgments[0].request_hash"),
    "an expired one checked before its answer": (
        setting(*EXPIRED, "checked_after", value=JUDGED_AT + 100), 2, "judgments[0].votes[1].ended"),
    "an expired one asked before it was checked": (
        setting(*EXPIRED, "checked_before", value=JUDGED_AT + 50), 2, "judgments[0].votes[0].started"),
    "a refused one with a request": (setting(*REFUSED, "request_hash", value=OTHER), 5, "judgments[0]"),
    "a refused one with a verdict": (setting(*REFUSED, "verdict", value="pass"), 5, "judgments[0]"),
    "a refused one that cost something": (
        setting(*REFUSED, "cost", value={"state": "known", "micro_dollars": 0}), 5, "judgments[0]"),
    "a refused one with votes": (
        lambda packet: packet["artifacts"][4]["judgments"][0].__setitem__(
            "votes", packet["artifacts"][0]["judgments"][0]["votes"]), 5, "judgments[0]"),
    "an answer of another model that counts": (
        setting(*PASSED, "votes", 0, "returned_model", value="m-2"), 0, "judgments[0].votes[0].returned_model"),
    "a call for evidence that was not sent": (
        setting("artifacts", 1, "judgments", 0, "votes", 0, "call", value="9" * 32), 1, "judgments[0].votes[0].call"),
    "an answer without a call": (setting(*PASSED, "votes", 0, "call", value=None), 0, "judgments[0].votes[0].call"),
    "a boolean for the version": (setting(*PASSED, "version", value=True), 0, "judgments[0].version"),
    "no version": (removing(*PASSED, "version"), 0, "judgments[0].version"),
    "an unknown field": (setting(*PASSED, "note", value=None), 0, "judgments[0].note"),
    "two judgments": (
        lambda packet: packet["artifacts"][0]["judgments"].append(packet["artifacts"][0]["judgments"][0]), 0,
        "judgments[1]"),
    "a judgment left out": (removing(*PASSED), 0, "row.semantic.reason"),
    "a pending one that passes": (setting("rows", 7, "semantic", "state", value="qualified_pass"), 7,
        "row.semantic.state"),
    "a pending one for no reason": (setting("rows", 7, "semantic", "reason", value="lazy"), 7, "row.semantic.reason"),
    "a state that disagrees": (
        setting("rows", 2, "semantic", "state", value="qualified_pass"), 2, "row.semantic.state"),
    "a joint grade that disagrees": (setting("rows", 2, "joint", value="passed"), 2, "row.joint"),
    "a judge's cost that disagrees": (
        setting("rows", 2, "semantic", "cost", value={"state": "known", "micro_dollars": 0}), 2,
        "row.semantic.cost.micro_dollars"),
    "a cached component that is not marked": (setting("rows", 3, "semantic", "cached", value=False), 3,
        "row.semantic.cached"),
    **{
        f"a receipt of another {name}": (setting(*PASSED, "receipt", name, value=value), 0, f"judgments[0]{place}")
        for name, value, place in (
            ("criterion", "kindness", ".receipt.criterion"),
            ("judge_version", OTHER, ".receipt.judge_version"),
            ("configuration_hash", OTHER, ""),
            ("calibration_hash", OTHER, ""),
            ("message_hash", OTHER, ".receipt.message_hash"),
            ("claims_hash", OTHER, ".receipt.claims_hash"),
            ("context_hash", OTHER, ".receipt.context_hash"),
            ("request_hash", OTHER, ""),
            ("verdict", "fail", ""),
            ("explanation", "because", ""),
            ("started", 1, ".receipt.started"),
            ("ended", JUDGED_AT + 399, ".receipt.ended"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTED)
def test_what_is_contradicted_is_refused_with_its_place(packet: Packet, tmp_path: Path, name: str) -> None:
    change, trial, field = CONTRADICTED[name]
    error = refused(tmp_path, changed(packet, change), trusted_calibrations=[CALIBRATION])
    assert (error.trial, error.field) == (trial, field), str(error)


REGISTERED: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "another judge": (("judge", "configuration", "model"), "m-9", "judgments[0].configuration_hash"),
    "fewer votes": (("judge", "configuration", "votes"), 1, "judgments[0].configuration_hash"),
    "no judge": (("judge",), None, "judgments"),
    "another calibration": (("judge", "calibration"), OTHER, "judgments[0].calibration_hash"),
    "another policy": (("judge", "policy_version"), "mine", "manifest.judge.policy_version"),
    "another redaction": (("redaction", "rules", 0, "pattern"), "Refund", "judgments[0].request_hash"),
    "no redaction": (("redaction",), None, "judgments[0].request_hash"),
    "a case with other labels": (("cases", 0, "labels", "kind"), "x", "judgments[0].receipt.context_hash"),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_a_manifest_that_is_hashed_anew_is_still_contradicted(packet: Packet, tmp_path: Path, name: str) -> None:
    path, value, field = REGISTERED[name]

    def change(other: Packet) -> None:
        setting("manifest", *path, value=value)(other)
        if path[-1] == "kind":
            other["manifest"]["population"][0]["labels"]["kind"] = value

    assert refused(tmp_path, changed(packet, change, manifest=True)).field == field


def test_a_word_cannot_count_where_no_calibration_is_registered(packet: Packet, tmp_path: Path) -> None:
    def change(other: Packet) -> None:
        other["manifest"]["judge"]["calibration"] = None
        for artifact in other["artifacts"]:
            for judgment in artifact["judgments"]:
                judgment["calibration_hash"] = None
                if judgment["receipt"] is not None:
                    judgment["receipt"]["calibration_hash"] = None

    assert refused(tmp_path, changed(packet, change, manifest=True)).field == "judgments[0].receipt"


def test_a_sound_judgment_is_refused_where_no_judge_is_registered(tmp_path: Path) -> None:
    packet = seal_hashes(small_packet())
    manifest = Manifest.model_validate_json(canonical({**packet["manifest"], "judge": JUDGE.model_dump()}))
    judgment = judgment_of(manifest, 0, ledger(packet, 0)["content"], [vote(i, "pass") for i in range(3)])
    change = setting("artifacts", 0, "judgments", value=[judgment.model_dump(mode="json")])
    error = refused(tmp_path, changed(packet, change))
    assert (error.trial, error.field) == (0, "judgments")
    assert "registers no judge" in str(error)


def test_a_call_answers_once_and_is_paid_for_once() -> None:
    calls = Calls()
    cost = Cost("known", 162)
    calls.add(UsedCall(0, b"a", cached=False, answer=b"1", cost=cost))
    calls.add(UsedCall(1, b"a", cached=True, answer=b"1", cost=cost))
    calls.add(UsedCall(2, b"b", cached=True, answer=b"2", cost=Cost("unknown")))
    assert (calls.cost.known_subtotal, calls.cost.known, calls.cost.unknown) == (162, 1, 1)
    with pytest.raises(PacketRefused, match="not marked as cached") as caught:
        calls.add(UsedCall(3, b"a", cached=False, answer=b"1", cost=cost))
    assert (caught.value.trial, caught.value.field) == (3, "judgments[0].votes")
    with pytest.raises(PacketRefused, match="another request or answer"):
        calls.add(UsedCall(3, b"b", cached=True, answer=b"3", cost=Cost("unknown")))
    # Whichever uses it first, one judgment alone may have made it.
    calls.add(UsedCall(4, b"b", cached=False, answer=b"2", cost=Cost("unknown")))
    with pytest.raises(PacketRefused, match="not marked as cached"):
        calls.add(UsedCall(5, b"b", cached=False, answer=b"2", cost=Cost("unknown")))


def test_several_processes_find_what_one_finds_with_judgments(
    packet: Packet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grading.replay_packet._CHUNK_TRIALS", 2)
    told: dict[str, Any] = {"trusted_calibrations": [CALIBRATION]}
    monkeypatch.setattr("grading.replay_packet._IN_PROCESS", 0)
    assert replay(tmp_path, written(packet), processes=2, **told) == replay(tmp_path, written(packet), **told)
