"""After any sequence of interruptions a matrix is in Phoenix exactly once, and what a person made is as it was."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from grading.publisher.desired import DesiredMatrix, DesiredRun
from grading.publisher.phoenix import Phoenix, PhoenixRefused
from grading.publisher.reconcile import Published, publish
from tests.phoenix_sample import BASELINE, MUTANT, lost, regraded, sample
from tests.unit.phoenix_fake import FakePhoenix

FULL = sample()


def under_way(condition: str, run: DesiredRun) -> DesiredRun | None:
    if run.repetition == 1:
        return None
    return lost(run) if run.case_id == "customer-correction" else run


def other_evidence(condition: str, run: DesiredRun) -> DesiredRun:
    if condition == MUTANT and run.case_id == "explicit-description" and run.repetition == 0:
        return replace(run, output={"message": "Other evidence."}, spans=run.spans[:2])
    return run


TWO = ("explicit-description", "customer-correction")
SMALL = sample(cases=TWO)
EARLIER = [
    SMALL,
    sample(cases=TWO, change=under_way, final=False),
    sample(cases=TWO, change=lambda _, run: regraded(run)),
    sample(cases=TWO, change=other_evidence),
]


def put(phoenix: FakePhoenix, desired: DesiredMatrix = FULL, **options: Any) -> Published:
    client = Phoenix(
        "http://phoenix", transport=phoenix.transport, sleep=phoenix.sleep, clock=phoenix.clock, patience=10
    )
    with client:
        return publish(desired, client, sleep=phoenix.sleep, clock=phoenix.clock, **options)


def assert_once(phoenix: FakePhoenix, desired: DesiredMatrix = FULL) -> None:
    """Exactly what is desired is there, read from the fake's own state."""
    [dataset] = phoenix.datasets.values()
    nodes = {external: example["node_id"] for external, example in dataset["versions"][-1].items()}
    ours = {shown["name"]: shown for shown in phoenix.experiments.values() if "cellwise" in shown["metadata"]}
    assert len(ours) == sum("cellwise" in shown["metadata"] for shown in phoenix.experiments.values())
    assert sorted(ours) == sorted(condition.name for condition in desired.conditions)
    assert not any("cellwise_superseded" in shown["metadata"] for shown in phoenix.experiments.values())
    for condition in desired.conditions:
        experiment = ours[condition.name]
        project, runs = experiment["project_name"], experiment["runs"]
        wanted = list(condition.runs())
        assert runs.keys() == {(nodes[run.case_id], run.repetition + 1) for run in wanted}
        spans = {span: trace for span, (trace, of) in phoenix.spans.items() if of == project}
        for run in wanted:
            shown = runs[nodes[run.case_id], run.repetition + 1]
            assert (shown["output"], shown["error"]) == (run.output, run.error)
            assert list(spans.values()).count(shown["trace_id"]) == len(run.spans)
            given_now = {
                name: (given["label"], given["score"], given["metadata"])
                for name, given in shown["annotations"].items()
            }
            assert given_now == {e.name: (e.label, e.score, dict(e.metadata)) for e in run.evaluations}
        assert len(spans) == sum(len(run.spans) for run in wanted)
        assert experiment["metadata"]["state"] == "complete"
    assert phoenix.experiments[phoenix.tags["baseline"]] is ours[BASELINE]


def test_a_repeat_with_nothing_to_do_writes_nothing_and_asks_little() -> None:
    phoenix = FakePhoenix()
    put(phoenix)
    phoenix.schedule({})
    writes = phoenix.writes
    assert put(phoenix).complete
    assert (phoenix.writes, phoenix.requests) == (writes, 9)


def test_what_vanished_in_phoenix_is_found_by_a_thorough_publication() -> None:
    phoenix = FakePhoenix()
    put(phoenix)
    phoenix.spans.popitem()
    next(iter(phoenix.experiments[1]["runs"].values()))["annotations"].pop("contract")
    done = put(phoenix, thorough=True)
    assert (done.counts.spans_sent, done.counts.evaluations_posted, done.counts.runs_posted) == (1, 1, 0)
    assert_once(phoenix)


