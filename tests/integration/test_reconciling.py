"""Whatever happens to Jobs and pods, each trial is in the store exactly once, with its attempts and their reasons.

A fake API server over real HTTP, a real store on both databases; statuses are those that a cluster writes.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cell_site import DENIED, LOOKED, Site, opened
from fake_cluster import Document, Refusal, stamp
from store_session import violations

from grading.store import Store, claiming, launching, losing, matrices, placing, reading
from grading.store.opening import TransactionName
from k8s.api import Api, ApiError

JOBS = "/apis/batch/v1/namespaces/cells/jobs"


@pytest.fixture
def make(store_url: str, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    with opened(store_url, tmp_path) as maker:
        yield maker


@pytest.fixture
def site(make: Callable[..., Site]) -> Iterator[Site]:
    made = make()
    yield made
    assert violations(made.store) == []


def condition(kind: str, reason: str) -> dict[str, object]:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": ""}]}


def test_a_matrix_runs_a_job_for_each_cell_and_leaves_none(site: Site) -> None:
    matrix = site.matrix(cases=3, repetitions=2, trials_per_pod=2)
    site.steps()
    assert len(site.jobs) == 3
    assert [job["spec"]["completions"] for job in site.jobs] == [1, 1, 1]
    site.finish()
    assert site.states(matrix) == ["graded"] * 6
    assert site.reasons(matrix) == [["delivered"]] * 6
    assert site.matrix_state(matrix) == "complete"
    assert site.jobs == []
    assert launching.unfinished(site.store) == []
    # A creation and a deletion for each cell: that is all that the API server is asked for but the watches.
    assert site.cluster.count("POST", JOBS) == 3
    assert site.cluster.count("DELETE", f"{JOBS}/.*") == 3
    assert site.cluster.count("GET", f"{JOBS}/.*") == 0


def test_a_step_is_wanted_at_once_for_a_new_matrix_and_for_the_end_of_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not site.reconciler.is_wanted()
    site.step()
    assert not site.reconciler.is_wanted()
    matrix = site.matrix(cases=2)
    assert site.reconciler.is_wanted()
    site.steps()
    assert not site.reconciler.is_wanted()
    first, second = (site.claimed(pod) for pod in site.pods)
    site.deliver(first)
    assert not site.reconciler.is_wanted()
    site.deliver(second)
    assert site.reconciler.is_wanted()
    site.step()
    assert site.matrix_state(matrix) == "complete"
    assert not site.reconciler.is_wanted()
    matrices.cancel(site.store, site.matrix("other"))
    assert not site.reconciler.is_wanted()
    site.finish()

    with monkeypatch.context() as failing:
        failing.setattr("k8s.reconciling.look", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            site.step()
    site.matrix("later")
    assert not site.reconciler.is_wanted()
    site.finish()

    monkeypatch.setattr("k8s.reconciling._FEW_TRIALS", 1)
    site.matrix("large", cases=2)
    site.steps()
    for pod in site.pods:
        site.deliver(site.claimed(pod))
    assert not site.reconciler.is_wanted()
    site.finish()


def test_a_job_is_kept_for_a_while_once_it_is_recorded(make: Callable[..., Site]) -> None:
    site = make(recorded_job_seconds=600)
    matrix = site.matrix()
    site.finish()
    assert site.matrix_state(matrix) == "complete"
    assert len(site.jobs) == 1
    assert site.cluster.count("DELETE", ".*") == 0


ENDS = {
    "recorder out of memory": ("recorder_out_of_memory", 137, {"reason": "OOMKilled"}),
    "recorder killed": ("recorder_killed", 137, {}),
    "intake lost": ("lost_intake", 75, {}),
    "no ledger": ("lost_intake", 0, {}),
    "deadline": ("deadline_exceeded", 137, {"reason_of_pod": "DeadlineExceeded"}),
    "evicted through the API": ("disrupted", 75, condition("DisruptionTarget", "EvictionByEvictionAPI")),
    "preempted": ("preempted", 75, condition("DisruptionTarget", "PreemptionByScheduler")),
    "node lost": ("node_lost", 137, condition("DisruptionTarget", "DeletionByTaintManager")),
    "node deleted": ("node_lost", 137, condition("DisruptionTarget", "DeletionByPodGC")),
    "unknown code": ("recorder_exit_1", 1, {}),
}


@pytest.mark.parametrize("asked", [True, False], ids=["after it asked", "before it asked"])
@pytest.mark.parametrize("kind", ENDS)
def test_a_pod_that_ends_without_a_ledger_is_replaced_and_counted(site: Site, kind: str, asked: bool) -> None:
    reason, code, how = ENDS[kind]
    how = dict(how)
    matrix = site.matrix()
    site.steps()
    pod = site.pod()
    if asked:
        site.claimed(pod)
    if (of_pod := how.pop("reason_of_pod", None)) is not None:
        site.end(pod, code, **how)
        status = site.cluster.objects["pods"][pod["metadata"]["name"]]["status"]
        site.cluster.change("pods", pod["metadata"]["name"], status={**status, "reason": of_pod})
    else:
        site.end(pod, code, **how)
    site.steps()
    assert site.reasons(matrix) == [[reason]]
    assert site.states(matrix) == ["open"]
    site.finish()
    assert site.reasons(matrix) == [[reason, "delivered"]]
    assert site.matrix_state(matrix) == "complete"
    assert site.jobs == []


@pytest.mark.parametrize(
    ("code", "reason", "allowed"), [(75, "lost_intake", 3), (1, "recorder_exit_1", 2)], ids=["charged", "unknown"]
)
def test_pods_that_never_ask_end_their_cell(site: Site, code: int, reason: str, allowed: int) -> None:
    matrix = site.matrix(cases=2)
    for _ in range(allowed):
        site.steps()
        for pod in site.pods:
            if pod["metadata"]["labels"]["cellwise.dev/case"] == "case-0":
                site.end(pod, code, message="ImportError: no module")
    site.finish()
    assert site.reasons(matrix) == [[reason] * allowed, ["delivered"]]
    assert site.states(matrix) == ["missing", "graded"]
    failed = reading.cells(site.store, matrix)[0]
    assert failed.state == "failed"
    assert failed.reason == (
        f"its pods end before they ask for a trial: {reason}: exit code {code}: ImportError: no module"
    )
    assert site.matrix_state(matrix) == "incomplete"


def test_evictions_by_the_cluster_are_not_charged(site: Site) -> None:
    matrix = site.matrix()
    for _ in range(6):
        site.steps()
        pod = site.pod()
        site.claimed(pod)
        site.end(pod, 75, **condition("DisruptionTarget", "EvictionByEvictionAPI"))
    site.finish()
    assert site.reasons(matrix) == [["disrupted"] * 6 + ["delivered"]]


def test_what_an_agent_did_before_its_pod_was_lost_is_not_washed_away(site: Site) -> None:
    matrix = site.matrix()
    site.steps()
    pod = site.pod()
    site.journal(pod, site.claimed(pod), LOOKED, DENIED)
    site.end(pod, 137, **condition("DisruptionTarget", "DeletionByTaintManager"))
    site.finish()
    (trial,) = reading.trials(site.store, matrix, ledgers=True, grades=True)
    assert site.reasons(matrix) == [["node_lost"]]
    assert trial.state == "graded"
    assert trial.grades[0].verdict == "failed"
    assert trial.ledger is not None
    assert b'"error":"AttemptLost"' in trial.ledger
    assert b'"place":{"host":"node-1","launcher":"kubernetes"' in trial.ledger


@pytest.mark.parametrize("told", [True, False], ids=["with a journal", "without one"])
def test_a_pod_that_used_up_the_disk_is_its_agents_overrun(site: Site, told: bool) -> None:
    matrix = site.matrix()
    site.steps()
    pod = site.pod()
    claim = site.claimed(pod)
    if told:
        site.journal(pod, claim, LOOKED)
    site.cluster.change(
        "pods",
        pod["metadata"]["name"],
        status={
            "phase": "Failed",
            "reason": "Evicted",
            "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "256Mi".',
        },
    )
    site.finish()
    (trial,) = reading.trials(site.store, matrix, ledgers=True, grades=True)
    assert site.reasons(matrix) == [["delivered"]]
    assert (trial.state, trial.grades[0].verdict) == ("graded", "failed")
    assert '"name":"budget","observed":"DiskLimit","passed":false' in trial.grades[0].checks
    assert trial.ledger is not None
    assert trial.ledger.count(b'"tool":"list_orders"') == told
    assert b'"sealed_by":"journal"' in trial.ledger
    assert site.matrix_state(matrix) == "complete"


def test_a_recorder_that_says_never_fails_its_cell_alone(site: Site) -> None:
    matrix = site.matrix(cases=2)
    site.steps()
    first = next(pod for pod in site.pods if pod["metadata"]["labels"]["cellwise.dev/case"] == "case-0")
    site.end(first, 78, message="software 0.2 is not the manifest's 0.1")
    site.finish()
    assert site.states(matrix) == ["missing", "graded"]
    cell = reading.cells(site.store, matrix)[0]
    assert (cell.state, cell.reason) == ("failed", "recorder: software 0.2 is not the manifest's 0.1")
    assert site.matrix_state(matrix) == "incomplete"
    assert site.jobs == []


def test_an_image_that_is_not_there_fails_its_cell_and_its_job_goes(site: Site) -> None:
    matrix = site.matrix()
    site.steps()
    waiting = {
        "name": "recorder",
        "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "image is not present"}},
    }
    site.cluster.change(
        "pods", site.pod()["metadata"]["name"], status={"phase": "Pending", "containerStatuses": [waiting]}
    )
    site.steps()
    assert reading.cells(site.store, matrix)[0].reason == "recorder: ErrImageNeverPull: image is not present"
    assert site.states(matrix) == ["missing"]
    assert site.matrix_state(matrix) == "incomplete"
    assert site.jobs == []


def test_an_unschedulable_pod_waits_and_says_why(site: Site) -> None:
    matrix = site.matrix()
    site.steps()
    name = site.pod()["metadata"]["name"]
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes: Insufficient cpu.",
    }
    site.cluster.change("pods", name, status={"phase": "Pending", "conditions": [refused]})
    site.steps()
    assert launching.unfinished(site.store)[0].waiting == "Unschedulable: 0/2 nodes: Insufficient cpu."
    assert site.reasons(matrix) == [[]]
    site.cluster.change("pods", name, status={"phase": "Running"})
    site.steps()
    assert launching.unfinished(site.store)[0].waiting is None
    site.finish()
    assert site.reasons(matrix) == [["delivered"]]


def refuse_pods(site: Site, message: str) -> None:
    """The API server refuses the pods of the only Job: the Job's controller says so in an event."""
    for pod in list(site.cluster.objects["pods"]):
        site.cluster.remove("pods", pod)
    job = site.jobs[0]["metadata"]
    event = {
        "metadata": {"name": "refused"},
        "involvedObject": {"kind": "Job", "name": job["name"], "uid": job["uid"]},
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": stamp(),
    }
    site.cluster.put("events", event)


