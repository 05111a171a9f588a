"""Group commit: requests that come together share a transaction, and none of them fails or is lost for another."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import anyio
import pytest
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from grading import group_commit
from grading.group_commit import MOST, GroupCommit
from grading.store import StoreAway

pytestmark = pytest.mark.asyncio

Work = Callable[[Sequence[str]], Sequence[str | Exception]]


def upper(items: Sequence[str]) -> list[str | Exception]:
    return [item.upper() for item in items]


class Bench:
    """Work that waits in its thread until it is let, call by call. An item's key is its first character."""

    def __init__(self, work: Work = upper) -> None:
        self.calls: list[list[str]] = []
        self.answers: dict[str, object] = {}
        self.most_at_once = 0
        self._at_once = 0
        self._let = threading.Semaphore(0)
        self._work = work
        self.commit: GroupCommit[str, str] = GroupCommit(self._called, lambda item: item[0])

    def _called(self, items: Sequence[str]) -> Sequence[str | Exception]:
        self.calls.append(list(items))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        assert self._let.acquire(timeout=20), "never let"
        self._at_once -= 1
        return self._work(items)

    async def ask(self, item: str) -> None:
        assert item not in self.answers
        try:
            self.answers[item] = await self.commit.do(item)
        except Exception as error:
            self.answers[item] = error

    async def asked(self, tasks: TaskGroup, *items: str) -> None:
        """When this returns, each of them leads or waits."""
        for item in items:
            tasks.start_soon(self.ask, item)
        await anyio.wait_all_tasks_blocked()

    async def called(self, *calls: str) -> None:
        """Waits for the work to have been called with these, each a group's items in one word of single letters."""
        await until(lambda: len(self.calls) >= len(calls))
        assert self.calls == [list(call) for call in calls]

    def let(self, calls: int = 1000) -> None:
        self._let.release(calls)


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not true():
            await anyio.sleep(0.001)


async def test_one_that_comes_alone_goes_at_once() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a")
        await bench.called("a")
        bench.let(1)
        await until(lambda: bench.answers == {"a": "A"})
        await bench.asked(tasks, "b")
        await bench.called("a", "b")
        bench.let(1)
    assert bench.answers == {"a": "A", "b": "B"}


async def test_what_comes_while_a_group_is_done_goes_together_in_the_next() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a", "b", "c", "d")
        await bench.called("a")
        bench.let(1)
        await bench.called("a", "bcd")
        await bench.asked(tasks, "e", "f")
        assert bench.answers == {"a": "A"}
        bench.let()
    await bench.called("a", "bcd", "ef")
    assert bench.answers == {item: item.upper() for item in "abcdef"}
    assert bench.most_at_once == 1


async def test_two_of_one_key_are_never_in_one_group_and_keep_their_order() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "x", "k1", "m1", "k2", "m2", "k3", "n1")
        bench.let()
    assert bench.calls == [["x"], ["k1", "m1", "n1"], ["k2", "m2"], ["k3"]]
    assert list(bench.answers) == ["x", "k1", "m1", "n1", "k2", "m2", "k3"]


async def test_at_most_so_many_are_in_one_group() -> None:
    bench = Bench()
    items = [chr(0x4E00 + number) for number in range(2 * MOST + 5)]
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a", *items)
        bench.let()
    assert bench.calls == [["a"], items[:MOST], items[MOST : 2 * MOST], items[2 * MOST :]]
    assert list(bench.answers) == ["a", *items]


# ---- What goes wrong ------------------------------------------------------------------------------------------------


async def test_what_is_raised_for_one_reaches_it_alone() -> None:
    refused = ValueError("not this one")
    bench = Bench(lambda items: [refused if item == "c" else item.upper() for item in items])
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a", "b", "c", "d")
        bench.let()
    assert bench.answers == {"a": "A", "b": "B", "c": refused, "d": "D"}
    await bench.called("a", "bcd")


async def test_a_group_that_fails_as_a_whole_is_repeated_one_by_one() -> None:
    spoilt = ValueError("the database refuses c")

    def work(items: Sequence[str]) -> list[str | Exception]:
        if "c" in items:
            raise spoilt
        return upper(items)

    bench = Bench(work)
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a", "b", "c", "d")
        bench.let()
    assert bench.answers == {"a": "A", "b": "B", "c": spoilt, "d": "D"}
    await bench.called("a", "bcd", "b", "c", "d")


async def test_one_that_fails_alone_is_not_repeated() -> None:
    failed = ValueError("no")

    def work(_: Sequence[str]) -> list[str | Exception]:
        raise failed

    bench = Bench(work)
    bench.let()
    await bench.ask("a")
    assert bench.answers == {"a": failed}
    await bench.called("a")


