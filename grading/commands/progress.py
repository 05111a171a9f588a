"""Progress on standard error: a bar on a terminal, elsewhere a line every ten seconds."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from grading.commands import console

EVERY_SECONDS = 10.0
WATCH_SECONDS = 1.0
"""How often it is asked how far something is that runs elsewhere."""

Ended = Literal["done", "detached"]


@dataclass(frozen=True, slots=True)
class Shown:
    """How far something is."""

    done: int
    planned: int
    ran: int
    """Of them, done since it is watched."""
    remarks: str = ""


@contextmanager
def watching(name: str) -> Iterator[Callable[[Shown], None]]:
    """Shows what it is called with."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    started = time.monotonic()
    told = started

    def rate(progress: Shown) -> str:
        seconds = time.monotonic() - started
        return f"{progress.ran / seconds:.0f}/s" if seconds > 0 else ""

    out = console()
    if not out.is_terminal:

        def tell(progress: Shown) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told >= EVERY_SECONDS:
                told = now
                left = (progress.planned - progress.done) / max(progress.ran / (now - started), 0.001)
                print(
                    f"{name}: {progress.done}/{progress.planned}, {rate(progress)}, about {left:.0f} s left"
                    + (f", {progress.remarks}" if progress.remarks else ""),
                    file=sys.stderr,
                )

        yield tell
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remarks]}", markup=False),
    )
    with Bars(*columns, console=out, transient=True) as bars:
        task = bars.add_task(name, rate="", remarks="")

        def show(progress: Shown) -> None:
            bars.update(
                task,
                total=progress.planned,
                completed=progress.done,
                rate=rate(progress),
                remarks=progress.remarks,
            )

        yield show


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends watching as Ctrl-C does."""

    def interrupted(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def until_done(ask: Callable[[], Shown | None], name: str) -> Ended:
    """Shows what ``ask`` tells until it tells nothing more, or Ctrl-C."""
    try:
        with watching(name) as show, sigterm_as_interrupt():
            while (now := ask()) is not None:
                show(now)
                time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return "detached"
    return "done"