QUOTA = (
    'Error creating: pods "x" is forbidden: exceeded quota: cells, requested: pods=1, used: pods={0}, limited: pods={0}'
)


def test_pods_that_a_used_up_quota_keeps_out_wait_while_others_may_make_room(make: Callable[..., Site]) -> None:
    site = make(refused_seconds=1)
    matrix = site.matrix()
    site.step()
    refuse_pods(site, QUOTA.format(5))
    foreign = {
        "metadata": {
            "name": "other",
            "labels": {"app.kubernetes.io/name": "cellwise", "app.kubernetes.io/component": "cell"},
        }
    }
    site.cluster.put("pods", foreign | {"status": {"phase": "Running"}})
    site.step()
    time.sleep(1.1)
    site.step()
    assert reading.cells(site.store, matrix)[0].state == "open"
    waiting = launching.unfinished(site.store)[0].waiting
    assert waiting is not None
    assert "exceeded quota" in waiting
    # Nothing of ours runs any more: nothing will make room.
    site.cluster.remove("pods", "other")
    site.step()
    assert "exceeded quota" in str(reading.cells(site.store, matrix)[0].reason)


@pytest.mark.parametrize(
    "message",
    [
        QUOTA.format(0),
        'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
        'Error creating: admission webhook "policy.example" denied the request: no',
    ],
)
def test_pods_that_are_refused_for_good_fail_their_cell(site: Site, message: str) -> None:
    matrix = site.matrix()
    site.step()
    refuse_pods(site, message)
    site.step()
    cell = reading.cells(site.store, matrix)[0]
    assert (cell.state, cell.reason) == ("failed", message.removeprefix("Error creating: "))
    for _ in range(3):
        site.step()
    assert site.jobs == []
    assert site.matrix_state(matrix) == "incomplete"


