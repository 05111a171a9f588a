"""The options and arguments that several commands share: what each is called, and what its help says."""

from pathlib import Path
from typing import Annotated

import typer

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="CELLWISE_STORE",
        metavar="PATH|URL",
        help="A SQLite file, or postgresql://user@host/database.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
PhoenixOption = Annotated[
    str,
    typer.Option(
        metavar="embedded|URL|off",
        help="Where to publish: a Phoenix of its own beside the store, one that runs already, or nowhere. A cluster "
        "has one of its own.",
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="case=..,condition=..",
        help="Run the cells of this case, this condition, or both. Given several times, of any of them.",
    ),
]
StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A packaged study's name, a matrix file or a study file.")
]
MatrixArgument = Annotated[
    str | None, typer.Argument(metavar="MATRIX", help="Its name, number or manifest hash; the latest by default.")
]
ParallelismOption = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Trials, on a cluster pods, at the same time; the matrix file's by default."),
]
ReuseOption = Annotated[
    str | None, typer.Option(metavar="MATRIX", help="Take over this matrix's finished trials that are the same.")
]
OnOption = Annotated[
    str | None, typer.Option("--on", metavar="kubernetes", help="Where it runs; on this machine by default.")
]
ContextOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The kubeconfig's context; its current one by default.")
]
NamespaceOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Where Cellwise is in the cluster; the context's by default.")
]
TrialsPerPodOption = Annotated[
    int | None, typer.Option(min=1, max=1000, help="On a cluster: trials that a pod runs, one after the other.")
]
QueueOption = Annotated[str | None, typer.Option(metavar="NAME", help="On a cluster: the Kueue queue of its Jobs.")]
RegistryOption = Annotated[Path, typer.Option(help="Your registry: trusted reviewers and records, policy.")]
ExpectOption = Annotated[
    str | None,
    typer.Option(
        "--expect-sha256", metavar="HASH", help="The SHA-256 of the file, known from elsewhere than the file itself."
    ),
]
RowsArgument = Annotated[Path, typer.Argument(help="Calibration rows, as JSON Lines.")]
LabelInPhoenixOption = Annotated[
    str | None, typer.Option(metavar="embedded|URL", help="Label in this Phoenix; in files by default.")
]
PolicyVersionOption = Annotated[
    str | None, typer.Option(help="The version of the policy that messages are judged by; by default the world's.")
]
WorldOption = Annotated[str, typer.Option(help="The world of the cases.")]
CriterionOption = Annotated[str | None, typer.Option(help="What is judged; by default the truth of the message.")]
RegistryFileOption = Annotated[
    Path | None,
    typer.Option(
        "--registry", metavar="FILE", help="Your registry of calibrations; by default the one the matrix file names."
    ),
]
SlicesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PLAN", help="A slice plan's file, or a packaged study's name; by default the matrix file's plan."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")]
DEFAULT_STORE = ".cellwise/cellwise.db"
DEFAULT_REGISTRY = Path("registry.yaml")
