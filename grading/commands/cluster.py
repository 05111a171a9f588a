"""What the commands share that work on a cluster: the way in, what is told of a matrix there, and watching it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from grading.commands import BAD_INPUT, LEFT, MISSING, UNPUBLISHED, fail
from grading.commands.progress import WATCH_SECONDS, Ended, Shown, sigterm_as_interrupt, watching
from grading.commands.where import Where
from grading.launchers import Cluster, ClusterRefused, ClusterUnavailable, NoSuchLauncher, Role, cluster
from grading.people_client import PeopleClient, PeopleRefused, PeopleUnavailable
from grading.people_protocol import MatrixStatus

WATCH_PATIENCE_SECONDS = 1800.0
"""A laptop that sleeps or changes its network goes on watching afterwards."""
PUBLISH_SECONDS = 120.0
"""How long a finished matrix is waited for until the cluster's publisher has shown it."""
_LONGEST_PAUSE = 10.0
_FINISH_SECONDS = 20.0
_FINISHING_SECONDS = 0.2
"""Between two looks while nothing runs any more, or soon will."""


@dataclass(frozen=True, slots=True)
class Connected:
    """An open way to a cluster's people API."""

    where: Where
    cluster: Cluster
    client: PeopleClient


@contextmanager
def connected(where: Where, role: Role) -> Iterator[Connected]:
    """Connects as a viewer or an editor. What goes wrong inside ends the command with one message.

    Raises:
        typer.Exit: 2 where the request, or who sends it, is at fault; 1 where nobody answers.
    """
    try:
        found = cluster(
            "kubernetes" if where.on is None else where.on, context=where.context, namespace=where.namespace
        )
        with found.reach(role) as reached, PeopleClient(reached) as client:
            yield Connected(where, found, client)
    except NoSuchLauncher as error:
        raise fail(f"--on {where.on}: {error}") from error
    except (ClusterRefused, PeopleRefused) as error:
        raise fail(str(error), BAD_INPUT) from error
    except (ClusterUnavailable, PeopleUnavailable) as error:
        raise fail(str(error), 1) from error


def latest(way: Connected, word: str | None) -> str | int:
    """The word of a matrix, or the id of the latest one.

    Raises:
        typer.Exit: where there is none.
    """
    if word is not None:
        if not 0 < len(word) <= 200:
            raise fail("MATRIX: give an id, a name, or the beginning of a hash")
        return word
    listed = way.client.matrices()
    if not listed:
        raise fail(f"the cluster has no matrix yet: cellwise run order-resolution {way.where.told} makes one")
    return listed[-1].id


def short(manifest_hash: str) -> str:
    return manifest_hash.removeprefix("sha256:")[:12]


def follow(way: Connected, matrix_id: int, name: str) -> Ended:
    """Shows a matrix's progress until nothing of what was placed is left to run, or Ctrl-C.

    An intake that restarts or a connection that is lost is waited for: the cluster goes on meanwhile.
    """
    client = way.client
    patience, client.patience = client.patience, WATCH_PATIENCE_SECONDS
    last: MatrixStatus | None = None
    first: Look | None = None
    trouble: str | None = None
    nothing_left: float | None = None
    try:
        with watching(name) as show, sigterm_as_interrupt():

            def tell() -> None:
                if last is not None:
                    show(_shown(last, 0 if first is None else first.done, trouble))

            def waiting(why: str | None) -> None:
                nonlocal trouble
                trouble = why
                tell()

            client.waiting = waiting
            before: Look | None = None
            while True:
                last = client.status(matrix_id, summary=False)
                now = Look(time.monotonic(), last.placed.planned - last.placed.left)
                first = first or now
                tell()
                if last.state in ("complete", "incomplete", "paused", "cancelled"):
                    return "done"
                if last.placed.left == 0:
                    # The controller marks it finished in a moment, unless cells are left out.
                    nothing_left = nothing_left or time.monotonic()
                    if last.counts.left or time.monotonic() - nothing_left > _FINISH_SECONDS:
                        return "done"
                    time.sleep(_FINISHING_SECONDS)
                    continue
                time.sleep(pause_after(last.placed.left, first, before or first, now))
                before = now
    except KeyboardInterrupt:
        return "detached"
    finally:
        client.patience = patience
        client.waiting = lambda _: None


class Look(NamedTuple):
    """How many trials were done when."""

    seconds: float
    """Of a clock that never goes back."""
    done: int


def pause_after(left: int, first: Look, before: Look, now: Look) -> float:
    """Seconds until the next look: a tenth of what is still to come, since each look takes time from what it looks at.

    Args:
        left: trials that are still to come: at the speed since the first look or since the one before, the faster one.
    """
    speeds = [(now.done - one.done) / (now.seconds - one.seconds) for one in (first, before) if now.done > one.done]
    if not speeds:
        return min(_LONGEST_PAUSE, max(WATCH_SECONDS, (now.seconds - first.seconds) / 10))
    return min(_LONGEST_PAUSE, max(_FINISHING_SECONDS, left / max(speeds) / 10))