def test_a_job_that_the_server_calls_invalid_fails_its_cell_alone(site: Site) -> None:
    matrix = site.matrix(cases=2)
    site.cluster.fail_once("POST", JOBS, Refusal(422, "Invalid", "spec.template: bad quantity"))
    site.finish()
    assert sorted(site.states(matrix)) == ["graded", "missing"]
    assert reading.cells(site.store, matrix)[0].reason == "the API server refuses its Job: spec.template: bad quantity"


def test_an_installation_without_rights_waits_and_no_cell_pays(site: Site) -> None:
    matrix = site.matrix()
    refusal = Refusal(403, "Forbidden", 'jobs.batch is forbidden: User "x" cannot create resource "jobs"')
    site.cluster.fail_once("POST", JOBS, refusal, times=2)
    site.step()
    assert "cannot create resource" in str(launching.unfinished(site.store)[0].waiting)
    site.step()
    site.finish()
    assert site.reasons(matrix) == [["delivered"]]


def test_a_deleted_pod_is_charged_and_replaced(site: Site) -> None:
    matrix = site.matrix()
    site.steps()
    pod = site.pod()
    site.claimed(pod)
    site.cluster.change("pods", pod["metadata"]["name"], metadata={"deletionTimestamp": stamp()})
    site.steps()
    assert site.states(matrix) == ["leased"]
    site.end(pod, 75)
    site.steps()
    site.cluster.remove("pods", pod["metadata"]["name"])
    site.finish()
    assert site.reasons(matrix) == [["pod_deleted", "delivered"]]


