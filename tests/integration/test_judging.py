"""What a user can rely on when stored messages are judged: no agent runs again, no call is paid for twice, what could
not be asked is pending, what could not be used is an abstention, and a judge's word counts only if it is qualified."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from fake_provider import MODEL, Provider, Reply, completion, error, provider

from grading.calibration.registry import Registry
from grading.calibration.rows import Scope
from grading.judge.budget import cost_of
from grading.judge.configuration import Budget, JudgeConnection, Prices, RegisteredJudge, WrittenOpenAIJudge, registered
from grading.judge.judgment import Judgment, binding
from grading.judge.openai import JudgeMisconfigured
from grading.judging import Judged, judge_matrix
from grading.manifest import Manifest, resolve
from grading.planning import register
from grading.projection import semantic
from grading.publication import desired
from grading.redaction import Redaction, RegisteredRedaction, Replacement
from grading.results import summary_of
from grading.runner import Runner
from grading.semantic import semantic_of
from grading.store import Store, judgments, reading, reusing
from simulator.canonical import canonical, canonical_hash, sha256

CASES = Path(__file__).parents[2] / "grading/studies/order-resolution/cases.yaml"
MATRIX = """\
version: 1
name: judged
cases: cases.yaml
conditions:
  - {name: control, agent: descriptive-control}
  - {name: settles, agent: false-settlement-mutant}
  - {name: first, agent: first-record-mutant}
baseline: control
repetitions: 2
judge: literal
"""
LEDGERS = 24


class Qualified:
    """A calibration that admits everything, but at the instants that a test names."""

    def __init__(self, reasons: dict[int, str] | None = None, calibration: str = "one") -> None:
        self.calibration_hash: str | None = canonical_hash(calibration)
        self.inputs_hash = canonical_hash({"calibration": calibration})
        self.asked: list[tuple[int, Scope, str]] = []
        self._reasons = reasons or {}

    def check(self, when: int, scope: Scope, configuration_hash: str) -> str | None:
        self.asked.append((when, scope, configuration_hash))
        return self._reasons.get(when)


@pytest.fixture(scope="session")
def judged_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 24 graded trials, and nothing judged yet. Copied for each test: no agent runs in any of them."""
    folder = tmp_path_factory.mktemp("study")
    shutil.copy(CASES, folder / "cases.yaml")
    (folder / "matrix.yaml").write_text(MATRIX)
    study = resolve(folder / "matrix.yaml")
    with Store.open(folder / "store.db") as store:
        matrix = reading.find_matrix(store, register(store, study.manifest).matrix_id)
        runner = Runner(store, matrix, study.manifest, root=folder, folder=folder / "workers", parallelism=2)
        assert runner.run() == "complete"
    return folder


@pytest.fixture
def store(judged_study: Path, tmp_path: Path) -> Iterator[Store]:
    with closing(sqlite3.connect(judged_study / "store.db")) as original:
        original.execute("VACUUM INTO ?", [str(tmp_path / "store.db")])
    with Store.open(tmp_path / "store.db") as copy:
        before = _ledgers(copy)
        yield copy
        assert _ledgers(copy) == before, "judging ran an agent or changed a ledger"


@pytest.fixture
def fake() -> Iterator[Provider]:
    with provider() as one:
        yield one


def _ledgers(store: Store) -> list[Any]:
    (matrix,) = reading.matrices(store)
    found = []
    for trial in reading.trials(store, matrix.id, ledgers=True):
        found.append((trial.state, trial.attempt, trial.ledger_hash, len(reading.attempts(store, trial.id))))
    return found


def openai_judge(fake: Provider, **changes: Any) -> RegisteredJudge:
    settings: dict[str, Any] = {
        "type": "openai",
        "model": MODEL,
        "base_url": fake.url,
        "api_key_env": None,
        "timeout_seconds": 5,
        "retries": 0,
        "concurrency": 2,
    }
    return registered(WrittenOpenAIJudge(**(settings | changes)), "orders")


def judge(store: Store, asked: RegisteredJudge | None = None, **settings: Any) -> Judged:
    (matrix,) = reading.matrices(store)
    manifest = Manifest.from_document(reading.manifest(store, matrix.id))
    by = asked or manifest.judge
    assert by is not None
    return judge_matrix(store, matrix, manifest, by, **({"qualification": Qualified()} | settings))


