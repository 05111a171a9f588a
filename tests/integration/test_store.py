"""What the store holds to, on SQLite and on PostgreSQL alike: each transition, and each refusal of one."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa
from store_session import (
    CONDITIONS,
    GRADERS,
    digest,
    enrolled,
    expire_leases,
    ledger_of,
    passed,
    register_matrix,
    running_matrix,
    violations,
)

from grading.store import NotFound, StateError, Store, StoreError, matrices, reading
from grading.store.delivering import Quarantined, deliver, quarantine
from grading.store.grades import Grade, add_grades
from grading.store.leasing import Claimed, claim, renew, running
from grading.store.losing import Lost, Sealed, fail_cell, lose, seal
from grading.store.owners import Owner, enrol
from grading.store.publishing import acquire_publication, mark_stale, release_publication, renew_publication
from grading.store.registering import NewAssignment, NewCell, NewTrial, register
from grading.store.reusing import reuse


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as opened:
        yield opened
        assert violations(opened) == []


def take(store: Store, matrix_id: int, limit: int = 1, owner: str | None = None) -> list[Claimed]:
    return claim(store, owner or enrolled(store), matrix_id, limit=limit, lease_seconds=60)


def states(store: Store, matrix_id: int) -> list[str]:
    return [one.state for one in reading.trials(store, matrix_id)]


def attempt_states(store: Store, trial_id: int) -> list[tuple[str, str | None, str | None]]:
    return [(one.state, one.reason, one.budget) for one in reading.attempts(store, trial_id)]


def graded(store: Store, matrix_id: int, limit: int = 1000) -> list[Claimed]:
    claimed = take(store, matrix_id, limit)
    deliver(store, [ledger_of(one) for one in claimed])
    add_grades(store, [passed(one.attempt_id) for one in claimed], GRADERS)
    return claimed


# Registering


def test_a_manifest_is_registered_once(store: Store) -> None:
    first = register_matrix(store)
    assert register_matrix(store) == first
    assert reading.counts(store, first) == {"open": 8, "leased": 0, "delivered": 0, "graded": 0, "missing": 0}
    assert reading.manifest(store, first) == b"study"
    assert [(one.condition, one.case_id) for one in reading.cells(store, first)] == [
        ("baseline", "case-0"), ("baseline", "case-1"), ("candidate", "case-0"), ("candidate", "case-1"),
    ]  # fmt: skip
    assert reading.assignments(store, [digest("a0"), digest("zz")]) == {digest("a0"): b"{}"}


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([NewTrial("nobody", "c", 0, 0, "k", "h")], "belongs to no cell"),
        ([NewTrial("case", "c", 0, 0, "k", "h"), NewTrial("case", "c", 0, 1, "k", "h")], "refuses"),
        ([NewTrial("case", "c", 0, 0, "k", "h"), NewTrial("case", "c", 1, 0, "k", "h")], "refuses"),
        ([NewTrial("case", "c", 0, 0, "k", "unknown")], "refuses"),
        ([NewTrial("case", "c", 0, 0, "k\0", "h")], "NUL"),
        ([NewTrial("case", "c", 0, 0, "k\ud800", "h")], "surrogate"),
    ],
)
def test_what_cannot_be_registered_leaves_nothing(store: Store, trials: list[NewTrial], said: str) -> None:
    with pytest.raises(StoreError, match=said):
        register(
            store,
            manifest_hash=digest("m"),
            name="m",
            manifest=b"",
            cells=[NewCell("case", "c", 0, 0)],
            assignments=[NewAssignment("h", b"{}")],
            trials=trials,
        )
    assert reading.matrices(store) == []
    assert reading.assignments(store, ["h"]) == {}


def test_an_assignment_hash_stands_for_one_document(store: Store) -> None:
    register_matrix(store)
    with pytest.raises(StoreError, match="another document"):
        register(
            store, manifest_hash=digest("m"), name="m", manifest=b"", cells=[], trials=[],
            assignments=[NewAssignment(digest("a0"), b"other")],
        )  # fmt: skip


def test_odd_names_come_back_as_they_were(store: Store) -> None:
    odd = ["x" * 200, "<b>&amp;</b>", "'; DROP TABLE trial; --", "Ünï 😀", "{id}", "%s", " "]
    matrix_id = register(
        store,
        manifest_hash=digest("odd"),
        name=odd[1],
        manifest=b"\0\xff",
        cells=[NewCell(one, "c", j, 0) for j, one in enumerate(odd)],
        assignments=[NewAssignment("h", b"\0")],
        trials=[NewTrial(one, "c", 0, j, one, "h") for j, one in enumerate(odd)],
    ).matrix_id
    assert [one.case_id for one in reading.trials(store, matrix_id)] == odd
    assert reading.manifest(store, matrix_id) == b"\0\xff"


# A matrix's states


MOVES: dict[str, Callable[[Store, int], object]] = {
    "start": matrices.start, "pause": matrices.pause, "resume": matrices.resume, "cancel": matrices.cancel,
}  # fmt: skip


@pytest.mark.parametrize(
    ("done", "possible"),
    [
        ([], {"start": True, "cancel": True}),
        (["start"], {"start": False, "pause": True, "resume": False, "cancel": True}),
        (["start", "pause"], {"resume": True, "pause": False, "cancel": True}),
        (["cancel"], {"cancel": False}),
    ],
)
def test_moves_of_a_matrix(store: Store, done: list[str], possible: dict[str, bool]) -> None:
    for number, (name, move) in enumerate(MOVES.items()):
        matrix_id = register_matrix(store, f"m{number}")
        for earlier in done:
            MOVES[earlier](store, matrix_id)
        if name in possible:
            assert move(store, matrix_id) is possible[name], name
        else:
            with pytest.raises(StateError, match=f"cannot {name} it"):
                move(store, matrix_id)


def test_finishing(store: Store) -> None:
    matrix_id = running_matrix(store)
    claimed = take(store, matrix_id, 2)
    deliver(store, [ledger_of(claimed[0])])
    with pytest.raises(StateError, match="6 open, 1 leased, 1 delivered"):
        matrices.finish(store, matrix_id)
    add_grades(store, [passed(claimed[0].attempt_id)], GRADERS)
    deliver(store, [ledger_of(claimed[1])])
    add_grades(store, [passed(claimed[1].attempt_id)], GRADERS)
    graded(store, matrix_id)
    assert {one.state for one in reading.cells(store, matrix_id)} == {"done"}
    assert matrices.finish(store, matrix_id) == "complete"
    assert matrices.finish(store, matrix_id) == "complete"
    with pytest.raises(StateError, match="is complete"):
        take(store, matrix_id)


def test_a_missing_trial_makes_a_matrix_incomplete(store: Store) -> None:
    matrix_id = running_matrix(store)
    broken = reading.cells(store, matrix_id)[0]
    assert fail_cell(store, broken.id, "no such image") == 2
    assert fail_cell(store, broken.id, "another reason") == 0
    graded(store, matrix_id)
    assert matrices.finish(store, matrix_id) == "incomplete"
    first, *others = reading.cells(store, matrix_id)
    assert (first.state, first.reason) == ("failed", "no such image")
    assert {one.state for one in others} == {"done"}
    with pytest.raises(StateError, match="is done"):
        fail_cell(store, others[0].id, "too late")
    assert reading.counts_by_condition(store, matrix_id) == {
        "baseline": {"open": 0, "leased": 0, "delivered": 0, "graded": 2, "missing": 2},
        "candidate": {"open": 0, "leased": 0, "delivered": 0, "graded": 4, "missing": 0},
    }


def test_what_is_leased_when_its_cell_fails_counts_if_it_is_delivered_and_is_missing_if_lost(store: Store) -> None:
    matrix_id = running_matrix(store, cases=1)
    first, _, second, _ = take(store, matrix_id, 4)
    fail_cell(store, first.cell_id, "quota")
    assert deliver(store, [ledger_of(first)]) == ["accepted"]
    assert lose(store, [Lost(second.attempt_id, "runner_killed")]) == ["missing"]


# Leasing


def test_claims_come_in_planned_order_and_never_twice(store: Store) -> None:
    matrix_id = running_matrix(store)
    assert [one.sequence for one in take(store, matrix_id, 3)] == [0, 1, 2]
    rest = take(store, matrix_id, 100)
    assert [one.sequence for one in rest] == [3, 4, 5, 6, 7]
    assert take(store, matrix_id) == []
    assert [one.condition for one in rest] == [CONDITIONS[one.sequence % 2] for one in rest]


def test_claims_of_some_cells_alone(store: Store) -> None:
    matrix_id = running_matrix(store)
    wanted = [one.id for one in reading.cells(store, matrix_id) if one.case_id == "case-1"]
    claimed = claim(store, enrolled(store), matrix_id, limit=100, lease_seconds=60, only=wanted)
    assert [one.sequence for one in claimed] == [2, 3, 6, 7]


def test_only_an_enrolled_owner_claims_from_a_running_matrix(store: Store) -> None:
    matrix_id = register_matrix(store)
    with pytest.raises(StateError, match="registered"):
        take(store, matrix_id)
    matrices.start(store, matrix_id)
    with pytest.raises(StoreError, match="never enrolled"):
        take(store, matrix_id, owner="stranger")
    with pytest.raises(NotFound):
        take(store, 999)
    with pytest.raises(StoreError, match="above zero"):
        take(store, matrix_id, 0)
    matrices.pause(store, matrix_id)
    with pytest.raises(StateError, match="paused"):
        take(store, matrix_id)


def test_strict_order_waits_for_the_one_before(store: Store) -> None:
    matrix_id = running_matrix(store)
    mine, others = enrolled(store), enrolled(store)

    def strictly(owner: str) -> list[int]:
        claimed = claim(store, owner, matrix_id, limit=1, lease_seconds=60, strict_order=True)
        return [one.sequence for one in claimed]

    assert strictly(mine) == [0]
    assert strictly(others) == []
    assert strictly(mine) == [1]
    expire_leases(store)
    assert strictly(others) == [0]
    assert strictly(others) == [1]
    assert strictly(mine) == []


def test_an_expired_lease_permits_another_claim_and_fences_the_late_one(store: Store) -> None:
    matrix_id = running_matrix(store, cases=1, repetitions=1)
    early = take(store, matrix_id, 2)
    assert running(store, [early[0].attempt_id]) == {early[0].attempt_id}
    assert [one.id for one in reading.abandoned(store, matrix_id)] == []
    expire_leases(store)
    assert [one.id for one in reading.abandoned(store, matrix_id)] == [one.attempt_id for one in early]
    # Expiry alone takes nothing away: nobody has claimed the second one.
    late = take(store, matrix_id, 1)
    assert [(one.trial_id, one.number) for one in late] == [(early[0].trial_id, 2)]
    assert deliver(store, [ledger_of(one) for one in early]) == ["fenced", "accepted"]
    assert attempt_states(store, early[0].trial_id) == [
        ("fenced", "lease_expired", "uncharged"),
        ("leased", None, None),
    ]
    assert reading.ledger_document(store, early[0].attempt_id) == ledger_of(early[0]).document
    assert states(store, matrix_id) == ["leased", "delivered"]
    assert deliver(store, [ledger_of(late[0])]) == ["accepted"]
    evidence = [one.ledger for one in reading.trials(store, matrix_id, ledgers=True)]
    assert evidence == [ledger_of(late[0]).document, ledger_of(early[1]).document]
    assert running(store, [early[0].attempt_id]) == frozenset()


def test_renewing_keeps_a_lease_and_says_what_is_held(store: Store) -> None:
    matrix_id = running_matrix(store)
    owner = enrolled(store)
    first, second = take(store, matrix_id, 2, owner)
    expire_leases(store)
    other = take(store, matrix_id, 1)
    assert other[0].trial_id == first.trial_id
    assert renew(store, owner, lease_seconds=60) == {second.attempt_id}
    assert [one.sequence for one in take(store, matrix_id, 1)] == [2]


def test_a_dead_owner_on_this_machine_is_known_at_once_elsewhere_its_lease_must_expire(store: Store) -> None:
    matrix_id = running_matrix(store, cases=1, repetitions=1)
    elsewhere = replace(Owner.this_process(), boot="another", process_start=1)
    enrol(store, elsewhere)
    take(store, matrix_id, 1, elsewhere.id)
    lost = take(store, matrix_id, 1, enrolled(store, dead=True))
    again = take(store, matrix_id, 2)
    assert [(one.trial_id, one.number) for one in again] == [(lost[0].trial_id, 2)]
    # The lost one had not begun: it is no attempt that counts.
    assert attempt_states(store, lost[0].trial_id)[0] == ("fenced", "lease_expired", "none")


def test_two_claimers_at_once_never_share_a_trial(store: Store) -> None:
    matrix_id = running_matrix(store, cases=10, repetitions=10)
    claimed: list[Claimed] = []
    errors: list[BaseException] = []
    together = threading.Barrier(4)

    def runner() -> None:
        try:
            owner = enrolled(store)
            together.wait()
            while found := claim(store, owner, matrix_id, limit=7, lease_seconds=60):
                claimed.extend(found)
                assert set(deliver(store, [ledger_of(one) for one in found])) == {"accepted"}
                add_grades(store, [passed(one.attempt_id) for one in found], GRADERS)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=runner) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    # A claimer that skipped what another one was about to release may have seen nothing left.
    claimed += graded(store, matrix_id)
    assert sorted(one.sequence for one in claimed) == list(range(200))
    assert {one.number for one in claimed} == {1}
    assert matrices.finish(store, matrix_id) == "complete"
    assert {one.state for one in reading.cells(store, matrix_id)} == {"done"}


def test_renewals_deliveries_and_losses_at_once_do_not_lock_each_other_out(store: Store) -> None:
    matrix_id = running_matrix(store, cases=10, repetitions=5)
    owner = enrolled(store)
    errors: list[BaseException] = []
    done = threading.Event()

    def heart() -> None:
        try:
            while not done.is_set():
                renew(store, owner, lease_seconds=60)
        except BaseException as error:
            errors.append(error)

    beating = threading.Thread(target=heart)
    beating.start()
    try:
        while found := claim(store, owner, matrix_id, limit=10, lease_seconds=60):
            running(store, [one.attempt_id for one in found])
            lost = [one for one in found if one.sequence % 7 == 0 and one.number == 1]
            lose(store, [Lost(one.attempt_id, "pod_deleted") for one in lost])
            deliver(store, [ledger_of(one) for one in reversed(found) if one not in lost])
    finally:
        done.set()
        beating.join()
    assert errors == []
    assert states(store, matrix_id) == ["delivered"] * 100


# Delivering


def test_the_same_ledger_again_is_quiet_and_another_one_an_incident(store: Store) -> None:
    matrix_id = running_matrix(store)
    claimed = take(store, matrix_id, 2)
    first = ledger_of(claimed[0])
    other = ledger_of(claimed[0], "other")
    assert deliver(store, [first, first, other]) == ["accepted", "repeated", "conflicting"]
    assert deliver(store, [other, first]) == ["conflicting", "repeated"]
    assert reading.ledger_document(store, claimed[0].attempt_id) == first.document
    kept = list(reading.incidents(store, matrix_id))
    assert [(one.kind, one.attempt_id, one.document) for one in kept] == [
        ("conflicting_ledger", claimed[0].attempt_id, other.document)
    ] * 2
    trial = reading.find_trial(store, claimed[0].trial_id)
    assert (trial.state, trial.started, trial.ended, trial.ledger) == ("delivered", 10, 20, first.document)


def test_a_wrong_secret_and_an_unknown_attempt_are_incidents(store: Store) -> None:
    matrix_id = running_matrix(store)
    one, another = (ledger_of(claimed) for claimed in take(store, matrix_id, 2))
    wrong = replace(one, secret=another.secret)
    odd = replace(one, secret="\ud800")
    unknown = replace(one, attempt_id=10**9)
    assert deliver(store, [wrong, odd, unknown, one]) == ["bad_secret", "bad_secret", "unknown", "accepted"]
    assert [kept.kind for kept in reading.incidents(store)] == ["bad_secret", "bad_secret", "unknown_attempt"]
    identified = replace(another, secret=None)
    assert deliver(store, [identified]) == ["accepted"]


def test_the_store_keeps_no_secret(store: Store) -> None:
    (one,) = take(store, running_matrix(store))
    with store.reading() as connection:
        stored = connection.execute(sa.text("SELECT secret_hash FROM attempt")).scalar_one()
    assert one.secret.encode() not in bytes(stored)
    assert len(one.secret) >= 32


def test_what_is_no_ledger_is_quarantined_and_its_trial_tried_twice(store: Store) -> None:
    matrix_id = running_matrix(store, cases=1, repetitions=1)
    for outcome in ("open", "missing"):
        (claimed,) = claim(store, enrolled(store), matrix_id, limit=1, lease_seconds=60)
        bad = Quarantined(claimed.attempt_id, claimed.secret, "ledger_malformed", "no JSON", b"\xff")
        assert quarantine(store, [replace(bad, secret="guess")]) == ["bad_secret"]
        assert quarantine(store, [bad, bad]) == [outcome, "kept"]
    assert states(store, matrix_id) == ["missing", "open"]
    assert attempt_states(store, claimed.trial_id) == [("lost", "ledger_malformed", "ledger_bad")] * 2
    assert [one.document for one in reading.incidents(store)] == [b"\xff"] * 6


def test_quarantine_takes_nothing_from_what_was_delivered(store: Store) -> None:
    (claimed,) = take(store, running_matrix(store))
    deliver(store, [ledger_of(claimed)])
    bad = Quarantined(claimed.attempt_id, claimed.secret, "hash_mismatch", "changed", b"x")
    assert quarantine(store, [bad, replace(bad, attempt_id=10**9)]) == ["kept", "unknown"]
    assert reading.find_trial(store, claimed.trial_id).ledger == ledger_of(claimed).document


# Losing


@pytest.mark.parametrize(
    ("reasons", "outcomes"),
    [
        (["runner_killed"] * 20, ["open"] * 19 + ["missing"]),
        (["pod_deleted"] * 3, ["open"] * 2 + ["missing"]),
        (["provider_unavailable"] * 3, ["open"] * 2 + ["missing"]),
        (["a meteorite"] * 2, ["open", "missing"]),
        (["replay_mismatch"] * 2, ["open", "missing"]),
        (["not_started"] * 25 + ["pod_deleted"], ["open"] * 26),
        (["runner_killed"] * 5 + ["pod_deleted"] * 3, ["open"] * 7 + ["missing"]),
        (["pod_deleted", "a meteorite"], ["open", "missing"]),
    ],
)
def test_how_often_a_trial_is_tried(store: Store, reasons: list[str], outcomes: list[str]) -> None:
    matrix_id = running_matrix(store, cases=1, repetitions=1)
    owner = enrolled(store)
    only = [reading.cells(store, matrix_id)[0].id]
    for reason, outcome in zip(reasons, outcomes, strict=True):
        (claimed,) = claim(store, owner, matrix_id, limit=1, lease_seconds=60, only=only)
        assert lose(store, [Lost(claimed.attempt_id, reason)]) == [outcome]
    assert len(reading.attempts(store, claimed.trial_id)) == len(reasons)
    meteorites = [one.detail for one in reading.incidents(store) if one.kind == "unknown_loss"]
    assert meteorites == [reason for reason in reasons if reason == "a meteorite"]


def test_leases_that_expire_are_not_claimed_for_ever(store: Store) -> None:
    matrix_id = running_matrix(store, cases=1, repetitions=1)
    owner = enrolled(store)
    only = [reading.cells(store, matrix_id)[0].id]
    for _ in range(20):
        (claimed,) = claim(store, owner, matrix_id, limit=1, lease_seconds=60, only=only)
        running(store, [claimed.attempt_id])
        expire_leases(store)
    assert claim(store, owner, matrix_id, limit=1, lease_seconds=60, only=only) == []
    assert states(store, matrix_id) == ["missing", "open"]
    assert reading.cells(store, matrix_id)[0].state == "done"


def test_a_lost_attempt_keeps_its_journal_and_its_late_ledger(store: Store) -> None:
    matrix_id = running_matrix(store)
    (claimed,) = take(store, matrix_id)
    running(store, [claimed.attempt_id])
    with pytest.raises(StateError, match="has begun"):
        lose(store, [Lost(claimed.attempt_id, "not_started")])
    with pytest.raises(NotFound):
        lose(store, [Lost(claimed.attempt_id, "pod_deleted"), Lost(10**9, "pod_deleted")])
    loss = Lost(claimed.attempt_id, "pod_deleted", after_consequential_call=True, journal=b"calls")
    assert lose(store, [loss, loss]) == ["open", "repeated"]
    assert lose(store, [replace(loss, journal=b"others")]) == ["repeated"]
    assert reading.journal_document(store, claimed.attempt_id) == b"calls"
    assert deliver(store, [ledger_of(claimed)]) == ["fenced"]
    assert states(store, matrix_id)[0] == "open"
    assert reading.discarded_after_consequential_call(store, matrix_id) == {"baseline": 1}


def test_a_fenced_attempt_still_leaves_its_journal(store: Store) -> None:
    matrix_id = running_matrix(store)
    (claimed,) = take(store, matrix_id)
    running(store, [claimed.attempt_id])
    expire_leases(store)
    take(store, matrix_id)
    late = Lost(claimed.attempt_id, "runner_killed", after_consequential_call=True, journal=b"calls")
    assert lose(store, [late]) == ["stale"]
    assert reading.journal_document(store, claimed.attempt_id) == b"calls"
    assert reading.discarded_after_consequential_call(store, matrix_id) == {"baseline": 1}
    assert states(store, matrix_id)[0] == "leased"


def test_a_violation_in_a_journal_becomes_the_evidence(store: Store) -> None:
    matrix_id = running_matrix(store)
    (claimed,) = take(store, matrix_id)
    sealed = Sealed(claimed.attempt_id, "recorder_killed", digest("c"), digest("l"), b"made of it", b"calls", 1, 2)
    assert seal(store, [sealed, sealed]) == ["sealed", "repeated"]
    assert deliver(store, [ledger_of(claimed)]) == ["conflicting"]
    assert lose(store, [Lost(claimed.attempt_id, "recorder_killed")]) == ["repeated"]
    add_grades(store, [passed(claimed.attempt_id)], GRADERS)
    trial = reading.find_trial(store, claimed.trial_id)
    assert (trial.state, trial.ledger) == ("graded", b"made of it")
    # It is the evidence, not discarded.
    assert reading.discarded_after_consequential_call(store, matrix_id) == {}
    (other,) = take(store, matrix_id)
    deliver(store, [ledger_of(other)])
    assert seal(store, [replace(sealed, attempt_id=other.attempt_id)]) == ["stale"]


# Grades


def test_a_trial_is_graded_when_every_grader_has_spoken(store: Store) -> None:
    matrix_id = running_matrix(store)
    (claimed,) = take(store, matrix_id)
    both = [*GRADERS, ("semantic", "sha256:j1")]
    with pytest.raises(StateError, match="no ledger"):
        add_grades(store, [passed(claimed.attempt_id)], both)
    deliver(store, [ledger_of(claimed)])
    assert add_grades(store, [passed(claimed.attempt_id)], both) == ["added"]
    assert states(store, matrix_id)[0] == "delivered"
    semantic = Grade(claimed.attempt_id, "semantic", "sha256:j1", "unscored", None, "{}")
    assert add_grades(store, [semantic, semantic], both) == ["added", "repeated"]
    assert states(store, matrix_id)[0] == "graded"
    assert reading.grades_of(store, claimed.attempt_id) == [passed(claimed.attempt_id), semantic]


def test_grades_are_only_ever_added(store: Store) -> None:
    matrix_id = running_matrix(store)
    (claimed,) = graded(store, matrix_id, 1)
    changed = replace(passed(claimed.attempt_id), verdict="failed")
    assert add_grades(store, [changed, passed(claimed.attempt_id)], GRADERS) == ["conflicting", "repeated"]
    newer = replace(changed, version="sha256:v2")
    assert add_grades(store, [newer], [("structural", "sha256:v2")]) == ["added"]
    assert reading.grades_of(store, claimed.attempt_id) == [passed(claimed.attempt_id), newer]
    assert next(reading.trials(store, matrix_id, grades=True)).grades == (newer,)
    assert [one.kind for one in reading.incidents(store)] == ["conflicting_grade"]
    with pytest.raises(NotFound):
        add_grades(store, [passed(10**9)], GRADERS)
    with pytest.raises(StateError, match="without graders"):
        add_grades(store, [newer], [])


# Reuse


def test_equal_trials_are_taken_over_once_each(store: Store) -> None:
    old = running_matrix(store, "old")
    new = register_matrix(store, "new", changed="candidate", repetitions=3)
    ran = {one.sequence: one for one in graded(store, old)}
    pairs = reuse(store, new, old)
    assert [(one.reused_trial_id, one.reused_from) for one in pairs] == [
        (ran[place].trial_id, ran[place].attempt_id) for place in (0, 2, 4, 6)
    ]
    assert reuse(store, new, old) == []
    assert states(store, new) == ["delivered", "open"] * 4 + ["open"] * 4
    taken = [one for one in reading.trials(store, new, ledgers=True) if one.reused_from is not None]
    assert [one.ledger for one in taken] == [ledger_of(ran[place]).document for place in (0, 2, 4, 6)]
    assert add_grades(store, [passed(one.attempt_id) for one in pairs], GRADERS) == ["added"] * 4
    # What was taken over may be taken over again: it is still the first one's ledger.
    newest = register_matrix(store, "newest", repetitions=3)
    assert {one.reused_from for one in reuse(store, newest, new)} == {one.reused_from for one in pairs}
    with pytest.raises(StateError, match="its own"):
        reuse(store, new, new)
    matrices.cancel(store, newest)
    with pytest.raises(StateError, match="cancelled"):
        reuse(store, newest, old)


def test_one_execution_never_stands_for_both_of_two_equal_arms(store: Store) -> None:
    def equal_arms(name: str, conditions: list[str]) -> int:
        matrix_id = register(
            store,
            manifest_hash=digest(name),
            name=name,
            manifest=b"",
            cells=[NewCell("case", one, 0, place) for place, one in enumerate(conditions)],
            assignments=[NewAssignment("h", b"{}")],
            trials=[NewTrial("case", one, 0, place, "the same key", "h") for place, one in enumerate(conditions)],
        ).matrix_id
        matrices.start(store, matrix_id)
        return matrix_id

    old, new = equal_arms("old", ["c"]), equal_arms("new", ["c", "d"])
    graded(store, old)
    assert len(reuse(store, new, old)) == 1
    assert reuse(store, new, old) == []
    assert states(store, new) == ["delivered", "open"]


# Publishing


def test_one_publisher_at_a_time_and_no_change_is_forgotten(store: Store) -> None:
    matrix_id = running_matrix(store)
    mine, others = enrolled(store), enrolled(store)
    held = acquire_publication(store, matrix_id, "phoenix", mine, lease_seconds=60)
    assert held is not None
    assert held.was == "stale"
    assert acquire_publication(store, matrix_id, "phoenix", others, lease_seconds=60) is None
    assert acquire_publication(store, matrix_id, "elsewhere", others, lease_seconds=60) is not None
    graded(store, matrix_id, 1)
    assert release_publication(store, held, published=True) == "stale"
    assert release_publication(store, held, published=True) is None
    again = acquire_publication(store, matrix_id, "phoenix", others, lease_seconds=60)
    assert again is not None
    assert renew_publication(store, again, lease_seconds=60)
    assert release_publication(store, again, published=True, detail="dataset 1") == "published"
    mark_stale(store, matrix_id)
    assert [(one.target, one.state) for one in reading.publications(store, matrix_id)] == [
        ("phoenix", "stale"), ("elsewhere", "publishing"),
    ]  # fmt: skip


def test_a_publisher_that_is_gone_holds_nothing_for_ever(store: Store) -> None:
    matrix_id = running_matrix(store)
    mine = enrolled(store)
    dead = acquire_publication(store, matrix_id, "phoenix", enrolled(store, dead=True), lease_seconds=60)
    first = acquire_publication(store, matrix_id, "phoenix", mine, lease_seconds=60)
    assert dead is not None
    assert first is not None
    assert not renew_publication(store, dead, lease_seconds=60)
    expire_leases(store)
    assert acquire_publication(store, matrix_id, "phoenix", enrolled(store), lease_seconds=60) is not None
    assert not renew_publication(store, first, lease_seconds=60)
    assert release_publication(store, first, published=True) is None


# Reading


def test_finding_a_matrix(store: Store) -> None:
    first, second = register_matrix(store, "one"), register_matrix(store, "onf")
    assert reading.find_matrix(store, first).name == "one"
    assert reading.find_matrix(store, "onf").id == second
    assert reading.find_matrix(store, "sha256:6f6e65").id == first
    assert reading.find_matrix(store, "6f6e66").id == second
    with pytest.raises(NotFound, match="several"):
        reading.find_matrix(store, "6f6e")
    for unknown in ("nothing", "99", "sha256:", "", "9" * 30):
        with pytest.raises(NotFound, match="no matrix"):
            reading.find_matrix(store, unknown)
    assert [one.name for one in reading.matrices(store)] == ["one", "onf"]


def test_trials_are_read_in_order_whatever_the_batch(store: Store) -> None:
    matrix_id = running_matrix(store, cases=3)
    graded(store, matrix_id, 5)
    for batch in (1, 2, 5, 12, 100):
        read = list(reading.trials(store, matrix_id, batch=batch, ledgers=True, grades=True))
        assert [one.sequence for one in read] == list(range(12))
        assert [len(one.grades) for one in read] == [1] * 5 + [0] * 7
    assert [one.sequence for one in reading.trials(store, matrix_id, states=["open"])] == list(range(5, 12))
    with pytest.raises(NotFound):
        reading.find_trial(store, 10**9)
    with pytest.raises(NotFound):
        reading.ledger_document(store, 10**9)
    assert list(reading.owners(store))


@pytest.mark.parametrize("batch", [1, 4, 5, 12, 100])
def test_outcomes_are_those_of_the_trials_whatever_the_batch(store: Store, batch: int) -> None:
    other = running_matrix(store, "other", cases=3)
    graded(store, other)
    matrix_id = running_matrix(store, cases=3, repetitions=3)
    claimed = graded(store, matrix_id, 9)
    newer = [replace(passed(one.attempt_id, "sha256:v2"), verdict="failed") for one in claimed[:3]]
    add_grades(store, [*newer, Grade(claimed[4].attempt_id, "semantic", "sha256:j1", "unscored", None, "{}")], GRADERS)
    deliver(store, [ledger_of(one) for one in take(store, matrix_id, 2)])
    take(store, matrix_id)

    counted: Counter[tuple[object, ...]] = Counter()
    met: list[tuple[str, str]] = []
    for one in reading.outcomes(store, matrix_id, "structural", batch=batch):
        counted[one.condition, one.case_id, one.state, one.verdict, one.task_completed, one.checks] += one.trials
        met.append((one.condition, one.case_id))
    expected: Counter[tuple[object, ...]] = Counter()
    cells: list[tuple[str, str]] = []
    for trial in reading.trials(store, matrix_id, grades=True):
        of = next((one for one in trial.grades if one.grader == "structural"), None)
        grade = (of.verdict, of.task_completed, of.checks) if of is not None else (None, None, None)
        expected[trial.condition, trial.case_id, trial.state, *grade] += 1
        cells.append((trial.condition, trial.case_id))
    assert counted == expected
    assert counted.total() == 18
    assert list(dict.fromkeys(met)) == list(dict.fromkeys(cells))
