"""The people API over real HTTP: who may do what, what is refused and where it is wrong, and that nothing is lost."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from people_server import PeopleServer, people_server, run_cells

from grading.manifest import Manifest, Schedule, resolve
from grading.people_client import PeopleClient
from grading.people_protocol import Ledgers, MatrixStatus, Registered
from grading.pulling import pull
from grading.store import Store, leasing, losing, owners, placing, reading
from grading.studies import find_study
from simulator.canonical import canonical

IMAGE = "registry.example/team/agent@sha256:" + "a" * 64


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    """The packaged study, as a cluster runs it."""
    resolved = resolve(find_study("order-resolution")).manifest
    return resolved.model_copy(update={"schedule": Schedule(rule="rotating", order="parallel")})


@pytest.fixture
def server(store_url: str) -> Iterator[PeopleServer]:
    with Store.open(store_url) as store, people_server(store) as running:
        yield running


@pytest.fixture
def sqlite_server(tmp_path: Path) -> Iterator[PeopleServer]:
    with Store.open(tmp_path / "store.db") as store, people_server(store) as running:
        yield running


def asked(manifest: Manifest, placement: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    return {"version": 1, "manifest": manifest.model_dump(mode="json") | changed, "placement": placement or {}}


def refused(answer: Any, status: int) -> tuple[str | None, str]:
    """Place and message of a refusal."""
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert set(problem) == {"version", "error", "place"}
    return problem["place"], problem["error"]


def test_a_matrix_is_registered_placed_and_run_and_the_same_again_changes_nothing(
    server: PeopleServer, manifest: Manifest, tmp_path: Path
) -> None:
    placement = {"trials_per_pod": 2, "parallelism": 4, "queue": "team", "providers": {"descriptive-control": "none"}}
    answer = server.request("POST", "/v1/matrices", json=asked(manifest, placement))
    assert answer.status_code == 200, answer.text
    first = Registered.model_validate_json(answer.content)
    assert (first.created, first.state, first.manifest, first.changes) == (True, "running", manifest.hash(), [])
    placed = placing.placements(server.store)
    assert [(one.matrix_id, one.state) for one in placed] == [(first.id, "running")]
    assert placed[0].placement == placing.Placement(
        trials_per_pod=2,
        parallelism=4,
        queue="team",
        providers={"descriptive-control": "none"},
        actor="system:serviceaccount:cellwise:cellwise-editor",
    )
    again = server.request("POST", "/v1/matrices", json=asked(manifest, placement))
    assert Registered.model_validate_json(again.content) == first.model_copy(update={"created": False})
    assert run_cells(server.store, tmp_path) == ["complete"]
    status = MatrixStatus.model_validate_json(server.request("GET", "/v1/matrices/order-resolution").content)
    assert (status.state, status.counts.graded, status.on_cluster) == ("complete", 16, True)
    assert status.plain is not None
    assert status.plain.splitlines()[1:] == [
        "descriptive-control   8/8     8         6          0",
        "first-record-mutant   8/8     2         3          5",
    ]
    for word in (str(first.id), manifest.hash(), manifest.hash()[7:19]):
        assert server.request("GET", f"/v1/matrices/{word}").json()["id"] == first.id
    light = server.request("GET", f"/v1/matrices/{first.id}?summary=no").json()
    assert (light["summary"], light["plain"]) == (None, None)
    document = server.request("GET", f"/v1/matrices/{first.id}/manifest").content
    assert document == manifest.document()


def test_ledgers_come_in_planned_order_in_pages(
    sqlite_server: PeopleServer, manifest: Manifest, tmp_path: Path
) -> None:
    made = server_registered(sqlite_server, manifest)
    run_cells(sqlite_server.store, tmp_path)
    seen, after, pages = [], -1, 0
    while True:
        answer = sqlite_server.request("GET", f"/v1/matrices/{made.id}/ledgers?after={after}&limit=5", "viewer")
        page = Ledgers.model_validate_json(answer.content)
        seen += page.trials
        pages += 1
        if not page.more:
            break
        after = page.trials[-1].sequence
    assert (pages, [one.sequence for one in seen]) == (4, list(range(16)))
    stored = {one.sequence: one for one in reading.trials(sqlite_server.store, made.id, ledgers=True)}
    for one in seen:
        assert one.evidence == 1
        ledger = one.attempts[0].ledger
        assert ledger is not None
        assert ledger.encode() == stored[one.sequence].ledger
        assert len(one.attempts[0].grades) == 1
    for query in ("after=x", "after=-2", "limit=0", "limit=501", "limit=1e2", "after=%00", "limit=" + "9" * 30):
        place, _ = refused(sqlite_server.request("GET", f"/v1/matrices/{made.id}/ledgers?{query}"), 422)
        assert place == query.partition("=")[0]


def test_a_lost_attempts_journal_is_copied_to_the_byte(
    sqlite_server: PeopleServer, manifest: Manifest, tmp_path: Path
) -> None:
    """Also one that a pod's end has cut off within a character."""
    made, journal = server_registered(sqlite_server, manifest), b'{"call":"caf\xc3'
    owner = owners.Owner.this_process()
    owners.enrol(sqlite_server.store, owner)
    (claimed,) = leasing.claim(sqlite_server.store, owner.id, made.id, limit=1, lease_seconds=60)
    losing.lose(sqlite_server.store, [losing.Lost(claimed.attempt_id, "not_started", journal=journal)])
    reached = SimpleNamespace(url=sqlite_server.url, trouble=None, token=lambda *, renew=False: "viewer")
    with Store.open(tmp_path / "copy.db") as copy, PeopleClient(reached) as client:
        assert pull(client, copy, made.id).refused == []
        (attempt,) = reading.attempts(copy, reading.find_trial(copy, 1).id)
        assert (attempt.number, attempt.state, attempt.reason) == (1, "lost", "not_started")
        assert reading.journal_document(copy, attempt.id) == journal


