"""The commands below ``cellwise calibrate``."""

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from grading.commands import fail
from grading.commands.options import (
    DEFAULT_REGISTRY,
    DEFAULT_STORE,
    CriterionOption,
    JsonOption,
    LabelInPhoenixOption,
    MatrixArgument,
    PolicyVersionOption,
    RegistryOption,
    RowsArgument,
    StoreOption,
    WorldOption,
)

calibrate = typer.Typer(
    no_args_is_help=True,
    help="Find out what a judge's word is worth. Export items to review, import labels, compile a record.",
)


@calibrate.command(epilog="Example: cellwise calibrate export refunds --reviewer alice --reviewer bob --out review")
def export(
    out: Annotated[Path, typer.Option(help="A new folder: the key, which reviewers do not get, and their files.")],
    reviewer: Annotated[list[str], typer.Option(help="A reviewer's name. Given twice.")],
    matrix: MatrixArgument = None,
    phoenix: LabelInPhoenixOption = None,
    group_by: Annotated[str, typer.Option(metavar="customer|case|item", help="Which items are not independent.")] = (
        "customer"
    ),
    per_group: Annotated[int, typer.Option(min=0, help="Items of each group at most; 0 for all.")] = 1,
    synthetic: Annotated[bool, typer.Option(help="Mark the rows as made up, evidence or labels.")] = False,
    policy_version: PolicyVersionOption = None,
    world: WorldOption = "orders",
    criterion: CriterionOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write what reviewers need: files, or items in Phoenix.

    Without verdicts, conditions or each other's labels.
    """
    from grading.commands import calibrate as command

    if group_by not in ("customer", "case", "item"):
        raise fail(f"--group-by {group_by}: write customer, case or item")
    command.export(
        matrix,
        out=out,
        reviewers=reviewer,
        phoenix=phoenix,
        scope=command.scope_of(world, policy_version=policy_version, criterion=criterion),
        grouping=cast("Literal['customer', 'case', 'item']", group_by),
        per_group=per_group or None,
        synthetic=synthetic,
        store=store,
    )


@calibrate.command(
    "import",
    epilog="Examples: cellwise calibrate import review/key.jsonl --review review/review-1.jsonl --review "
    "review/review-2.jsonl --out rows.jsonl · cellwise calibrate import review/key.jsonl --phoenix embedded "
    "--reviewer alice --reviewer bob --adjudicator carol --out rows.jsonl",
)
def import_rows(
    key: Annotated[Path, typer.Argument(help="The key that the export wrote.")],
    out: Annotated[Path, typer.Option(help="The rows, a new file.")],
    review: Annotated[list[Path] | None, typer.Option(help="A reviewer's filled-in file. Given twice.")] = None,
    adjudication: Annotated[Path | None, typer.Option(help="The third one's filled-in file.")] = None,
    phoenix: LabelInPhoenixOption = None,
    reviewer: Annotated[list[str] | None, typer.Option(help="With --phoenix: a reviewer's name. Given twice.")] = None,
    adjudicator: Annotated[
        str | None, typer.Option(help="Who decides where the two disagree; in Phoenix the items are sent.")
    ] = None,
    to_adjudicate: Annotated[Path | None, typer.Option(help="Without --phoenix: the adjudicator's new file.")] = None,
    judgments: Annotated[Path | None, typer.Option(help="A judge's verdicts, as JSON Lines.")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Make calibration rows of what reviewers answered."""
    from grading.commands import calibrate as command

    command.import_(
        key,
        reviews=review or [],
        adjudication=adjudication,
        phoenix=phoenix,
        reviewers=reviewer or [],
        adjudicator=adjudicator,
        to_adjudicate=to_adjudicate,
        judgments=judgments,
        out=out,
        store=store,
    )


@calibrate.command("compile", epilog="Example: cellwise calibrate compile calibration.jsonl --out record.json")
def compile_rows(
    rows: RowsArgument,
    registry: RegistryOption = DEFAULT_REGISTRY,
    out: Annotated[Path | None, typer.Option(help="The record, a new file.")] = None,
    policy_version: PolicyVersionOption = None,
    world: WorldOption = "orders",
    criterion: CriterionOption = None,
    json: JsonOption = False,
) -> None:
    """Compile a calibration record.

    Shows its errors with exact bounds, and how many more rows you need.
    """
    from grading.commands import calibrate as command

    scope = command.scope_of(world, policy_version=policy_version, criterion=criterion)
    command.compile_(rows, registry=registry, scope=scope, out=out, json=json)


@calibrate.command(epilog="Example: cellwise calibrate split rows.jsonl --seed 7 --held-out 0.3 --out divided")
def split(
    rows: RowsArgument,
    seed: Annotated[
        int,
        typer.Option(
            min=-(2**53) + 1, max=2**53 - 1, help="Any integer of 53 bits; the same one gives the same division."
        ),
    ],
    held_out: Annotated[str, typer.Option(metavar="SHARE", help="The share of groups to hold out, such as 0.3.")],
    out: Annotated[Path, typer.Option(help="A new folder.")],
) -> None:
    """Divide rows into calibration and held-out ones.

    Each group as a whole.
    """
    from grading.commands import calibrate as command

    command.split(rows, seed=seed, held_out=held_out, out=out)


@calibrate.command("held-out", epilog="Example: cellwise calibrate held-out held_out.jsonl --record record.json")
def held_out_rows(
    rows: RowsArgument,
    record: Annotated[Path, typer.Option(help="The compiled calibration record.")],
    registry: RegistryOption = DEFAULT_REGISTRY,
    json: JsonOption = False,
) -> None:
    """Show what a calibrated judge did on other rows.

    On rows that had no part in its calibration. It qualifies nothing.
    """
    from grading.commands import calibrate as command

    command.held_out(rows, record=record, registry=registry, json=json)
