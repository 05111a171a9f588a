"""The runner: one loop that leases trials, hands them out, takes ledgers in and grades, until nothing is open.

The store is the state machine. The runner keeps nothing that it could not read there or in the journals again, so it
may be killed at any moment; two runners may work on one matrix. It counts a trial once its transaction is on disk.
"""

import selectors
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from grading.grading import GROUP, MatrixGrading, Received, received
from grading.launcher import Loading, Worker
from grading.manifest import Manifest, trial_name
from grading.recovering import Recovery, Unanswered, journaled, recover
from grading.store import StateError, Store, delivering, leasing, losing, matrices, owners, reading
from simulator.journal import locked
from simulator.journal_reading import Journals

LEASE_SECONDS = 60.0
_RENEW_SECONDS = 15.0
_GROUP_SECONDS = 0.05
"""How long the first ledger of a commit waits for others."""
_DEEPEST = 512
_AHEAD_SECONDS = 0.4
"""A worker is handed as many trials as it runs in this time, so that it never waits for a commit."""
_LEDGERS_IN_JOURNAL = 5000
_WAIT_SECONDS = 1.0
"""How often it looks whether trials that others hold have come free."""
_DEATHS_IN_A_ROW = 10
_TELL_AFTER_SECONDS = 0.5


class WorkersFailing(Exception):  # noqa: N818 - reads as what happens
    """Workers cannot work on this machine; the message says why. What was done is in the store."""


@dataclass(slots=True)
class Progress:
    """How far a matrix is, for who watches it run."""

    planned: int
    done: int
    """Graded or missing."""
    missing: int = 0
    lost: int = 0
    """Attempts lost by this runner's workers, each tried again or its trial missing."""
    ran: int = 0
    """Trials graded by this runner."""
    held_by_others: int = 0


@dataclass(slots=True)
class _Handed:
    """A lease that a worker holds."""

    claimed: leasing.Claimed
    assignment: dict[str, Any]
    trial: str
    begun: bool = False
    """Whether the worker has said so."""
    began: float | None = None
    """When its worker said so, until the store knows."""


@dataclass(slots=True)
class _Pending:
    """What has arrived and is not in the store yet."""

    ledgers: list[Received] = field(default_factory=list)
    quarantines: list[delivering.Quarantined] = field(default_factory=list)
    losses: list[losing.Lost] = field(default_factory=list)
    failed_cells: dict[int, str] = field(default_factory=dict)
    since: float | None = None

    @property
    def size(self) -> int:
        return len(self.ledgers) + len(self.quarantines) + len(self.losses)


