"""cellwise run and cellwise resume: from a matrix file to the table, and to Phoenix."""

import gc
import json as json_format
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from grading.commands import (
    INTERRUPTED,
    LEFT,
    MISSING,
    UNPUBLISHED,
    beside,
    fail,
    one_matrix,
    open_store,
    reuse_needs_one,
)
from grading.commands.judge import check_judge, judge_stage, tell
from grading.commands.progress import Shown, watching
from grading.commands.publish import Target, publish_to
from grading.commands.studies import check_only, conclude, parsed_only, tell_executions
from grading.launcher import Loading
from grading.manifest import Manifest, ResolvedStudy, differences, resolve
from grading.planning import register, registered_manifest
from grading.results import summary_of
from grading.runner import Progress, Runner
from grading.store import Store, StoreError, matrices, reading, reusing
from grading.studies import Study, load_study

MOST_PROCESSES = 256


def run(
    study: str,
    *,
    only: list[str] | None,
    reuse: str | None,
    parallelism: int | None,
    phoenix: str,
    store: str,
    json: bool,
) -> None:
    loaded = load_study(study)
    if reuse is not None and loaded.of_comparisons:
        raise reuse_needs_one(loaded)
    _check_parallelism(parallelism)
    for resolved in loaded.matrices:
        check_runs_here(resolved)
        check_only(only, resolved.manifest)
        check_judge(resolved)
    target = Target.of(phoenix)
    for resolved in loaded.matrices:
        tell_unset(resolved.manifest)
    results: list[dict[str, Any]] = []
    # What is to be reused is in a store already: none is made for a wrong word.
    with _loading(loaded, parallelism, store) as workers, open_store(store, create=reuse is None) as opened:
        registered = [_registered(opened, resolved, reuse=reuse) for resolved in loaded.matrices]
        _skip_if_up_to_date(target, opened, registered)
        if loaded.of_comparisons and not json:
            tell_executions(loaded)
        with target.starting(opened):
            for matrix, resolved in zip(registered, loaded.matrices, strict=True):
                if loaded.of_comparisons and not json:
                    print(f"\n{matrix.name}" if results else matrix.name)
                if target.up_to_date is not None:
                    target.skip_if_up_to_date(opened, matrix)
                results.append(
                    _advance(
                        opened,
                        matrix,
                        resolved,
                        only=only,
                        parallelism=parallelism,
                        target=target,
                        json=json,
                        loading=workers,
                    )
                )
    conclude(loaded, results, json=json)


@contextmanager
def _loading(study: Study, parallelism: int | None, store: str) -> Iterator[list[Loading]]:
    """Workers that load while the store is made: all is to be run where there is none yet."""
    first = study.matrices[0]
    count = 0
    if "://" not in store and not Path(store).exists():
        planned = len(first.manifest.cases) * len(first.manifest.conditions) * first.manifest.repetitions
        strict = first.manifest.schedule.order == "strict"
        count = 1 if strict else min(parallelism or first.parallelism, planned)
    started: list[Loading] = []
    try:
        started += [Loading() for _ in range(count)]
        yield started
    finally:
        for one in started:
            one.end()


def _skip_if_up_to_date(target: Target, opened: Store, listed: list[reading.Matrix]) -> None:
    """Leaves Phoenix alone only where nothing of the whole study is left to do."""
    for matrix in listed:
        target.up_to_date = None
        if matrix.state == "complete":
            target.skip_if_up_to_date(opened, matrix)
        if target.up_to_date is None:
            return


def _registered(opened: Store, resolved: ResolvedStudy, *, reuse: str | None) -> reading.Matrix:
    """The matrix of a manifest, registered now or before, with what it takes over from another one."""
    old = reading.find_matrix(opened, reuse) if reuse is not None else None
    earlier = [one for one in reading.matrices(opened) if one.name == resolved.manifest.name]
    registered = register(opened, resolved.manifest)
    matrix = reading.find_matrix(opened, registered.matrix_id)
    refuse_cancelled(matrix)
    matrix = _unpaused(opened, matrix)
    _remember(opened, matrix, resolved.matrix_file)
    if registered.created and earlier and old is None:
        _tell_changes(opened, earlier[-1], resolved.manifest)
    if old is not None and old.id != matrix.id:
        taken = reusing.reuse(opened, matrix.id, old.id)
        print(f"{len(taken)} finished trials taken over from {old.name} {_short(old)}", file=sys.stderr)
    return matrix