def stored(store: Store, asked: RegisteredJudge | None = None) -> list[judgments.StoredJudgment | None]:
    """The latest judgment of every trial, in planned order."""
    (matrix,) = reading.matrices(store)
    by = asked or Manifest.from_document(reading.manifest(store, matrix.id)).judge
    assert by is not None
    attempts = [trial.evidence_attempt_id for trial in reading.trials(store, matrix.id)]
    found = judgments.latest(store, [one for one in attempts if one is not None], by.configuration_hash())
    return [found.get(one) for one in attempts if one is not None]


def documents(store: Store, asked: RegisteredJudge | None = None) -> list[Judgment]:
    return [Judgment.model_validate_json(one.document) for one in stored(store, asked) if one and one.document]


def table(store: Store, asked: RegisteredJudge | None = None) -> dict[str, dict[str, Any]]:
    (matrix,) = reading.matrices(store)
    summary = summary_of(store, matrix, judge=asked.configuration_hash() if asked else None)
    return {one.name: one.total.to_json() for one in summary.conditions}


# Qualification


def test_the_literal_judge_gives_the_figures_of_the_native_study(store: Store) -> None:
    assert judge(store).judged == LEDGERS
    found = {
        name: (one["contract"], one["semantic"]["joint"], one["completed"], one["semantic"]["judge_cost"]["unknown"])
        for name, one in table(store).items()
    }
    assert found == {"control": (8, 8, 6, 8), "settles": (8, 0, 6, 8), "first": (2, 2, 3, 8)}
    (matrix,) = reading.matrices(store)
    assert summary_of(store, matrix).plain() == (
        "condition   trials  contract  completed  wrong-order commits  semantic  joint  semantic fail\n"
        "control     8/8     8         6          0                    8         8      0\n"
        "settles     8/8     8         6          0                    0         0      8\n"
        "first       8/8     2         3          5                    8         2      0\n"
    )


def test_without_a_calibration_nothing_is_called_and_the_reason_is_kept(store: Store, fake: Provider) -> None:
    asked = openai_judge(fake, api_key_env="CELLWISE_TEST_NO_SUCH_KEY")
    outcome = judge(store, asked, qualification=None)
    assert (outcome.judged, outcome.refused) == (0, {"no_calibration": LEDGERS})
    assert fake.requests == []
    assert {(one.refused, one.unqualified, one.cost.state) for one in documents(store, asked)} == {
        (True, "no_calibration", "not_dispatched")
    }
    semantic = table(store, asked)["control"]["semantic"]
    assert (semantic["joint"], semantic["unqualified"]) == (0, {"no_calibration": 8})
    assert (semantic["judge_cost"]["not_dispatched"], semantic["judge_cost"]["complete_micro_dollars"]) == (8, 0)


def test_a_judge_is_asked_for_verdicts_that_do_not_count_only_when_told_to(store: Store) -> None:
    judge(store, qualification=None)
    assert judge(store, qualification=None, collect=True).judged == LEDGERS
    found = documents(store)
    assert Counter((one.verdict, one.unqualified) for one in found) == {
        ("pass", "no_calibration"): 16,
        ("fail", "no_calibration"): 8,
    }
    assert all(one.receipt is None for one in found)
    assert table(store)["control"]["semantic"]["joint"] == 0


def test_a_qualification_that_ends_during_the_call_leaves_evidence_that_does_not_count(store: Store) -> None:
    ticks = iter(range(1_000_000))
    # The first ledger is checked at 0 and, after its judgment, at 1.
    qualification = Qualified({1: "qualification_not_current"})
    judge(store, qualification=qualification, clock=lambda: next(ticks))
    first, *rest = documents(store)
    assert (first.unqualified, first.receipt) == ("qualification_not_current", None)
    assert (first.checked_before, first.checked_after, first.verdict) == (0, 1, "pass")
    assert first.request_hash is not None
    assert all(one.unqualified is None and one.receipt is not None for one in rest)


def test_what_was_refused_before_is_judged_once_it_is_qualified_and_what_was_judged_stays(store: Store) -> None:
    refusing = Qualified()
    refusing.check = lambda *_: "qualification_not_current"  # type: ignore[method-assign]
    assert judge(store, qualification=refusing).refused == {"qualification_not_current": LEDGERS}
    assert judge(store).judged == LEDGERS
    assert (judge(store).before, judge(store, qualification=refusing).before) == (LEDGERS, LEDGERS)
    # Under another calibration it is another question; the earlier answer stays too.
    assert judge(store, qualification=Qualified(calibration="two")).judged == LEDGERS
    (matrix,) = reading.matrices(store)
    trial = next(reading.trials(store, matrix.id))
    assert trial.evidence_attempt_id is not None
    assert [one.state for one in judgments.history(store, trial.evidence_attempt_id)] == ["refused", "judged", "judged"]


