"""From what Kubernetes says of a pod, a Job and its events to a row of the table of what goes wrong.

Pure functions of the API's documents as JSON values. The words of ``reason`` are the store's (grading/store/losing.py).
Sources: kubernetes.io/docs/concepts/workloads/pods/disruptions (DisruptionTarget and its reasons), the kubelet's status
reasons, and the messages of the admission plugins.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from k8s.job import AGAIN, AGENT, NEVER, RECORDER

Document = Mapping[str, Any]

PATIENCE_SECONDS = 60.0
"""How long a pod may fail to start for a reason that might pass: a registry that answers 503, a Secret on its way."""
_RESTARTS_OF_AGENT = 3
_LONGEST_DETAIL = 600

_DISRUPTIONS: Mapping[str, str] = {
    "EvictionByEvictionAPI": "disrupted",
    "PreemptionByScheduler": "preempted",
    "DeletionByTaintManager": "node_lost",
    "DeletionByPodGC": "node_lost",
    "TerminationByKubelet": "disrupted",
}
"""By the reason of the condition DisruptionTarget; any other one is the cluster's doing as well."""

_CLUSTERS_DOING: Mapping[str, str] = {
    "NodeLost": "node_lost",
    "NodeShutdown": "disrupted",
    "Shutdown": "disrupted",
    "Terminated": "disrupted",
    "Preempting": "preempted",
    # The kubelet refused a pod that the scheduler had given it: the node had changed meanwhile.
    "UnexpectedAdmissionError": "disrupted",
    "NodeAffinity": "disrupted",
    "OutOfcpu": "disrupted",
    "OutOfmemory": "disrupted",
    "OutOfpods": "disrupted",
    "OutOfephemeral-storage": "disrupted",
}
"""By a failed pod's own reason."""

_EVENTS: Mapping[str, str] = {
    "TaintManagerEviction": "node_lost",
    "NodeNotReady": "node_lost",
    "Preempted": "preempted",
}
"""By the reason of an event: what is left of a pod that is gone."""

_NOT_STARTED = ("StartError", "ContainerCannotRun")
_NO_TRACE = ("ContainerStatusUnknown", "Unknown")
"""What a kubelet says of a container that it no longer finds, as after its machine was cut from power."""
_UNUSABLE_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
_PULLING = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable")
_MISCONFIGURED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NO_SUCH_IMAGE = re.compile(r"not found|manifest unknown|does not exist|pull access denied|unauthorized", re.IGNORECASE)
_TOLD_TO_END = '"reason":"terminated'
"""In the last line of a recorder that was sent SIGTERM."""
_SIGKILL, _SIGTERM = 128 + 9, 128 + 15

EndKind = Literal["succeeded", "lost", "overrun", "never"]
"""``succeeded``: exit 0. ``lost``: try again, as the store allows. ``overrun``: the agent's own use, which is evidence.
``never``: no further pod of this cell would do better."""