def refuse_cancelled(matrix: reading.Matrix) -> None:
    """Raises typer.Exit where a matrix was ended for good."""
    if matrix.state == "cancelled":
        raise fail(
            f"{matrix.name} {_short(matrix)} was cancelled and never runs again: what is changed in its file is a new "
            f"matrix, and --reuse {matrix.id} takes over what was finished"
        )


def _unpaused(opened: Store, matrix: reading.Matrix) -> reading.Matrix:
    if matrix.state == "paused":
        matrices.resume(opened, matrix.id)
    return reading.find_matrix(opened, matrix.id)


def _check_parallelism(parallelism: int | None) -> None:
    if parallelism is not None and parallelism > MOST_PROCESSES:
        raise fail(f"--parallelism {parallelism}: {MOST_PROCESSES} at most on one machine")


def resume(
    word: str | None, *, only: list[str] | None, parallelism: int | None, phoenix: str, store: str, json: bool
) -> None:
    target = Target.of(phoenix)
    _check_parallelism(parallelism)
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        refuse_cancelled(matrix)
        manifest = registered_manifest(opened, matrix.id)
        resolved = _resolved_again(opened, matrix)
        if resolved.manifest.hash() != matrix.manifest_hash:
            changes = "\n".join(f"  {change}" for change in differences(manifest, resolved.manifest))
            raise fail(
                f"{resolved.matrix_file} has changed since {matrix.name} {_short(matrix)} was started:\n{changes}\n"
                "Undo that to resume, or start a new matrix: "
                f"cellwise run {shlex.quote(str(resolved.matrix_file))} --reuse {matrix.id}"
            )
        check_runs_here(resolved)
        check_only(only, manifest)
        tell_unset(manifest)
        matrix = _unpaused(opened, matrix)
        _skip_if_up_to_date(target, opened, [matrix])
        with target.starting(opened):
            result = _advance(opened, matrix, resolved, only=only, parallelism=parallelism, target=target, json=json)
    if json:
        print(json_format.dumps(result))
    if result["status"]:
        raise typer.Exit(result["status"])


