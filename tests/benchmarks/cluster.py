"""How long 200 cells take on a cluster beside 200 bare Jobs of the same pod template, in alternating runs.

    CELLWISE_TEST_KUBECONFIG=... python tests/benchmarks/cluster.py [--cells 200] [--runs 3] [--repetitions 1]

The chart is installed already, in namespaces cellwise and cellwise-cells. The bare Jobs are all created at once, the
cells' as many at a time as the chart's controller.jobsInFlight says. A bare Job is a cell's Job as the controller made
it, with only the recorder's command replaced by ``python3 -c pass``. With more repetitions they run in one pod
(trials_per_pod), by an agent whose process is reused; --fresh has a process for each. Cells are timed from the
command's start until all of them are graded and the command has ended; when Phoenix shows them is told beside it.
Nothing here asserts a time.
"""

import argparse
import copy
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cluster"))
NAMESPACE, CELLS = "cellwise", "cellwise-cells"
CELLWISE = (sys.executable, "-m", "grading.command_line")
# A user's Python keeps its bytecode.
KEPT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT = {**KEPT, "KUBECONFIG": os.environ["CELLWISE_TEST_KUBECONFIG"], "PYTHONPATH": str(ROOT)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="a fresh process of the agent for each repetition")
    parser.add_argument("--unpublished", action="store_true", help="do not wait for Phoenix: its publisher is stopped")
    arguments = parser.parse_args()
    template = job_of_a_cell()
    took: dict[str, list[float]] = {"bare": [], "cellwise": [], "shown": []}
    for _ in range(arguments.runs):
        before = requests()
        took["bare"].append(bare(template, arguments.cells))
        print(f"bare: {took['bare'][-1]:.1f} s", flush=True)
        tell_requests(before, arguments.cells)
        before = requests()
        graded, shown = cells(
            arguments.cells, arguments.repetitions, fresh=arguments.fresh, wait=not arguments.unpublished
        )
        took["cellwise"].append(graded)
        took["shown"].append(shown)
        print(f"cellwise: {graded:.1f} s, {shown:.1f} s until Phoenix shows all", flush=True)
        tell_requests(before, arguments.cells)
    medians = {name: statistics.median(values) for name, values in took.items()}
    print(
        json.dumps(
            {
                "cells": arguments.cells,
                "repetitions": arguments.repetitions,
                "seconds": {name: [round(value, 1) for value in values] for name, values in took.items()},
                "medians": {name: round(value, 1) for name, value in medians.items()},
                "ratio": round(medians["cellwise"] / medians["bare"], 2),
            }
        )
    )


def kubectl(*arguments: str, given: str | None = None) -> str:
    command = ["kubectl", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, input=given, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def job_of_a_cell() -> dict[str, Any]:
    """The Job of a cell as the controller made it, without what the API server added."""
    with tempfile.TemporaryDirectory() as folder:
        process = start(bench_study(Path(folder), 1, 1, fresh=True))
        while True:
            found = json.loads(kubectl("-n", CELLS, "get", "jobs", "-o", "json"))["items"]
            if found:
                break
            time.sleep(0.2)
        process.wait()
    job: dict[str, Any] = found[0]
    spec = job["spec"]
    for name in ("selector", "manualSelector", "suspend"):
        spec.pop(name, None)
    labels = spec["template"]["metadata"]["labels"]
    for name in ("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"):
        labels.pop(name, None)
    # As many as before, but the controller does not take its pods for cells.
    labels["app.kubernetes.io/component"] = "bare"
    for container in spec["template"]["spec"]["containers"]:
        container["command"], container["args"] = ["python3", "-c", "pass"], []
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def bare(template: dict[str, Any], count: int) -> float:
    jobs = []
    for number in range(count):
        job = copy.deepcopy(template)
        job["metadata"] = {"name": f"bare-{number}", "namespace": CELLS, "labels": {"bare": "yes"}}
        jobs.append(job)
    started = time.monotonic()
    kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs}))
    completed(count)
    seconds = time.monotonic() - started
    kubectl("-n", CELLS, "delete", "jobs", "-l", "bare=yes", "--wait=true")
    settle()
    return seconds


