"""Where a command works: on this machine, or on a cluster."""

from dataclasses import dataclass

from grading.commands import fail


@dataclass(frozen=True, slots=True)
class Where:
    """Where a command works: ``--on``, ``--context``, ``--namespace``."""

    on: str | None
    context: str | None
    namespace: str | None

    @property
    def is_here(self) -> bool:
        """Whether it is this machine.

        Raises:
            typer.Exit: where the options contradict each other.
        """
        if self.on is None and (self.context is not None or self.namespace is not None):
            name = "--context" if self.context is not None else "--namespace"
            raise fail(f"{name} is for a cluster: add --on kubernetes")
        return self.on is None

    @property
    def told(self) -> str:
        """As a person writes it again."""
        given = [("--on", self.on), ("--context", self.context), ("--namespace", self.namespace)]
        return " ".join(f"{name} {value}" for name, value in given if value is not None)


def refuse_cluster_options(*, trials_per_pod: int | None, queue: str | None) -> None:
    """Raises typer.Exit for what means nothing on this machine."""
    for name, value in (("--trials-per-pod", trials_per_pod), ("--queue", queue)):
        if value is not None:
            raise fail(f"{name} is for a cluster: add --on kubernetes")
