"""Starting: which cell's Job comes next, with how many pods at once, and what the API server says to it."""

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from grading.store import StateError, Store, launching, losing, placing, reading
from k8s import job, metrics, sharing
from k8s.api import Document
from k8s.launcher import Launcher
from k8s.look import Look, Noticed, pods_wanted, runs
from k8s.reasons import Hindrance
from k8s.settings import Settings
from k8s.settling import Settler

log: Any = structlog.get_logger("cellwise.starter")

_NAMES_TAKEN = 2
_OVER: tuple[str, ...] = ("cancelled", "complete", "incomplete")


class Starter:
    """Plans launches and creates their Jobs, as far as fair shares and limits go."""

    def __init__(
        self, store: Store, launcher: Launcher, settler: Settler, settings: Settings, noticed: Noticed
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._settler = settler
        self._settings = settings
        self._noticed = noticed
        self._cells: dict[int, dict[int, reading.Cell]] = {}
        """By matrix and id. Only what never changes of them is read."""

    def start(self, seen: Look) -> bool:
        """Creates the Jobs of planned launches, and plans further ones as far as fair shares and limits go."""
        room = sharing.Room(self._settings.provider_limits)
        in_flight: dict[int, int] = {}
        planned: list[launching.Launch] = []
        narrow: list[tuple[launching.Launch, Document]] = []
        moved = False
        for launch in seen.launches:
            if launch.state == "ended" or launch.matrix_id not in seen.placed:
                continue
            if launch.state == "planned":
                if seen.state(launch.matrix_id) in _OVER:
                    moved |= launching.end(self._store, launch.id, "cancelled")
                    continue
                planned.append(launch)
            elif (found := seen.jobs.get(launch.job_uid or "")) is not None and runs(found):
                parallelism, left = pods_wanted(found)
                room.take(launch.matrix_id, seen.provider(launch), min(parallelism, left))
                if parallelism < left:
                    narrow.append((launch, found))
            in_flight[launch.matrix_id] = in_flight.get(launch.matrix_id, 0) + 1
        for launch in planned:
            if seen.state(launch.matrix_id) == "running":
                moved |= self._create(seen, launch, room)
        moved |= self._plan(seen, room, in_flight)
        for launch, found in narrow:
            self._widen(seen, launch, found, room)
        return moved

    def _plan(self, seen: Look, room: sharing.Room, in_flight: dict[int, int]) -> bool:
        if sum(in_flight.values()) >= self._settings.jobs_in_flight:
            return False
        wanting = {one.matrix_id: self._wanting(one) for one in seen.placed.values() if one.state == "running"}
        claimants = [sharing.Claimant(one, in_flight.get(one, 0), len(cells)) for one, cells in wanting.items()]
        # Those of matrices that no longer run take room until they have ended.
        others = sum(count for matrix_id, count in in_flight.items() if matrix_id not in wanting)
        moved = False
        for matrix_id, share in sharing.shares(claimants, self._settings.jobs_in_flight - others).items():
            placement = seen.placed[matrix_id].placement
            for cell in wanting[matrix_id]:
                if share == 0:
                    break
                if room.left(matrix_id, placement.parallelism, placement.providers.get(cell.condition)) == 0:
                    continue
                if (launch := launching.plan(self._store, matrix_id, cell.id)) is not None:
                    seen.unsettled[launch.id] = frozenset(range(launch.completions))
                    self._create(seen, launch, room)
                    share -= 1
                    moved = True
        return moved

    def _wanting(self, placed: placing.Placed) -> list[reading.Cell]:
        """The chosen cells that have trials to start, in planned order."""
        if placed.matrix_id not in self._cells:
            listed = reading.cells(self._store, placed.matrix_id)
            self._cells[placed.matrix_id] = {one.id: one for one in listed}
        cells = self._cells[placed.matrix_id]
        plannable = [cells[one] for one in launching.plannable(self._store, placed.matrix_id)]
        return [one for one in plannable if placed.placement.covers(one.case_id, one.condition)]

    def _create(self, seen: Look, launch: launching.Launch, room: sharing.Room) -> bool:
        placed = seen.placed[launch.matrix_id]
        placement, provider = placed.placement, seen.provider(launch)
        left = room.left(launch.matrix_id, placement.parallelism, provider)
        parallelism = launch.completions if left is None else min(left, launch.completions)
        if parallelism == 0:
            return False
        manifest = self._settler.registered(launch.matrix_id).manifest
        condition = next(one for one in manifest.conditions if one.name == launch.condition)
        work = job.Work(
            launch_id=launch.id,
            name=launch.job,
            generation=launch.generation,
            completions=launch.completions,
            parallelism=parallelism,
            trials_per_pod=placement.trials_per_pod,
            matrix_id=launch.matrix_id,
            matrix=placed.name,
            manifest_hash=launch.manifest_hash,
            cell_id=launch.cell_id,
            case_id=launch.case_id,
            condition=launch.condition,
            env=tuple(condition.agent.env),
            image=placement.images.get(launch.condition),
            queue=placement.queue or self._settings.queue,
        )
        created = self._launcher.create(launch, work)
        if created.outcome == "exists":
            room.take(launch.matrix_id, provider, parallelism)
            self._noticed.refused_since.pop(launch.id, None)
            metrics.JOBS_CREATED.inc()
            if launch.waiting is not None:
                launching.waiting(self._store, launch.id, None)
            return True
        if created.outcome == "name_taken":
            taken = [
                one
                for one in launching.of_matrix(self._store, launch.matrix_id)
                if one.cell_id == launch.cell_id and one.reason == "job_name_taken"
            ]
            if len(taken) >= _NAMES_TAKEN:
                why = (
                    f"Job {launch.job} is somebody else's, like the one before it: give cells a namespace of their own"
                )
                self.fail_cell(launch.cell_id, launch.id, why)
            return True
        assert created.hindrance is not None
        refused = created.hindrance if created.hindrance.never else self.patiently(seen, launch, created.hindrance)
        if refused.never:
            self.fail_cell(launch.cell_id, launch.id, refused.why)
            return launching.end(self._store, launch.id, "refused")
        if refused.why != launch.waiting:
            log.warning("job_refused", launch=launch.id, job=launch.job, why=refused.why)
            launching.waiting(self._store, launch.id, refused.why)
        return False

    def _widen(self, seen: Look, launch: launching.Launch, found: Document, room: sharing.Room) -> None:
        """Gives a Job that runs fewer pods than it could what room there is."""
        placement, provider = seen.placed[launch.matrix_id].placement, seen.provider(launch)
        if seen.placed[launch.matrix_id].state != "running" or found["metadata"].get("deletionTimestamp"):
            return
        parallelism, left = pods_wanted(found)
        more = room.left(launch.matrix_id, placement.parallelism, provider)
        more = left - parallelism if more is None else min(more, left - parallelism)
        if more > 0:
            self._launcher.widen(found, parallelism + more)
            room.take(launch.matrix_id, provider, more)

    def patiently(self, seen: Look, launch: launching.Launch, refused: Hindrance) -> Hindrance:
        """A refusal that may pass does not for ever where nothing of ours runs that could make room."""
        since = self._noticed.refused_since.setdefault(launch.id, time.monotonic())
        ours = seen.pods_run()
        over = not ours and time.monotonic() - since > self._settings.refused_seconds
        return replace(refused, never=True) if over else refused

    def fail_cell(self, cell_id: int, launch_id: str, reason: str) -> None:
        with suppress(StateError):  # all of it was done meanwhile
            losing.fail_cell(self._store, cell_id, reason)
        self.cell_failed(cell_id, launch_id, reason)

    def cell_failed(self, cell_id: int, launch_id: str, reason: str) -> None:
        """Has the launch end once nothing of it is held any more."""
        if launch_id not in self._noticed.doomed:
            self._noticed.doomed.add(launch_id)
            log.error("cell_failed", cell=cell_id, launch=launch_id, reason=reason)
            metrics.CELLS_FAILED.inc()