@dataclass(frozen=True, slots=True)
class End:
    """How a pod ended."""

    kind: EndKind
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a pod does not run, or is not there."""

    never: bool
    """Whether waiting is in vain."""
    why: str


def ended(pod: Document, *, suspended: bool = False) -> End | None:
    """How a pod ended; None for one that has not.

    Args:
        suspended: whether its Job is: then the Job's controller has deleted it, for Kueue.
    """
    status = pod.get("status") or {}
    if status.get("phase") == "Succeeded":
        return End("succeeded", "lost_intake", "its recorder ended well, and no ledger of its trial was accepted")
    if status.get("phase") != "Failed":
        return None
    state = _terminated(pod, RECORDER)
    code = state.get("exitCode") if state else None
    said = _clean(str((state or {}).get("message") or ""))
    if code == NEVER:
        return End("never", "wrong_configuration", f"recorder: {said}" if said else f"recorder: exit code {NEVER}")
    if (disruption := _disruption(pod)) is not None:
        return disruption
    of_pod = str(status.get("reason") or "")
    message = _clean(str(status.get("message") or ""))
    if of_pod == "DeadlineExceeded":
        return End("lost", "deadline_exceeded", message or of_pod)
    if of_pod == "Evicted":
        return End("overrun", "evicted", message or of_pod)
    if of_pod in _CLUSTERS_DOING:
        return End("lost", _CLUSTERS_DOING[of_pod], message or of_pod)
    if _deleted(pod):
        return _deleted_pod(suspended=suspended)
    return _by_exit(pod, state, said)


def gone(last: Document | None, events: Iterable[Document] = (), *, suspended: bool = False) -> End:
    """How a pod ended that is no longer there.

    Args:
        last: as it was seen last, if ever.
        events: those that name it; the API keeps them for an hour.
    """
    if last is not None:
        end = ended(last, suspended=suspended) or _disruption(last)
        if end is not None:
            return end
    for event in events:
        reason, message = str(event.get("reason") or ""), _clean(str(event.get("message") or ""))
        if reason in _EVENTS:
            return End("lost", _EVENTS[reason], message or reason)
        if reason == "Evicted":
            # The kubelet's words for a limit of the pod's own; pressure on the node leaves a condition, seen above.
            own = re.search(r"exceed", message) is not None
            return End("overrun", "evicted", message) if own else End("lost", "disrupted", message)
    return _deleted_pod(suspended=suspended)


def stuck(pod: Document, now: datetime, after_seconds: float) -> bool:
    """Whether a pod should be gone long since: its node does not answer, and no replacement will come for it."""
    should_be_gone = moment(pod.get("metadata", {}).get("deletionTimestamp"))
    terminal = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return should_be_gone is not None and not terminal and (now - should_be_gone).total_seconds() > after_seconds


def hindrance(pod: Document, now: datetime) -> Hindrance | None:
    """Why a pod does not start; None for one that runs, has ended, or is on its way."""
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "Pending", "Unknown") or _deleted(pod):
        return None
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return Hindrance(False, _named(scheduled.get("reason"), scheduled.get("message")))
    since = moment(scheduled.get("lastTransitionTime")) or moment(pod["metadata"].get("creationTimestamp"))
    patient = since is not None and (now - since).total_seconds() < PATIENCE_SECONDS
    for container in (*_statuses(pod, "initContainerStatuses"), *_statuses(pod, "containerStatuses")):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason"), str(waiting.get("message") or "")
        why = f"{container.get('name')}: {_named(reason, message)}"
        if reason in _UNUSABLE_IMAGE:
            return Hindrance(True, why)
        if reason in _PULLING:
            return Hindrance(not patient or _NO_SUCH_IMAGE.search(message) is not None, why)
        if reason in _MISCONFIGURED:
            return Hindrance(not patient, why)
        if container.get("name") == AGENT and container.get("restartCount", 0) >= _RESTARTS_OF_AGENT:
            return Hindrance(True, f"the agent's container does not stay up: {_last_words(container) or why}")
    return None


def refusal(message: str) -> Hindrance:
    """Why the API server refused a pod or a Job, from its message.

    A quota that is used up is waited for while something may free it, although it is a refusal: with 50 Jobs in flight
    and room for 20 pods, 30 cells would otherwise fail for being early. A pod that could never fit is refused for good.
    """
    why = _clean(message.removeprefix("Error creating: "))
    if "exceeded quota" in message:
        return Hindrance(_could_never_fit(message), why)
    if "error looking up service account" in message or "being terminated" in message:
        return Hindrance(False, why)
    final = ("is forbidden", "failed quota", "violates PodSecurity", "denied the request", "is invalid")
    return Hindrance(any(words in message for words in final), why)


def refusals(events: Iterable[Document]) -> list[Hindrance]:
    """Why the pods of a Job are not there, the latest first, from its events."""
    failed = [event for event in events if event.get("reason") == "FailedCreate"]
    failed.sort(key=_happened, reverse=True)
    return [refusal(str(event.get("message") or "")) for event in failed]


def job_end(job: Document) -> Literal["complete", "failed"] | None:
    """Whether a Job has ended: then none of its pods runs any more."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            return "complete" if condition["type"] == "Complete" else "failed"
    return None


def suspended(job: Document) -> bool:
    return (job.get("spec") or {}).get("suspend") is True


def index(pod: Document) -> int | None:
    """The index of an indexed Job that a pod is for."""
    metadata = pod.get("metadata") or {}
    text = (metadata.get("annotations") or {}).get("batch.kubernetes.io/job-completion-index")
    text = (metadata.get("labels") or {}).get("batch.kubernetes.io/job-completion-index") if text is None else text
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


