"""What a user can rely on in Phoenix: every trial once, whatever was repeated, killed, restarted or wiped."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from grading.phoenix_server import EmbeddedPhoenix
from grading.publisher.phoenix import Phoenix, PhoenixRefused, PhoenixUnavailable
from grading.publisher.reconcile import Published, publish
from tests.integration.phoenix_fixture import own_phoenix_folder, phoenix_server, shown
from tests.phoenix_sample import BASELINE, MUTANT, lost, regraded, sample

__all__ = ["own_phoenix_folder", "phoenix_server"]

KILLS = int(os.environ.get("CELLWISE_TEST_PUBLISHER_KILLS", "12"))


def study(number: str, **changes: Any) -> Any:
    """A matrix of its own for each test, in the one Phoenix."""
    return sample(name=f"order-resolution {number}", manifest=f"sha256:{number * 8:0>64}"[:71], **changes)


def put(url: str, desired: Any, **options: Any) -> Published:
    with Phoenix(url) as client:
        return publish(desired, client, **options)


def assert_once(url: str, name: str) -> dict[str, Any]:
    """One dataset of 4 examples, two experiments, 16 runs, 16 traces linked from the runs, the figures of the study."""
    there = shown(url, name)
    assert [example["id"] for example in there["examples"]] == [
        "explicit-description",
        "ambiguous-description",
        "customer-correction",
        "unresolved-description",
    ]
    assert sorted(there["experiments"]) == [BASELINE, MUTANT]
    assert there["experiments"][BASELINE]["tags"] == ["baseline"]
    assert there["experiments"][MUTANT]["tags"] == []
    for condition, passed, completed in ((BASELINE, 8, 6), (MUTANT, 2, 3)):
        experiment = there["experiments"][condition]
        assert experiment["metadata"]["state"] == "complete"
        assert (
            len(experiment["runs"])
            == len({(r["dataset_example_id"], r["repetition_number"]) for r in experiment["runs"]})
            == 8
        )
        linked = {run["trace_id"] for run in experiment["runs"]}
        assert len(linked) == 8
        assert {trace["trace_id"] for trace in experiment["traces"]} == linked
        kinds = Counter(span["span_kind"] for trace in experiment["traces"] for span in trace["spans"])
        # The control lists 8 times, asks 4 times, refunds 6 times in 4 calls; the mutant lists and refunds 8 times.
        assert kinds == {"AGENT": 8, "TOOL": {BASELINE: 8 + 4 + 24, MUTANT: 8 + 32}[condition]}
        scores: Counter[str] = Counter()
        for run in experiment["exported"]:
            assert sorted(given["name"] for given in run["annotations"]) == ["completed", "contract", "coverage"]
            scores.update({given["name"]: given["score"] for given in run["annotations"]})
        assert scores == {"contract": passed, "completed": completed, "coverage": 8}
    return there


def test_the_study_is_shown_once_however_often_it_is_published(phoenix_server: EmbeddedPhoenix) -> None:
    desired = study("1")
    first = put(phoenix_server.url, desired)
    assert first.complete
    assert (first.counts.runs_posted, first.counts.evaluations_posted, first.counts.experiments_created) == (16, 48, 2)
    before = assert_once(phoenix_server.url, desired.name)
    started = time.monotonic()
    again = put(phoenix_server.url, desired)
    assert time.monotonic() - started < 2
    assert (again.compare_url, again.complete) == (first.compare_url, True)
    assert not any(getattr(again.counts, name) for name in again.counts.__dataclass_fields__)
    thorough = put(phoenix_server.url, desired, thorough=True)
    assert not any(getattr(thorough.counts, name) for name in thorough.counts.__dataclass_fields__)
    after = assert_once(phoenix_server.url, desired.name)
    assert after["dataset"] == before["dataset"]
    for condition in (BASELINE, MUTANT):
        assert after["experiments"][condition]["exported"] == before["experiments"][condition]["exported"]


def test_a_run_shows_the_trials_own_times_and_a_failing_run_says_which_checks_failed(
    phoenix_server: EmbeddedPhoenix,
) -> None:
    desired = study("2")
    put(phoenix_server.url, desired)
    [run] = [
        run
        for run in shown(phoenix_server.url, desired.name)["experiments"][MUTANT]["exported"]
        if run["input"] == {"input": "Refund the blue backpack bought on 2026-08-02."} and run["repetition_number"] == 1
    ]
    assert run["latency_ms"] == 250
    assert run["error"] is None
    assert run["output"].splitlines()[:3] == ["Your refund has been confirmed.", "", "claimed: refunded"]
    assert run["output"].splitlines()[-1] == "- issue_refund(4000, null, USD, refund:order-a, order-a): committed"
    [contract] = [given for given in run["annotations"] if given["name"] == "contract"]
    assert (contract["label"], contract["score"]) == ("failed", 0.0)
    assert contract["explanation"] == (
        'outcome: {"commits": {"order-a": 1, "order-b": 0, "order-c": 0}}\nwrong_order_commits: 1'
    )


def test_a_matrix_under_way_is_partial_and_a_missing_trial_that_comes_later_replaces_its_error(
    phoenix_server: EmbeddedPhoenix,
) -> None:
    def under_way(condition: str, run: Any) -> Any:
        if run.repetition == 1:
            return None
        return lost(run) if run.case_id == "customer-correction" else run

    desired = study("3", change=under_way, final=False)
    assert not put(phoenix_server.url, desired).complete
    there = shown(phoenix_server.url, desired.name)["experiments"][f"{MUTANT} (PARTIAL)"]
    assert (there["successful_run_count"], there["failed_run_count"], there["missing_run_count"]) == (3, 1, 4)
    [missing] = [run for run in there["exported"] if run["error"] is not None]
    assert missing["error"] == "missing after 3 attempts: provider unavailable"
    assert [(given["name"], given["label"], given["score"]) for given in missing["annotations"]] == [
        ("coverage", "missing", 0.0)
    ]
    put(phoenix_server.url, study("3"))
    after = assert_once(phoenix_server.url, desired.name)
    assert after["experiments"][MUTANT]["id"] == there["id"]


def test_a_regrade_replaces_evaluations_and_a_persons_verdict_stays(phoenix_server: EmbeddedPhoenix) -> None:
    desired = study("4")
    put(phoenix_server.url, desired)
    run = shown(phoenix_server.url, desired.name)["experiments"][MUTANT]["runs"][0]
    given = {
        "experiment_run_id": run["id"],
        "name": "contract",
        "annotator_kind": "HUMAN",
        "start_time": run["end_time"],
        "end_time": run["end_time"],
        "result": {"label": "fine by me", "score": 0.5},
    }
    httpx.post(f"{phoenix_server.url}/v1/experiment_evaluations", json=given).raise_for_status()
    done = put(phoenix_server.url, study("4", change=lambda condition, run: regraded(run)))
    assert (done.counts.runs_posted, done.counts.evaluations_posted) == (0, 47)
    assert any("was given by a person and is kept" in note for note in done.notes)
    exported = shown(phoenix_server.url, desired.name)["experiments"][MUTANT]["exported"]
    contracts = [given for run in exported for given in run["annotations"] if given["name"] == "contract"]
    assert Counter(given["label"] for given in contracts)["fine by me"] == 1
    assert Counter(given["metadata"].get("grader_version") for given in contracts) == {"v2": 7, None: 1}


def test_other_evidence_makes_the_experiment_anew_and_an_annotated_one_is_kept(phoenix_server: EmbeddedPhoenix) -> None:
    from dataclasses import replace

    desired = study("5")
    put(phoenix_server.url, desired)
    before = shown(phoenix_server.url, desired.name)["experiments"]
    given = {
        "data": [
            {
                "trace_id": before[MUTANT]["runs"][0]["trace_id"],
                "name": "seen",
                "annotator_kind": "HUMAN",
                "result": {"label": "yes"},
            }
        ]
    }
    httpx.post(f"{phoenix_server.url}/v1/trace_annotations?sync=true", json=given).raise_for_status()

    def other(condition: str, run: Any) -> Any:
        return replace(run, output={"message": "Other evidence."}) if run.case_id == "explicit-description" else run

    changed = study("5", change=other)
    done = put(phoenix_server.url, changed)
    assert (done.counts.experiments_created, done.counts.experiments_removed, done.counts.runs_posted) == (2, 1, 16)
    after = shown(phoenix_server.url, desired.name)
    assert sorted(after["experiments"]) == [BASELINE, MUTANT, f"{MUTANT} (superseded)"]
    assert after["experiments"][f"{MUTANT} (superseded)"]["id"] == before[MUTANT]["id"]
    assert after["experiments"][BASELINE]["tags"] == ["baseline"]
    assert before[BASELINE]["project_name"] not in after["projects"]
    assert len(after["experiments"][BASELINE]["traces"]) == 8
    assert not any(
        getattr(put(phoenix_server.url, changed, thorough=True).counts, name)
        for name in ("runs_posted", "experiments_removed")
    )


def test_what_a_person_made_on_the_dataset_is_left_as_it_is(phoenix_server: EmbeddedPhoenix) -> None:
    desired = study("6")
    put(phoenix_server.url, desired)
    there = shown(phoenix_server.url, desired.name)
    with httpx.Client(base_url=phoenix_server.url) as http:
        dataset = there["dataset"]["id"]
        own = {"name": "mine", "metadata": {"by": "hand"}, "repetitions": 1}
        mine = http.post(f"/v1/datasets/{dataset}/experiments", json=own).raise_for_status().json()["data"]
        http.post(f"/v1/experiments/{mine['id']}/tags", json={"name": "baseline"}).raise_for_status()
        example = {
            "action": "append",
            "name": desired.name,
            "inputs": [{"request": "Where is my parcel?"}],
            "outputs": [{}],
            "metadata": [{}],
            "example_ids": ["mine"],
        }
        http.post("/v1/datasets/upload?sync=true", json=example).raise_for_status()
        http.patch(
            f"/v1/experiments/{there['experiments'][MUTANT]['id']}", json={"name": "what we ship"}
        ).raise_for_status()
    put(phoenix_server.url, study("6", change=lambda condition, run: regraded(run)))
    after = shown(phoenix_server.url, desired.name)
    assert sorted(after["experiments"]) == [BASELINE, "mine", "what we ship"]
    assert after["experiments"]["mine"]["metadata"] == {"by": "hand"}
    assert after["experiments"]["mine"]["tags"] == ["baseline"]
    assert "mine" in [example["id"] for example in after["examples"]]


def test_a_strangers_dataset_of_the_same_name_is_refused(phoenix_server: EmbeddedPhoenix) -> None:
    body = {"action": "create", "name": "order-resolution 7", "inputs": [{"a": 1}], "outputs": [{}], "metadata": [{}]}
    httpx.post(f"{phoenix_server.url}/v1/datasets/upload?sync=true", json=body).raise_for_status()
    with pytest.raises(PhoenixRefused, match=r"another dataset named .order-resolution 7.*rename it there"):
        put(phoenix_server.url, study("7"))
    there = shown(phoenix_server.url, "order-resolution 7")
    assert (len(there["examples"]), there["experiments"]) == (1, {})


def test_names_and_texts_of_any_kind_are_shown(phoenix_server: EmbeddedPhoenix) -> None:
    from dataclasses import replace

    desired = study("8", change=lambda condition, run: replace(run, output={"message": "a\x00b\ud800" + "x" * 30_000}))
    [baseline, mutant] = desired.conditions
    desired = replace(desired, conditions=[replace(baseline, name='控制 <b>"1"</b>\n'), mutant])
    put(phoenix_server.url, desired)
    done = put(phoenix_server.url, desired, thorough=True)
    assert (done.counts.runs_posted, done.counts.evaluations_posted, done.complete) == (0, 0, True)
    there = shown(phoenix_server.url, desired.name)["experiments"]
    assert sorted(there) == [r"\u63a7\u5236 <b> 1 </b> ", MUTANT]
    message = there[MUTANT]["runs"][0]["output"]["message"]
    assert message[:4] == "a␀b?"
    assert message.endswith("x … [10,004 more characters are in the store]")


def test_killing_the_publisher_at_random_moments_leaves_everything_once(phoenix_server: EmbeddedPhoenix) -> None:
    desired = study("9")
    chance = random.Random(20260801)
    killed = 0
    for number in range(KILLS):
        if number % 6 == 0:
            _forget(phoenix_server.url, desired.name)
        process = subprocess.Popen([sys.executable, "-c", _PUBLISH, phoenix_server.url, "9"])
        time.sleep(chance.uniform(0.3, 3.0))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed > KILLS / 3
    assert put(phoenix_server.url, desired).complete
    assert_once(phoenix_server.url, desired.name)


_PUBLISH = """
import sys
from grading.publisher.phoenix import Phoenix
from grading.publisher.reconcile import publish
from tests.integration.test_publisher import study
publish(study(sys.argv[2]), Phoenix(sys.argv[1]))
"""


def _forget(url: str, name: str) -> None:
    """Deletes our experiments, so that the next kill meets a publication that has all to do."""
    if httpx.get(f"{url}/v1/datasets", params={"name": name}).json()["data"]:
        for experiment in shown(url, name)["experiments"].values():
            httpx.delete(f"{url}/v1/experiments/{experiment['id']}?delete_project=true").raise_for_status()


def test_a_phoenix_killed_midway_and_one_wiped_are_filled_again(own_phoenix_folder: Path) -> None:
    desired = study("a")
    with EmbeddedPhoenix(own_phoenix_folder) as server:
        server.wait()
        pid = _server_pid(own_phoenix_folder)

        def kill(condition: str, done: int, total: int) -> None:
            if condition == MUTANT:
                os.kill(pid, signal.SIGKILL)

        with Phoenix(server.url, patience=1.0) as client, pytest.raises(PhoenixUnavailable, match="is not available"):
            publish(desired, client, progress=kill)
    with EmbeddedPhoenix(own_phoenix_folder) as server:
        server.wait()
        assert put(server.url, desired).complete
        assert_once(server.url, desired.name)
    for database in own_phoenix_folder.glob("phoenix.db*"):
        database.unlink()
    with EmbeddedPhoenix(own_phoenix_folder) as server:
        server.wait()
        assert put(server.url, desired).counts.runs_posted == 16
        assert_once(server.url, desired.name)


def _server_pid(folder: Path) -> int:
    import json

    return int(json.loads((folder / "server.json").read_text())["server"])
