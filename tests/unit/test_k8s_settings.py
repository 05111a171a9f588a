"""The settings of a release: read strictly, with every problem at its line."""

from pathlib import Path

import pytest

from grading.file_error import FileError
from k8s.settings import Settings, SettingsMissing, read_settings, store_address

LEAST = """\
version: 1
namespace: cellwise
cells_namespace: cellwise-cells
intake_url: http://cellwise-intake.cellwise.svc:8080
trial_image: registry.example/cellwise/trial@sha256:0000
"""


def settings_of(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return read_settings({"CELLWISE_SETTINGS": str(path)})


def test_what_is_not_set_has_the_documented_value(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, LEAST)
    assert (settings.jobs_in_flight, settings.stuck_terminating_seconds, settings.job_ttl_seconds) == (50, 300, 86_400)
    assert (settings.cells_audience, settings.people_audience) == ("cellwise-cells", "cellwise-people")
    assert (settings.reconcile_seconds, settings.queue, settings.cell.active_deadline_seconds) == (1.0, None, 3600)
    assert settings.lease_seconds == 3600 + 600


def test_everything_can_be_set(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        LEAST
        + """\
image_pull_policy: Never
cells_service_account: cells
lease_name: the-lease
jobs_in_flight: 7
provider_limits: {openai: 3}
cell:
  resources: {requests: {cpu: 50m, memory: 96Mi}, limits: {ephemeral-storage: 1Gi}}
  agent_resources: {limits: {memory: 512Mi}}
  node_selector: {pool: spot}
  tolerations: [{key: spot, operator: Exists, effect: NoSchedule}]
  active_deadline_seconds: 120
  priority_class: low
  run_as_user: 1000
  pod_labels: {team: support}
  agent_env_secret: agent-env
queue: research
stuck_terminating_seconds: 30
job_ttl_seconds: 60
reconcile_seconds: 2
people_audience: p
cells_audience: c
""",
    )
    assert settings.provider_limits == {"openai": 3}
    assert settings.cell.resources.requests == {"cpu": "50m", "memory": "96Mi"}
    assert settings.cell.tolerations == [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]
    assert (settings.cell.agent_env_secret, settings.cell.run_as_user, settings.queue) == (
        "agent-env",
        1000,
        "research",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("jobs_in_fligth: 3", "jobs_in_fligth.*did you mean 'jobs_in_flight'"),
        ("jobs_in_flight: 0", "jobs_in_flight.*must be at least 1"),
        ("cell: {run_as_user: 0}", "run_as_user"),
        ("cell: {resources: {requests: {cpu: lots}}}", "cpu"),
        ("image_pull_policy: Sometimes", "image_pull_policy"),
        ("cells_audience: cellwise-people", "must differ"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        settings_of(tmp_path, LEAST + line + "\n")


def test_without_a_file_or_a_store_it_says_which(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"absent\.yaml"):
        read_settings({"CELLWISE_SETTINGS": str(tmp_path / "absent.yaml")})
    with pytest.raises(SettingsMissing, match="CELLWISE_STORE is not set"):
        store_address({})
    assert store_address({"CELLWISE_STORE": "postgresql://a@b/c"}) == "postgresql://a@b/c"
