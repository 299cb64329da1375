"""Asks policies on behalf of an event loop: a request in, a decision out, or why there is none in time.

Requests that wait together are decided in one computation; none waits for others to come. A policy that is quick is
asked on the event loop. Every other one is asked in threads, with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from etude.contracts.arguments import text_of
from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.ports import Decider
from etude.experience.deadline import Deadline, late
from etude.experience.deciders import Deciders, NoAnswer
from etude.release.serving import decide_many
from etude.serving import own_time

TOGETHER = 64
"""Maximum number of requests that are decided in one computation."""
SMALL = 4000
"""Characters of a context, and elements of a list of options times ten, up to which a quick policy is quick."""
QUICK_S = 0.01
"""Mean seconds per request above which a policy is not quick, whatever it says of itself."""
LATEST, BLIP_S = 0.2, 0.04
"""Weight of the latest computation in this mean, and what it counts at most: once late is not slow."""
NOT_QUICK_S = 10.0
"""Seconds for which such a policy is asked in threads."""

Answer = Decision | Exception


class _Waiting(NamedTuple):
    request: DecisionRequest
    answer: asyncio.Future[Answer]


@dataclass
class _Queue:
    """The requests that wait for one policy."""

    waiting: list[_Waiting] = field(default_factory=list)
    is_due: bool = False
    """Whether the event loop will look at it."""
    mean_s: float = 0.0
    """Seconds per request on the event loop, lately."""
    slow_until: float = 0.0
    """Until when the policy is not asked on the event loop."""
    running: object | None = None
    """What is computed now in a thread."""

    def took(self, seconds: float) -> None:
        """Note the time of a computation on the event loop, per request."""
        self.mean_s += LATEST * (min(seconds, BLIP_S) - self.mean_s)
        if self.mean_s > QUICK_S:
            self.mean_s, self.slow_until = 0.0, monotonic() + NOT_QUICK_S

    def take(self) -> list[_Waiting]:
        """The oldest that still wait."""
        wanted = [one for one in self.waiting if not one.answer.done()]
        self.waiting = wanted[TOGETHER:]
        return wanted[:TOGETHER]


class Runtime:
    """The policies of one process, asked from its event loop alone."""

    def __init__(self, deciders: Deciders) -> None:
        self._deciders, self._deadline = deciders, Deadline()
        self._queues: dict[tuple[str, bool], _Queue] = {}  # by problem, and whether the event loop decides
        self._loading: dict[str, asyncio.Task[NoAnswer | None]] = {}
        self.computations = 0
        """Number of computations so far; with fewer of them than requests, some were decided together."""

    async def ask(
        self, problem: str, request: DecisionRequest, *, timeout_s: float, is_large: bool = False
    ) -> Decision | NoAnswer:
        """The decision of a problem's policy, or why there is none; it raises nothing but CancelledError. The event
        loop decides no request that `is_large`."""
        began = monotonic()
        policy = self._deciders.ready(problem)
        if policy is None:
            missing = self._deciders.loaded(problem, timeout_s=0)
            if missing is not None and missing.reason == "loading":
                missing = await self._loaded(problem, timeout_s)
            policy = self._deciders.ready(problem)
            if missing is not None or policy is None:
                return missing or NoAnswer("loading", f"the policy of {problem!r} is being loaded")
            timeout_s -= monotonic() - began
            if timeout_s <= 0:
                return NoAnswer("loading", f"the policy of {problem!r} was loaded too late to be asked")
        try:
            answer = await self._asked(problem, policy, request, timeout_s, is_large)
        except Exception as error:  # such as a system that gives no more threads
            answer = error
        return answer if isinstance(answer, Decision) else self._deciders.no_answer(problem, _error(answer))

    def _loaded(self, problem: str, timeout_s: float) -> Awaitable[NoAnswer | None]:
        """One thread waits for all requests."""
        waits = self._loading.get(problem)
        if waits is None or waits.done():
            loaded = asyncio.to_thread(self._deciders.loaded, problem, timeout_s=timeout_s)
            waits = self._loading[problem] = asyncio.create_task(loaded)
        return asyncio.shield(waits)

    async def _asked(
        self, problem: str, policy: Decider, request: DecisionRequest, timeout_s: float, is_large: bool
    ) -> Answer:
        queue = self._queues.setdefault((problem, True), _Queue())
        if not is_large and _is_small(request) and getattr(policy, "quick", False) and monotonic() >= queue.slow_until:
            return await self._queued(queue, request, partial(self._answer, queue, policy))
        queue = self._queues.setdefault((problem, False), _Queue())
        batches = getattr(policy, "batches", hasattr(policy, "decide_many"))
        try:
            async with asyncio.timeout(timeout_s):
                if batches:
                    return await self._queued(queue, request, partial(self._begin, queue, policy, timeout_s))
                return (await self._in_thread(partial(decide_many, policy, [request])))[0]
        except TimeoutError:
            return late(timeout_s)

    def _queued(self, queue: _Queue, request: DecisionRequest, look: Callable[[], None]) -> asyncio.Future[Answer]:
        """What the request will be answered; the event loop looks at the queue after it has read what came meanwhile,
        or when the computation in a thread has ended."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        queue.waiting.append(_Waiting(request, answer))
        if not queue.is_due and queue.running is None:
            queue.is_due = True
            loop.call_soon(look)
        return answer

    def _answer(self, queue: _Queue, policy: Decider) -> None:
        """Decide what waits, here and now."""
        queue.is_due, group, began = False, queue.take(), own_time.now()
        if group:
            _settle(group, self._decided(policy, [one.request for one in group]))
            queue.took(own_time.own_s(began) / len(group))
        if queue.waiting:  # after what came meanwhile
            queue.is_due = True
            asyncio.get_running_loop().call_soon(self._answer, queue, policy)

    def _begin(self, queue: _Queue, policy: Decider, timeout_s: float) -> None:
        """Decide what waits, in a thread. If that takes too long, those that come later do not wait for it."""
        queue.is_due, group = False, queue.take()
        if not group:
            return
        running = queue.running = object()
        loop = asyncio.get_running_loop()

        def next_one() -> None:
            if queue.running is running:
                queue.running = None
                self._begin(queue, policy, timeout_s)

        def ended(found: tuple[Sequence[Answer] | None, Exception | None]) -> None:
            answers, error = found
            _settle(group, [error or RuntimeError("no answer")] * len(group) if answers is None else answers)
            timer.cancel()
            next_one()

        timer = loop.call_later(timeout_s, next_one)
        try:
            requests = [one.request for one in group]
            self._deadline.begin(partial(self._decided, policy, requests), partial(_call_in, loop, ended))
        except Exception as error:  # too many calls still run
            ended((None, error))

    def _decided(self, policy: Decider, requests: Sequence[DecisionRequest]) -> Sequence[Answer]:
        """One answer for each; where all fail together, each is asked by itself."""
        self.computations += 1
        try:
            return decide_many(policy, requests)
        except Exception as error:  # whatever a policy of any package raises
            if len(requests) == 1:
                return [error]
        return [_one(policy, request) for request in requests]

    async def _in_thread(self, work: Callable[[], Sequence[Answer]]) -> Sequence[Answer]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[Answer]] = loop.create_future()

        def ended(answer: tuple[Sequence[Answer] | None, Exception | None]) -> None:
            if not found.done():
                answers, error = answer
                found.set_result([error or RuntimeError("no answer")] if answers is None else answers)

        self.computations += 1
        self._deadline.begin(work, partial(_call_in, loop, ended))
        return await found


def _one(policy: Decider, request: DecisionRequest) -> Answer:
    try:
        return policy.decide(request)
    except Exception as error:  # whatever a policy of any package raises
        return error


def _settle(group: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    for one, answer in zip(group, answers, strict=True):
        if not one.answer.done():
            one.answer.set_result(answer)


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[Any], None], value: Any) -> None:
    """From another thread. A loop that is closed needs no answer."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, value)


def _error(answer: Any) -> Exception:
    if isinstance(answer, Exception):
        return answer
    return TypeError(f"it answered {text_of(answer)[:80]!r} in place of a Decision")


def _is_small(request: DecisionRequest) -> bool:
    """Whether reading the request takes next to nothing."""
    context, options = request.context, request.options
    values = context.values() if isinstance(context, Mapping) else (context,)
    chars = sum(len(value) for value in values if isinstance(value, str | list | tuple))
    return chars + 10 * len(options or ()) <= SMALL
