"""cellwise report: one HTML file to send around."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import typer

from grading.commands import fail, one_matrix, open_store, refuse_existing, write_file
from grading.commands.compare import sliced_by, status_of
from grading.comparison import NotComparable, compare_matrix
from grading.report import render_report


def report(
    word: str | None, *, output: Path, baseline: str | None, slices: Path | None, force: bool, store: str
) -> None:
    refuse_existing([output], force=force)
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        try:
            found = compare_matrix(opened, matrix, baseline=baseline, describe_alone=True)
        except NotComparable as error:
            raise fail(str(error)) from None
        document = render_report(opened, found, sliced_by(found, slices), datetime.now(UTC))
    write_file(output, document, force=force)
    print(f"{output}: {len(document) / 1024:.0f} KiB, opens without a network", file=sys.stderr)
    code = status_of(found)
    if code:
        print("cellwise: the matrix is incomplete, and the report says so first", file=sys.stderr)
        raise typer.Exit(code)
