"""cellwise calibrate: from stored ledgers to a record that says what a judge's word is worth."""

import json as json_format
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter, ValidationError

from grading.calibration import items as review
from grading.calibration.importing import Imported, make_rows
from grading.calibration.items import Grouping, KeyItem, Source
from grading.calibration.json_lines import check_new, read_lines
from grading.calibration.record import compile_record, read_record, write_record
from grading.calibration.registry import Registry
from grading.calibration.report import held_out_json, held_out_text, record_json, record_text
from grading.calibration.rows import Judgment, Scope, read_rows, write_rows
from grading.calibration.split import held_out_report, split_rows
from grading.cases import Identifier
from grading.commands import api_key, fail, one_matrix, open_store
from grading.manifest import Manifest
from grading.planning import registered_manifest
from grading.projection import semantic
from grading.redaction import Redactor
from grading.store import Store, reading

if TYPE_CHECKING:
    from grading.calibration.labelling import Labels
    from grading.commands.publish import Target
    from grading.publisher.phoenix import Phoenix

KEY = "key.jsonl"
_NAME: TypeAdapter[str] = TypeAdapter(Identifier)
_SHARE = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20}|[0-9]{1,20}/[0-9]{1,20}")


def scope_of(world: str, *, policy_version: str | None, criterion: str | None) -> Scope:
    """A scope, by default the one that judges of a world are qualified for.

    Raises:
        typer.Exit: the world has no policy that would be the default.
    """
    from grading.judge import CRITERION, POLICY_VERSIONS

    policy = POLICY_VERSIONS.get(world) if policy_version is None else policy_version
    if policy is None:
        known = ", ".join(POLICY_VERSIONS)
        raise fail(f"no judge knows the world '{world}': give its --policy-version, or a world of {known}")
    criterion = CRITERION if criterion is None else criterion
    _check_names(("--criterion", criterion), ("--policy-version", policy), ("--world", world))
    return Scope(criterion=criterion, policy_version=policy, world=world)


def _check_names(*given: tuple[str, str]) -> None:
    """Refuses an option's value that no document could hold as a name."""
    for option, name in given:
        try:
            _NAME.validate_python(name)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            message = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else problem["msg"]
            raise fail(f"{option} '{name[:60]}': {message}") from None


def export(
    word: str | None,
    *,
    out: Path,
    reviewers: Sequence[str],
    phoenix: str | None,
    scope: Scope,
    grouping: Grouping,
    per_group: int | None,
    synthetic: bool,
    store: str,
) -> None:
    """Writes the key, and each reviewer's items into a file or into Phoenix."""
    if len(set(reviewers)) != len(reviewers) or len(reviewers) < 2:
        raise fail("name two different reviewers: --reviewer alice --reviewer bob")
    _check_names(*(("--reviewer", reviewer) for reviewer in reviewers))
    if phoenix is not None:
        _target(phoenix)
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        manifest = registered_manifest(opened, matrix.id)
        if manifest.world != scope.world:
            raise fail(f"{matrix.name} is of the world {manifest.world}, not {scope.world}: give --world")
        sources = list(_sources(opened, matrix, manifest, scope))
    if not sources:
        raise fail(f"{matrix.name} has no ledger to review yet: run it first")
    every = review.items_of(sources, scope=scope, grouping=grouping, synthetic=synthetic)
    key = review.items_of(sources, scope=scope, grouping=grouping, synthetic=synthetic, per_group=per_group)
    _new_folder(out)
    review.write_key(out / KEY, key)
    groups = len({item.group for item in every})
    print(
        f"{len(sources)} ledgers, {len(every)} different items in {groups} groups; {len(key)} to review",
        file=sys.stderr,
    )
    if len(key) < len(every):
        print(
            "A record takes one item of each group, because items of one group are no independent evidence. "
            "--per-group takes more, --group-by says what belongs together.",
            file=sys.stderr,
        )
    print(out / KEY)
    if phoenix is None:
        for position, reviewer in enumerate(reviewers, 1):
            path = out / f"review-{position}.jsonl"
            review.write_review(path, review.for_reviewer(key, reviewer))
            print(f"{path}  for {reviewer}")
        return
    from grading.calibration.labelling import send_items

    with _phoenix(phoenix, store) as server:
        for reviewer in reviewers:
            sent = send_items(server, key, reviewer)
            print(f"{sent.address}  for {reviewer}")


