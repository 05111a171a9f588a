"""What a replay refuses, each with its place, after every hash below the manifest's was made anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import packets
import pytest
from packets import Packet, Raw, changed, seal_hashes, small_packet, written

from grading.packet_reading import PacketRefused
from grading.replay_packet import Report, replay_packet

Change = Callable[[Packet], None]


@pytest.fixture(scope="module")
def packet() -> Packet:
    return seal_hashes(small_packet())


def replay(folder: Path, data: bytes, **options: Any) -> Report:
    path = folder / "packet.json"
    path.write_bytes(data)
    return replay_packet(path, **options)


def refused(folder: Path, data: bytes, **options: Any) -> PacketRefused:
    with pytest.raises(PacketRefused) as caught:
        replay(folder, data, **options)
    return caught.value


def ledger(packet: Packet, artifact: int) -> Any:
    return packet["artifacts"][artifact]["ledger"]


def content(packet: Packet, artifact: int) -> Any:
    return ledger(packet, artifact)["content"]


def setting(*path: Any, value: Any) -> Change:
    """A change of one place."""

    def change(packet: Packet) -> None:
        inner: Any = packet
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value

    return change


def removing(*path: Any) -> Change:
    def change(packet: Packet) -> None:
        inner: Any = packet
        for part in path[:-1]:
            inner = inner[part]
        del inner[path[-1]]

    return change


def swapping(*path: Any, one: int = 0, other: int = 1) -> Change:
    def change(packet: Packet) -> None:
        inner: Any = packet
        for part in path:
            inner = inner[part]
        inner[one], inner[other] = inner[other], inner[one]

    return change


def test_a_sound_packet_replays(packet: Packet, tmp_path: Path) -> None:
    report = replay(tmp_path, written(packet))
    assert (report.trials, report.replayed, report.missing, report.reused, report.incidents) == (8, 7, 1, 1, 2)
    assert (report.pairs, report.pairs_in_order) == (3, 3)
    assert report.totals["baseline"]["passed"] == 1
    assert not report.anchored
    assert any("missing trial is never a pass" in note for note in report.notes)
    assert any("exploratory" in note for note in report.notes)
    anchored = replay(tmp_path, written(packet), expected_sha256=report.sha256)
    assert anchored.anchored
    assert anchored.to_json()["does_not_prove"]


@pytest.mark.parametrize(("least", "accepted"), [("process", True), ("user", False), ("container", False)])
def test_a_trial_must_be_isolated_at_least_as_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: str, accepted: bool
) -> None:
    registered = packets._manifest
    monkeypatch.setattr(packets, "_manifest", lambda profile: registered(profile) | {"isolation": least})
    data = written(seal_hashes(small_packet()))
    if accepted:
        replay(tmp_path, data)
    else:
        error = refused(tmp_path, data)
        assert (error.trial, error.field) == (0, "ledger.envelope.isolation")
        assert str(error).endswith(f"is process, and at least {least} was to be expected")


def test_a_trial_that_was_isolated_better_than_registered_replays(packet: Packet, tmp_path: Path) -> None:
    replay(tmp_path, changed(packet, setting(*ENVELOPE, "isolation", value="container")))


CALLS = ("artifacts", 0, "ledger", "content", "calls")
OBJECTS = ("artifacts", 0, "ledger", "content", "objects")
ENVELOPE = ("artifacts", 0, "ledger", "envelope")
CASES = ("manifest", "cases")

CONTRADICTED: dict[str, tuple[Change, int | None, int | None, str]] = {
    # name: change, trial, event, field
    "a changed result": (
        setting(*CALLS, 2, "result", "amount_cents", value=4001), 0, 2, "ledger.content.calls[2].result.amount_cents"),
    "a result that becomes an error": (
        setting(*CALLS, 2, value={"tool": "get_order", "arguments": {"order_id": "a"}, "error": "ValueError"}),
        0, 2, "ledger.content.calls[2].error"),
    "a changed error class": (
        setting("artifacts", 1, "ledger", "content", "calls", 0, "error", value="ValueError"),
        1, 0, "ledger.content.calls[0].error"),
    "a changed event": (
        setting(*OBJECTS, 0, "events", 1, "status", value="denied"), 0, None,
        "ledger.content.objects[0].events[1].status"),
    "a removed event": (
        removing(*OBJECTS, 0, "events", 5), 0, None, "ledger.content.objects[0].events[5]"),
    "events in another order": (
        swapping(*OBJECTS, 0, "events"), 0, None, "ledger.content.objects[0].events[0].sequence"),
    "calls in another order": (
        swapping(*CALLS, one=1, other=2), 0, 1, "ledger.content.calls[1].error"),
    "a removed call": (
        removing(*CALLS, 6), 0, None, "ledger.content.objects[0].events[5]"),
    "a changed final state": (
        setting(*OBJECTS, 0, "refund_transaction_count", value=0), 0, None,
        "ledger.content.objects[0].refund_transaction_count"),
    "a changed foreign order": (
        setting(*OBJECTS, 2, "identity_verified", value=True), 0, None,
        "ledger.content.objects[2].identity_verified"),
    "a customer's turn that was not": (
        setting("artifacts", 2, "ledger", "content", "turns", 0, "reply", value="The hat."), 2, None,
        "ledger.content.turns[0].reply"),
    "a case changed in one trial": (
        setting(*OBJECTS, 1, "order", "description", value="shoe"), 0, None,
        "ledger.content.objects[1].order.description"),
    "a request changed": (
        setting("artifacts", 0, "ledger", "content", "request", "utterance", value="Refund all."), 0, None,
        "ledger.content.request.utterance"),
    "records presented in another order": (
        swapping(*OBJECTS), 0, None, "ledger.content.objects[0].events[0]"),
    "an arm changed": (setting("rows", 0, "arm", value="candidate"), 0, None, "row.arm"),
    "arms exchanged": (swapping("artifacts"), 0, None, "ledger.envelope"),
    "a schedule changed": (swapping("rows"), 0, None, "ledger.envelope"),
    "a planned place changed": (setting("rows", 3, "sequence", value=4), 3, None, "row.sequence"),
    "a counter that disagrees": (
        setting("rows", 3, "counters", "wrong_order_commits", value=0), 3, None, "row.counters.wrong_order_commits"),
    "a verdict that disagrees": (setting("rows", 3, "verdict", value="passed"), 3, None, "row.verdict"),
    "a completion that disagrees": (setting("rows", 3, "completed", value=True), 3, None, "row.completed"),
    "a failed check left out": (removing("rows", 3, "failed_checks", 0), 3, None, "row.failed_checks[0]"),
    "a missing trial that passes": (setting("rows", 4, "verdict", value="passed"), 4, None, "row.verdict"),
    "a grade that disagrees": (
        setting("artifacts", 3, "grades", 0, "checks", 0, "passed", value=True), 3, None, "grades[0].checks[0].passed"),
    "a grade by another grader": (
        setting("artifacts", 0, "grades", 0, "grader_version", value="sha256:" + "0" * 64), 0, None,
        "grades[0].grader_version"),
    "no grade": (removing("artifacts", 0, "grades", 0), 0, None, "grades[0]"),
    "a cost that is claimed": (setting("rows", 0, "cost_micro_dollars", value=0), 0, None, "row.cost_micro_dollars"),
    "a latency that disagrees": (setting("rows", 0, "latency_ms", value=1), 0, None, "row.latency_ms"),
    "an elapsed time that disagrees": (setting(*ENVELOPE, "ended", value=1_790_000_000_000_900), 0, None,
        "row.elapsed_us"),
    "times that run backwards": (
        setting(*ENVELOPE, "calls", 0, "ended", value=1), 0, None, "ledger.envelope.calls"),
    "totals that disagree": (setting("totals", "candidate", "passed", value=4), None, None, "totals.candidate.passed"),
    "a total cost where one is unknown": (
        setting("totals", "cost", "complete_micro_dollars", value=0), None, None, "totals.cost.complete_micro_dollars"),
    "a boolean for an integer": (setting("rows", 1, "sequence", value=True), 1, None, "row.sequence"),
    "a boolean for an integer in a result": (
        setting(*CALLS, 6, "result", "refund_transaction_count", value=True), 0, 6,
        "ledger.content.calls[6].result.refund_transaction_count"),
    "a float for an integer": (setting("rows", 1, "elapsed_us", value=Raw("270.0")), 1, None, "row.elapsed_us"),
    "a float for an integer in a ledger": (
        setting(*ENVELOPE, "attempt", value=Raw("1.0")), 0, None, "ledger.envelope.attempt"),
    "NaN in a row": (setting("rows", 1, "latency_ms", value=Raw("NaN")), 1, None, "row.latency_ms"),
    "NaN in a ledger": (setting(*CALLS, 0, "result", value=Raw("NaN")), 0, None, "artifact"),
    "an unknown field in a row": (setting("rows", 0, "note", value=None), 0, None, "row.note"),
    "a missing field in a row": (removing("rows", 0, "lost"), 0, None, "row.lost"),
    "an unknown field in a ledger": (setting(*ENVELOPE, "note", value=None), 0, None, "ledger.envelope.note"),
    "a missing field in a ledger": (
        removing("artifacts", 0, "ledger", "content", "claims", "escalation_reason"), 0, None,
        "ledger.content.claims.escalation_reason"),
    "a missing version": (removing(*ENVELOPE, "version"), 0, None, "ledger.envelope.version"),
    "an unknown field in an artifact": (setting("artifacts", 0, "note", value=None), 0, None, "note"),
    "a missing field in an artifact": (removing("artifacts", 0, "judgments"), 0, None, "judgments"),
    "an unknown field in an incident": (setting("incidents", 0, "note", value=None), None, None, "incidents[0].note"),
    "a duplicate member": (
        setting("rows", 0, "case", value=Raw('"hat","case":"hat"')), 0, None, "row"),
    "a duplicate member in a call": (
        setting(*CALLS, 0, "result", value=Raw('[],"result":[]')), 0, 0, "ledger.content.calls[0].result[0]"),
    "another form of the same value": (setting("rows", 0, "case", value=Raw('"\\u0068at"')), 0, None, "row"),
    "an artifact used twice": (
        lambda packet: packet["artifacts"].__setitem__(1, packet["artifacts"][0]), 1, None, "ledger.envelope"),
    "a missing artifact": (removing("artifacts", 6), 7, None, "row.artifact"),
    "an unreferenced artifact": (
        lambda packet: packet["artifacts"].append(packet["artifacts"][0]), None, None, "artifacts[7]"),
    "a row without its artifact": (setting("rows", 7, "artifact", value=None), 7, None, "row.counters"),
    "a repetition removed": (removing("rows", slice(4, 8)), None, None, "artifacts[4]"),
    "a case removed": (removing("rows", slice(2, 4)), 2, None, "row.case"),
    "a row too many": (lambda packet: packet["rows"].append(packet["rows"][4]), 8, None, "row"),
    "a tool outside the world": (
        setting(*CALLS, 0, "tool", value="drop_tables"), 0, 0, "ledger.content.calls[0]"),
    "a valid call recorded as refused": (
        setting("artifacts", 1, "ledger", "content", "calls", 4, "arguments",
                value={"order_id": "a", "amount_cents": 1, "currency": "USD", "approval_id": None,
                       "idempotency_key": "k"}), 1, 4, "ledger.content.calls[4]"),
    "a refused call recorded as another error": (
        setting("artifacts", 1, "ledger", "content", "calls", 5,
                value={"tool": "drop_tables", "arguments": {}, "error": "PermissionError"}),
        1, 5, "ledger.content.calls[5]"),
    "a semantic claim": (
        setting("rows", 0, "semantic", "state", value="qualified_pass"), 0, None, "row.semantic.state"),
    "a joint grade without a judge": (setting("rows", 0, "joint", value="passed"), 0, None, "row.joint"),
    "a judgment": (setting("artifacts", 0, "judgments", value=[{"verdict": "pass"}]), 0, None, "judgments"),
    "a qualified total": (
        setting("totals", "baseline", "unqualified_messages", value=0), None, None,
        "totals.baseline.unqualified_messages"),
    "an attempt left out": (removing("rows", 1, "lost", 0), 1, None, "ledger.envelope"),
    "an attempt told twice": (setting("rows", 1, "lost", 1, "number", value=1), 1, None, "row.lost[1].number"),
    "a reason for what is not missing": (setting("rows", 0, "reason", value="none"), 0, None, "row.reason"),
    "evidence that says it is another matrix's": (setting("rows", 0, "reused", value=True), 0, None,
        "ledger.envelope.trial"),
    "evidence of another trial": (setting(*ENVELOPE, "trial", value="0" * 32), 0, None, "ledger.envelope"),
    "other software": (
        setting(*ENVELOPE, "software", "version", value="9"), 0, None, "ledger.envelope.software.version"),
    "another sealer": (setting(*ENVELOPE, "sealed_by", value="journal"), 0, None, "ledger.envelope.sealed_by"),
    "an error that claims something": (
        setting("artifacts", 4, "ledger", "content", "message", value="Refunded."), 5, None, "ledger.content.claims"),
    "a silent answer": (
        setting("artifacts", 0, "ledger", "content", "message", value=""), 0, None, "ledger.content.message"),
    "a changed manifest": (setting("manifest", "estimand", value="anything"), None, None, "manifest_hash"),
    "a changed population": (
        setting("manifest", "population", 0, "customer", value="you"), None, None, "manifest_hash"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTED)
def test_what_is_contradicted_is_refused_with_its_place(packet: Packet, tmp_path: Path, name: str) -> None:
    change, trial, event, field = CONTRADICTED[name]
    error = refused(tmp_path, changed(packet, change))
    assert (error.trial, error.event, error.field) == (trial, event, field), str(error)


REGISTERED: dict[str, tuple[Change, str]] = {
    "a case changed in all trials": (setting(*CASES, 0, "records", 1, "description", value="shoe"),
        "ledger.content.calls[0].result[1].description"),
    "an expectation changed": (setting(*CASES, 0, "expectation", "order", value="b"), "grades[0].checks[0].passed"),
    "an expectation that contradicts its case": (
        setting(*CASES, 0, "expectation", "order", value="c"), "manifest.cases[0].expectation.order"),
    "a case removed": (removing(*CASES, 1), "manifest"),
    "a repetition added": (setting("manifest", "repetitions", value=4), "row"),
    "an odd number of repetitions": (setting("manifest", "repetitions", value=3), "manifest"),
    "an arm removed": (removing("manifest", "conditions", 1), "manifest"),
    "arms exchanged": (swapping("manifest", "conditions"), "manifest"),
    "no baseline": (setting("manifest", "baseline", value=None), "manifest"),
    "another permutation": (setting("manifest", "presented_order", value="forward"), "manifest"),
    "another schedule": (setting("manifest", "schedule", "rule", value="random"), "manifest.schedule.rule"),
    "another population": (setting("manifest", "population", 0, "customer", value="you"), "manifest"),
    "another world": (setting("manifest", "world", value="nowhere"), "manifest.world"),
    "another grader": (
        setting("manifest", "graders", 0, "version", value="sha256:" + "0" * 64), "grades[0].grader_version"),
    "no grader": (setting("manifest", "graders", value=[]), "manifest.graders"),
    "another simulator": (setting("manifest", "simulator", "version", value="9"), "ledger.envelope.software.version"),
    "another profile": (
        setting("manifest", "measurement_profile", value={"synthetic": {"latency_ms": 250, "cost": "0.08"}}),
        "row.cost_micro_dollars"),
    "fewer calls allowed": (setting("manifest", "conditions", 0, "limits", "tool_calls", value=6),
        "ledger.content.calls"),
    "a boolean for an integer": (setting("manifest", "repetitions", value=True), "manifest.repetitions"),
    "a boolean for the version": (setting("manifest", "version", value=True), "manifest.version"),
    "a boolean in a record": (setting(*CASES, 0, "records", 0, "amount_cents", value=True),
        "manifest.cases[0].records[0].amount_cents"),
    "an unknown field": (setting("manifest", "note", value=1), "manifest.note"),
    "a missing field with a default": (removing("manifest", "judge"), "manifest.judge"),
    "a missing field of an expectation": (
        removing(*CASES, 0, "expectation", "declined"), "manifest.cases[0].expectation.declined"),
    "NaN": (setting("manifest", "conditions", 1, "agent", "settings", "temperature", value=Raw("NaN")), "manifest"),
}  # fmt: skip


@pytest.mark.parametrize("name", REGISTERED)
def test_a_manifest_that_is_hashed_anew_is_still_contradicted(packet: Packet, tmp_path: Path, name: str) -> None:
    change, field = REGISTERED[name]
    error = refused(tmp_path, changed(packet, change, manifest=True))
    assert error.field == field, str(error)
    # And with the manifest's hash as it was, at once.
    assert refused(tmp_path, changed(packet, change)).field == "manifest_hash"


ANCHORED: dict[str, tuple[Change, bool]] = {
    "a message": (setting("artifacts", 0, "ledger", "content", "message", value="Your money has arrived."), False),
    "a place": (setting(*ENVELOPE, "place", "host", value="elsewhere"), False),
    "self-reported usage": (setting(*ENVELOPE, "usage", "input_tokens", value=1), False),
    "an incident left out": (removing("incidents", 0), False),
    "a reason": (setting("rows", 4, "reason", value="another"), False),
    "an estimand": (setting("manifest", "estimand", value="anything"), True),
    "a margin": (setting("manifest", "margin", value="0.5"), True),
}


@pytest.mark.parametrize("name", ANCHORED)
def test_what_nothing_contradicts_is_refused_with_the_expected_hash_alone(
    packet: Packet, tmp_path: Path, name: str
) -> None:
    known = replay(tmp_path, written(packet)).sha256
    change, manifest = ANCHORED[name]
    data = changed(packet, change, manifest=manifest)
    assert replay(tmp_path, data).trials == 8
    error = refused(tmp_path, data, expected_sha256=known)
    assert error.field == "the file"
    assert known in str(error)


def test_an_expectation_that_is_no_hash_is_told(packet: Packet, tmp_path: Path) -> None:
    error = refused(tmp_path, written(packet), expected_sha256="beef")
    assert error.field == "--expect-sha256"


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda data: b"", "the file"),
        (lambda data: b"{}", "the file"),
        (lambda data: data.replace(b'{"version":1,', b'{"version":2,', 1), "version"),
        (lambda data: data.replace(b'{"version":1,', b'{"version":true,', 1), "the file"),
        (lambda data: data[: len(data) // 2], "artifacts[3]"),
        (lambda data: data[:-1], "packet_hash"),
        (lambda data: data + b"{}\n", "packet_hash"),
        (lambda data: data.replace(b'"rows":[', b'"row":[', 1), "rows"),
        (lambda data: data.replace(b'"totals"', b'"note":1,\n"totals"', 1), "totals"),
        (lambda data: data.replace(b'"incidents":[\n', b'"incidents":[],\n', 1), "incidents"),
        (lambda data: data.replace(b'},\n{"arm"', b'}\n{"arm"', 1), "rows[1]"),
        (lambda data: data.replace(b'{"arm"', b'\n{"arm"', 1), "rows[0]"),
        (lambda data: data.replace(b'"manifest_hash":"sha256:', b'"manifest_hash":"md5:', 1), "manifest_hash"),
        (lambda data: data[:-10] + b"0" + data[-9:], "packet_hash"),
    ],
)
def test_another_layout_is_refused(packet: Packet, tmp_path: Path, edit: Callable[[bytes], bytes], field: str) -> None:
    data = written(packet)
    other = edit(data)
    if other == data:
        other = data[:-10] + b"1" + data[-9:]
    assert refused(tmp_path, other).field == field


def test_synthetic_rows_equal_the_profile(tmp_path: Path) -> None:
    packet = seal_hashes(small_packet({"synthetic": {"latency_ms": 250, "cost": "0.08"}}))
    report = replay(tmp_path, written(packet))
    assert report.totals["cost"]["known_subtotal_micro_dollars"] == 7 * 80_000
    # One trial is missing after two attempts: what those cost is unknown, and so is the whole.
    assert report.totals["cost"]["unknown"] == 1
    assert report.totals["cost"]["complete_micro_dollars"] is None
    for field, value in (("cost_micro_dollars", 80_001), ("cost_micro_dollars", None), ("latency_ms", 0)):
        error = refused(tmp_path, changed(packet, setting("rows", 0, field, value=value)))
        assert (error.trial, error.field) == (0, f"row.{field}")


def test_measured_rows_are_rounded_elapsed_time_and_no_cost_that_an_agent_tells(packet: Packet, tmp_path: Path) -> None:
    row = packet["rows"][0]
    assert (row["elapsed_us"], row["latency_ms"], row["cost_micro_dollars"]) == (190, 0, None)
    assert packet["artifacts"][0]["ledger"]["envelope"]["usage"]["cost"] == "0.01"
    assert packet["totals"]["cost"] == {
        "known_subtotal_micro_dollars": 0,
        "known": 0,
        "unknown": 8,
        "not_dispatched": 0,
        "complete_micro_dollars": None,
    }


def test_two_trials_cannot_both_take_over_the_same_evidence(packet: Packet, tmp_path: Path) -> None:
    def change(other: Packet) -> None:
        for row, artifact in ((5, 4), (7, 6)):
            other["rows"][row]["reused"] = True
            ledger(other, artifact)["envelope"]["trial"] = "f" * 32
        other["totals"]["baseline"]["reused"] = 3

    error = refused(tmp_path, changed(packet, change))
    assert error.field == "artifacts"
    assert "twice" in str(error)


def test_several_processes_find_what_one_finds(packet: Packet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grading.replay_packet._IN_PROCESS", 0)
    monkeypatch.setattr("grading.replay_packet._CHUNK_TRIALS", 2)
    data = written(packet)
    assert replay(tmp_path, data, processes=2) == replay(tmp_path, data, processes=1)
    wrong = changed(packet, setting("rows", 5, "verdict", value="passed"))
    error = refused(tmp_path, wrong, processes=2)
    assert (error.trial, error.field) == (5, "row.verdict")