def test_a_pod_that_vanished_unseen_is_explained_by_its_events(site: Site) -> None:
    matrix = site.matrix(cases=2)
    site.steps()
    for pod in site.pods:
        site.claimed(pod)
    marked, plain = site.pods
    event = {
        "metadata": {"name": "tainted"},
        "involvedObject": {"kind": "Pod", "uid": marked["metadata"]["uid"]},
        "reason": "TaintManagerEviction",
        "message": "Marking for deletion",
    }
    site.cluster.objects["events"]["tainted"] = event
    for pod in (marked, plain):
        site.cluster.remove("pods", pod["metadata"]["name"])
    del site.cluster.objects["events"]["tainted"]
    site.cluster.put("events", event)
    site.reconciler = site.another()
    site.reconciler.refusals._api  # noqa: B018 - a fresh one, which has seen neither pod
    site.cluster.run_jobs()
    for _ in range(3):
        site.reconciler.step()
    assert sorted(reasons[0] for reasons in site.reasons(matrix)) == ["node_lost", "pod_deleted"]


def test_a_job_deleted_by_hand_before_it_was_read_runs_again_under_another_name(site: Site) -> None:
    matrix = site.matrix(repetitions=2)
    site.steps()
    first, second = site.pods
    site.deliver(site.claimed(first))
    site.claimed(second)
    (job,) = site.jobs
    site.cluster.remove("jobs", job["metadata"]["name"])
    site.steps()
    assert [one["metadata"]["name"][-3:] for one in site.jobs] == ["-g2"]
    assert site.jobs[0]["spec"]["completions"] == 1
    site.finish()
    assert site.reasons(matrix) == [["delivered"], ["pod_deleted", "delivered"]]


