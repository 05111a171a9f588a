"""One look at the cluster and the store, and small questions about what is seen."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from grading.store import Store, claiming, launching, placing
from k8s import reasons
from k8s.api import Document
from k8s.mirror import Mirror


@dataclass(slots=True)
class Look:
    """First the cluster, then the store: what a pod stored before it ended is so seen with its end."""

    jobs: dict[str, Document]
    """By uid."""
    pods: dict[str, Document]
    """By uid; those that are gone are not among them."""
    pods_of: dict[str, list[Document]]
    """By their Job's uid; those that went since the last look are among them."""
    refusals_of: dict[str, list[Document]]
    """By their Job's uid: events."""
    placed: dict[int, placing.Placed]
    launches: list[launching.Launch]
    job_uids: dict[str, str | None]
    """By launch."""
    held: dict[str, list[claiming.Held]]
    """By launch."""
    unsettled: dict[str, frozenset[int]]
    """By launch: the indexes with trials that are open or held."""
    now: datetime

    def state(self, matrix_id: int) -> str:
        """A matrix's; one that is not on the cluster any more is as good as cancelled."""
        placed = self.placed.get(matrix_id)
        return "cancelled" if placed is None else placed.state

    def job_of(self, launch_id: str) -> Document | None:
        return self.jobs.get(self.job_uids.get(launch_id) or "")

    def provider(self, launch: launching.Launch) -> str | None:
        """Whose rate limit its trials share."""
        return self.placed[launch.matrix_id].placement.providers.get(launch.condition)

    def pods_run(self) -> bool:
        """Whether any pod of ours is there that may make room by ending."""
        return any((pod.get("status") or {}).get("phase") in ("Pending", "Running") for pod in self.pods.values())


@dataclass(slots=True)
class Noticed:
    """What was noticed of things that are there now: lost with the process, and noticed again by the next one."""

    accounted: set[str] = field(default_factory=set)
    """Pods that ended and are in the store."""
    gone: set[str] = field(default_factory=set)
    """Jobs that the API server said are gone."""
    deleting: set[str] = field(default_factory=set)
    """Jobs whose deletion was asked for."""
    unknown: set[str] = field(default_factory=set)
    """Jobs of nobody known."""
    released: set[tuple[str, int]] = field(default_factory=set)
    """Launches and their indexes."""
    idle_since: dict[str, float] = field(default_factory=dict)
    refused_since: dict[str, float] = field(default_factory=dict)
    doomed: set[str] = field(default_factory=set)
    """Launches whose cell has failed."""

    def forget(self, look: Look) -> None:
        """Drops what is no longer there."""
        launches = {one.id for one in look.launches}
        uids = look.jobs.keys() | {one.job_uid for one in look.launches}
        self.accounted &= {pod["metadata"]["uid"] for pods in look.pods_of.values() for pod in pods}
        self.gone &= uids
        self.deleting &= uids
        self.unknown &= look.jobs.keys()
        self.doomed &= launches
        self.released = {one for one in self.released if one[0] in launches}
        for since in (self.idle_since, self.refused_since):
            for launch_id in since.keys() - launches:
                del since[launch_id]


def look(store: Store, jobs: Mirror, pods: Mirror, refusals: Mirror, now: datetime) -> Look:
    there, present, events = jobs.objects(), pods.objects(), refusals.objects()
    pods_of: dict[str, list[Document]] = {}
    for pod in [*present.values(), *pods.all_departed()]:
        if (owner := _owner(pod)) is not None:
            pods_of.setdefault(owner, []).append(pod)
    refusals_of: dict[str, list[Document]] = {}
    for event in events.values():
        refusals_of.setdefault(str(event.get("involvedObject", {}).get("uid")), []).append(event)
    placed = {one.matrix_id: one for one in placing.placements(store)}
    launches = launching.unfinished(store)
    held: dict[str, list[claiming.Held]] = {}
    for one in claiming.held(store):
        held.setdefault(one.launch_id, []).append(one)
    unsettled = launching.unsettled_indexes(store, [one.id for one in launches if one.state != "ended"])
    job_uids = {one.id: one.job_uid for one in launches}
    return Look(there, present, pods_of, refusals_of, placed, launches, job_uids, held, unsettled, now)


def pods_wanted(job: Document) -> tuple[int, int]:
    """How many pods of a Job may run at once, and how many of its indexes are left."""
    spec, status = job["spec"], job.get("status") or {}
    failed = 0
    for part in str(status.get("failedIndexes") or "").split(","):
        first, _, last = part.partition("-")
        if first:
            failed += int(last or first) - int(first) + 1
    left = int(spec["completions"]) - int(status.get("succeeded") or 0) - failed
    return int(spec["parallelism"]), max(0, left)


def runs(job: Document) -> bool:
    """Whether pods of a Job may still run."""
    return reasons.job_end(job) is None


def _owner(pod: Document) -> str | None:
    """The uid of the controller that made a pod: its labels anybody may write."""
    owners: Iterable[Document] = pod["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), None)
