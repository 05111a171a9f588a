"""Whatever pods, a controller and people do, in whatever order: a trial is in one state, no two pods hold one, a pod
holds one at most, and an open trial is in one launch at most."""

import tempfile
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from store_session import GRADERS, digest, passed, running_matrix, violations

from grading.store import (
    StateError,
    Store,
    StoreError,
    claiming,
    journaling,
    launching,
    losing,
    matrices,
    placing,
    reading,
)
from grading.store.claiming import Pod, PodClaim, Settling, Stop
from grading.store.delivering import Delivery, Quarantined, deliver, quarantine

PODS = [Pod(f"uid-{number}", f"pod-{number}", "node", "cells") for number in range(4)]
REASONS = ["disrupted", "pod_deleted", "not_started", "node_lost"]


class LaunchingMachine(RuleBasedStateMachine):
    launches = Bundle("launches")
    claims = Bundle("claims")

    @initialize(per_pod=st.integers(1, 2))
    def open(self, per_pod: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="store")
        self.store = Store.open(Path(self.folder.name) / "store.db")
        self.matrix_id = running_matrix(self.store, cases=1, repetitions=3)
        placing.place(self.store, self.matrix_id, placing.Placement(trials_per_pod=per_pod))
        self.cells = [cell.id for cell in reading.cells(self.store, self.matrix_id)]
        self.lines: dict[int, int] = {}
        self.evidence: dict[int, int] = {}

    def state(self) -> str:
        return reading.find_matrix(self.store, self.matrix_id).state

    @rule(target=launches, cell=st.integers(0, 1), limit=st.sampled_from([None, 1, 2]))
    def plan(self, cell: int, limit: int | None) -> Any:
        earlier = [one for one in launching.of_matrix(self.store, self.matrix_id) if one.cell_id == self.cells[cell]]
        planned = launching.plan(self.store, self.matrix_id, self.cells[cell], limit=limit)
        if planned is None:
            return multiple()
        assert planned.generation == len(earlier) + 1
        assert self.state() == "running"
        of_indexes = launching.trials(self.store, planned.id)
        assert sorted(of_indexes) == list(range(planned.completions))
        assert limit is None or planned.completions <= limit
        return planned

    @rule(one=launches)
    def created(self, one: launching.Launch) -> None:
        try:
            launching.created(self.store, one.id, f"uid-of-{one.job}")
        except StateError:
            assert launching.find(self.store, one.id).state == "ended"

    @rule(target=claims, one=launches, index=st.integers(0, 2), pod=st.sampled_from(PODS))
    def claim(self, one: launching.Launch, index: int, pod: Pod) -> Any:
        if index >= one.completions:
            return multiple()
        before = {held.attempt_id: held for held in claiming.held(self.store)}
        if any(held.pod_uid == pod.uid and (held.launch_id, held.launch_index) != (one.id, index)
               for held in before.values()):  # fmt: skip
            return multiple()  # a pod is of one index for all its life
        found = claiming.claim(self.store, one.id, index, pod, lease_seconds=60)
        if isinstance(found, Settling):
            assert any((held.launch_id, held.launch_index) == (one.id, index) for held in before.values())
        if not isinstance(found, PodClaim):
            assert isinstance(found, Stop | Settling)
            assert {held.attempt_id for held in claiming.held(self.store)} == set(before)
            return multiple()
        if found.attempt_id in before:
            assert before[found.attempt_id].pod_uid == pod.uid
            return multiple()
        assert self.state() == "running"
        assert launching.find(self.store, one.id).state != "ended"
        return found, pod

    @rule(one=claims, lines=st.integers(1, 3), gap=st.booleans())
    def journal(self, one: tuple[PodClaim, Pod], lines: int, gap: bool) -> None:
        claim, pod = one
        stored = self.lines.get(claim.attempt_id, 0)
        first = stored + 1 if gap else max(0, stored - 1)
        sent = [b"line %d" % number for number in range(first, first + lines)]
        holds = claim.attempt_id in {held.attempt_id for held in claiming.held(self.store)}
        try:
            journaling.journal(self.store, claim.attempt_id, pod.uid, first, sent)
        except StateError:
            assert not holds
        except StoreError:
            assert gap
        else:
            assert holds
            assert not gap
            self.lines[claim.attempt_id] = max(stored, first + lines)

    @rule(one=claims, graded=st.booleans())
    def deliver(self, one: tuple[PodClaim, Pod], graded: bool) -> None:
        attempt_id = one[0].attempt_id
        holds = attempt_id in {held.attempt_id for held in claiming.held(self.store)}
        sent = Delivery(attempt_id, None, digest(1), digest(attempt_id), b"ledger", 1, 2)
        (outcome,) = deliver(self.store, [sent], grades=[passed(attempt_id)] if graded else [], graders=GRADERS)
        assert outcome in (("accepted",) if holds else ("repeated", "fenced"))
        if outcome == "accepted":
            trial_id = claiming.attempt_of_pod(self.store, attempt_id).trial_id
            assert trial_id not in self.evidence
            self.evidence[trial_id] = attempt_id

    @rule(one=claims, reason=st.sampled_from(REASONS))
    def lose(self, one: tuple[PodClaim, Pod], reason: str) -> None:
        try:
            losing.lose(self.store, [losing.Lost(one[0].attempt_id, reason)])
        except StateError:
            assert reason == "not_started"

    @rule(one=claims)
    def quarantine(self, one: tuple[PodClaim, Pod]) -> None:
        quarantine(self.store, [Quarantined(one[0].attempt_id, None, "hash_mismatch", "changed", b"x")])

    @rule(one=launches, index=st.integers(0, 2))
    def release(self, one: launching.Launch, index: int) -> None:
        if index < one.completions:
            launching.release(self.store, one.id, index)
            assert launching.release(self.store, one.id, index) == 0

    @rule(one=launches)
    def end(self, one: launching.Launch) -> None:
        launching.end(self.store, one.id, "over")
        launching.job_deleted(self.store, one.id)
        assert one.id not in {left.id for left in launching.unfinished(self.store)}

    @rule(place=st.integers(0, 1))
    def fail_cell(self, place: int) -> None:
        try:
            losing.fail_cell(self.store, self.cells[place], "no such image")
        except StateError:
            assert reading.cells(self.store, self.matrix_id)[place].state == "done"

    @rule(move=st.sampled_from([matrices.pause, matrices.resume]))
    def move(self, move: Any) -> None:
        before = self.state()
        try:
            move(self.store, self.matrix_id)
        except StateError:
            assert self.state() == before

    @invariant()
    def nothing_contradicts(self) -> None:
        assert violations(self.store) == []
        held = claiming.held(self.store)
        assert len({one.trial_id for one in held}) == len(held)
        assert len({one.pod_uid for one in held}) == len(held)
        leased = {one.id for one in reading.trials(self.store, self.matrix_id, states=["leased"])}
        assert {one.trial_id for one in held} == leased
        for one in reading.trials(self.store, self.matrix_id):
            assert one.evidence_attempt_id == self.evidence.get(one.id)
        with self.store.reading() as connection:
            twice = connection.execute(
                sa.text(
                    "SELECT launch_trial.trial_id FROM launch_trial JOIN launch ON launch.id = launch_trial.launch_id "
                    "JOIN trial ON trial.id = launch_trial.trial_id "
                    "WHERE launch.state <> 'ended' AND NOT launch_trial.released AND trial.state = 'open' "
                    "GROUP BY launch_trial.trial_id HAVING count(*) > 1"
                )
            ).all()
            assert twice == []
            kept = dict(
                connection.execute(sa.text("SELECT attempt_id, count(*) FROM journal_line GROUP BY attempt_id")).all()
            )
        # What was told is there until the ledger is.
        delivered = set(self.evidence.values())
        assert kept == {attempt: count for attempt, count in self.lines.items() if attempt not in delivered}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()


LaunchingMachine.TestCase.settings = settings(
    max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
TestLaunching = LaunchingMachine.TestCase
