"""`tilt up` cannot run everywhere, so its file is evaluated here with builtins that record what it declares: every
path, image, target, port and value that it names is one that the project has."""

import re
from pathlib import Path
from typing import Any

import pytest
import starlark

from tests.cluster.helm import CHART, ROOT, containers, one, pod_of, rendered

TEXT = (ROOT / "Tiltfile").read_text()


class Declared:
    """What a Tiltfile declares, by builtin: positional arguments and the named ones."""

    def __init__(self, text: str) -> None:
        self.calls: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}
        module = starlark.Module()
        for name in (
            "allow_k8s_contexts", "docker_build", "k8s_yaml", "helm", "k8s_resource", "local_resource", "port_forward",
            "sync", "run", "fall_back_on", "encode_yaml",
        ):  # fmt: skip
            module.add_callable(name, self._recorder(name))
        module["TRIGGER_MODE_MANUAL"] = "manual"
        starlark.eval(module, starlark.parse("Tiltfile", text), starlark.Globals.standard())

    def _recorder(self, name: str) -> Any:
        def record(*arguments: Any, **named: Any) -> dict[str, Any]:
            self.calls.setdefault(name, []).append((arguments, named))
            return {"of": name, "arguments": list(arguments), "named": named}

        return record

    def only(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        [call] = self.calls[name]
        return call

    def by_first(self, name: str) -> dict[str, dict[str, Any]]:
        """Of a builtin's calls: the named arguments by the first positional one."""
        found = {arguments[0]: {**named, "rest": arguments[1:]} for arguments, named in self.calls[name]}
        assert len(found) == len(self.calls[name])
        return found


@pytest.fixture(scope="module")
def declared() -> Declared:
    return Declared(TEXT)


@pytest.fixture(scope="module")
def chart(declared: Declared) -> list[dict[str, Any]]:
    """What helm makes of the chart with what the Tiltfile hands it."""
    (folder,), named = declared.only("helm")
    assert (ROOT / folder).resolve() == CHART
    files = [word for file in named["values"] for word in ("-f", ROOT / file)]
    settings = [word for setting in named["set"] for word in ("--set", setting)]
    return rendered(*files, *settings, namespace=named["namespace"])


def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def test_every_path_that_it_names_is_there(declared: Declared) -> None:
    named: list[str] = []
    for arguments, options in declared.calls["docker_build"]:
        named += [arguments[1], *options["only"], *options.get("ignore", ())]
    for (local, _), _ in declared.calls["sync"]:
        named.append(local)
    for (paths,), _ in declared.calls["fall_back_on"]:
        named += paths
    named.append(declared.only("local_resource")[1]["cmd"].split()[0])
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_its_images_are_those_that_the_chart_runs(declared: Declared, chart: list[dict[str, Any]]) -> None:
    builds = declared.by_first("docker_build")
    run = {
        container["image"].rpartition(":")[0]
        for document in chart
        if document["kind"] == "Deployment"
        for container in containers(document)
    }
    assert run == {"localhost/cellwise-control"}
    trial = {
        each["value"].rpartition(":")[0]
        for container in containers(one(chart, "Deployment", "cellwise-controller"))
        for each in container.get("env", ())
        if each["name"] == "CELLWISE_TRIAL_IMAGE"
    }
    assert trial == {"localhost/cellwise-trial"}
    assert builds.keys() == run | trial
    assert builds["localhost/cellwise-trial"]["match_in_env_vars"] is True
    settings = one(chart, "ConfigMap", "cellwise-settings")["data"]["settings.yaml"]
    assert 'trial_image: "localhost/cellwise-trial:' in settings


def test_the_controller_takes_the_image_that_the_environment_names(tmp_path: Path, chart: list[dict[str, Any]]) -> None:
    from k8s.settings import read_settings

    path = tmp_path / "settings.yaml"
    path.write_text(one(chart, "ConfigMap", "cellwise-settings")["data"]["settings.yaml"])
    named = {"CELLWISE_SETTINGS": str(path), "CELLWISE_TRIAL_IMAGE": "localhost/cellwise-trial:tilt-1234"}
    assert read_settings(named).trial_image == "localhost/cellwise-trial:tilt-1234"


def test_its_targets_and_arguments_are_the_dockerfiles(declared: Declared) -> None:
    text = dockerfile()
    targets = set(re.findall(r"^FROM .* AS (\S+)$", text, re.MULTILINE | re.IGNORECASE))
    arguments = set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    for options in declared.by_first("docker_build").values():
        assert options["target"] in targets
        assert options["build_args"].keys() <= arguments


def test_what_a_build_copies_is_handed_to_it(declared: Declared) -> None:
    """Every path that the Dockerfile copies from the project lies in what ``only`` lets through."""
    copied = {
        path
        for line in re.findall(r"^COPY (?!.*--from)(.+)$", dockerfile(), re.MULTILINE)
        for path in [word for word in line.split() if not word.startswith("--")][:-1]
    }
    let_through = {path for options in declared.by_first("docker_build").values() for path in options["only"]}
    assert [
        path
        for path in copied
        if not any(path.rstrip("/") == each or path.startswith(f"{each}/") for each in let_through)
    ] == []


def test_a_live_update_goes_where_the_image_runs_its_code(declared: Declared, chart: list[dict[str, Any]]) -> None:
    steps = declared.by_first("docker_build")["localhost/cellwise-control"]["live_update"]
    assert [step["of"] for step in steps] == ["fall_back_on", "sync", "sync", "sync", "run"], "in the order Tilt wants"
    synced = {step["arguments"][0]: step["arguments"][1] for step in steps if step["of"] == "sync"}
    assert synced == {"simulator": "/code/simulator", "grading": "/code/grading", "k8s": "/code/k8s"}
    for name in ("cellwise-controller", "cellwise-intake", "cellwise-publisher"):
        deployment = one(chart, "Deployment", name)
        code, migrations = pod_of(deployment)["initContainers"][-2:]
        assert 'f"/code/{package.__name__}"' in code["args"][0]
        [main] = pod_of(deployment)["containers"]
        for container in (migrations, main):
            assert {"name": "code", "mountPath": "/code"} in container["volumeMounts"]
            assert {"name": "PYTHONPATH", "value": "/code"} in container["env"]
        assert main["command"][:2] == ["sh", "-c"]
        assert "/tmp/process" in main["command"][2]
        assert steps[-1]["arguments"] == ["kill $(cat /tmp/process)"]


def test_a_running_cell_is_never_changed(declared: Declared) -> None:
    assert "live_update" not in declared.by_first("docker_build")["localhost/cellwise-trial"]


def test_its_resources_and_ports_are_the_charts(declared: Declared, chart: list[dict[str, Any]]) -> None:
    workloads = {each["metadata"]["name"]: each for each in chart if each["kind"] in ("Deployment", "StatefulSet")}
    resources = declared.by_first("k8s_resource")
    assert resources.keys() == workloads.keys()
    forwarded = {}
    for name, options in resources.items():
        for forward in options.get("port_forwards", ()):
            local, in_container = forward["arguments"]
            ports = {port["containerPort"]: port["name"] for port in pod_of(workloads[name])["containers"][0]["ports"]}
            forwarded[name, ports[in_container]] = local
        assert set(options.get("resource_deps", ())) <= workloads.keys()
    assert forwarded == {("cellwise-phoenix", "http"): 6006, ("cellwise-intake", "people"): 8081}
    [publisher] = pod_of(workloads["cellwise-publisher"])["containers"]
    assert "--shown-at=http://localhost:6006" in publisher["command"], "its links lead to the forwarded port"


def test_the_button_runs_the_study_when_it_is_pressed_and_not_before(declared: Declared) -> None:
    (name,), options = declared.only("local_resource")
    assert name == "run the study"
    assert (options["auto_init"], options["trigger_mode"]) == (False, "manual")
    context = declared.only("allow_k8s_contexts")[0][0]
    assert options["cmd"] == f"./dev run order-resolution --on kubernetes --context {context} --namespace cellwise"
    assert set(options["resource_deps"]) <= {arguments[0] for arguments, _ in declared.calls["k8s_resource"]}
    assert declared.only("helm")[1]["namespace"] == "cellwise"


def test_its_context_is_the_one_that_kind_makes(declared: Declared) -> None:
    from ruamel.yaml import YAML

    cluster = YAML(typ="safe", pure=True).load((ROOT / "k8s/kind/cluster.yaml").read_text())
    assert declared.only("allow_k8s_contexts")[0] == (f"kind-{cluster['name']}",)


def test_a_name_that_is_wrong_would_be_seen() -> None:
    with pytest.raises(starlark.StarlarkError, match="docker_biuld"):
        Declared(TEXT.replace("docker_build(", "docker_biuld(", 1))
