"""A judge's votes on evidence: from the store where it has given them before, else asked for, within the budget.

Each call is in the store before anything is made of its answer, so a killed process pays for nothing twice.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from grading.cost import NOT_DISPATCHED, UNKNOWN, Cost
from grading.judge import Answer, Judge, Unavailable
from grading.judge.budget import Admission, Spent
from grading.judge.configuration import RegisteredJudge
from grading.judge.judgment import BUDGET, JUDGE_UNAVAILABLE, CostComponent, Vote
from grading.store import Store, judgments
from simulator.canonical import canonical


@dataclass(frozen=True, slots=True)
class Pending:
    """Why there are no votes yet."""

    reason: str
    detail: str = ""
    hopeless: bool = False


class Voting:
    """One judge's votes for one matrix. Threads may share it once it is prepared."""

    def __init__(
        self,
        store: Store,
        matrix_id: int,
        registered: RegisteredJudge,
        open_judge: Callable[[], Judge],
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._matrix_id = matrix_id
        self._registered = registered
        self._configuration_hash = registered.configuration_hash()
        self._open_judge = open_judge
        self._clock = clock
        self.stopped: Pending | None = None
        """Why nothing more is asked for, once that is so."""

    def prepare(self) -> None:
        """Looks up what was spent before: here, before threads share it."""
        assert self._admission is not None

    @cached_property
    def judge(self) -> Judge:
        """Opened once there is something to ask: where nothing counts, no key is needed."""
        return self._open_judge()

    @cached_property
    def _admission(self) -> Admission:
        connection = self._registered.connection
        return Admission(connection.budget if connection is not None else None, self._spent_before())

    def on(self, name: str, request: bytes) -> list[Vote] | Pending:
        """Every vote on a request: from the store where the judge has given it before."""
        refusal = self.judge.refuses(request)
        if refusal is not None:
            told = f"{len(request)} bytes of evidence were not sent: {refusal}"
            now = self._clock()
            answer = Answer("abstain", told, refusal, None, None, None, NOT_DISPATCHED, now, now)
            return [_vote(index, None, answer) for index in range(self.judge.votes)]
        if not self.judge.dispatches:
            return [_vote(index, None, self.judge.vote(request, index)) for index in range(self.judge.votes)]
        known = judgments.answered(self._store, name, self._configuration_hash)
        votes: list[Vote] = []
        for index in range(self.judge.votes):
            if index in known:
                votes.append(Vote.model_validate_json(known[index].document).model_copy(update={"cached": True}))
                continue
            asked = self._ask(name, request, index)
            if isinstance(asked, Pending):
                return asked
            votes.append(asked)
        return votes

    def _ask(self, name: str, request: bytes, index: int) -> Vote | Pending:
        if self.stopped is not None:
            return self.stopped
        most = self.judge.most(request)
        if not self._admission.admit(most):
            return Pending(BUDGET)
        call = uuid.uuid4().hex
        try:
            answer = self.judge.vote(request, index)
        except Unavailable as error:
            cost = UNKNOWN if error.dispatched else NOT_DISPATCHED
            if not error.dispatched:
                self._admission.settle(most, 0, Cost("known", 0))
            document = {
                "version": 1,
                "call": call,
                "index": index,
                "error": error.error,
                "cost": CostComponent.of(cost).model_dump(mode="json"),
                "most": {"tokens": most.tokens, "micro_dollars": most.micro_dollars},
                "started": error.started,
                "ended": error.ended,
            }
            self._keep(call, name, request, index, "unavailable", canonical(document))
            return Pending(JUDGE_UNAVAILABLE, str(error), error.hopeless)
        vote = _vote(index, call, answer)
        tokens = (
            None if vote.input_tokens is None or vote.output_tokens is None else vote.input_tokens + vote.output_tokens
        )
        if answer.cost == NOT_DISPATCHED:
            self._admission.settle(most, 0, Cost("known", 0))
        else:
            self._admission.settle(most, tokens, answer.cost)
        self._keep(call, name, request, index, "answered", canonical(vote.model_dump(mode="json")))
        return vote

    def _keep(self, call: str, name: str, request: bytes, index: int, state: Any, document: bytes) -> None:
        kept = judgments.Call(call, self._matrix_id, name, self._configuration_hash, index, state, document)
        judgments.add_call(self._store, kept, request)

    def _spent_before(self) -> Spent:
        """What earlier calls for this matrix used; where that is unknown, the most they may have used."""
        spent = Spent()
        if not self.judge.dispatches:
            return spent
        for call in judgments.calls(self._store, self._matrix_id):
            document = orjson.loads(call.document)
            cost = document["cost"]
            if cost["state"] == "not_dispatched":
                continue
            if call.state == "answered":
                known = document["input_tokens"] is not None and document["output_tokens"] is not None
                most = self.judge.most(judgments.request_document(self._store, call.request_hash))
                spent.tokens += document["input_tokens"] + document["output_tokens"] if known else most.tokens
                spent.micro_dollars += cost["micro_dollars"] if cost["state"] == "known" else most.micro_dollars or 0
            else:
                spent.tokens += document["most"]["tokens"]
                spent.micro_dollars += document["most"]["micro_dollars"] or 0
        return spent


def _vote(index: int, call: str | None, answer: Answer) -> Vote:
    return Vote(
        index=index,
        call=call,
        cached=False,
        verdict=answer.verdict,
        explanation=answer.explanation,
        error=answer.error,
        returned_model=answer.returned_model,
        input_tokens=answer.input_tokens,
        output_tokens=answer.output_tokens,
        cost=CostComponent.of(answer.cost),
        started=answer.started,
        ended=max(answer.started, answer.ended),
    )