def import_(
    key_path: Path,
    *,
    reviews: Sequence[Path],
    adjudication: Path | None,
    phoenix: str | None,
    reviewers: Sequence[str],
    adjudicator: str | None,
    to_adjudicate: Path | None,
    judgments: Path | None,
    out: Path,
    store: str,
) -> None:
    """Makes rows of what reviewers answered, in files or in Phoenix."""
    _check_names(*(("--reviewer", reviewer) for reviewer in reviewers))
    if adjudicator is not None:
        _check_names(("--adjudicator", adjudicator))
    new = [path for path in (out, to_adjudicate) if path is not None]
    for path in new:
        check_new(path)
    if len({path.absolute() for path in new}) < len(new):
        raise fail(f"--out and --to-adjudicate name the same file {out}: give each its own")
    key = review.read_key(key_path)
    verdicts = read_lines(judgments, Judgment) if judgments is not None else []
    if phoenix is None:
        if len(reviews) != 2:
            raise fail("give the two reviews: --review review-1.jsonl --review review-2.jsonl")
        first, second = (review.read_review(path) for path in reviews)
        decided = review.read_review(adjudication) if adjudication is not None else []
        imported = make_rows(key, first, second, decided, judgments=verdicts)
        if imported.to_adjudicate and to_adjudicate is not None and adjudicator is not None:
            review.write_review(to_adjudicate, review.for_reviewer(imported.to_adjudicate, adjudicator))
            print(f"{to_adjudicate}  for {adjudicator}", file=sys.stderr)
    else:
        if len(reviewers) != 2:
            raise fail("name the two reviewers that the items were exported for: --reviewer alice --reviewer bob")
        if len({*reviewers, adjudicator}) != 3:
            raise fail("the two reviewers and the adjudicator must be three different people")
        with _phoenix(phoenix, store) as server:
            imported = _from_phoenix(server, key, reviewers, adjudicator, verdicts)
    _tell(imported)
    if not imported.rows:
        raise fail("no row could be made yet, nothing was written")
    print(f"{out}  {write_rows(out, imported.rows)} rows")


def compile_(rows: Path, *, registry: Path, scope: Scope, out: Path | None, json: bool) -> None:
    """Compiles a record, and shows what it comes to."""
    if out is not None:
        check_new(out)
    trusted = Registry.load(registry)
    record = compile_record(read_rows(rows), scope=scope, reviewers=trusted.reviewers, excluded=trusted.excluded)
    if out is not None:
        write_record(out, record)
    if json:
        print(json_format.dumps(record_json(record, trusted.policy)))
    else:
        print(record_text(record, trusted.policy), end="")


def split(rows: Path, *, seed: int, held_out: str, out: Path) -> None:
    """Divides rows into two files, a group as a whole."""
    try:
        # An exponent would make a number of as many digits as it says.
        share = Fraction(held_out) if _SHARE.fullmatch(held_out) else None
    except ZeroDivisionError:
        share = None
    if share is None or share > 1:
        raise fail(f"--held-out {held_out[:60]}: write a share from 0 to 1, such as 0.3")
    divided = split_rows(read_rows(rows), seed=seed, held_out=share)
    _new_folder(out)
    for side in ("calibration", "held_out"):
        taken = [row for row in divided if row.split == side]
        if taken:
            path = out / f"{side}.jsonl"
            groups = len({row.group for row in taken})
            print(f"{path}  {write_rows(path, taken)} rows in {groups} groups")


def held_out(rows: Path, *, record: Path, registry: Path, json: bool) -> None:
    """Shows what a calibrated judge did on rows that had no part in its calibration."""
    trusted = Registry.load(registry)
    report = held_out_report(
        read_record(record), read_rows(rows), reviewers=trusted.reviewers, excluded=trusted.excluded
    )
    print(json_format.dumps(held_out_json(report)) if json else held_out_text(report), end="\n" if json else "")


