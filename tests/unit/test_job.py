"""The Job of a cell: what its pods may do and have, and that no text of a case becomes anything but text."""

import re
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s import job
from k8s.job import UnusableCondition, Work, slug
from k8s.settings import CellSettings, Resources, Settings

SETTINGS = Settings(
    namespace="release",
    cells_namespace="cells",
    intake_url="http://intake.release.svc:8080",
    trial_image="trial@sha256:" + "1" * 64,
    cell=CellSettings(
        resources=Resources(requests={"cpu": "100m"}, limits={"memory": "256Mi"}),
        agent_resources=Resources(limits={"memory": "512Mi"}),
        node_selector={"cloud.google.com/gke-spot": "true"},
        tolerations=[{"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule",
                      "tolerationSeconds": 5}],
        active_deadline_seconds=900,
        priority_class="low",
        pod_labels={"team": "refunds"},
        agent_env_secret="keys",
    ),
)  # fmt: skip
UTTERANCE = "Refund $(HOME) $$ {{x}} \u202e\U0001f392"


def work(**changes: Any) -> Work:
    given: dict[str, Any] = {
        "launch_id": "0" * 32, "name": "cw-0123456789-17-g2", "generation": 2, "completions": 4, "parallelism": 3,
        "trials_per_pod": 5, "matrix_id": 7, "matrix": "order-resolution", "manifest_hash": "sha256:" + "2" * 64,
        "cell_id": 17, "case_id": UTTERANCE, "condition": "control",
    }  # fmt: skip
    return Work(**given | changes)


def containers(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    pod = document["spec"]["template"]["spec"]
    return {one["name"]: one for one in [*pod.get("initContainers", ()), *pod["containers"]]}


def test_the_job_runs_each_index_until_the_store_has_it() -> None:
    spec = job.job(work(), SETTINGS)["spec"]
    del spec["template"]
    assert spec == {
        "completionMode": "Indexed",
        "completions": 4,
        "parallelism": 3,
        "backoffLimitPerIndex": 15,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailIndex",
                    "onExitCodes": {"containerName": "recorder", "operator": "In", "values": [78]},
                },
            ]
        },
        "ttlSecondsAfterFinished": 86400,
    }


def test_its_pods_know_the_address_of_the_intake_where_it_is_known() -> None:
    pod = job.job(work(), SETTINGS, "10.96.0.7")["spec"]["template"]["spec"]
    assert pod["hostAliases"] == [{"ip": "10.96.0.7", "hostnames": ["intake.release.svc"]}]
    assert {"name": "CELLWISE_INTAKE", "value": "http://intake.release.svc:8080"} in pod["containers"][0]["env"]
    assert "hostAliases" not in job.job(work(), SETTINGS)["spec"]["template"]["spec"]


def test_a_queue_admits_the_job() -> None:
    document = job.job(work(queue="team"), SETTINGS)
    assert document["spec"]["suspend"] is True
    assert document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/queue-name" not in document["spec"]["template"]["metadata"]["labels"]


