"""cellwise judge: judging again what is stored, with the registered judge or another one. No agent runs."""

import json as json_format
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from grading.commands import LEFT, fail, one_matrix, open_store
from grading.judge.configuration import JudgeFile, RegisteredJudge, registered
from grading.judging import Judged, judge_matrix
from grading.manifest import Manifest
from grading.results import semantics, summary_of
from grading.store import Store, reading
from grading.store.attempts import batches
from grading.yaml_file import load


def judge(word: str | None, *, judge_file: Path | None, collect: bool, store: str, json: bool) -> None:
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        manifest = Manifest.from_document(reading.manifest(opened, matrix.id))
        asked = manifest.judge
        if judge_file is not None:
            asked = registered(load(judge_file, JudgeFile).judge, manifest.world)
        if asked is None:
            raise fail(f"{matrix.name} has no judge: name one with --judge FILE")
        judged = judge_stage(opened, matrix, manifest, asked, collect=collect)
        summary = summary_of(opened, matrix, judge=asked.configuration_hash())
        compared = None
        if manifest.judge is not None and manifest.judge.configuration_hash() != asked.configuration_hash():
            compared = compare(opened, matrix, manifest.judge, asked)
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
    opened: Store, matrix: reading.Matrix, manifest: Manifest, asked: RegisteredJudge, *, collect: bool = False
) -> Judged:
    """Judges a matrix, telling how far it is where that takes long."""
    told = time.monotonic()

    def watch(judged: Judged) -> None:
        nonlocal told
        if time.monotonic() - told >= 10:
            told = time.monotonic()
            print(f"{matrix.name}: {judged.done} messages judged", file=sys.stderr)

    return judge_matrix(opened, matrix, manifest, asked, collect=collect, watch=watch)


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