def _sources(store: Store, matrix: reading.Matrix, manifest: Manifest, scope: Scope) -> Iterator[Source]:
    labels = {member.case: (member.customer, member.labels) for member in manifest.population}
    # Reviewers label what the judge sees, and no more leaves for them either.
    redactor = Redactor(manifest.redaction)
    for trial in reading.trials(store, matrix.id, states=["delivered", "graded"], ledgers=True):
        if trial.ledger is None:
            continue
        content = orjson.loads(trial.ledger)["content"]
        if not content["message"]:
            continue  # nothing was said, so that nothing can be true or false
        customer, slices = labels[trial.case_id]
        evidence: dict[str, Any] = redactor.value(dict(semantic(content, scope.policy_version)))
        name = f"{trial.condition}/{trial.case_id}/{trial.repetition}"
        yield Source(name, trial.case_id, customer, slices, evidence)


def _from_phoenix(
    server: "Phoenix",
    key: Sequence[KeyItem],
    reviewers: Sequence[str],
    adjudicator: str | None,
    verdicts: Sequence[Judgment],
) -> Imported:
    """Two reviewers' labels; where they disagree, the adjudicator's, who is sent what is still undecided."""
    from grading.calibration.labelling import check_users, read_labels, send_items

    labels: dict[str, Labels] = {reviewer: read_labels(server, key, reviewer) for reviewer in reviewers}
    check_users(labels)
    first, second = (labels[reviewer].items for reviewer in reviewers)
    imported = make_rows(key, first, second, judgments=verdicts)
    if not imported.to_adjudicate or adjudicator is None:
        return imported
    disputed = [item.id for item in imported.to_adjudicate]
    sent = send_items(server, key, adjudicator, only=disputed)
    print(f"{sent.address}  for {adjudicator} to decide", file=sys.stderr)
    labels[adjudicator] = read_labels(server, key, adjudicator, only=disputed)
    check_users(labels)
    # A decision without its reason waits for it: a person fills in one after the other.
    decided = [item for item in labels[adjudicator].items if item.note and item.note.strip()]
    return make_rows(key, first, second, decided, judgments=verdicts)


def _tell(imported: Imported) -> None:
    waiting: dict[str, int] = {}
    for names in imported.unlabelled.values():
        for name in names:
            waiting[name] = waiting.get(name, 0) + 1
    for name, count in sorted(waiting.items()):
        print(f"{count} items wait for a label by {name}", file=sys.stderr)
    for item in imported.to_adjudicate:
        print(f"the reviewers disagree on {item.id}: a third one must decide, with a reason", file=sys.stderr)
    if imported.not_judged:
        print(f"{imported.not_judged} rows have no judgment yet: give --judgments", file=sys.stderr)


def _target(word: str) -> "Target":
    from grading.commands.publish import Target

    target = Target.of(word)
    if target.off:
        raise fail("--phoenix off has nobody label anything: write embedded or a URL")
    return target


@contextmanager
def _phoenix(word: str, store: str) -> "Iterator[Phoenix]":
    from grading.calibration.labelling import LabellingRefused
    from grading.phoenix_server import PhoenixNotStarted
    from grading.publisher.phoenix import Phoenix, PhoenixError

    target = _target(word)
    try:
        with open_store(store) as opened, target.starting(opened):
            if target.trouble is not None:
                raise PhoenixNotStarted(target.trouble)
            if target.server is not None:
                target.server.wait()
            url = target.url or (target.server.url if target.server is not None else "")
            with Phoenix(url, api_key()) as server:
                yield server
    except LabellingRefused as error:
        raise fail(str(error)) from error
    except (PhoenixNotStarted, PhoenixError) as error:
        raise fail(str(error), 1) from error


def _new_folder(folder: Path) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise fail(f"{folder} exists already and is not overwritten: give a new or empty folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"{folder} cannot be made: {error.strerror}") from error
