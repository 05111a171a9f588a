"""Packets as JSON values: a small one that holds every kind of thing, and any one written with all of its hashes anew.

The layout is written here a second time, so that a mistake of the writer is not hidden by the same mistake of the test.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from grading.graders import load_grader
from grading.judge import verdict_of
from grading.judge.configuration import RegisteredJudge, WrittenOpenAIJudge, registered
from grading.judge.judgment import CostComponent, Judgment, Receipt, Vote, binding, carried
from grading.manifest import Manifest, assignment, trial_name
from grading.packet import Evidence, Rows, Totals
from grading.projection import semantic, structural
from grading.redaction import Redactor
from simulator.answer import unanswered
from simulator.canonical import canonical, canonical_hash, sha256
from simulator.output import Claims
from simulator.replay import compose, open_session
from simulator.sealing import seal
from simulator.session import Session
from simulator.source import simulator_identity, source_hash

Packet = dict[str, Any]
ORDER = ("version", "manifest", "manifest_hash", "artifacts", "rows", "incidents", "totals", "packet_hash")
AGENT_SOURCE = "sha256:" + "1" * 64
ELSEWHERE = "f" * 32
START = 1_790_000_000_000_000


class Raw:
    """Bytes that stand in a document as they are: what no JSON value can be turned into."""

    def __init__(self, text: str) -> None:
        self.text = text


def load(path: Path) -> Packet:
    """A packet file as a JSON value."""
    packet: Packet = json.loads(path.read_bytes())
    return packet


def seal_hashes(packet: Packet, *, manifest: bool = False, keep: str | None = None, only: int | None = None) -> Packet:
    """The same packet with every hash below the manifest's made anew. Changes the packet it is given.

    Args:
        manifest: and the manifest's, and the names of trials that follow from it.
        keep: this member of a ledger, row or packet stays as it is.
        only: the artifact that was changed, where it is known.
    """
    if manifest:
        if keep != "manifest_hash":
            packet["manifest_hash"] = sha256(text_of(packet["manifest"]))
        _rename_trials(packet)
    named = [row for row in packet["rows"] if isinstance(row, dict) and row.get("artifact") is not None]
    for position, artifact in enumerate(packet["artifacts"]):
        if only is not None and position != only:
            continue
        ledger = artifact.get("ledger") if isinstance(artifact, dict) else None
        if isinstance(ledger, dict):
            if {"content_hash", "content"} <= ledger.keys() and keep != "content_hash":
                ledger["content_hash"] = sha256(text_of(ledger["content"]))
            if {"ledger_hash", "content_hash", "envelope"} <= ledger.keys() and keep != "ledger_hash":
                hashed = {"content_hash": ledger["content_hash"], "envelope": ledger["envelope"]}
                ledger["ledger_hash"] = sha256(text_of(hashed))
        if position < len(named) and keep != "artifact":
            named[position]["artifact"] = sha256(text_of(artifact))
    return packet


def written(packet: Packet, texts: dict[int, bytes] | None = None) -> bytes:
    """The packet's bytes, with the packet's own hash made anew.

    Args:
        texts: of elements, by their id, that were written before.
    """

    def text(value: Any) -> bytes:
        known = texts.get(id(value)) if texts else None
        return text_of(value) if known is None else known

    lines = [b'{"version":%b,\n' % text_of(packet["version"])]
    for name in ORDER[1:-1]:
        if name not in packet:
            continue
        key = b'"%b":' % name.encode()
        if isinstance(packet[name], list):
            elements = b",\n".join(text(each) for each in packet[name])
            lines.append(key + b"[\n" + (elements + b"\n" if elements else b"") + b"],\n")
        else:
            lines.append(key + text(packet[name]) + b",\n")
    for name in packet.keys() - set(ORDER):
        lines.append(b'"%b":' % name.encode() + text_of(packet[name]) + b",\n")
    body = b"".join(lines)
    return body + b'"packet_hash":"%b"}\n' % sha256(body).encode()


def text_of(value: Any) -> bytes:
    """Canonical JSON, but for what is given as raw text."""
    try:
        return canonical(value)
    except ValueError:
        pass
    if isinstance(value, Raw):
        return value.text.encode()
    if isinstance(value, dict):
        return b"{" + b",".join(canonical(key) + b":" + text_of(value[key]) for key in sorted(value)) + b"}"
    return b"[" + b",".join(text_of(item) for item in value) + b"]"


def _rename_trials(packet: Packet) -> None:
    manifest = packet["manifest"]
    try:
        conditions = [condition["name"] for condition in manifest["conditions"]]
        names = dict(zip(("baseline", "candidate"), conditions, strict=True))
        rows = [row for row in packet["rows"] if row["artifact"] is not None]
        for row, artifact in zip(rows, packet["artifacts"], strict=True):
            if not row["reused"]:
                artifact["ledger"]["envelope"]["trial"] = trial_name(
                    packet["manifest_hash"], names[row["arm"]], row["case"], row["repetition"]
                )
    except (KeyError, TypeError, ValueError):
        pass  # such a manifest is refused before any trial is looked at


Script = Callable[[Session], dict[str, Any]]
"""What an agent does; what it returns goes over the ending of an agent that answered."""

RECORDS: list[dict[str, Any]] = [
    {"order_id": "a", "customer_id": "me", "description": "hat", "amount_cents": 4000, "currency": "USD"},
    {"order_id": "b", "customer_id": "me", "description": "coat", "amount_cents": 20_000, "currency": "EUR"},
    {"order_id": "c", "customer_id": "you", "description": "hat", "amount_cents": 4000, "currency": "USD"},
]
for _record in RECORDS:
    _record["eligible"] = True


def small_packet(profile: Any = None, *, judged: bool = False) -> Packet:
    """Two cases, two repetitions, two arms: every kind of call, ending, attempt and incident in eight trials.

    Args:
        profile: the measurement profile; measured without it.
        judged: with a judge that is called, and every state that a message can be in.
    """
    told = _manifest(profile or "measured")
    if judged:
        told |= {"judge": JUDGE.model_dump(), "redaction": {"rules": [{"pattern": "hat", "replacement": "[thing]"}]}}
    manifest = Manifest.model_validate(told)
    grader = load_grader("orders")
    rows, totals = Rows(manifest), Totals()
    packet: Packet = {
        "version": 1,
        "manifest": orjson.loads(manifest.document()),
        "manifest_hash": manifest.hash(),
        "artifacts": [],
        "rows": [],
        "incidents": [
            {"kind": "ledger_malformed", "detail": "x", "sequence": 3, "attempt": 1, "document_sha256": AGENT_SOURCE},
            {"kind": "late", "detail": "nobody's", "sequence": None, "attempt": None, "document_sha256": None},
        ],
        "totals": {},
    }  # fmt: skip
    for planned, (script, lost, own) in zip(manifest.planned(), _TRIALS, strict=True):
        evidence = None
        if script is not None:
            case = manifest.cases[planned.case]
            given = assignment(manifest, planned.case, planned.condition, planned.repetition).model_dump(mode="json")
            name = trial_name(manifest.hash(), manifest.conditions[planned.condition].name, case.id, planned.repetition)
            ledger = orjson.loads(_ledger(given, script, name if own else ELSEWHERE, len(lost) + 1, planned.sequence))
            expectation = grader.Expectation.model_validate(case.expectation)
            grade = grader.grade(structural(ledger["content"]), expectation).to_json()
            judgment = _JUDGED[script](manifest, planned.case, ledger["content"]) if judged else None
            written_judgments = [judgment.model_dump(mode="json")] if judgment is not None else []
            artifact = {"grades": [grade], "judgments": written_judgments, "ledger": ledger}
            packet["artifacts"].append(artifact)
            evidence = Evidence(canonical_hash(artifact), ledger, grade, not own, judgment)
        reason = "the image cannot be pulled" if script is None else None
        row = rows.row(planned, evidence, lost, reason, "judge_unavailable")
        totals.add(row)
        packet["rows"].append(row)
    packet["totals"] = totals.to_json()
    whole: Packet = json.loads(json.dumps(packet))
    return whole


def changed(packet: Packet, change: Callable[[Packet], None], *, manifest: bool = False) -> bytes:
    """The bytes of a copy that was changed, with all hashes made anew."""
    other = copy.deepcopy(packet)
    change(other)
    return written(seal_hashes(other, manifest=manifest))


def _manifest(profile: Any) -> dict[str, Any]:
    def condition(name: str, settings: dict[str, Any]) -> dict[str, Any]:
        agent = {"name": "agent:answer", "settings": settings, "env": ["KEY"], "reuse": False, "source": AGENT_SOURCE}
        return {"name": name, "agent": agent, "limits": {"seconds": 60.5, "tool_calls": 50, "memory_mb": 1024}}

    def case(name: str, utterance: str, replies: list[str], expectation: dict[str, Any], late: bool) -> dict[str, Any]:
        return {
            "id": name,
            "customer_id": "me",
            "utterance": utterance,
            "records": RECORDS,
            "replies": replies,
            "world_settings": {"timeout_after_commit": late},
            "expectation": {"declined": False, **expectation},
            "labels": {"kind": name},
        }

    cases = [
        case("hat", "Refund the hat.", ["unused"], {"order": "a", "clarifications": 0}, late=True),
        case("which", "Refund it.", ["The coat.", "unused"], {"order": "b", "clarifications": 1}, late=False),
    ]
    return {
        "version": 1,
        "name": "small",
        "world": "orders",
        "cases": cases,
        "conditions": [condition("old", {}), condition("new", {"temperature": 0.25})],
        "baseline": "old",
        "repetitions": 2,
        "presented_order": "alternate",
        "schedule": {"rule": "rotating", "order": "strict"},
        "graders": [{"name": "structural", "version": source_hash("grading.graders.orders")}],
        "isolation": "process",
        "seed": 0,
        "population": [{"case": each["id"], "customer": "me", "labels": each["labels"]} for each in cases],
        "estimand": "difference in contract passes",
        "margin": "0.03",
        "confidence": "0.95",
        "minimum_clusters": 30,
        "method": "customer_clusters",
        "measurement_profile": profile,
        "simulator": simulator_identity(),
    }


def _ledger(given: dict[str, Any], script: Script, name: str, number: int, sequence: int) -> bytes:
    session, customer = open_session(given)
    ending = {"message": "Your refund has been confirmed.", "claims": _REFUNDED, "error": None, "usage": None}
    ending |= script(session)
    content = compose(given, session, customer, ending["message"], ending["claims"], ending["error"])
    start = START + sequence * 1_000_000
    times = [{"started": start + 10 + 20 * i, "ended": start + 20 + 20 * i} for i in range(len(session.calls))]
    envelope = {
        "version": 1,
        "trial": name,
        "attempt": number,
        "started": start,
        "ended": start + 20 * len(times) + 50,
        "calls": times,
        "usage": ending["usage"],
        "software": {**simulator_identity(), "python": "3.11.7"},
        "isolation": "process",
        "place": {"launcher": "processes", "host": "here", "worker": "one"},
        "sealed_by": "journal" if ending["error"] == "AttemptLost" else "recorder",
    }
    return seal(content, envelope)


_REFUNDED = Claims(claimed_outcome="refunded", transaction_status_claim="committed").model_dump(mode="json")
_REVIEW = Claims(claimed_outcome="needs_review", escalation_reason="unclear").model_dump(mode="json")


def _refund(session: Session, order: str, amount: int, currency: str, approval: str | None = None) -> None:
    arguments = {"order_id": order, "amount_cents": amount, "currency": currency, "approval_id": approval}
    session.call("issue_refund", {**arguments, "idempotency_key": "key"})


def _prepare(session: Session, order: str) -> None:
    session.call("verify_identity", {"customer_id": "me", "order_id": order})
    session.call("get_order", {"order_id": order})
    session.call("consult_refund_policy", {"order_id": order})


def _right(session: Session) -> dict[str, Any]:
    session.call("list_orders", {"customer_id": "me"})
    _prepare(session, "a")
    _refund(session, "a", 4000, "USD")  # times out after commit
    _refund(session, "a", 4000, "USD")
    session.call("inspect_order_status", {"order_id": "a"})
    usage = {
        "provider": "somebody",
        "model": "m-1",
        "response_ids": ["r-1", "r-2"],
        "input_tokens": 10,
        "output_tokens": 20,
        "cost": "0.01",
        "cost_source": "list price",
    }
    return {"usage": usage}


def _approved(session: Session) -> dict[str, Any]:
    session.call("ask_customer", {"question": "Which?"})
    _prepare(session, "b")
    session.call("request_refund_approval", {"order_id": "b", "amount_cents": 20_000, "currency": "eur"})
    _refund(session, "b", 20_000, "EUR", "approval:b:1")
    return {"claims": {**_REFUNDED, "arrival_commitment_days": 3, "message_template_id": "t-1"}}


def _refused(session: Session) -> dict[str, Any]:
    session.call("list_orders", {"customer_id": "you"})
    session.call("ask_customer", {"question": " "})
    session.call("verify_identity", {"customer_id": "me", "order_id": "c"})
    session.call("get_order", {"order_id": "b"})
    session.refuse("issue_refund", {"order_id": "a", "amount_cents": True}, b"one")
    session.refuse("drop_tables", {"sure": 0.5, "deep": [None]}, b"two")
    session.refuse("get_order", {"amount": 4500.0}, b"three")  # no canonical form gives it back: null
    _prepare(session, "b")
    _refund(session, "b", 1, "EUR")
    session.call("request_refund_approval", {"order_id": "b", "amount_cents": 5, "currency": "EUR"})
    return {"message": "Somebody will look at it.", "claims": _REVIEW}


def _wrong(session: Session) -> dict[str, Any]:
    _prepare(session, "a")
    _refund(session, "a", 4000, "USD")
    return {}


def _raised(_: Session) -> dict[str, Any]:
    return {"message": "", "claims": unanswered(), "error": "RuntimeError"}


def _over(session: Session) -> dict[str, Any]:
    session.call("ask_customer", {"question": "One?"})
    session.call("ask_customer", {"question": "Two?"})
    session.call("ask_customer", {"question": "Three?"})
    return {"message": "", "claims": unanswered(), "error": "CallLimit"}


def _lost(session: Session) -> dict[str, Any]:
    _prepare(session, "b")
    _refund(session, "b", 20_000, "EUR", None)
    return {"message": "", "claims": unanswered(), "error": "AttemptLost"}


def _attempt(number: int, state: str = "lost", reason: str | None = "killed", acted: bool = False) -> dict[str, Any]:
    return {"number": number, "state": state, "reason": reason, "after_consequential_call": acted}


_TRIALS: list[tuple[Script | None, list[dict[str, Any]], bool]] = [
    (_right, [], True),
    (_refused, [_attempt(1), _attempt(2, "fenced", None, acted=True)], True),
    (_approved, [], True),
    (_wrong, [_attempt(1)], True),
    (None, [_attempt(1), _attempt(2)], True),
    (_raised, [], True),
    (_over, [], False),
    (_lost, [], True),
]


CALIBRATION = "sha256:" + "c" * 64
JUDGE: RegisteredJudge = registered(
    WrittenOpenAIJudge(
        type="openai", model="m-1", votes=3, longest_request=3_000, prices={"input": "0.15", "output": "0.6"},  # type: ignore[arg-type]
        budget={"dollars": "5"},  # type: ignore[arg-type]
    ),
    "orders",
    CALIBRATION,
)  # fmt: skip
JUDGED_AT = START + 3_600_000_000


def vote(index: int, verdict: str, **changes: Any) -> Vote:
    """An answer of the judge to a call of its own."""
    told: dict[str, Any] = {
        "index": index,
        "call": f"{index:032x}",
        "cached": False,
        "verdict": verdict,
        "explanation": f"{verdict}, for a reason",
        "error": None,
        "returned_model": "m-1",
        "input_tokens": 1_000,
        "output_tokens": 20,
        "cost": CostComponent(state="known", micro_dollars=162),
        "started": JUDGED_AT + 10 + 100 * index,
        "ended": JUDGED_AT + 60 + 100 * index,
    }
    return Vote(**(told | changes))


def judgment_of(
    manifest: Manifest, case: int, content: dict[str, Any], votes: list[Vote], unqualified: str | None = None
) -> Judgment:
    """A judgment of an execution, put together here a second time."""
    judge = manifest.judge
    assert judge is not None
    request = canonical(Redactor(manifest.redaction).value(semantic(content, judge.policy_version)))
    told: dict[str, Any] = {
        "criterion": judge.configuration.criterion,
        "configuration_hash": judge.configuration_hash(),
        "calibration_hash": judge.calibration,
    }
    if not votes:
        nothing = dict.fromkeys(("checked_after", "request_hash", "verdict", "explanation", "error", "receipt"))
        cost = CostComponent(state="not_dispatched", micro_dollars=None)
        told |= {"qualification": AGENT_SOURCE, "checked_before": JUDGED_AT, "unqualified": unqualified}
        return Judgment(**told, **nothing, votes=[], cost=cost)
    verdict, explanation, error = verdict_of(list(votes))
    told |= {"request_hash": sha256(request), "verdict": verdict, "explanation": explanation}
    receipt = None
    if unqualified is None:
        bound = binding(content, manifest.cases[case].model_dump(mode="json"), judge.policy_version)
        times = {"started": min(one.started for one in votes), "ended": max(one.ended for one in votes)}
        receipt = Receipt(**told, **bound.model_dump(), **times, judge_version=judge.configuration.version)
    told |= {"qualification": AGENT_SOURCE, "checked_before": JUDGED_AT, "checked_after": JUDGED_AT + 400}
    return Judgment(**told, votes=votes, unqualified=unqualified, error=error, cost=carried(votes), receipt=receipt)


def _of_votes(*votes: Vote, unqualified: str | None = None) -> Callable[..., Judgment]:
    return lambda manifest, case, content: judgment_of(manifest, case, content, list(votes), unqualified)


def _unsent(index: int) -> Vote:
    nobody: dict[str, Any] = dict.fromkeys(("call", "returned_model", "input_tokens", "output_tokens"))
    cost = CostComponent(state="not_dispatched", micro_dollars=None)
    return vote(index, "abstain", error="TooLong", cost=cost, **nobody)


_UNKNOWN = CostComponent(state="unknown", micro_dollars=None)
_JUDGED: dict[Script | None, Callable[..., Judgment | None]] = {
    # Two of three agree.
    _right: _of_votes(vote(0, "pass"), vote(1, "fail", cost=_UNKNOWN), vote(2, "pass")),
    # The evidence is longer than this judge is sent.
    _refused: _of_votes(_unsent(0), _unsent(1), _unsent(2)),
    # Its qualification ended during the call.
    _approved: _of_votes(
        vote(0, "pass", call="a" * 32), vote(1, "pass", call="b" * 32), vote(2, "fail", call="c" * 32),
        unqualified="qualification_not_current",
    ),
    # From calls that were made for another judgment, some time before.
    _wrong: _of_votes(*(
        vote(index, "fail", call=f"{7 + index:032x}", cached=True, started=START, ended=START + 1) for index in range(3)
    )),
    _raised: _of_votes(unqualified="qualification_missing_or_revoked"),
    # Two answers that could not be used, one of them without a word of its model.
    _over: _of_votes(
        vote(0, "abstain", call="d" * 32, error="Refusal"),
        vote(1, "abstain", call="e" * 32, error="WrongSchema", returned_model=None, input_tokens=None, cost=_UNKNOWN),
        vote(2, "pass", call="f" * 32),
    ),
    _lost: lambda *_: None,
}  # fmt: skip