def test_jobs_that_are_always_deleted_at_once_end_their_cell(site: Site) -> None:
    matrix = site.matrix()
    for _ in range(3):
        site.step()
        for job in site.jobs:
            site.cluster.remove("jobs", job["metadata"]["name"])
    for _ in range(3):
        site.step()
    assert site.reasons(matrix) == [["pod_deleted"] * 3]
    assert reading.cells(site.store, matrix)[0].state == "failed"
    assert site.jobs == []


def test_a_pod_stuck_on_a_silent_node_gives_its_trial_to_a_further_generation(make: Callable[..., Site]) -> None:
    site = make(stuck_terminating_seconds=60)
    matrix = site.matrix(repetitions=2)
    site.steps()
    stuck, other = site.pods
    site.claimed(stuck)
    site.claimed(other)
    ago = datetime.now(UTC) - timedelta(seconds=50)
    name = stuck["metadata"]["name"]
    site.cluster.change("pods", name, metadata={"deletionTimestamp": stamp(ago)})
    site.steps()
    assert site.reasons(matrix) == [["leased"], ["leased"]]
    site.cluster.change("pods", name, metadata={"deletionTimestamp": stamp(ago - timedelta(seconds=20))})
    site.step()
    site.step()
    assert site.reasons(matrix) == [["node_lost"], ["leased"]]
    assert sorted(job["metadata"]["name"][-3:] for job in site.jobs) == ["-g1", "-g2"]
    # Its node comes back: nothing that it still does counts.
    assert isinstance(site.claim(stuck), claiming.Stop)
    site.deliver(next(one for one in [site.claim(other)] if isinstance(one, claiming.PodClaim)))
    site.end(other, 0)
    site.cluster.run_jobs()
    new = next(pod for pod in site.pods if "-g2-" in pod["metadata"]["name"])
    site.work(new)
    site.cluster.run_jobs()
    for _ in range(3):
        site.step()
    assert site.states(matrix) == ["graded", "graded"]
    assert site.matrix_state(matrix) == "complete"
    site.reconciler._noticed.idle_since = dict.fromkeys(site.reconciler._noticed.idle_since, -1000.0)
    for _ in range(3):
        site.step()
    assert site.jobs == []


def test_a_cancelled_matrix_leaves_no_job_and_no_evidence_but_violations(site: Site) -> None:
    matrix = site.matrix(cases=3)
    site.steps()
    quiet, guilty, idle = site.pods
    site.journal(quiet, site.claimed(quiet), LOOKED)
    site.journal(guilty, site.claimed(guilty), LOOKED, DENIED)
    matrices.cancel(site.store, matrix)
    site.steps()
    assert site.jobs == []
    site.steps()
    assert launching.unfinished(site.store) == []
    assert sorted(site.reasons(matrix)) == [[], ["cancelled"], ["cancelled"]]
    assert sorted(site.states(matrix)) == ["graded", "open", "open"]
    assert idle["metadata"]["name"] not in site.cluster.objects["pods"]
    assert site.matrix_state(matrix) == "cancelled"


