"""Group commit: what several requests want of the store at once is done in one transaction.

While one group is being committed, what comes meanwhile gathers for the next: under load each transaction's fixed costs
are shared by many requests, and a request that comes alone waits for nobody. Where the last group was of several, the
next one waits for others as long as that one took, as PostgreSQL's commit_delay does, but never longer than a person
would notice.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from grading.store import StoreAway

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST = 64
"""Requests in one group."""
LONGEST_WAIT = 0.05
"""Seconds that a group waits for others."""


class GroupCommit(Generic[Item, Result]):
    """One kind of transaction. Of one event loop.

    Args:
        work: does what several items want, in a thread; for each its result, or what it raises for that one alone.
        key: of two items with the same one, the later is left for the next group.
    """

    def __init__(
        self, work: Callable[[Sequence[Item]], Sequence[Result | Exception]], key: Callable[[Item], Hashable]
    ) -> None:
        self._work = work
        self._key = key
        self._waiting: list[_Waiting[Item, Result]] = []
        self._busy = False
        self._wait = 0.0
        self._thread = anyio.CapacityLimiter(1)

    async def do(self, item: Item) -> Result:
        """What the work makes of an item.

        Raises:
            Exception: what the work raises for it; a StoreAway of its group's transaction.
        """
        mine: _Waiting[Item, Result] = _Waiting(item)
        self._waiting.append(mine)
        if self._busy:
            try:
                await mine.turn.wait()
            except BaseException:
                self._forget(mine)
                raise
        if mine.result is None:
            await self._lead(mine)
        assert mine.result is not None
        if isinstance(mine.result, Exception):
            raise mine.result
        return mine.result

    async def _lead(self, mine: "_Waiting[Item, Result]") -> None:
        """Does one group, the oldest waiting first, and gives the lead to whoever waits then."""
        self._busy = True
        group: list[_Waiting[Item, Result]] = []
        results: Sequence[Result | Exception] = []
        try:
            # Others' requests are among them: this one's end is no reason to leave them.
            with anyio.CancelScope(shield=True):
                if self._wait:
                    await anyio.sleep(self._wait)
                group = self._taken()
                began = time.monotonic()
                results = await anyio.to_thread.run_sync(self._done, [one.item for one in group], limiter=self._thread)
                self._wait = min(time.monotonic() - began, LONGEST_WAIT) if len(group) > 1 else 0.0
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
            for one, result in zip(group, results, strict=False):
                one.result = result
            for one in group:
                if one.result is None:
                    one.result = RuntimeError("its group was not done")
                one.turn.set()
            self._hand_over()

    def _taken(self) -> "list[_Waiting[Item, Result]]":
        taken: dict[Hashable, _Waiting[Item, Result]] = {}
        left = []
        for one in self._waiting:
            if len(taken) < MOST and self._key(one.item) not in taken:
                taken[self._key(one.item)] = one
            else:
                left.append(one)
        self._waiting = left
        return list(taken.values())

    def _done(self, items: Sequence[Item]) -> Sequence[Result | Exception]:
        try:
            return self._work(items)
        except StoreAway as error:
            return [error for _ in items]
        except Exception as error:
            if len(items) == 1:
                return [error]
        # One of them the database refuses: the others shall not fail for it.
        return [self._done([item])[0] for item in items]

    def _forget(self, mine: "_Waiting[Item, Result]") -> None:
        """Leaves the queue; where the lead had been given to it, somebody else gets it."""
        led = mine.turn.is_set() and mine.result is None
        if mine in self._waiting:
            self._waiting.remove(mine)
        if led:
            self._hand_over()

    def _hand_over(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            self._waiting[0].turn.set()


class _Waiting(Generic[Item, Result]):
    def __init__(self, item: Item) -> None:
        self.item = item
        self.turn = anyio.Event()
        """Set with a result, or for the first of those that wait, who does the next group."""
        self.result: Result | Exception | None = None
