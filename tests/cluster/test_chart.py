"""The chart on a real cluster: the API server takes all of it, it installs and upgrades and waits, its own tests pass,
and its parts may do what they must and nothing else."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CELLS, NAMESPACE, RELEASE, ROOT, Cluster, Images, Installed, image_values

CHART = str(ROOT / "charts" / "cellwise")
VALUES = {
    "default": [],
    "kind": ["-f", str(ROOT / "k8s/kind/values.yaml")],
    "gke": ["-f", str(ROOT / "k8s/gke/values.yaml")],
}


def kubernetes_version(cluster: Cluster) -> str:
    found: str = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
    return found


@pytest.mark.parametrize("name", VALUES)
def test_helm_finds_nothing_to_say_against_it(cluster: Cluster, name: str) -> None:
    told = cluster.helm("lint", "--strict", CHART, *VALUES[name], "--kube-version", kubernetes_version(cluster))
    assert "1 chart(s) linted, 0 chart(s) failed" in told


@pytest.fixture(scope="module")
def dry_namespaces(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Two namespaces under Pod Security `restricted` with the accounts of the tests' pods: a dry run makes neither, and
    answers not found where they are missing."""
    names = ("chart-dry-run", "chart-dry-run-cells")
    for name in names:
        cluster.kubectl("create", "--save-config", "namespace", name, check=False)
        labels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
        cluster.kubectl("label", "--overwrite", "namespace", name, *labels)
    for name, account in zip(names, ("cellwise-publisher", "cellwise-cells"), strict=True):
        cluster.kubectl("-n", name, "create", "--save-config", "serviceaccount", account, check=False)
    yield names
    cluster.kubectl("delete", "namespace", *names, "--wait=false", check=False)


@pytest.mark.parametrize("name", VALUES)
def test_the_api_server_takes_every_document(
    cluster: Cluster, dry_namespaces: tuple[str, str], name: str, tmp_path: Path
) -> None:
    namespace, cells = dry_namespaces
    version = kubernetes_version(cluster)
    command = ["template", "dry", CHART, "-n", namespace, "--kube-version", version, *VALUES[name]]
    documents = cluster.helm(*command, "--set", f"cells.namespace={cells}")
    path = tmp_path / "rendered.yaml"
    path.write_text(documents)
    # With its warnings: one says where a pod would be less than restricted, or a field is deprecated or unknown.
    apply = ["kubectl", "--request-timeout=60s", "apply", "--dry-run=server", "--validate=strict", "-f", str(path)]
    told = cluster.run("sh", "-c", 'exec "$@" 2>&1', "sh", *apply, timeout=120)
    assert "Warning" not in told, told
    assert len(re.findall(r" (?:created|configured) \(server dry run\)$", told, re.MULTILINE)) == len(
        re.findall(r"^kind: ", documents, re.MULTILINE)
    )


def test_its_own_tests_pass(installed: Installed) -> None:
    # Not with --logs: helm looks for both pods in the release's namespace alone.
    told = installed.cluster.helm("test", RELEASE, "-n", NAMESPACE, "--timeout", "240s", timeout=300)
    assert told.count("Phase:          Succeeded") == 2, told


def password(cluster: Cluster, namespace: str = NAMESPACE) -> str:
    where = ["-n", namespace, "get", "secret", "cellwise-postgresql", "-o", "jsonpath={.data.password}"]
    return cluster.kubectl(*where)


def test_an_upgrade_waits_keeps_the_password_and_replaces_the_pods(installed: Installed) -> None:
    cluster = installed.cluster
    before = {name: set(installed.pods_of(name)) for name in ("controller", "intake", "publisher", "postgresql")}
    kept = password(cluster)
    command = ["upgrade", RELEASE, CHART, "-n", NAMESPACE, "--reuse-values", "--wait", "--timeout", "240s"]
    cluster.helm(*command, "--set-string", f"podAnnotations.again={time.time():.0f}", timeout=270)
    assert password(cluster) == kept
    # `--wait` has waited for the new ones; an old one may still be on its way out.
    after = {name: set(installed.pods_of(name)) for name in before}
    for name in ("controller", "intake", "publisher"):
        assert after[name] - before[name], name
    assert after["postgresql"] == before["postgresql"]
    ready = cluster.get("deployments", namespace=NAMESPACE)
    assert {each["metadata"]["name"]: each["status"]["readyReplicas"] for each in ready} == {
        "cellwise-controller": 1,
        "cellwise-intake": 1,
        "cellwise-publisher": 1,
    }


