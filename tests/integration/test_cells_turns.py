"""Turns at the intake: a ledger and the beginning of the pod's next trial, each kept once, whatever is lost between."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from cells import Client, Cluster, begin, calls_of, client_of, ledger_of, manifest_of
from store_session import violations

from grading.store import (
    StateError,
    Store,
    StoreAway,
    StoreError,
    claiming,
    journaling,
    losing,
    matrices,
    reading,
)
from grading.store.claiming import Ask, Begun, Pod, PodClaim, Settling
from simulator.journal_reading import JournaledAttempt
from simulator.pod_protocol import TurnAnswer


@pytest.fixture(scope="module")
def manifest() -> Any:
    return manifest_of(repetitions=4)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as opened:
        yield opened
        assert violations(opened) == []


@pytest.fixture
def cluster(store: Store, manifest: Any) -> Cluster:
    """Of four trials an index, presented forward and reversed in turn."""
    return Cluster(store, manifest, per_pod=4)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with client_of(cluster) as opened:
        yield opened


class Turning:
    """A pod whose first two trials have told it both assignments, and whose second one is to be delivered."""

    def __init__(self, cluster: Cluster, client: Client, index: int = 0) -> None:
        self.pod = cluster.pod(cluster.launch() if index == 0 else next(iter(cluster.tokens.values())).launch, index)
        self._client = client
        self.first = client.assigned(self.pod)
        answer = client.deliver(self.pod, self.first["attempt"], ledger_of(self.first), asked="&next=1")
        self.second = answer.json()["next"]
        self.begun = [begin(self.first), *calls_of(self.first)]
        """The third has the first one's assignment."""

    def turn(self, entries: list[dict[str, Any]] | None = None, document: bytes | None = None) -> Any:
        sent = ledger_of(self.second) if document is None else document
        return self._client.turn(self.pod, self.second["attempt"], sent, entries or self.begun)


@pytest.fixture
def turning(cluster: Cluster, client: Client) -> Turning:
    return Turning(cluster, client)


def read(answer: Any) -> TurnAnswer:
    assert answer.status_code == 200, answer.text
    return TurnAnswer.model_validate_json(answer.content)


def journaled(store: Store, attempt: int) -> JournaledAttempt | None:
    return journaling.journals(store, [attempt]).attempts.get(attempt)


def test_what_comes_after_a_trial_is_told_with_it(turning: Turning) -> None:
    assert turning.first["hash"] != turning.second["hash"]
    assert (turning.first["after"], turning.second["after"]) == (turning.second["hash"], turning.first["hash"])


def test_a_ledger_and_the_next_trials_beginning_are_kept_together(
    cluster: Cluster, client: Client, turning: Turning
) -> None:
    answer = read(turning.turn())
    assert (answer.outcome, answer.begun) == ("accepted", True)
    assert answer.next is not None
    assert answer.next.hash == turning.first["hash"]
    assert answer.next.after == turning.second["hash"]
    assert reading.counts(cluster.store, cluster.matrix_id)["graded"] == 2
    (held,) = claiming.held(cluster.store)
    assert (held.attempt_id, held.state, held.pod_uid) == (answer.next.attempt, "running", f"uid-{turning.pod}")
    kept = journaled(cluster.store, held.attempt_id)
    assert kept is not None
    assert (kept.assignment, [one["call"] for one in kept.calls]) == (
        turning.first["hash"],
        [one["call"] for one in turning.begun[1:]],
    )
    # Its further lines, and its ledger with the beginning of the last one.
    third = turning.turn().json()["next"]
    more = client.journal(turning.pod, third["attempt"], calls_of(third)[:1], first=len(turning.begun))
    assert more.status_code == 204
    last = client.turn(turning.pod, third["attempt"], ledger_of(third), [begin(turning.second)])
    fourth = read(last).next
    assert fourth is not None
    assert (fourth.more, fourth.after, read(last).begun) == (False, None, True)
    assert client.deliver(turning.pod, fourth.attempt, ledger_of(last.json()["next"])).json()["outcome"] == "accepted"
    assert reading.counts(cluster.store, cluster.matrix_id)["graded"] == 4
    assert journaling.journals(cluster.store, [third["attempt"], fourth.attempt]).attempts == {}