def _advance(
    opened: Store,
    matrix: reading.Matrix,
    study: ResolvedStudy,
    *,
    only: list[str] | None,
    parallelism: int | None,
    target: Target,
    json: bool,
    loading: list[Loading] | None = None,
) -> dict[str, Any]:
    """Runs a matrix as far as it gets, prints its table and publishes it. Returns what ``--json`` prints."""
    cells = None
    if only:
        terms = parsed_only(only)
        cells = [cell.id for cell in reading.cells(opened, matrix.id) if any(_fits(cell, one) for one in terms)]
    with watching(matrix.name) as watch:
        runner = Runner(
            opened,
            matrix,
            study.manifest,
            root=study.agent_root,
            folder=beside(opened) / "workers",
            parallelism=parallelism or study.parallelism,
            only=cells,
            watch=lambda progress: watch(shown(progress)),
            loading=loading,
        )
        # What the command has loaded stays: looking through it for garbage again and again took it a tenth of its time.
        gc.freeze()
        started = time.monotonic()
        with draining(runner):
            runner.run()
        advancing = time.monotonic() - started
    if opened.is_sqlite and not Path(opened.place).exists():
        raise StoreError(f"{opened.place}: the store was removed while the matrix ran: what ran is lost with it")
    matrix = reading.find_matrix(opened, matrix.id)
    if runner.stopped:
        print("cellwise: stopped; cellwise resume finishes the rest", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    judged = None
    if study.manifest.judge is not None and not runner.draining:
        judged = judge_stage(opened, matrix, study.manifest, study.manifest.judge, registry=study.registry)
        tell(judged, matrix.name)
    summary = summary_of(opened, matrix)
    if not json:
        sys.stdout.write(summary.plain())
        sys.stdout.flush()
    published = publish_to(target, opened, matrix)
    _tell_rest(opened, matrix)
    pending = judged is not None and bool(judged.pending)
    return {
        "version": 1,
        "matrix": matrix.name,
        "id": matrix.id,
        "manifest": matrix.manifest_hash,
        "state": matrix.state,
        "summary": summary.to_json(),
        **({"judging": judged.to_json()} if judged is not None else {}),
        "phoenix": published,
        "advancing_seconds": round(advancing, 3),
        "status": status_of(opened, matrix, published=published is not None or target.off, pending=pending),
    }


def status_of(store: Store, matrix: reading.Matrix, *, published: bool, pending: bool = False) -> int:
    """The exit status that a matrix deserves as it is now; ``pending``: judgments are."""
    counts = reading.counts(store, matrix.id)
    if counts["missing"]:
        return MISSING
    if counts["open"] or counts["leased"] or counts["delivered"] or pending:
        return LEFT
    return 0 if published else UNPUBLISHED


def _tell_rest(store: Store, matrix: reading.Matrix) -> None:
    for cell in reading.cells(store, matrix.id):
        if cell.state == "failed":
            print(f"cellwise: {cell.condition} / {cell.case_id} failed: {cell.reason}", file=sys.stderr)
    counts = reading.counts(store, matrix.id)
    left = counts["open"] + counts["leased"] + counts["delivered"]
    if left:
        print(f"cellwise: {left} trials are left: cellwise resume {matrix.name}", file=sys.stderr)
    if counts["missing"]:
        print(f"cellwise: {counts['missing']} trials are missing: cellwise status {matrix.name}", file=sys.stderr)


def _fits(cell: reading.Cell, terms: dict[str, str]) -> bool:
    return terms.get("case", cell.case_id) == cell.case_id and terms.get("condition", cell.condition) == cell.condition


def _tell_changes(store: Store, earlier: reading.Matrix, manifest: Manifest) -> None:
    changes = differences(registered_manifest(store, earlier.id), manifest)
    print(f"A new matrix: against {earlier.name} {_short(earlier)} it changes", file=sys.stderr)
    for change in changes:
        print(f"  {change}", file=sys.stderr)
    print(f"  (--reuse {earlier.id} takes over its finished trials that are the same)", file=sys.stderr)


def _short(matrix: reading.Matrix) -> str:
    return matrix.manifest_hash.removeprefix("sha256:")[:12]


def _note(store: Store, matrix: reading.Matrix) -> Path:
    return beside(store) / "studies" / matrix.manifest_hash.removeprefix("sha256:")


def _remember(store: Store, matrix: reading.Matrix, matrix_file: Path) -> None:
    """Notes on this machine which file a matrix was started from; the manifest itself names no path."""
    note = _note(store, matrix)
    note.parent.mkdir(parents=True, exist_ok=True)
    # Bytes as the system has them: a path need not be text. Whole or not at all, two runs may start at once.
    new = note.with_name(f"{note.name}.{os.getpid()}")
    new.write_bytes(os.fsencode(matrix_file.absolute()))
    new.replace(note)


def _resolved_again(store: Store, matrix: reading.Matrix) -> ResolvedStudy:
    """The file that a matrix was started from, as it is now."""
    elsewhere = f"run {matrix.name}'s matrix file from where it is, which resumes it"
    try:
        path = Path(os.fsdecode(_note(store, matrix).read_bytes()))
    except FileNotFoundError:
        raise fail(f"{matrix.name} was not started beside this store: {elsewhere}") from None
    if not path.exists():
        raise fail(f"{path}: {matrix.name} was started from this file, which is gone: {elsewhere}")
    return resolve(path)


@contextmanager
def draining(runner: Runner) -> Iterator[None]:
    """Ctrl-C lets what runs arrive and then ends; a second one ends at once. SIGTERM is like the first."""

    def interrupted(number: int, _: FrameType | None) -> None:
        if runner.draining and number == signal.SIGINT:
            runner.stop()
        elif not runner.draining:
            print("\ncellwise: finishing what runs; Ctrl-C again stops at once", file=sys.stderr)
            runner.drain()

    before = {number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def shown(progress: Progress) -> Shown:
    """A runner's progress as a person sees it."""
    remarks = [
        (progress.missing, "missing"),
        (progress.lost, "attempts lost"),
        (progress.held_by_others, "elsewhere"),
    ]
    told = ", ".join(f"{count} {word}" for count, word in remarks if count)
    return Shown(progress.done, progress.planned, progress.ran, told)


def tell_unset(manifest: Manifest) -> None:
    """Says which variables an agent will not get: it may do without, or fail in every trial."""
    for condition in manifest.conditions:
        unset = [name for name in condition.agent.env if name not in os.environ]
        if unset:
            print(f"cellwise: {condition.name}: not set in this environment: {', '.join(unset)}", file=sys.stderr)


def check_runs_here(resolved: ResolvedStudy) -> None:
    """Refuses a matrix of which this machine's processes cannot run every condition.

    Raises:
        typer.Exit: with the conditions whose agents run from an image.
    """
    if resolved.images:
        names = ", ".join(resolved.images)
        have = "has an image, whose agent runs" if len(resolved.images) == 1 else "have images, whose agents run"
        raise fail(f"{resolved.matrix_file}: {names} {have} on a cluster alone: add --on kubernetes, or remove image")
