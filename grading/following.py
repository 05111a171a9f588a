"""Publishing for ever: every matrix of a store is kept up to date in one Phoenix, judged before where it has a judge.

The store says what changed since it was published, so a round in which nothing did costs two queries. What the store
holds for published is compared with Phoenix now and then all the same: somebody may have emptied it.
"""

import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grading.file_error import FileError
from grading.health import Health
from grading.judge.openai import JudgeMisconfigured
from grading.judge.qualification import Qualification, Uncalibrated
from grading.judging import Judged, judge_matrix
from grading.planning import registered_manifest
from grading.publication import LEASE_SECONDS, BeingPublished, publish_matrix
from grading.publisher.phoenix import Phoenix, PhoenixRefused, PhoenixUnavailable
from grading.store import NotFound, Store, StoreError, owners, reading

ROUND_SECONDS = 2.0
"""Between two looks at the store."""
PING_SECONDS = 15.0
"""Between two small questions to a Phoenix that gets nothing else."""
CHECK_SECONDS = 3600.0
"""After which a matrix that is published is compared with Phoenix again."""
SHARE_OF_RUNNING = 0.1
"""Of its time, that a matrix which still runs is published: what shows its trials must not slow them down."""
UNFINISHED_SECONDS = 30.0
"""The same for one of which not all could be shown yet, though nothing has changed."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""After a failure of the store or of Phoenix, doubled each time, with a random part."""
LONGEST_MATRIX_PAUSE = 600.0
"""The same for what is wrong with one matrix alone."""


class _Ended(Exception):  # noqa: N818 - named after the condition
    """The process was asked to end: it does between two writes."""


@dataclass(slots=True)
class _Followed:
    """What this process knows of one matrix."""

    version: tuple[int, str] | None = None
    """How many changes there had been, and the matrix's state, when it was last brought to Phoenix."""
    earliest: float = 0.0
    """Before this it is left alone, whatever changes."""
    shown_running: bool = False
    """It still ran when it was last brought to Phoenix: once it is done it is brought there at once."""
    again: float = 0.0
    """From here on it is looked at although nothing changed."""
    failures: int = 0
    told: str | None = None
    """What was last told of it, so that it is told once."""


