"""What an operator can rely on before anything is installed: what the chart makes fits the Kubernetes API, asks for the
fewest rights, keeps cells in their place, and refuses values that mean nothing."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.version import VERSION
from tests.cluster.helm import CHART, NAMESPACE, containers, one, pod_of, refusal, rendered, values_file
from tests.kubernetes_schema import violations

CELLS = "cellwise-cells"
WORKLOADS = ("Deployment", "StatefulSet", "Pod")
ACCESS = json.dumps(
    {
        "viewers": [{"kind": "Group", "name": "support"}],
        "editors": [
            {"kind": "User", "name": "ana@example.com"},
            {"kind": "ServiceAccount", "name": "ci", "namespace": "ci"},
        ],
    }
)
EVERYTHING = (
    "--set-json", f"access={ACCESS}",
    "--set-json", 'cells.quota={"pods":"100"}',
    "--set-json", 'publisher.registry={"registry.yaml":"version: 1\\n","record.json":"{}"}',
    "--set", "publisher.envSecret=judges,phoenix.apiKeySecret.name=phoenix-key",
    "--set-json", 'images.pullSecrets=["registry-login"]',
    "--set-json", 'networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"team":"monitoring"}}}]',
    "--set-json", 'control.nodeSelector={"pool":"control"}',
    "--set-json", 'cells.egress=[{"to":[{"ipBlock":{"cidr":"192.0.2.0/24"}}],"ports":[{"protocol":"TCP","port":443}]}]',
)  # fmt: skip
VARIANTS: dict[str, tuple[str | Path, ...]] = {
    "default": (),
    "kind": ("-f", values_file("kind")),
    "gke": ("-f", values_file("gke")),
    "everything": EVERYTHING,
    "bare": (
        "--set", "publisher.enabled=false,phoenix.inside=false,networkPolicy.enabled=false,cells.createNamespace=false",
        "--set", "postgresql.inside=false,store.secret=own-database",
    ),
    "passing": ("--set", "postgresql.storage.persistent=false,phoenix.storage.persistent=false"),
}  # fmt: skip


@pytest.fixture(scope="module", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(*VARIANTS[request.param])


@pytest.fixture(scope="module")
def default() -> list[dict[str, Any]]:
    return rendered()


def test_everything_fits_the_schemas_of_the_api(variant: list[dict[str, Any]]) -> None:
    assert [problem for document in variant for problem in violations(document)] == []


def test_the_check_itself_sees_what_is_wrong() -> None:
    [controller] = [
        each
        for each in rendered()
        if each["metadata"]["name"] == "cellwise-controller" and each["kind"] == "Deployment"
    ]
    controller["spec"]["replica"] = 1
    controller["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "9090"
    del controller["spec"]["selector"]
    assert sorted(violations(controller)) == [
        "Deployment.spec.replica: Extra inputs are not permitted",
        "Deployment.spec.selector: Field required",
        "Deployment.spec.template.spec.containers.0.ports.0.containerPort: Input should be a valid integer",
    ]


def test_names_are_labels_and_no_two_are_the_same(variant: list[dict[str, Any]]) -> None:
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in variant]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for _, _, name in names)


def test_every_pod_is_restricted_and_gets_no_token_that_it_does_not_need(variant: list[dict[str, Any]]) -> None:
    """Pod Security `restricted` (kubernetes.io/docs/concepts/security/pod-security-standards), and a read-only root."""
    with_token = set()
    for document in variant:
        if document["kind"] not in WORKLOADS:
            continue
        pod = pod_of(document)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for volume in pod.get("volumes", []):
            assert volume.keys() - {"name"} <= {"emptyDir", "configMap"}, volume
        for container in containers(document):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"]["cpu"]
            assert container["imagePullPolicy"] == "IfNotPresent"
        if pod["automountServiceAccountToken"]:
            with_token.add(document["metadata"]["name"])
    assert with_token == {"cellwise-controller", "cellwise-intake"}


def test_every_container_that_stays_has_its_probes(default: list[dict[str, Any]]) -> None:
    for document in default:
        if document["kind"] in ("Deployment", "StatefulSet"):
            for container in pod_of(document)["containers"]:
                named = {port["name"] for port in container["ports"]}
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    asked = container[probe].get("httpGet")
                    assert asked is None or asked["port"] in named


def rules(found: list[dict[str, Any]], kind: str) -> set[tuple[str, str | None, str, str, tuple[str, ...], str]]:
    """Whom a role may be given, where, and each thing that it permits."""
    return {
        (
            role["metadata"]["name"],
            role["metadata"].get("namespace"),
            group,
            resource,
            tuple(rule.get("resourceNames", ())),
            " ".join(rule["verbs"]),
        )
        for role in found
        if role["kind"] == kind
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_rights_are_these_and_no_more(default: list[dict[str, Any]]) -> None:
    assert rules(default, "ClusterRole") == {
        ("cellwise-intake-cellwise", None, "authentication.k8s.io", "tokenreviews", (), "create"),
        ("cellwise-intake-cellwise", None, "authorization.k8s.io", "subjectaccessreviews", (), "create"),
    }
    lease = "coordination.k8s.io"
    viewer, editor = ("cellwise-viewer",), ("cellwise-viewer", "cellwise-editor")
    assert rules(default, "Role") == {
        ("cellwise-controller", CELLS, "batch", "jobs", (), "create get list watch patch delete"),
        ("cellwise-controller", CELLS, "", "pods", (), "get list watch"),
        ("cellwise-controller", CELLS, "", "events", (), "list watch"),
        ("cellwise-controller", NAMESPACE, lease, "leases", (), "create"),
        ("cellwise-controller", NAMESPACE, lease, "leases", ("cellwise-controller",), "get update"),
        ("cellwise-intake", CELLS, "", "pods", (), "get"),
        ("cellwise-matrices-viewer", NAMESPACE, "cellwise.dev", "matrices", (), "get"),
        ("cellwise-matrices-editor", NAMESPACE, "cellwise.dev", "matrices", (), "get create update"),
        *(
            row
            for name, accounts in (("cellwise-viewer", viewer), ("cellwise-editor", editor))
            for row in (
                (name, NAMESPACE, "", "serviceaccounts/token", accounts, "create"),
                (name, NAMESPACE, "", "services", (), "get list"),
                (name, NAMESPACE, "", "pods", (), "get list"),
                (name, NAMESPACE, "", "pods/portforward", (), "create get"),
                (name, CELLS, "", "pods", (), "get list"),
                (name, CELLS, "", "pods/log", (), "get list"),
            )
        ),
    }
    bound = {
        (each["roleRef"]["name"], each["metadata"].get("namespace"), subject["name"])
        for each in default
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding")
        for subject in each["subjects"]
    }
    assert bound == {
        ("cellwise-controller", CELLS, "cellwise-controller"),
        ("cellwise-controller", NAMESPACE, "cellwise-controller"),
        ("cellwise-intake", CELLS, "cellwise-intake"),
        ("cellwise-intake-cellwise", None, "cellwise-intake"),
        ("cellwise-matrices-viewer", NAMESPACE, "cellwise-viewer"),
        ("cellwise-matrices-editor", NAMESPACE, "cellwise-editor"),
    }


def test_named_people_get_the_role_in_both_namespaces() -> None:
    found = rendered(*EVERYTHING)
    for namespace in (NAMESPACE, CELLS):
        assert one(found, "RoleBinding", "cellwise-viewer", namespace)["subjects"] == [
            {"kind": "Group", "name": "support", "apiGroup": "rbac.authorization.k8s.io"}
        ]
        assert one(found, "RoleBinding", "cellwise-editor", namespace)["subjects"] == [
            {"kind": "User", "name": "ana@example.com", "apiGroup": "rbac.authorization.k8s.io"},
            {"kind": "ServiceAccount", "name": "ci", "namespace": "ci"},
        ]


def test_the_settings_are_those_that_controller_and_intake_read(variant: list[dict[str, Any]], tmp_path: Path) -> None:
    from k8s.settings import read_settings

    path = tmp_path / "settings.yaml"
    path.write_text(one(variant, "ConfigMap", "cellwise-settings")["data"]["settings.yaml"])
    read = read_settings({"CELLWISE_SETTINGS": str(path)})
    assert (read.namespace, read.cells_namespace) == (NAMESPACE, CELLS)
    assert read.intake_url == "http://cellwise-intake.cellwise.svc:8080"
    assert read.cells_service_account in {
        each["metadata"]["name"] for each in variant if each["kind"] == "ServiceAccount"
    }
    [lease] = [row for row in rules(variant, "Role") if row[4] == (read.lease_name,)]
    assert lease[5] == "get update"


def test_changed_settings_replace_the_pods_that_read_them(default: list[dict[str, Any]]) -> None:
    changed = rendered("--set", "controller.jobsInFlight=7")
    for name in ("cellwise-controller", "cellwise-intake"):
        before, after = (
            one(each, "Deployment", name)["spec"]["template"]["metadata"]["annotations"] for each in (default, changed)
        )
        assert before["checksum/settings"] != after["checksum/settings"]
    assert one(default, "Deployment", "cellwise-publisher") == one(changed, "Deployment", "cellwise-publisher")


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    matched = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    assert all(each["operator"] == "In" for each in selector.get("matchExpressions", []))
    return matched and all(labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", []))


def reached(found: list[dict[str, Any]]) -> set[tuple[str, str, str | int]]:
    """(from, to, port): who may begin to talk to whom, as the ingress rules of the release's namespace say."""
    pods = {
        (each["metadata"]["labels"] if each["kind"] == "Pod" else each["spec"]["template"]["metadata"]["labels"])[
            "app.kubernetes.io/component"
        ]: each
        for each in found
        if each["kind"] in WORKLOADS
    }
    labels = {
        name: (each["metadata"] if each["kind"] == "Pod" else each["spec"]["template"]["metadata"])["labels"]
        for name, each in pods.items()
    }
    allowed = set()
    for policy in found:
        if policy["kind"] != "NetworkPolicy" or policy["metadata"]["namespace"] != NAMESPACE:
            continue
        for name in labels:
            if name == "cell-test" or not selects(policy["spec"]["podSelector"], labels[name]):
                continue
            for rule in policy["spec"].get("ingress", []):
                for peer in rule["from"]:
                    if "namespaceSelector" in peer:
                        sources = [str(*peer["namespaceSelector"]["matchLabels"].values())]
                    else:
                        sources = [each for each in labels if selects(peer["podSelector"], labels[each])]
                    allowed |= {(source, name, port["port"]) for source in sources for port in rule["ports"]}
    return allowed


