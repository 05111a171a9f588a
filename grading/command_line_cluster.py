"""The commands that stop a matrix, and those that only a cluster has."""

from typing import Annotated

import typer

from grading.commands.options import (
    DEFAULT_STORE,
    ContextOption,
    JsonOption,
    MatrixArgument,
    NamespaceOption,
    OnOption,
    StoreOption,
)
from grading.commands.where import Where

cluster = typer.Typer()


@cluster.command(epilog="Examples: cellwise pause refunds · cellwise pause --on kubernetes")
def pause(
    matrix: MatrixArgument = None,
    on: OnOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Start no further trials of a matrix for now. What runs may still arrive; resume goes on."""
    from grading.commands import stop as command

    command.stop("pause", matrix, where=Where(on, context, namespace), store=store, json=json)


@cluster.command(epilog="Examples: cellwise cancel refunds · cellwise cancel 3 --on kubernetes")
def cancel(
    matrix: MatrixArgument = None,
    on: OnOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """End a matrix for good. What was finished stays, and run --reuse can take it over."""
    from grading.commands import stop as command

    command.stop("cancel", matrix, where=Where(on, context, namespace), store=store, json=json)


@cluster.command(
    epilog="Examples: cellwise logs candidate/explicit-description · cellwise logs 7 --matrix refunds --follow"
)
def logs(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="condition/case, or the number in its Jobs' names.")],
    matrix: Annotated[
        str | None, typer.Option(metavar="MATRIX", help="Its name, number or hash; the latest by default.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until its pods have ended.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The last lines of each container alone.")
    ] = None,
    on: OnOption = "kubernetes",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show a cell's attempts on a cluster, and its pods' logs.

    By your own right to read their logs.
    """
    from grading.commands import logs as command

    command.logs(cell, matrix=matrix, where=Where(on, context, namespace), follow=follow, tail=tail)


@cluster.command(epilog="Example: cellwise pull order-resolution, then cellwise compare order-resolution")
def pull(
    matrix: MatrixArgument = None,
    on: OnOption = "kubernetes",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Copy a cluster's matrix into a store here.

    Whether it is finished or running. Every ledger is validated and graded again on this machine, nothing is
    overwritten, and doing it again adds what is new. Then compare, report, export and decide work here.
    """
    from grading.commands import pull as command

    command.pull_matrix(matrix, where=Where(on, context, namespace), store=store, json=json)
