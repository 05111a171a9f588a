"""Launches of a matrix on a cluster: a trial is held by one pod at most, and what a pod did is never forgotten."""

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from store_session import GRADERS, digest, passed, register_matrix, running_matrix, violations

from grading.store import (
    NotFound,
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
from grading.store.delivering import Delivery, deliver
from grading.store.tables import trial

A, B = Pod("uid-a", "pod-a", "node-1", "cells"), Pod("uid-b", "pod-b", "node-2", "cells")
BEGIN = b'{"attempt":%d,"begin":{"assignment":"' + digest("a0").encode() + b'","started":5}}'
CALL = b'{"attempt":%d,"call":{"tool":"refund","arguments":{},"result":null},"started":6,"ended":7}'


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as opened:
        yield opened


def placed(store: Store, *, per_pod: int = 1, repetitions: int = 3) -> tuple[int, int]:
    """A running matrix on the cluster, and its first cell."""
    matrix_id = running_matrix(store, repetitions=repetitions)
    placing.place(store, matrix_id, placing.Placement(trials_per_pod=per_pod))
    return matrix_id, reading.cells(store, matrix_id)[0].id


def launched(store: Store, matrix_id: int, cell_id: int, limit: int | None = None) -> launching.Launch:
    planned = launching.plan(store, matrix_id, cell_id, limit=limit)
    assert planned is not None
    launching.created(store, planned.id, f"job-{planned.generation}")
    return planned


def claimed(store: Store, launch_id: str, index: int = 0, pod: Pod = A) -> PodClaim:
    found = claiming.claim(store, launch_id, index, pod, lease_seconds=60)
    assert isinstance(found, PodClaim), found
    return found


def ledger(attempt_id: int, body: str = "ledger") -> Delivery:
    return Delivery(attempt_id, None, digest(1), digest(f"{attempt_id}{body.encode().hex()}"), body.encode(), 10, 20)


def test_a_launch_has_the_open_trials_of_its_cell_once(store: Store) -> None:
    matrix_id, cell_id = placed(store, per_pod=2)
    planned = launching.plan(store, matrix_id, cell_id)
    assert planned is not None
    digits = b"study".hex()[:10]
    assert (planned.generation, planned.job, planned.completions) == (1, f"cw-{digits}-{cell_id}-g1", 2)
    assert (planned.case_id, planned.condition, planned.state) == ("case-0", "baseline", "planned")
    assert [len(trials) for trials in launching.trials(store, planned.id).values()] == [2, 1]
    assert launching.plan(store, matrix_id, cell_id) is None
    assert launching.unfinished(store) == [planned]


def test_a_limit_leaves_trials_to_the_next_generation(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    first, second = launched(store, matrix_id, cell_id, 2), launched(store, matrix_id, cell_id)
    assert (first.completions, second.completions, second.generation) == (2, 1, 2)
    of_both = [one for launch in (first, second) for one in launching.trials(store, launch.id).values()]
    assert len({trial for one in of_both for trial in one}) == 3
    assert launching.plan(store, matrix_id, cell_id, limit=0) is None


def test_nothing_is_planned_that_cannot_run(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    with pytest.raises(NotFound, match="no cell 999"):
        launching.plan(store, matrix_id, 999)
    other = register_matrix(store, "other")
    matrices.start(store, other)
    with pytest.raises(StateError, match="not placed"):
        launching.plan(store, other, reading.cells(store, other)[0].id)
    losing.fail_cell(store, cell_id, "no such image")
    assert launching.plan(store, matrix_id, cell_id) is None
    matrices.pause(store, matrix_id)
    assert launching.plan(store, matrix_id, reading.cells(store, matrix_id)[1].id) is None


def test_a_pod_that_asks_again_is_handed_the_same(store: Store) -> None:
    matrix_id, cell_id = placed(store, per_pod=3)
    launch = launched(store, matrix_id, cell_id)
    first = claimed(store, launch.id)
    assert (first.number, first.repetition, first.case_id, first.condition) == (1, 0, "case-0", "baseline")
    assert first.more
    assert claimed(store, launch.id) == first
    assert [(one.attempt_id, one.pod_uid, one.pod_name, one.node, one.state) for one in claiming.held(store)] == [
        (first.attempt_id, "uid-a", "pod-a", "node-1", "leased")
    ]
    matrices.pause(store, matrix_id)
    assert claimed(store, launch.id) == first, "what was handed out before a pause may be run"
    matrices.cancel(store, matrix_id)
    assert isinstance(claiming.claim(store, launch.id, 0, A, lease_seconds=60), Stop)


def test_an_index_runs_its_trials_and_stops(store: Store) -> None:
    matrix_id, cell_id = placed(store, per_pod=2, repetitions=2)
    launch = launched(store, matrix_id, cell_id)
    said = []
    for repetition in (0, 1):
        one = claimed(store, launch.id)
        said.append(one.more)
        assert one.repetition == repetition
        assert deliver(store, [ledger(one.attempt_id)], grades=[passed(one.attempt_id)], graders=GRADERS) == [
            "accepted"
        ]
    assert said == [True, False]
    assert claiming.claim(store, launch.id, 0, A, lease_seconds=60) == Stop("the cell is done")
    assert launching.unsettled_indexes(store, [launch.id]) == {launch.id: frozenset()}


def test_another_pod_waits_until_the_first_is_settled(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    first = claimed(store, launch.id)
    assert claiming.claim(store, launch.id, 0, B, lease_seconds=60) == Settling()
    losing.lose(store, [losing.Lost(first.attempt_id, "pod_deleted")])
    second = claimed(store, launch.id, pod=B)
    assert (second.number, second.repetition) == (2, 0)
    assert deliver(store, [ledger(first.attempt_id)]) == ["fenced"]


def test_pods_that_ask_at_once_hold_each_trial_once(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    answers: list[object] = []

    def ask(number: int) -> None:
        pod = Pod(f"uid-{number}", f"pod-{number}", "node")
        answers.append(claiming.claim(store, launch.id, 0, pod, lease_seconds=60))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(one).__name__ for one in answers) == ["PodClaim", *["Settling"] * 7]
    assert len(claiming.held(store)) == 1


def test_a_pod_that_asks_after_it_began_waits_for_what_it_did_to_be_settled(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    one = claimed(store, launch.id)
    journaling.journal(store, one.attempt_id, A.uid, 0, [BEGIN % one.attempt_id])
    assert claiming.held(store)[0].state == "running"
    assert claiming.claim(store, launch.id, 0, A, lease_seconds=60) == Settling()


def test_a_released_index_stops_and_its_trial_runs_in_a_further_generation(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    one = claimed(store, launch.id, 1)
    losing.lose(store, [losing.Lost(one.attempt_id, "node_lost")])
    assert (launching.release(store, launch.id, 1), launching.release(store, launch.id, 1)) == (1, 0)
    assert claiming.claim(store, launch.id, 1, A, lease_seconds=60) == Stop("the index was given up")
    further = launched(store, matrix_id, cell_id)
    assert (further.generation, further.completions) == (2, 1)
    again = claimed(store, further.id, pod=B)
    assert (again.number, again.repetition) == (2, one.repetition)
    with pytest.raises(NotFound, match="no index 3, only 3"):
        launching.release(store, launch.id, 3)


def test_an_ended_launch_hands_out_nothing_more(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    one = claimed(store, launch.id)
    with pytest.raises(StateError, match="has not ended"):
        launching.job_deleted(store, launch.id)
    assert (launching.end(store, launch.id, "quota"), launching.end(store, launch.id)) == (True, False)
    assert claiming.claim(store, launch.id, 1, B, lease_seconds=60) == Stop("the launch has ended")
    further = launched(store, matrix_id, cell_id)
    assert further.completions == 2, "what a pod holds is not open"
    assert deliver(store, [ledger(one.attempt_id)]) == ["accepted"]
    launching.job_deleted(store, launch.id)
    launching.job_deleted(store, launch.id)
    assert [one.id for one in launching.unfinished(store)] == [further.id]
    assert [(one.state, one.reason, one.deleted) for one in launching.of_matrix(store, matrix_id)] == [
        ("ended", "quota", True),
        ("created", None, False),
    ]


def test_a_job_of_that_name_that_is_not_ours(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    launching.created(store, launch.id, "job-1")
    with pytest.raises(StateError, match="is another one"):
        launching.created(store, launch.id, "job-2")
    launching.waiting(store, launch.id, "Unschedulable: 0/1 nodes")
    assert launching.find(store, launch.id).waiting == "Unschedulable: 0/1 nodes"
    for unknown in (launching.find, launching.end):
        with pytest.raises(NotFound, match="no launch 'absent'"):
            unknown(store, "absent")


def test_a_journal_is_kept_in_order_without_gaps_and_never_changed(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    one = claimed(store, launched(store, matrix_id, cell_id).id)
    begin, call = BEGIN % one.attempt_id, CALL % one.attempt_id
    with pytest.raises(StoreError, match="no line 0 before these"):
        journaling.journal(store, one.attempt_id, A.uid, 1, [call])
    for _ in range(2):
        journaling.journal(store, one.attempt_id, A.uid, 0, [begin, call])
    journaling.journal(store, one.attempt_id, A.uid, 1, [call, call])
    with pytest.raises(StoreError, match=r"line 1 .* is another one already"):
        journaling.journal(store, one.attempt_id, A.uid, 1, [begin])
    with pytest.raises(StateError, match="not this pod's"):
        journaling.journal(store, one.attempt_id, B.uid, 3, [call])
    told = journaling.journals(store, [one.attempt_id])
    assert told.changed is None
    journaled = told.attempts[one.attempt_id]
    assert (journaled.assignment, journaled.started, len(journaled.calls)) == (digest("a0"), 5, 2)
    document = journaled.document()
    losing.lose(store, [losing.Lost(one.attempt_id, "pod_deleted", True, document)])
    assert reading.journal_document(store, one.attempt_id) == document
    assert journaling.journals(store, [one.attempt_id]).attempts == {}
    with pytest.raises(StateError, match="no longer holds its trial"):
        journaling.journal(store, one.attempt_id, A.uid, 3, [call])


def test_the_lines_go_once_the_ledger_is_there(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    one = claimed(store, launched(store, matrix_id, cell_id).id)
    journaling.journal(store, one.attempt_id, A.uid, 0, [BEGIN % one.attempt_id])
    assert deliver(store, [ledger(one.attempt_id)]) == ["accepted"]
    with store.reading() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM journal_line")).scalar_one() == 0


def test_a_placement_may_change_but_not_the_image_that_ran(store: Store) -> None:
    matrix_id = running_matrix(store)
    images = {"baseline": "registry/agent@sha256:1"}
    chosen = (placing.Chosen(condition="baseline"), placing.Chosen(case="case-1"))
    first = placing.Placement(2, 5, "research", images, {"baseline": "openai"}, chosen, "ana")
    assert (placing.place(store, matrix_id, first), placing.place(store, matrix_id, first)) == (True, False)
    assert [(one.matrix_id, one.state, one.placement) for one in placing.placements(store)] == [
        (matrix_id, "running", first)
    ]
    assert [first.covers(case, condition) for case, condition in [
        ("case-0", "baseline"), ("case-0", "candidate"), ("case-1", "candidate"),
    ]] == [True, False, True]  # fmt: skip
    mended = placing.Placement(images={"baseline": "registry/agent@sha256:2"})
    assert placing.place(store, matrix_id, mended), "nothing has run in the first image yet"
    claimed(store, launched(store, matrix_id, reading.cells(store, matrix_id)[0].id).id)
    with pytest.raises(StateError, match="has run condition baseline in registry/agent@sha256:2"):
        placing.place(store, matrix_id, first)
    matrices.cancel(store, matrix_id)
    with pytest.raises(StateError, match="cancelled"):
        placing.place(store, matrix_id, placing.Placement())
    with pytest.raises(StoreError, match="1 or more"):
        placing.place(store, matrix_id, placing.Placement(trials_per_pod=0))


def test_a_runner_leaves_pods_trials_to_the_controller(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    one = claimed(store, launched(store, matrix_id, cell_id).id)
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE attempt SET lease_expires = 0"))
    assert reading.abandoned(store, matrix_id) == []
    assert claiming.attempt_of_pod(store, one.attempt_id).lease_expires == 0


# ---- Several pods in one transaction --------------------------------------------------------------------------------


def pod(number: int) -> Pod:
    return Pod(f"uid-{number}", f"pod-{number}", "node", "cells")


def everything(store: Store) -> list[tuple[object, ...]]:
    """What a claim or a journal may change."""
    tables = ("trial", "attempt", "owner", "journal_line")
    with store.reading() as connection:
        return [tuple(row) for name in tables for row in connection.execute(sa.text(f"SELECT * FROM {name}"))]


def test_pods_that_claim_together_are_answered_as_each_alone_is(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    other_cell = launched(store, matrix_id, reading.cells(store, matrix_id)[1].id)
    failed = launched(store, matrix_id, reading.cells(store, matrix_id)[2].id)
    losing.fail_cell(store, failed.cell_id, "no such image")
    paused_id = running_matrix(store, "paused")
    placing.place(store, paused_id, placing.Placement())
    paused = launched(store, paused_id, reading.cells(store, paused_id)[0].id)
    matrices.pause(store, paused_id)
    again = claimed(store, launch.id, 1, pod(1))
    formerly = claimed(store, other_cell.id, 2, A)
    assert launching.release(store, other_cell.id, 1) == 1
    asks = [
        claiming.Ask("absent", 0, pod(0)),
        claiming.Ask(launch.id, 0, pod(2)),
        claiming.Ask(launch.id, 1, pod(1)),
        claiming.Ask(other_cell.id, 2, B),
        claiming.Ask(launch.id, 3, pod(3)),
        claiming.Ask(other_cell.id, 1, pod(4)),
        claiming.Ask(failed.id, 0, pod(5)),
        claiming.Ask(paused.id, 0, pod(6)),
        claiming.Ask(other_cell.id, 0, pod(2)),
    ]
    found = claiming.claim_all(store, asks, lease_seconds=60)
    first, last = found[1], found[8]
    assert isinstance(first, PodClaim)
    assert isinstance(last, PodClaim)
    assert (first.cell_id, first.repetition, first.number, first.more) == (cell_id, 0, 1, False)
    assert (last.cell_id, last.repetition, last.number, last.more) == (other_cell.cell_id, 0, 1, False)
    assert found[2:8] == [
        again,
        Settling(),
        found[4],
        Stop("the index was given up"),
        Stop("the cell is failed"),
        Stop("the matrix is paused"),
    ]
    absent, beyond = found[0], found[4]
    assert (type(absent), str(absent)) == (NotFound, "the store has no launch 'absent'")
    assert (type(beyond), str(beyond)) == (NotFound, f"launch {launch.id} has no index 3, only 3")
    # Nothing of it is otherwise where each asks alone.
    for ask, answer in zip(asks, found, strict=True):
        if isinstance(answer, NotFound):
            with pytest.raises(NotFound) as alone:
                claiming.claim(store, ask.launch_id, ask.index, ask.pod, lease_seconds=60)
            assert str(alone.value) == str(answer)
        else:
            assert claiming.claim(store, ask.launch_id, ask.index, ask.pod, lease_seconds=60) == answer
    assert {(one.attempt_id, one.pod_uid, one.launch_id, one.launch_index) for one in claiming.held(store)} == {
        (again.attempt_id, "uid-1", launch.id, 1),
        (formerly.attempt_id, "uid-a", other_cell.id, 2),
        (first.attempt_id, "uid-2", launch.id, 0),
        (last.attempt_id, "uid-2", other_cell.id, 0),
    }
    assert violations(store) == []


def test_an_index_that_is_claimed_twice_at_once_changes_nothing(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    before = everything(store)
    asks = [claiming.Ask(launch.id, 0, A), claiming.Ask(launch.id, 1, B), claiming.Ask(launch.id, 0, B)]
    with pytest.raises(StoreError, match="two pods of one index cannot claim in one transaction"):
        claiming.claim_all(store, asks, lease_seconds=60)
    with pytest.raises(StoreError, match="cannot lease a trial for 0 seconds"):
        claiming.claim_all(store, asks[:2], lease_seconds=0)
    assert everything(store) == before
    assert claiming.claim_all(store, [], lease_seconds=60) == []


def test_groups_that_claim_the_same_indexes_at_once_hand_out_each_trial_once(store: Store) -> None:
    matrix_id, _ = placed(store)
    launches = [launched(store, matrix_id, cell.id) for cell in reading.cells(store, matrix_id)]
    indexes = [(launch.id, index) for launch in launches for index in range(launch.completions)]
    assert len(indexes) == 12
    answers: dict[int, list[object]] = {}
    together = threading.Barrier(4)

    def ask(number: int) -> None:
        # Each in another order: locks are taken in the store's, not in that of the asks.
        own = indexes[number:] + indexes[:number] if number % 2 else [*reversed(indexes)]
        together.wait()
        asks = [claiming.Ask(launch, index, pod(100 * number + place)) for place, (launch, index) in enumerate(own)]
        answers[number] = [*claiming.claim_all(store, asks, lease_seconds=60)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [one for number in range(4) for one in answers[number]]
    claims = [one for one in every if isinstance(one, PodClaim)]
    assert len({one.attempt_id for one in claims}) == len(claims) == 12
    assert len({(one.cell_id, one.repetition) for one in claims}) == 12
    assert [one for one in every if not isinstance(one, PodClaim)] == [Settling()] * 36
    assert {one.attempt_id for one in claiming.held(store)} == {one.attempt_id for one in claims}
    assert violations(store) == []


def test_a_trial_that_a_runner_takes_in_between_is_passed_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim has read the trials of its indexes; the first of one, and the only one of another, are gone since."""
    matrix_id, cell_id = placed(store, per_pod=2)
    launch = launched(store, matrix_id, cell_id)
    numbers = launching.trials(store, launch.id)
    gone = [numbers[0][0], numbers[1][0]]
    read = claiming._read_indexes

    def reads_then_loses(store: Store, connection: sa.Connection, wanted: list[claiming._Wanted]) -> None:
        read(store, connection, wanted)
        connection.execute(trial.update().where(trial.c.id.in_(gone)).values(state="missing"))

    monkeypatch.setattr(claiming, "_read_indexes", reads_then_loses)
    first, second = claiming.claim_all(
        store, [claiming.Ask(launch.id, 0, A), claiming.Ask(launch.id, 1, B)], lease_seconds=60
    )
    assert isinstance(first, PodClaim)
    assert (first.repetition, first.number) == (1, 1)
    assert second == Stop("every trial of the index is done, or somebody else's")
    assert [one.attempt_id for one in claiming.held(store)] == [first.attempt_id]


def test_journals_that_are_told_together_are_kept_or_refused_each_by_itself(store: Store) -> None:
    matrix_id, _ = placed(store)
    launches = [launched(store, matrix_id, cell.id) for cell in reading.cells(store, matrix_id)[:3]]
    ids = [claimed(store, launch.id, index, pod(index)).attempt_id for launch in launches for index in range(3)]
    fresh, going_on, repeated, strange, gap, changed, lost, further, silent = ids
    begin, call = (lambda attempt: BEGIN % attempt), (lambda attempt: CALL % attempt)
    for attempt in (going_on, repeated, changed, further):
        journaling.journal(store, attempt, pod(ids.index(attempt) % 3).uid, 0, [begin(attempt)])
    losing.lose(store, [losing.Lost(lost, "pod_deleted")])

    def told(attempt: int, first: int, *lines: bytes, uid: str | None = None) -> journaling.Told:
        return journaling.Told(attempt, uid or pod(ids.index(attempt) % 3).uid, first, lines)

    refused = journaling.journal_all(
        store,
        [
            told(changed, 0, call(changed), call(changed)),
            told(fresh, 0, begin(fresh), call(fresh)),
            told(gap, 1, call(gap)),
            told(going_on, 1, call(going_on)),
            told(strange, 0, begin(strange), uid="uid-z"),
            told(repeated, 0, begin(repeated)),
            told(lost, 0, begin(lost)),
            journaling.Told(999_999, "uid-1", 0, [b"{}"]),
            told(further, 0, begin(further), call(further)),
        ],
    )
    assert [(type(why), str(why)) if why is not None else None for why in refused] == [
        (StoreError, f"line 0 of the journal of attempt {changed} is another one already"),
        None,
        (StoreError, f"the journal of attempt {gap} has no line 0 before these"),
        None,
        (StateError, f"attempt {strange} is not this pod's"),
        None,
        (StateError, f"attempt {lost} no longer holds its trial"),
        (StateError, "attempt 999999 is not this pod's"),
        None,
    ]
    with store.reading() as connection:
        rows = connection.execute(sa.text("SELECT attempt_id, number, line FROM journal_line")).all()
    assert sorted((row[0], row[1], bytes(row[2])) for row in rows) == sorted(
        [(attempt, 0, begin(attempt)) for attempt in (fresh, going_on, repeated, changed, further)]
        + [(attempt, 1, call(attempt)) for attempt in (fresh, going_on, further)]
    )
    states = {one.attempt_id: one.state for one in claiming.held(store)}
    assert states == {
        **dict.fromkeys((fresh, going_on, repeated, changed, further), "running"),
        **dict.fromkeys((strange, gap, silent), "leased"),
    }


def test_an_attempt_that_is_told_of_twice_at_once_changes_nothing(store: Store) -> None:
    matrix_id, cell_id = placed(store)
    launch = launched(store, matrix_id, cell_id)
    one, other = claimed(store, launch.id).attempt_id, claimed(store, launch.id, 1, B).attempt_id
    before = everything(store)
    told = [
        journaling.Told(other, B.uid, 0, [BEGIN % other]),
        journaling.Told(one, A.uid, 0, [BEGIN % one]),
        journaling.Told(one, A.uid, 1, [CALL % one]),
    ]
    with pytest.raises(StoreError, match="an attempt is told of twice in one transaction"):
        journaling.journal_all(store, told)
    assert everything(store) == before
