"""Which row of the table of what goes wrong a pod's, a Job's and an event's documents come to."""

from datetime import UTC, datetime
from typing import Any

import pytest

from grading.store.losing import REASONS
from k8s import reasons
from k8s.reasons import End, Hindrance

NOW = datetime(2026, 8, 1, 12, 0, 0, tzinfo=UTC)


def terminated(code: int, reason: str = "Error", message: str = "", name: str = "recorder") -> dict[str, Any]:
    state = {
        "exitCode": code,
        "reason": reason,
        "startedAt": "2026-08-01T11:59:00Z",
        "finishedAt": "2026-08-01T11:59:30Z",
    }
    return {"name": name, "restartCount": 0, "state": {"terminated": state | ({"message": message} if message else {})}}


def pod(phase: str, *containers: dict[str, Any], deleted: str | None = None, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": "cw-0123456789-1-g1-0-abcde",
        "uid": "u",
        "creationTimestamp": "2026-08-01T11:58:00Z",
    }
    if deleted is not None:
        metadata["deletionTimestamp"] = deleted
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": list(containers), **status}}


def disrupted(reason: str, message: str = "") -> list[dict[str, str]]:
    return [
        {"type": "PodScheduled", "status": "True"},
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message},
    ]


LATER = "2026-08-01T12:00:30Z"
ENDS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "it went well": (pod("Succeeded", terminated(0, "Completed")), "succeeded", "lost_intake",
        "its recorder ended well, and no ledger of its trial was accepted"),
    "its agent ran out of memory and it went well": (pod("Succeeded", terminated(0, "OOMKilled")), "succeeded",
        "lost_intake", "its recorder ended well, and no ledger of its trial was accepted"),
    "its recorder ran out of memory": (pod("Failed", terminated(137, "OOMKilled")), "lost", "recorder_out_of_memory",
        "exit code 137, OOMKilled"),
    "a child of its recorder ran out of memory": (pod("Failed", terminated(75, "OOMKilled")), "lost", "lost_intake",
        "exit code 75, OOMKilled"),
    "intake was lost": (pod("Failed", terminated(75, message="intake: no answer in 600 s\n")), "lost", "lost_intake",
        "exit code 75: intake: no answer in 600 s"),
    "its recorder was told to end": (
        pod("Failed", terminated(75, message='{"event":"trial"}\n{"event":"end","reason":"terminated"}\n')), "lost",
        "recorder_killed", 'exit code 75: {"event":"trial"} {"event":"end","reason":"terminated"}'),
    "intake was lost after its agent ran out of memory": (
        pod("Failed", terminated(75), initContainerStatuses=[terminated(137, "OOMKilled", name="agent")]), "lost",
        "lost_intake", "exit code 75; agent: exit code 137, OOMKilled"),
    "the software is another": (pod("Failed", terminated(78, message="another software")), "never",
        "wrong_configuration", "recorder: another software"),
    "never, without a word": (pod("Failed", terminated(78)), "never", "wrong_configuration", "recorder: exit code 78"),
    "never wins over a deletion": (pod("Failed", terminated(78), deleted=LATER), "never", "wrong_configuration",
        "recorder: exit code 78"),
    "it has no such program": (
        pod("Failed", terminated(128, "StartError", 'exec: "python": not found')), "never", "wrong_configuration",
        'recorder: StartError: exec: "python": not found'),
    "it was killed": (pod("Failed", terminated(137)), "lost", "recorder_killed", "exit code 137"),
    "it was ended": (pod("Failed", terminated(143)), "lost", "recorder_killed", "exit code 143"),
    "it crashed": (pod("Failed", terminated(139)), "lost", "recorder_signal_11", "exit code 139"),
    "it failed in an unknown way": (pod("Failed", terminated(1, message="Traceback")), "lost", "recorder_exit_1",
        "exit code 1: Traceback"),
    "it failed and nothing says how": (pod("Failed"), "lost", "pod_failed",
        "it failed, and nothing says how its recorder ended"),
    "it took too long": (
        pod("Failed", terminated(137), reason="DeadlineExceeded", message="Pod was active on the node longer"), "lost",
        "deadline_exceeded", "Pod was active on the node longer"),
    "it used up its disk": (
        pod("Failed", reason="Evicted", message='Usage of EmptyDir volume "tmp" exceeds the limit "256Mi". '),
            "overrun",
        "evicted", 'Usage of EmptyDir volume "tmp" exceeds the limit "256Mi".'),
    "its node was short of disk": (
        pod("Failed", terminated(137), reason="Evicted", message="The node was low on resource: ephemeral-storage.",
            conditions=disrupted("TerminationByKubelet", "The node was low on resource: ephemeral-storage.")), "lost",
        "disrupted", "TerminationByKubelet: The node was low on resource: ephemeral-storage."),
    "its node was drained": (
        pod("Failed", terminated(75), deleted=LATER, conditions=disrupted("EvictionByEvictionAPI",
            "Eviction API: evicting")),
        "lost", "disrupted", "EvictionByEvictionAPI: Eviction API: evicting"),
    "it was preempted": (
        pod("Failed", terminated(75), deleted=LATER, conditions=disrupted("PreemptionByScheduler")), "lost",
            "preempted",
        "PreemptionByScheduler"),
    "its node was cut off": (
        pod("Failed", terminated(137), deleted=LATER, conditions=disrupted("DeletionByTaintManager")), "lost",
            "node_lost",
        "DeletionByTaintManager"),
    "its node was deleted": (pod("Failed", deleted=LATER, conditions=disrupted("DeletionByPodGC")), "lost", "node_lost",
        "DeletionByPodGC"),
    "a disruption of a later Kubernetes": (pod("Failed", conditions=disrupted("ByNobodyYet")), "lost", "disrupted",
        "ByNobodyYet"),
    "its node was shut down": (pod("Failed", reason="Terminated", message="imminent node shutdown"), "lost",
        "disrupted",
        "imminent node shutdown"),
    "its node refused it": (pod("Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu"), "lost",
        "disrupted", "Node didn't have enough resource: cpu"),
    "its node lost power and came back": (pod("Failed", terminated(255, "Unknown")), "lost", "node_lost",
        "exit code 255, Unknown"),
    "its node knows it no longer": (
        pod("Failed", terminated(137, "ContainerStatusUnknown", "The container could not be located")), "lost",
            "node_lost",
        "exit code 137, ContainerStatusUnknown: The container could not be located"),
    "a person deleted it": (pod("Failed", terminated(75), deleted=LATER), "lost", "pod_deleted",
        "it was deleted, and not by the cluster"),
    "a person deleted it and it did not end by itself": (pod("Failed", terminated(137), deleted=LATER), "lost",
        "pod_deleted", "it was deleted, and not by the cluster"),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDS)
