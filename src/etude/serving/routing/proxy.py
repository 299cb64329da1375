"""Answers calls of language models: decides which model is asked, asks another where one fails, and records it all.

A call goes through here in the order of the file: read, decided, asked, passed on, recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NoReturn

import msgspec

from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import RequestError
from etude.contracts.trajectory import Trajectory
from etude.experience.task import new_id
from etude.serving.decisions import DecisionAsked, Decisions
from etude.serving.keys import Caller
from etude.serving.routing.asked import Api, Asked, AskedError, read_asked, response_key
from etude.serving.routing.calls import AFFINITY, Call
from etude.serving.routing.checks import Checks
from etude.serving.routing.config import RoutingConfig
from etude.serving.routing.conversations import Conversations
from etude.serving.routing.models import Models
from etude.serving.routing.responses import ResponsesWire, TranslatedWire
from etude.serving.routing.upstreams import MAX_ANSWER_BYTES, FailedError, RefusedError, Upstream, Upstreams
from etude.serving.routing.wires import BrokenError, ChatWire, EmbeddingsWire, Wire, error_of, upstream_message

log = logging.getLogger("etude")

MAX_EVENT_BYTES = 4 << 20
END_S = 0.05
"""Seconds to wait for the end of a stream after its last event: a connection that is read whole is used again."""
EVENT_STREAM = "text/event-stream"
JSON = "application/json"
Ended = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer to the caller."""

    status: int
    headers: Mapping[str, str]
    body: bytes | AsyncIterator[bytes]


