"""What a matrix in the store looks like in Phoenix, and publishing it under the store's lease."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson

from grading.manifest import Manifest
from grading.planning import registered_manifest
from grading.publisher.desired import (
    DesiredCheck,
    DesiredCondition,
    DesiredExample,
    DesiredGrade,
    DesiredMatrix,
    DesiredRun,
    DesiredSemantic,
    desired_run,
    missing_run,
)
from grading.publisher.phoenix import Phoenix
from grading.publisher.reconcile import Published, publish
from grading.redaction import Redactor
from grading.results import semantics
from grading.semantic import Semantic, joint
from grading.store import Store, owners, publishing, reading
from grading.store.attempts import batches

LEASE_SECONDS = 60.0


class BeingPublished(Exception):  # noqa: N818 - reads as what is so
    """Somebody else is publishing this matrix to the same place right now."""


def publish_matrix(
    store: Store,
    matrix: reading.Matrix,
    url: str,
    *,
    target: str | None = None,
    api_key: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    thorough: bool = False,
    owner: owners.Owner | None = None,
    shown_at: str | None = None,
) -> Published:
    """Brings Phoenix up to date with the store: posts what differs, whatever an earlier try left behind.

    Args:
        target: what the store calls this Phoenix, where its address may change; the address by default.
        owner: who publishes, where that is somebody who does so more than once; this process anew by default.
        shown_at: where people's browsers reach this Phoenix, if elsewhere than this process: links begin with it.

    Raises:
        BeingPublished: another publisher holds the lease.
        PhoenixUnavailable, PhoenixRefused: publishing stays stale and can be tried again.
    """
    owner = owner or owners.Owner.this_process()
    owners.enrol(store, owner)
    held = publishing.acquire_publication(store, matrix.id, target or url, owner.id, lease_seconds=LEASE_SECONDS)
    if held is None:
        raise BeingPublished(f"matrix {matrix.name} is being published to {url} by another process")

    def renew() -> None:
        if not publishing.renew_publication(store, held, lease_seconds=LEASE_SECONDS):
            raise BeingPublished(f"another process has taken over publishing matrix {matrix.name} to {url}")

    published = None
    try:
        with Phoenix(url, api_key) as phoenix:
            published = publish(desired(store, matrix), phoenix, progress=progress, lease=renew, thorough=thorough)
            if shown_at is not None:
                published = published.moved(phoenix.url, shown_at)
    finally:
        done = published is not None and published.complete
        detail = published.compare_url if published is not None else None
        publishing.release_publication(store, held, published=done, detail=detail)
    return published


def desired(store: Store, matrix: reading.Matrix) -> DesiredMatrix:
    """The matrix as Phoenix should show it; its trials are read from the store while they are published."""
    manifest = registered_manifest(store, matrix.id)
    counts = reading.counts_by_condition(store, matrix.id)
    short = matrix.manifest_hash.removeprefix("sha256:")[:12]
    redactor = Redactor(manifest.redaction)
    ended = matrix.state in ("complete", "incomplete", "cancelled")

    return DesiredMatrix(
        manifest_hash=matrix.manifest_hash,
        name=f"{manifest.name} {short}",
        description=_description(manifest),
        repetitions=manifest.repetitions,
        cases=[
            DesiredExample(
                case_id=case.id,
                input={"utterance": redactor.text(case.utterance)},
                output={"expectation": redactor.text(_told(case.expectation))},
                metadata={
                    "customer_id": redactor.text(case.customer_id),
                    **redactor.value(case.labels, names=True),
                },
            )
            for case in manifest.cases
        ],
        conditions=[
            DesiredCondition(
                name=condition.name,
                baseline=condition.name == manifest.baseline,
                final=ended or not any(counts[condition.name][state] for state in ("open", "leased", "delivered")),
                metadata={
                    "matrix": manifest.name,
                    "manifest": matrix.manifest_hash,
                    "condition": condition.name,
                    "agent": condition.agent.name,
                    "agent_source": condition.agent.source,
                    "settings": condition.agent.settings,
                },
                runs=partial(_runs, store, matrix, manifest, condition.name),
            )
            for condition in manifest.conditions
        ],
    )


def _runs(store: Store, matrix: reading.Matrix, manifest: Manifest, condition: str) -> Iterator[DesiredRun]:
    cells = [cell.id for cell in reading.cells(store, matrix.id) if cell.condition == condition]
    order_known = {case.id: case.expectation.get("order") is not None for case in manifest.cases}
    redactor = Redactor(manifest.redaction)
    judge = manifest.judge.configuration_hash() if manifest.judge is not None else None
    trials = reading.trials(store, matrix.id, states=["graded", "missing"], cell_ids=cells, ledgers=True, grades=True)
    for batch in batches(trials, 100):
        judged = semantics(store, batch, judge) if judge is not None else {}
        for trial in batch:
            if trial.state == "missing" or trial.ledger is None:
                yield _missing(store, trial)
                continue
            ledger = orjson.loads(trial.ledger)
            grade = _grade(trial, redactor)
            semantic = judged.get(trial.id)
            yield desired_run(
                {**ledger, "content": redactor.value(ledger["content"])},
                grade,
                case_id=trial.case_id,
                repetition=trial.repetition,
                order_known=order_known[trial.case_id],
                semantic=_semantic(semantic, grade, redactor) if semantic is not None else None,
            )


def _grade(trial: reading.Trial, redactor: Redactor) -> DesiredGrade:
    (grade,) = trial.grades
    checks = orjson.loads(grade.checks)
    return DesiredGrade(
        grader=grade.grader,
        version=grade.version,
        verdict=grade.verdict,
        task_completed=grade.task_completed,
        # What is shown and not judged is no reason for a verdict.
        checks=[
            DesiredCheck(check["name"], check["passed"], redactor.value(check["observed"], names=True))
            for check in checks
            if check["passed"] is not None
        ],
    )


def _semantic(semantic: Semantic, grade: DesiredGrade, redactor: Redactor) -> DesiredSemantic:
    judgment = semantic.document or {}
    models = sorted({vote["returned_model"] for vote in judgment.get("votes", []) if vote["returned_model"]})
    return DesiredSemantic(
        state=semantic.state,
        reason=semantic.reason,
        explanation=redactor.text(semantic.explanation or ""),
        joint=joint(grade.verdict, semantic),
        metadata={
            "criterion": judgment.get("criterion"),
            "judge": semantic.configuration_hash,
            "calibration": judgment.get("calibration_hash"),
            "said": semantic.verdict,
            "models": models,
            "votes": len(judgment.get("votes", [])),
            "cost": semantic.cost.state,
            "micro_dollars": semantic.cost.micro_dollars,
            "cached": semantic.cached,
        },
    )


def _missing(store: Store, trial: reading.Trial) -> DesiredRun:
    attempts = reading.attempts(store, trial.id)
    cell = next(one for one in reading.cells(store, trial.matrix_id) if one.id == trial.cell_id)
    last = attempts[-1] if attempts else None
    reason = cell.reason or (last.reason if last is not None else None) or "never run"
    started = attempts[0].leased_at if attempts else 0
    ended = (last.ended or last.leased_at) if last is not None else started
    return missing_run(
        case_id=trial.case_id,
        repetition=trial.repetition,
        reason=reason,
        attempts=len(attempts),
        started=started,
        ended=ended,
    )


def _description(manifest: Manifest) -> str:
    conditions = ", ".join(condition.name for condition in manifest.conditions)
    return f"{len(manifest.cases)} cases x {conditions} x {manifest.repetitions} repetitions"


def _told(expectation: dict[str, Any]) -> str:
    """An expectation in one line, for people who compare."""
    return ", ".join(
        f"{name.replace('_', ' ')}: {'none' if value is None else value}" for name, value in expectation.items()
    )