async def test_a_store_that_is_away_is_told_to_all_of_the_group_and_not_asked_again() -> None:
    away = StoreAway("the server does not answer")

    def work(items: Sequence[str]) -> list[str | Exception]:
        if "c" in items:
            raise away
        return upper(items)

    bench = Bench(work)
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a", "b", "c", "d")
        await bench.called("a")
        bench.let(1)
        await bench.called("a", "bcd")
        await bench.asked(tasks, "e")
        bench.let()
    assert bench.answers == {"a": "A", "b": away, "c": away, "d": away, "e": "E"}
    await bench.called("a", "bcd", "e")


async def test_work_that_answers_for_too_few_leaves_nobody_waiting() -> None:
    bench = Bench(lambda items: upper(items)[:1])
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a", "b", "c")
        bench.let()
    assert (bench.answers["a"], bench.answers["b"]) == ("A", "B")
    assert isinstance(bench.answers["c"], RuntimeError)


async def test_an_empty_answer_is_one() -> None:
    commit: GroupCommit[str, list[str]] = GroupCommit(lambda items: [[] for _ in items], lambda item: item)
    assert await commit.do("a") == []


# ---- Who goes away --------------------------------------------------------------------------------------------------


async def test_one_that_is_cancelled_while_it_waits_is_not_worked_on_and_keeps_nobody() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks, anyio.create_task_group() as leaving:
        await bench.asked(tasks, "a")
        await bench.asked(leaving, "b", "c")
        await bench.asked(tasks, "d", "e")
        leaving.cancel_scope.cancel()
        await anyio.lowlevel.cancel_shielded_checkpoint()
        bench.let()
    await bench.called("a", "de")
    assert bench.answers == {"a": "A", "d": "D", "e": "E"}


async def test_one_that_is_cancelled_while_its_group_is_done_leaves_the_group_whole() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a", "b")
        async with anyio.create_task_group() as leaving:
            await bench.asked(leaving, "c")
            await bench.asked(tasks, "d")
            bench.let(1)
            await bench.called("a", "bcd")
            leaving.cancel_scope.cancel()
        assert "c" not in bench.answers, "it does not wait for its group's end"
        await bench.asked(tasks, "e")
        bench.let()
    await bench.called("a", "bcd", "e")
    assert bench.answers == {"a": "A", "b": "B", "d": "D", "e": "E"}


async def test_one_that_is_cancelled_when_it_has_just_been_given_the_lead_gives_it_on() -> None:
    bench = Bench()

    async def lead() -> None:
        await bench.ask("a")
        # The lead is b's from this moment, and b has not run since.
        assert second.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lead)
        await anyio.wait_all_tasks_blocked()
        second = asyncio.create_task(bench.ask("b"))
        await anyio.wait_all_tasks_blocked()
        await bench.asked(tasks, "c", "d")
        bench.let()
    with pytest.raises(asyncio.CancelledError):
        await second
    await bench.called("a", "cd")
    assert bench.answers == {"a": "A", "c": "C", "d": "D"}
    # Nor is it left with somebody who is not there where nobody else waits.
    await bench.ask("e")
    assert bench.answers["e"] == "E"


async def test_one_whose_scope_is_cancelled_when_it_has_the_lead_does_its_group_first() -> None:
    bench = Bench()
    leaving = anyio.CancelScope()

    async def lead() -> None:
        await bench.ask("a")
        leaving.cancel()

    async def leave() -> None:
        with leaving:
            await bench.ask("b")

    async with anyio.create_task_group() as tasks:
        for each in (lead, leave):
            tasks.start_soon(each)
            await anyio.wait_all_tasks_blocked()
        await bench.asked(tasks, "c", "d")
        bench.let()
    await bench.called("a", "bcd")
    assert {item: bench.answers[item] for item in "acd"} == {"a": "A", "c": "C", "d": "D"}


async def test_the_last_that_waits_is_cancelled_with_the_lead() -> None:
    bench = Bench()

    async def lead() -> None:
        await bench.ask("a")
        assert second.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lead)
        await anyio.wait_all_tasks_blocked()
        second = asyncio.create_task(bench.ask("b"))
        await anyio.wait_all_tasks_blocked()
        bench.let()
    with pytest.raises(asyncio.CancelledError):
        await second
    with anyio.fail_after(5):
        await bench.ask("c")
    await bench.called("a", "c")


async def test_a_leader_that_is_cancelled_answers_the_others_first() -> None:
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a")
        async with anyio.create_task_group() as leaving:
            await bench.asked(leaving, "b")
            await bench.asked(tasks, "c", "d")
            bench.let(1)
            await bench.called("a", "bcd")
            await bench.asked(tasks, "e", "f")
            leaving.cancel_scope.cancel()
            await anyio.lowlevel.cancel_shielded_checkpoint()
            bench.let()
    await bench.called("a", "bcd", "ef")
    assert {item: bench.answers[item] for item in "acdef"} == {item: item.upper() for item in "acdef"}