def test_how_a_pod_ended(what: str) -> None:
    document, *expected = ENDS[what]
    assert reasons.ended(document) == End(*expected)  # type: ignore[arg-type]


def test_a_recorder_that_was_told_to_end_after_many_trials() -> None:
    words = '{"event":"trial"}\n' * 60 + '{"event":"end","reason":"terminated"}\n'
    end = reasons.ended(pod("Failed", terminated(75, message=words)))
    assert end is not None
    assert end.reason == "recorder_killed"


def test_every_ordinary_end_has_an_allowance_of_its_own() -> None:
    unknown = {reason for _, _, reason, _ in ENDS.values() if reason not in REASONS}
    assert unknown == {"recorder_signal_11", "recorder_exit_1", "pod_failed"}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_a_pod_that_has_not_ended(phase: str) -> None:
    assert reasons.ended(pod(phase, deleted=LATER)) is None
    assert reasons.ended(pod(phase, conditions=disrupted("EvictionByEvictionAPI"))) is None


def test_a_pod_of_a_suspended_job_was_preempted_by_its_queue() -> None:
    assert reasons.ended(pod("Failed", terminated(75), deleted=LATER), suspended=True) == End(
        "lost", "preempted", "its Job was suspended"
    )


@pytest.mark.parametrize(
    ("last", "events", "kind", "reason"),
    [
        (None, [], "lost", "pod_deleted"),
        (pod("Running"), [], "lost", "pod_deleted"),
        (pod("Failed", terminated(137, "OOMKilled")), [], "lost", "recorder_out_of_memory"),
        (pod("Running", deleted=LATER, conditions=disrupted("DeletionByTaintManager")), [], "lost", "node_lost"),
        (None, [{"reason": "Scheduled"}, {"reason": "TaintManagerEviction"}], "lost", "node_lost"),
        (None, [{"reason": "NodeNotReady"}], "lost", "node_lost"),
        (None, [{"reason": "Preempted"}], "lost", "preempted"),
        (None, [{"reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit"}],
         "overrun", "evicted"),
        (None, [{"reason": "Evicted", "message": "The node was low on resource: memory."}], "lost", "disrupted"),
        (None, [{"reason": "Killing", "message": "Stopping container recorder"}], "lost", "pod_deleted"),
    ],
)  # fmt: skip
def test_how_a_pod_ended_that_is_gone(last: Any, events: Any, kind: str, reason: str) -> None:
    end = reasons.gone(last, events)
    assert (end.kind, end.reason) == (kind, reason)


