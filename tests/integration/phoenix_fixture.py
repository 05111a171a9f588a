"""A real Phoenix for tests: one server for the whole session, and the raw reading of what it shows."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from grading.phoenix_server import EmbeddedPhoenix, PhoenixNotStarted, executable

REQUIRE_ALL = "CELLWISE_TEST_REQUIRE_ALL"


def require_phoenix() -> None:
    """Skips where no Phoenix is installed, and fails instead where nothing may be skipped."""
    try:
        executable()
    except PhoenixNotStarted as error:
        if os.environ.get(REQUIRE_ALL) == "1":
            raise
        pytest.skip(f"no Phoenix: {error}")


@pytest.fixture(scope="session")
def phoenix_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPhoenix]:
    require_phoenix()
    with EmbeddedPhoenix(tmp_path_factory.mktemp("phoenix")) as server:
        server.wait()
        yield server


@pytest.fixture
def own_phoenix_folder(tmp_path: Path) -> Path:
    """A folder for a test that kills or wipes its Phoenix."""
    require_phoenix()
    return tmp_path / "phoenix"


def shown(url: str, dataset: str) -> dict[str, Any]:
    """All that Phoenix shows of one dataset, read without the code under test."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:

        def get(path: str, **params: Any) -> Any:
            return http.get(path, params=params).raise_for_status().json()["data"]

        datasets = get("/v1/datasets", name=dataset)
        assert len(datasets) == 1
        examples = get(f"/v1/datasets/{datasets[0]['id']}/examples")["examples"]
        experiments = {}
        for experiment in get(f"/v1/datasets/{datasets[0]['id']}/experiments"):
            identity = experiment["id"]
            runs = get(f"/v1/experiments/{identity}/runs")
            exported = http.get(f"/v1/experiments/{identity}/json")
            project = experiment["project_name"]
            experiments[experiment["name"]] = {
                **experiment,
                "runs": runs,
                "exported": exported.json() if exported.status_code == 200 else [],
                "traces": get(f"/v1/projects/{project}/traces", limit=1000, include_spans=True),
                "tags": [tag["name"] for tag in get(f"/v1/experiments/{identity}/tags")],
            }
        names = [project["name"] for project in get("/v1/projects", include_experiment_projects=True, limit=1000)]
        return {"dataset": datasets[0], "examples": examples, "experiments": experiments, "projects": names}
