"""The intake's cells port: a pod is handed its own trials, and each trial's evidence is in the store once."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from cells import CONTROL, Client, Cluster, begin, calls_of, client_of, ledger_of, manifest_of
from recorded_trial import eventually
from store_session import violations

from grading.cells_service import LARGEST_QUESTION
from grading.group_commit import GroupCommit
from grading.intake import LARGEST_LEDGER
from grading.store import (
    Store,
    StoreAway,
    StoreError,
    claiming,
    delivering,
    journaling,
    losing,
    matrices,
    reading,
)
from simulator.pod_protocol import Assigned, LedgerAnswer, Refusal


@pytest.fixture(scope="module")
def manifest() -> Any:
    return manifest_of(repetitions=2)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with Store.open(store_url) as opened:
        yield opened
        assert violations(opened) == []


@pytest.fixture
def cluster(store: Store, manifest: Any) -> Cluster:
    return Cluster(store, manifest)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with client_of(cluster) as opened:
        yield opened


def outcome(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return LedgerAnswer.model_validate_json(answer.content).outcome


def reason(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    return Refusal.model_validate_json(answer.content).reason


def only_trial(cluster: Cluster) -> reading.Trial:
    """The first trial of the launched cell."""
    cell_id = cluster.cells[CONTROL, cluster.case]
    return next(reading.trials(cluster.store, cluster.matrix_id, cell_ids=[cell_id], grades=True))


def test_a_pod_is_handed_a_trial_and_its_ledger_is_graded(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    answer = client.ask(pod)
    assigned = Assigned.model_validate_json(answer.content)
    assert (answer.status_code, assigned.number, assigned.more) == (200, 1, False)
    assert assigned.assignment.hash() == assigned.hash
    assert client.ask(pod).content == answer.content, "asked again, the same is answered"
    document = ledger_of(answer.json())
    assert outcome(client.deliver(pod, assigned.attempt, document)) == "accepted"
    assert outcome(client.deliver(pod, assigned.attempt, document)) == "repeated"
    trial = only_trial(cluster)
    assert (trial.state, trial.attempt, [grade.verdict for grade in trial.grades]) == ("graded", 1, ["failed"])
    assert client.ask(pod).status_code == 204
    assert list(reading.incidents(cluster.store)) == []


def test_two_pods_of_one_index_never_hold_one_trial(cluster: Cluster, client: Client) -> None:
    launch = cluster.launch()
    pods = [cluster.pod(launch, name=f"pod-{number}") for number in range(6)]
    answers: list[int] = []
    threads = [threading.Thread(target=lambda pod=pod: answers.append(client.ask(pod).status_code)) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 503, 503, 503, 503, 503]
    assert len(claiming.held(cluster.store)) == 1
    waiting = next(answer for pod in pods if (answer := client.ask(pod)).status_code == 503)
    assert waiting.headers["retry-after"] == "2"
    assert "not settled yet" in reason(waiting, 503)


def test_an_index_of_several_trials(store: Store, manifest: Any) -> None:
    cluster = Cluster(store, manifest, per_pod=2)
    with client_of(cluster) as client:
        pod = cluster.pod(cluster.launch())
        seen = []
        for _ in range(2):
            assigned = client.assigned(pod)
            seen.append(assigned["more"])
            assert outcome(client.deliver(pod, assigned["attempt"], ledger_of(assigned))) == "accepted"
        assert seen == [True, False]
        assert client.ask(pod).status_code == 204
    assert reading.cells(store, cluster.matrix_id)[0].state == "done"


def test_who_is_no_pod_of_the_launch_gets_nothing(cluster: Cluster, client: Client) -> None:
    launch, other = cluster.launch(), cluster.launch(case=cluster.manifest.cases[1].id)
    pod, stranger = cluster.pod(launch), cluster.pod(other)
    for path in ("/v1/assignment", "/v1/journal", "/v1/ledger?attempt=1", "/v1/unusable"):
        for token in (None, "forged"):
            answer = client.post(path, token, b"not even JSON")
            assert "its token names none" in reason(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
    assert "index 0 of another launch" in reason(client.ask(pod, launch=other.id), 403)
    assert "another launch" in reason(client.ask(pod, index=1), 403)
    assigned = client.assigned(pod)
    attempt, document = assigned["attempt"], ledger_of(assigned)
    assert "not this pod's" in reason(client.deliver(stranger, attempt, document), 403)
    assert "not this pod's" in reason(client.journal(stranger, attempt, [begin(assigned)]), 403)
    assert "not this pod's" in reason(client.unusable(stranger, attempt, "agent_not_startable"), 403)
    assert "not this pod's" in reason(client.deliver(pod, 999, document), 403)
    assert only_trial(cluster).state == "leased"
    assert outcome(client.deliver(pod, attempt, document)) == "accepted"


def test_nobody_is_let_in_while_who_asks_cannot_be_found_out(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    cluster.away = True
    answer = client.ask(pod)
    assert "cannot be found out now" in reason(answer, 503)
    assert answer.headers["retry-after"] == "2"
    assert claiming.held(cluster.store) == []


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/assignment", b"{", "the body: Invalid JSON"),
        ("/v1/assignment", b"[]", "the body:"),
        ("/v1/assignment", b'{"version":2}', "version: Input should be 1"),
        ("/v1/journal", b'{"version":1,"attempt":1,"first":0,"entries":[]}', "entries:"),
        ("/v1/journal", b'{"version":1,"attempt":1,"first":-1,"entries":[]}', "first:"),
        ("/v1/unusable", b'{"version":1,"attempt":1,"kind":"tired","message":""}', "kind:"),
        ("/v1/ledger", b"{}", "attempt: the address names the attempt"),
        ("/v1/ledger?attempt=-1", b"{}", "attempt: the address names the attempt"),
        ("/v1/ledger?attempt=1x", b"{}", "attempt: the address names the attempt"),
    ],
)
def test_what_is_malformed_is_named(cluster: Cluster, client: Client, path: str, body: bytes, said: str) -> None:
    assert said in reason(client.post(path, cluster.pod(cluster.launch()), body), 422)


def test_bodies_beyond_their_size_are_refused_before_they_are_read(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    for path, largest in (("/v1/assignment", LARGEST_QUESTION), ("/v1/ledger?attempt=1", LARGEST_LEDGER)):
        said = {"content-length": str(largest + 1)}
        assert f"may have ({largest})" in reason(client.post(path, pod, b"x", **said), 413)
    assert "Content-Length is no number" in reason(client.post("/v1/ledger", pod, b"x", **{"content-length": "x"}), 400)
    # One that says less than it sends is read no further.
    body = b"x" * (LARGEST_QUESTION + 1)
    assert "may have" in reason(client.post("/v1/assignment", pod, body, **{"content-length": "1"}), 413)


def test_bodies_that_never_arrive_are_given_up(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grading.request_body._BODY_SECONDS", 0.05)
    pod = cluster.pod(cluster.launch())
    for _ in range(6):  # more than there is room for at once
        assert "did not arrive within" in reason(client.stall(pod, LARGEST_LEDGER), 408)


def test_what_is_sent_at_once_has_a_limit(cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grading.request_body._BODY_SECONDS", 1.5)
    pod = cluster.pod(cluster.launch())
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(client.stall(pod, LARGEST_LEDGER).status_code)) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [408, 408, 408, 408, 503]
    assert client.ask(pod).status_code == 200


def test_other_paths_and_methods(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    assert reason(client.post("/v1/matrices", pod, b"{}"), 404) == "Not Found"


def test_a_pod_of_other_software_is_refused_and_its_cell_fails(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    of_manifest = cluster.manifest.simulator
    other = {"version": "9.9.9", "source": "sha256:" + "0" * 64, "python": "3.11.0"}
    said = reason(client.ask(pod, software=other), 409)
    assert "9.9.9" in said
    assert of_manifest.source in said
    cell = next(one for one in reading.cells(cluster.store, cluster.matrix_id) if one.state == "failed")
    assert (cell.condition, cell.case_id, cell.reason) == (CONTROL, cluster.case, said)
    assert only_trial(cluster).state == "missing"
    assert claiming.held(cluster.store) == []


def test_a_journal_that_is_repeated_out_of_order_or_changed(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    assigned = client.assigned(pod)
    attempt, lines = assigned["attempt"], [begin(assigned), *calls_of(assigned)]
    assert "no line 1 before" in reason(client.journal(pod, attempt, lines[2:], first=2), 409)
    assert client.journal(pod, attempt, lines[:2]).status_code == 204
    assert client.journal(pod, attempt, lines).status_code == 204
    assert client.journal(pod, attempt, lines).status_code == 204
    assert client.journal(pod, attempt, lines[1:2], first=1).status_code == 204
    assert "another one already" in reason(client.journal(pod, attempt, lines[1:2], first=0), 409)
    assert "a line of another attempt" in reason(client.journal(pod, attempt, [{**lines[0], "attempt": 77}]), 422)
    told = journaling.journals(cluster.store, [attempt]).attempts[attempt]
    assert told.assignment == assigned["hash"]
    assert [entry["call"] for entry in told.calls] == [line["call"] for line in lines[1:]]
    # Asked again after it began, as by a recorder that was started again, it waits to be settled.
    assert client.ask(pod).status_code == 503
    losing.lose(cluster.store, [losing.Lost(attempt, "pod_deleted")])
    assert "no longer holds" in reason(client.journal(pod, attempt, lines), 410)


def test_a_ledger_that_was_changed_is_kept_as_an_incident(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    assigned = client.assigned(pod)
    first, second = ledger_of(assigned), ledger_of(assigned, message="Another answer.")
    assert outcome(client.deliver(pod, assigned["attempt"], first)) == "accepted"
    assert outcome(client.deliver(pod, assigned["attempt"], second)) == "conflicting"
    assert [(one.kind, one.document) for one in reading.incidents(cluster.store)] == [("conflicting_ledger", second)]
    assert reading.ledger_document(cluster.store, assigned["attempt"]) == first


def malformed(assigned: dict[str, Any]) -> list[tuple[bytes, str]]:
    whole = ledger_of(assigned)
    return [
        (whole[:-20], "ledger_malformed"),
        (b"", "ledger_malformed"),
        (b"[" * 5000, "ledger_malformed"),
        (whole.replace(b"Somebody", b"Everyone"), "hash_mismatch"),
        (ledger_of(assigned, trial="0" * 32), "ledger_malformed"),
        (ledger_of(assigned, number=7), "ledger_malformed"),
    ]


@pytest.mark.parametrize("place", range(6))
def test_what_is_no_ledger_of_the_attempt_is_quarantined(cluster: Cluster, client: Client, place: int) -> None:
    pod = cluster.pod(cluster.launch())
    assigned = client.assigned(pod)
    document, kind = malformed(assigned)[place]
    assert outcome(client.deliver(pod, assigned["attempt"], document)) == "quarantined"
    assert [(one.kind, one.document) for one in reading.incidents(cluster.store)] == [(kind, document)]
    trial = only_trial(cluster)
    assert (trial.state, trial.attempt) == ("open", 1)
    assert [(one.state, one.reason) for one in reading.attempts(cluster.store, trial.id)] == [("lost", kind)]
    again = client.assigned(pod)
    assert again["number"] == 2
    assert outcome(client.deliver(pod, again["attempt"], ledger_of(again))) == "accepted"


def test_a_ledger_of_a_fenced_attempt_is_kept_and_counts_for_nothing(cluster: Cluster, client: Client) -> None:
    launch = cluster.launch()
    first, second = cluster.pod(launch, name="first"), cluster.pod(launch, name="second")
    lost = client.assigned(first)
    losing.lose(cluster.store, [losing.Lost(lost["attempt"], "node_lost")])
    held = client.assigned(second)
    assert (held["number"], held["trial"]) == (2, lost["trial"])
    assert outcome(client.deliver(first, lost["attempt"], ledger_of(lost))) == "fenced"
    assert outcome(client.deliver(second, held["attempt"], ledger_of(held))) == "accepted"
    assert only_trial(cluster).evidence_attempt_id == held["attempt"]
    assert reading.ledger_document(cluster.store, lost["attempt"]) == ledger_of(lost)


def test_a_pause_or_a_cancellation_stops_pods(cluster: Cluster, client: Client) -> None:
    launch = cluster.launch()
    first, second = cluster.pod(launch, 0), cluster.pod(launch, 1)
    assigned = client.assigned(first)
    matrices.pause(cluster.store, cluster.matrix_id)
    assert client.ask(second).status_code == 204
    assert outcome(client.deliver(first, assigned["attempt"], ledger_of(assigned))) == "accepted"
    matrices.resume(cluster.store, cluster.matrix_id)
    assert client.assigned(second)["number"] == 1
    matrices.cancel(cluster.store, cluster.matrix_id)
    assert client.ask(second).status_code == 204


def test_an_agent_that_does_not_load_fails_its_cell(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    attempt = client.assigned(pod)["attempt"]
    for _ in range(2):
        assert client.unusable(pod, attempt, "agent_not_startable", "No module named 'shop'").status_code == 204
    cell = reading.cells(cluster.store, cluster.matrix_id)[0]
    assert (cell.state, cell.reason) == ("failed", "the agent cannot be started: No module named 'shop'")
    assert only_trial(cluster).state == "missing"
    assert client.ask(pod).status_code == 204


def test_a_provider_that_is_away_costs_an_attempt(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    assigned = client.assigned(pod)
    assert client.journal(pod, assigned["attempt"], [begin(assigned), *calls_of(assigned)]).status_code == 204
    assert client.unusable(pod, assigned["attempt"], "provider_unavailable").status_code == 204
    trial = only_trial(cluster)
    assert (trial.state, trial.attempt) == ("open", 1)
    assert [(one.state, one.reason, one.budget) for one in reading.attempts(cluster.store, trial.id)] == [
        ("lost", "provider_unavailable", "provider")
    ]
    kept = orjson.loads(reading.journal_document(cluster.store, assigned["attempt"]))
    assert next(entry["call"]["tool"] for entry in kept["calls"]) == "list_orders"


def test_a_provider_that_is_away_washes_no_violation_away(cluster: Cluster, client: Client) -> None:
    pod = cluster.pod(cluster.launch())
    assigned = client.assigned(pod)
    lines = [begin(assigned), *calls_of(assigned, refund=True)]
    assert client.journal(pod, assigned["attempt"], lines).status_code == 204
    assert client.unusable(pod, assigned["attempt"], "provider_unavailable").status_code == 204
    trial = only_trial(cluster)
    assert (trial.state, trial.evidence_attempt_id) == ("graded", assigned["attempt"])
    assert [grade.verdict for grade in trial.grades] == ["failed"]


def test_the_store_killed_midway_loses_nothing(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = cluster.pod(cluster.launch())
    assigned = client.assigned(pod)
    document = ledger_of(assigned)

    def killed(*_: Any, **__: Any) -> Any:
        raise sa.exc.OperationalError("COMMIT", {}, cluster.store.engine.dialect.loaded_dbapi.OperationalError("gone"))

    for event in ("before_cursor_execute", "commit"):
        sa.event.listen(cluster.store.engine, event, killed)
        answer = client.deliver(pod, assigned["attempt"], document)
        sa.event.remove(cluster.store.engine, event, killed)
        assert reason(answer, 503) == "the store is away"
        assert answer.headers["retry-after"] == "2"
        assert only_trial(cluster).state == "leased"
    assert outcome(client.deliver(pod, assigned["attempt"], document)) == "accepted"
    assert only_trial(cluster).state == "graded"


# ---- The next trial with a ledger's answer --------------------------------------------------------------------------


def following(answer: Any) -> Assigned | None:
    assert outcome(answer) in ("accepted", "repeated"), answer.text
    return LedgerAnswer.model_validate_json(answer.content).next


@pytest.fixture
def long(store: Store, manifest: Any) -> Cluster:
    """Of two trials an index."""
    return Cluster(store, manifest, per_pod=2)


def test_a_ledger_is_answered_with_the_next_trial_of_its_index(long: Cluster) -> None:
    with client_of(long) as client:
        pod = long.pod(long.launch())
        first = client.assigned(pod)
        answer = client.deliver(pod, first["attempt"], ledger_of(first), asked="&next=1")
        given = following(answer)
        assert given is not None
        assert (outcome(answer), given.number, given.more) == ("accepted", 1, False)
        assert given.attempt != first["attempt"]
        assert given.trial != first["trial"]
        assert given.assignment.hash() == given.hash
        # Its answer was lost: the same again, by either way.
        again = client.deliver(pod, first["attempt"], ledger_of(first), asked="&next=1")
        assert (outcome(again), following(again)) == ("repeated", given)
        second = answer.json()["next"]
        assert client.assigned(pod) == second
        assert [(one.attempt_id, one.pod_uid) for one in claiming.held(long.store)] == [(given.attempt, f"uid-{pod}")]
        # Once it has begun, what it did is looked at first.
        assert client.journal(pod, given.attempt, [begin(second)]).status_code == 204
        assert following(client.deliver(pod, first["attempt"], ledger_of(first), asked="&next=1")) is None
        last = client.deliver(pod, given.attempt, ledger_of(second), asked="&next=1")
        assert (outcome(last), following(last)) == ("accepted", None)
        assert client.ask(pod).status_code == 204
    assert reading.counts(long.store, long.matrix_id)["graded"] == 2
    assert len(list(reading.attempts(long.store, only_trial(long).id))) == 1


@pytest.mark.parametrize("asked", ["", "&next=0", "&next=", "&next=true"])
def test_nobody_is_handed_a_trial_who_does_not_ask_for_it(long: Cluster, asked: str) -> None:
    with client_of(long) as client:
        pod = long.pod(long.launch())
        assigned = client.assigned(pod)
        answer = client.deliver(pod, assigned["attempt"], ledger_of(assigned), asked=asked)
        assert answer.json() == {"version": 1, "outcome": "accepted"}
        assert claiming.held(long.store) == []


@pytest.mark.parametrize("change", [matrices.pause, matrices.cancel])
def test_a_matrix_that_does_not_run_hands_out_no_next_trial(long: Cluster, change: Any) -> None:
    with client_of(long) as client:
        pod = long.pod(long.launch())
        assigned = client.assigned(pod)
        change(long.store, long.matrix_id)
        answer = client.deliver(pod, assigned["attempt"], ledger_of(assigned), asked="&next=1")
        assert answer.json() == {"version": 1, "outcome": "accepted"}
        assert claiming.held(long.store) == []


@pytest.mark.parametrize("document", ["quarantined", "conflicting", "fenced"])
def test_a_ledger_that_is_no_evidence_brings_no_next_trial(long: Cluster, document: str) -> None:
    with client_of(long) as client:
        pod = long.pod(long.launch())
        assigned = client.assigned(pod)
        attempt, sent = assigned["attempt"], ledger_of(assigned)
        if document == "quarantined":
            sent = sent[:-20]
        elif document == "conflicting":
            assert outcome(client.deliver(pod, attempt, sent)) == "accepted"
            sent = ledger_of(assigned, message="Another answer.")
        else:
            losing.lose(long.store, [losing.Lost(attempt, "node_lost")])
        answer = client.deliver(pod, attempt, sent, asked="&next=1")
        assert answer.json() == {"version": 1, "outcome": document}
        assert claiming.held(long.store) == []


@pytest.mark.parametrize("error", [StoreAway("the server is gone"), StoreError("a statement is refused")])
def test_a_ledger_is_accepted_where_no_next_trial_can_be_claimed(
    long: Cluster, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    with client_of(long) as client:
        pod = long.pod(long.launch())
        assigned = client.assigned(pod)
        with monkeypatch.context() as patch:
            patch.setattr(claiming, "claim_all", fails)
            answer = client.deliver(pod, assigned["attempt"], ledger_of(assigned), asked="&next=1")
        assert answer.json() == {"version": 1, "outcome": "accepted"}
        assert only_trial(long).state == "graded"
        assert client.assigned(pod)["number"] == 1


# ---- Many pods at once ----------------------------------------------------------------------------------------------


class Gated(GroupCommit[Any, Any]):
    """Holds the first group until it is opened, so that what comes meanwhile is one group."""

    every: list["Gated"]

    def __init__(self, work: Any, key: Any) -> None:
        super().__init__(self._held, key)
        self._gated = work
        self.opened = threading.Event()
        self.arrived = 0
        self.sizes: list[int] = []
        self.every.append(self)

    async def do(self, item: Any) -> Any:
        self.arrived += 1
        return await super().do(item)

    def _held(self, items: Any) -> Any:
        self.sizes.append(len(items))
        assert self.opened.wait(20)
        return self._gated(items)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> list[Gated]:
    """Of assignments, journals, ledgers and turns."""
    every: list[Gated] = []
    monkeypatch.setattr(Gated, "every", every, raising=False)
    monkeypatch.setattr("grading.cells_service.GroupCommit", Gated)
    return every


def together(gate: Gated, requests: list[Callable[[], Any]]) -> list[Any]:
    """The answers to requests of which the first is a group of its own and the others the next one."""
    gate.opened.clear()
    before = gate.arrived
    del gate.sizes[:]
    with ThreadPoolExecutor(len(requests)) as senders:
        sent = []
        for number, request in enumerate(requests, 1):
            sent.append(senders.submit(request))
            assert eventually(lambda number=number: gate.arrived - before == number)
        gate.opened.set()
        return [one.result() for one in sent]


def test_a_bad_request_among_good_ones_fails_alone(store: Store, manifest: Any, gates: list[Gated]) -> None:
    cluster = Cluster(store, manifest, per_pod=1)
    with client_of(cluster) as client:
        asking, journaled, delivered, _ = gates
        launches = [cluster.launch(case=case.id) for case in cluster.manifest.cases]
        pods = [cluster.pod(launch, index) for launch in launches[:3] for index in range(2)]
        first, good, wrong, stranger, last, other = pods
        gone = cluster.pod(replace(launches[3], id="f" * 32))
        answers = together(
            asking,
            [
                lambda: client.ask(first),
                lambda: client.ask(wrong, version=2),
                lambda: client.ask(good),
                lambda: client.ask(stranger, index=7),
                lambda: client.ask(gone),
                lambda: client.ask(last),
            ],
        )
        assert asking.sizes == [1, 5]
        assert [answer.status_code for answer in answers] == [200, 422, 200, 403, 500, 200]
        assigned = {pod: answers[place].json() for pod, place in ((first, 0), (good, 2), (last, 5))}
        assert len({one["attempt"] for one in assigned.values()}) == 3
        assert len(claiming.held(store)) == 3
        assigned |= {pod: client.assigned(pod) for pod in (wrong, stranger, other)}

        def told(pod: str, **changes: Any) -> Callable[[], Any]:
            return lambda: client.journal(pod, assigned[pod]["attempt"], [begin(assigned[pod]) | changes])

        answers = together(
            journaled,
            [
                told(first),
                told(wrong, attempt=1_000_000),
                told(good),
                lambda: client.journal(stranger, assigned[good]["attempt"], [begin(assigned[good])]),
                lambda: client.journal(other, assigned[other]["attempt"], [begin(assigned[other])], first=3),
                told(last),
            ],
        )
        assert journaled.sizes == [1, 5]
        assert [answer.status_code for answer in answers] == [204, 422, 204, 403, 409, 204]
        assert {one.attempt_id for one in claiming.held(store) if one.state == "running"} == {
            assigned[pod]["attempt"] for pod in (first, good, last)
        }

        def sent(pod: str, document: bytes | None = None) -> Callable[[], Any]:
            return lambda: client.deliver(pod, assigned[pod]["attempt"], document or ledger_of(assigned[pod]))

        answers = together(
            delivered,
            [
                sent(first),
                sent(wrong, ledger_of(assigned[wrong])[:-20]),
                sent(good),
                lambda: client.deliver(stranger, assigned[good]["attempt"], ledger_of(assigned[good])),
                lambda: client.post("/v1/ledger?attempt=x", other, b"{}"),
                sent(last),
            ],
        )
        assert delivered.sizes == [1, 5]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 403, 422, 200]
        assert [outcome(answers[place]) for place in (0, 1, 2, 5)] == [
            "accepted",
            "quarantined",
            "accepted",
            "accepted",
        ]
        assert reading.counts(store, cluster.matrix_id)["graded"] == 3
        assert [one.attempt_id for one in reading.incidents(store)] == [assigned[wrong]["attempt"]]


def test_a_ledger_that_cannot_be_taken_in_fails_alone_and_nothing_is_done_twice(
    cluster: Cluster, gates: list[Gated], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grader that fails, or a statement that the database refuses, ends the transaction of the whole group."""
    with client_of(cluster) as client:
        launches = [cluster.launch(case=case.id) for case in cluster.manifest.cases[:2]]
        first, good, bad, malformed = [cluster.pod(launch, index) for launch in launches for index in range(2)]
        for gate in gates:
            gate.opened.set()
        assigned = {pod: client.assigned(pod) for pod in (first, good, bad, malformed)}
        deliver = delivering.deliver

        def delivers(store: Store, deliveries: Any, **named: Any) -> Any:
            listed = list(deliveries)
            if assigned[bad]["attempt"] in [one.attempt_id for one in listed]:
                raise StoreError("a statement is refused")
            return deliver(store, listed, **named)

        def sent(pod: str, document: bytes | None = None) -> Callable[[], Any]:
            return lambda: client.deliver(pod, assigned[pod]["attempt"], document or ledger_of(assigned[pod]))

        monkeypatch.setattr(delivering, "deliver", delivers)
        answers = together(gates[2], [sent(first), sent(malformed, b"{}"), sent(bad), sent(good)])
        assert gates[2].sizes == [1, 3, 1, 1, 1]
        assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
        assert [outcome(answers[place]) for place in (0, 1, 3)] == ["accepted", "quarantined", "accepted"]
        assert [one.attempt_id for one in reading.incidents(cluster.store)] == [assigned[malformed]["attempt"]]
        monkeypatch.undo()
        assert outcome(client.deliver(bad, assigned[bad]["attempt"], ledger_of(assigned[bad]))) == "accepted"
        assert reading.counts(cluster.store, cluster.matrix_id)["graded"] == 3