def completed(count: int) -> None:
    """Returns once so many bare Jobs have succeeded: watched, since asking again and again costs what is measured."""
    shown = 'jsonpath={.metadata.name} {.status.succeeded}{"\\n"}'
    command = ["kubectl", "-n", CELLS, "get", "jobs", "-l", "bare=yes", "--watch", "-o", shown]
    done: set[str] = set()
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            name, _, succeeded = line.partition(" ")
            if succeeded.strip() == "1":
                done.add(name)
            if len(done) == count:
                watch.kill()


def cells(count: int, repetitions: int, *, fresh: bool, wait: bool) -> tuple[float, float]:
    """Seconds until all are graded and the command has ended, and until Phoenix shows them where one waits for that."""
    with tempfile.TemporaryDirectory() as folder:
        path = bench_study(Path(folder), count, repetitions, fresh=fresh)
        started = time.monotonic()
        process = start(path)
        out, _ = process.communicate()
        graded = time.monotonic() - started
        result = json.loads(out)
        assert process.returncode == 0, result
        assert [one["graded"] for one in result["summary"]["conditions"]] == [count * repetitions], result
        while wait and not published(Path(folder), result["id"]):
            time.sleep(2)
        shown = time.monotonic() - started
    settle()
    return graded, shown


def published(folder: Path, matrix_id: int) -> bool:
    command = [*CELLWISE, "status", str(matrix_id), "--on", "kubernetes", "--namespace", NAMESPACE, "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=folder, capture_output=True, check=True, timeout=60)
    return any(one["state"] == "published" for one in json.loads(done.stdout)["publications"])


def bench_study(folder: Path, cases: int, repetitions: int, *, fresh: bool) -> Path:
    from matrices import study

    more = f"trials_per_pod: {repetitions}\n" if repetitions > 1 else ""
    reuse = "true" if repetitions > 1 and not fresh else "false"
    condition = f"{{name: control, agent: descriptive-control, reuse: {reuse}}}"
    return study(folder, f"bench-{uuid.uuid4().hex[:8]}", condition, cases=cases, repetitions=repetitions, more=more)


def start(path: Path) -> "subprocess.Popen[bytes]":
    command = [*CELLWISE, "run", str(path), "--on", "kubernetes", "--namespace", NAMESPACE, "--phoenix", "off"]
    return subprocess.Popen([*command, "--json"], env=ENVIRONMENT, stdout=subprocess.PIPE, cwd=path.parent)


def settle() -> None:
    """Waits until what the last run left has been deleted."""
    while kubectl("-n", CELLS, "get", "pods", "-o", "name").strip():
        kubectl("-n", CELLS, "delete", "jobs", "--all", "--wait=true")
        time.sleep(2)
    time.sleep(5)


def tell_requests(before: dict[str, int], count: int) -> None:
    asked = {who: round((number - before.get(who, 0)) / count, 1) for who, number in requests().items()}
    told = {who: number for who, number in asked.items() if number}
    print(f"  requests to the API server for each, until all of it was deleted: {told}", flush=True)


def requests() -> dict[str, int]:
    """Requests that the API server has answered, by what asks: reading its own metrics."""
    found: dict[str, int] = {"all": 0}
    for line in kubectl("get", "--raw", "/metrics").splitlines():
        match = re.match(r'apiserver_request_total\{.*[,{]resource="([^"]*)".*[,{]verb="([^"]*)".*\} (\S+)$', line)
        if match:
            found["all"] += int(float(match[3]))
            if match[1] in ("tokenreviews", "subjectaccessreviews", "jobs", "pods", "leases", "events"):
                name = f"{match[2].lower()} {match[1]}"
                found[name] = found.get(name, 0) + int(float(match[3]))
    return found


if __name__ == "__main__":
    main()
