"""The command line: the only place that talks to a person. Each command loads what it needs when it runs.

Standard output holds results alone: with ``--json`` one document, or nothing where a command ends with 1, 2 or 130.

Exit statuses: 0 done and complete; 1 an error that is no fault of the input; 2 bad input, nothing was changed; 3 trials
are missing or a cell failed; 4 trials are left to run, after Ctrl-C or with --only, or judgments are pending; 5
complete, but not published; 130 ended by a second Ctrl-C.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NoReturn, cast

import typer

from grading.command_line_calibrate import calibrate
from grading.command_line_cluster import cluster
from grading.commands import BAD_INPUT, INTERRUPTED, fail, tell_wrong
from grading.commands.options import (
    DEFAULT_REGISTRY,
    DEFAULT_STORE,
    ContextOption,
    ExpectOption,
    ForceOption,
    JsonOption,
    MatrixArgument,
    NamespaceOption,
    OnlyOption,
    OnOption,
    ParallelismOption,
    PhoenixOption,
    QueueOption,
    RegistryFileOption,
    RegistryOption,
    ReuseOption,
    SlicesOption,
    StoreOption,
    StudyArgument,
    TrialsPerPodOption,
)
from grading.commands.where import Where, refuse_cluster_options

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tells whether a changed customer-service agent acts on the wrong order, asks too late, or says what is not "
    "so.",
    epilog="Exit statuses: 0 complete; 1 error; 2 bad input, nothing changed; 3 trials missing or a cell failed; "
    "4 trials left to run or judgments pending; 5 complete, not published; 130 stopped by a second Ctrl-C.",
)


def version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version as installed

        print("cellwise", installed("cellwise"))
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """The options before the command."""


@app.command(epilog="Example: cellwise init refunds, then cellwise run refunds/matrix.yaml")
def init(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="It is made where it is missing; no file is replaced.")
    ],
) -> None:
    """Write a small study of your own to start from.

    A matrix file, a cases file, an agent, and schemas for editors that complete the files.
    """
    from grading.init import create_study

    if not folder:
        raise fail("init needs the name of a folder, '.' for this one")
    written = create_study(Path(folder))
    for path in written:
        print(path)
    import shlex

    print(f"Run it: cellwise run {shlex.quote(str(written[0]))}", file=sys.stderr)


@app.command(epilog="Example: cellwise schema matrix > matrix.schema.json")
def schema(
    what: Annotated[str, typer.Argument(metavar="matrix|cases|slices|policy|judge", help="Which file's schema.")],
    world: Annotated[str, typer.Option(metavar="WORLD", help="The world whose cases it is for.")] = "orders",
) -> None:
    """Print the JSON Schema of a file you write.

    Editors complete and check the file with it; init writes both beside a new study.
    """
    import json

    from grading import schemas
    from grading.cases import known_worlds
    from grading.file_error import nearest

    made = {
        "matrix": schemas.matrix_schema,
        "cases": lambda: schemas.cases_schema(world),
        "slices": schemas.slices_schema,
        "policy": schemas.policy_schema,
        "judge": schemas.judge_schema,
    }
    if what not in made:
        raise fail(f"there is a schema for {', '.join(made)}, none for {what}")
    if world not in known_worlds():
        raise fail(f"no world is called '{world}':{nearest(world, known_worlds())}")
    print(json.dumps(made[what](), indent=2))


@app.command(epilog="Example: cellwise plan order-resolution")
def plan(
    study: StudyArgument,
    reuse: Annotated[
        str | None, typer.Option(metavar="MATRIX", help="The matrix to take finished trials over from.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Show what running a study would do. Runs and writes nothing.

    Counts the trials that are done, would run, or could be taken over with run --reuse, and says what changed.
    """
    from grading.commands import plan as command

    command.plan(study, reuse=reuse, store=store, json=json)


