"""cellwise publish and cellwise phoenix: bringing Phoenix up to date, once or for ever, and looking at it."""

import json as json_format
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from grading.commands import UNPUBLISHED, api_key, beside, console, fail, one_matrix, open_store
from grading.store import NoStore, Store, StoreAway, StoreError, reading
from grading.visible import visible

if TYPE_CHECKING:
    from grading.health import Health
    from grading.phoenix_server import EmbeddedPhoenix


@dataclass(slots=True)
class Target:
    """Where to publish: a URL, the store's own Phoenix, or nowhere."""

    url: str | None
    embedded: bool
    """Whether it is the store's own Phoenix."""
    server: "EmbeddedPhoenix | None" = None
    trouble: str | None = None
    """Why the embedded one is not there."""
    up_to_date: reading.Publication | None = None
    """What was published, where nothing has changed since."""

    @classmethod
    def of(cls, word: str) -> "Target":
        """The target that ``--phoenix`` names.

        Raises:
            typer.Exit: it names none.
        """
        if word == "off":
            return cls(None, embedded=False)
        if word == "embedded":
            return cls(None, embedded=True)
        if _is_address(word):
            return cls(word.rstrip("/"), embedded=False)
        raise fail(f"--phoenix {visible(word)}: write embedded, off, or a URL such as http://localhost:6006")

    @property
    def off(self) -> bool:
        return self.url is None and not self.embedded

    @property
    def name(self) -> str:
        """What the store calls it: the port of the embedded one may change."""
        return self.url or "embedded"

    def skip_if_up_to_date(self, store: Store, matrix: reading.Matrix) -> None:
        """Leaves Phoenix alone where everything is there, as far as the store knows: starting it takes a while."""
        known = reading.publications(store, matrix.id)
        self.up_to_date = next((one for one in known if one.target == self.name and one.state == "published"), None)

    @contextmanager
    def starting(self, store: Store) -> Iterator[None]:
        """Starts the embedded Phoenix, which comes up meanwhile, and stops it in the end. A run goes on without it."""
        if self.up_to_date is None:
            self.start(store)
        try:
            yield
        finally:
            if self.server is not None:
                self.server.stop()

    def start(self, store: Store) -> None:
        """Starts the embedded Phoenix unless it was started before."""
        from grading.phoenix_server import EmbeddedPhoenix, PhoenixNotStarted

        if not self.embedded or self.server is not None or self.trouble is not None:
            return
        try:
            self.server = EmbeddedPhoenix(beside(store) / "phoenix")
        except PhoenixNotStarted as error:
            self.trouble = str(error)


def _is_address(word: str) -> bool:
    if not (word.isascii() and word.isprintable()) or {" ", "?", "#"} & set(word):
        return False
    try:
        parts = urlsplit(word)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def publish_to(
    target: Target, store: Store, matrix: reading.Matrix, *, thorough: bool = False
) -> dict[str, Any] | None:
    """Publishes and tells where to look; None, with the reason told, where it could not."""
    from grading.phoenix_server import PhoenixNotStarted
    from grading.publication import BeingPublished, publish_matrix
    from grading.publisher.phoenix import PhoenixRefused, PhoenixUnavailable

    if target.off:
        return None
    if target.up_to_date is not None:
        # It was before this matrix was judged or graded again.
        target.skip_if_up_to_date(store, matrix)
    if target.up_to_date is not None:
        print(f"Published already: {target.up_to_date.detail}{_hint(target)}", file=sys.stderr)
        return {"compare": target.up_to_date.detail, "complete": True}
    target.start(store)
    try:
        if target.trouble is not None:
            raise PhoenixNotStarted(target.trouble)
        with console().status("publishing into Phoenix ...") as shown:

            def waiting(seconds: float) -> None:
                shown.update(f"waiting for Phoenix to come up ({seconds:.0f} s)")

            def publishing(condition: str, done: int, planned: int) -> None:
                shown.update(f"publishing: {condition} {done}/{planned}")

            if target.server is not None:
                target.server.wait(progress=waiting)
            url = target.url or (target.server.url if target.server is not None else "")
            published = publish_matrix(store, matrix, url, api_key=api_key(), progress=publishing, thorough=thorough)
    except (PhoenixNotStarted, PhoenixUnavailable, PhoenixRefused, BeingPublished) as error:
        print(f"cellwise: not published: {error}", file=sys.stderr)
        print(f"cellwise: the results are in the store; later: cellwise publish {matrix.name}", file=sys.stderr)
        return None
    for note in published.notes:
        print(f"cellwise: {note}", file=sys.stderr)
    print(f"Compare in Phoenix: {published.compare_url}{_hint(target)}", file=sys.stderr)
    return {"dataset": published.dataset_url, "compare": published.compare_url, "complete": published.complete}