def may(cluster: Cluster, account: str, verb: str, resource: str, namespace: str) -> bool:
    """Asked as intake asks: `kubectl auth can-i` does not know a resource of which there is no kind."""
    resource, _, name = resource.partition(":")
    resource, _, subresource = resource.partition("/")
    resource, _, group = resource.partition(".")
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
    attributes |= {"name": name, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{account}", "resourceAttributes": attributes},
    }
    answer = json.loads(cluster.kubectl("create", "-f", "-", "-o", "json", given=json.dumps(review)))
    return bool(answer["status"]["allowed"])


JOBS, PODS = ("create", "jobs.batch", CELLS), ("get", "pods", CELLS)
LEASE = ("get", "leases.coordination.k8s.io:cellwise-controller", NAMESPACE)
REVIEWS = ("create", "tokenreviews.authentication.k8s.io", "default")
READS, CHANGES = ("get", "matrices.cellwise.dev", NAMESPACE), ("update", "matrices.cellwise.dev", NAMESPACE)


@pytest.mark.parametrize(
    ("account", "allowed"),
    [
        (f"{NAMESPACE}:cellwise-controller", {JOBS, PODS, LEASE}),
        (f"{NAMESPACE}:cellwise-intake", {PODS, REVIEWS}),
        (f"{NAMESPACE}:cellwise-publisher", set()),
        (f"{NAMESPACE}:cellwise-viewer", {READS}),
        (f"{NAMESPACE}:cellwise-editor", {READS, CHANGES}),
        (f"{CELLS}:cellwise-cells", set()),
    ],
)
def test_the_api_server_permits_these_and_nothing_else(
    installed: Installed, account: str, allowed: set[tuple[str, str, str]]
) -> None:
    asked = {
        JOBS,
        PODS,
        LEASE,
        REVIEWS,
        READS,
        CHANGES,
        ("create", "jobs.batch", NAMESPACE),
        ("create", "pods", CELLS),
        ("get", "pods", NAMESPACE),
        ("get", "secrets", CELLS),
        ("get", "secrets", NAMESPACE),
        ("get", "nodes", "default"),
        ("create", "serviceaccounts/token", NAMESPACE),
        ("get", "matrices.cellwise.dev", "default"),
    }
    assert {each for each in asked if may(installed.cluster, account, *each)} == allowed


def test_a_second_release_beside_it_comes_and_goes_whole(cluster: Cluster, images: Images) -> None:
    namespace, cells = "chart-second", "chart-second-cells"
    for name in (namespace, cells):
        # From an earlier run that was cut off.
        cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=60s", timeout=90)
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    command = ["install", "second", CHART, "-n", namespace, "-f", str(ROOT / "tests/cluster/values.yaml")]
    command += ["--set", f"cells.namespace={cells},intake.replicas=1,controller.replicas=2"]
    command += ["--set", "postgresql.storage.persistent=false,publisher.enabled=false,phoenix.inside=false"]
    try:
        cluster.helm(*command, *image_values(images), "--wait", "--timeout", "240s", timeout=270)
        told = cluster.helm("test", "second", "-n", namespace, "--timeout", "240s", timeout=300)
        assert told.count("Phase:          Succeeded") == 2, told
        cluster.helm("uninstall", "second", "-n", namespace, "--wait", "--timeout", "120s", timeout=150)
        kinds = "all,secrets,configmaps,networkpolicies,roles,pvc"
        # The test's pod is helm's to delete before the next test; the certificates' map is in every namespace.
        stays = {"pod/cellwise-test", "configmap/kube-root-ca.crt"}
        cluster.until(
            "nothing is left, pods that take their time to end neither",
            lambda: set(cluster.kubectl("-n", namespace, "get", kinds, "-o", "name").split()) <= stays,
        )
        gone = cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
        assert f"cellwise-intake-{namespace}" not in gone
    finally:
        cluster.helm("uninstall", "second", "-n", namespace, timeout=150, check=False)
        cluster.kubectl("delete", "namespace", namespace, cells, "--ignore-not-found", "--wait=false", check=False)