def moment(text: object) -> datetime | None:
    """A time as the API writes it; None where there is none."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _by_exit(pod: Document, state: Document | None, said: str) -> End:
    if state is None:
        if (before := _lost_track(pod)) is not None:
            return End("lost", "node_lost", before)
        return End("lost", "pod_failed", f"it failed, and nothing says how its {RECORDER} ended")
    code, reason = state.get("exitCode"), str(state.get("reason") or "")
    detail = (
        f"exit code {code}" + (f", {reason}" if reason not in ("", "Error") else "") + (f": {said}" if said else "")
    )
    if reason in _NOT_STARTED:
        return End("never", "wrong_configuration", f"{RECORDER}: {_named(reason, said)}")
    if reason in _NO_TRACE:
        return End("lost", "node_lost", detail)
    # containerd names a container so, too, of which only a child was killed: the exit code tells them apart.
    if reason == "OOMKilled" and code == _SIGKILL:
        return End("lost", "recorder_out_of_memory", detail)
    if code == AGAIN:
        # Told to end, and not by its pod's end, of which there would be other traces.
        last = str(state.get("message") or "").rstrip().rpartition("\n")[2]
        reason = "recorder_killed" if _TOLD_TO_END in last else "lost_intake"
        return End("lost", reason, detail + _agents_end(pod))
    if code in (_SIGKILL, _SIGTERM):
        return End("lost", "recorder_killed", detail)
    if isinstance(code, int) and code > 128:
        return End("lost", f"recorder_signal_{code - 128}", detail)
    return End("lost", f"recorder_exit_{code}", detail)


def _lost_track(pod: Document) -> str | None:
    """What a kubelet that came back says of a recorder that it no longer finds: waiting to begin, having run before."""
    for container in _statuses(pod, "containerStatuses"):
        before = (container.get("lastState") or {}).get("terminated") or {}
        if container.get("name") == RECORDER and before.get("reason") in _NO_TRACE:
            return _clean(str(before.get("message") or before["reason"]))
    return None


def _agents_end(pod: Document) -> str:
    """What became of the agent's container, for whoever asks why its recorder gave up."""
    for container in _statuses(pod, "initContainerStatuses"):
        if container.get("name") == AGENT and (words := _last_words(container)):
            return f"; {AGENT}: {words}"
    return ""


def _last_words(container: Document) -> str:
    for name in ("state", "lastState"):
        state = (container.get(name) or {}).get("terminated")
        if state and state.get("exitCode"):
            return _named(f"exit code {state['exitCode']}, {state.get('reason') or 'Error'}", state.get("message"))
    return ""


def _deleted_pod(*, suspended: bool) -> End:
    if suspended:
        return End("lost", "preempted", "its Job was suspended")
    return End("lost", "pod_deleted", "it was deleted, and not by the cluster")


def _disruption(pod: Document) -> End | None:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = str(condition.get("reason") or "")
            return End("lost", _DISRUPTIONS.get(reason, "disrupted"), _named(reason, condition.get("message")))
    return None


def _deleted(pod: Document) -> bool:
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def _statuses(pod: Document, name: str) -> Sequence[Document]:
    found: Sequence[Document] = (pod.get("status") or {}).get(name) or ()
    return found


def _terminated(pod: Document, name: str) -> Document | None:
    for container in _statuses(pod, "containerStatuses"):
        if container.get("name") == name:
            found: Document | None = (container.get("state") or {}).get("terminated")
            return found
    return None


def _happened(event: Document) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
        or ""
    )


def _could_never_fit(message: str) -> bool:
    """Whether what is requested is more than the quota has in all."""
    found = re.search(r"requested: (.*?), used: (.*?), limited: (.*)", message)
    if found is None:
        return False
    from kubernetes.utils.quantity import parse_quantity

    def amounts(listed: str) -> dict[str, Decimal]:
        pairs = (one.partition("=") for one in listed.split(","))
        return {name.strip(): parse_quantity(value.strip()) for name, _, value in pairs}

    try:
        requested, limited = amounts(found[1]), amounts(found[3])
    except ValueError:
        return False
    return any(name in limited and amount > limited[name] for name, amount in requested.items())


def _named(reason: object, message: object) -> str:
    said = _clean(str(message or ""))
    return f"{reason}: {said}" if said else str(reason)


def _clean(text: str) -> str:
    """One line that any store takes, not endless."""
    line = " ".join(text.encode(errors="replace").decode().replace("\0", "").split())
    return line if len(line) <= _LONGEST_DETAIL else f"{line[: _LONGEST_DETAIL - 1]}…"