def _hint(target: Target) -> str:
    return "" if target.url else "  (cellwise phoenix brings it up)"


def publish(word: str | None, *, phoenix: str, thorough: bool, store: str, json: bool) -> None:
    target = Target.of(phoenix)
    if target.off:
        raise fail("--phoenix off publishes nothing: write embedded or a URL")
    with open_store(store) as opened:
        matrix = one_matrix(opened, word)
        with target.starting(opened):
            published = publish_to(target, opened, matrix, thorough=thorough)
    if json:
        print(json_format.dumps({"version": 1, "matrix": matrix.name, "phoenix": published}))
    if published is None:
        raise typer.Exit(UNPUBLISHED)


def follow(*, phoenix: str, registry: Path | None, health_port: int | None, shown_at: str | None, store: str) -> None:
    """Publishes every matrix of the store until SIGTERM or Ctrl-C, which end it between two writes, with status 0."""
    target = Target.of(phoenix)
    if target.url is None:
        raise fail(f"--follow publishes into a Phoenix that others keep up: give its --phoenix URL, not {phoenix}")
    if shown_at is not None and not _is_address(shown_at):
        raise fail(f"--shown-at {visible(shown_at)}: write a URL such as http://localhost:6006")
    if registry is not None:
        from grading.calibration.registry import Registry

        Registry.load(registry)  # a mistake in it is told now, not with the first judge
    from grading.following import Follower
    from grading.health import Health, HealthServer

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    health = Health()

    def tell(line: str) -> None:
        print(f"cellwise: {line}", file=sys.stderr, flush=True)

    with ExitStack() as opened:
        if health_port is not None:
            try:
                opened.enter_context(HealthServer(health, health_port))
            except OSError as error:
                raise fail(f"--health-port {health_port} cannot be used: {error.strerror}") from error
        found = _when_there(store, ended, health, tell)
        if found is None:
            return
        opened.enter_context(found)
        tell(f"publishing every matrix of {found.place} into {target.url}")
        Follower(
            found,
            target.url,
            api_key=api_key(),
            registry=registry,
            shown_at=shown_at,
            ended=ended,
            health=health,
            tell=tell,
        ).run()
    tell("ended")


def _when_there(store: str, ended: threading.Event, health: "Health", tell: Callable[[str], None]) -> Store | None:
    """The store as soon as its server answers; None where this process was asked to end meanwhile.

    Raises:
        typer.Exit: it can never be used.
    """
    told = False
    while not ended.is_set():
        try:
            return Store.open(store, create=False)
        except StoreAway as error:
            if not told:
                tell(f"waiting: {error}")
            told = True
            health.troubled(str(error))
            ended.wait(3.0)
        except NoStore as error:
            raise fail(f"{error}: cellwise migrate makes one") from error
        except StoreError as error:
            raise fail(str(error)) from error
    return None


def keep_up(*, store: str) -> None:
    from grading.phoenix_server import EmbeddedPhoenix, PhoenixNotStarted

    with open_store(store) as opened:
        folder = beside(opened) / "phoenix"
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with EmbeddedPhoenix(folder) as server:
            with console().status("Phoenix is coming up ...") as shown:
                server.wait(progress=lambda seconds: shown.update(f"Phoenix is coming up ({seconds:.0f} s)"))
            print(f"Phoenix: {server.url}  (Ctrl-C ends it)", flush=True)
            try:
                while not ended.wait(2.0):
                    server.ready()
            except KeyboardInterrupt:
                print(file=sys.stderr)
    except PhoenixNotStarted as error:
        raise fail(str(error), 1) from error