def test_a_pod_is_stuck_some_time_after_it_should_be_gone() -> None:
    terminating = pod("Running", deleted="2026-08-01T11:54:59Z")
    assert reasons.stuck(terminating, NOW, 300)
    assert not reasons.stuck(terminating, NOW, 302)
    assert not reasons.stuck(pod("Running"), NOW, 0)
    assert not reasons.stuck(pod("Failed", deleted="2026-08-01T11:00:00Z"), NOW, 300)


def waiting(reason: str, message: str = "", name: str = "recorder") -> dict[str, Any]:
    return {"name": name, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}


def scheduled(at: str) -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]


LONG_AGO, JUST_NOW = scheduled("2026-08-01T11:58:59Z"), scheduled("2026-08-01T11:59:30Z")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (pod("Pending", waiting("ContainerCreating"), conditions=LONG_AGO), None),
        (pod("Running"), None),
        (pod("Pending", waiting("InvalidImageName", "bad"), conditions=JUST_NOW), (True,
            "recorder: InvalidImageName: bad")),
        (pod("Pending", waiting("ErrImageNeverPull"), conditions=JUST_NOW), (True, "recorder: ErrImageNeverPull")),
        (pod("Pending", waiting("ErrImagePull", "503 Service Unavailable"), conditions=JUST_NOW),
         (False, "recorder: ErrImagePull: 503 Service Unavailable")),
        (pod("Pending", waiting("ImagePullBackOff", "Back-off pulling image"), conditions=LONG_AGO),
         (True, "recorder: ImagePullBackOff: Back-off pulling image")),
        (pod("Pending", waiting("ErrImagePull", "registry/x: not found"), conditions=JUST_NOW),
         (True, "recorder: ErrImagePull: registry/x: not found")),
        (pod("Pending", waiting("CreateContainerConfigError", 'secret "s" not found'), conditions=JUST_NOW),
         (False, 'recorder: CreateContainerConfigError: secret "s" not found')),
        (pod("Pending", waiting("CreateContainerConfigError", 'secret "s" not found'), conditions=LONG_AGO),
         (True, 'recorder: CreateContainerConfigError: secret "s" not found')),
        (pod("Pending", initContainerStatuses=[waiting("ImagePullBackOff", name="agent")], conditions=LONG_AGO),
         (True, "agent: ImagePullBackOff")),
        (pod("Pending", waiting("PodInitializing"), conditions=JUST_NOW, initContainerStatuses=[
            {"name": "agent", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "No module named agent"}}}]),
         (True, "the agent's container does not stay up: exit code 1, Error: No module named agent")),
        (pod("Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
             "message": "0/2 nodes are available: 2 Insufficient cpu."}]),
         (False, "Unschedulable: 0/2 nodes are available: 2 Insufficient cpu.")),
        (pod("Pending", waiting("ErrImageNeverPull"), deleted=LATER), None),
    ],
)  # fmt: skip
def test_why_a_pod_does_not_start(document: dict[str, Any], expected: tuple[bool, str] | None) -> None:
    assert reasons.hindrance(document, NOW) == (None if expected is None else Hindrance(*expected))


FORBIDDEN = 'Error creating: pods "x" is forbidden: '


