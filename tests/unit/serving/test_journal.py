"""Groups are written by the event loop while that is quick, else by a thread, and what goes wrong reaches each item."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from etude.serving import journal
from etude.serving.journal import Done, Groups, Writer


class Log:
    """What was written, in which groups and threads."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.groups, self.on_loop, self.takes_s = list[list[int]](), list[bool](), takes_s

    def begin(self, group: Sequence[int]) -> Callable[[], Done]:
        if 13 in group:
            raise ValueError("cannot be prepared")

        def write() -> Done:
            self.groups.append(list(group))
            self.on_loop.append(threading.current_thread() is threading.main_thread())
            time.sleep(self.takes_s)
            if 42 in group:
                raise OSError("the disk is full")
            return [ValueError(item) if item < 0 else None for item in group]

        return write


def added(groups: Groups[int], *items: int) -> list[BaseException | None]:
    async def run() -> list[BaseException | None]:
        return await asyncio.gather(*map(groups.add, items), return_exceptions=True)

    return asyncio.run(run())


@pytest.mark.parametrize("quick", [True, False])
def test_what_comes_together_is_one_group(quick: bool) -> None:
    log = Log()
    assert added(Groups(log.begin, Writer(), quick=quick), 1, 2, 3) == [None] * 3
    assert (log.groups, log.on_loop) == ([[1, 2, 3]], [quick])


@pytest.mark.parametrize("quick", [True, False])
def test_what_goes_wrong_is_raised_where_it_belongs(quick: bool) -> None:
    groups = Groups(Log().begin, Writer(), quick=quick)
    found = added(groups, 1, -2, 3)
    assert [type(one) for one in found] == [type(None), ValueError, type(None)]
    assert [type(one) for one in added(groups, 1, 42)] == [OSError, OSError]
    assert [type(one) for one in added(groups, 13, 1)] == [ValueError, ValueError]
    assert added(groups, 1) == [None]


def test_after_a_slow_disk_a_thread_writes_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "QUICK_S", 0.0)
    log = Log(takes_s=0.001)
    groups = Groups(log.begin, Writer(), quick=True)
    for item in range(3):
        assert added(groups, item) == [None]
    assert log.on_loop == [True, False, False]


@pytest.mark.parametrize(("took", "on_loop"), [([0.0, 0.06, 0.0], True), ([0.06, 0.06, 0.0], False)])
def test_one_slow_sync_is_not_a_slow_disk(took: list[float], on_loop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = Log(), [0.0]
    groups = Groups(log.begin, Writer(), quick=True)
    for seconds in took:
        times = iter((now[0], now[0], now[0] + seconds, now[0] + seconds))
        monkeypatch.setattr(journal, "monotonic", lambda times=times: next(times))
        assert added(groups, 1) == [None]
        now[0] += seconds
    assert log.on_loop == [True, True, on_loop]


def test_while_the_thread_writes_the_event_loop_does_not() -> None:
    """They would wait for each other at the file, with requests that wait for the event loop."""

    async def run() -> list[bool]:
        writer, ours, free = Writer(), Log(), threading.Event()
        theirs = Groups[int](lambda group: lambda: [None] * len(group) if free.wait(10) else [], writer, quick=False)
        groups = Groups(ours.begin, writer, quick=True)
        held = asyncio.create_task(theirs.add(1))
        await asyncio.sleep(0.01)
        added = asyncio.create_task(groups.add(1))
        await asyncio.sleep(0.01)
        assert not added.done()
        free.set()
        await asyncio.gather(held, added)
        await groups.add(2)
        return ours.on_loop

    assert asyncio.run(run()) == [False, True]
