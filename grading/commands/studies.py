"""What run and resume share here and on a cluster: the cells that --only names, and what is told of a whole study.

Nothing here loads a store: a command on a cluster has none, and loading it would take half of its start.
"""

import json as json_format
import re
from typing import Any

import typer

from grading.commands import WORST_FIRST, fail
from grading.file_error import nearest
from grading.manifest import Manifest
from grading.studies import Study


def check_only(only: list[str] | None, manifest: Manifest) -> None:
    """Refuses filters that name no cell.

    Raises:
        typer.Exit: with what is known instead.
    """
    known = {
        "case": [case.id for case in manifest.cases],
        "condition": [condition.name for condition in manifest.conditions],
    }
    for terms in parsed_only(only):
        for name, value in terms.items():
            if value not in known[name]:
                raise fail(f"--only {name}={value}: there is no such {name}:{nearest(value, known[name])}")


def parsed_only(only: list[str] | None) -> list[dict[str, str]]:
    """``case=a,condition=b`` as terms that must all hold."""
    found = []
    for text in only or []:
        # An id may hold commas and equals signs itself.
        before, *parts = re.split(r"(?:^|,)(case|condition)=", text)
        terms = dict(zip(parts[::2], parts[1::2], strict=True))
        if before or not terms or len(terms) < len(parts) // 2:
            raise fail(f"--only {text}: write case=.., condition=.. or both with a comma between")
        found.append(terms)
    return found


def tell_executions(study: Study) -> None:
    counts = study.executions()
    told = f"{study.name}: {counts['total']} executions, {counts['comparisons']} of {len(study.matrices)} comparisons"
    if counts["calibration"]:
        told += f", {counts['calibration']} that only calibrated the judge and are in no comparison"
    print(told + "\n")


def conclude(study: Study, results: list[dict[str, Any]], *, json: bool) -> None:
    """Prints what ``--json`` asks for, and ends with the worst of the matrices' statuses."""
    status = next(code for code in WORST_FIRST if code in [result["status"] for result in results])
    if json and study.of_comparisons:
        document = {"version": 1, "study": study.name, "executions": study.executions()}
        print(json_format.dumps({**document, "comparisons": results, "status": status}))
    elif json:
        print(json_format.dumps(results[0]))
    if status:
        raise typer.Exit(status)