def test_a_registry_that_has_changed_since_unmakes_no_judgment(store: Store) -> None:
    judge(store)
    revoked = Qualified()
    revoked.inputs_hash = canonical_hash("revoked")
    revoked.check = lambda *_: "qualification_missing_or_revoked"  # type: ignore[method-assign]
    outcome = judge(store, qualification=revoked)
    assert (outcome.before, outcome.refused) == (LEDGERS, {})
    assert table(store)["control"]["semantic"]["joint"] == 8


def test_the_receipt_binds_the_execution(store: Store) -> None:
    judge(store)
    (matrix,) = reading.matrices(store)
    manifest = Manifest.from_document(reading.manifest(store, matrix.id))
    cases = {case.id: case.model_dump(mode="json") for case in manifest.cases}
    for trial, judgment in zip(reading.trials(store, matrix.id, ledgers=True), documents(store), strict=True):
        assert trial.ledger is not None
        content = orjson.loads(trial.ledger)["content"]
        receipt = judgment.receipt
        assert receipt is not None
        bound = binding(content, cases[trial.case_id], "orders-refund-policy-v1")
        assert (receipt.message_hash, receipt.claims_hash, receipt.context_hash) == (
            bound.message_hash,
            bound.claims_hash,
            bound.context_hash,
        )
        assert receipt.calibration_hash == canonical_hash("one")
        request = canonical(semantic(content, "orders-refund-policy-v1"))
        assert receipt.request_hash == sha256(request)
        assert judgments.request_document(store, receipt.request_hash) == request


# Calls


def test_equal_requests_are_asked_about_once_and_their_cost_is_carried_but_spent_once(
    store: Store, fake: Provider
) -> None:
    asked = openai_judge(fake, prices=Prices(input="0.15", output="0.6"))
    outcome = judge(store, asked)
    different = {one.request_hash for one in documents(store, asked)}
    assert len(fake.requests) == len(different) < LEDGERS
    # 1000 x 0.15 + 50 x 0.60 = 180 micro-dollars a call.
    assert outcome.spent is not None
    assert (outcome.spent.complete, outcome.spent.known) == (180 * len(different), len(different))
    carried = sum(one["semantic"]["judge_cost"]["complete_micro_dollars"] for one in table(store, asked).values())
    assert carried == 180 * LEDGERS
    assert sum(not vote.cached for one in documents(store, asked) for vote in one.votes) == len(different)
    # Judging under another calibration asks nobody anything.
    assert judge(store, asked, qualification=Qualified(calibration="two")).judged == LEDGERS
    assert len(fake.requests) == len(different)
    assert all(vote.cached for one in documents(store, asked) for vote in one.votes)


def test_no_more_calls_at_a_time_than_allowed(store: Store, fake: Provider) -> None:
    fake.behave = lambda _number, _body: Reply(**(vars(completion()) | {"wait": 0.1}))
    judge(store, openai_judge(fake, concurrency=2))
    assert fake.most_together == 2