@pytest.mark.parametrize(
    ("message", "never"),
    [
        (f"{FORBIDDEN}exceeded quota: q, requested: pods=1, used: pods=20, limited: pods=20", False),
        (f"{FORBIDDEN}exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0", True),
        (f"{FORBIDDEN}exceeded quota: q, requested: limits.memory=2Gi,pods=1, used: limits.memory=0,pods=0, "
         "limited: limits.memory=1500Mi,pods=9", True),
        (f"{FORBIDDEN}exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=2, limited: requests.cpu=2",
            False),
        (f"{FORBIDDEN}failed quota: q: must specify limits.cpu for: recorder", True),
        (f'{FORBIDDEN}violates PodSecurity "restricted:latest": runAsNonRoot != true', True),
        (f"{FORBIDDEN}maximum cpu usage per Container is 1, but limit is 2", True),
        (f'{FORBIDDEN}error looking up service account cells/a: serviceaccount "a" not found', False),
        (f"{FORBIDDEN}unable to create new content in namespace cells because it is being terminated", False),
        ('Error creating: admission webhook "w" denied the request: no', True),
        ('Error creating: Internal error occurred: failed calling webhook "w": no endpoints', False),
        ('Error creating: Pod "x" is invalid: spec.containers[0].image: Required value', True),
        ("Error creating: etcdserver: request timed out", False),
    ],
)  # fmt: skip
def test_whether_a_refusal_may_pass(message: str, never: bool) -> None:
    assert reasons.refusal(message) == Hindrance(never, message.removeprefix("Error creating: "))


def test_the_latest_refusal_comes_first() -> None:
    events = [
        {"reason": "FailedCreate", "message": "Error creating: old", "lastTimestamp": "2026-08-01T11:00:00Z"},
        {"reason": "SuccessfulCreate", "message": "Created pod", "lastTimestamp": "2026-08-01T12:00:00Z"},
        {"reason": "FailedCreate", "message": "Error creating: new", "eventTime": "2026-08-01T11:30:00.000000Z"},
    ]
    assert [one.why for one in reasons.refusals(events)] == ["new", "old"]


def test_a_job_has_ended_only_with_a_condition_that_is_true() -> None:
    def job(kind: str, status: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": kind, "status": status}]}}

    assert reasons.job_end(job("Complete", "True")) == "complete"
    assert reasons.job_end(job("Failed", "True")) == "failed"
    assert reasons.job_end(job("Complete", "False")) is None
    assert reasons.job_end(job("SuccessCriteriaMet", "True")) is None
    assert reasons.job_end({}) is None


def test_an_index_is_a_number_or_none() -> None:
    def of(text: Any) -> dict[str, Any]:
        return {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": text}}}

    assert reasons.index(of("17")) == 17
    assert reasons.index(of("x")) is None
    assert reasons.index({"metadata": {}}) is None


def test_a_message_becomes_one_line_that_any_store_takes() -> None:
    end = reasons.ended(pod("Failed", terminated(1, message="a\0b\n\ud800c\t" + "x" * 2000)))
    assert end is not None
    assert end.detail.startswith("exit code 1: ab ?c xxx")
    assert len(end.detail) == len("exit code 1: ") + 600
    end.detail.encode()


def test_a_recorder_that_a_returned_kubelet_no_longer_finds_went_with_its_node() -> None:
    """As a kubelet wrote it whose machine had been cut from power and came back, in the moment before it settles."""
    message = "The container could not be located when the pod was deleted.  The container used to be Running"
    recorder = {
        "name": "recorder",
        "state": {"waiting": {"reason": "ContainerCreating"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}},
    }
    pod = {"metadata": {"name": "cell"}, "status": {"phase": "Failed", "containerStatuses": [recorder]}}
    end = reasons.ended(pod)
    assert end is not None
    assert (end.kind, end.reason) == ("lost", "node_lost")
    never_ran = {**recorder, "lastState": {}}
    pod = {"metadata": {"name": "cell"}, "status": {"phase": "Failed", "containerStatuses": [never_ran]}}
    end = reasons.ended(pod)
    assert end is not None
    assert end.reason == "pod_failed"