def server_registered(server: PeopleServer, manifest: Manifest, **placement: Any) -> Registered:
    answer = server.request("POST", "/v1/matrices", json=asked(manifest, placement))
    assert answer.status_code == 200, answer.text
    return Registered.model_validate_json(answer.content)


def test_who_may_not_is_told_nothing_and_changes_nothing(sqlite_server: PeopleServer, manifest: Manifest) -> None:
    made = server_registered(sqlite_server, manifest)
    reads = ["/v1/whoami", "/v1/matrices", f"/v1/matrices/{made.id}"]
    reads += [f"/v1/matrices/{made.id}/{name}" for name in ("attempts", "manifest", "ledgers", "incidents")]
    changes = [f"/v1/matrices/{made.id}/{name}" for name in ("pause", "resume", "cancel")]
    for path in reads:
        assert sqlite_server.request("GET", path, "viewer").status_code == 200
        answer = sqlite_server.request("GET", path, None)
        assert answer.headers["www-authenticate"] == "Bearer"
        refused(answer, 401)
        refused(sqlite_server.request("GET", path, "somebody"), 401)
    for path in [*changes, "/v1/matrices"]:
        # Also with nonsense as a body, and of a matrix that does not exist: rights come first.
        for body in (b"", b"{", b"\xff"):
            refused(sqlite_server.request("POST", path, "viewer", content=body), 403)
            refused(sqlite_server.request("POST", path, None, content=body), 401)
    refused(sqlite_server.request("POST", "/v1/matrices/none/cancel", "viewer"), 403)
    assert reading.find_matrix(sqlite_server.store, made.id).state == "running"


def test_states_that_do_not_allow_it_are_conflicts(server: PeopleServer, manifest: Manifest) -> None:
    made = server_registered(server, manifest)
    path = f"/v1/matrices/{made.id}"

    def moved(what: str) -> tuple[str, bool]:
        answer = server.request("POST", f"{path}/{what}")
        assert answer.status_code == 200, answer.text
        return answer.json()["state"], answer.json()["changed"]

    assert [moved("pause"), moved("pause")] == [("paused", True), ("paused", False)]
    assert [moved("resume"), moved("resume")] == [("running", True), ("running", False)]
    moved("pause")
    assert server_registered(server, manifest).state == "running"
    assert [moved("cancel"), moved("cancel")] == [("cancelled", True), ("cancelled", False)]
    for what in ("pause", "resume"):
        assert "cancelled" in refused(server.request("POST", f"{path}/{what}"), 409)[1]
    assert "cancelled" in refused(server.request("POST", "/v1/matrices", json=asked(manifest)), 409)[1]
    for word in ("nothing", "999", "0" * 64, "x" * 201, "a%00b", "%F0%9F%A6%80"):
        refused(server.request("GET", f"/v1/matrices/{word}"), 404)