def test_a_turn_that_comes_again_is_answered_the_same(cluster: Cluster, turning: Turning) -> None:
    short = turning.begun[:2]
    first = read(turning.turn(short))
    again = read(turning.turn(short))
    assert (again.outcome, again.next, again.begun) == ("repeated", first.next, True)
    # Its answer was lost, and meanwhile the agent has gone on.
    later = read(turning.turn(turning.begun))
    assert (later.outcome, later.next, later.begun) == ("repeated", first.next, True)
    assert first.next is not None
    kept = journaled(cluster.store, first.next.attempt)
    assert kept is not None
    assert len(kept.calls) == len(turning.begun) - 1
    assert len(claiming.held(cluster.store)) == 1


def test_other_lines_than_before_are_not_taken_for_the_same(cluster: Cluster, turning: Turning) -> None:
    given = read(turning.turn()).next
    assert given is not None
    other = [turning.begun[0] | {"begin": {"assignment": turning.first["hash"], "started": 7}}]
    answer = read(turning.turn(other))
    assert (answer.outcome, answer.next, answer.begun) == ("repeated", None, False)
    kept = journaled(cluster.store, given.attempt)
    assert kept is not None
    assert kept.started != 7


def test_a_trial_that_was_settled_meanwhile_is_not_gone_on_with(cluster: Cluster, turning: Turning) -> None:
    given = read(turning.turn(turning.begun[:2])).next
    assert given is not None
    losing.lose(cluster.store, [losing.Lost(given.attempt, "node_lost")])
    again = read(turning.turn())
    # The trial is open again: this pod may have it, by another attempt.
    assert again.next is not None
    assert (again.next.attempt > given.attempt, again.next.number, again.begun) == (True, 2, True)


def test_another_assignment_than_was_begun_is_given_out_and_not_begun(cluster: Cluster, turning: Turning) -> None:
    answer = read(turning.turn([begin(turning.second), *calls_of(turning.second)]))
    assert answer.next is not None
    assert (answer.outcome, answer.begun, answer.next.hash) == ("accepted", False, turning.first["hash"])
    (held,) = claiming.held(cluster.store)
    assert (held.attempt_id, held.state) == (answer.next.attempt, "leased")
    assert journaled(cluster.store, held.attempt_id) is None


@pytest.mark.parametrize("change", [matrices.pause, matrices.cancel])
def test_what_was_begun_of_a_matrix_that_does_not_run_is_not_kept(
    cluster: Cluster, turning: Turning, change: Callable[[Store, int], Any]
) -> None:
    change(cluster.store, cluster.matrix_id)
    answer = read(turning.turn())
    assert (answer.outcome, answer.next, answer.begun) == ("accepted", None, False)
    assert claiming.held(cluster.store) == []


@pytest.mark.parametrize("document", ["quarantined", "fenced"])
def test_a_ledger_that_is_no_evidence_begins_nothing(cluster: Cluster, turning: Turning, document: str) -> None:
    sent = ledger_of(turning.second)
    if document == "quarantined":
        sent = sent[:-20]
    else:
        losing.lose(cluster.store, [losing.Lost(turning.second["attempt"], "node_lost")])
    answer = read(turning.turn(document=sent))
    assert (answer.outcome, answer.next) == (document, None)
    assert claiming.held(cluster.store) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n",
        b'{"version":1,"entries":[]}',
        b'{"version":2,"entries":[]}',
        b'{"version":1,"entries":[{"call":{"tool":"x","arguments":{},"result":1},"started":1,"ended":2}]}',
    ],
)
def test_a_turn_without_a_beginning_is_refused_and_changes_nothing(
    cluster: Cluster, client: Client, turning: Turning, body: bytes
) -> None:
    sent = ledger_of(turning.second) + (b"\n" + body if body else b"")
    answer = client.post(f"/v1/turn?attempt={turning.second['attempt']}", turning.pod, sent)
    assert answer.status_code == 422
    assert [one.attempt_id for one in claiming.held(cluster.store)] == [turning.second["attempt"]]
    assert client.deliver(turning.pod, turning.second["attempt"], ledger_of(turning.second)).status_code == 200


def test_a_number_that_no_recorder_writes_is_refused_and_changes_nothing(
    cluster: Cluster, client: Client, turning: Turning
) -> None:
    path = f"/v1/turn?attempt={turning.second['attempt']}"
    call = b'{"call":{"tool":"x","arguments":{"a":%d},"result":1},"started":1,"ended":2}' % 2**70
    beginning = b'{"begin":{"assignment":"%b","started":1}}' % turning.first["hash"].encode()
    body = b'%b\n{"version":1,"entries":[%b,%b]}' % (ledger_of(turning.second), beginning, call)
    answer = client.post(path, turning.pod, body)
    assert answer.status_code == 422, answer.text
    assert "entries: " in answer.json()["reason"]
    assert [one.attempt_id for one in claiming.held(cluster.store)] == [turning.second["attempt"]]


