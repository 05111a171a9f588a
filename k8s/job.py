"""The Job of one launch of a cell, built with the kubernetes client's models.

Its status never finishes a trial: only an accepted ledger does. What the Job is for is to run a pod for each index, to
run another one where the first was lost, and to leave behind why.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client

from k8s.settings import CellSettings, Resources, Settings

RECORDER = "recorder"
"""The pod's regular container: it alone holds the token, and its exit code is the pod's."""
AGENT = "agent"
"""The restartable init container of a condition that brings an image of its own."""

NEVER = 78
"""The recorder's exit code for what no further try would mend, and"""
AGAIN = 75
"""for what one may."""

LAUNCH = "cellwise.dev/launch"
"""Label and annotation: the id of the launch."""
MATRIX_ID = "cellwise.dev/matrix-id"
SELECTOR = "app.kubernetes.io/name=cellwise,app.kubernetes.io/component=cell"
"""The labels of every Job of ours and of its pods."""
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"

TOKEN_FILE = "/var/run/secrets/cellwise/token"  # noqa: S105 - a path
TOKEN_SECONDS = 3600
AGENT_SOCKET = "/run/cellwise/agent.sock"
_GRACE_SECONDS = 30
"""SIGTERM until SIGKILL: the agent is ended, what it did is in the journal already."""
_RETRIES_OF_A_TRIAL = 3
_MOST_RETRIES = 60
_LONGEST_LABEL = 63

_OURS = frozenset(
    {
        "CELLWISE_INTAKE", "CELLWISE_LAUNCH", "CELLWISE_POD_NAME", "CELLWISE_POD_UID", "CELLWISE_NODE",
        "CELLWISE_TOKEN_FILE", "CELLWISE_AGENT_SOCKET", "JOB_COMPLETION_INDEX",
    }
)  # fmt: skip


class UnusableCondition(ValueError):  # noqa: N818 - reads as what is wrong
    """A condition of which no pod can be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a Job is for."""

    launch_id: str
    name: str
    """The Job's, a DNS label; its pods add the index and five characters."""
    generation: int
    completions: int
    parallelism: int
    trials_per_pod: int
    matrix_id: int
    matrix: str
    manifest_hash: str
    cell_id: int
    case_id: str
    condition: str
    env: tuple[str, ...] = ()
    """Names of the variables that the agent receives, from the Secret that the settings name."""
    image: str | None = None
    """The agent's, by digest; None where it runs in the recorder's container."""
    queue: str | None = None


def job(work: Work, settings: Settings, intake_address: str | None = None) -> dict[str, Any]:
    """The Job as the API takes it.

    Args:
        intake_address: of the intake's Service, which its pods then need not ask a name server for.

    Raises:
        UnusableCondition: for a variable's name that the pod needs for itself.
    """
    if taken := sorted(_OURS.intersection(work.env)):
        raise UnusableCondition(f"env: {taken[0]} is a variable that the pod sets for its recorder; name it otherwise")
    labels = _labels(work)
    annotations = _annotations(work)
    of_job = labels if work.queue is None else {**labels, KUEUE_QUEUE: work.queue}
    built = client.V1Job(
        api_version="batch/v1",
        kind="Job",
        metadata=client.V1ObjectMeta(
            name=work.name, namespace=settings.cells_namespace, labels=of_job, annotations=annotations
        ),
        spec=client.V1JobSpec(
            completion_mode="Indexed",
            completions=work.completions,
            parallelism=work.parallelism,
            # Intake and the store count tries; this only ends what they do not see.
            backoff_limit_per_index=min(_MOST_RETRIES, _RETRIES_OF_A_TRIAL * work.trials_per_pod),
            pod_failure_policy=_failure_policy(),
            pod_replacement_policy="Failed",
            ttl_seconds_after_finished=settings.job_ttl_seconds,
            # Kueue lets it start.
            suspend=True if work.queue is not None else None,
            template=client.V1PodTemplateSpec(
                metadata=client.V1ObjectMeta(
                    labels={**settings.cell.pod_labels, **labels},
                    annotations=annotations,
                ),
                spec=_pod(work, settings, intake_address),
            ),
        ),
    )
    document: dict[str, Any] = client.ApiClient().sanitize_for_serialization(built)
    return document


