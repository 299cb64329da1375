"""Hours in no time, in the right order, and only while everybody waits."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.orchestrator.virtual_time import VirtualLoop, real_time, run_virtually


def test_hours_take_no_time() -> None:
    async def work() -> float:
        await asyncio.sleep(3600)
        await asyncio.sleep(100 * 24 * 3600)  # longer than a loop waits at a time
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run_virtually(work()) == 3600 + 100 * 24 * 3600
    assert time.monotonic() - began < 5


def test_the_clock_starts_again_in_every_loop() -> None:
    async def now() -> float:
        return asyncio.get_running_loop().time()

    assert [run_virtually(now()) for _ in range(2)] == [0.0, 0.0]


@given(st.lists(st.floats(0, 1e5), max_size=20))
def test_timers_come_in_order_each_at_its_time(delays: list[float]) -> None:
    async def work() -> list[tuple[float, float]]:
        loop, woken = asyncio.get_running_loop(), list[tuple[float, float]]()

        async def wait(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((seconds, loop.time()))

        await asyncio.gather(*map(wait, delays))
        return woken

    woken = run_virtually(work())
    assert [seconds for seconds, _ in woken] == sorted(delays)
    assert all(at_s == pytest.approx(seconds, abs=1e-9) for seconds, at_s in woken)


def test_time_stands_still_while_somebody_works() -> None:
    async def work() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        late = asyncio.create_task(asyncio.sleep(1.0))
        for _ in range(1000):
            await asyncio.sleep(0)
        before = loop.time()
        await late
        return before, loop.time()

    assert run_virtually(work()) == (0.0, 1.0)


def test_timeouts_work() -> None:
    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 12)
        return asyncio.get_running_loop().time()

    assert run_virtually(work()) == 42.0


def test_a_thread_can_wake_it_and_until_then_it_sleeps() -> None:
    """In real time."""

    async def work() -> str:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        thread = threading.Timer(0.3, lambda: loop.call_soon_threadsafe(answer.set_result, "here"))
        thread.start()
        reported: str = await answer  # no timer: nothing happens by itself
        thread.join()
        return reported

    worked_s = time.thread_time()
    assert run_virtually(work()) == "here"
    assert time.thread_time() - worked_s < 0.1


def test_what_it_runs_may_fail() -> None:
    async def work() -> None:
        await asyncio.sleep(10)
        raise ValueError("so it is")

    with pytest.raises(ValueError, match="so it is"):
        run_virtually(work())


def test_a_loop_is_closed_after_its_work() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())

    run_virtually(work())
    assert isinstance(loops[0], VirtualLoop)
    assert loops[0].is_closed()


def test_under_real_time_a_socket_is_waited_for_and_timers_take_their_time() -> None:
    async def run() -> tuple[bytes, float, float]:
        loop = asyncio.get_running_loop()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.02)
            writer.write(b"late")
            writer.close()

        server = await asyncio.start_server(late, "127.0.0.1", 0)
        began_s = time.monotonic()
        with real_time():
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            async with asyncio.timeout(60):
                read = await reader.read()
            writer.close()
            await writer.wait_closed()
        waited_s, virtual_s = time.monotonic() - began_s, loop.time()
        server.close()
        await asyncio.sleep(3600)
        return read, waited_s, virtual_s

    read, waited_s, virtual_s = run_virtually(run())
    assert read == b"late"
    assert 0.019 <= virtual_s <= waited_s