@pytest.mark.parametrize("token", [None, "forged"])
def test_who_is_no_pod_takes_no_turn(client: Client, token: str | None) -> None:
    assert client.post("/v1/turn?attempt=1", token, b"not even JSON").status_code == 401


def test_an_attempt_of_another_pod_is_refused(cluster: Cluster, client: Client, turning: Turning) -> None:
    stranger = cluster.pod(cluster.launch(case=cluster.manifest.cases[1].id), name="stranger")
    answer = client.turn(stranger, turning.second["attempt"], ledger_of(turning.second), turning.begun)
    assert answer.status_code == 403
    assert [one.attempt_id for one in claiming.held(cluster.store)] == [turning.second["attempt"]]


@pytest.mark.parametrize("error", [StoreAway("the server is gone"), StoreError("a statement is refused")])
def test_a_ledger_is_accepted_where_what_was_begun_cannot_be_kept(
    cluster: Cluster, turning: Turning, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(claiming, "claim_all", fails)
        answer = read(turning.turn())
    assert (answer.outcome, answer.next) == ("accepted", None)
    # The pod had thrown it away, or gives it again.
    assert read(turning.turn()).begun is True


def test_a_commit_that_fails_leaves_neither_an_attempt_nor_lines(
    cluster: Cluster, turning: Turning, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(connection: sa.Connection, *_: Any) -> None:
        raise StateError("after the attempt")

    before = [one.attempt for one in reading.trials(cluster.store, cluster.matrix_id)]
    with monkeypatch.context() as patch:
        patch.setattr(claiming, "insert_lines", fails)
        assert read(turning.turn()).next is None
    assert claiming.held(cluster.store) == []
    assert [one.attempt for one in reading.trials(cluster.store, cluster.matrix_id)] == before


def test_a_claim_without_a_beginning_settles_what_was_begun(cluster: Cluster, turning: Turning) -> None:
    given = read(turning.turn()).next
    assert given is not None
    launch = cluster.tokens[turning.pod].launch
    pod = cluster.tokens[turning.pod].pod
    asks = [
        (Ask(launch.id, 0, pod), Settling),
        (Ask(launch.id, 0, pod, begun=Begun(turning.second["hash"], lambda _: [b"{}"])), Settling),
    ]
    for ask, answer in asks:
        (found,) = claiming.claim_all(cluster.store, [ask], lease_seconds=60)
        assert isinstance(found, answer), ask
    stored = journaling.journals(cluster.store, [given.attempt]).attempts[given.attempt]
    assert stored.assignment == turning.first["hash"]


def test_pods_of_several_cells_take_their_turns_in_one_transaction(cluster: Cluster, manifest: Any) -> None:
    """One of them tells again, one begins, one has begun another assignment, one has nothing left."""
    store = cluster.store
    launches = [cluster.launch(case=case.id) for case in manifest.cases[:3]]
    pods = [Pod(f"uid-{number}", f"pod-{number}", "node") for number in range(3)]
    hashes = [
        next(one.assignment_hash for one in reading.trials(store, cluster.matrix_id) if one.case_id == launch.case_id)
        for launch in launches
    ]

    def lines(attempt: int) -> list[bytes]:
        return [b'{"attempt":%d,"begin":{"assignment":"%b","started":1}}' % (attempt, hashes[0].encode())]

    told = Begun(hashes[0], lines)
    (first,) = claiming.claim_all(store, [Ask(launches[0].id, 0, pods[0], begun=told)], lease_seconds=60)
    assert isinstance(first, PodClaim)
    asks = [
        Ask(launches[0].id, 0, pods[0], begun=told),
        Ask(launches[1].id, 0, pods[1], begun=told),
        Ask(launches[2].id, 0, pods[2]),
    ]
    answers = claiming.claim_all(store, asks, lease_seconds=60)
    assert answers[0] == first
    assert [isinstance(one, PodClaim) and one.begun for one in answers] == [True, False, False]
    assert {one.state for one in claiming.held(store)} == {"running", "leased"}
