"""A store and a fake cluster with a reconciler between them, and pods that do as a test says, through the store."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from fake_cluster import Document, FakeCluster

from grading.grading import stored_grade
from grading.intake import validate
from grading.manifest import resolve, trial_name
from grading.planning import register
from grading.projection import structural
from grading.recovering import delivery
from grading.store import Store, claiming, delivering, journaling, matrices, placing, reading
from grading.store.claiming import Pod, PodClaim
from k8s.api import Api
from k8s.reconciling import Reconciler
from k8s.settings import Settings
from k8s.settling import Settler
from simulator.output import Output
from simulator.recorder import software
from simulator.replay import compose, open_session
from simulator.sealing import seal

CASES = """\
version: 1
world: orders
records:
  - {order_id: order-a, customer_id: customer-1, description: red, amount_cents: 4000, currency: USD, eligible: true}
  - {order_id: order-b, customer_id: customer-1, description: blue, amount_cents: 4500, currency: EUR, eligible: true}
  - {order_id: order-c, customer_id: customer-2, description: blue, amount_cents: 4500, currency: EUR, eligible: true}
cases:
"""
CASE = """\
  - id: case-{0}
    customer_id: customer-1
    utterance: "Refund the blue one $(HOME) $$ {0}."
    expectation: {{order: order-b, clarifications: 0}}
"""
MATRIX = """\
version: 1
name: {name}
cases: cases-{cases}.yaml
conditions:
  - {{name: control, agent: descriptive-control}}
