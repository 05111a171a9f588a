"""cellwise plan: what running a study would do."""

import json as json_format
from contextlib import ExitStack

from grading.commands import fail, reuse_needs_one
from grading.planning import Plan
from grading.planning import plan as make_plan
from grading.store import NoStore, Store, StoreError
from grading.studies import load_study


def plan(study: str, *, reuse: str | None, store: str, json: bool) -> None:
    loaded = load_study(study)
    if reuse is not None and loaded.of_comparisons:
        raise reuse_needs_one(loaded)
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(Store.open(store, create=False))
        except NoStore as error:
            if reuse is not None:
                raise fail(f"{error} to reuse {reuse} from") from error
            opened = None
        except StoreError as error:
            raise fail(str(error)) from error
        plans = [make_plan(opened, each.manifest, reuse=reuse) for each in loaded.matrices]
    if not json:
        for each in plans:
            _print(each)
        if loaded.calibrating:
            print(f"{loaded.calibrating} executions of the study only calibrated its judge and are in no comparison.")
    elif loaded.of_comparisons:
        document = {"version": 1, "study": loaded.name, "executions": loaded.executions()}
        print(json_format.dumps({**document, "comparisons": [one.to_json() for one in plans]}))
    else:
        print(json_format.dumps(plans[0].to_json()))


def _print(found: Plan) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    short = found.manifest_hash.removeprefix("sha256:")[:12]
    if found.registered is not None:
        console.print(Text(f"{found.name} {short}: registered, {found.registered.state}"))
    elif found.previous is not None:
        earlier = found.previous.manifest_hash.removeprefix("sha256:")[:12]
        console.print(Text(f"{found.name} {short}: a new matrix; against {earlier} it changes"))
        for change in found.changes:
            console.print(Text(f"  {change}"))
    else:
        console.print(Text(f"{found.name} {short}: a new matrix"))
    conditions = list(dict.fromkeys(cell.condition for cell in found.cells))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("condition", "done", "reuse and grade again", "run"):
        table.add_column(title, overflow="fold")
    for condition in conditions:
        cells = [cell for cell in found.cells if cell.condition == condition]
        counts = (sum(cell.done for cell in cells), sum(cell.reuse for cell in cells), sum(cell.run for cell in cells))
        table.add_row(Text(condition), *map(str, counts))
    console.print(table)
    if found.run == 0 and found.reuse == 0:
        console.print("Nothing would run.")
    else:
        console.print(
            f"{found.run + found.reuse} trials would run; {found.reuse} of them could be taken over with --reuse."
        )