def test_stopping_takes_no_body(sqlite_server: PeopleServer, manifest: Manifest) -> None:
    """What a later client might ask for there, such as one cell alone, must not stop the whole matrix."""
    registered = server_registered(sqlite_server, manifest)
    for what in ("pause", "cancel"):
        for body in (b'{"version":2,"only":[{"case":"x"}]}', b"nonsense", b"{}"):
            answer = sqlite_server.request("POST", f"/v1/matrices/{registered.id}/{what}", content=body)
            assert refused(answer, 422)[1] == "this request has no body"
    assert reading.find_matrix(sqlite_server.store, registered.id).state == "running"


@pytest.mark.parametrize(
    ("path", "place", "told"),
    [
        ("?summary=maybe", "summary", "must be yes or no"),
        ("?sumary=no", "sumary", "no such parameter: this request takes summary"),
        ("?summary=no&summary=yes", "summary", "is given twice: keep one"),
        ("/attempts?case=a&only=b", "only", "no such parameter: this request takes cell, case, condition"),
        ("/ledgers?after=0&after=1", "after", "is given twice: keep one"),
        ("/incidents?limit=3", "limit", "no such parameter: this request takes after"),
        ("/manifest?version=2", "version", "this request takes no parameter"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused(
    sqlite_server: PeopleServer, manifest: Manifest, path: str, place: str, told: str
) -> None:
    registered = server_registered(sqlite_server, manifest)
    found = refused(sqlite_server.request("GET", f"/v1/matrices/{registered.id}{path}"), 422)
    assert found[0] == place
    assert found[1].startswith(told)


def test_a_change_with_a_parameter_changes_nothing(sqlite_server: PeopleServer, manifest: Manifest) -> None:
    registered = server_registered(sqlite_server, manifest)
    for what in ("pause", "cancel", "resume"):
        refused(sqlite_server.request("POST", f"/v1/matrices/{registered.id}/{what}?case=x"), 422)
    assert reading.find_matrix(sqlite_server.store, registered.id).state == "running"


def test_resuming_chooses_cells_anew(sqlite_server: PeopleServer, manifest: Manifest, tmp_path: Path) -> None:
    made = server_registered(sqlite_server, manifest, only=[{"condition": "first-record-mutant"}], parallelism=3)
    assert run_cells(sqlite_server.store, tmp_path) == ["open"]
    status = sqlite_server.request("GET", f"/v1/matrices/{made.id}").json()
    assert (status["counts"]["open"], status["placed"]["open"], status["placed"]["graded"]) == (8, 0, 8)
    answer = sqlite_server.request("POST", f"/v1/matrices/{made.id}/resume", json={"only": [{"case": "none"}]})
    assert refused(answer, 422) == ("only.0.case", "there is no case 'none'")
    assert sqlite_server.request("POST", f"/v1/matrices/{made.id}/resume", json={}).status_code == 200
    placed = placing.placements(sqlite_server.store)[0].placement
    assert (placed.only, placed.parallelism) == ((), 3)
    assert run_cells(sqlite_server.store, tmp_path) == ["complete"]


def test_finished_trials_are_taken_over(sqlite_server: PeopleServer, manifest: Manifest, tmp_path: Path) -> None:
    old = server_registered(sqlite_server, manifest)
    run_cells(sqlite_server.store, tmp_path)
    more = manifest.model_copy(update={"repetitions": manifest.repetitions + 2})
    new = server_registered(sqlite_server, more, reuse=str(old.id))
    assert (new.created, new.reused, new.previous, new.changes) == (True, 16, old.id, ["repetitions 2 -> 4"])
    assert server_registered(sqlite_server, more, reuse=str(old.id)).reused == 0
    other = manifest.model_copy(update={"repetitions": 6})
    refused(sqlite_server.request("POST", "/v1/matrices", json=asked(other, {"reuse": "none"})), 404)
    assert len(reading.matrices(sqlite_server.store)) == 2


def test_two_clients_that_register_at_once_register_once(server: PeopleServer, manifest: Manifest) -> None:
    answers: list[Registered] = []
    ready = threading.Barrier(6)

    def register() -> None:
        ready.wait()
        answers.append(server_registered(server, manifest, trials_per_pod=2))

    threads = [threading.Thread(target=register) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [one.id for one in answers] == [answers[0].id] * 6
    assert sorted(one.created for one in answers) == [False] * 5 + [True]
    assert len(placing.placements(server.store)) == 1
    assert reading.find_matrix(server.store, answers[0].id).state == "running"
    assert sum(reading.counts(server.store, answers[0].id).values()) == 16


ZERO = "sha256:" + "0" * 64


def forged(manifest: Manifest, path: str, value: Any) -> dict[str, Any]:
    """The request with one member of its manifest another; ``DROP`` takes it away."""
    document = json.loads(json.dumps(asked(manifest)))
    *way, last = path.split(".")
    inner: Any = document["manifest"]
    for step in way:
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    key: Any = int(last) if isinstance(inner, list) else last
    if value == "DROP":
        del inner[key]
    else:
        inner[key] = value
    return dict(document)


@pytest.mark.parametrize(
    ("path", "value", "place", "message"),
    [
        ("simulator.source", ZERO, "simulator", "this cluster runs"),
        ("simulator.version", "9.9", "simulator", "of simulator 9.9 ("),
        ("graders.0.version", ZERO, "graders.0.version", "this cluster has sha256:"),
        ("graders", [], "graders", "names no grader"),
        ("world", "hotels", "world", "no world is called"),
        ("schedule.order", "strict", "schedule.order", "order: parallel"),
        ("version", 2, "version", "Input should be 1"),
        ("version", True, "version", "Input should be 1"),
        ("name", "x" * 64, "name", "1 to 63"),
        ("name", "DROP", "name", "Field required"),
        ("more", 1, "more", "Extra inputs"),
        ("repetitions", 10_001, "repetitions", "10000"),
        ("repetitions", 2.0, None, ""),
        ("baseline", "first-record-mutant", "", "the baseline must be the first"),
        ("population.0.customer", "somebody", "", "the population"),
        ("cases.0.id", "x" * 201, "cases.0.id", "200"),
        ("cases.0.id", "a\nb", "cases.0.id", "control characters"),
        ("cases.0.utterance", "a\0b", "cases.0.utterance", "NUL"),
        ("cases.0.labels", {"a\0": "b"}, "cases.0.labels", "NUL"),
        ("cases.0.records.0.amount_cents", -1, "cases.0.records.0.amount_cents", "greater"),
        ("cases.0.records.0.amount_cents", "DROP", "cases.0.records.0.amount_cents", "Field required"),
        ("cases.0.records.0.paid", True, "cases.0.records.0.paid", "Extra inputs"),
        ("cases.0.expectation", {}, "cases.0.expectation", "Field required"),
        ("cases.0.expectation.order", "order-none", "cases.0.expectation.order", "order"),
        ("cases.0.world_settings", {}, "cases.0", "resolved case"),
        ("conditions.0.agent.source", ZERO, "conditions.0.agent.source", "of this cluster is sha256:"),
        ("conditions.0.agent.name", "no-such-agent", "conditions.0.agent.name", "no packaged agent"),
        ("conditions.0.agent.name", "agent:answer", "conditions.0.agent.name", "image: NAME@sha256:"),
        ("conditions.0.agent.name", "os:system", "conditions.0.agent.name", "image: NAME@sha256:"),
        ("conditions.0.agent.settings", {"warmth": 3}, "conditions.0.agent.name", "does not take these settings"),
        ("conditions.0.agent.env", ["A=b"], "conditions.0.agent.env", "no name of an environment variable"),
        ("conditions.0.limits.seconds", 1e9, "conditions.0.limits.seconds", "less than or equal"),
    ],
)
def test_forged_manifests(
    unregistered: PeopleServer, manifest: Manifest, path: str, value: Any, place: str | None, message: str
) -> None:
    if place is None:
        # 2.0 is canonically 2: the same manifest, nothing is forged.
        answer = unregistered.request("POST", "/v1/matrices", "viewer", json=forged(manifest, path, value))
        assert answer.status_code == 403
        return
    answer = unregistered.request("POST", "/v1/matrices", json=forged(manifest, path, value))
    found, told = refused(answer, 422)
    assert found is not None
    assert found.startswith(f"manifest.{place}".rstrip(".")), (found, told)
    assert message in told
    assert reading.matrices(unregistered.store) == []


@pytest.fixture(scope="module")
def unregistered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeopleServer]:
    """A server whose store stays empty, whatever is asked."""
    with Store.open(tmp_path_factory.mktemp("empty") / "store.db") as store, people_server(store) as running:
        yield running


@pytest.mark.parametrize(
    ("placement", "place"),
    [
        ({"images": {"descriptive-control": IMAGE}}, "manifest.conditions.0.agent.name"),
        ({"images": {"nobody": IMAGE}}, "manifest.conditions"),
        ({"images": {"descriptive-control": "agent:latest"}}, "placement.images.descriptive-control"),
        ({"providers": {"nobody": "openai"}}, "placement.providers"),
        ({"only": [{"case": "none"}]}, "placement.only.0.case"),
        ({"only": [{"condition": "none"}]}, "placement.only.0.condition"),
        ({"trials_per_pod": 0}, "placement.trials_per_pod"),
        ({"queue": "x" * 300}, "placement.queue"),
        ({"actor": "me"}, "placement.actor"),
    ],
)
def test_placements_that_fit_no_manifest(
    unregistered: PeopleServer, manifest: Manifest, placement: dict[str, Any], place: str
) -> None:
    answer = unregistered.request("POST", "/v1/matrices", json=asked(manifest, placement))
    assert refused(answer, 422)[0] == place
    assert reading.matrices(unregistered.store) == []


def test_bodies_that_are_no_request(unregistered: PeopleServer, manifest: Manifest) -> None:
    whole = json.dumps(asked(manifest)).encode()
    for body in (
        b"",
        b"[]",
        b"null",
        whole[:-1],
        b"\xff\xfe",
        whole.replace(b'"order-resolution"', b'"\\ud800"', 1),
        whole.replace(b'"seed": null', b'"seed": 1e999', 1),
        whole.replace(b'"seed": null', b'"seed": NaN', 1),
        whole.replace(b'"seed": null', b'"seed": 9007199254740993', 1),
        whole.replace(b'"repetitions": ', b'"repetitions": 4, "repetitions": ', 1),
        b'{"version": 1, "version": 1,' + whole.removeprefix(b'{"version": 1,'),
        b'{"version":1,"manifest":' + b"[" * 100_000 + b"]" * 100_000 + b',"placement":{}}',
        b'{"version":1,"manifest":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b',"placement":{}}',
    ):
        refused(unregistered.request("POST", "/v1/matrices", content=body), 422)
    refused(unregistered.request("POST", "/v1/matrices", content=b" " * (32 * 1024 * 1024 + 1)), 413)

    def endless() -> Iterator[bytes]:
        for _ in range(33):
            yield b" " * 1024 * 1024

    refused(unregistered.request("POST", "/v1/matrices", content=endless()), 413)
    refused(unregistered.request("PUT", "/v1/matrices", content=whole), 405)
    refused(unregistered.request("GET", "/v2/matrices"), 404)
    assert reading.matrices(unregistered.store) == []


def test_an_agent_in_an_image_is_registered_by_its_digest(sqlite_server: PeopleServer, manifest: Manifest) -> None:
    agent = manifest.conditions[0].agent.model_copy(
        update={"name": "agent:answer", "source": "sha256:" + "a" * 64, "reuse": False}
    )
    conditions = [manifest.conditions[0].model_copy(update={"agent": agent}), *manifest.conditions[1:]]
    own = Manifest.from_document(
        canonical(manifest.model_copy(update={"conditions": conditions}).model_dump(mode="json"))
    )
    name = own.conditions[0].name
    other = IMAGE.replace("a" * 64, "b" * 64)
    place, told = refused(
        sqlite_server.request("POST", "/v1/matrices", json=asked(own, {"images": {name: other}})), 422
    )
    assert (place, other in told, "b" * 64 in told) == ("manifest.conditions.0.agent.source", True, True)
    assert reading.matrices(sqlite_server.store) == []
    server_registered(sqlite_server, own, images={name: IMAGE})
    assert placing.placements(sqlite_server.store)[0].placement.images == {name: IMAGE}


def test_names_of_200_characters(sqlite_server: PeopleServer, manifest: Manifest) -> None:
    long = "ß/ \U0001f980'\"<" + "x" * 193
    document = asked(manifest)
    document["manifest"]["conditions"][0]["name"] = long
    document["manifest"]["baseline"] = long
    document["manifest"]["cases"][0]["id"] = long
    document["manifest"]["population"][0]["case"] = long
    document["placement"] = {"only": [{"case": long, "condition": long}], "providers": {long: "p"}}
    answer = sqlite_server.request("POST", "/v1/matrices", json=document)
    assert answer.status_code == 200, answer.text
    found = sqlite_server.request(
        "GET", f"/v1/matrices/{answer.json()['id']}/attempts", params={"case": long, "condition": long}
    ).json()
    assert (found["attempts"], found["launches"], found["cells_namespace"]) == ([], [], "cellwise-cells")
    cell = next(one for one in reading.cells(sqlite_server.store, answer.json()["id"]) if one.case_id == long)
    for query in ({"cell": cell.id}, {"case": long}):
        assert sqlite_server.request("GET", "/v1/matrices/1/attempts", params=query).status_code == 200
    refused(sqlite_server.request("GET", "/v1/matrices/1/attempts", params={"cell": 999}), 404)
