"""What an operator sets for the intake and the controller of a release: one YAML file, which the chart writes.

The store's address alone comes from the environment (``CELLWISE_STORE``), since it may hold a password.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from grading.file_error import FileError
from grading.yaml_file import load
from simulator.model import WireModel

FILE_VARIABLE = "CELLWISE_SETTINGS"
DEFAULT_FILE = Path("/etc/cellwise/settings.yaml")
STORE_VARIABLE = "CELLWISE_STORE"
TRIAL_IMAGE_VARIABLE = "CELLWISE_TRIAL_IMAGE"
"""Set, it counts in place of the file's: a tool that builds images can replace a variable, and not a line in a file."""

_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
DnsLabel = Annotated[str, Field(pattern=_LABEL)]
"""A name of RFC 1123, as namespaces have them."""
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
"""A name of most other objects."""
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")]
"""An amount as Kubernetes writes it, such as 250m or 256Mi."""
Seconds = Annotated[int, Field(ge=1, le=604_800)]


class Resources(WireModel):
    """What a container asks for, and may use at most."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class CellSettings(WireModel):
    """The pods of the cells."""

    resources: Resources = Resources()
    """Of the recorder."""
    agent_resources: Resources = Resources()
    """Of an agent in an image of its own."""
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, JsonValue]] = []
    active_deadline_seconds: Seconds = 3600
    """After which the cluster ends a pod that ended in no other way."""
    priority_class: str | None = None
    run_as_user: Annotated[int, Field(ge=1, le=2**31 - 1)] = 65532
    pod_labels: dict[str, str] = {}
    tmp_size: Quantity = "256Mi"
    """Of each container's /tmp: a pod that writes more is evicted, which is its agent's overrun."""
    agent_env_secret: DnsName | None = None
    """The Secret whose keys are the variables that conditions name."""


class Settings(WireModel):
    """All of it."""

    version: Literal[1] = 1
    namespace: DnsLabel
    """Of the release."""
    cells_namespace: DnsLabel
    """Where the cells' Jobs are, and nothing else."""
    intake_url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+$")]
    """The intake's cells port, as pods reach it."""
    trial_image: Annotated[str, Field(min_length=1)]
    """By digest, but for development."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    cells_service_account: DnsName = "cellwise-cells"
    lease_name: DnsName = "cellwise-controller"
    jobs_in_flight: Annotated[int, Field(ge=1, le=10_000)] = 50
    provider_limits: dict[str, Annotated[int, Field(ge=1)]] = {}
    """By provider: trials at a time, over all matrices."""
    cell: CellSettings = CellSettings()
    queue: DnsName | None = None
    """The Kueue LocalQueue of matrices that name none."""
    stuck_terminating_seconds: Seconds = 300
    """After which the trial of a pod that cannot be ended is run by another one."""
    refused_seconds: Seconds = 300
    """After which a cell fails whose pods a quota keeps out while nothing of ours runs that could make room."""
    recorded_job_seconds: Annotated[int, Field(ge=0, le=604_800)] = 600
    """How long a Job stays to be looked at once all of it is in the store."""
    job_ttl_seconds: Seconds = 86_400
    reconcile_seconds: Annotated[float, Field(ge=0.05, le=3600, allow_inf_nan=False)] = 1.0
    people_audience: Annotated[str, Field(min_length=1)] = "cellwise-people"
    cells_audience: Annotated[str, Field(min_length=1)] = "cellwise-cells"

    @property
    def lease_seconds(self) -> int:
        """How long a pod's lease of a trial lasts: longer than the pod can, since the controller settles it."""
        return self.cell.active_deadline_seconds + 600


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process.

    Raises:
        FileError: the file cannot be read, or with everything that is wrong in it.
    """
    path = Path(environment.get(FILE_VARIABLE) or DEFAULT_FILE)
    settings = load(path, Settings)
    if image := environment.get(TRIAL_IMAGE_VARIABLE):
        settings = settings.model_copy(update={"trial_image": image})
    if settings.cells_audience == settings.people_audience:
        raise FileError(path, None, None, "cells_audience and people_audience must differ: a pod is no person")
    return settings


def store_address(environment: Mapping[str, str] = os.environ) -> str:
    """The store's address.

    Raises:
        SettingsMissing: where the environment has none.
    """
    address = environment.get(STORE_VARIABLE, "")
    if not address:
        raise SettingsMissing(f"{STORE_VARIABLE} is not set: it holds the store's address, postgresql://user@host/name")
    return address


class SettingsMissing(ValueError):  # noqa: N818 - reads as what is wrong
    """The environment lacks what a process of the release needs."""
