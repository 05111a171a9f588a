"""Reconciling: one step reads the cluster and the store and moves the difference.

It keeps nothing that it could not read there again, so it may be killed at any moment, and two at once do no harm:
what a Job or a pod is, its uid says; what holds a trial, the store says. A launch's row is stored before its Job is
created; a Job is deleted once all that it left behind is in the store.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import structlog

from grading.store import NotFound, StateError, Store, charging, claiming, launching, matrices, placing, reading
from k8s import job, metrics, reasons
from k8s.api import Api, Document
from k8s.launcher import Launcher
from k8s.look import Look, Noticed, look, runs
from k8s.mirror import Mirror
from k8s.reasons import End, Hindrance
from k8s.settings import Settings
from k8s.settling import Settler
from k8s.starting import Starter

log: Any = structlog.get_logger("cellwise.controller")

_IDLE_SECONDS = 20.0
"""How long a Job of which nothing is left to run may take to end by itself."""
_FEW_TRIALS = 40
"""What pods may do until the next step: from then on a matrix may end at any moment."""


class Reconciler:
    """Advances every matrix that is placed on the cluster.

    Args:
        clock: this moment, in UTC: compared with times that the cluster wrote.
    """

    def __init__(
        self,
        store: Store,
        api: Api,
        settings: Settings,
        *,
        wake: Callable[[], object] = lambda: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._api = api
        self._settings = settings
        self._clock = clock
        cells = settings.cells_namespace
        labels = [("labelSelector", job.SELECTOR)]
        refused = [("fieldSelector", "involvedObject.kind=Job,reason=FailedCreate")]
        self.jobs = Mirror(api, f"/apis/batch/v1/namespaces/{cells}/jobs", labels, changed=wake)
        self.pods = Mirror(api, f"/api/v1/namespaces/{cells}/pods", labels, changed=wake)
        self.refusals = Mirror(api, f"/api/v1/namespaces/{cells}/events", refused, changed=wake)
        self._noticed = Noticed()
        self._launcher = Launcher(store, api, settings, self.jobs)
        self._settler = Settler(store)
        self._starter = Starter(store, self._launcher, self._settler, settings, self._noticed)
        self._active: dict[int, bool] = {}
        """As :func:`placing.active` has it, when the last step looked."""
        self._little_left = False

    def start(self) -> None:
        for mirror in self.mirrors:
            mirror.start()

    def stop(self) -> None:
        for mirror in self.mirrors:
            mirror.stop()

    @property
    def mirrors(self) -> tuple[Mirror, Mirror, Mirror]:
        return self.jobs, self.pods, self.refusals

    def step(self) -> bool:
        """Moves everything as far as it goes now; whether something was moved, and the next step may go on.

        Raises:
            StoreError: the store cannot be used, and
            ApiError: the API server cannot: the next step begins anew.
        """
        self._active, self._little_left = {}, False
        seen = look(self._store, *self.mirrors, self._clock())
        metrics.JOBS_IN_FLIGHT.set(len(seen.unsettled))
        metrics.ATTEMPTS_HELD.set(sum(map(len, seen.held.values())))
        moved = False
        for held in [one for of_launch in seen.held.values() for one in of_launch]:
            moved |= self._settle(seen, held)
        for launch in seen.launches:
            if launch.state == "ended":
                moved |= self._clean(seen, launch)
            elif launch.state == "created":
                moved |= self._follow(seen, launch)
        self._look_at_strangers(seen)
        left = 0
        for placed in seen.placed.values():
            concluded, left_of_it = self._conclude(placed)
            moved, left = moved | concluded, left + left_of_it
        moved |= self._starter.start(seen)
        self._forget(seen)
        self._little_left = left <= _FEW_TRIALS
        return moved

    def is_wanted(self) -> bool:
        """Whether the next step is waited for: a matrix was placed, or the last trial of one has ended.

        A small question, and one that is asked only while nothing runs or the end is near: before that, a step is soon
        enough. False after a step that failed.

        Raises:
            StoreError: the store cannot be used.
        """
        return self._little_left and placing.active(self._store) != self._active

    # Looking

    def _forget(self, seen: Look) -> None:
        """Drops what was kept of things that are no longer there, and all of it is in the store."""
        holding = {held.pod_uid for of_launch in seen.held.values() for held in of_launch}
        followed = {
            pod["metadata"]["uid"]
            for launch in seen.launches
            if launch.state == "created"
            for pod in seen.pods_of.get(launch.job_uid or "", ())
            if reasons.ended(pod) is not None
        }
        for pod in self.pods.all_departed():
            uid = pod["metadata"]["uid"]
            if uid not in holding and uid not in followed - self._noticed.accounted:
                self.pods.forget(uid)
        self._noticed.forget(seen)
        metrics.UNKNOWN_JOBS.set(len(self._noticed.unknown))

    # Attempts of pods that ended

    def _settle(self, seen: Look, held: claiming.Held) -> bool:
        launch_job = seen.job_of(held.launch_id)
        suspended = launch_job is not None and reasons.suspended(launch_job)
        pod = seen.pods.get(held.pod_uid)
        end = self._end_of(held, suspended=suspended) if pod is None else reasons.ended(pod, suspended=suspended)
        if end is None and pod is not None and self._stuck(seen, pod):
            end = End("lost", "node_lost", "it was to end long ago, and its node does not answer")
        if end is None:
            return False
        if seen.state(held.matrix_id) == "cancelled":
            end = End("lost", "cancelled", end.detail)
        recovery = self._settler.settle(held, end)
        seen.held[held.launch_id].remove(held)
        log.info(
            "attempt_settled",
            matrix=held.matrix_id,
            cell=held.cell_id,
            trial=held.trial_id,
            attempt=held.attempt_id,
            launch=held.launch_id,
            pod=held.pod_name,
            node=held.node,
            reason=end.reason,
            detail=end.detail,
            lost=len(recovery.losses),
            sealed=len(recovery.sealings) + len(recovery.deliveries),
            quarantined=len(recovery.quarantines),
        )
        metrics.ATTEMPTS_SETTLED.labels(reason=end.reason).inc()
        if end.kind == "never":
            self._starter.fail_cell(held.cell_id, held.launch_id, end.detail)
        return True

    def _end_of(self, held: claiming.Held, *, suspended: bool) -> End | None:
        """How a pod ended that is not in the mirror; None where it is there after all and runs."""
        found = self._api.find(f"/api/v1/namespaces/{self._settings.cells_namespace}/pods/{held.pod_name}")
        if found is not None and found["metadata"]["uid"] == held.pod_uid:
            return reasons.ended(found, suspended=suspended)
        last = self.pods.departed(held.pod_uid)
        if last is not None and reasons.ended(last) is not None:
            return reasons.ended(last, suspended=suspended)
        path = f"/api/v1/namespaces/{self._settings.cells_namespace}/events"
        events = self._api.get(path, [("fieldSelector", f"involvedObject.uid={held.pod_uid}"), ("limit", "100")])
        return reasons.gone(last, events.get("items") or (), suspended=suspended)

    # Launches whose Job exists, or did

    def _follow(self, seen: Look, launch: launching.Launch) -> bool:
        found = self._job_of_launch(seen, launch)
        if found is None:
            return self._job_gone(seen, launch)
        if seen.state(launch.matrix_id) == "cancelled":
            return self._delete(launch, found)
        moved = self._count_pods(seen, launch, found)
        moved |= self._release_stuck(seen, launch)
        moved |= self._hinder(seen, launch, found)
        if seen.held.get(launch.id):
            return moved
        if (end := reasons.job_end(found)) is not None:
            reason = "lost_intake" if end == "complete" else "pod_failed"
            return self._end(seen, launch, found["metadata"]["uid"], reason)
        if seen.unsettled[launch.id]:
            self._noticed.idle_since.pop(launch.id, None)
            return moved
        idle = time.monotonic() - self._noticed.idle_since.setdefault(launch.id, time.monotonic())
        if launch.id in self._noticed.doomed or idle > _IDLE_SECONDS:
            # Pods that never start, or never end: nothing of it is waited for any more.
            return launching.end(self._store, launch.id, "nothing_left")
        return moved

    def _job_gone(self, seen: Look, launch: launching.Launch) -> bool:
        """A Job that a person, its time to live, or this controller deleted, once its pods are settled."""
        moved = False
        if seen.state(launch.matrix_id) == "running":
            moved = self._count_pods(seen, launch, None)
        if seen.held.get(launch.id):
            return moved
        cancelled = seen.state(launch.matrix_id) == "cancelled"
        if cancelled or not seen.unsettled[launch.id]:
            launching.end(self._store, launch.id, "cancelled" if cancelled else None)
        else:
            log.warning("job_gone", launch=launch.id, job=launch.job, matrix=launch.matrix_id, cell=launch.cell_id)
            self._end(seen, launch, launch.job_uid or launch.id, "pod_deleted")
        launching.job_deleted(self._store, launch.id)
        return True

    def _end(self, seen: Look, launch: launching.Launch, uid: str, reason: str) -> bool:
        """Ends a launch. Where trials of it are left and no pod of it ever asked, that counts: it might go on so."""
        if seen.unsettled[launch.id] and seen.state(launch.matrix_id) == "running":
            stands_for = claiming.Pod(uid, launch.job, "", self._settings.cells_namespace)
            why = f"{launch.job} ended, and none of its pods asked for its trial: {reason}"
            if charging.charge(self._store, launch.id, None, stands_for, reason, why) == "missing":
                self._starter.cell_failed(launch.cell_id, launch.id, why)
        launching.end(self._store, launch.id, reason if seen.unsettled[launch.id] else None)
        log.info("launch_ended", launch=launch.id, job=launch.job, matrix=launch.matrix_id, cell=launch.cell_id)
        return True

    def _count_pods(self, seen: Look, launch: launching.Launch, found: Document | None) -> bool:
        """Has pods count that ended before they asked for a trial, and cells fail whose pods say so."""
        suspended = found is not None and reasons.suspended(found)
        ended = {
            pod["metadata"]["uid"]: (pod, end)
            for pod in seen.pods_of.get(launch.job_uid or "", ())
            if pod["metadata"]["uid"] not in self._noticed.accounted
            and (end := reasons.ended(pod, suspended=suspended)) is not None
        }
        holding = {held.pod_uid for held in seen.held.get(launch.id, ())}
        ended = {uid: one for uid, one in ended.items() if uid not in holding}
        if not ended:
            return False
        asked = charging.asked(self._store, ended)
        for uid, (pod, end) in ended.items():
            index = reasons.index(pod)
            if end.kind == "never":
                if (launch.id, index) not in self._noticed.released:
                    self._starter.fail_cell(launch.cell_id, launch.id, end.detail)
            elif uid not in asked and index is not None and index < launch.completions:
                self._charge(launch, index, pod, end)
            self._noticed.accounted.add(uid)
        return True

    def _charge(self, launch: launching.Launch, index: int, pod: Document, end: End) -> None:
        metadata, node = pod["metadata"], str((pod.get("spec") or {}).get("nodeName") or "")
        of = claiming.Pod(metadata["uid"], metadata["name"], node, self._settings.cells_namespace)
        why = f"its pods end before they ask for a trial: {end.reason}: {end.detail}"
        outcome = charging.charge(self._store, launch.id, index, of, end.reason, why)
        if end.kind == "succeeded":
            # Told to stop, as while the matrix was paused. No other pod comes for this index.
            launching.release(self._store, launch.id, index)
        if outcome in ("open", "missing"):
            log.info(
                "pod_charged", matrix=launch.matrix_id, cell=launch.cell_id, launch=launch.id, pod=metadata["name"],
                reason=end.reason, detail=end.detail,
            )  # fmt: skip
            metrics.ATTEMPTS_SETTLED.labels(reason=end.reason).inc()
        if outcome == "missing":
            self._starter.cell_failed(launch.cell_id, launch.id, why)

    def _release_stuck(self, seen: Look, launch: launching.Launch) -> bool:
        """Frees the trials of pods on nodes that do not answer: no pod will replace them in this Job."""
        moved = False
        for pod in seen.pods_of.get(launch.job_uid or "", ()):
            index = reasons.index(pod)
            if index is None or index >= launch.completions or (launch.id, index) in self._noticed.released:
                continue
            if self._stuck(seen, pod):
                launching.release(self._store, launch.id, index)
                self._noticed.released.add((launch.id, index))
                log.warning("pod_stuck", launch=launch.id, pod=pod["metadata"]["name"], index=index)
                moved = True
        return moved

    def _hinder(self, seen: Look, launch: launching.Launch, found: Document) -> bool:
        """Shows why pods do not start, and has the cell fail where waiting is in vain."""
        pods = seen.pods_of.get(launch.job_uid or "", ())
        active = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        hindrances = [one for pod in active if (one := reasons.hindrance(pod, seen.now)) is not None]
        if not active and runs(found):
            if reasons.suspended(found):
                queue = (found["metadata"].get("labels") or {}).get(job.KUEUE_QUEUE, "")
                hindrances.append(Hindrance(False, f"its Job is suspended until queue {queue} admits it"))
            elif seen.unsettled[launch.id]:
                refused = reasons.refusals(seen.refusals_of.get(launch.job_uid or "", ()))
                hindrances += [
                    self._starter.patiently(seen, launch, one) for one in refused[:1] if one.never <= (not pods)
                ]
        if active:
            self._noticed.refused_since.pop(launch.id, None)
        hindrance = next((one for one in hindrances if one.never), hindrances[0] if hindrances else None)
        if hindrance is not None and hindrance.never and launch.id not in self._noticed.doomed:
            self._starter.fail_cell(launch.cell_id, launch.id, hindrance.why)
            return True
        why = None if hindrance is None else hindrance.why
        if why != launch.waiting:
            launching.waiting(self._store, launch.id, why)
        return False

    # Launches that have ended

    def _clean(self, seen: Look, launch: launching.Launch) -> bool:
        """Deletes a Job of which all is in the store, after a while in which a person may look at it."""
        found = self._job_of_launch(seen, launch)
        if found is None:
            launching.job_deleted(self._store, launch.id)
            return True
        since = 0.0 if launch.ended is None else seen.now.timestamp() - launch.ended / 1_000_000
        kept = not runs(found) and since < self._settings.recorded_job_seconds
        if (kept and seen.state(launch.matrix_id) != "cancelled") or seen.held.get(launch.id):
            return False
        self._delete(launch, found)
        launching.job_deleted(self._store, launch.id)
        return True

    def _delete(self, launch: launching.Launch, found: Document) -> bool:
        uid = found["metadata"]["uid"]
        if uid in self._noticed.deleting or found["metadata"].get("deletionTimestamp"):
            return False
        self._launcher.delete(launch.job, uid)
        self._noticed.deleting.add(uid)
        log.info("job_deleted", launch=launch.id, job=launch.job)
        return True

    def _look_at_strangers(self, seen: Look) -> None:
        """Jobs with our labels whose launch is none that is going on.

        One whose launch has ended was created by another controller at the same moment, and is deleted. One of an
        unknown launch is left alone: it may be another installation's, or this store may be the wrong one. It does no
        harm: intake gives its pods nothing, they exit 78, and its time to live removes it.
        """
        known = {one.id for one in seen.launches}
        for uid, found in seen.jobs.items():
            metadata = found["metadata"]
            launch_id = str((metadata.get("annotations") or {}).get(job.LAUNCH))
            if launch_id in known or uid in self._noticed.unknown or uid in self._noticed.deleting:
                continue
            with suppress(NotFound):
                launch = launching.find(self._store, launch_id)
                if launch.deleted and launch.job == metadata["name"] and launch.job_uid in (None, uid):
                    self._delete(launch, found)
                    continue
            self._noticed.unknown.add(uid)
            log.warning("unknown_job", job=metadata["name"], uid=uid, launch=launch_id)

    # Matrices

    def _conclude(self, placed: placing.Placed) -> tuple[bool, int]:
        """Starts what was placed, grades what was delivered, finishes what is done.

        Returns:
            Whether something was moved, and how many trials are to run where the matrix does.
        """
        if placed.state == "registered":
            # Placed by an intake that was killed before it started it.
            with suppress(StateError):
                matrices.start(self._store, placed.matrix_id)
            self._active[placed.matrix_id] = True
            return True, 0
        if placed.state in ("complete", "incomplete"):
            return False, 0
        counts = reading.counts(self._store, placed.matrix_id)
        left = counts["open"] + counts["leased"] if placed.state == "running" else 0
        if placed.state == "running":
            self._active[placed.matrix_id] = left > 0
        if counts["delivered"]:
            self._settler.grade(placed.matrix_id)
            return True, left
        if placed.state != "running" or left:
            return False, left
        with suppress(StateError):  # another controller, or a person, was faster
            end = matrices.finish(self._store, placed.matrix_id)
            log.info("matrix_finished", matrix=placed.matrix_id, name=placed.name, state=end)
        del self._active[placed.matrix_id]
        return True, 0

    # Small questions

    def _stuck(self, seen: Look, pod: Document) -> bool:
        return reasons.stuck(pod, seen.now, self._settings.stuck_terminating_seconds)

    def _job_of_launch(self, seen: Look, launch: launching.Launch) -> Document | None:
        """Its Job: asked of the API server where the mirror has none, once."""
        if launch.job_uid is not None:
            if (found := seen.jobs.get(launch.job_uid)) is not None:
                return found
            if launch.job_uid in self._noticed.gone:
                return None
        found = self._launcher.find(launch)
        if found is None and launch.job_uid is not None:
            self._noticed.gone.add(launch.job_uid)
        return found