def test_who_reaches_whom(default: list[dict[str, Any]]) -> None:
    assert reached(default) == {
        (CELLS, "intake", "cells"),
        ("test", "intake", "health"),
        ("test", "controller", "health"),
        ("test", "publisher", "health"),
        ("controller", "postgresql", "postgresql"),
        ("intake", "postgresql", "postgresql"),
        ("publisher", "postgresql", "postgresql"),
        ("test", "postgresql", "postgresql"),
        ("publisher", "phoenix", "http"),
        ("test", "phoenix", "http"),
    }
    nothing = one(default, "NetworkPolicy", "cellwise-nothing")["spec"]
    assert (nothing["policyTypes"], "ingress" in nothing) == (["Ingress"], False)


def test_cells_are_reached_by_nobody_and_reach_intake_and_names_alone(default: list[dict[str, Any]]) -> None:
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in default
        if each["kind"] == "NetworkPolicy" and each["metadata"]["namespace"] == CELLS
    }
    assert policies["cellwise-cells-nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    intake, names = policies.pop("cellwise-cells-to-intake")["egress"]
    assert [port["port"] for port in intake["ports"]] == [8080]
    [peer] = intake["to"]
    assert selects(
        peer["podSelector"], one(default, "Deployment", "cellwise-intake")["spec"]["template"]["metadata"]["labels"]
    )
    assert [(port["protocol"], port["port"]) for port in names["ports"]] == [
        ("UDP", 53), ("TCP", 53), ("UDP", 5353), ("TCP", 5353)
    ]  # fmt: skip
    assert policies.keys() == {"cellwise-cells-nothing"}


def test_services_lead_to_ports_that_the_pods_have(variant: list[dict[str, Any]]) -> None:
    for service in (each for each in variant if each["kind"] == "Service"):
        [workload] = [
            each
            for each in variant
            if each["kind"] in ("Deployment", "StatefulSet")
            and service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        [container] = pod_of(workload)["containers"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {
            port["name"]: named[port["targetPort"]] for port in service["spec"]["ports"]
        }


def test_intake_is_never_fewer_during_an_upgrade(default: list[dict[str, Any]]) -> None:
    spec = one(default, "Deployment", "cellwise-intake")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert one(default, "PodDisruptionBudget", "cellwise-intake")["spec"]["maxUnavailable"] == 1


def test_migrations_come_before_whatever_opens_the_store(variant: list[dict[str, Any]]) -> None:
    for name in ("cellwise-controller", "cellwise-intake", "cellwise-publisher"):
        for document in (each for each in variant if each["kind"] == "Deployment" and each["metadata"]["name"] == name):
            *_, migrations = pod_of(document)["initContainers"]
            assert migrations["command"][:2] == ["cellwise", "migrate"]
            [main] = pod_of(document)["containers"]
            store = {each["name"]: each for each in main["env"]}["CELLWISE_STORE"]
            assert migrations["env"] == [store]


def test_the_password_is_a_new_one_and_the_url_holds_it(default: list[dict[str, Any]]) -> None:
    def secret(found: list[dict[str, Any]]) -> dict[str, str]:
        data = one(found, "Secret", "cellwise-postgresql")["data"]
        return {name: base64.b64decode(value).decode() for name, value in data.items()}

    first, second = secret(default), secret(rendered())
    assert first["password"] != second["password"]
    assert first["url"] == f"postgresql://cellwise:{first['password']}@cellwise-postgresql.cellwise.svc:5432/cellwise"
    kept = one(default, "Secret", "cellwise-postgresql")["metadata"]["annotations"]
    assert kept == {"helm.sh/resource-policy": "keep"}, "the volume is kept too, and knows this password alone"


def test_images_go_by_digest_where_there_is_one() -> None:
    found = rendered("-f", values_file("gke"))
    digest = "@sha256:" + "0" * 64
    ours = [
        container["image"]
        for document in found
        if document["kind"] in WORKLOADS
        for container in containers(document)
        if container["name"] != "cloud-sql-proxy"
    ]
    assert ours
    assert all(image.endswith(digest) for image in ours)
    assert f"/cellwise/trial{digest}" in one(found, "ConfigMap", "cellwise-settings")["data"]["settings.yaml"]


def test_on_gke_whatever_opens_the_store_has_the_proxy_beside_it() -> None:
    found = rendered("-f", values_file("gke"))
    opening = [
        each
        for each in found
        if each["kind"] in WORKLOADS
        and any(env["name"] == "CELLWISE_STORE" for container in containers(each) for env in container.get("env", []))
    ]
    assert sorted(each["metadata"]["name"] for each in opening) == [
        "cellwise-controller",
        "cellwise-intake",
        "cellwise-publisher",
        "cellwise-test",
    ]
    for document in opening:
        proxy = pod_of(document)["initContainers"][0]
        assert (proxy["name"], proxy["restartPolicy"]) == ("cloud-sql-proxy", "Always")
        assert proxy["args"][-1] == "PROJECT:REGION:cellwise"
    accounts = {each["metadata"]["name"]: each["metadata"] for each in found if each["kind"] == "ServiceAccount"}
    assert {
        name for name, each in accounts.items() if "iam.gke.io/gcp-service-account" in each.get("annotations", {})
    } == {
        "cellwise-controller",
        "cellwise-intake",
        "cellwise-publisher",
    }, "a cell stands for nobody in the cloud"
    assert not any(each["kind"] in ("StatefulSet", "Secret") for each in found)


def test_a_registry_is_mounted_where_the_publisher_is_told_to_look() -> None:
    publisher = pod_of(one(rendered(*EVERYTHING), "Deployment", "cellwise-publisher"))
    [container] = publisher["containers"]
    assert "--registry=/etc/cellwise/registry/registry.yaml" in container["command"]
    assert {"name": "registry", "mountPath": "/etc/cellwise/registry", "readOnly": True} in container["volumeMounts"]
    assert one(rendered(*EVERYTHING), "ConfigMap", "cellwise-registry")["data"].keys() == {
        "registry.yaml",
        "record.json",
    }


def test_the_publishers_command_is_one_that_the_command_line_takes(default: list[dict[str, Any]]) -> None:
    from typer.main import get_command

    from grading.command_line import app

    for document in (default, rendered(*EVERYTHING)):
        for container in [
            *pod_of(one(document, "Deployment", "cellwise-publisher"))["containers"],
            pod_of(one(document, "Deployment", "cellwise-intake"))["initContainers"][-1],
        ]:
            program, name, *arguments = container["command"]
            assert program == "cellwise"
            command = get_command(app).commands[name]  # type: ignore[attr-defined]
            command.make_context(name, list(arguments))


def test_the_versions_are_the_projects(default: list[dict[str, Any]]) -> None:
    controller = one(default, "Deployment", "cellwise-controller")
    assert controller["metadata"]["labels"]["app.kubernetes.io/version"] == VERSION
    assert pod_of(controller)["containers"][0]["image"] == f"localhost/cellwise-control:{VERSION}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--set", "intake.replica=2"], "additional properties 'replica' not allowed"),
        (["--set", "cells.resource.limits.memory=1Gi"], "additional properties 'resource' not allowed"),
        (["--set", "controller.replicas=3"], "/controller/replicas"),
        (["--set", "controller.jobsInFlight=0"], "/controller/jobsInFlight"),
        (["--set", "images.control.digest=sha256:abc"], "/images/control/digest"),
        (["--set", "images.pullPolicy=Sometimes"], "/images/pullPolicy"),
        (["--set", "cells.namespace=Cells"], "/cells/namespace"),
        (["--set", "cells.resources.limits.memory=lots"], "/cells/resources/limits/memory"),
        (["--set-json", 'cells.tolerations=[{"operator":"Is"}]'], "/cells/tolerations/0/operator"),
        (["--set", "cells.runAsUser=0"], "/cells/runAsUser"),
        (["--set-json", 'access.viewers=[{"kind":"Robot","name":"x"}]'], "/access/viewers/0/kind"),
        (["--set-json", 'access.viewers=[{"kind":"ServiceAccount","name":"x"}]'], "missing property 'namespace'"),
        (["--set-json", 'publisher.registry={"record.json":"{}"}'], "missing property 'registry.yaml'"),
        (["--set", "phoenix.url=phoenix:6006"], "/phoenix/url"),
        (["--set", f"cells.namespace={NAMESPACE}"], "cells.namespace is the release's own"),
        (["--set", "postgresql.inside=false"], "name the Secret with the database's URL in store.secret"),
        (["--set", "phoenix.inside=false"], "give phoenix.url, or turn publisher.enabled off"),
        (["--set", "cloudSqlProxy.enabled=true"], "give cloudSqlProxy.instance"),
    ],
)
def test_values_that_mean_nothing_are_refused(options: list[str], told: str) -> None:
    assert told in refusal(*options)


def test_every_value_is_in_the_schema_and_every_default_in_the_values() -> None:
    from ruamel.yaml import YAML

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = YAML(typ="safe", pure=True).load((CHART / "values.yaml").read_text())

    def differences(schema_: dict[str, Any], value: Any, place: str) -> list[str]:
        while "$ref" in schema_:
            schema_ = schema["$defs"][schema_["$ref"].rsplit("/", 1)[1]]
        if "properties" not in schema_ or not isinstance(value, dict):
            return []
        assert schema_["additionalProperties"] is False, place
        missing = [f"{place}.{name}" for name in schema_["properties"] if name not in value]
        return missing + [
            each
            for name, inner in value.items()
            for each in differences(schema_["properties"][name], inner, f"{place}.{name}")
        ]

    assert differences(schema, values, "") == [".global"]