async def test_a_leader_whose_task_is_ended_tells_its_group_and_leaves_the_waiting_to_another() -> None:
    """As a server that ends does to what it no longer waits for: a shield is none for it."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        await bench.asked(tasks, "a")
        leader = asyncio.create_task(bench.ask("b"))
        await anyio.wait_all_tasks_blocked()
        await bench.asked(tasks, "c")
        bench.let(1)
        await bench.called("a", "bc")
        await bench.asked(tasks, "d")
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        bench.let()
    assert isinstance(bench.answers["c"], RuntimeError)
    assert bench.answers["d"] == "D"
    await bench.called("a", "bc", "d")


# ---- Any schedule ---------------------------------------------------------------------------------------------------

KINDS = ("fine", "refused", "spoils")
"""How the work takes an item: it does it, refuses it alone, or fails with it as a whole."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("klm"), st.sampled_from(KINDS)),
        st.tuples(st.just("cancel"), st.integers(0, 11), st.booleans()),
        st.tuples(st.just("let"), st.none(), st.booleans()),
    ),
    max_size=24,
)


@settings(deadline=None)
@given(steps=STEPS)
async def test_whoever_stays_is_answered_once_in_whatever_order_others_come_and_go(
    steps: list[tuple[str, object, object]],
) -> None:
    kept: list[str] = []

    def work(items: Sequence[str]) -> list[str | Exception]:
        if any(item.endswith("spoils") for item in items):
            raise KeyError(*items)
        kept.extend(items)
        return [ValueError(item) if item.endswith("refused") else item.upper() for item in items]

    bench = Bench(work)
    asked: list[str] = []
    running: list[asyncio.Task[None]] = []
    scopes: list[anyio.CancelScope] = []

    async def ask(item: str, scope: anyio.CancelScope) -> None:
        with scope:
            await bench.ask(item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_commit, "MOST", 2)
        for what, which, how in steps:
            if what == "ask":
                asked.append(f"{which}{len(asked)} {how}")
                scopes.append(anyio.CancelScope())
                running.append(asyncio.create_task(ask(asked[-1], scopes[-1])))
                await asyncio.sleep(0)
            elif what == "cancel" and isinstance(which, int) and which < len(scopes):
                scopes[which].cancel()
                if how:
                    await asyncio.sleep(0)
            elif what == "let":
                bench.let(1)
                # The work may or may not be done when the next step comes.
                await anyio.sleep(0.001 if how else 0)
        bench.let()
        with anyio.fail_after(10):
            await asyncio.gather(*running)
    for item, scope in zip(asked, scopes, strict=True):
        answer = bench.answers.get(item)
        if scope.cancel_called and answer is None:
            continue
        if item.endswith("fine"):
            assert answer == item.upper()
        else:
            assert isinstance(answer, ValueError if item.endswith("refused") else KeyError)
            assert answer.args == (item,)
    times = Counter(item for call in bench.calls for item in call)
    assert max(times.values(), default=0) <= 2, "once with its group, once alone"
    assert max(Counter(kept).values(), default=0) <= 1, "what is done is never done again"
    assert {item for item in asked if item.endswith("fine")} - set(kept) <= {
        item for item, scope in zip(asked, scopes, strict=True) if scope.cancel_called
    }
    for key in "klm":
        of_key = [item for item in kept if item[0] == key]
        assert of_key == [item for item in asked if item in of_key], "in the order in which they came"
    assert all(len(call) <= 2 and len({item[0] for item in call}) == len(call) for call in bench.calls)
    assert bench.most_at_once <= 1


async def test_after_a_group_of_several_the_next_waits_for_others() -> None:
    calls: list[int] = []

    def work(items: Sequence[str]) -> list[str | Exception]:
        calls.append(len(items))
        time.sleep(0.03)
        return [item.upper() for item in items]

    commit: GroupCommit[str, str] = GroupCommit(work, lambda item: item)
    async with anyio.create_task_group() as tasks:
        for item in "abc":
            tasks.start_soon(commit.do, item)
    assert calls == [1, 2], "the first one waited for nobody"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(commit.do, "d")
        await anyio.sleep(0.01)
        tasks.start_soon(commit.do, "e")
    assert calls == [1, 2, 2]
    await commit.do("f")
    await commit.do("g")
    assert calls[3:] == [1, 1]
    assert 0 < group_commit.LONGEST_WAIT <= 0.1