def slug(text: str) -> str:
    """A label's value that a person recognises: the same text gives the same one, and two texts hardly ever do."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).strip("-_.")
    if words == text and len(words) <= _LONGEST_LABEL:
        return words
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    shortened = words[: _LONGEST_LABEL - len(mark) - 1].strip("-_.")
    return f"{shortened}-{mark}" if shortened else mark


def _labels(work: Work) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "cellwise",
        "app.kubernetes.io/component": "cell",
        LAUNCH: work.launch_id,
        MATRIX_ID: str(work.matrix_id),
        "cellwise.dev/matrix": slug(work.matrix),
        "cellwise.dev/case": slug(work.case_id),
        "cellwise.dev/condition": slug(work.condition),
    }


def _annotations(work: Work) -> dict[str, str]:
    """The whole texts: nothing expands a ``$(VARIABLE)`` here, as it would in a command or an environment."""
    return {
        LAUNCH: work.launch_id,
        "cellwise.dev/matrix": work.matrix,
        MATRIX_ID: str(work.matrix_id),
        "cellwise.dev/manifest": work.manifest_hash,
        "cellwise.dev/case": work.case_id,
        "cellwise.dev/condition": work.condition,
        "cellwise.dev/generation": str(work.generation),
    }


def _failure_policy() -> client.V1PodFailurePolicy:
    return client.V1PodFailurePolicy(
        rules=[
            client.V1PodFailurePolicyRule(
                action="Ignore",
                on_pod_conditions=[
                    client.V1PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")
                ],
            ),
            client.V1PodFailurePolicyRule(
                action="FailIndex",
                on_exit_codes=client.V1PodFailurePolicyOnExitCodesRequirement(
                    container_name=RECORDER, operator="In", values=[NEVER]
                ),
            ),
        ]
    )


def _pod(work: Work, settings: Settings, intake_address: str | None) -> client.V1PodSpec:
    cell = settings.cell
    aliases = None
    if intake_address is not None:
        host = urlsplit(settings.intake_url).hostname or ""
        aliases = [client.V1HostAlias(ip=intake_address, hostnames=[host])]
    volumes = [
        client.V1Volume(
            name="token",
            projected=client.V1ProjectedVolumeSource(
                default_mode=0o440,
                sources=[
                    client.V1VolumeProjection(
                        service_account_token=client.V1ServiceAccountTokenProjection(
                            audience=settings.cells_audience, expiration_seconds=TOKEN_SECONDS, path="token"
                        )
                    )
                ],
            ),
        ),
        _scratch("tmp", cell.tmp_size),
    ]
    if work.image is not None:
        # Neither shares a disk with the other but the socket's.
        volumes += [_scratch("agent-tmp", cell.tmp_size), _scratch("agent-socket", "1Mi")]
    return client.V1PodSpec(
        restart_policy="Never",
        service_account_name=settings.cells_service_account,
        automount_service_account_token=False,
        enable_service_links=False,
        host_aliases=aliases,
        # A name server's answer that is lost, as while a node starts hundreds of pods, costs a second and not five.
        dns_config=client.V1PodDNSConfig(
            options=[
                client.V1PodDNSConfigOption(name="timeout", value="1"),
                client.V1PodDNSConfigOption(name="attempts", value="5"),
            ]
        ),
        active_deadline_seconds=cell.active_deadline_seconds,
        termination_grace_period_seconds=_GRACE_SECONDS,
        priority_class_name=cell.priority_class,
        node_selector=dict(cell.node_selector) or None,
        tolerations=[_toleration(one) for one in cell.tolerations] or None,
        security_context=client.V1PodSecurityContext(
            run_as_non_root=True,
            run_as_user=cell.run_as_user,
            run_as_group=cell.run_as_user,
            fs_group=cell.run_as_user,
            seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault"),
        ),
        init_containers=[_agent(work, work.image, settings)] if work.image is not None else None,
        containers=[_recorder(work, settings)],
        volumes=volumes,
    )


def _recorder(work: Work, settings: Settings) -> client.V1Container:
    env = [
        _Variable("CELLWISE_INTAKE", settings.intake_url),
        _Variable("CELLWISE_LAUNCH", work.launch_id),
        _Variable("CELLWISE_TOKEN_FILE", TOKEN_FILE),
    ]
    mounts = [
        client.V1VolumeMount(name="token", mount_path=TOKEN_FILE.rpartition("/")[0], read_only=True),
        client.V1VolumeMount(name="tmp", mount_path="/tmp"),  # noqa: S108 - an emptyDir of this container alone
    ]
    if work.image is not None:
        env.append(_Variable("CELLWISE_AGENT_SOCKET", AGENT_SOCKET))
        mounts.append(_socket_mount())
    own = [*(variable.built() for variable in env), *_of_the_pod()]
    return client.V1Container(
        name=RECORDER,
        image=settings.trial_image,
        image_pull_policy=settings.image_pull_policy,
        command=["python", "-m", "simulator.pod"],
        # With an image of its own, the agent receives them there and the recorder does not.
        env=own if work.image is not None else [*_of_the_condition(work.env, settings.cell), *own],
        resources=_resources(settings.cell.resources),
        security_context=_restricted(),
        termination_message_policy="FallbackToLogsOnError",
        volume_mounts=mounts,
    )


def _agent(work: Work, image: str, settings: Settings) -> client.V1Container:
    return client.V1Container(
        name=AGENT,
        image=image,
        image_pull_policy=settings.image_pull_policy,
        restart_policy="Always",
        command=["python", "-m", "simulator.agent_container"],
        env=[
            *_of_the_condition(work.env, settings.cell),
            _Variable("CELLWISE_AGENT_SOCKET", AGENT_SOCKET).built(),
        ],
        resources=_resources(settings.cell.agent_resources),
        security_context=_restricted(),
        termination_message_policy="FallbackToLogsOnError",
        volume_mounts=[
            client.V1VolumeMount(name="agent-tmp", mount_path="/tmp"),  # noqa: S108 - an emptyDir of its own
            _socket_mount(),
        ],
    )


@dataclass(frozen=True, slots=True)
class _Variable:
    name: str
    value: str

    def built(self) -> client.V1EnvVar:
        # Kubernetes would put a variable's value in the place of $(NAME).
        return client.V1EnvVar(name=self.name, value=self.value.replace("$", "$$"))


def _of_the_pod() -> Iterable[client.V1EnvVar]:
    for name, path in (
        ("CELLWISE_POD_NAME", "metadata.name"),
        ("CELLWISE_POD_UID", "metadata.uid"),
        ("CELLWISE_NODE", "spec.nodeName"),
    ):
        source = client.V1EnvVarSource(field_ref=client.V1ObjectFieldSelector(field_path=path))
        yield client.V1EnvVar(name=name, value_from=source)


def _of_the_condition(names: Iterable[str], cell: CellSettings) -> list[client.V1EnvVar]:
    """By reference to the Secret: the values are in no Job, no store and no log."""
    if cell.agent_env_secret is None:
        return []
    return [
        client.V1EnvVar(
            name=name,
            value_from=client.V1EnvVarSource(
                secret_key_ref=client.V1SecretKeySelector(name=cell.agent_env_secret, key=name, optional=True)
            ),
        )
        for name in names
    ]


def _resources(given: Resources) -> client.V1ResourceRequirements:
    return client.V1ResourceRequirements(requests=given.requests or None, limits=given.limits or None)


def _toleration(given: Mapping[str, Any]) -> client.V1Toleration:
    built = client.V1Toleration.from_dict(dict(given))
    assert built is not None
    return built


def _restricted() -> client.V1SecurityContext:
    return client.V1SecurityContext(
        allow_privilege_escalation=False,
        read_only_root_filesystem=True,
        run_as_non_root=True,
        capabilities=client.V1Capabilities(drop=["ALL"]),
        seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault"),
    )


def _scratch(name: str, size: str) -> client.V1Volume:
    return client.V1Volume(name=name, empty_dir=client.V1EmptyDirVolumeSource(size_limit=size))


def _socket_mount() -> client.V1VolumeMount:
    return client.V1VolumeMount(name="agent-socket", mount_path=AGENT_SOCKET.rpartition("/")[0])
