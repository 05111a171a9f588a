"""cellwise compare: the baseline against each candidate."""

import json as json_format
import sys
from dataclasses import replace
from pathlib import Path

import typer

from grading import comparison_text
from grading.commands import LEFT, MISSING, fail, one_matrix, open_store, refuse_existing, write_file
from grading.comparison import MatrixComparison, NotComparable, View, compare_matrix, rule_of
from grading.comparison_json import to_json
from grading.redaction import Redactor
from grading.slices import Sliced, SlicePlan, read_slice_plan, slice_up
from grading.studies import find_slice_plan


def compare(
    word: str | None,
    *,
    baseline: str | None,
    slices: Path | None,
    view: View | None,
    store: str,
    json: bool,
    junit: Path | None,
    markdown: Path | None,
    force: bool,
) -> None:
    refuse_existing([junit, markdown], force=force)
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        try:
            found = compare_matrix(opened, matrix, baseline=baseline, view=view)
        except NotComparable as error:
            raise fail(str(error)) from None
    sliced = sliced_by(found, slices)
    if junit is not None:
        write_file(junit, comparison_text.junit(found), force=force)
    if markdown is not None:
        write_file(markdown, comparison_text.markdown(found, sliced).encode(), force=force)
    if json:
        print(json_format.dumps(to_json(found, sliced)))
    else:
        sys.stdout.write(comparison_text.plain(found, sliced))
    code = status_of(found)
    if code:
        raise typer.Exit(code)


def sliced_by(found: MatrixComparison, path: Path | None) -> list[Sliced]:
    """Each candidate by the slices of a plan: that file's, or the one that the manifest bound; empty without either."""
    plan: SlicePlan | None = found.manifest.slice_plan
    if path is not None:
        plan = read_slice_plan(find_slice_plan(path), [case.id for case in found.manifest.cases])
    if plan is None:
        return []
    sliced = (
        slice_up(
            plan,
            candidate.pairs,
            rule_of(found.manifest),
            registered_plan=found.manifest.slice_plan,
            view=found.view,
        )
        for candidate in found.candidates
    )
    # What is compared is sent around. Labels are texts like those that Phoenix gets; ids of cases stay what they are.
    redactor = Redactor(found.manifest.redaction)
    return [
        replace(one, slices=tuple(replace(each, name=redactor.text(each.name)) for each in one.slices))
        for one in sliced
    ]


def status_of(found: MatrixComparison) -> int:
    """What is incomplete is told by the exit status too."""
    if any(arm.missing or arm.unscored for arm in found.arms):
        return MISSING
    return 0 if found.complete else LEFT