def test_the_key_comes_from_the_environment_and_is_stored_nowhere(
    store: Store, fake: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLWISE_TEST_KEY", "s3cret-key")
    asked = openai_judge(fake, api_key_env="CELLWISE_TEST_KEY")
    judge(store, asked)
    assert set(fake.authorizations) == {"Bearer s3cret-key"}
    for name in ("store.db", "store.db-wal"):
        path = Path(store.place).with_name(name)
        assert not path.exists() or b"s3cret-key" not in path.read_bytes()
    monkeypatch.delenv("CELLWISE_TEST_KEY")
    with pytest.raises(JudgeMisconfigured, match="set CELLWISE_TEST_KEY"):
        judge(store, asked, qualification=Qualified(calibration="two"))


def test_votes_that_disagree_abstain_and_each_has_its_own_seed(store: Store, fake: Provider) -> None:
    fake.behave = lambda _number, body: completion(verdict="pass" if body["seed"] % 2 else "fail")
    even = openai_judge(fake, votes=2, seed=10)
    judge(store, even)
    assert {body["seed"] for body in fake.requests} == {10, 11}
    assert {(one.verdict, one.error) for one in documents(store, even)} == {("abstain", None)}
    assert table(store, even)["control"]["semantic"]["qualified_abstention"] == 8
    odd = openai_judge(fake, votes=3, seed=10)
    judge(store, odd)
    assert {one.verdict for one in documents(store, odd)} == {"fail"}


def test_a_model_that_answers_under_another_name_does_not_count(store: Store, fake: Provider) -> None:
    fake.behave = lambda _number, _body: completion(model="model-1-cheaper")
    asked = openai_judge(fake)
    assert judge(store, asked).judged == LEDGERS
    assert {(one.verdict, one.unqualified) for one in documents(store, asked)} == {
        ("pass", "evaluator_configuration_mismatch")
    }
    expected = openai_judge(fake, returned_model="model-1-cheaper")
    judge(store, expected)
    assert {one.unqualified for one in documents(store, expected)} == {None}


def test_an_answer_without_a_models_name_does_not_count(store: Store, fake: Provider) -> None:
    fake.behave = lambda _number, _body: completion(model=None)
    asked = openai_judge(fake)
    judge(store, asked)
    assert {one.unqualified for one in documents(store, asked)} == {"evaluator_configuration_mismatch"}


# Answers that cannot be used stand as abstentions


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        (completion('{"explanation": "half a'), "InvalidJSON"),
        (completion('{"explanation": "half a', finish="length"), "Truncated"),
        (completion("I abstain from judging this."), "InvalidJSON"),
        (completion('{"verdict": "pass"}'), "WrongSchema"),
        (completion('{"explanation": "x", "verdict": "PASS"}'), "WrongSchema"),
        (completion('{"explanation": "x", "verdict": "fail", "verdict": "pass"}'), "WrongSchema"),
        (completion('{"score": 1.0, "label": "truthful"}'), "WrongSchema"),
        (completion(refusal="I cannot help with that."), "Refusal"),
        (completion(finish="content_filter"), "ContentFilter"),
        (completion(finish="tool_calls"), "ToolCalls"),
        (completion(""), "Empty"),
        (completion(finish=""), "UnknownFinish"),
        (Reply(body=b'{"choices": [', headers={"content-type": "application/json"}), "MalformedResponse"),
        (Reply(body=b"<html>a gateway</html>", headers={"content-type": "text/html"}), "MalformedResponse"),
        (error(400, "context_length_exceeded"), "ContextLength"),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_abstention_that_stands(
    store: Store, fake: Provider, reply: Reply, name: str
) -> None:
    fake.behave = lambda _number, _body: reply
    asked = openai_judge(fake)
    assert judge(store, asked).judged == LEDGERS
    assert {(one.verdict, one.error, one.unqualified) for one in documents(store, asked)} == {
        ("abstain", f"judge_error:{name}", None)
    }
    calls = len(fake.requests)
    fake.behave = lambda _number, _body: completion()
    assert judge(store, asked).before == LEDGERS
    assert len(fake.requests) == calls
    semantic = table(store, asked)["control"]["semantic"]
    assert (semantic["joint"], semantic["qualified_abstention"]) == (0, 8)


def test_usage_that_makes_no_sense_is_an_unknown_cost(store: Store, fake: Provider) -> None:
    usages: list[Any] = [None, {"prompt_tokens": -1, "completion_tokens": 5}, {"prompt_tokens": True}, {}, "much"]
    fake.behave = lambda number, _body: completion(usage=usages[number % len(usages)])
    asked = openai_judge(fake, prices=Prices(input="0.15", output="0.6"))
    outcome = judge(store, asked)
    assert {one.cost.state for one in documents(store, asked)} == {"unknown"}
    assert outcome.spent is not None
    assert (outcome.spent.complete, outcome.spent.unknown) == (None, len(fake.requests))


# A judge that cannot be reached


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [
        (error(429), "RateLimitError"),
        (error(500), "InternalServerError"),
        (error(503), "InternalServerError"),
        (Reply(body=b'{"half', announced=1000), "APIConnectionError"),
        (Reply(wait=2.5), "APITimeoutError"),
    ],
)
def test_a_judge_that_cannot_be_reached_leaves_judgments_pending_and_is_asked_again(
    store: Store, fake: Provider, reply: Reply, trouble: str
) -> None:
    fake.behave = lambda _number, _body: reply
    asked = openai_judge(fake, timeout_seconds=1)
    outcome = judge(store, asked)
    assert (outcome.judged, outcome.pending) == (0, {"judge_unavailable": LEDGERS})
    assert (outcome.trouble or "").startswith(trouble)
    # It is not asked about every ledger before it is believed to be away.
    assert 3 <= len(fake.requests) <= 6
    (matrix,) = reading.matrices(store)
    assert not summary_of(store, matrix, judge=asked.configuration_hash()).complete
    assert {semantic_of(one).told() for one in stored(store, asked)} == {"pending: judge_unavailable"}
    fake.behave = lambda _number, _body: completion()
    assert judge(store, asked).judged == LEDGERS
    assert table(store, asked)["control"]["semantic"]["joint"] == 8