def test_a_paused_matrix_starts_nothing_and_goes_on_where_it_was(site: Site) -> None:
    matrix = site.matrix(cases=2)
    site.steps()
    running, fresh = site.pods
    claim = site.claimed(running)
    matrices.pause(site.store, matrix)
    assert isinstance(site.claim(fresh), claiming.Stop)
    site.end(fresh, 0)
    assert site.deliver(claim) == "accepted"
    site.end(running, 0)
    site.steps()
    assert sorted(site.states(matrix)) == ["graded", "open"]
    created = site.cluster.count("POST", JOBS)
    site.steps()
    assert site.cluster.count("POST", JOBS) == created
    matrices.resume(site.store, matrix)
    site.finish()
    # Being told to stop was nobody's fault.
    assert site.reasons(matrix) == [["delivered"], ["delivered"]]
    assert site.matrix_state(matrix) == "complete"


def test_a_failed_cell_runs_once_its_configuration_is_mended(site: Site) -> None:
    matrix = site.matrix()
    site.steps()
    site.end(site.pod(), 78)
    site.steps()
    assert site.matrix_state(matrix) == "incomplete"
    assert matrices.reopen(site.store, matrix) == 1
    site.finish()
    assert site.states(matrix) == ["graded"]
    assert site.matrix_state(matrix) == "complete"


def test_the_launch_is_stored_before_its_job_is_created(site: Site) -> None:
    stored: list[int] = []

    def look(request: object) -> None:
        if request.method.value == "POST":  # type: ignore[attr-defined]
            launch_id = request.data["metadata"]["annotations"]["cellwise.dev/launch"]  # type: ignore[attr-defined]
            assert launching.find(site.store, launch_id).state == "planned"
            stored.append(1)

    site.cluster.faults.append(look)
    site.matrix(cases=3)
    site.step()
    assert len(stored) == 3


def test_a_job_that_was_created_by_a_killed_controller_is_adopted(site: Site) -> None:
    matrix = site.matrix()
    # The answer to its creation is lost, and so is the process.
    real = site.reconciler._api.create

    def killed(path: str, body: object) -> object:
        real(path, body)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    site.reconciler._api.create = killed  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        site.step()
    site.reconciler = site.another()
    site.finish()
    assert site.reasons(matrix) == [["delivered"]]
    assert len(launching.of_matrix(site.store, matrix)) == 1


def test_a_job_of_somebody_else_is_left_alone_and_its_name_is_an_incident(site: Site) -> None:
    matrix = site.matrix()
    cell = reading.cells(site.store, matrix)[0].id
    name = launching.job_name(reading.find_matrix(site.store, matrix).manifest_hash, cell, 1)
    site.cluster.put("jobs", {"metadata": {"name": name, "annotations": {"cellwise.dev/launch": "another"}}})
    site.finish()
    assert site.reasons(matrix) == [["delivered"]]
    assert list(site.cluster.objects["jobs"]) == [name]
    assert [one.kind for one in reading.incidents(site.store, matrix)] == ["job_name_taken"]


def test_a_job_of_an_unknown_launch_is_left_alone(site: Site) -> None:
    labels = {"app.kubernetes.io/name": "cellwise", "app.kubernetes.io/component": "cell"}
    stranger = {"metadata": {"name": "cw-x", "labels": labels, "annotations": {"cellwise.dev/launch": "f" * 32}}}
    site.cluster.put("jobs", stranger | {"spec": {}})
    site.matrix()
    site.finish()
    assert list(site.cluster.objects["jobs"]) == ["cw-x"]


