"""Who holds leases: the runners, and how one that died is told from one that is slow.

On the same machine, started from the same boot and seen from the same process namespace, a process that is gone is
known at once. Anywhere else nothing but an expired lease says so.
"""

import os
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from grading.store.opening import Store
from grading.store.tables import attempt, literal_state, owner, publication


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that may hold leases."""

    id: str
    host: str
    boot: str
    """The kernel's boot id: a process number means nothing after a restart, or on another machine."""
    namespace: str
    """The process namespace that the number belongs to: each container has its own."""
    pid: int
    process_start: int
    """In clock ticks since boot: a number that is used again belongs to a later process."""

    @classmethod
    def this_process(cls) -> "Owner":
        pid = os.getpid()
        start = _process_start(pid)
        return cls(
            id=f"{socket.gethostname()}-{pid}-{secrets.token_hex(6)}",
            host=socket.gethostname(),
            boot=_boot(),
            namespace=_namespace(),
            pid=pid,
            process_start=-1 if start is None else start,
        )


def enrol(store: Store, new: Owner) -> None:
    """Makes an owner known, before it claims anything. The same again only renews it."""
    with store.transaction("enrol") as connection:
        values = {
            "id": new.id,
            "host": new.host,
            "boot": new.boot,
            "namespace": new.namespace,
            "pid": new.pid,
            "process_start": new.process_start,
            "renewed": store.now(connection),
        }
        connection.execute(
            store.insert(owner)
            .values(values)
            .on_conflict_do_update(index_elements=["id"], set_={"renewed": values["renewed"]})
        )


def dead_owners(connection: sa.Connection) -> list[str]:
    """The owners that hold something and of which this process can tell that they are dead."""
    holds = sa.exists().where(attempt.c.owner == owner.c.id, literal_state(attempt.c.state, ("leased", "running")))
    publishes = sa.exists().where(publication.c.owner == owner.c.id, publication.c.state == "publishing")
    seen = sa.select(owner.c.id, owner.c.pid, owner.c.process_start).where(
        owner.c.boot == _boot(), owner.c.namespace == _namespace(), owner.c.process_start >= 0, holds | publishes
    )
    return [row.id for row in connection.execute(seen) if _is_dead(row.pid, row.process_start)]


def may_be_taken(now: int, dead: Collection[str]) -> sa.ColumnElement[bool]:
    """Whether an attempt's lease no longer keeps other runners from its trial.

    That of a pod always does: what it did is known to its cluster's controller alone, which settles it.
    """
    return attempt.c.launch_id.is_(None) & ((attempt.c.lease_expires <= now) | attempt.c.owner.in_(dead))


def _is_dead(pid: int, process_start: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    found = _process_start(pid)
    # Unreadable is not dead: /proc may hide other users' processes.
    return found is not None and found != process_start


def _process_start(pid: int) -> int | None:
    """When a process started; -1 for one that has ended and waits to be collected; None where /proc does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name before the last bracket may hold anything; what follows it is fields 3 and on (proc_pid_stat(5)).
    fields = stat[stat.rindex(b")") + 2 :].split()
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
