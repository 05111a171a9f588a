"""Judging: the stage after structural grading. It reads stored ledgers and never runs an agent.

Qualification is asked before a call and after it; what is refused before it makes no call and costs nothing. A judge
that cannot be reached, or that the budget does not admit, leaves the judgment pending: judging again tries again.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson

from grading.calibration.rows import Scope
from grading.cost import NOT_DISPATCHED, Cost, CostTotal, total_spent
from grading.judge import Judge, verdict_of
from grading.judge.configuration import (
    LiteralConfiguration,
    OpenAIConfiguration,
    RegisteredJudge,
    configuration_hash,
)
from grading.judge.judgment import (
    JUDGE_UNAVAILABLE,
    CostComponent,
    Judgment,
    Receipt,
    Vote,
    binding,
    carried,
)
from grading.judge.qualification import CONFIGURATION_MISMATCH, Qualification, Uncalibrated
from grading.manifest import Manifest
from grading.projection import semantic
from grading.redaction import Redactor
from grading.store import Store, judgments, reading
from grading.store.attempts import batches
from grading.voting import Pending, Voting
from simulator.canonical import canonical, sha256

_GROUP = 100
"""Judgments in one commit, at most, and"""
_GROUP_SECONDS = 1.0
"""how long the first of them waits for others."""
_LEDGERS = 100
"""Ledgers in memory at once, but for those that are being asked about."""
_UNREACHED_IN_A_ROW = 3
"""Judgments that a judge may leave pending one after the other before the rest is not asked for."""


@dataclass(slots=True)
class Judged:
    """What judging a matrix came to."""

    planned: int = 0
    """Ledgers that there are to judge."""
    before: int = 0
    """Judged earlier, under the same qualification."""
    judged: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Before a call, by reason."""
    pending: Counter[str] = field(default_factory=Counter)
    """By reason."""
    trouble: str | None = None
    """What the judge's last failure was, for a person."""
    spent: CostTotal | None = None
    """Of every call that was ever made for this matrix and judge, once each."""

    @property
    def done(self) -> int:
        return self.before + self.judged + sum(self.refused.values()) + sum(self.pending.values())

    def to_json(self) -> dict[str, Any]:
        spent = self.spent
        return {
            "ledgers": self.planned,
            "judged_before": self.before,
            "judged": self.judged,
            "refused": dict(sorted(self.refused.items())),
            "pending": dict(sorted(self.pending.items())),
            "trouble": self.trouble,
            "spent": None
            if spent is None
            else {
                "complete_micro_dollars": spent.complete,
                "known_micro_dollars": spent.known_subtotal,
                "unknown_calls": spent.unknown,
                "calls": spent.known + spent.unknown,
            },
        }


def load_judge(registered: RegisteredJudge) -> Judge:
    """The judge of a configuration.

    Raises:
        JudgeMisconfigured: it cannot be asked from here.
    """
    if registered.configuration.type == "literal":
        from grading.judge.literal import LiteralJudge

        return LiteralJudge()
    from grading.judge.openai import OpenAIJudge

    assert registered.connection is not None
    return OpenAIJudge(registered.configuration, registered.connection)


def spent_on(store: Store, matrix_id: int, configuration_hash: str) -> CostTotal:
    """The money that left for a judge's calls for a matrix, once for each call, whoever uses its answer."""
    return total_spent(_costs(judgments.calls(store, matrix_id, configuration_hash)))


