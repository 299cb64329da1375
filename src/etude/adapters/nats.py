"""An event bus on NATS JetStream: durable streams, read by groups of consumers on any machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from itertools import count, groupby
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from etude.adapters.delivery import (
    ACK_WAIT_S,
    BACKOFF_S,
    DAY_S,
    MAX_DELIVERIES,
    WaitingLog,
    check_stream,
    exhausted,
    may_expire,
)
from etude.contracts.bus import DeadLetter, Delivery, Message
from etude.contracts.errors import BusError, MissingExtraError, RefusedError
from etude.contracts.services import mask_url
from etude.contracts.subjects import DEAD_LETTERS, STREAMS, TOPICS, stream_of

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error, NoRespondersError
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig
    from nats.js.errors import NotFoundError
except ModuleNotFoundError as error:
    raise MissingExtraError(needs="nats", extra="scale") from error

T = TypeVar("T")

DEAD_PREFIX = "agent.rl.dead."
MSG_ID, ID, REASON, ATTEMPTS = "Nats-Msg-Id", "Etude-Id", "Etude-Reason", "Etude-Attempts"
DUPLICATES_S = 3600.0
HEADROOM = 4096
"""Bytes reserved for headers, those of a dead letter included."""
MAX_REASON_BYTES = 2000
"""Maximum size of a reason in bytes, as sent."""
WINDOW, WINDOW_BYTES = 256, 4 << 20
"""Maximum number and size of concurrent requests."""
ATOMIC_SINCE, ATOMIC_FROM = (2, 12), 4
"""First server version with atomic batches, and the minimum batch size that pays off."""
BATCH_BYTES = 32 << 20
"""Maximum size of the messages in answer to one pull."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 2.0
"""Seconds between attempts to connect."""
TIDY_S = 600.0
"""Seconds between clean-ups of messages beyond their stream's retention."""
AGAIN_S = 0.2
"""Seconds until a task that goes on is cancelled again."""
SIZE_EXCEEDED, NO_MESSAGE = 10054, 10037
"""Error codes of JetStream: message too large for the stream; no message with that number."""


