"""How much of its time a publisher takes for a matrix that runs, and when it comes to one that has ended."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from grading import following
from grading.following import Follower
from grading.health import Health
from grading.publisher.phoenix import PhoenixUnavailable
from grading.publisher.reconcile import Counts, Published
from grading.store import Store, reading

URL = "http://phoenix.invalid:6006"
TOOK = 6.0
"""Seconds that publishing takes here."""


class World:
    """A store with one matrix, of which something changes all the time, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.matrix = reading.Matrix(1, "sha256:" + "a" * 64, "refunds", "running", 0)
        self.changes = 0
        self.published: list[float] = []
        self.health = Health()
        self.phoenix_is_away = False
        self.was_ready: list[bool] = []

    def check(self) -> None:
        """Phoenix's part."""
        if self.phoenix_is_away:
            raise PhoenixUnavailable("away")

    def publications_to(self, *_: Any) -> dict[int, reading.Publication]:
        self.changes += 1
        return {1: reading.Publication(1, URL, "stale", self.changes, None, None, f"{URL}/compare")}

    def publish_matrix(self, *_: Any, **__: Any) -> Published:
        self.published.append(self.now)
        self.was_ready.append(self.health.is_ready)
        self.now += TOOK
        complete = self.matrix.state == "complete"
        return Published(f"{URL}/dataset", f"{URL}/compare", Counts(), (), complete=complete)

    def look(self, follower: Follower, *, until: float) -> None:
        while self.now < until:
            follower.round()
            self.now += 1.0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(reading, "publications_to", world.publications_to)
    monkeypatch.setattr(reading, "matrices", lambda _: [world.matrix])
    monkeypatch.setattr(following, "publish_matrix", world.publish_matrix)
    monkeypatch.setattr(following, "registered_manifest", lambda *_: SimpleNamespace(judge=None))
    monkeypatch.setattr(following, "PING_SECONDS", float("inf"))
    monkeypatch.setattr(following, "Phoenix", lambda *_, **__: nullcontext(world))
    return world


@pytest.fixture
def follower(world: World) -> Follower:
    return Follower(
        cast("Store", None), URL, api_key=None, registry=None, shown_at=None, ended=threading.Event(),
        health=world.health, tell=lambda _: None, clock=lambda: world.now,
    )  # fmt: skip


def test_a_matrix_that_runs_is_published_for_a_tenth_of_the_time(world: World, follower: Follower) -> None:
    world.look(follower, until=1600.0)
    assert world.published[:3] == [1000.0, 1060.0, 1120.0]
    assert len(world.published) * TOOK == pytest.approx(60.0)


def test_one_that_has_ended_is_published_at_once_and_then_no_more_often_than_before(
    world: World, follower: Follower
) -> None:
    world.look(follower, until=1010.0)
    world.matrix = replace(world.matrix, state="complete")
    ended = world.now
    world.look(follower, until=1060.0)
    assert world.published == [1000.0, ended, ended + 3 * TOOK, ended + 6 * TOOK]


def test_it_is_ready_before_it_publishes_and_not_while_phoenix_is_away(world: World, follower: Follower) -> None:
    world.phoenix_is_away = True
    with pytest.raises(PhoenixUnavailable):
        follower.round()
    assert (world.published, world.health.is_ready) == ([], False)
    world.phoenix_is_away = False
    follower.round()
    assert world.was_ready == [True]
