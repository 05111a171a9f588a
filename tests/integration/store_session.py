"""A scripted session that goes through every transaction of a store and may be cut off at any of them and run again."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import sqlalchemy as sa

from grading.store import Store, claiming, copying, journaling, judgments, launching, matrices, placing, reading
from grading.store.charging import charge
from grading.store.delivering import Delivery, Quarantined, deliver, quarantine
from grading.store.grades import Grade, add_grades
from grading.store.leasing import Claimed, claim, renew, running
from grading.store.losing import Lost, Sealed, fail_cell, lose, seal
from grading.store.owners import Owner, enrol
from grading.store.publishing import acquire_publication, mark_stale, release_publication, renew_publication
from grading.store.registering import NewAssignment, NewCell, NewTrial, register
from grading.store.reusing import reuse

GRADERS = [("structural", "sha256:v1")]
CONDITIONS = ("baseline", "candidate")


def digest(word: object) -> str:
    return f"sha256:{word!s:0>64}"


def register_matrix(
    store: Store, name: str = "study", *, cases: int = 2, repetitions: int = 2, changed: str = ""
) -> int:
    """Registers cases x two conditions x repetitions; trials of the condition ``changed`` have keys of their own."""
    identities = [
        (f"case-{case}", condition, repetition)
        for repetition in range(repetitions)
        for case in range(cases)
        for condition in CONDITIONS
    ]
    return register(
        store,
        manifest_hash=f"sha256:{name.encode().hex():0<64}",
        name=name,
        manifest=name.encode(),
        cells=[NewCell(f"case-{j}", c, j, place) for place, c in enumerate(CONDITIONS) for j in range(cases)],
        assignments=[NewAssignment(digest(f"a{n}"), b"{}") for n in range(cases)],
        trials=[
            NewTrial(case, condition, repetition, sequence, key, digest(f"a{case[5:]}"))
            for sequence, (case, condition, repetition) in enumerate(identities)
            for key in [f"{name if condition == changed else ''}/{case}/{condition}/{repetition}"]
        ],
    ).matrix_id


def running_matrix(store: Store, name: str = "study", *, cases: int = 2, repetitions: int = 2) -> int:
    matrix_id = register_matrix(store, name, cases=cases, repetitions=repetitions)
    matrices.start(store, matrix_id)
    return matrix_id


def enrolled(store: Store, *, dead: bool = False) -> str:
    """An owner of this living process, or one that had this process's number before it."""
    new = Owner.this_process()
    new = replace(new, process_start=1) if dead else new
    enrol(store, new)
    return new.id


def ledger_of(claimed: Claimed, body: str = "ledger") -> Delivery:
    content = digest(f"{claimed.sequence}{body.encode().hex()}")
    own = digest(f"{claimed.attempt_id}{body.encode().hex()}")
    return Delivery(claimed.attempt_id, claimed.secret, content, own, f"{body} {claimed.attempt_id}".encode(), 10, 20)


def passed(attempt_id: int, version: str = "sha256:v1") -> Grade:
    return Grade(attempt_id, "structural", version, "passed", True, '{"outcome":true}')


