"""cellwise assess: which of the stored judgments would count today."""

import json as json_format
import time
from collections.abc import Iterator
from pathlib import Path

from grading import replay_packet
from grading.calibration.assessment import Assessment, StoredJudgment
from grading.calibration.assessment import assess as assess_judgments
from grading.calibration.registry import Registry, microseconds
from grading.calibration.rows import Scope
from grading.commands import fail, one_matrix, open_store
from grading.commands.replay import processors
from grading.planning import registered_manifest
from grading.results import semantics
from grading.store import Store, reading
from grading.store.attempts import batches
from grading.visible import visible


def assess(
    word: str | None,
    *,
    registry: Path,
    at: str | None,
    packet: Path | None = None,
    expect_sha256: str | None = None,
    store: str,
    json: bool,
) -> None:
    if packet is not None and word is not None:
        raise fail("name either a matrix or a --packet to assess")
    if packet is None and expect_sha256 is not None:
        raise fail("--expect-sha256 is the hash of a --packet: name that too")
    try:
        when = time.time_ns() // 1000 if at is None else microseconds(at)
    except ValueError as error:
        raise fail(f"--at: {error}") from error
    trusted = Registry.load(registry)
    if packet is not None:
        name, about, assessment = _of_packet(packet, expect_sha256, trusted, when)
    else:
        with open_store(store) as opened:
            matrix = one_matrix(opened, word)
            assessment = assess_judgments(judgments(opened, matrix), trusted, when)
        name, about = matrix.name, {}
    if json:
        print(json_format.dumps({**assessment.to_json(), "matrix": name, **about}))
    else:
        print(text(name, assessment), end="")


def _of_packet(
    path: Path, expect_sha256: str | None, registry: Registry, when: int
) -> tuple[str, dict[str, str], Assessment]:
    """The assessment of a packet that replays. What counted then counts as it was recorded: today is the question."""
    try:
        report = replay_packet.replay_packet(path, expected_sha256=expect_sha256, processes=processors())
        held = list(_held(path, report))
    except OSError as error:
        raise fail(f"{path}: cannot be read: {error.strerror}") from error
    return report.name, {"packet": report.sha256}, assess_judgments(held, registry, when)


def _held(path: Path, report: replay_packet.Report) -> Iterator[StoredJudgment]:
    for name, judgment, manifest in replay_packet.judgments(path, report):
        judge = manifest.judge
        if judge is None or judgment is None:
            yield StoredJudgment(name, False, None, None, None, None)
            continue
        yield StoredJudgment(
            name,
            judgment.unqualified is None,
            judgment.calibration_hash,
            judgment.configuration_hash,
            Scope(criterion=judgment.criterion, policy_version=judge.policy_version, world=manifest.world),
            judgment.checked_after,
            judgment.unqualified,
        )


def judgments(store: Store, matrix: reading.Matrix) -> Iterator[StoredJudgment]:
    """What was judged of every trial that has evidence. A matrix without a judge has nothing that was."""
    manifest = registered_manifest(store, matrix.id)
    judge = manifest.judge
    for trials in batches(reading.trials(store, matrix.id, states=["delivered", "graded"]), 100):
        judged = semantics(store, trials, judge.configuration_hash()) if judge is not None else {}
        for trial in trials:
            name = f"{trial.condition}/{trial.case_id}/{trial.repetition}"
            found = judged.get(trial.id)
            if judge is None or found is None or found.document is None:
                yield StoredJudgment(name, False, None, None, None, None)
                continue
            document = found.document
            yield StoredJudgment(
                name,
                document["unqualified"] is None,
                document["calibration_hash"],
                document["configuration_hash"],
                Scope(criterion=document["criterion"], policy_version=judge.policy_version, world=manifest.world),
                document["checked_after"],
                document["unqualified"],
            )


def text(name: str, assessment: Assessment) -> str:
    """The assessment as a person reads it."""
    trials = len(assessment.trials)
    lines = [visible(f"{name}: {assessment.status}")]
    lines.append(f"  {trials - assessment.not_current} of {trials} judgments would count today")
    lines += [visible(f"  {reason}: {count}") for reason, count in assessment.by_reason.items()]
    if assessment.status == "not_applicable":
        lines.append("  no calibrated judge was asked about any trial")
    lines.append("What was graded stays as it is; this gives permission for nothing.")
    return "\n".join(lines) + "\n"
