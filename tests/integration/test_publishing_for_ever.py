"""What a team can rely on from ``cellwise publish --follow`` and ``cellwise migrate``: every matrix comes to Phoenix by
itself, whatever was away for a while, and both say at once what can never work."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from recorded_trial import eventually
from studies import Bench, Command

from grading.phoenix_server import EmbeddedPhoenix
from grading.store import Store, reading
from tests.integration.phoenix_fixture import own_phoenix_folder, phoenix_server, shown

__all__ = ["own_phoenix_folder", "phoenix_server"]

PASSED = {"descriptive-control": 8, "first-record-mutant": 2}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Followed:
    """A publisher of a bench's store, ended when the test is."""

    def __init__(self, bench: Bench, url: str, *options: str) -> None:
        self.port = free_port()
        self.process: Command = bench.start(
            "publish", "--follow", "--phoenix", url, "--health-port", str(self.port), *options
        )

    def health(self, path: str) -> tuple[int, str]:
        try:
            found = httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5, trust_env=False)
        except httpx.TransportError as error:
            return 0, str(error)
        return found.status_code, found.text.strip()

    def end(self) -> str:
        """What it told, after SIGTERM has ended it well."""
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, out) == (0, ""), err
        return err


@pytest.fixture
def follow(request: pytest.FixtureRequest) -> Callable[..., Followed]:
    def start(bench: Bench, url: str, *options: str) -> Followed:
        followed = Followed(bench, url, *options)
        request.addfinalizer(lambda: followed.process.send_signal(signal.SIGKILL))
        return followed

    return start


def states(store: str, url: str) -> list[str | None]:
    """Of every matrix: whether it is published there."""
    with Store.open(store, create=False) as opened:
        there = reading.publications_to(opened, url)
        return [there[one.id].state if one.id in there else None for one in reading.matrices(opened)]


def dataset(store: str, name: str) -> str:
    """What Phoenix calls a matrix's dataset."""
    with Store.open(store, create=False) as opened:
        matrix = reading.find_matrix(opened, name)
        return f"{matrix.name} {matrix.manifest_hash.removeprefix('sha256:')[:12]}"


def contract(url: str, name: str) -> dict[str, float]:
    """By experiment: the contracts that passed in what Phoenix shows."""
    return {
        experiment: sum(
            given["score"] for run in found["exported"] for given in run["annotations"] if given["name"] == "contract"
        )
        for experiment, found in shown(url, name)["experiments"].items()
    }


def test_every_matrix_comes_to_phoenix_by_itself(
    store_url: str, tmp_path: Path, phoenix_server: EmbeddedPhoenix, follow: Callable[..., Followed]
) -> None:
    bench = Bench(tmp_path, store_url)
    bench.cellwise("migrate")
    followed = follow(bench, phoenix_server.url, "--shown-at", "https://phoenix.example/team/")
    assert eventually(lambda: followed.health("/readyz") == (200, "ready"), 60)
    bench.run("order-resolution")
    bench.run("native-semantic")
    assert eventually(lambda: states(store_url, phoenix_server.url) == ["published"] * 4, 120)
    assert followed.health("/healthz") == (200, "alive")
    told = followed.end()
    assert contract(phoenix_server.url, dataset(store_url, "order-resolution")) == PASSED
    assert contract(phoenix_server.url, dataset(store_url, "native-first-record")) == {"baseline": 8, "candidate": 2}
    assert told.count("order-resolution: published: https://phoenix.example/team/datasets/") == 1
    assert told.splitlines()[-1] == "cellwise: ended"


def test_a_matrix_that_was_run_without_its_judge_is_judged_before_it_is_published(
    tmp_path: Path, phoenix_server: EmbeddedPhoenix, follow: Callable[..., Followed]
) -> None:
    bench = Bench(tmp_path, str(tmp_path / "store.db"))
    bench.run("native-semantic")
    with bench.opened() as store, store.transaction("grade") as connection:
        # As a cluster leaves it, where trials are graded and the publisher alone judges.
        connection.exec_driver_sql("DELETE FROM judgment")
    registry = Path(__file__).resolve().parents[2] / "grading" / "studies" / "native-semantic" / "registry.yaml"
    followed = follow(bench, phoenix_server.url, "--registry", str(registry))
    assert eventually(lambda: states(bench.store, phoenix_server.url) == ["published"] * 3, 120)
    followed.end()
    joint = {
        name: sum(
            given["score"]
            for run in experiment["exported"]
            for given in run["annotations"]
            if given["name"] == "joint" and given["score"] is not None
        )
        for name, experiment in shown(phoenix_server.url, dataset(bench.store, "native-false-settlement"))[
            "experiments"
        ].items()
    }
    assert joint == {"baseline": 8, "candidate": 0}


