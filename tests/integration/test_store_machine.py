"""Whatever is asked of a store, in whatever order: evidence stays what it was, grades are only added, no two attempts
hold one trial, and no trial is tried more often than it may be."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from store_session import GRADERS, digest, enrolled, ledger_of, passed, running_matrix, violations

from grading.store import StateError, Store, matrices, reading
from grading.store.delivering import Quarantined, deliver, quarantine
from grading.store.grades import add_grades
from grading.store.leasing import Claimed, claim, renew, running
from grading.store.losing import REASONS, Lost, Sealed, fail_cell, lose, seal

TOO_MANY = {"uncharged": 20, "charged": 3, "provider": 3, "ledger_bad": 3, "unknown": 3}
"""Lost to one thing alone; with others before it a trial ends earlier."""


class StoreMachine(RuleBasedStateMachine):
    attempts = Bundle("attempts")

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="store")
        self.now = 1_000_000
        self.path = Path(self.folder.name) / "store.db"
        self.store = Store.open(self.path, clock=lambda: self.now)
        self.matrix_id = running_matrix(self.store, cases=1, repetitions=2)
        self.owners = [enrolled(self.store), enrolled(self.store)]
        self.holders: dict[int, Claimed] = {}
        self.ledgers: dict[int, bytes] = {}
        self.evidence: dict[int, int] = {}
        self.grades: dict[int, list[Any]] = {}

    @rule(target=attempts, owner=st.integers(0, 1), limit=st.integers(1, 3), strict=st.booleans())
    def claim(self, owner: int, limit: int, strict: bool) -> Any:
        try:
            claimed = claim(
                self.store, self.owners[owner], self.matrix_id, limit=limit, lease_seconds=10, strict_order=strict
            )
        except StateError:
            assert reading.find_matrix(self.store, self.matrix_id).state != "running"
            return multiple()
        for one in claimed:
            before = self.holders.get(one.trial_id)
            assert one.number == (before.number + 1 if before else 1)
            self.holders[one.trial_id] = one
        assert [one.sequence for one in claimed] == sorted({one.sequence for one in claimed})
        return multiple(*claimed)

    @rule(seconds=st.sampled_from([1, 6, 11]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * 1_000_000

    @rule(one=attempts)
    def begin(self, one: Claimed) -> None:
        running(self.store, [one.attempt_id])

    @rule(owner=st.integers(0, 1))
    def renew(self, owner: int) -> None:
        held = {a.attempt_id for a in self.holders.values()}
        assert renew(self.store, self.owners[owner], lease_seconds=10) <= held

    @rule(one=attempts, body=st.sampled_from(["ledger", "other"]), wrong=st.booleans())
    def deliver(self, one: Claimed, body: str, wrong: bool) -> None:
        sent = replace(ledger_of(one, body), secret="guess" if wrong else one.secret)
        (outcome,) = deliver(self.store, [sent])
        stored = self.ledgers.get(one.attempt_id)
        if wrong:
            assert outcome == "bad_secret"
        elif stored is not None:
            assert outcome == ("repeated" if stored == sent.document else "conflicting")
        else:
            assert outcome in ("accepted", "fenced")
            self.ledgers[one.attempt_id] = sent.document
            if outcome == "accepted":
                assert self.holders[one.trial_id] is one
                assert one.trial_id not in self.evidence
                self.evidence[one.trial_id] = one.attempt_id

    @rule(one=attempts, reason=st.sampled_from([*REASONS, "a meteorite"]), after=st.booleans())
    def lose(self, one: Claimed, reason: str, after: bool) -> None:
        try:
            lose(self.store, [Lost(one.attempt_id, reason, after, b"calls" if after else None)])
        except StateError:
            assert reason == "not_started"

    @rule(one=attempts)
    def quarantine(self, one: Claimed) -> None:
        quarantine(self.store, [Quarantined(one.attempt_id, one.secret, "hash_mismatch", "changed", b"x")])

    @rule(one=attempts)
    def seal(self, one: Claimed) -> None:
        own = digest(f"{one.attempt_id}fa")
        (outcome,) = seal(self.store, [Sealed(one.attempt_id, "recorder_killed", digest("fa"), own, b"made", b"calls")])
        if outcome == "sealed":
            assert one.trial_id not in self.evidence
            self.evidence[one.trial_id] = one.attempt_id
            self.ledgers[one.attempt_id] = b"made"

    @rule(
        one=attempts, version=st.sampled_from(["sha256:v1", "sha256:v2"]), verdict=st.sampled_from(["passed", "failed"])
    )
    def grade(self, one: Claimed, version: str, verdict: Any) -> None:
        given = replace(passed(one.attempt_id, version), verdict=verdict)
        try:
            (outcome,) = add_grades(self.store, [given], GRADERS)
        except StateError:
            assert one.attempt_id not in self.ledgers
            return
        if outcome == "added":
            self.grades.setdefault(one.attempt_id, []).append(given)

    @rule(place=st.integers(0, 1))
    def fail_cell(self, place: int) -> None:
        cell = reading.cells(self.store, self.matrix_id)[place]
        try:
            fail_cell(self.store, cell.id, "quota")
        except StateError:
            assert cell.state == "done"

    @rule(move=st.sampled_from([matrices.pause, matrices.resume, matrices.finish]))
    def move(self, move: Any) -> None:
        before = reading.find_matrix(self.store, self.matrix_id).state
        try:
            move(self.store, self.matrix_id)
        except StateError:
            assert reading.find_matrix(self.store, self.matrix_id).state == before

    @rule(one=consumes(attempts))
    def forget(self, one: Claimed) -> None:
        """Lets hypothesis turn to other attempts."""

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.path, clock=lambda: self.now)

    @invariant()
    def nothing_contradicts(self) -> None:
        assert violations(self.store) == []
        for one in reading.trials(self.store, self.matrix_id):
            assert one.evidence_attempt_id == self.evidence.get(one.id)
            lost: dict[str | None, int] = {}
            for tried in reading.attempts(self.store, one.id):
                if tried.state in ("lost", "fenced"):
                    lost[tried.budget] = lost.get(tried.budget, 0) + 1
            charged = sum(lost.get(budget, 0) for budget in TOO_MANY if budget != "uncharged")
            assert charged <= 3
            assert lost.get("uncharged", 0) <= 20
        for attempt_id, document in self.ledgers.items():
            assert reading.ledger_document(self.store, attempt_id) == document
        for attempt_id, given in self.grades.items():
            assert reading.grades_of(self.store, attempt_id) == given

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