def test_many_pods_at_once_deliver_each_trial_once(store: Store) -> None:
    cluster = Cluster(store, manifest_of(repetitions=9), per_pod=3)
    with client_of(cluster) as client:
        launches = [cluster.launch(case=case.id) for case in cluster.manifest.cases]
        pods = [cluster.pod(launch, index) for launch in launches for index in range(3)]
        assert len(pods) == 12

        def runs(pod: str) -> list[tuple[int, str, bool]]:
            seen = []
            assigned = client.assigned(pod)
            while assigned is not None:
                attempt, lines = assigned["attempt"], [begin(assigned), *calls_of(assigned)]
                seen.append((attempt, assigned["trial"], assigned["more"]))
                assert client.journal(pod, attempt, lines).status_code == 204
                answer = client.deliver(pod, attempt, ledger_of(assigned), asked="&next=1")
                assert outcome(answer) == "accepted"
                assigned = answer.json().get("next")
            return seen

        with ThreadPoolExecutor(len(pods)) as running:
            seen = list(running.map(runs, pods))
        assert [[more for *_, more in one] for one in seen] == [[True, True, False]] * 12
        assert len({attempt for one in seen for attempt, *_ in one}) == 36
        assert len({trial for one in seen for _, trial, _ in one}) == 36
        trials = list(reading.trials(store, cluster.matrix_id))
        assert sorted(trial.attempt for trial in trials) == [0] * 36 + [1] * 36
        assert reading.counts(store, cluster.matrix_id)["graded"] == 36
        assert {client.ask(pod).status_code for pod in pods} == {204}
        assert (claiming.held(store), list(reading.incidents(store))) == ([], [])