def test_two_controllers_at_once_do_no_harm(site: Site) -> None:
    matrix = site.matrix(cases=3, repetitions=2)
    other = site.another()
    ends = ["intake", "memory", "intake", "memory", "intake"]
    for _ in range(30):
        site.cluster.run_jobs()
        for one in (site.reconciler, other):
            site.catch_up(one)
        # Both look at the same at the same time; neither knows what the other does.
        with ThreadPoolExecutor(2) as both:
            for step in [both.submit(one.step) for one in (site.reconciler, other)]:
                step.result()
        for pod in site.pods:
            end = ends.pop() if ends else None
            if end == "intake":
                site.end(pod, 75)
            elif end == "memory":
                site.claimed(pod)
                site.end(pod, 137, reason="OOMKilled")
            else:
                site.work(pod)
        if site.matrix_state(matrix) == "complete" and not site.jobs:
            break
    assert site.matrix_state(matrix) == "complete"
    assert site.states(matrix) == ["graded"] * 6
    every = [reason for reasons in site.reasons(matrix) for reason in reasons]
    assert Counter(every) == {"delivered": 6, "lost_intake": 3, "recorder_out_of_memory": 2}
    assert len(launching.of_matrix(site.store, matrix)) == 3


def test_matrices_share_the_jobs_in_flight(make: Callable[..., Site]) -> None:
    site = make(jobs_in_flight=4)
    one = site.matrix("one", cases=6)
    site.steps()
    assert len(site.jobs) == 4
    two = site.matrix("two", cases=6, repetitions=1)
    for _ in range(2):
        site.work(site.pods[0])
        site.steps()
    of_matrix = [job["metadata"]["labels"]["cellwise.dev/matrix-id"] for job in site.jobs]
    assert (of_matrix.count(str(one)), of_matrix.count(str(two))) == (2, 2)
    site.finish()
    assert {site.matrix_state(one), site.matrix_state(two)} == {"complete"}


def test_a_providers_limit_holds_over_all_matrices(make: Callable[..., Site]) -> None:
    site = make(provider_limits={"openai": 3})
    one = site.matrix("one", repetitions=5, providers={"control": "openai"})
    two = site.matrix("two", cases=2, repetitions=2, providers={"control": "openai"})
    most = 0
    for _ in range(30):
        site.steps()
        most = max(most, len(site.pods))
        if not site.pods:
            break
        site.work(site.pods[0])
    assert most == 3
    assert {site.matrix_state(one), site.matrix_state(two)} == {"complete"}


def test_a_matrixs_own_parallelism_holds(site: Site) -> None:
    matrix = site.matrix(cases=3, repetitions=2, parallelism=2)
    for _ in range(30):
        site.steps()
        assert len(site.pods) <= 2
        if not site.pods:
            break
        site.work(site.pods[0])
    assert site.matrix_state(matrix) == "complete"


def test_only_the_chosen_cells_run(site: Site) -> None:
    matrix = site.matrix(cases=3, only=(placing.Chosen(case="case-1"),))
    site.finish()
    assert site.states(matrix) == ["open", "graded", "open"]
    assert site.matrix_state(matrix) == "running"


def test_a_queued_job_waits_suspended_and_says_so(site: Site) -> None:
    site.matrix(queue="team")
    site.steps()
    (job,) = site.jobs
    assert (job["spec"]["suspend"], job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]) == (True, "team")
    assert launching.unfinished(site.store)[0].waiting == "its Job is suspended until queue team admits it"


def test_a_matrix_that_was_placed_and_never_started_is_started(site: Site) -> None:
    matrix = site.matrix()
    with site.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE matrix SET state = 'registered'")
    site.finish()
    assert site.matrix_state(matrix) == "complete"


def test_an_api_server_that_is_away_changes_nothing(site: Site) -> None:
    matrix = site.matrix()
    site.cluster.faults.append(lambda _: 503)
    with pytest.raises(ApiError):
        site.reconciler.step()
    site.cluster.faults.clear()
    site.finish()
    assert site.reasons(matrix) == [["delivered"]]


class Killed(BaseException):
    """The process is gone."""


