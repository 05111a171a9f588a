"""What the controller may rely on when the API server refuses, limits, is killed or forgets: real HTTP, by kmock."""

import time
from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster, Refusal
from kubernetes import client

from k8s.api import Api, ApiError, Expired
from k8s.lease import Lease
from k8s.mirror import Mirror

JOBS = "/apis/batch/v1/namespaces/cells/jobs"
PODS = "/api/v1/namespaces/cells/pods"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        yield running


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def api(cluster: FakeCluster, pauses: list[float]) -> Iterator[Api]:
    opened = Api(cluster.configuration(), sleep=pauses.append)
    yield opened
    opened.close()


def eventually(question: object, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if question():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def pod(name: str, **labels: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": {}}


def test_a_limited_request_waits_as_long_as_the_server_says(
    cluster: FakeCluster, api: Api, pauses: list[float]
) -> None:
    limited = Refusal(429, "TooManyRequests", Retry_After="7")
    cluster.fail_once("GET", PODS, limited, times=2)
    assert api.get(PODS)["items"] == []
    assert pauses == [7.0, 7.0]


def test_a_failing_server_is_asked_again_with_growing_pauses(
    cluster: FakeCluster, api: Api, pauses: list[float]
) -> None:
    cluster.fail_once("POST", JOBS, 500, times=3)
    made = api.create(JOBS, {"metadata": {"name": "one"}})
    assert made["metadata"]["name"] == "one"
    assert cluster.count("POST", JOBS) == 4
    for pause, longest in zip(pauses, (0.1, 0.2, 0.4), strict=True):
        assert longest / 2 <= pause <= longest


def test_a_failing_server_is_not_asked_for_ever(cluster: FakeCluster) -> None:
    cluster.fail_once("GET", PODS, 503, times=10_000)
    api = Api(cluster.configuration(), patience_seconds=0.5)
    began = time.monotonic()
    with pytest.raises(ApiError) as refused:
        api.get(PODS)
    assert refused.value.status == 503
    assert time.monotonic() - began < 2


def test_a_server_that_is_not_there_is_an_api_error(pauses: list[float]) -> None:
    configuration = client.Configuration()
    configuration.host = "http://127.0.0.1:9"
    with pytest.raises(ApiError, match="Unreachable") as refused:
        Api(configuration, sleep=pauses.append, patience_seconds=0.5).get(PODS)
    assert refused.value.status == 0
    assert pauses


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_a_refusal_is_not_asked_again(cluster: FakeCluster, api: Api, pauses: list[float], status: int) -> None:
    cluster.fail_once("POST", JOBS, Refusal(status, "Because", "no"))
    with pytest.raises(ApiError, match=r"^Because: no$") as refused:
        api.create(JOBS, {"metadata": {"name": "one"}})
    assert (refused.value.status, refused.value.reason) == (status, "Because")
    assert pauses == []


def test_a_list_is_read_page_by_page(cluster: FakeCluster, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8s.api._PAGE", 2)
    for number in range(5):
        cluster.put("pods", pod(f"pod-{number}"))
    found, version = api.list_all(PODS)
    assert [one["metadata"]["name"] for one in found] == [f"pod-{number}" for number in range(5)]
    assert version == "104"
    assert cluster.count("GET", PODS) == 3


def test_only_the_object_of_that_uid_is_deleted(cluster: FakeCluster, api: Api) -> None:
    made = cluster.put("jobs", {"metadata": {"name": "one"}})
    assert not api.delete(f"{JOBS}/one", "another")
    assert "one" in cluster.objects["jobs"]
    assert api.delete(f"{JOBS}/one", made["metadata"]["uid"])
    assert not api.delete(f"{JOBS}/one", made["metadata"]["uid"])
    assert cluster.objects["jobs"] == {}


def test_a_watch_from_a_version_that_is_forgotten_says_so(cluster: FakeCluster, api: Api) -> None:
    _, version = api.list_all(PODS)
    cluster.put("pods", pod("one"))
    cluster.compact()
    with pytest.raises(Expired):
        list(api.watch(PODS, version))


@pytest.fixture
def mirror(cluster: FakeCluster, api: Api) -> Iterator[Mirror]:
    made = Mirror(api, PODS, [("labelSelector", "app=ours")])
    yield made
    made.stop()
    cluster.cut_watches()


def names(mirror: Mirror) -> set[str]:
    return {one["metadata"]["name"] for one in mirror.objects().values()}


def test_a_mirror_follows_what_is_created_changed_and_deleted(cluster: FakeCluster, mirror: Mirror) -> None:
    cluster.put("pods", pod("before", app="ours"))
    cluster.put("pods", pod("foreign", app="other"))
    mirror.start()
    assert mirror.wait_until_synced(5)
    assert names(mirror) == {"before"}
    after = cluster.put("pods", pod("after", app="ours"))
    assert eventually(lambda: names(mirror) == {"before", "after"})
    cluster.change("pods", "after", status={"phase": "Failed"})
    cluster.remove("pods", "after")
    assert eventually(lambda: names(mirror) == {"before"})
    last = mirror.departed(after["metadata"]["uid"])
    assert last is not None
    assert last["status"] == {"phase": "Failed"}
    assert mirror.relisted == 1


def test_a_watch_that_breaks_goes_on_from_its_last_version(cluster: FakeCluster, mirror: Mirror) -> None:
    mirror.start()
    assert mirror.wait_until_synced(5)
    cluster.put("pods", pod("one", app="ours"))
    assert eventually(lambda: names(mirror) == {"one"})
    cluster.cut_watches()
    cluster.put("pods", pod("two", app="ours"))
    assert eventually(lambda: names(mirror) == {"one", "two"})
    assert mirror.relisted == 1


def test_a_bookmark_keeps_a_quiet_watch_from_expiring(cluster: FakeCluster, mirror: Mirror) -> None:
    mirror.start()
    assert mirror.wait_until_synced(5)
    cluster.put("pods", pod("foreign", app="other"))  # a change that this watch does not see
    time.sleep(0.5)
    cluster.compact()
    cluster.cut_watches()
    cluster.put("pods", pod("one", app="ours"))
    assert eventually(lambda: names(mirror) == {"one"})
    assert mirror.relisted == 1


def test_a_mirror_lists_again_where_the_server_forgot(cluster: FakeCluster, mirror: Mirror) -> None:
    cluster.bookmarks = False
    gone = cluster.put("pods", pod("gone", app="ours"))
    mirror.start()
    assert mirror.wait_until_synced(5)
    cluster.faults.append(lambda request: 503 if request.params.get("watch") else None)
    cluster.cut_watches()
    cluster.remove("pods", "gone")
    cluster.put("pods", pod("new", app="ours"))
    cluster.compact()
    cluster.faults.clear()
    assert eventually(lambda: names(mirror) == {"new"})
    assert mirror.relisted == 2
    assert mirror.departed(gone["metadata"]["uid"]) is not None


def test_an_own_write_is_known_before_its_event_and_not_after_its_end(cluster: FakeCluster, mirror: Mirror) -> None:
    mirror.start()
    assert mirror.wait_until_synced(5)
    made = cluster.put("pods", pod("one", app="ours"))
    assert eventually(lambda: names(mirror) == {"one"})
    cluster.remove("pods", "one")
    assert eventually(lambda: names(mirror) == set())
    mirror.put(made)
    assert names(mirror) == set()
    mirror.put({"metadata": {"name": "two", "uid": "uid-two", "resourceVersion": "7"}})
    assert names(mirror) == {"two"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def bid(api: Api, clock: Clock, identity: str) -> Lease:
    return Lease(api, "ns", "controller", identity, clock=clock)


def test_one_of_two_holds_the_lease_until_it_stops_renewing(cluster: FakeCluster, api: Api) -> None:
    clock = Clock()
    one, other = bid(api, clock, "one"), bid(api, clock, "other")
    assert (one.bid(), other.bid()) == (True, False)
    clock.now += 10
    assert (one.bid(), other.bid()) == (True, False)
    clock.now += 14
    assert one.held
    assert not other.bid()
    clock.now += 2
    assert not one.held
    assert other.bid()
    assert not one.bid()
    assert cluster.objects["leases"]["controller"]["spec"]["leaseTransitions"] == 1


def test_a_released_lease_is_taken_at_once(cluster: FakeCluster, api: Api) -> None:
    clock = Clock()
    one, other = bid(api, clock, "one"), bid(api, clock, "other")
    one.bid()
    assert not other.bid()
    one.release()
    assert not one.held
    assert other.bid()
    assert cluster.objects["leases"]["controller"]["spec"]["holderIdentity"] == "other"


def test_who_releases_late_does_not_take_the_lease_from_its_holder(cluster: FakeCluster, api: Api) -> None:
    clock = Clock()
    one, other = bid(api, clock, "one"), bid(api, clock, "other")
    one.bid()
    other.bid()
    clock.now += 16
    other.bid()
    one.release()
    assert other.bid()
    assert cluster.objects["leases"]["controller"]["spec"]["holderIdentity"] == "other"


def test_of_two_that_take_over_at_once_one_succeeds(cluster: FakeCluster, api: Api) -> None:
    clock = Clock()
    bid(api, clock, "gone").bid()
    one, other = bid(api, clock, "one"), bid(api, clock, "other")
    assert (one.bid(), other.bid()) == (False, False)
    clock.now += 16
    # Between the look and the write of the one, the other writes.
    real = api.replace

    def overtaken(path: str, body: object) -> dict[str, object]:
        api.replace = real  # type: ignore[method-assign]
        assert other.bid()
        return real(path, body)  # type: ignore[arg-type]

    api.replace = overtaken  # type: ignore[assignment,method-assign]
    assert not one.bid()
    assert (one.held, other.held) == (False, True)
