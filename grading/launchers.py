"""Other places than this machine where a matrix may run: found by their entry point, never by their package.

A launcher is what the group ``cellwise.launchers`` names: a class that is called with a context and a namespace.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, Protocol, cast

GROUP = "cellwise.launchers"

Role = Literal["viewer", "editor"]


class ClusterUnavailable(Exception):  # noqa: N818 - named after the condition
    """The way into a cluster is not there now. The message says what to do."""


class ClusterRefused(ClusterUnavailable):
    """What was asked for is at fault, or who asks: no such context or namespace, or a right that is missing."""


class NoSuchLauncher(ValueError):  # noqa: N818 - named after the condition
    """Nothing that is installed goes by that name."""


class Reached(Protocol):
    """An open way to a cluster's people API."""

    @property
    def url(self) -> str:
        """Where it answers, on this machine."""

    def token(self, *, renew: bool = False) -> str:
        """A bearer token that is valid now.

        Args:
            renew: a new one, since the last one was refused.

        Raises:
            ClusterUnavailable: the cluster gives none.
        """

    @property
    def trouble(self) -> str | None:
        """Why the last connection through it failed; None where it did not."""


class Cluster(Protocol):
    """A cluster that runs matrices."""

    @property
    def context(self) -> str:
        """What the configuration calls it."""

    @property
    def namespace(self) -> str:
        """Where Cellwise is in it."""

    def reach(self, role: Role) -> AbstractContextManager[Reached]:
        """A way to the people API, open until the block ends.

        Raises:
            ClusterUnavailable: with what is missing.
        """

    def logs(
        self, namespace: str | None, launches: Sequence[str], *, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """The lines that the pods of some launches wrote, each led by its pod's name and container.

        Args:
            namespace: of the pods; None for that of Cellwise.
            launches: their ids.
            follow: until the pods have ended.
            tail: the last lines of each container alone.

        Raises:
            ClusterUnavailable: with the right that is missing.
        """


def cluster(name: str, *, context: str | None, namespace: str | None) -> Cluster:
    """The cluster of a launcher.

    Args:
        context: of its configuration; None for the current one.
        namespace: None for the context's own.

    Raises:
        NoSuchLauncher: with what is installed.
        ClusterUnavailable: it has no usable configuration.
    """
    found: dict[str, EntryPoint] = {}
    for one in entry_points(group=GROUP):
        # The first one on the path, as an import would find it.
        found.setdefault(one.name, one)
    if name not in found:
        known = ", ".join(sorted(found)) or "nothing else is installed"
        raise NoSuchLauncher(f"nothing called '{name}' runs matrices: {known}")
    return cast("Cluster", found[name].load()(context=context, namespace=namespace))