def test_spans_that_are_never_stored_leave_the_publication_incomplete() -> None:
    phoenix = FakePhoenix()
    drop: Callable[..., httpx.Response] = lambda body, query: httpx.Response(200)  # noqa: E731
    phoenix._traces = drop  # type: ignore[method-assign]
    done = put(phoenix)
    assert (done.complete, done.counts.spans_unconfirmed) == (False, 92)
    del phoenix._traces
    assert put(phoenix).complete
    assert_once(phoenix)


def test_a_persons_experiment_tag_name_and_annotation_survive_a_recreation() -> None:
    phoenix = FakePhoenix()
    put(phoenix)
    phoenix.experiments[7] = copy.deepcopy(phoenix.experiments[2]) | {
        "name": "mine",
        "metadata": {"cellwise_note": "copied"},
        "project_name": "mine",
    }
    phoenix.tags["baseline"] = 7
    phoenix.experiments[2]["name"] = "what we ship"
    mine = copy.deepcopy(phoenix.experiments[7])
    run = next(iter(phoenix.experiments[2]["runs"].values()))
    theirs = {"name": "mine", "annotator_kind": "LLM", "label": "ok", "score": 1.0, "explanation": None, "metadata": {}}
    run["annotations"]["mine"] = theirs
    done = put(phoenix, sample(change=other_evidence))
    assert phoenix.experiments[7] == mine
    assert phoenix.tags == {"baseline": 7}
    assert phoenix.experiments[2]["name"] == "what we ship (superseded)"
    assert "mine" in run["annotations"]
    assert done.counts.experiments_removed == 0
    assert "'what we ship (superseded)' is replaced but kept, because a person annotated it" in done.notes


def test_an_id_given_to_a_persons_experiment_after_ours_was_deleted_is_not_written_to() -> None:
    phoenix = FakePhoenix()

    def delete_and_create(condition: str, done: int, total: int) -> None:
        if condition == MUTANT and 2 in phoenix.experiments and phoenix.experiments[2]["name"] != "mine":
            del phoenix.experiments[2]
            phoenix.experiments[2] = {
                "dataset_id": next(iter(phoenix.datasets)),
                "dataset_version_id": "v1",
                "name": "mine",
                "metadata": {},
                "project_name": "mine",
                "runs": {},
            }

    put(phoenix, progress=delete_and_create)
    mine = phoenix.experiments[2]
    assert (mine["name"], mine["metadata"], mine["runs"]) == ("mine", {}, {})
    assert_once(phoenix)


def test_without_the_lease_nothing_is_written() -> None:
    class LeaseLostError(Exception):
        pass

    def refuse() -> None:
        raise LeaseLostError

    phoenix = FakePhoenix()
    with pytest.raises(LeaseLostError):
        put(phoenix, lease=refuse)
    assert phoenix.writes == 0


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "refuses the API key"),
        (403, "give a key that may write"),
        (302, "give Phoenix's own address"),
        (422, "is this another version"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, told: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text="no"))
    with pytest.raises(PhoenixRefused, match=told):
        publish(FULL, Phoenix("http://phoenix", transport=transport))


def test_the_key_is_sent_as_bearer() -> None:
    sent: list[httpx.Request] = []
    fake = FakePhoenix()

    def serve(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return fake._serve(request)

    publish(FULL, Phoenix("http://phoenix/below/", "secret", transport=httpx.MockTransport(lambda r: serve(_below(r)))))
    assert {request.headers["authorization"] for request in sent} == {"Bearer secret"}


def _below(request: httpx.Request) -> httpx.Request:
    assert request.url.path.startswith("/below/v1/")
    path = str(request.url).replace("/below/", "/")
    return httpx.Request(request.method, path, headers=request.headers, content=request.content)


@pytest.mark.parametrize("url", ["phoenix:6006", "ftp://phoenix", "", "http://", "http://phoenix:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(PhoenixRefused, match="is no address of a Phoenix"):
        Phoenix(url)


def test_another_service_at_the_address_is_named() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="<html>"))
    with pytest.raises(PhoenixRefused, match="does not answer as Phoenix does"):
        publish(FULL, Phoenix("http://phoenix", transport=transport))