class Kill:
    """Ends the reconciler at its nth step of consequence: before or after a commit, before or after a write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.left = nth
        self.armed = False
        self.passed = 0
        commit, write = Store.transaction, Api.request

        @contextmanager
        def transaction(store: Store, name: TransactionName) -> Iterator[sa.Connection]:
            self._point()
            with commit(store, name) as connection:
                yield connection
            self._point()

        def request(api: Api, method: str, path: str, **how: Any) -> Document:
            if method == "GET":
                return write(api, method, path, **how)
            self._point()
            answer = write(api, method, path, **how)
            self._point()
            return answer

        monkeypatch.setattr(Store, "transaction", transaction)
        monkeypatch.setattr(Api, "request", request)

    def _point(self) -> None:
        if self.armed:
            self.passed += 1
            self.left -= 1
            if self.left == 0:
                raise Killed


def eventful(site: Site, kill: Kill) -> int:
    """A matrix of which much is lost; the controller's place is taken by a new one whenever it is killed."""
    matrix = site.matrix(cases=4)
    ends = ["overrun", "violation", "intake", "memory"]
    for _ in range(200):
        site.cluster.run_jobs()
        for pod in site.pods:
            end = ends.pop() if ends else None
            name = pod["metadata"]["name"]
            if end == "intake":
                site.end(pod, 75)
            elif end == "memory":
                site.claimed(pod)
                site.end(pod, 137, reason="OOMKilled")
            elif end == "violation":
                site.journal(pod, site.claimed(pod), LOOKED, DENIED)
                site.end(pod, 75, **condition("DisruptionTarget", "EvictionByEvictionAPI"))
            elif end == "overrun":
                site.claimed(pod)
                status = {"phase": "Failed", "reason": "Evicted", "message": "Container recorder exceeded its limit"}
                site.cluster.change("pods", name, status=status)
            else:
                site.work(pod)
        site.catch_up(site.reconciler)
        kill.armed = True
        try:
            moved = site.reconciler.step()
        except Killed:
            kill.armed, moved = False, True
            site.reconciler.stop()
            site.reconciler = site.another()
        kill.armed = False
        if not moved and not site.pods and site.matrix_state(matrix) == "complete" and not site.jobs:
            return matrix
    raise AssertionError("it does not end")


def assert_eventful(site: Site, matrix: int) -> None:
    assert violations(site.store) == []
    assert site.states(matrix) == ["graded"] * 4
    every = [reason for reasons in site.reasons(matrix) for reason in reasons]
    # A pod that ended before it asked is no attempt where the next one was done before anybody looked.
    assert Counter(every) - Counter(["lost_intake"]) == {"delivered": 3, "disrupted": 1, "recorder_out_of_memory": 1}
    assert launching.unfinished(site.store) == []
    assert site.cluster.objects["pods"] == {}
    launches = launching.of_matrix(site.store, matrix)
    assert len({launch.job for launch in launches}) == len(launches) == 4


def test_a_controller_killed_anywhere_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is killed at the point after the one before; the last is killed nowhere."""
    nth = 0
    while True:
        nth += 1
        folder = tmp_path / str(nth)
        folder.mkdir()
        with monkeypatch.context() as patch, opened(str(folder / "store.db"), folder) as maker:
            site, kill = maker(), Kill(patch, nth)
            assert_eventful(site, eventful(site, kill))
        if kill.left > 0:
            break
    assert nth > 40


def test_a_controller_killed_again_and_again_harms_nothing(
    make: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    kill = Kill(monkeypatch, 4)
    real = kill._point

    def again() -> None:
        try:
            real()
        except Killed:
            kill.left = 4 + kill.passed % 5
            raise

    kill._point = again  # type: ignore[method-assign]
    assert_eventful(site, eventful(site, kill))
    assert kill.passed > 40


def test_a_cell_that_failed_elsewhere_meanwhile_is_left_as_it_is(site: Site) -> None:
    matrix = site.matrix()
    site.steps()
    losing.fail_cell(site.store, reading.cells(site.store, matrix)[0].id, "the intake said so")
    site.end(site.pod(), 78)
    site.steps()
    assert reading.cells(site.store, matrix)[0].reason == "the intake said so"
    assert site.jobs == []
