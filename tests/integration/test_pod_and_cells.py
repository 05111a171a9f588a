"""The recorder's process against the intake's own cells port, over HTTP and a real store."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cells import CONTROL, Cluster, manifest_of
from pod_bench import Pod

from grading.store import Store, reading


@contextmanager
def served(cluster: Cluster) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(cluster.app(), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize(("repetitions", "per_pod"), [(2, 1), (20, 20)])
def test_a_pod_delivers_its_trials_and_each_is_graded_once(
    store_url: str, tmp_path: Path, repetitions: int, per_pod: int
) -> None:
    with Store.open(store_url) as store:
        cluster = Cluster(store, manifest_of(repetitions=repetitions), per_pod=per_pod)
        launch = cluster.launch()
        with served(cluster) as url:
            for index in range(repetitions // per_pod):
                token = cluster.pod(launch, index, name=f"pod-{index}")
                (tmp_path / "token").write_text(token)
                environ: dict[str, str | None] = {"CELLWISE_LAUNCH": launch.id, "JOB_COMPLETION_INDEX": str(index)}
                pod = Pod(tmp_path, url, environ)
                assert pod.ended() == 0, pod.said
                assert [line["outcome"] for line in pod.said[:-1]] == ["accepted"] * per_pod
        trials: list[Any] = list(
            reading.trials(store, cluster.matrix_id, cell_ids=[cluster.cells[CONTROL, cluster.case]], grades=True)
        )
        assert [(one.state, one.attempt, [grade.verdict for grade in one.grades]) for one in trials] == [
            ("graded", 1, ["passed"])
        ] * repetitions
        assert list(reading.incidents(store)) == []


def test_a_pod_that_is_none_of_the_launch_ends_in_78_or_75(store_url: str, tmp_path: Path) -> None:
    with Store.open(store_url) as store:
        cluster = Cluster(store, manifest_of())
        launch, other = cluster.launch(), cluster.launch(case=cluster.manifest.cases[1].id)
        (tmp_path / "token").write_text(cluster.pod(other))
        with served(cluster) as url:
            pod = Pod(tmp_path, url, {"CELLWISE_LAUNCH": launch.id, "CELLWISE_RETRY_SECONDS": "1"})
            assert pod.ended() == 78
            assert pod.reason.startswith("/v1/assignment: answered 403: ")
            (tmp_path / "token").write_text("forged")
            pod = Pod(tmp_path, url, {"CELLWISE_LAUNCH": launch.id, "CELLWISE_RETRY_SECONDS": "1"})
            assert pod.ended() == 75
            assert pod.reason.startswith("the intake is lost: /v1/assignment: answered 401: ")