class Runner:
    """Advances one matrix on this machine.

    Args:
        root: the folder that agents of one's own are imported from.
        folder: where workers keep their journals and their agents' output; the same for every run of a store.
        only: the cells, by id, to run; None for all.
        watch: called after each commit.
        loading: processes that workers come of, as many as there are; taken from the list as they are.
    """

    def __init__(
        self,
        store: Store,
        matrix: reading.Matrix,
        manifest: Manifest,
        *,
        root: Path,
        folder: Path,
        parallelism: int,
        only: Collection[int] | None = None,
        watch: Callable[[Progress], None] = lambda _: None,
        loading: list[Loading] | None = None,
    ) -> None:
        self._loading = [] if loading is None else loading
        self._store = store
        self._matrix = matrix
        self._strict = manifest.schedule.order == "strict"
        self._root = root
        self._folder = folder
        self._parallelism = 1 if self._strict else parallelism
        self._only = only
        self._watch = watch
        self._grading = MatrixGrading(manifest)
        self._assignments: dict[str, dict[str, Any]] = {}
        self._owner = owners.Owner.this_process()
        self._workers: list[Worker] = []
        self._selector: selectors.BaseSelector
        self._pending = _Pending()
        self._draining = False
        self._stopping = False
        self._pace: float = _AHEAD_SECONDS
        self._paced = False
        self._dry_until = 0.0
        self._renewed = 0.0
        self._started_workers = 0
        self._deaths = 0

    def drain(self) -> None:
        """Claims nothing more and ends once what was handed out has arrived."""
        self._draining = True

    def stop(self) -> None:
        """Ends at once: agents are ended, and what they did until then is settled by their journals."""
        self._draining = self._stopping = True

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def stopped(self) -> bool:
        """Whether it was told to end at once."""
        return self._stopping

    def run(self) -> Literal["complete", "incomplete", "open"]:
        """Runs until no trial is left to run here. ``open``: trials are left, by ``only`` or an interruption.

        Raises:
            StoreError: the store cannot be written: nothing that was counted is lost.
            WorkersFailing: no worker can work.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        owners.enrol(self._store, self._owner)
        if not self._start():
            return "complete" if self._matrix.state == "complete" else "incomplete"
        counts = reading.counts(self._store, self._matrix.id)
        self._selector = selectors.DefaultSelector()
        self._progress = Progress(sum(counts.values()), counts["graded"] + counts["missing"], counts["missing"])
        try:
            # They load while the rest is looked after.
            for _ in range(min(self._parallelism, counts["open"])):
                self._start_worker()
            self._recover_abandoned()
            self._forget_journals()
            self._grade_delivered()
            self._watch(self._progress)
            self._loop()
        finally:
            held = self._end_workers()
            self._selector.close()
        # Not after an error: what is then not in the store is in the journals, which the next run reads.
        self._settle_ended(held)
        counts = reading.counts(self._store, self._matrix.id)
        self._reread()
        if counts["open"] or counts["leased"] or counts["delivered"] or self._matrix.state in ("paused", "cancelled"):
            return "open"
        return matrices.finish(self._store, self._matrix.id)

    def _start(self) -> bool:
        """Has the matrix run; False where all its trials are done already."""
        self._reread()
        if self._matrix.state == "complete":
            return False
        if self._matrix.state == "incomplete":
            # What a wrong configuration kept from running is tried again; what used up its attempts stays missing.
            return matrices.reopen(self._store, self._matrix.id) > 0
        if self._matrix.state != "running":
            matrices.start(self._store, self._matrix.id)
        return True

    def _reread(self) -> None:
        self._matrix = reading.find_matrix(self._store, self._matrix.id)

    def _loop(self) -> None:
        while not self._stopping:
            if not self._draining:
                self._hand_out_of_running()
            busy = any(worker.outstanding for worker in self._workers)
            if busy:
                self._listen()
                self._renew()
            if self._pending.size >= GROUP or self._waited() or (self._pending.size and not busy):
                self._commit()
            elif not busy:
                if self._draining or not self._more_may_come():
                    return
                time.sleep(max(0.0, self._dry_until - time.monotonic()))
                self._recover_abandoned()
                self._grade_delivered()

    def _waited(self) -> bool:
        since = self._pending.since
        return since is not None and time.monotonic() - since >= _GROUP_SECONDS

    # Leasing

    def _hand_out_of_running(self) -> int:
        """How many trials were handed out: none once another runner has finished, paused or cancelled the matrix."""
        try:
            return self._hand_out()
        except StateError:
            self._reread()
            if self._matrix.state == "running":
                raise
            self._draining = True
            return 0

    def _hand_out(self) -> int:
        if self._dry_until > time.monotonic():
            return 0
        depth = max(1, min(_DEEPEST, int(_AHEAD_SECONDS / self._pace)))
        places = self._parallelism - len(self._workers)
        # Asked for in halves: a claim is a commit, and one for every ledger would be slower than the ledgers.
        wanted = [
            (worker, depth - len(worker.outstanding))
            for worker in self._workers
            if len(worker.outstanding) * 2 <= depth and not self._full(worker)
        ]
        limit = sum(count for _, count in wanted) + places
        if limit < 1:
            return 0
        claimed = leasing.claim(
            self._store,
            self._owner.id,
            self._matrix.id,
            limit=limit,
            lease_seconds=LEASE_SECONDS,
            strict_order=self._strict,
            only=self._only,
            take_over=False,
        )
        if len(claimed) < limit:
            # Nothing is open any more, but what is lost or let go opens again.
            self._dry_until = time.monotonic() + _WAIT_SECONDS
        self._load_assignments(claimed)
        rest = list(reversed(claimed))
        while rest and len(self._workers) < self._parallelism:
            wanted.append((self._start_worker(), 1))
        for worker, count in wanted:
            share = [rest.pop() for _ in range(min(count, len(rest)))]
            self._give(worker, share)
        return len(claimed)

    def _full(self, worker: Worker) -> bool:
        """Whether a worker must first empty its journal; it may once the store has all that it was kept for."""
        if worker.ledgers_in_journal < _LEDGERS_IN_JOURNAL:
            return False
        if not worker.outstanding and not self._pending.size:
            worker.forget()
            return False
        return True

    def _give(self, worker: Worker, claimed: list[leasing.Claimed]) -> None:
        leases = []
        for one in claimed:
            handed = _Handed(one, self._assignments[one.assignment_hash], self._trial_name(one))
            worker.outstanding[one.attempt_id] = handed
            lease = {
                "attempt": one.attempt_id,
                "number": one.number,
                "trial": handed.trial,
                "secret": one.secret,
                "hash": one.assignment_hash,
            }
            leases.append((lease, handed.assignment))
        if leases:
            worker.hand_out(leases)

    def _trial_name(self, one: leasing.Claimed | reading.Trial) -> str:
        return trial_name(self._matrix.manifest_hash, one.condition, one.case_id, one.repetition)

    def _load_assignments(self, claimed: Collection[leasing.Claimed | reading.Trial]) -> None:
        missing = {one.assignment_hash for one in claimed} - self._assignments.keys()
        if missing:
            if len(self._assignments) > 1000:
                held = [handed for worker in self._workers for handed in worker.outstanding.values()]
                needed = {handed.claimed.assignment_hash for handed in held} | {one.assignment_hash for one in claimed}
                self._assignments = {name: one for name, one in self._assignments.items() if name in needed}
            documents = reading.assignments(self._store, missing)
            self._assignments.update((name, orjson.loads(document)) for name, document in documents.items())

    def _renew(self) -> None:
        self._tell_running()
        if time.monotonic() - self._renewed > _RENEW_SECONDS:
            self._renewed = time.monotonic()
            # What is no longer held is answered "fenced" when it arrives; there is nothing else to do about it.
            leasing.renew(self._store, self._owner.id, lease_seconds=LEASE_SECONDS)

    def _tell_running(self) -> None:
        """Has the store know which attempts run, for who watches it; not worth a commit for those that end soon."""
        ago = time.monotonic() - _TELL_AFTER_SECONDS
        running = [
            handed
            for worker in self._workers
            for handed in worker.outstanding.values()
            if handed.began is not None and handed.began < ago
        ]
        if running:
            leasing.running(self._store, [handed.claimed.attempt_id for handed in running])
            for handed in running:
                handed.began = None

    # Workers

    def _start_worker(self) -> Worker:
        self._started_workers += 1
        loading = self._loading.pop() if self._loading else None
        worker = Worker(f"{self._owner.id}-{self._started_workers}", self._root, self._folder, loading)
        self._workers.append(worker)
        self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        return worker

    def _listen(self) -> None:
        for worker in self._workers:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.has_waiting else 0)
            if self._selector.get_key(worker.socket).events != events:
                self._selector.modify(worker.socket, events, worker)
        # Short enough for Ctrl-C and for the first ledger of a group to be committed in time.
        for key, events in self._selector.select(_GROUP_SECONDS if self._pending.size else 0.2):
            worker = key.data
            if events & selectors.EVENT_WRITE:
                worker.flush()
            if events & selectors.EVENT_READ:
                reports = worker.reports()
                for report, document in reports or ():
                    self._take(worker, report, document)
                if reports is None:
                    self._bury(worker)

    def _take(self, worker: Worker, report: dict[str, Any], document: bytes) -> None:
        attempt_id = report.get("attempt")
        if "stuck" in report:
            raise WorkersFailing(str(report["stuck"]))
        if "began" in report:
            if handed := worker.outstanding.get(report["attempt"]):
                handed.began = time.monotonic()
                handed.begun = True
            return
        handed = worker.outstanding.pop(attempt_id, None) if isinstance(attempt_id, int) else None
        if handed is None:
            return
        claimed = handed.claimed
        self._pending.since = self._pending.since or time.monotonic()
        if "delivered" in report:
            worker.ledgers_in_journal += 1
            self._deaths = 0
            self._receive(handed, report["secret"], document)
        elif "unusable" in report:
            self._pending.losses.append(losing.Lost(claimed.attempt_id, "agent_not_startable"))
            self._pending.failed_cells[claimed.cell_id] = str(report["unusable"])
        else:
            self._settle([handed], worker, "provider_unavailable")

    def _receive(self, handed: _Handed, secret: str, document: bytes) -> None:
        claimed = handed.claimed
        found = received(
            claimed.attempt_id,
            secret,
            claimed.case_id,
            document,
            assignment=handed.assignment,
            trial=handed.trial,
            number=claimed.number,
        )
        if isinstance(found, delivering.Quarantined):
            self._pending.quarantines.append(found)
            return
        took = max((found.ledger.ended - found.ledger.started) / 1_000_000, 0.0005)
        self._pace = 0.8 * self._pace + 0.2 * took if self._paced else took
        self._paced = True
        self._pending.ledgers.append(found)

    def _bury(self, worker: Worker) -> None:
        """Settles what a dead worker was handed, by its journal; another one takes its place."""
        held = list(worker.outstanding.values())
        self._drop(worker)
        self._settle(held, worker, "recorder_killed")
        if any(handed.begun for handed in held):
            # Counted against the trial that it died of, which has a limit of its own.
            return
        self._deaths += 1
        if self._deaths >= _DEATHS_IN_A_ROW:
            raise WorkersFailing(f"{self._deaths} workers ended one after the other; their output: {self._folder}")

    def _drop(self, worker: Worker) -> None:
        self._selector.unregister(worker.socket)
        self._workers.remove(worker)
        worker.end(at_once=True)

    def _settle(self, held: Collection[_Handed], worker: Worker, reason: str) -> None:
        unanswered = [
            Unanswered(
                handed.claimed.attempt_id,
                handed.claimed.number,
                handed.trial,
                handed.claimed.case_id,
                handed.assignment,
                reason,
                handed.begun,
            )
            for handed in held
        ]
        if worker in self._workers:
            journals = Journals()
            journals.read(worker.journal)
        else:
            journals = journaled([worker.journal])
        self._write_recovery(
            recover(unanswered, journals, self._grading.grader, self._grading.expectation, self._place(worker.name))
        )

    def _place(self, worker: str) -> dict[str, str]:
        return {"launcher": "processes", "host": self._owner.host, "worker": worker}

    def _end_workers(self) -> list[tuple[Worker, list[_Handed]]]:
        """Ends every worker, before anything else can fail. Returns what they still held."""
        ended = []
        for worker in self._workers:
            if not worker.outstanding:
                worker.let_go()
        for worker in list(self._workers):
            held = list(worker.outstanding.values())
            self._drop(worker) if self._stopping or held else self._dismiss(worker)
            if held:
                ended.append((worker, held))
        return ended

    def _settle_ended(self, ended: list[tuple[Worker, list[_Handed]]]) -> None:
        """Settles what workers held at their end, so that nothing waits for a lease to expire."""
        for worker, held in ended:
            self._settle(held, worker, "runner_killed")
        self._commit()
        for worker_journal in self._folder.glob(f"{self._owner.id}-*.journal"):
            worker_journal.unlink()

    def _dismiss(self, worker: Worker) -> None:
        self._selector.unregister(worker.socket)
        self._workers.remove(worker)
        worker.end()

    # The store

    def _commit(self) -> None:
        pending, self._pending = self._pending, _Pending()
        if pending.ledgers:
            self._count(self._grading.deliver(self._store, pending.ledgers).count("accepted"))
        if pending.quarantines:
            delivering.quarantine(self._store, pending.quarantines)
        if pending.losses:
            losing.lose(self._store, pending.losses)
        for cell_id, reason in pending.failed_cells.items():
            with suppress(StateError):  # another runner took the trial over and finished the cell
                losing.fail_cell(self._store, cell_id, reason)
        self._progress.lost += len(pending.losses) + len(pending.quarantines)
        if pending.losses or pending.quarantines:
            self._dry_until = 0.0
        if pending.losses or pending.quarantines or pending.failed_cells:
            self._recount()
        if pending.size:
            self._watch(self._progress)

    def _count(self, graded: int) -> None:
        self._progress.ran += graded
        self._progress.done += graded

    def _grade_delivered(self) -> None:
        """Grades what was delivered by a runner that was killed before it graded, or was taken over for reuse."""
        self._count(self._grading.grade_delivered(self._store, self._matrix.id))

    def _write_recovery(self, recovery: Recovery) -> None:
        self._dry_until = 0.0
        recovery.write(self._store)
        self._progress.lost += len(recovery.losses) + len(recovery.sealings) + len(recovery.quarantines)
        self._grade_delivered()
        self._recount()

    def _recount(self) -> None:
        counts = reading.counts(self._store, self._matrix.id)
        self._progress.done, self._progress.missing = counts["graded"] + counts["missing"], counts["missing"]

    def _recover_abandoned(self) -> None:
        """Settles attempts whose runner is dead or let its lease expire, by the journals that are in this folder."""
        while found := reading.abandoned(self._store, self._matrix.id):
            held = {attempt.trial_id for attempt in found}
            leased = reading.trials(self._store, self._matrix.id, states=["leased"])
            trials = {one.id: one for one in leased if one.id in held}
            self._load_assignments(list(trials.values()))
            unanswered = []
            for attempt in found:
                trial = trials.get(attempt.trial_id)
                if trial is None:  # another runner has settled it meanwhile
                    continue
                unanswered.append(
                    Unanswered(
                        attempt.id,
                        attempt.number,
                        self._trial_name(trial),
                        trial.case_id,
                        self._assignments[trial.assignment_hash],
                        "runner_killed",
                        begun=attempt.state == "running",
                    )
                )
            paths = [
                path for one in {attempt.owner for attempt in found} for path in self._folder.glob(f"{one}-*.journal")
            ]
            recovery = recover(
                unanswered,
                journaled(paths),
                self._grading.grader,
                self._grading.expectation,
                self._place("recovered"),
            )
            with suppress(StateError):  # one has begun meanwhile, its runner being alive: it is looked at again
                self._write_recovery(recovery)

    def _forget_journals(self) -> None:
        """Removes the journals of workers that are gone whose runners hold nothing any more: all is in the store."""
        holding = reading.holding(self._store)
        for path in self._folder.glob("*.journal"):
            # Not this runner's own: a worker that only starts may not hold its lock yet.
            if (owner := path.stem.rpartition("-")[0]) not in holding and owner != self._owner.id:
                with suppress(FileNotFoundError), locked(path, seconds=0) as gone:
                    if gone:
                        path.unlink()

    def _more_may_come(self) -> bool:
        """Whether a trial is open, or held by another runner that may let it go, or not graded by it yet."""
        counts = reading.counts_of_cells(self._store, self._matrix.id, self._only)
        self._progress.held_by_others = counts["leased"]
        return counts["leased"] > 0 or counts["open"] > 0 or counts["delivered"] > 0