def _shown(status: MatrixStatus, first_done: int, trouble: str | None) -> Shown:
    placed = status.placed
    remarks = [f"{status.running} running"] if status.running else []
    remarks += [f"{placed.missing} missing"] if placed.missing else []
    lost = sum(one.count for one in status.lost)
    remarks += [f"{lost} attempts lost"] if lost else []
    if status.waiting:
        remarks.append(f"{len(status.waiting)} cells wait: {status.waiting[0].why[:120]}")
    if status.failed_cells:
        remarks.append(f"{len(status.failed_cells)} cells failed")
    if trouble is not None:
        remarks.append(f"no connection, the cluster goes on: {trouble[:120]}")
    done = placed.planned - placed.left
    return Shown(done, placed.planned, done - first_done, ", ".join(remarks))


def tell_detached(way: Connected, name: str) -> None:
    where = way.where.told
    print(
        f"\ncellwise: stopped watching, the cluster goes on: cellwise status {name} {where} --watch\n"
        f"cellwise: cellwise cancel {name} {where} ends it",
        file=sys.stderr,
    )


def published(way: Connected, matrix_id: int, *, wanted: bool) -> MatrixStatus:
    """The whole status, once the cluster's publisher has shown what there is, or has had its time."""
    status = way.client.status(matrix_id)
    deadline = time.monotonic() + PUBLISH_SECONDS
    finished = status.state in ("complete", "incomplete")
    while wanted and finished and not is_published(status) and time.monotonic() < deadline:
        time.sleep(WATCH_SECONDS)
        if is_published(way.client.status(matrix_id, summary=False)):
            # With what was judged before it was published.
            return way.client.status(matrix_id)
    return way.client.status(matrix_id) if wanted and finished else status


def is_published(status: MatrixStatus) -> bool:
    return any(one.state == "published" for one in status.publications)


def pending_judgments(status: MatrixStatus) -> bool:
    conditions: Any = (status.summary or {}).get("conditions", [])
    return any(one.get("semantic", {}).get("states", {}).get("pending") for one in conditions)


def exit_status(status: MatrixStatus, *, published: bool) -> int:
    """As :func:`grading.commands.run.status_of` has it for a local store."""
    if status.counts.missing:
        return MISSING
    if status.counts.left or pending_judgments(status):
        return LEFT
    return 0 if published else UNPUBLISHED


def tell_rest(way: Connected, status: MatrixStatus) -> None:
    where = way.where.told
    for cell in status.failed_cells:
        print(f"cellwise: {cell.condition} / {cell.case} failed: {cell.reason}", file=sys.stderr)
    for waits in status.waiting:
        print(f"cellwise: {waits.condition} / {waits.case} waits: {waits.why}", file=sys.stderr)
    if status.counts.left:
        left = f"{status.counts.left} trials are left"
        advice = "" if status.state == "cancelled" else f": cellwise resume {status.name} {where}"
        print(f"cellwise: {left}, the matrix is {status.state}{advice}", file=sys.stderr)
    if status.counts.missing:
        print(
            f"cellwise: {status.counts.missing} trials are missing: cellwise status {status.name} {where}",
            file=sys.stderr,
        )


def tell_phoenix(way: Connected, status: MatrixStatus) -> None:
    """Where its results are compared, and how to get there from outside the cluster."""
    if status.phoenix is None:
        return
    print(f"Compare in Phoenix: {status.phoenix}", file=sys.stderr)
    parts = urlsplit(status.phoenix)
    service, _, rest = (parts.hostname or "").partition(".")
    if service in ("", "localhost") or not (rest == "" or rest.split(".")[1:2] == ["svc"]):
        return
    port, namespace = parts.port or 80, rest.split(".")[0] or way.cluster.namespace
    shown = status.phoenix.partition("://")[2].partition("/")[2]
    print(
        f"  from here: kubectl --context {way.cluster.context} --namespace {namespace} port-forward "
        f"service/{service} {port if port > 1024 else 6006}:{port}, then http://localhost:"
        f"{port if port > 1024 else 6006}/{shown}",
        file=sys.stderr,
    )


def status_document(way: Connected, status: MatrixStatus) -> dict[str, Any]:
    """What ``--json`` says of a matrix on a cluster, beside what it says of a local one."""
    return {
        "context": way.cluster.context,
        "namespace": way.cluster.namespace,
        "on_cluster": status.on_cluster,
        "actor": status.actor,
        "trials_per_pod": status.trials_per_pod,
        "parallelism": status.parallelism,
        "queue": status.queue,
        "running": status.running,
        "waiting": [one.model_dump(mode="json") for one in status.waiting],
    }