class NatsBus:
    """An EventBus on a NATS server or cluster (`url`, several with commas) that has JetStream.

    It connects in the background, and reconnects for ever. The server drops a message that is sent again within
    DUPLICATES_S, whose ids it holds in memory; stores drop duplicates at any time. Published messages survive the
    death of the server process; they survive a power cut only if the server has `sync_interval: always` in the
    `jetstream` section of its configuration.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "etude",
        ack_wait_s: float = ACK_WAIT_S,
        max_deliveries: int = MAX_DELIVERIES,
        backoff_s: Sequence[float] = BACKOFF_S,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._name, self._timeout_s = url, name, timeout_s
        self._ack_wait_s, self._max_deliveries, self._backoff_s = ack_wait_s, max_deliveries, tuple(backoff_s)
        self._clock = clock
        self._link: _Link | None = None
        self._trouble: BaseException | None = None
        self._closing, self._closed = Lock(), False
        self._next_tidy, self._waiting = 0.0, WaitingLog(f"NATS at {self._hosts()}")
        self._loop = asyncio.new_event_loop()
        self._linked = asyncio.Event()
        self._thread = Thread(target=self._loop.run_forever, name=f"{name}-nats", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._keep_connected(), self._loop)

    def publish(self, messages: Sequence[Message]) -> None:
        """RefusedError if a message is too large for the server: then none is sent. An empty sequence tests the bus."""
        for message in messages:
            stream_of(message.subject)
        self._call(self._publish, messages)

    def pull(self, stream: str, group: str, *, limit: int, timeout_s: float) -> list[Delivery]:
        check_stream(stream)
        _check_group(group)
        return self._call(self._pull, stream, group, limit, timeout_s)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._call(_Link.ask, [_Request(delivery.handle.reply, b"+ACK") for delivery in deliveries])

    def renew(self, deliveries: Sequence[Delivery]) -> None:
        self._call(_Link.ask, [_Request(delivery.handle.reply, b"+WPI") for delivery in deliveries])

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self._call(_Link.ask, [_Request(delivery.handle.reply, b"-NAK") for delivery in deliveries])

    def bury(self, delivery: Delivery, *, reason: str) -> None:
        self._call(_bury, delivery, reason)

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        return self._call(_dead_letters, after, limit)

    def replay(self, numbers: Sequence[int]) -> int:
        return self._call(_replay, list(dict.fromkeys(numbers)))

    def pending(self, stream: str, group: str) -> int:
        check_stream(stream)
        _check_group(group)
        return self._call(_pending, stream, group)

    def erase(self, match: Callable[[Message], bool]) -> int:
        """Overwrite and remove matching messages. `match` runs in the bus's thread: it must not use the bus."""
        return self._call(_erase_all, match)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _publish(self, link: _Link, messages: Sequence[Message]) -> None:
        room = link.client.max_payload - HEADROOM
        for message in messages:
            if len(message.body) > room:
                raise RefusedError(
                    f"{message.subject} {message.id!r} has {len(message.body):,} bytes, and NATS at {self._hosts()} "
                    f"takes {room:,} (max_payload without headers): raise max_payload there, or send less"
                )
        for stream, run in groupby(messages, key=lambda message: stream_of(message.subject)):
            requests = [
                _Request(m.subject, m.body, {MSG_ID: f"{m.subject}:{_quoted(m.id)}", ID: _quoted(m.id)}) for m in run
            ]
            for window in _windows(requests):
                if stream not in link.atomic or len(window) < ATOMIC_FROM or not await _send_at_once(link, window):
                    await _send(link, window)

    async def _pull(self, link: _Link, stream: str, group: str, limit: int, timeout_s: float) -> list[Delivery]:
        await self._tidy_now_and_then(link)
        if (stream, group) not in link.consumers:
            await link.jetstream.add_consumer(stream, self._consumer(group))
            link.consumers.add((stream, group))
        deadline = time.monotonic() + timeout_s
        while True:
            found = await link.fetch(stream, group, limit)
            left = deadline - time.monotonic()
            if not found and left > 0:
                found = await link.fetch(stream, group, 1, wait_s=left)
                if found and limit > 1:
                    found += await link.fetch(stream, group, limit - 1)
            deliveries = [_delivery(message) for message in found]
            good = [delivery for delivery in deliveries if delivery.attempt <= self._max_deliveries]
            for delivery in deliveries:
                if delivery.attempt > self._max_deliveries:
                    await _bury(link, delivery, exhausted(self._max_deliveries), attempts=self._max_deliveries)
            if good or time.monotonic() >= deadline:
                return good

    async def _tidy_now_and_then(self, link: _Link) -> None:
        """Remove old acknowledged messages regularly; the server's own expiry ignores acknowledgements."""
        if time.monotonic() < self._next_tidy:
            return
        self._next_tidy = time.monotonic() + TIDY_S
        try:
            for stream in (stream for stream in STREAMS if stream != DEAD_LETTERS):
                before = self._clock() - STREAMS[stream] * DAY_S
                late, since, slow = await _expire(link, stream, datetime.fromtimestamp(before, UTC))
                if late > 0:
                    self._waiting.warn(stream, late, self._clock() - since, slow)
        except TimeoutError:
            if not isinstance(link.trouble, Error) or "permissions violation" not in str(link.trouble).lower():
                raise
            self._next_tidy = float("inf")  # this user may not: one with more permissions does

    def _consumer(self, group: str) -> ConsumerConfig:
        """A consumer without a delivery limit: we bury messages ourselves, the server would drop them silently."""
        waits = [self._ack_wait_s + wait for wait in self._backoff_s]
        return ConsumerConfig(
            name=group,
            durable_name=group,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=waits[0] if waits else self._ack_wait_s,
            backoff=waits or None,
            max_deliver=-1,
            max_ack_pending=-1,  # messages that wait for a retry must not block new ones
        )

    def _call(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine in the bus's loop and wait for its result."""
        if self._closed:
            raise BusError(f"NATS at {self._hosts()}: the bus is closed: make another one")
        future = asyncio.run_coroutine_threadsafe(self._do(work, *args), self._loop)
        try:
            return future.result()
        except CancelledError as error:
            raise BusError(f"NATS at {self._hosts()}: the bus was closed meanwhile") from error
        except BaseException:
            future.cancel()
            raise

    async def _do(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        link = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while (link := self._link) is None:
                    await self._linked.wait()
            return await work(link, *args)
        except NoRespondersError as error:
            if link is not None:
                await link.close()  # a stream or consumer was deleted: connecting creates them again
            raise self._away("JetStream does not answer for a stream", error) from error
        except TimeoutError as error:
            raise self._away(f"no answer within {self._timeout_s:g} s", self._trouble) from error
        except (Error, OSError) as error:
            raise self._away("it failed", error) from error

    def _away(self, what: str, error: BaseException | None) -> BusError:
        # An error about a URL may quote a part of its password.
        why = f" ({error})" if error is not None and str(error) and not isinstance(error, ValueError) else ""
        return BusError(f"NATS at {self._hosts()}: {what}{why}: check that it runs with JetStream, and do it again")

    def _hosts(self) -> str:
        return ", ".join(part.rpartition("://")[2] for part in mask_url(self._url).rpartition("@")[2].split(","))

    async def _keep_connected(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            link = _Link(timeout_s=self._timeout_s)
            try:
                await link.open([part.strip() for part in self._url.split(",")], self._name)
                await self._ensure_streams(link)
                self._link, self._trouble, pause_s = link, None, FIRST_PAUSE_S
                self._linked.set()
                await link.lost.wait()
            except Exception as error:
                self._trouble = link.trouble or error
            finally:
                self._link = None
                self._linked.clear()
                await link.close()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _ensure_streams(self, link: _Link) -> None:
        """Create the streams, or update ours; an operator's other settings stay."""
        version = link.client.connected_server_version
        for name, days in STREAMS.items():
            ours: dict[str, Any] = {
                "subjects": _subjects(name),
                "max_age": days * DAY_S
                if name == DEAD_LETTERS
                else 0.0,  # in other streams only acknowledged messages are removed
                "duplicate_window": min(DUPLICATES_S, days * DAY_S),
            }
            if (version.major, version.minor) >= ATOMIC_SINCE:
                ours["allow_atomic"] = True
                link.atomic.add(name)
            try:
                config = (await link.jetstream.stream_info(name)).config
            except NotFoundError:
                kind: dict[str, Any] = {"retention": RetentionPolicy.LIMITS, "storage": StorageType.FILE}
                await link.jetstream.add_stream(StreamConfig(name=name, **kind, **ours))
                continue
            if any(getattr(config, key) != value for key, value in ours.items()):
                await link.jetstream.update_stream(config.evolve(**ours))

    async def _end(self) -> None:
        """Cancel everything else, again where a task goes on: the client swallows a cancellation that meets its own."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        while others:
            for task in others:
                task.cancel()
            done, others = await asyncio.wait(others, timeout=AGAIN_S)
            for task in done:
                if not task.cancelled():
                    task.exception()  # it is of no interest any more


class _Request(NamedTuple):
    subject: str
    payload: bytes = b""
    headers: dict[str, str] | None = None
    quiet: bool = False  # no answer is expected


class _Handle(NamedTuple):
    """Of a delivery: where it is answered, and which message it is."""

    reply: str
    stream: str
    group: str
    number: int


class _Link:
    """One connection, from when it is made to when it breaks."""

    def __init__(self, *, timeout_s: float) -> None:
        self.client = Client()
        self.jetstream = self.client.jetstream(timeout=timeout_s)
        self.lost = asyncio.Event()
        self.trouble: Exception | None = None
        self._timeout_s = timeout_s
        self.atomic: set[str] = set()
        """Streams with atomic batches."""
        self.consumers: set[tuple[str, str]] = set()
        """Streams and groups that are known to the server."""
        self._tokens = count()
        self._inbox = ""
        self._waiting: dict[str, asyncio.Future[Msg | None]] = {}

    async def open(self, servers: list[str], name: str) -> None:
        await self.client.connect(
            servers,
            name=name,
            allow_reconnect=False,  # the bus reconnects with a new link, without pending data of the old one
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            inbox_prefix=_inbox(servers[0]),
            connect_timeout=max(1, int(self._timeout_s)),
            ping_interval=10,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
        )
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._on_answer, pending_msgs_limit=0, pending_bytes_limit=0)

    async def close(self) -> None:
        with suppress(Exception):  # also for a connection that never succeeded
            await self.client.close()
        await self._on_closed()

    async def ask(self, requests: Sequence[_Request]) -> list[Msg]:
        """The answers in the order of the requests, which are sent concurrently."""
        return [answer for window in _windows(requests) for answer in await self._ask(window)]

    async def fetch(self, stream: str, consumer: str, limit: int, *, wait_s: float = 0.0) -> list[Msg]:
        """Available messages up to a limit; if there are none, those that come before the timeout."""
        inbox = self.client.new_inbox()
        found: list[Msg] = []
        over: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()

        async def take(message: Msg) -> None:
            status = _status(message)
            if status is None:
                found.append(message)
            if (status is not None or len(found) == limit) and not over.done():
                over.set_result(message)

        request: dict[str, Any] = {"batch": limit, "max_bytes": max(BATCH_BYTES, 2 * self.client.max_payload)}
        request |= {"expires": int(wait_s * 1e9)} if wait_s > 0 else {"no_wait": True}
        self._waiting[inbox] = over
        subscription = await self.client.subscribe(inbox, cb=take, pending_msgs_limit=0, pending_bytes_limit=0)
        try:
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
            await self.client.publish(subject, json.dumps(request).encode(), reply=inbox)
            async with asyncio.timeout(wait_s + self._timeout_s):
                last = await over
        except TimeoutError:
            if not found:
                raise
        else:
            if not found:
                _check_answers([last])
        finally:
            self._waiting.pop(inbox, None)
            with suppress(Exception):  # the connection may be broken
                await subscription.unsubscribe()
        return found

    async def _ask(self, requests: Sequence[_Request]) -> list[Msg]:
        loop = asyncio.get_running_loop()
        futures: dict[str, asyncio.Future[Msg | None]] = {}
        try:
            async with asyncio.timeout(self._timeout_s):
                for subject, payload, headers, quiet in requests:
                    token = str(next(self._tokens))
                    reply = "" if quiet else f"{self._inbox}.{token}"
                    if reply:
                        futures[token] = self._waiting[token] = loop.create_future()
                    await self.client.publish(subject, payload, reply=reply, headers=headers)
                answers = [await future for future in futures.values()]
        finally:
            for token in futures:
                self._waiting.pop(token, None)
        return _check_answers(answers)

    async def _on_answer(self, message: Msg) -> None:
        future = self._waiting.get(message.subject.rpartition(".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    async def _on_error(self, error: Exception) -> None:
        self.trouble = error

    async def _on_closed(self) -> None:
        """Fail all requests that wait for an answer."""
        self.lost.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)


async def _send(link: _Link, requests: Sequence[_Request]) -> None:
    """Publish messages and wait until the server has confirmed that each is stored."""
    for request, answer in zip(requests, await link.ask(requests), strict=True):
        error = json.loads(answer.data).get("error")
        if error is not None:
            kind = RefusedError if error.get("err_code") == SIZE_EXCEEDED else BusError
            raise kind(f"NATS did not store a message of {request.subject}: {error.get('description')}")


async def _send_at_once(link: _Link, requests: Sequence[_Request]) -> bool:
    """Publish a window as one atomic batch, with one disk sync. False if one is a duplicate: then none is stored."""
    batch, last = link.client.new_inbox().rpartition(".")[2], len(requests)
    parts = []
    for number, request in enumerate(requests, start=1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        headers |= {"Nats-Batch-Commit": "1"} if number == last else {}
        parts.append(request._replace(headers=(request.headers or {}) | headers, quiet=number < last))
    (answer,) = await link.ask(parts)
    return "error" not in json.loads(answer.data)


async def _bury(link: _Link, delivery: Delivery, reason: str, *, attempts: int | None = None) -> None:
    """Store a dead letter, then end the message: if the process dies in between, it is redelivered."""
    message, handle = delivery.message, delivery.handle
    headers = {
        MSG_ID: f"dead:{handle.stream}:{handle.group}:{handle.number}",
        ID: _quoted(message.id),
        REASON: _quoted(reason)[:MAX_REASON_BYTES],
        ATTEMPTS: str(attempts or delivery.attempt),
    }
    await _send(link, [_Request(DEAD_PREFIX + message.subject, message.body, headers)])
    await link.ask([_Request(handle.reply, b"+TERM")])


async def _dead_letters(link: _Link, after: int, limit: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    async with aclosing(_scan(link, DEAD_LETTERS, after, limit=limit)) as batches:
        async for batch in batches:
            found += [_dead_letter(message) for message in batch]
            if len(found) >= limit:
                break
    return found[:limit]


async def _replay(link: _Link, numbers: Sequence[int]) -> int:
    """Publish dead letters, then remove them: if the process dies in between, duplicates are dropped."""
    done = 0
    for number in numbers:
        try:
            found = await link.jetstream.get_msg(DEAD_LETTERS, number)
        except NotFoundError:
            continue
        headers = {MSG_ID: f"replay:{number}:{found.time}", ID: (found.headers or {}).get(ID, "")}
        await _send(link, [_Request((found.subject or "").removeprefix(DEAD_PREFIX), found.data or b"", headers)])
        done += await _delete(link, DEAD_LETTERS, [number])
    return done


async def _pending(link: _Link, stream: str, group: str) -> int:
    try:
        info = await link.jetstream.consumer_info(stream, group)
    except NotFoundError:
        return (await link.jetstream.stream_info(stream)).state.messages
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


async def _expire(link: _Link, stream: str, before: datetime) -> tuple[int, float, list[str]]:
    """Remove older messages that every group has acknowledged.

    Return how many still wait, when the oldest was published, and for which groups.
    """
    oldest = await _first(link, stream, 0)
    if oldest is None or oldest.metadata.timestamp >= before:
        return 0, 0.0, []
    state, since = (await link.jetstream.stream_info(stream)).state, await _first(link, stream, before)
    newer = state.last_seq + 1 if since is None else since.metadata.sequence.stream
    consumers = await link.jetstream.consumers_info(stream)
    floors = {c.name: c.ack_floor.stream_seq for c in consumers if c.config.ack_policy == "explicit" and c.ack_floor}
    acknowledged = state.last_seq if may_expire(stream, floors) else min(floors.values(), default=0)
    end = min(newer, acknowledged + 1)
    if end > state.first_seq:
        await link.jetstream.purge_stream(stream, seq=end)
    late = newer - max(end, state.first_seq)
    slow = [name for name, floor in floors.items() if floor < newer - 1]
    return late, oldest.metadata.timestamp.timestamp(), slow


async def _first(link: _Link, stream: str, after: int | datetime) -> Msg | None:
    async with aclosing(_scan(link, stream, after, limit=1)) as batches:
        async for batch in batches:
            return batch[0]
    return None


async def _erase_all(link: _Link, match: Callable[[Message], bool]) -> int:
    """Erase in all streams; twice, since a dead letter may be replayed meanwhile."""
    others = [stream for stream in STREAMS if stream != DEAD_LETTERS]
    done, last = 0, dict.fromkeys(STREAMS, 0)
    for stream in (*others, DEAD_LETTERS, *others):
        async for batch in _scan(link, stream, last[stream]):
            numbers = [message.metadata.sequence.stream for message in batch]
            found = [number for number, m in zip(numbers, batch, strict=True) if match(_message(m))]
            done += await _delete(link, stream, found)
            last[stream] = numbers[-1]
    return done


async def _scan(
    link: _Link, stream: str, after: int | datetime, *, limit: int = 1000
) -> AsyncGenerator[list[Msg], None]:
    """All messages above a number or since a time, in batches."""
    config = ConsumerConfig(
        name=f"scan-{link.client.new_inbox().rpartition('.')[2]}",
        deliver_policy=DeliverPolicy.BY_START_TIME if isinstance(after, datetime) else DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=None if isinstance(after, datetime) else after + 1,
        opt_start_time=after if isinstance(after, datetime) else None,
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
        inactive_threshold=60,
    )
    assert config.name is not None
    await link.jetstream.add_consumer(stream, config)
    try:
        while batch := await link.fetch(stream, config.name, limit):
            yield batch
            if batch[-1].metadata.num_pending == 0:
                break
    finally:
        with suppress(Exception):  # the server removes it when it is not read
            await link.jetstream.delete_consumer(stream, config.name)


async def _delete(link: _Link, stream: str, numbers: Sequence[int]) -> int:
    """Overwrite and delete messages; return how many existed."""
    subject = f"$JS.API.STREAM.MSG.DELETE.{stream}"
    done = 0
    for answer in await link.ask([_Request(subject, json.dumps({"seq": number}).encode()) for number in numbers]):
        error = json.loads(answer.data).get("error")
        if error is None:
            done += 1
        elif error.get("code") != 404 and error.get("err_code") != NO_MESSAGE:
            raise BusError(f"NATS did not remove a message of {stream}: {error.get('description')}")
    return done


def _quoted(text: str) -> str:
    """The text, encoded for a header."""
    return quote(text, safe=":@+,/'()", errors="replace")


def _delivery(found: Msg) -> Delivery:
    meta = found.metadata
    handle = _Handle(reply=found.reply, stream=meta.stream, group=meta.consumer, number=meta.sequence.stream)
    return Delivery(message=_message(found), attempt=meta.num_delivered, handle=handle)


def _dead_letter(found: Msg) -> DeadLetter:
    meta, headers = found.metadata, found.headers or {}
    return DeadLetter(
        number=meta.sequence.stream,
        message=_message(found),
        reason=unquote(headers.get(REASON, "")),
        attempts=int(headers.get(ATTEMPTS, 0)),
        time=meta.timestamp,
    )


def _message(found: Msg) -> Message:
    """The message; one without our header, from another program, gets the server's id or its number."""
    headers, subject = found.headers or {}, found.subject.removeprefix(DEAD_PREFIX)
    sent = headers.get(MSG_ID, "").removeprefix(f"{subject}:") or str(found.metadata.sequence.stream)
    return Message(id=unquote(headers[ID]) if ID in headers else sent, subject=subject, body=found.data)


def _check_answers(answers: Sequence[Msg | None]) -> list[Msg]:
    good = [answer for answer in answers if answer is not None]
    if len(good) < len(answers):
        raise ConnectionError("the connection broke")
    if any(_status(answer) == "503" for answer in good):
        raise NoRespondersError
    return good


def _status(message: Msg) -> str | None:
    """The status of a message from the server itself; None for any other."""
    return (message.headers or {}).get("Status") if not message.data else None


def _windows(requests: Sequence[_Request]) -> Iterator[list[_Request]]:
    window: list[_Request] = []
    size = 0
    for request in requests:
        window.append(request)
        size += len(request.payload)
        if len(window) == WINDOW or size >= WINDOW_BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


def _subjects(stream: str) -> list[str]:
    """Subjects of a stream, of every version."""
    if stream == DEAD_LETTERS:
        return [DEAD_PREFIX + ">"]
    families = dict.fromkeys(topic.subject.rpartition(".")[0] for topic in TOPICS if topic.stream == stream)
    return [subject for family in families for subject in (family, f"{family}.*")]


def _inbox(url: str) -> str:
    """Where answers arrive: below a subject of the user's own, so that permissions can keep users from each other's."""
    user = "".join(c for c in unquote(urlsplit(url).username or "") if c.isalnum() or c in "-_")
    return f"_INBOX_{user}" if user else "_INBOX"


def _check_group(group: str) -> None:
    if not group or any(character in " .*>/\\\t\r\n" for character in group):
        raise BusError(f"group {group!r} cannot be a NATS consumer: expected a name without space . * > / \\")