class Follower:
    """Brings every matrix of a store to one Phoenix until it is asked to end.

    Args:
        url: the Phoenix, by which the store knows it.
        registry: the operator's file about calibrations, read anew for each matrix; without it no judge that is to
            count by a calibration is asked.
        shown_at: where people's browsers reach this Phoenix.
        ended: set from outside, by a signal handler for instance.
        tell: takes one line for a person.
        pause: waits that many seconds at most, less when ``ended`` is set.
    """

    def __init__(
        self,
        store: Store,
        url: str,
        *,
        api_key: str | None,
        registry: Path | None,
        shown_at: str | None,
        ended: threading.Event,
        health: Health,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._store = store
        self._url = url
        self._api_key = api_key
        self._registry = registry
        self._shown_at = shown_at
        self._ended = ended
        self._health = health
        self._tell = tell
        self._clock = clock
        self._pause = pause or ended.wait
        self._owner = owners.Owner.this_process()
        self._followed: dict[int, _Followed] = {}
        self._answered = float("-inf")

    def run(self) -> None:
        """Follows until it is ended. A store or a Phoenix that is away is waited for."""
        failures, told = 0, None
        while not self._ended.is_set():
            try:
                self.round()
            except _Ended:
                return
            except (StoreError, PhoenixUnavailable, PhoenixRefused) as error:
                failures += 1
                if str(error) != told:
                    told = str(error)
                    self._tell(f"waiting: {told}")
                self._health.troubled(str(error))
                self._wait(_backoff(failures, LONGEST_PAUSE))
                continue
            if told is not None:
                self._tell("store and Phoenix answer again")
            failures, told = 0, None
            self._health.ready()
            self._wait(ROUND_SECONDS)

    def round(self) -> None:
        """One look at the store, and what there is to do.

        Raises:
            StoreError: the store is away. PhoenixUnavailable, PhoenixRefused: Phoenix is, or accepts no key.
        """
        listed = self._in_order()
        if not self._health.is_ready:
            # Now, not after this round: thousands of trials may wait, and an upgrade waits for who is ready.
            self._check_phoenix()
            self._health.ready()
        for matrix, publication in listed:
            followed = self._followed.setdefault(matrix.id, _Followed())
            if self._is_due(matrix, publication, followed):
                self._go_on()
                self._bring(matrix, followed)
        if self._clock() - self._answered >= PING_SECONDS:
            self._check_phoenix()

    def _check_phoenix(self) -> None:
        with Phoenix(self._url, self._api_key, patience=0) as phoenix:
            phoenix.check()
        self._answered = self._clock()

    def _in_order(self) -> list[tuple[reading.Matrix, reading.Publication | None]]:
        """What is not published first, and of that the newest: somebody waits for it."""
        shown = reading.publications_to(self._store, self._url)
        pairs = [(matrix, shown.get(matrix.id)) for matrix in reading.matrices(self._store)]
        return sorted(pairs, key=lambda pair: (pair[1] is not None and pair[1].state == "published", -pair[0].id))

    def _is_due(self, matrix: reading.Matrix, publication: reading.Publication | None, followed: _Followed) -> bool:
        if matrix.state == "registered":
            return False  # nothing has run yet
        now = self._clock()
        if now < followed.earliest and not (followed.shown_running and matrix.state != "running"):
            return False
        return followed.version != _version(matrix, publication) or now >= followed.again

    def _bring(self, matrix: reading.Matrix, followed: _Followed) -> None:
        began = self._clock()
        try:
            pending = self._judge(matrix, followed)
            version = _version(matrix, reading.publications_to(self._store, self._url).get(matrix.id))
            published = publish_matrix(
                self._store,
                matrix,
                self._url,
                api_key=self._api_key,
                progress=lambda *_: self._go_on(),
                owner=self._owner,
                shown_at=self._shown_at,
            )
        except BeingPublished:
            followed.earliest, followed.shown_running = self._clock() + LEASE_SECONDS / 6, False
            return
        except (_Ended, StoreError, PhoenixUnavailable) as error:
            if isinstance(error, NotFound):
                self._failed(matrix, followed, str(error))
                return
            raise
        except PhoenixRefused as error:
            with Phoenix(self._url, self._api_key, patience=0) as phoenix:
                phoenix.check()  # where it refuses everything, that is no fault of this matrix
            self._failed(matrix, followed, str(error))
            return
        except (FileError, JudgeMisconfigured) as error:
            self._failed(matrix, followed, str(error))
            return
        except Exception as error:
            # A matrix that we fail at must not keep the others from being shown.
            traceback.print_exc()
            self._failed(matrix, followed, f"{type(error).__name__}: {error}")
            return
        self._answered = now = self._clock()
        followed.version = version
        followed.shown_running = matrix.state == "running"
        left = (1 / SHARE_OF_RUNNING - 1) if followed.shown_running else 2
        followed.earliest = now + max(ROUND_SECONDS, left * (now - began))
        for note in published.notes:
            self._once(followed, f"{matrix.name}: {note}")
        if pending:
            followed.failures += 1
            followed.again = now + _backoff(followed.failures, LONGEST_MATRIX_PAUSE, first=UNFINISHED_SECONDS)
        else:
            followed.failures = 0
            followed.again = now + (CHECK_SECONDS if published.complete else UNFINISHED_SECONDS)
        if published.complete:
            self._once(followed, f"{matrix.name}: published: {published.compare_url}")

    def _judge(self, matrix: reading.Matrix, followed: _Followed) -> bool:
        """Judges what is not judged yet, where the matrix has a judge; whether judgments are still pending."""
        manifest = registered_manifest(self._store, matrix.id)
        asked = manifest.judge
        if asked is None:
            return False
        qualification: Qualification = Uncalibrated()
        if asked.calibration is not None:
            if self._registry is None:
                self._once(
                    followed,
                    f"{matrix.name}: not judged: its judge is to count by the calibration {asked.calibration}, "
                    "and no --registry tells about it",
                )
                return False
            from grading.calibration.registry import Registry

            qualification = Registry.load(self._registry).calibration(asked.calibration)

        def watch(_: Judged) -> None:
            self._go_on()

        judged = judge_matrix(self._store, matrix, manifest, asked, qualification=qualification, watch=watch)
        if judged.trouble is not None:
            self._once(followed, f"{matrix.name}: the judge's last failure: {judged.trouble}")
        return bool(judged.pending)

    def _failed(self, matrix: reading.Matrix, followed: _Followed, why: str) -> None:
        followed.failures += 1
        pause = _backoff(followed.failures, LONGEST_MATRIX_PAUSE, first=UNFINISHED_SECONDS)
        followed.earliest = followed.again = self._clock() + pause
        followed.shown_running = False
        self._once(followed, f"{matrix.name}: not published: {why}")

    def _once(self, followed: _Followed, line: str) -> None:
        if line != followed.told:
            followed.told = line
            self._tell(line)

    def _go_on(self) -> None:
        """Gives a sign of life, and ends where that was asked for."""
        self._health.sign()
        if self._ended.is_set():
            raise _Ended

    def _wait(self, seconds: float) -> None:
        self._pause(seconds)
        self._health.sign()


def _version(matrix: reading.Matrix, publication: reading.Publication | None) -> tuple[int, str]:
    return publication.changes if publication is not None else 0, matrix.state


def _backoff(failures: int, longest: float, *, first: float = FIRST_PAUSE) -> float:
    """Seconds to wait: doubled with each failure, between half of that and all of it."""
    return min(longest, first * 2.0 ** min(failures - 1, 20)) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