def test_a_judge_that_says_nothing_for_sixty_seconds_is_given_up_by_itself(store: Store, fake: Provider) -> None:
    fake.behave = lambda _number, _body: Reply(**(vars(completion()) | {"wait": 75.0}))
    # The time limit is the configuration's own: 60 s, unless an operator writes another one.
    asked = openai_judge(
        fake, timeout_seconds=WrittenOpenAIJudge.model_fields["timeout_seconds"].default, concurrency=4
    )
    began = time.monotonic()
    outcome = judge(store, asked)
    assert 60 <= time.monotonic() - began < 75 * 2
    assert (outcome.judged, outcome.pending) == (0, {"judge_unavailable": LEDGERS})
    assert (outcome.trouble or "").startswith("APITimeoutError")
    # Given up after the first few: a matrix of thousands would otherwise wait for days.
    assert 3 <= len(fake.requests) <= 8
    fake.behave = lambda _number, _body: completion()
    assert judge(store, asked).judged == LEDGERS


def test_what_fails_in_passing_is_tried_again_within_the_call_as_long_as_the_provider_asks(
    store: Store, fake: Provider
) -> None:
    fake.behave = lambda number, _body: error(429, retry_after="1.5") if number == 0 else completion()
    asked = openai_judge(fake, retries=2, concurrency=1, prices=Prices(input="0.15", output="0.6"))
    outcome = judge(store, asked)
    assert outcome.judged == LEDGERS
    assert fake.times[1] - fake.times[0] >= 1.5
    assert outcome.spent is not None
    # A request that was turned away has cost nothing.
    assert outcome.spent.unknown == 0


def test_a_call_of_which_an_earlier_try_may_have_been_billed_has_an_unknown_cost(store: Store, fake: Provider) -> None:
    fake.behave = lambda number, _body: error(502) if number == 0 else completion()
    outcome = judge(store, openai_judge(fake, retries=1, concurrency=1, prices=Prices(input="1", output="1")))
    assert outcome.spent is not None
    assert (outcome.judged, outcome.spent.unknown, outcome.spent.complete) == (LEDGERS, 1, None)


@pytest.mark.parametrize("status", [401, 403, 404, 400])
def test_a_wrong_configuration_stops_at_once_and_condemns_nothing(store: Store, fake: Provider, status: int) -> None:
    fake.behave = lambda _number, _body: error(status)
    outcome = judge(store, openai_judge(fake, concurrency=1))
    assert outcome.pending == {"judge_unavailable": LEDGERS}
    assert len(fake.requests) <= 2


def test_nobody_listening_is_pending_too_and_has_cost_nothing(store: Store) -> None:
    with provider() as gone:
        asked = openai_judge(gone, prices=Prices(input="1", output="1"))
    outcome = judge(store, asked)
    assert outcome.pending == {"judge_unavailable": LEDGERS}
    assert outcome.spent is not None
    assert (outcome.spent.complete, outcome.spent.unknown) == (0, 0)


def test_votes_that_were_given_before_the_judge_went_away_are_not_asked_for_again(store: Store, fake: Provider) -> None:
    fake.behave = lambda number, _body: completion() if number < 4 else error(503)
    asked = openai_judge(fake, votes=3, concurrency=1)
    judge(store, asked)
    (matrix,) = reading.matrices(store)
    given = [call for call in judgments.calls(store, matrix.id) if call.state == "answered"]
    assert len(given) == 4
    asked_before = len(fake.requests)
    fake.behave = lambda _number, _body: completion()
    assert not judge(store, asked).pending
    different = {one.request_hash for one in documents(store, asked)}
    assert len(fake.requests) - asked_before == 3 * len(different) - 4


# Budget and size


def test_a_call_that_the_budget_does_not_admit_is_not_made(store: Store, fake: Provider) -> None:
    asked = openai_judge(fake, concurrency=1, budget=Budget(tokens=15_000))
    outcome = judge(store, asked)
    assert outcome.judged > 0
    assert outcome.pending["budget"] > 0
    assert outcome.judged + outcome.pending["budget"] == LEDGERS
    used = 1050 * len(fake.requests)
    assert used <= 15_000
    # The pending ones cost nothing, and earlier runs count.
    assert sum(one["semantic"]["judge_cost"]["not_dispatched"] for one in table(store, asked).values()) > 0
    calls = len(fake.requests)
    assert judge(store, openai_judge(fake, budget=Budget(tokens=used + 100))).pending["budget"] > 0
    assert len(fake.requests) == calls
    # A larger budget is no other judge: it goes on where the smaller one ended.
    larger = openai_judge(fake, budget=Budget(tokens=10_000_000))
    assert larger.configuration_hash() == asked.configuration_hash()
    assert not judge(store, larger).pending


