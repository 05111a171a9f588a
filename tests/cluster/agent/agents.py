"""Agents of one's own for the tests on a cluster, each in a container without a token."""

import os
import socket
import time
from pathlib import Path
from typing import Any

from simulator.agents import descriptive_control, first_record_mutant


def works(request: Any, tools: Any, *, seconds: float = 0.0) -> Any:
    time.sleep(seconds)
    return descriptive_control.agent(request, tools)


def eats_disk(request: Any, tools: Any, *, megabytes: int = 400, after_refund: bool = False) -> Any:
    """Writes until the node has enough of it, then waits to be evicted."""
    if after_refund:
        first_record_mutant.agent(request, tools)
    with Path("/tmp/much").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1024 * 1024))
            file.flush()
    time.sleep(400)
    return descriptive_control.agent(request, tools)


def eats_memory(request: Any, tools: Any) -> Any:
    """Past the container's limit, whatever the process is allowed."""
    pid = os.getpid()
    held = []
    while os.getpid() == pid:
        held.append(bytearray(b"\x01") * (16 * 1024 * 1024))
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)
    return descriptive_control.agent(request, tools)


def _is_resolved(name: str, port: int, tries: int = 10) -> bool:
    """Asked again, since a busy node loses packets to its name server."""
    for _ in range(tries):
        try:
            socket.getaddrinfo(name, port)
        except OSError:
            time.sleep(0.5)
        else:
            return True
    return False


def looks_around(request: Any, tools: Any, *, hosts: list[str]) -> Any:
    """Searches for what an agent must not find, and tells it in its answer: found things are named, else 'nothing'."""
    found = []
    found += [
        f"token:{path}"
        for path in ("/var/run/secrets/cellwise/token", "/var/run/secrets/kubernetes.io/serviceaccount/token")
        if Path(path).exists()
    ]
    text = "\n".join(f"{name}={value}" for name, value in os.environ.items())
    found += [f"environment:{word}" for word in ("CELLWISE_", "KUBERNETES_", "TOKEN") if word in text]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"simulator.pod" in words:
            found.append(f"process:{process.name}")
    wanted = ('"expect' + 'ation"').encode()  # in two parts: this file does not hold it
    for path in Path("/").glob("*"):
        if path.name in ("proc", "sys", "dev", "usr", "lib", "lib64", "bin", "sbin"):
            continue
        for file in [path] if path.is_file() else path.rglob("*"):
            try:
                if file.is_file() and file.stat().st_size < 1_000_000 and wanted in file.read_bytes():
                    found.append(f"expectation:{file}")
            except OSError:
                continue
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not _is_resolved(name, int(port)):
            # A name that is not found would pass for a host that is not reached.
            found.append(f"unresolved:{host}")
            continue
        try:
            socket.create_connection((name, int(port)), timeout=3).close()
        except OSError:
            continue
        found.append(f"reached:{host}")
    answer: dict[str, Any] = descriptive_control.agent(request, tools)
    return {**answer, "message": "found: " + (", ".join(found) or "nothing")}
