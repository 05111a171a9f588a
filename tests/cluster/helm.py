"""The chart as helm renders it, for tests that need no cluster."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "cellwise"
NAMESPACE = "cellwise"
KUBERNETES = "1.34.4"
"""The version that is rendered for."""


def helm() -> str:
    """The helm to use; skips where there is none."""
    found = os.environ.get("CELLWISE_TEST_HELM") or shutil.which("helm")
    if not found:
        pytest.skip("no helm: put it on the path, or name it in CELLWISE_TEST_HELM")
    return found


def run_helm(*arguments: str | Path, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *map(str, arguments)], capture_output=True, text=True, timeout=seconds)


def rendered(*options: str | Path, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """The documents that the chart makes of some options."""
    done = run_helm("template", "cellwise", CHART, "--namespace", namespace, "--kube-version", KUBERNETES, *options)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def refusal(*options: str | Path) -> str:
    """What helm says of options that the chart refuses."""
    done = run_helm("template", "cellwise", CHART, "--namespace", NAMESPACE, "--kube-version", KUBERNETES, *options)
    assert done.returncode != 0, "it was rendered"
    assert done.stdout == ""
    return done.stderr


def documents(text: str) -> list[dict[str, Any]]:
    return [one for one in YAML(typ="safe", pure=True).load_all(text) if one]


def values_file(name: str) -> Path:
    return ROOT / "k8s" / name / "values.yaml"


def one(found: Sequence[dict[str, Any]], kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    """The one document of that kind and name."""
    [document] = [
        each
        for each in found
        if each["kind"] == kind
        and each["metadata"]["name"] == name
        and (namespace is None or each["metadata"].get("namespace") == namespace)
    ]
    return document


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    """The pod's spec of a Pod or of what makes pods."""
    spec: dict[str, Any] = document["spec"]
    return spec if document["kind"] == "Pod" else spec["template"]["spec"]


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every container of a pod, those that run before it too."""
    pod = pod_of(document)
    return [*pod.get("initContainers", []), *pod["containers"]]