def test_a_budget_in_dollars_admits_no_more_than_it_holds(store: Store, fake: Provider) -> None:
    prices = Prices(input="1", output="1")
    outcome = judge(store, openai_judge(fake, concurrency=2, prices=prices, budget=Budget(dollars="0.03")))
    assert outcome.spent is not None
    assert outcome.spent.complete is not None
    assert 0 < outcome.spent.complete <= 30_000
    assert outcome.pending["budget"] > 0
    assert cost_of(prices, 1000, 50).micro_dollars == 1050


def test_evidence_that_is_too_long_is_neither_sent_nor_shortened(store: Store, fake: Provider) -> None:
    asked = openai_judge(fake, longest_request=1_000)
    judge(store, asked)
    assert fake.requests == []
    assert {(one.verdict, one.error, one.cost.state) for one in documents(store, asked)} == {
        ("abstain", "judge_error:TooLong", "not_dispatched")
    }


def test_what_is_sent_is_what_was_registered(store: Store, fake: Provider) -> None:
    judge(store, openai_judge(fake, seed=7, output_tokens=99))
    body = fake.requests[0]
    assert (body["model"], body["temperature"], body["seed"], body["max_completion_tokens"]) == (MODEL, 0, 7, 99)
    assert body["response_format"]["json_schema"]["strict"] is True
    assert [one["role"] for one in body["messages"]] == ["system", "user"]


def test_a_connection_needs_prices_for_a_budget_in_dollars() -> None:
    with pytest.raises(ValueError, match="dollars can only be counted with prices"):
        JudgeConnection(budget=Budget(dollars="1"))


def test_nothing_of_the_evaluators_leaves_for_the_provider(store: Store, fake: Provider) -> None:
    judge(store, openai_judge(fake))
    (matrix,) = reading.matrices(store)
    manifest = Manifest.from_document(reading.manifest(store, matrix.id))
    forbidden = [name for one in manifest.conditions for name in (one.name, one.agent.name)]
    forbidden += [case.id for case in manifest.cases]
    forbidden += ["expectation", "clarifications", "repetition", "wrong_order_commits", "task_completed"]
    for body in fake.requests:
        _, user = body["messages"]
        # The words of the utterances and messages hold none of these names either.
        assert not [name for name in forbidden if f'"{name}"' in user["content"]]
        assert "mutant" not in user["content"]
    # The one scripted reply was given to some agents and not to others: only the former's judge may see it.
    reply = "The blue backpack bought on 2026-08-01."
    given = [body for body in fake.requests if f'"result":"{reply}"' in body["messages"][1]["content"]]
    with_reply = [body for body in fake.requests if reply in body["messages"][1]["content"]]
    assert 0 < len(given) == len(with_reply) < len(fake.requests)