def test_a_judge_that_no_registry_tells_about_is_not_asked_and_the_rest_is_shown(
    tmp_path: Path, phoenix_server: EmbeddedPhoenix, follow: Callable[..., Followed]
) -> None:
    bench = Bench(tmp_path, str(tmp_path / "store.db"))
    bench.run("native-semantic")
    followed = follow(bench, phoenix_server.url)
    assert eventually(lambda: states(bench.store, phoenix_server.url) == ["published"] * 3, 120)
    told = followed.end()
    assert "native-control: not judged: its judge is to count by the calibration sha256:" in told
    assert "Traceback" not in told


def test_phoenix_may_come_later_and_go_away(
    tmp_path: Path, own_phoenix_folder: Path, follow: Callable[..., Followed]
) -> None:
    bench = Bench(tmp_path, str(tmp_path / "store.db"))
    bench.run("order-resolution")
    with EmbeddedPhoenix(own_phoenix_folder) as server:
        server.wait()
        url = server.url
    followed = follow(bench, url)
    assert eventually(
        lambda: followed.health("/readyz")[0] == 503 and "not available" in followed.health("/readyz")[1], 60
    )
    assert followed.health("/healthz") == (200, "alive")
    with EmbeddedPhoenix(own_phoenix_folder) as server:
        server.wait()
        assert server.url == url
        assert eventually(lambda: states(bench.store, url) == ["published"], 180)
        assert contract(url, dataset(bench.store, "order-resolution")) == PASSED
        assert eventually(lambda: followed.health("/readyz") == (200, "ready"), 60)
    told = followed.end()
    assert told.count("waiting: Phoenix at ") == 1
    assert "store and Phoenix answer again" in told


def test_the_store_may_come_later(
    tmp_path: Path, phoenix_server: EmbeddedPhoenix, follow: Callable[..., Followed]
) -> None:
    away = f"postgresql://cellwise@127.0.0.1:{free_port()}/cellwise?connect_timeout=2"
    followed = follow(Bench(tmp_path, away), phoenix_server.url)
    assert eventually(lambda: "the server cannot be reached" in followed.health("/readyz")[1], 60)
    assert followed.process.poll() is None
    told = followed.end()
    assert told.count("waiting: ") == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--follow"], "--follow publishes into a Phoenix that others keep up: give its --phoenix URL, not embedded"),
        (["--follow", "--phoenix", "off"], "give its --phoenix URL, not off"),
        (["--follow", "order-resolution"], "it takes no MATRIX"),
        (["--follow", "--phoenix", "http://x:1", "--shown-at", "phoenix"], "--shown-at phoenix: write a URL"),
        (["--follow", "--phoenix", "http://x:1", "--registry", "none.yaml"], "none.yaml"),
        (["--phoenix", "http://x:1", "--registry", "none.yaml"], "go with --follow"),
        (["--follow", "--phoenix", "http://x:1", "--health-port", "0"], "--health-port"),
        (["--follow", "--phoenix", "http://x:1"], "there is no store here: cellwise migrate makes one"),
    ],
)
def test_what_can_never_work_is_said_at_once(tmp_path: Path, options: list[str], told: str) -> None:
    _, err = Bench(tmp_path, str(tmp_path / "store.db")).cellwise("publish", *options, status=2)
    assert told in " ".join(err.split())
    assert list(tmp_path.glob("store.db*")) == []


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, str(tmp_path / "store.db"))
    bench.cellwise("migrate")
    with socket.create_server(("", 0)) as listener:
        port = str(listener.getsockname()[1])
        _, err = bench.cellwise("publish", "--follow", "--phoenix", "http://x:1", "--health-port", port, status=2)
    assert err == f"cellwise: --health-port {port} cannot be used: Address already in use\n"


def test_migrate_makes_the_tables_and_again_changes_nothing(store_url: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_url)
    first, _ = bench.cellwise("migrate")
    again, _ = bench.cellwise("migrate")
    assert first == again
    assert first.rstrip().endswith(")")
    with bench.opened() as store:
        assert reading.matrices(store) == []


def test_many_migrations_at_once_follow_each_other(store_url: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, store_url)
    started = [bench.start("migrate") for _ in range(6)]
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 6, ended


def test_migrate_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    away = f"postgresql://cellwise@127.0.0.1:{free_port()}/cellwise"
    bench = Bench(tmp_path, away)
    _, err = bench.cellwise("migrate", "--wait", "3", status=1)
    assert err.startswith("cellwise: waiting up to 3 s: ")
    assert "the server cannot be reached" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("mysql://x/y", "a store is a SQLite file or a PostgreSQL database, nothing else"),
        ("postgresql://x:port/y", "write postgresql://user@host:port/database"),
    ],
)
def test_migrate_does_not_wait_for_what_can_never_be_a_store(tmp_path: Path, store: str, told: str) -> None:
    _, err = Bench(tmp_path, store).cellwise("migrate", "--wait", "60", status=2)
    assert told in err