@app.command(
    epilog="Examples: cellwise run order-resolution · cellwise run refunds/matrix.yaml --phoenix off · "
    "cellwise run matrix.yaml --only condition=new-prompt · cellwise run matrix.yaml --reuse refunds · "
    "cellwise run order-resolution --on kubernetes"
)
def run(
    study: StudyArgument,
    only: OnlyOption = None,
    reuse: ReuseOption = None,
    parallelism: ParallelismOption = None,
    phoenix: PhoenixOption = "embedded",
    on: OnOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    trials_per_pod: TrialsPerPodOption = None,
    queue: QueueOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Run a study, grade it, publish it and print its table.

    Of a study of comparisons, each of them. What is done already is not done again. Ctrl-C finishes the trials that
    run; again, it stops at once. On a cluster it only stops watching: cancel ends the matrix.
    """
    where = Where(on, context, namespace)
    if where.is_here:
        from grading.commands import run as command

        refuse_cluster_options(trials_per_pod=trials_per_pod, queue=queue)
        command.run(study, only=only, reuse=reuse, parallelism=parallelism, phoenix=phoenix, store=store, json=json)
        return
    from grading.commands import cluster_run

    cluster_run.run(
        study,
        where=where,
        only=only,
        reuse=reuse,
        parallelism=parallelism,
        trials_per_pod=trials_per_pod,
        queue=queue,
        phoenix=phoenix,
        json=json,
    )


@app.command(epilog="Examples: cellwise resume order-resolution · cellwise resume --on kubernetes")
def resume(
    matrix: MatrixArgument = None,
    only: OnlyOption = None,
    parallelism: ParallelismOption = None,
    phoenix: PhoenixOption = "embedded",
    on: OnOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    trials_per_pod: TrialsPerPodOption = None,
    queue: QueueOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Finish a matrix that was interrupted or paused.

    Here it goes on from the file that it was started from, which must be unchanged; on a cluster no file is needed.
    """
    where = Where(on, context, namespace)
    if where.is_here:
        from grading.commands import run as command

        refuse_cluster_options(trials_per_pod=trials_per_pod, queue=queue)
        command.resume(matrix, only=only, parallelism=parallelism, phoenix=phoenix, store=store, json=json)
        return
    from grading.commands import cluster_run

    cluster_run.resume(
        matrix,
        where=where,
        only=only,
        parallelism=parallelism,
        trials_per_pod=trials_per_pod,
        queue=queue,
        phoenix=phoenix,
        json=json,
    )


@app.command(epilog="Examples: cellwise status --json · cellwise status --on kubernetes --watch")
def status(
    matrix: MatrixArgument = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until nothing is left to run.")] = False,
    on: OnOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Show what ran, what is left, and what was tried again.

    With the reasons of lost attempts, failed cells, incidents, and whether it is published.
    """
    from grading.commands import status as command

    command.status(matrix, where=Where(on, context, namespace), watch=watch, store=store, json=json)


@app.command(epilog="Examples: cellwise show 3 · cellwise show first-record-mutant/explicit-description/0")
def show(
    trial: Annotated[
        str, typer.Argument(metavar="TRIAL", help="Its planned number, from 0, or condition/case/repetition.")
    ],
    matrix: Annotated[
        str | None, typer.Option(metavar="MATRIX", help="Its name, number or hash; the latest by default.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Show what the agent did in a trial, and its grade.

    The transcript as a person would read it, the checks with what was observed, and every attempt.
    """
    from grading.commands import show as command

    command.show(trial, matrix=matrix, store=store, json=json)


@app.command(epilog="Example: cellwise grade order-resolution")
def grade(
    matrix: MatrixArgument = None,
    registry: RegistryFileOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Grade what is stored with the graders as they are now.

    No agent runs, and earlier grades stay: nothing is added where the graders are the same.
    """
    from grading.commands import grade as command

    command.grade(matrix, registry=registry, store=store, json=json)


@app.command(
    epilog="Examples: cellwise judge refunds · cellwise judge refunds --judge other-judge.yaml · "
    "cellwise judge refunds --collect"
)
def judge(
    matrix: MatrixArgument = None,
    judge: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A judge file, to judge with another one than the registered.")
    ] = None,
    collect: Annotated[
        bool, typer.Option(help="Call the judge also where its word will not count: to calibrate or compare it.")
    ] = False,
    registry: RegistryFileOption = None,
    verdicts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what it said of which evidence, for calibrate import.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Judge stored ledgers: what is pending, or all of them anew.

    With another judge than the registered one, all of them. No agent runs; earlier judgments stay.
    """
    from grading.commands import judge as command

    command.judge(
        matrix, judge_file=judge, registry=registry, collect=collect, verdicts=verdicts, store=store, json=json
    )


@app.command(
    epilog="Examples: cellwise compare order-resolution · cellwise compare refunds --slices slices.yaml --junit out.xml"
)
def compare(
    matrix: MatrixArgument = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another condition to compare with than the registered baseline.")
    ] = None,
    slices: SlicesOption = None,
    view: Annotated[
        str | None,
        typer.Option(
            metavar="structural|joint",
            help="A pass is the contract alone, or a qualified judge's pass too, as by default with a judge.",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML for CI.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write Markdown for a pull request.")] = None,
    force: ForceOption = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Show the baseline against each candidate.

    What changed, by how much, and how sure that is.
    """
    from grading.commands import compare as command

    if view not in (None, "structural", "joint"):
        raise fail(f"--view {view}: write structural or joint")
    command.compare(
        matrix,
        baseline=baseline,
        slices=slices,
        view=cast("Literal['structural', 'joint'] | None", view),
        store=store,
        json=json,
        junit=junit,
        markdown=markdown,
        force=force,
    )


@app.command(
    epilog="Exit statuses: 0 lab_pass; 10 hold; 11 block; 12 expired. "
    "Example: cellwise decide refunds --policy policy.yaml"
)
def decide(
    comparison: Annotated[str, typer.Argument(help="A matrix of two conditions: its name, number or manifest hash.")],
    policy: Annotated[str, typer.Option(metavar="FILE|packaged", help="The operator's release policy.")],
    receipt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An earlier receipt: it has expired if anything changed since.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Decide as of this time instead of now.")] = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Print the release receipt of a comparison.

    With every reason; the exit status can gate CI.
    """
    from grading.commands import decide as command

    command.decide(comparison, policy=policy, at=at, receipt=receipt, store=store, json=json)


@app.command(epilog="Example: cellwise diff refunds 3")
def diff(
    old: Annotated[str, typer.Argument(help="The earlier matrix: its name, number or manifest hash.")],
    new: Annotated[str, typer.Argument(help="The later one.")],
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Show what differs between two matrices, and why.

    What was reused, graded again and run again.
    """
    from grading.commands import diff as command

    command.diff(old, new, store=store, json=json)


@app.command(epilog="Example: cellwise power --worse 0.01 --better 0.03")
def power(
    worse: Annotated[float, typer.Option(help="Share of customers whom the candidate really makes worse.")],
    better: Annotated[float, typer.Option(help="Share of customers whom it really makes better.")],
    margin: Annotated[float, typer.Option(help="The largest loss that still counts as no worse.")] = 0.03,
    confidence: Annotated[float, typer.Option(help="Of the lower bound.")] = 0.95,
    minimum_clusters: Annotated[int, typer.Option(help="The least customers that are registered.")] = 30,
    probability: Annotated[float, typer.Option(help="How often non-inferiority should be found.")] = 0.8,
    at_most: Annotated[int, typer.Option(min=2, max=100_000, help="Where to stop looking.")] = 5_000,
    json: JsonOption = False,
) -> None:
    """Show how many customers a comparison needs.

    To find that a candidate is no worse, where it is not.
    """
    from grading.commands import power as command

    command.power(
        worse,
        better,
        margin=margin,
        confidence=confidence,
        minimum_clusters=minimum_clusters,
        probability=probability,
        at_most=at_most,
        json=json,
    )


@app.command(epilog="Example: cellwise report order-resolution -o report.html")
def report(
    matrix: MatrixArgument = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The HTML file.")] = Path(
        "report.html"
    ),
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another condition to compare with than the registered baseline.")
    ] = None,
    slices: SlicesOption = None,
    force: ForceOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write one HTML file to send around.

    The matrix, what changed with transcripts, statistics, costs, manifest.
    """
    from grading.commands import report as command

    command.report(matrix, output=output, baseline=baseline, slices=slices, force=force, store=store)


@app.command(
    epilog="Examples: cellwise publish --phoenix http://localhost:6006 · "
    "cellwise publish --follow --phoenix http://phoenix:6006 --health-port 9090"
)
def publish(
    matrix: MatrixArgument = None,
    phoenix: PhoenixOption = "embedded",
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Read everything back, not only what seems to have changed.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Publish every matrix of the store for ever, each judged before.")
    ] = False,
    registry: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --follow: your registry of calibrations, for the judges.")
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="With --follow: serve /healthz and /readyz on this port."),
    ] = None,
    shown_at: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --follow: where browsers reach that Phoenix, for the links told."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Bring Phoenix up to date with the store.

    Doing it again changes nothing. The environment variable PHOENIX_API_KEY is sent to a URL. With --follow it goes on
    until SIGTERM or Ctrl-C, and waits for a Phoenix or a store that is away.
    """
    from grading.commands import publish as command

    if follow:
        if matrix is not None or thorough or json:
            raise fail("--follow publishes every matrix for ever: it takes no MATRIX, no --thorough and no --json")
        command.follow(phoenix=phoenix, registry=registry, health_port=health_port, shown_at=shown_at, store=store)
        return
    if registry is not None or health_port is not None or shown_at is not None:
        raise fail("--registry, --health-port and --shown-at go with --follow: add it, or leave them out")
    command.publish(matrix, phoenix=phoenix, thorough=thorough, store=store, json=json)


@app.command(epilog="Example: cellwise migrate --store postgresql://cellwise@db/cellwise --wait 300")
def migrate(
    wait: Annotated[
        float, typer.Option(min=0, max=86_400, metavar="SECONDS", help="How long to wait for a server that is away.")
    ] = 0.0,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Make a store's tables, or bring them up to date.

    Nothing is run. Every command does so when it opens a store; in a cluster this comes first. Two at once follow each
    other.
    """
    from grading.commands import migrate as command

    command.migrate(wait=wait, store=store)


@app.command("export", epilog="Example: cellwise export order-resolution packet.json")
def export_packet(
    comparison: Annotated[str, typer.Argument(help="A matrix of two arms: its name, number or manifest hash.")],
    packet: Annotated[Path, typer.Argument(help="The file to write; one that is there already is never touched.")],
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Write a comparison's evidence into one file.

    It replays anywhere. Prints the file's SHA-256.
    """
    from grading.commands import export as command

    command.export(comparison, packet, store=store, json=json)


@app.command(epilog="Example: cellwise replay packet.json --expect-sha256 HASH")
def replay(
    packet: Annotated[Path, typer.Argument(help="A file that cellwise export wrote.")],
    expect_sha256: ExpectOption = None,
    trust_calibration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HASH", help="A calibration record that you trust; without it no judgment counts. Repeatable."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a packet's result again from that file alone.

    Every trial is rebuilt, graded again and recomputed, without agent, judge or network.
    """
    from grading.commands import replay as command

    command.replay(packet, expect_sha256=expect_sha256, trust_calibration=trust_calibration or (), json=json)


@app.command(epilog="Example: cellwise phoenix")
def phoenix(store: StoreOption = DEFAULT_STORE) -> None:
    """Keep the store's own Phoenix up to look at, until Ctrl-C."""
    from grading.commands import publish as command

    command.keep_up(store=store)


@app.command(epilog="Example: cellwise assess native-semantic --registry registry.yaml")
def assess(
    matrix: MatrixArgument = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    at: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Such as 2026-12-01T00:00:00Z; now by default.")
    ] = None,
    packet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A packet in place of a matrix: replayed first, then assessed.")
    ] = None,
    expect_sha256: ExpectOption = None,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Tell which stored judgments would count today.

    By your registry. Changes no grade, permits nothing.
    """
    from grading.commands import assess as command

    command.assess(matrix, registry=registry, at=at, packet=packet, expect_sha256=expect_sha256, store=store, json=json)


app.add_typer(calibrate, name="calibrate")
# Without a name: its commands are the line's own.
app.add_typer(cluster)


def main() -> NoReturn:
    """The console script."""
    _fill_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character gets its escape, not a traceback.
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app(prog_name="cellwise")
    except KeyboardInterrupt:
        print("cellwise: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has had enough, as with head(1).
        _abandon_output()
        sys.exit(1)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        tell_wrong(str(error))
        _abandon_output()
        sys.exit(code)
    raise AssertionError("typer exits by itself")


def exit_code(error: Exception) -> int | None:
    """The exit status of an error that is told in one message; None for a bug, which shows its traceback."""
    from grading.file_error import FileError
    from grading.judge.openai import JudgeMisconfigured
    from grading.store import NotFound, StoreError

    if isinstance(error, FileError | NotFound | JudgeMisconfigured):
        return BAD_INPUT
    from grading.arms import NotAComparison
    from grading.calibration.importing import ReviewsRefused
    from grading.calibration.record import RowsRefused
    from grading.calibration.split import SplitRefused
    from grading.packet_reading import PacketRefused
    from grading.packet_writing import NotExportable

    if isinstance(error, NotAComparison | NotExportable | PacketRefused | ReviewsRefused | RowsRefused | SplitRefused):
        return BAD_INPUT
    # A store that could be opened, a disk or a device that refuses later: no fault of the input.
    if isinstance(error, StoreError | OSError):
        return 1
    from grading.runner import WorkersFailing

    return 1 if isinstance(error, WorkersFailing) else None


def _fill_closed_streams() -> None:
    """Puts the null device where a caller closed a standard stream: the next file opened would take its place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, and the lower ones are filled already.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the end


def _abandon_output() -> None:
    """Lets the interpreter end without another complaint about what could not be written."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