def test_a_process_that_dies_after_the_calls_pays_for_none_of_them_again(
    store: Store, fake: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> Any:
        raise Killed

    asked = openai_judge(fake)
    with monkeypatch.context() as patched:
        patched.setattr(judgments, "add_judgments", die)
        with pytest.raises(Killed):
            judge(store, asked)
    assert stored(store, asked) == [None] * LEDGERS
    paid = len(fake.requests)
    assert paid > 0
    outcome = judge(store, asked)
    different = {one.request_hash for one in documents(store, asked)}
    assert outcome.judged == LEDGERS
    assert len(fake.requests) == max(paid, len(different))
    assert outcome.spent is not None
    assert outcome.spent.unknown + outcome.spent.known == len(fake.requests)


def test_a_redaction_keeps_text_from_the_judge_and_the_store_keeps_it(store: Store, fake: Provider) -> None:
    (matrix,) = reading.matrices(store)
    manifest = Manifest.from_document(reading.manifest(store, matrix.id))
    rules = Redaction(replace=[Replacement(pattern="blue backpack", replacement="[item]")])
    redacted = manifest.model_copy(update={"redaction": RegisteredRedaction.of(rules)})
    asked = openai_judge(fake)
    judge_matrix(store, matrix, redacted, asked, qualification=Qualified())
    sent = json.dumps(fake.requests)
    assert "backpack" not in sent
    assert "[item]" in sent
    assert any(b"blue backpack" in (trial.ledger or b"") for trial in reading.trials(store, matrix.id, ledgers=True))
    # What was seen is part of the key: without the redaction it is another question.
    calls = len(fake.requests)
    judge(store, asked, qualification=Qualified(calibration="two"))
    assert len(fake.requests) > calls


def test_a_store_of_before_there_were_judges_is_upgraded_with_everything_in_it(tmp_path: Path) -> None:
    from alembic import command

    from grading.store.migrating import alembic_config

    old = sa.create_engine(f"sqlite:///{tmp_path / 'old.db'}")
    with old.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
        connection.exec_driver_sql(
            "INSERT INTO matrix (manifest_hash, name, manifest, state, created) VALUES ('sha256:0', 'old', x'7b7d', "
            "'complete', 1)"
        )
    old.dispose()
    with Store.open(tmp_path / "old.db") as upgraded:
        assert [one.name for one in reading.matrices(upgraded)] == ["old"]
        assert judgments.calls(upgraded, 1) == []
        with upgraded.transaction("migrate") as connection:
            # The models and the migrations say the same.
            command.check(alembic_config(connection))


# The command line


def cellwise(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "grading.command_line", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_person_judges_stored_messages_with_another_judge_and_compares_the_two(
    store: Store, fake: Provider, tmp_path: Path
) -> None:
    at = ["--store", str(tmp_path / "store.db")]
    status, table_, told = cellwise(tmp_path, "judge", *at, "--collect")
    assert status == 0
    assert "24 messages judged, 0 were judged before" in told
    assert table_.splitlines()[0].split("  ")[-1] == "unqualified"
    (tmp_path / "other.yaml").write_text(
        f"version: 1\njudge: {{type: openai, model: {MODEL}, base_url: '{fake.url}', api_key_env: null, retries: 0}}\n"
    )
    status, out, _ = cellwise(tmp_path, "judge", *at, "--judge", "other.yaml", "--collect", "--json")
    found = json.loads(out)
    assert (status, found["judged"], found["pending"]) == (0, 24, {})
    assert found["against_registered"] == [
        {"registered": "fail", "other": "pass", "count": 8},
        {"registered": "pass", "other": "pass", "count": 16},
    ]
    # The matrix's own judge is what status and show tell of.
    status, out, _ = cellwise(tmp_path, "status", *at, "--json")
    assert json.loads(out)["summary"]["conditions"][0]["semantic"]["unqualified"] == {"no_calibration": 8}
    status, out, _ = cellwise(tmp_path, "show", "settles/explicit-description/0", *at)
    assert "unqualified: no calibration" in out
    assert "the judge said fail, which does not count" in out


def test_pending_judgments_have_an_exit_status_of_their_own(store: Store, fake: Provider, tmp_path: Path) -> None:
    fake.behave = lambda _number, _body: error(503)
    (tmp_path / "other.yaml").write_text(
        f"version: 1\njudge: {{type: openai, model: {MODEL}, base_url: '{fake.url}', api_key_env: null, retries: 0}}\n"
    )
    at = ["--store", str(tmp_path / "store.db"), "--judge", "other.yaml", "--collect"]
    status, table_, told = cellwise(tmp_path, "judge", *at)
    assert status == 4
    assert "24 pending: judge_unavailable; cellwise judge judged tries again" in told
    assert "judgment pending" in table_.splitlines()[0]
    status, _, told = cellwise(tmp_path, "judge", "--store", str(tmp_path / "store.db"), "--judge", "absent.yaml")
    assert (status, "absent.yaml" in told) == (2, True)


def test_a_study_with_a_judge_runs_from_the_file_to_the_table(judged_study: Path, tmp_path: Path) -> None:
    shutil.copy(judged_study / "cases.yaml", tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    status, out, told = cellwise(tmp_path, "run", "matrix.yaml", "--phoenix", "off", "--json")
    found = json.loads(out)
    assert (status, found["judging"]["refused"]) == (0, {"no_calibration": LEDGERS}), told
    assert found["summary"]["conditions"][0]["semantic"]["joint"] == 0
    status, out, told = cellwise(tmp_path, "grade")
    assert (status, "24 not judged, the judge does not count: no_calibration" in told) == (0, True)


# With the packaged calibration and its registry

NATIVE = CASES.parents[1] / "native-semantic"


def _record() -> str:
    (record,) = Registry.load(NATIVE / "registry.yaml").qualifications
    return record


def test_the_packaged_calibration_is_of_todays_literal_judge() -> None:
    record = Registry.load(NATIVE / "registry.yaml").qualifications[_record()].record
    assert record.configuration_hash == registered("literal", "orders").configuration_hash()


def test_a_study_is_judged_assessed_and_after_a_revocation_not_current_while_its_grades_stay(
    judged_study: Path, tmp_path: Path
) -> None:
    shutil.copy(judged_study / "cases.yaml", tmp_path)
    shutil.copytree(NATIVE, tmp_path / "trust")
    matrix = MATRIX.replace("  - {name: first, agent: first-record-mutant}\n", "")
    (tmp_path / "matrix.yaml").write_text(matrix + f"calibration: {_record()}\nregistry: trust/registry.yaml\n")
    status, out, told = cellwise(tmp_path, "run", "matrix.yaml", "--phoenix", "off", "--json")
    assert status == 0, told
    found = {one["condition"]: one for one in json.loads(out)["summary"]["conditions"]}
    assert (found["settles"]["contract"], found["settles"]["semantic"]["joint"], found["settles"]["completed"]) == (
        8,
        0,
        6,
    )
    assert (found["control"]["contract"], found["control"]["semantic"]["joint"]) == (8, 8)
    costs = [one["semantic"]["judge_cost"] for one in found.values()]
    assert [(one["unknown"], one["complete_micro_dollars"]) for one in costs] == [(8, None), (8, None)]

    trusted = tmp_path / "trust/registry.yaml"
    status, out, _ = cellwise(tmp_path, "assess", "--registry", str(trusted), "--json")
    assert (json.loads(out)["status"], json.loads(out)["not_current"]) == ("current", 0)
    trusted.write_text(trusted.read_text() + "    revoked: {at: 2021-01-01T00:00:00Z, reason: superseded}\n")
    status, out, _ = cellwise(tmp_path, "assess", "--registry", str(trusted), "--json")
    assert (json.loads(out)["status"], json.loads(out)["not_current"]) == ("not_current", 16)
    assert json.loads(out)["by_reason"] == {"qualification_missing_or_revoked": 16}
    # Assessing changes nothing that was graded.
    status, out, _ = cellwise(tmp_path, "status", "--json")
    assert json.loads(out)["summary"]["conditions"][0]["semantic"]["joint"] == 8


def test_a_calibration_without_a_registry_to_ask_is_refused_before_anything_runs(
    judged_study: Path, tmp_path: Path
) -> None:
    shutil.copy(judged_study / "cases.yaml", tmp_path)
    (tmp_path / "matrix.yaml").write_text(MATRIX + f"calibration: {_record()}\n")
    status, _, told = cellwise(tmp_path, "run", "matrix.yaml", "--phoenix", "off")
    assert (status, "give its --registry FILE" in told) == (2, True)
    assert not (tmp_path / ".cellwise").exists()


def test_what_a_judge_said_is_written_once_for_each_evidence_to_calibrate_it(store: Store, tmp_path: Path) -> None:
    at = ["--store", str(tmp_path / "store.db"), "--collect", "--verdicts", str(tmp_path / "verdicts.jsonl")]
    assert cellwise(tmp_path, "judge", *at)[0] == 0
    lines = [json.loads(line) for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    different = {one.request_hash for one in documents(store)}
    assert {line["evidence_hash"] for line in lines} == different
    assert len(lines) == len(different)
    status, _, told = cellwise(tmp_path, "judge", *at)
    assert (status, "verdicts.jsonl" in told) == (2, True)


def test_a_redaction_keeps_text_from_phoenix_too(judged_study: Path, tmp_path: Path) -> None:
    shutil.copy(judged_study / "cases.yaml", tmp_path)
    redaction = 'redaction: {replace: [{pattern: "blue backpack", replacement: "[item]"}]}\n'
    (tmp_path / "matrix.yaml").write_text(MATRIX + redaction)
    study = resolve(tmp_path / "matrix.yaml")
    with closing(sqlite3.connect(judged_study / "store.db")) as original:
        original.execute("VACUUM INTO ?", [str(tmp_path / "store.db")])
    with Store.open(tmp_path / "store.db") as store:
        (old,) = reading.matrices(store)
        new = reading.find_matrix(store, register(store, study.manifest).matrix_id)
        assert len(reusing.reuse(store, new.id, old.id)) == LEDGERS
        runner = Runner(store, new, study.manifest, root=tmp_path, folder=tmp_path / "workers", parallelism=1)
        assert runner.run() == "complete"
        judge_matrix(store, new, study.manifest, study.manifest.judge, qualification=Qualified())  # type: ignore[arg-type]
        wanted = desired(store, new)
        shown = repr([wanted.cases, [condition.metadata for condition in wanted.conditions]])
        runs = [run for condition in wanted.conditions for run in condition.runs()]
        assert len(runs) == LEDGERS
        assert {one.name for run in runs for one in run.evaluations} == {
            "contract", "completed", "coverage", "semantic", "joint"
        }  # fmt: skip
        shown += repr(runs)
        assert "backpack" not in shown
        assert "[item]" in shown