def expire_leases(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE attempt SET lease_expires = 0"))
        connection.execute(sa.text("UPDATE publication SET lease_expires = 0 WHERE lease_expires IS NOT NULL"))


def violations(store: Store) -> list[str]:
    """What no moment of a store may show, by name; nothing is listed where all is well."""
    questions = {
        "a trial is leased without an attempt that holds it": """
            SELECT t.id FROM trial t WHERE t.state = 'leased' AND NOT EXISTS (SELECT 1 FROM attempt a
            WHERE a.trial_id = t.id AND a.number = t.attempt AND a.state IN ('leased', 'running'))""",
        "an attempt holds a trial that is not its own": """
            SELECT a.id FROM attempt a JOIN trial t ON t.id = a.trial_id WHERE a.state IN ('leased', 'running')
            AND (t.state <> 'leased' OR t.attempt <> a.number)""",
        "evidence without a ledger": """
            SELECT t.id FROM trial t JOIN attempt a ON a.id = t.evidence_attempt_id WHERE NOT EXISTS
            (SELECT 1 FROM ledger l WHERE l.attempt_id = coalesce(a.reused_from, a.id))""",
        "evidence of another trial": """
            SELECT t.id FROM trial t JOIN attempt a ON a.id = t.evidence_attempt_id WHERE a.trial_id <> t.id""",
        "a delivered attempt that is no evidence": """
            SELECT a.id FROM attempt a JOIN trial t ON t.id = a.trial_id WHERE a.state = 'delivered'
            AND (t.evidence_attempt_id IS NULL OR t.evidence_attempt_id <> a.id)""",
        "a graded trial without a grade": """
            SELECT t.id FROM trial t WHERE t.state = 'graded' AND NOT EXISTS
            (SELECT 1 FROM grade g WHERE g.attempt_id = t.evidence_attempt_id)""",
        "attempt numbers with a gap": """
            SELECT t.id FROM trial t WHERE t.attempt <> (SELECT count(*) FROM attempt a WHERE a.trial_id = t.id)""",
        "a cell is done too early": """
            SELECT c.id FROM cell c WHERE c.state = 'done' AND EXISTS (SELECT 1 FROM trial t
            WHERE t.cell_id = c.id AND t.state IN ('open', 'leased', 'delivered'))""",
        "an open trial in a failed cell": """
            SELECT t.id FROM trial t JOIN cell c ON c.id = t.cell_id WHERE c.state = 'failed' AND t.state = 'open'""",
        "a finished matrix with unfinished trials": """
            SELECT m.id FROM matrix m JOIN trial t ON t.matrix_id = m.id WHERE m.state IN ('complete', 'incomplete')
            AND t.state IN ('open', 'leased', 'delivered')""",
        "a complete matrix with missing trials": """
            SELECT m.id FROM matrix m JOIN trial t ON t.matrix_id = m.id WHERE m.state = 'complete'
            AND t.state <> 'graded'""",
        "a lost attempt without a reason": """
            SELECT id FROM attempt WHERE state IN ('lost', 'fenced') AND (reason IS NULL OR budget IS NULL)""",
        "one original stands for two trials of a matrix": """
            SELECT a.reused_from FROM attempt a JOIN trial t ON t.id = a.trial_id WHERE a.reused_from IS NOT NULL
            GROUP BY t.matrix_id, a.reused_from HAVING count(*) > 1""",
    }
    with store.reading() as connection:
        return [what for what, question in questions.items() if connection.execute(sa.text(question)).first()]


def use_every_transaction(where: str) -> Store:
    """Runs the session, or what is left of it. Sequences 0 to 2 of ``old`` go wrong once, in three ways; the cell of
    case-2 under the candidate fails."""
    store = Store.open(where)
    old = register_matrix(store, "old", cases=3)
    new = register_matrix(store, "new", cases=3, changed="candidate")
    cancelled = register_matrix(store, "cancelled")
    matrices.cancel(store, cancelled)
    owner = enrolled(store)
    if reading.find_matrix(store, old).state == "registered":
        matrices.start(store, old)
    if reading.find_matrix(store, old).state in ("running", "paused"):
        matrices.pause(store, old)
        matrices.resume(store, old)
        broken = next(c for c in reading.cells(store, old) if (c.case_id, c.condition) == ("case-2", "candidate"))
        fail_cell(store, broken.id, "the image cannot be pulled")
        _run(store, old, owner, faulty=True)
        matrices.finish(store, old)
    _judge(store, old)
    _publish(store, old, owner)
    mark_stale(store, old)
    _publish(store, old, owner)
    if reading.find_matrix(store, new).state == "registered":
        reuse(store, new, old)
        matrices.start(store, new)
    if reading.find_matrix(store, new).state == "running":
        mended = next(c for c in reading.cells(store, new) if (c.case_id, c.condition) == ("case-2", "candidate"))
        if mended.state == "open":
            fail_cell(store, mended.id, "its agent does not load")
        matrices.reopen(store, new)
        _run(store, new, owner, faulty=False)
        matrices.finish(store, new)
    _on_cluster(store)
    _copy(store, old)
    return store


def _on_cluster(store: Store) -> None:
    """A controller and its pods: the first Job's name is somebody else's, the first pod ends before it asks."""
    matrix_id = register_matrix(store, "cluster", cases=1)
    if reading.find_matrix(store, matrix_id).state == "registered":
        matrices.start(store, matrix_id)
    if reading.find_matrix(store, matrix_id).state != "running":
        return
    placing.place(store, matrix_id, placing.Placement())
    store.check_writable()
    for held in claiming.held(store, [matrix_id]):
        _deliver_of_pod(store, held.attempt_id)
    for left in launching.unfinished(store):
        if left.state == "ended":
            launching.job_deleted(store, left.id)
    for cell in reading.cells(store, matrix_id):
        while (launch := _launch(store, matrix_id, cell.id)) is not None:
            if launch.generation == 1 and launch.condition == CONDITIONS[0]:
                launching.name_taken(store, launch.id, "a Job of somebody else")
                continue
            launching.created(store, launch.id, f"uid of {launch.job}")
            launching.waiting(store, launch.id, None)
            charge(store, launch.id, 0, claiming.Pod("early", "early", "node"), "pod_deleted", "somebody deleted it")
            for index in range(launch.completions):
                pod = claiming.Pod(f"{launch.job}-{index}", "pod", "node")
                found = claiming.claim(store, launch.id, index, pod, lease_seconds=60)
                if isinstance(found, claiming.PodClaim):
                    journaling.journal(store, found.attempt_id, pod.uid, 0, [b"begins"])
                    _deliver_of_pod(store, found.attempt_id)
            launching.release(store, launch.id, 0)
            launching.end(store, launch.id)
            launching.job_deleted(store, launch.id)
    matrices.finish(store, matrix_id)


def _launch(store: Store, matrix_id: int, cell_id: int) -> launching.Launch | None:
    known = (one for one in launching.of_matrix(store, matrix_id) if one.cell_id == cell_id and one.state != "ended")
    return next(known, None) or launching.plan(store, matrix_id, cell_id)


def _deliver_of_pod(store: Store, attempt_id: int) -> None:
    sent = Delivery(attempt_id, None, digest("c0"), digest(f"{attempt_id}cc"), b"of a pod", 10, 20)
    deliver(store, [sent], grades=[passed(attempt_id)], graders=GRADERS)


def _copy(store: Store, matrix_id: int) -> None:
    """What a laptop does with a cluster's matrix, here within one store."""
    copied = register_matrix(store, "copied", cases=3)
    copying.write_trials(
        store, copied, copying.read_trials(store, matrix_id, after=-1, limit=100, most_bytes=1_000_000)
    )
    copying.write_incidents(store, copied, copying.read_incidents(store, matrix_id, after=0, limit=100))
    delivered = reading.trials(store, copied, states=["delivered"])
    if grades := [passed(one.evidence_attempt_id or 0) for one in delivered]:
        add_grades(store, grades, GRADERS)
    copying.settle(store, copied, "incomplete", {("candidate", "case-2"): "the image cannot be pulled"})


def _run(store: Store, matrix_id: int, owner: str, *, faulty: bool) -> None:
    sequences = {one.id: one.sequence for one in reading.trials(store, matrix_id)}
    for left in reading.abandoned(store, matrix_id):
        if left.state == "leased":
            lose(store, [Lost(left.id, "not_started")])
        elif faulty and sequences[left.trial_id] == 2:
            seal(store, [_sealed(left.id)])
        else:
            lose(store, [Lost(left.id, "runner_killed")])
    while True:
        waiting = reading.trials(store, matrix_id, states=["delivered"])
        if grades := [passed(one.evidence_attempt_id or 0) for one in waiting]:
            add_grades(store, grades, GRADERS)
        claimed = claim(store, owner, matrix_id, limit=4, lease_seconds=60, take_over=False)
        if not claimed:
            return
        running(store, [one.attempt_id for one in claimed])
        renew(store, owner, lease_seconds=90)
        deliveries = []
        for one in claimed:
            first = faulty and not any(a.reason in _FAULTS for a in reading.attempts(store, one.trial_id))
            if first and one.sequence == 0:
                lose(store, [Lost(one.attempt_id, "pod_deleted", after_consequential_call=True, journal=b"calls")])
            elif first and one.sequence == 1:
                quarantine(store, [Quarantined(one.attempt_id, one.secret, "ledger_malformed", "no JSON", b"{")])
            elif first and one.sequence == 2:
                seal(store, [_sealed(one.attempt_id)])
            else:
                deliveries.append(ledger_of(one))
        deliver(store, deliveries)


_FAULTS = ("pod_deleted", "ledger_malformed", "recorder_killed")


def _judge(store: Store, matrix_id: int) -> None:
    """One call for every ledger that has none yet, then the judgments; what is there is not asked for again."""
    configuration, qualification = digest("judge"), digest("calibration")
    judgments.register_judge(store, configuration, b"{}")
    graded = [one.evidence_attempt_id for one in reading.trials(store, matrix_id, states=["graded"])]
    rows = []
    for attempt_id in (one for one in graded if one is not None):
        request = digest(f"request{attempt_id}")
        if not judgments.answered(store, request, configuration):
            call = judgments.Call(f"{attempt_id:032x}", matrix_id, request, configuration, 0, "answered", b"{}")
            judgments.add_call(store, call, b"request")
        rows.append(judgments.StoredJudgment(attempt_id, configuration, qualification, "judged", None, "pass", b"{}"))
    judgments.add_judgments(store, rows)


def _sealed(attempt_id: int) -> Sealed:
    own = digest(f"{attempt_id}fa")
    return Sealed(attempt_id, "recorder_killed", digest("fa"), own, b"made of the journal", b"calls")


def _publish(store: Store, matrix_id: int, owner: str) -> None:
    held = acquire_publication(store, matrix_id, "http://phoenix", owner, lease_seconds=60)
    assert held is not None
    assert renew_publication(store, held, lease_seconds=60)
    release_publication(store, held, published=True)


def cut_off(where: str, name: str, nth: int, *, committed: bool) -> int:
    """Runs the session in a process of its own that is killed before or after the nth commit of a name.

    Returns:
        The signal that ended it, 0 where the session never came that far.
    """
    child = os.fork()
    if child == 0:
        seen = 0
        whole = Store.transaction

        @contextmanager
        def interrupted(self: Store, doing: str) -> Iterator[sa.Connection]:
            nonlocal seen
            seen += doing == name
            ends_here = doing == name and seen == nth
            with whole(self, doing) as connection:  # type: ignore[arg-type]
                yield connection
                if ends_here and not committed:
                    os.kill(os.getpid(), signal.SIGKILL)
            if ends_here:
                os.kill(os.getpid(), signal.SIGKILL)

        Store.transaction = interrupted  # type: ignore[method-assign, assignment]
        status = 1
        try:
            use_every_transaction(where).close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the session failed before it was cut off"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
