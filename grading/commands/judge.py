"""cellwise judge: judging again what is stored, with the registered judge or another one. No agent runs."""

import json as json_format
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from grading.calibration.json_lines import check_new, write_lines
from grading.commands import LEFT, beside, fail, one_matrix, open_store
from grading.judge.configuration import JudgeFile, RegisteredJudge, registered
from grading.judge.qualification import Qualification, Uncalibrated
from grading.judging import Judged, judge_matrix
from grading.manifest import Manifest, ResolvedStudy
from grading.planning import registered_manifest
from grading.results import semantics, summary_of
from grading.store import Store, reading
from grading.store.attempts import batches
from grading.yaml_file import load


def judge(
    word: str | None,
    *,
    judge_file: Path | None,
    registry: Path | None,
    collect: bool,
    verdicts: Path | None,
    store: str,
    json: bool,
) -> None:
    if verdicts is not None:
        check_new(verdicts)  # before a judge is paid
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        manifest = registered_manifest(opened, matrix.id)
        asked = manifest.judge
        if judge_file is not None:
            written = load(judge_file, JudgeFile)
            asked = registered(written.judge, manifest.world, written.calibration)
            if registry is None and written.registry is not None:
                registry = judge_file.parent / written.registry
        elif registry is None:
            registry = noted_registry(opened, matrix)
        if asked is None:
            raise fail(f"{matrix.name} has no judge: name one with --judge FILE")
        judged = judge_stage(opened, matrix, manifest, asked, registry=registry, collect=collect)
        summary = summary_of(opened, matrix, judge=asked.configuration_hash())
        compared = None
        if manifest.judge is not None and manifest.judge.configuration_hash() != asked.configuration_hash():
            compared = compare(opened, matrix, manifest.judge, asked)
        if verdicts is not None:
            write_verdicts(opened, matrix, asked, verdicts)
    if json:
        document = {
            "version": 1,
            "matrix": matrix.name,
            "judge": asked.configuration_hash(),
            **judged.to_json(),
            "summary": summary.to_json(),
            "against_registered": compared,
        }
        print(json_format.dumps(document))
    else:
        tell(judged, matrix.name)
        print(summary.plain(), end="")
        for row in compared or ():
            print(f"registered judge {row['registered']}, this one {row['other']}: {row['count']}")
    if judged.pending:
        raise typer.Exit(LEFT)


def judge_stage(
    opened: Store,
    matrix: reading.Matrix,
    manifest: Manifest,
    asked: RegisteredJudge,
    *,
    registry: Path | None,
    collect: bool = False,
) -> Judged:
    """Judges a matrix, telling how far it is where that takes long.

    Raises:
        FileError: the registry cannot be used.
        typer.Exit: the judge is to count by a calibration, and there is no registry to ask about it.
    """
    qualification = qualification_of(asked, registry)
    told = time.monotonic()

    def watch(judged: Judged) -> None:
        nonlocal told
        if time.monotonic() - told >= 10:
            told = time.monotonic()
            print(f"{matrix.name}: {judged.done} messages judged", file=sys.stderr)

    return judge_matrix(opened, matrix, manifest, asked, qualification=qualification, collect=collect, watch=watch)


def qualification_of(asked: RegisteredJudge, registry: Path | None) -> Qualification:
    """What the operator's registry says of the calibration that a judge is to count by."""
    if asked.calibration is None:
        return Uncalibrated()
    if registry is None:
        raise fail(f"the judge is to count by the calibration {asked.calibration}: give its --registry FILE")
    from grading.calibration.registry import Registry

    return Registry.load(registry).calibration(asked.calibration)


def check_judge(study: ResolvedStudy) -> None:
    """Refuses a study whose judge could not be asked, before anything runs.

    Raises:
        FileError, JudgeMisconfigured, typer.Exit: its registry cannot be used, or its key is not there.
    """
    asked = study.manifest.judge
    if asked is None:
        return
    qualification_of(asked, study.registry)
    if asked.calibration is not None and asked.connection is not None:
        from grading.judge.openai import api_key

        api_key(asked.connection)


def noted_registry(store: Store, matrix: reading.Matrix) -> Path | None:
    """The registry that the matrix file names from which a matrix was started on this machine."""
    note = beside(store) / "studies" / matrix.manifest_hash.removeprefix("sha256:")
    if not note.exists():
        return None
    path = Path(os.fsdecode(note.read_bytes()))
    if not path.exists():
        return None
    from grading.matrix_file import read_matrix

    named = read_matrix(path)[1].registry
    return path.parent / named if named is not None else None


def write_verdicts(opened: Store, matrix: reading.Matrix, asked: RegisteredJudge, path: Path) -> None:
    """Writes what a judge said of which evidence, once for each, for cellwise calibrate import.

    Raises:
        FileError: the file is there already, or cannot be written.
    """
    from grading.calibration.rows import Judgment

    configuration = asked.configuration_hash()
    found: dict[str, Judgment] = {}
    for trials in batches(reading.trials(opened, matrix.id), 100):
        for one in semantics(opened, trials, configuration).values():
            if one.document is not None and one.verdict is not None:
                name = one.document["request_hash"]
                found[name] = Judgment(evidence_hash=name, configuration_hash=configuration, verdict=one.verdict)
    print(f"{path}  {write_lines(path, found.values())} verdicts", file=sys.stderr)


def tell(judged: Judged, name: str) -> None:
    """Remarks on what judging came to."""
    print(f"{judged.judged} messages judged, {judged.before} were judged before", file=sys.stderr)
    for reason, count in sorted(judged.refused.items()):
        print(f"  {count} not judged, the judge does not count: {reason}", file=sys.stderr)
    for reason, count in sorted(judged.pending.items()):
        print(f"  {count} pending: {reason}; cellwise judge {name} tries again", file=sys.stderr)
    if judged.trouble is not None:
        print(f"  the judge's last failure: {judged.trouble}", file=sys.stderr)


def compare(
    opened: Store, matrix: reading.Matrix, one: RegisteredJudge, other: RegisteredJudge
) -> list[dict[str, Any]]:
    """How often two judges said what, over the ledgers that both have judged, whether their word counts or not."""
    counts: Counter[tuple[str, str]] = Counter()
    for trials in batches(reading.trials(opened, matrix.id), 100):
        said = [semantics(opened, trials, each.configuration_hash()) for each in (one, other)]
        for trial in trials:
            verdicts = [each[trial.id].verdict for each in said if trial.id in each]
            if len(verdicts) == 2 and verdicts[0] is not None and verdicts[1] is not None:
                counts[verdicts[0], verdicts[1]] += 1
    return [{"registered": a, "other": b, "count": count} for (a, b), count in sorted(counts.items())]