def judge_matrix(
    store: Store,
    matrix: reading.Matrix,
    manifest: Manifest,
    registered: RegisteredJudge,
    *,
    judge: Judge | None = None,
    qualification: Qualification | None = None,
    collect: bool = False,
    watch: Callable[[Judged], None] = lambda _: None,
    clock: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Judged:
    """Judges every ledger of a matrix that this judge has not judged under this qualification.

    Args:
        registered: the manifest's judge, or another one.
        judge: in its place in tests; by default the one that ``registered`` describes.
        qualification: the operator's; without it nothing counts, and nothing is called.
        collect: call the judge also where its word will not count, to calibrate or to compare it.
        clock: microseconds since 1970.

    Raises:
        JudgeMisconfigured: the judge cannot be asked from here; nothing was called.
    """
    opened = ExitStack()

    def open_judge() -> Judge:
        if judge is not None:
            return judge
        loaded = load_judge(registered)
        opened.callback(loaded.close)
        return loaded

    with opened:
        return _Judging(
            store, matrix, manifest, registered, open_judge, qualification or Uncalibrated(), collect, watch, clock
        ).run()


@dataclass(slots=True)
class _Item:
    """A ledger to judge."""

    attempt_id: int
    case_id: str
    content: dict[str, Any]
    checked: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request on its way, and the ledgers that wait for it: equal ones are asked about once."""

    request: bytes
    votes: Future[list[Vote] | Pending]
    items: list[_Item] = field(default_factory=list)


class _Judging:
    def __init__(
        self,
        store: Store,
        matrix: reading.Matrix,
        manifest: Manifest,
        registered: RegisteredJudge,
        open_judge: Callable[[], Judge],
        qualification: Qualification,
        collect: bool,
        watch: Callable[[Judged], None],
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._matrix = matrix
        self._registered = registered
        self._configuration = registered.configuration
        self._configuration_hash = registered.configuration_hash()
        self._voting = Voting(store, matrix.id, registered, open_judge, clock)
        self._qualification = qualification
        self._collect = collect
        self._watch = watch
        self._clock = clock
        self._scope = Scope(
            criterion=registered.configuration.criterion,
            world=manifest.world,
            policy_version=registered.policy_version,
        )
        self._cases = {case.id: case.model_dump(mode="json") for case in manifest.cases}
        self._redactor = Redactor(manifest.redaction)
        self._concurrency = registered.connection.concurrency if registered.connection is not None else 1
        self._rows: list[judgments.StoredJudgment] = []
        self._requests: dict[str, bytes] = {}
        self._wrote = time.monotonic()
        self._outcome = Judged()
        self._noting = threading.Lock()
        self._unreached = 0

    def run(self) -> Judged:
        document = canonical(self._configuration.model_dump(mode="json"))
        judgments.register_judge(self._store, self._configuration_hash, document)
        asked: dict[str, _Asked] = {}
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="judge") as pool:
            try:
                for item in self._items():
                    request = canonical(self._redactor.value(semantic(item.content, self._scope.policy_version)))
                    if not self._voting.judge.dispatches:
                        self._settle(item, request, self._voting.on(sha256(request), request))
                        continue
                    name = sha256(request)
                    if name not in asked:
                        self._voting.prepare()
                        asked[name] = _Asked(request, pool.submit(self._ask, name, request))
                    asked[name].items.append(item)
                    while len(asked) >= 2 * self._concurrency:
                        self._take_answers(asked)
                while asked:
                    self._take_answers(asked)
            except BaseException:
                # What is being asked arrives and is stored by its thread; nothing else is asked.
                self._voting.stopped = self._voting.stopped or Pending(JUDGE_UNAVAILABLE, "judging was stopped")
                pool.shutdown(wait=True, cancel_futures=True)
                self._write()
                raise
        self._write()
        self._outcome.spent = spent_on(self._store, self._matrix.id, self._configuration_hash)
        return self._outcome

    def _items(self) -> Iterator[_Item]:
        """The ledgers that may be judged now; the refused ones are settled on the way."""
        found = reading.trials(self._store, self._matrix.id, states=["delivered", "graded"], ledgers=True)
        for trials in batches(found, _LEDGERS):
            attempts = [one.evidence_attempt_id for one in trials if one.evidence_attempt_id is not None]
            known = judgments.latest(self._store, attempts, self._configuration_hash, self._qualification.inputs_hash)
            ever = judgments.latest(self._store, attempts, self._configuration_hash)
            for trial in trials:
                if trial.evidence_attempt_id is None or trial.ledger is None:
                    continue
                self._outcome.planned += 1
                earlier = known.get(trial.evidence_attempt_id)
                settled = earlier is not None and earlier.state == "judged"
                if settled or self._counted(ever.get(trial.evidence_attempt_id)):
                    self._outcome.before += 1
                    continue
                now = self._clock()
                reason = self._qualification.check(now, self._scope, self._configuration_hash)
                if reason is not None and not self._collect:
                    self._refuse(trial.evidence_attempt_id, now, reason)
                    continue
                content = orjson.loads(trial.ledger)["content"]
                yield _Item(trial.evidence_attempt_id, trial.case_id, content, now)

    def _counted(self, earlier: judgments.StoredJudgment | None) -> bool:
        """Whether a judgment counted under this calibration when it was made. A registry that has changed since does
        not unmake it: what would count today is the assessment's question."""
        if earlier is None or earlier.state != "judged" or earlier.reason is not None or earlier.document is None:
            return False
        calibration: str | None = orjson.loads(earlier.document)["calibration_hash"]
        return calibration == self._qualification.calibration_hash

    def _take_answers(self, asked: dict[str, "_Asked"]) -> None:
        done, _ = wait([one.votes for one in asked.values()], timeout=_GROUP_SECONDS, return_when=FIRST_COMPLETED)
        for name in [name for name, one in asked.items() if one.votes in done]:
            one = asked.pop(name)
            votes = one.votes.result()
            for position, item in enumerate(one.items):
                if position == 1 and isinstance(votes, list):
                    # It was asked once; to the others it is as good as from the cache.
                    votes = [vote.model_copy(update={"cached": vote.call is not None}) for vote in votes]
                self._settle(item, one.request, votes)
        if self._rows and time.monotonic() - self._wrote >= _GROUP_SECONDS:
            self._write()

    def _ask(self, name: str, request: bytes) -> list[Vote] | Pending:
        votes = self._voting.on(name, request)
        with self._noting:
            self._note(votes)
        return votes

    def _note(self, votes: list[Vote] | Pending) -> None:
        """Stops asking a judge that cannot be reached: every further try would wait as long and say the same.

        In the thread that asked, since it takes the next request before another thread could tell it not to."""
        if isinstance(votes, list):
            self._unreached = 0
        elif votes.reason == JUDGE_UNAVAILABLE and votes is not self._voting.stopped:
            self._outcome.trouble = votes.detail
            self._unreached += 1
            if votes.hopeless or self._unreached >= _UNREACHED_IN_A_ROW:
                self._voting.stopped = votes

    def _settle(self, item: _Item, request: bytes, votes: list[Vote] | Pending) -> None:
        if isinstance(votes, Pending):
            self._outcome.pending[votes.reason] += 1
            self._add(item.attempt_id, "pending", votes.reason, None, None)
            return
        name = sha256(request)
        self._requests[name] = request
        judged = self._judgment(item, name, votes)
        self._outcome.judged += 1
        self._add(item.attempt_id, "judged", judged.unqualified, judged.verdict, judged.document())

    def _judgment(self, item: _Item, request_hash: str, votes: list[Vote]) -> Judgment:
        verdict, explanation, error = verdict_of(list(votes))
        checked = self._clock()
        unqualified = self._check_after(checked, votes)
        receipt = None
        if unqualified is None:
            bound = binding(item.content, self._cases[item.case_id], self._scope.policy_version)
            receipt = Receipt(
                criterion=self._configuration.criterion,
                judge_version=self._configuration.version,
                configuration_hash=self._configuration_hash,
                calibration_hash=self._qualification.calibration_hash,
                message_hash=bound.message_hash,
                claims_hash=bound.claims_hash,
                context_hash=bound.context_hash,
                request_hash=request_hash,
                verdict=verdict,
                explanation=explanation,
                started=min(vote.started for vote in votes),
                ended=max(vote.ended for vote in votes),
            )
        return Judgment(
            criterion=self._configuration.criterion,
            configuration_hash=self._configuration_hash,
            calibration_hash=self._qualification.calibration_hash,
            request_hash=request_hash,
            verdict=verdict,
            explanation=explanation,
            qualification=self._qualification.inputs_hash,
            checked_before=item.checked,
            checked_after=checked,
            unqualified=unqualified,
            votes=votes,
            error=error,
            cost=carried(votes),
            receipt=receipt,
        )

    def _check_after(self, checked: int, votes: list[Vote]) -> str | None:
        """Asks again, of the judge that really answered: the provider may have put another model in its place."""
        for vote in votes:
            answered = _answered(self._configuration, vote)
            reason = self._qualification.check(checked, self._scope, configuration_hash(answered))
            if reason is None and answered != self._configuration:
                reason = CONFIGURATION_MISMATCH
            if reason is not None:
                return reason
        return None

    def _refuse(self, attempt_id: int, checked: int, reason: str) -> None:
        refused = Judgment(
            criterion=self._configuration.criterion,
            configuration_hash=self._configuration_hash,
            calibration_hash=self._qualification.calibration_hash,
            qualification=self._qualification.inputs_hash,
            checked_before=checked,
            checked_after=None,
            unqualified=reason,
            request_hash=None,
            votes=[],
            verdict=None,
            explanation=None,
            error=None,
            cost=CostComponent.of(NOT_DISPATCHED),
            receipt=None,
        )
        self._outcome.refused[reason] += 1
        self._add(attempt_id, "refused", reason, None, refused.document())

    def _add(self, attempt_id: int, state: Any, reason: str | None, verdict: Any, document: bytes | None) -> None:
        row = judgments.StoredJudgment(
            attempt_id,
            self._configuration_hash,
            self._qualification.inputs_hash,
            state,
            reason,
            verdict,
            document,
        )
        self._rows.append(row)
        if len(self._rows) >= _GROUP:
            self._write()

    def _write(self) -> None:
        self._wrote = time.monotonic()
        rows, self._rows = self._rows, []
        named = {orjson.loads(one.document)["request_hash"] for one in rows if one.document is not None}
        requests = [(name, self._requests[name]) for name in named if name is not None]
        if rows:
            judgments.add_judgments(self._store, rows, requests)
            self._watch(self._outcome)
        self._requests.clear()


def _answered(
    configuration: LiteralConfiguration | OpenAIConfiguration, vote: Vote
) -> LiteralConfiguration | OpenAIConfiguration:
    """The configuration that gave a vote: with the model that the provider named. Where no provider answered anything
    that could be read, it is the one that was asked; the vote is an abstention then."""
    if isinstance(configuration, LiteralConfiguration) or (vote.returned_model is None and vote.error is not None):
        return configuration
    return configuration.model_copy(update={"returned_model": vote.returned_model or ""})


def _costs(calls: list[judgments.Call]) -> Iterator[tuple[str, Cost]]:
    for call in calls:
        cost = orjson.loads(call.document)["cost"]
        if cost["state"] != "not_dispatched":
            yield call.call, Cost(cost["state"], cost["micro_dollars"])