def test_a_pod_is_restricted_and_holds_no_token_but_the_recorders() -> None:
    document = job.job(work(image="agent@sha256:" + "3" * 64, env=("OPENAI_API_KEY",)), SETTINGS)
    pod = document["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert (pod["serviceAccountName"], pod["restartPolicy"]) == ("cellwise-cells", "Never")
    assert (pod["activeDeadlineSeconds"], pod["terminationGracePeriodSeconds"]) == (900, 30)
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"cloud.google.com/gke-spot": "true"}, "low")
    assert pod["tolerations"] == SETTINGS.cell.tolerations
    assert pod["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    both = containers(document)
    for one in both.values():
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
    mounts = {name: {one["name"] for one in container["volumeMounts"]} for name, container in both.items()}
    assert mounts == {"recorder": {"token", "tmp", "agent-socket"}, "agent": {"agent-tmp", "agent-socket"}}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["token"]["projected"]["sources"] == [
        {"serviceAccountToken": {"audience": "cellwise-cells", "expirationSeconds": 3600, "path": "token"}}
    ]
    assert {name: one["emptyDir"]["sizeLimit"] for name, one in volumes.items() if "emptyDir" in one} == {
        "tmp": "256Mi", "agent-tmp": "256Mi", "agent-socket": "1Mi",
    }  # fmt: skip


def test_an_agent_in_an_image_of_its_own_is_a_restartable_container_beside_the_recorder() -> None:
    image = "agent@sha256:" + "3" * 64
    both = containers(job.job(work(image=image, env=("OPENAI_API_KEY",)), SETTINGS))
    assert (both["agent"]["image"], both["agent"]["restartPolicy"]) == (image, "Always")
    assert both["agent"]["command"] == ["python", "-m", "simulator.agent_container"]
    assert both["agent"]["resources"] == {"limits": {"memory": "512Mi"}}
    assert [one["name"] for one in both["agent"]["env"]] == ["OPENAI_API_KEY", "CELLWISE_AGENT_SOCKET"]
    assert both["agent"]["env"][0]["valueFrom"] == {
        "secretKeyRef": {"name": "keys", "key": "OPENAI_API_KEY", "optional": True}
    }
    assert "OPENAI_API_KEY" not in [one["name"] for one in both["recorder"]["env"]]


def test_a_packaged_agent_runs_in_the_recorders_container() -> None:
    both = containers(job.job(work(env=("OPENAI_API_KEY",)), SETTINGS))
    assert list(both) == ["recorder"]
    recorder = both["recorder"]
    assert recorder["image"] == SETTINGS.trial_image
    assert recorder["command"] == ["python", "-m", "simulator.pod"]
    assert recorder["resources"] == {"requests": {"cpu": "100m"}, "limits": {"memory": "256Mi"}}
    assert {one["name"]: one.get("value") for one in recorder["env"]} == {
        "OPENAI_API_KEY": None,
        "CELLWISE_INTAKE": "http://intake.release.svc:8080",
        "CELLWISE_LAUNCH": "0" * 32,
        "CELLWISE_TOKEN_FILE": "/var/run/secrets/cellwise/token",
        "CELLWISE_POD_NAME": None,
        "CELLWISE_POD_UID": None,
        "CELLWISE_NODE": None,
    }


def test_a_condition_may_not_name_what_the_pod_sets_itself() -> None:
    with pytest.raises(UnusableCondition, match=r"^env: CELLWISE_INTAKE is a variable that the pod sets"):
        job.job(work(env=("A", "CELLWISE_INTAKE")), SETTINGS)


def test_texts_are_whole_in_annotations_and_nowhere_where_they_would_be_expanded() -> None:
    document = job.job(work(), SETTINGS)
    for place in (document, document["spec"]["template"]):
        assert place["metadata"]["annotations"]["cellwise.dev/case"] == UTTERANCE
        assert place["metadata"]["annotations"]["cellwise.dev/launch"] == "0" * 32
    assert b"$(HOME)" not in orjson.dumps(document["spec"]["template"]["spec"])


LABEL = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=200)


@settings(max_examples=300, deadline=None)
@given(TEXT, TEXT)
def test_every_text_has_a_label_and_two_texts_have_two(one: str, other: str) -> None:
    assert LABEL.fullmatch(slug(one))
    assert (slug(one) == slug(other)) == (one == other)


@settings(max_examples=50, deadline=None)
@given(TEXT)
def test_a_job_can_be_made_of_any_case_and_condition(text: str) -> None:
    document = job.job(work(case_id=text, condition=text), SETTINGS)
    assert all(LABEL.fullmatch(value) for value in document["metadata"]["labels"].values())
    assert document["metadata"]["annotations"]["cellwise.dev/condition"] == text
    assert orjson.loads(orjson.dumps(document)) == document


def test_a_short_plain_name_is_its_own_label() -> None:
    assert slug("explicit-description") == "explicit-description"
    assert slug("Öl wechseln!") == "Ol-wechseln-76151c5b"
    assert len(slug("x" * 200)) == 63