repetitions: {repetitions}
order: parallel
"""
DENIED = ("issue_refund", {"order_id": "order-b", "amount_cents": 4500, "currency": "EUR", "approval_id": "none",
                           "idempotency_key": "refund:order-b"})  # fmt: skip
"""A refund without approval: a violation, once it was called."""
LOOKED = ("list_orders", {"customer_id": "customer-1"})


def settings(**changes: Any) -> Settings:
    defaults: dict[str, Any] = {
        "namespace": "release",
        "cells_namespace": "cells",
        "intake_url": "http://intake.release.svc:8080",
        "trial_image": "trial@sha256:" + "0" * 64,
        "recorded_job_seconds": 0,
    }
    return Settings(**defaults | changes)


class Site:
    """Args:
    store: open; ``folder``: where matrix files are written.
    """

    def __init__(self, store: Store, cluster: FakeCluster, folder: Path, **changes: Any) -> None:
        self.store = store
        self.cluster = cluster
        self.settings = settings(**changes)
        self._folder = folder
        self.settler = Settler(store)
        self._reconcilers: list[Reconciler] = []
        self.reconciler = self.another()

    def another(self) -> Reconciler:
        """A controller's part that steps, started anew: it knows nothing but what store and cluster say."""
        api = Api(self.cluster.configuration(), patience_seconds=0.5)
        made = Reconciler(self.store, api, self.settings)
        made.start()
        for mirror in made.mirrors:
            assert mirror.wait_until_synced(10)
        self._reconcilers.append(made)
        return made

    def close(self) -> None:
        for one in self._reconcilers:
            one.stop()

    def matrix(self, name: str = "study", *, cases: int = 1, repetitions: int = 1, **placement: Any) -> int:
        """Registers, places and starts a matrix."""
        listed = CASES + "".join(CASE.format(number) for number in range(cases))
        (self._folder / f"cases-{cases}.yaml").write_text(listed)
        file = self._folder / f"{name}.yaml"
        file.write_text(MATRIX.format(name=name, cases=cases, repetitions=repetitions))
        matrix_id = register(self.store, resolve(file).manifest).matrix_id
        placing.place(self.store, matrix_id, placing.Placement(**placement))
        matrices.start(self.store, matrix_id)
        return matrix_id

    # Steps

    def step(self, reconciler: Reconciler | None = None) -> bool:
        """One step, once the mirrors have seen all that the cluster has."""
        one = reconciler or self.reconciler
        self.catch_up(one)
        return one.step()

    def steps(self, most: int = 20) -> None:
        """Job controller and reconciler, until nothing moves any more."""
        for _ in range(most):
            self.cluster.run_jobs()
            if not self.step():
                return
        raise AssertionError(f"still moving after {most} steps")

    def catch_up(self, reconciler: Reconciler) -> None:
        deadline = time.monotonic() + 10
        kinds = ("jobs", "pods", "events")
        while not all(map(self._has_all, reconciler.mirrors, kinds)):
            assert time.monotonic() < deadline, "the mirrors do not catch up"
            time.sleep(0.005)

    def _has_all(self, mirror: Any, kind: str) -> bool:
        there = {
            one["metadata"]["uid"]: one["metadata"]["resourceVersion"]
            for one in list(self.cluster.objects[kind].values())
            if kind == "events" or "app.kubernetes.io/component" in one["metadata"].get("labels", {})
        }
        seen = {uid: one["metadata"]["resourceVersion"] for uid, one in mirror.objects().items()}
        return seen == there

    # Pods

    @property
    def jobs(self) -> list[Document]:
        return list(self.cluster.objects["jobs"].values())

    @property
    def pods(self) -> list[Document]:
        """Those that have not ended."""
        return [
            pod
            for pod in list(self.cluster.objects["pods"].values())
            if pod["status"]["phase"] in ("Pending", "Running") and not pod["metadata"].get("deletionTimestamp")
        ]

    def pod(self) -> Document:
        """The only one that runs."""
        (found,) = self.pods
        return found

    def claim(self, pod: Document) -> PodClaim | claiming.Stop | claiming.Settling:
        metadata = pod["metadata"]
        return claiming.claim(
            self.store,
            metadata["labels"]["cellwise.dev/launch"],
            int(metadata["annotations"]["batch.kubernetes.io/job-completion-index"]),
            Pod(metadata["uid"], metadata["name"], "node-1", "cells"),
            lease_seconds=3600,
        )

    def claimed(self, pod: Document) -> PodClaim:
        claim = self.claim(pod)
        assert isinstance(claim, PodClaim), claim
        return claim

    def journal(self, pod: Document, claim: PodClaim, *calls: tuple[str, dict[str, Any]]) -> None:
        """What the pod's recorder has told of its agent's calls."""
        session, _ = open_session(self._assignment(claim))
        for name, arguments in calls:
            session.call(name, arguments)
        lines = [{"attempt": claim.attempt_id, "begin": {"assignment": claim.assignment_hash, "started": 1000}}]
        lines += [
            {"attempt": claim.attempt_id, "call": call, "started": 2000 + n, "ended": 2001 + n}
            for n, call in enumerate(session.calls)
        ]
        journaling.journal(self.store, claim.attempt_id, pod["metadata"]["uid"], 0, map(orjson.dumps, lines))

    def deliver(self, claim: PodClaim) -> str:
        """A valid ledger, taken in and graded as the intake does."""
        assignment = self._assignment(claim)
        session, customer = open_session(assignment)
        session.call(*LOOKED)
        output = Output(message="I looked into it.", claimed_outcome="needs_review")
        content = compose(assignment, session, customer, output.message, output.claims().model_dump(mode="json"), None)
        name = trial_name(claim.manifest_hash, claim.condition, claim.case_id, claim.repetition)
        envelope = {
            "version": 1, "trial": name, "attempt": claim.number, "started": 1000, "ended": 2000,
            "calls": [{"started": 1500, "ended": 1600}], "usage": None, "software": software(),
            "isolation": "process", "place": {"launcher": "kubernetes", "host": "node-1", "worker": "pod"},
            "sealed_by": "recorder",
        }  # fmt: skip
        ledger = validate(seal(content, envelope), assignment, name, claim.number)
        of = self.settler.registered(claim.matrix_id)
        grade = of.grader.grade(structural(ledger.content), of.expectations[claim.case_id])
        (outcome,) = delivering.deliver(
            self.store,
            [delivery(claim.attempt_id, None, ledger)],
            grades=[stored_grade(claim.attempt_id, grade)],
            graders=of.graders,
        )
        return outcome

    def work(self, pod: Document) -> None:
        """A pod that does all that its index has to do, and ends well; it asks again where a former one is settled."""
        while isinstance(claim := self.claim(pod), PodClaim):
            assert self.deliver(claim) == "accepted"
        if isinstance(claim, claiming.Stop):
            self.cluster.end_pod(pod["metadata"]["name"], 0)

    def end(self, pod: Document, code: int, **how: Any) -> None:
        self.cluster.end_pod(pod["metadata"]["name"], code, **how)

    def finish(self, most: int = 40) -> None:
        """Everything that is left goes well."""
        for _ in range(most):
            self.steps()
            if not self.pods:
                return
            for pod in self.pods:
                self.work(pod)
        raise AssertionError("it does not finish")

    # Questions

    def reasons(self, matrix_id: int) -> list[list[str]]:
        """By trial in planned order: what became of each attempt."""
        return [
            [one.reason or one.state for one in reading.attempts(self.store, trial.id)]
            for trial in reading.trials(self.store, matrix_id)
        ]

    def states(self, matrix_id: int) -> list[str]:
        return [trial.state for trial in reading.trials(self.store, matrix_id)]

    def matrix_state(self, matrix_id: int) -> str:
        return reading.find_matrix(self.store, matrix_id).state

    def _assignment(self, claim: PodClaim) -> dict[str, Any]:
        document = reading.assignments(self.store, [claim.assignment_hash])[claim.assignment_hash]
        found: dict[str, Any] = orjson.loads(document)
        return found


@contextmanager
def opened(store_url: str, folder: Path, **changes: Any) -> Iterator[Callable[..., Site]]:
    with Store.open(store_url) as store, FakeCluster() as cluster:
        sites: list[Site] = []

        def make(**more: Any) -> Site:
            sites.append(Site(store, cluster, folder, **{**changes, **more}))
            return sites[-1]

        yield make
        for site in sites:
            site.close()