@dataclass(kw_only=True)
class Proxy:
    config: RoutingConfig
    upstreams: Upstreams
    models: Models
    decisions: Decisions
    conversations: Conversations
    checks: Checks
    clock: Callable[[], datetime]
    counts: Counter[str] = field(default_factory=Counter)
    """Calls by how they ended, and attempts that failed."""
    _work: set[asyncio.Task[Trajectory | None]] = field(default_factory=set)

    async def answer(self, api: Api, body: bytes, headers: Mapping[str, str], caller: Caller) -> Reply:
        """AskedError and RequestError say why there is none."""
        asked = read_asked(api, body, headers, caller)
        self.models.check(asked)
        now = self.clock()
        call = Call(asked=asked, caller=caller, id=new_id("t", now), time=now, config=self.config)
        call.kept = self.decisions.collector.may_keep(asked.user)
        await self._decide(call)
        while True:
            call.begin()
            upstream, wire = self.upstreams.of(call.model), self._wire(call)
            try:
                return await (self._begun if asked.stream else self._whole)(call, upstream, wire)
            except FailedError as error:
                await self._failed(call, wire, error)
            except RefusedError as error:
                call.turn(wire.answer, f"status {error.status}")
                await self._end(call, "failed", error=f"the model {call.model} refused with status {error.status}")
                return Reply(status=error.status, headers=self._headers(call), body=_refusal(error))
            except asyncio.CancelledError:  # the caller is gone
                self._gone(call, wire)
                raise

    async def _decide(self, call: Call) -> None:
        """Take the model of the conversation, or ask the policy."""
        asked = call.asked
        if asked.choice is None:
            call.model = asked.model
            return
        eligible = self.models.eligible(asked, call.tried)
        context = asked.context(with_text=self.config.store_content)
        if not call.tried and (stays := await self._stays(asked, call.caller)) in eligible:
            assert stays is not None
            option = next(one for one in self.models.options if one["name"] == stays)
            made = LoggedDecision(
                problem=call.problem,
                context=context,
                eligible=[option],
                action=stays,
                propensity=1.0,
                policy=AFFINITY,
            )
            call.model, call.propensity, call.policy = stays, 1.0, AFFINITY
            call.decisions.append(made)
            return
        default = self.config.default_model
        wanted = DecisionAsked(
            problem=call.problem,
            context=context,
            options=self.models.options,
            default=default if default in eligible else None,
            preferences=msgspec.structs.replace(asked.preferences, allowed=tuple(eligible)),
            conversation=asked.conversation,
            user=asked.user,
        )
        decision, missing = await self.decisions.choose(wanted, call.id if call.kept else None)
        call.model, call.propensity, call.policy = decision.action["name"], decision.propensity, decision.policy
        call.fallback = None if missing is None else missing.reason
        at_ms = call.ms()
        call.decisions += [msgspec.structs.replace(one, at_ms=at_ms) for one in decision.logged]

    async def _stays(self, asked: Asked, caller: Caller) -> str | None:
        key = asked.conversation if asked.continues else None
        if asked.previous is not None:
            key = response_key(asked.previous, caller)
        return None if key is None else await self.conversations.model_of(key)

    def _wire(self, call: Call) -> Wire:
        asked, model = call.asked, call.of_model
        if asked.api == "chat":
            return ChatWire(asked.body, call.model, model)
        if asked.api == "embeddings":
            return EmbeddingsWire(asked.body, call.model, model)
        has_responses = self.config.upstreams[model.upstream].has_responses
        return (ResponsesWire if has_responses else TranslatedWire)(asked.body, call.model, model)

    async def _failed(self, call: Call, wire: Wire, error: FailedError) -> None:
        """Decide among the models that are left; RequestError if there is none."""
        self.upstreams.failed(call.model, error)
        self.counts["attempts failed"] += 1
        call.turn(wire.answer, str(error))
        call.tried[call.model] = str(error)
        log.warning("call %s: the model %s: %s", call.id, call.model, error)
        if call.asked.choice is None or len(call.tried) >= self.config.attempts:
            await self._give_up(call, error)
        try:
            await self._decide(call)
        except RequestError:  # no other model is eligible
            await self._give_up(call, error)

    async def _give_up(self, call: Call, error: FailedError) -> NoReturn:
        await self._end(call, "failed", error=str(error))
        if error.status < 500 and error.status != 429:
            raise AskedError(str(error), code="upstream_refused", status=error.status)
        raise RequestError(str(error), status=error.status, wait_s=error.retry_after_s or 0.0)

    async def _whole(self, call: Call, upstream: Upstream, wire: Wire) -> Reply:
        async with upstream.ask(wire.path, wire.body, stream=False) as response:
            chunks = list[bytes]()
            size = 0
            async for chunk in response.content.iter_any():
                call.first()
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise FailedError(f"the upstream {upstream.name!r} answers without end", status=502)
        try:
            body = wire.whole(b"".join(chunks))
        except BrokenError as error:
            raise _broken(upstream, error) from error
        await self._done(call, wire)
        return Reply(status=200, headers=self._headers(call) | {"content-type": JSON}, body=body)

    async def _begun(self, call: Call, upstream: Upstream, wire: Wire) -> Reply:
        """A stream whose first event is there, so that the model is decided."""
        events = self._events(call, upstream, wire)
        first = await anext(events)
        return Reply(status=200, headers=self._headers(call) | {"content-type": EVENT_STREAM}, body=_all(first, events))

    async def _events(self, call: Call, upstream: Upstream, wire: Wire) -> AsyncIterator[bytes]:
        """What the caller gets; FailedError before the first event, later an event that says so."""
        begun = False
        try:
            try:
                async with upstream.ask(wire.path, wire.body, stream=True) as response:
                    lines = _Lines()
                    while not wire.answer.ended:
                        read = response.content.readany()
                        chunk = await (read if begun else _within(read, upstream.config.first_byte_s))
                        if not chunk:
                            break
                        if out := b"".join(wire.event(data) for data in lines.feed(chunk)):
                            call.first()
                            begun = True
                            yield out
                    if not wire.answer.ended and wire.answer.finish is None:
                        raise BrokenError("it ended before its end")
                    await _to_end(response.content.readany)
            except BrokenError as error:
                raise _broken(upstream, error) from error
        except FailedError as error:
            if not begun:
                raise
            self.upstreams.failed(call.model, error)
            call.turn(wire.answer, str(error))
            await self._end(call, "failed", error=str(error))
            yield wire.failure(str(error), "upstream_failed")
            return
        except (asyncio.CancelledError, GeneratorExit):
            if begun:
                self._gone(call, wire)
            raise
        await self._done(call, wire)
        if last := wire.end():
            yield last

    async def _done(self, call: Call, wire: Wire) -> None:
        """Record a call that was answered, before its caller has all of it and may report on it."""
        call.turn(wire.answer)
        task = await self._end(call, "done", answer_id=wire.answer.id if call.asked.api == "responses" else None)
        if call.asked.choice is not None:
            for key in self._keys(call, wire.answer.id):
                self.conversations.stay(key, call.model)
        if task is not None and call.asked.api != "embeddings":
            self.checks.begin(task, call.asked, wire.answer)

    def _keys(self, call: Call, answer_id: str | None) -> Iterator[str]:
        if call.asked.conversation is not None:
            yield call.asked.conversation
        if call.asked.api == "responses" and answer_id is not None:
            yield response_key(answer_id, call.caller)

    async def _end(self, call: Call, ended: Ended, **about: str | None) -> Trajectory | None:
        """Write the call down, as a task that waits for its outcome, or at once if it has failed. A disk that is full
        does not take an answer away from its caller."""
        if call.ended:
            return None
        call.ended = True
        self.counts[ended] += 1
        if not call.kept:
            return None
        task = call.trajectory(ended, **about)
        with self.decisions.collector.isolated(f"call {call.id}"):
            if ended == "failed":
                await asyncio.to_thread(self.decisions.collector.publish, task)
                return None
            await self.decisions.open(task)
            return task
        return None

    def _gone(self, call: Call, wire: Wire) -> None:
        """Record a call whose caller is gone, by a task of its own: this one is being cancelled."""
        if call.ended:
            return
        call.turn(wire.answer, "the caller disconnected")
        work = asyncio.get_running_loop().create_task(self._end(call, "cancelled", error="the caller disconnected"))
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    def _headers(self, call: Call) -> dict[str, str]:
        found = {"x-etude-model": call.model, "x-etude-decision": self.decisions.ids.sign(call.id, call.caller.tenant)}
        if call.policy is not None:
            found["x-etude-policy"] = call.policy
        if call.propensity is not None:
            found["x-etude-propensity"] = f"{call.propensity:.6g}"
        return found | ({"x-etude-fallback": call.fallback} if call.fallback is not None else {})

    async def close(self) -> None:
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.checks.close()
        await self.conversations.close()
        await self.upstreams.close()


class _Lines:
    """Data of server-sent events, from bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """BrokenError for an event that is too large."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BrokenError("it has an event without end")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()):
                yield data


async def _all(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for one in others:
        yield one


async def _within(read: Awaitable[bytes], limit_s: float) -> bytes:
    async with asyncio.timeout(limit_s):
        return await read


async def _to_end(read: Callable[[], Awaitable[bytes]]) -> None:
    """Read what is left after the last event: nothing, of a service that does as it should."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            while await read():
                continue


def _broken(upstream: Upstream, error: BrokenError) -> FailedError:
    return FailedError(f"the answer of the upstream {upstream.name!r} cannot be used: {error}", status=502)


def _refusal(error: RefusedError) -> bytes:
    """What the upstream said, in OpenAI's form."""
    try:
        found = msgspec.json.decode(error.body)
        if isinstance(found, dict) and isinstance(found.get("error"), dict):
            return error.body
        said = upstream_message(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = error.body[:300].decode("utf-8", "replace")
    kind = "invalid_request_error"
    return msgspec.json.encode(error_of(f"the model refused the request: {said}", kind=kind, code="upstream_refused"))
