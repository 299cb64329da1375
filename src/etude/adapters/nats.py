"""An event bus on NATS JetStream: messages to durable streams, and from them to groups of consumers on any machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import aclosing, suppress
from itertools import count, groupby
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

from etude.adapters.memory_bus import ACK_WAIT_S, BACKOFF_S, DAY_S, MAX_DELIVERIES, backoff, check_stream, exhausted
from etude.contracts.bus import DeadLetter, Delivery, Message
from etude.contracts.errors import BusError, MissingExtraError, RefusedError
from etude.contracts.subjects import DEAD_LETTERS, STREAMS, TOPICS, stream_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerConfig

T = TypeVar("T")

DEAD_PREFIX = "agent.rl.dead."
MSG_ID, ID, REASON, ATTEMPTS = "Nats-Msg-Id", "Etude-Id", "Etude-Reason", "Etude-Attempts"
HEADROOM = 4096
"""Bytes that a payload leaves to its headers, those of a dead letter included."""
LONGEST_REASON = 2000
"""Bytes as they are sent."""
WINDOW, WINDOW_BYTES = 256, 4 << 20
"""Requests that are under way at once."""
ATOMIC_SINCE, ATOMIC_FROM = (2, 12), 4
"""The server that takes several messages as one, and how many are worth it."""
BATCH_BYTES = 32 << 20
"""Of the messages that the server sends in answer to one pull."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Between two tries to connect."""
SIZE_EXCEEDED, NO_MESSAGE = 10054, 10037
"""JetStream's codes of errors: larger than the stream takes; no message with that number."""


class NatsBus:
    """An EventBus on a NATS server or cluster (`url`, several with commas) that has JetStream.

    It connects in the background, and again for ever when the connection breaks. A message that is sent again within
    `duplicates_s` is dropped by the server, which holds the ids of that time in memory; consumers know longer.
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
        duplicates_s: float = 3600.0,
        replicas: int | None = None,
    ) -> None:
        """`replicas` are the servers of a cluster that hold each message; as an operator set it where it is None."""
        try:
            import nats  # noqa: F401
        except ModuleNotFoundError as error:
            raise MissingExtraError(needs="nats", extra="scale") from error
        self._servers, self._name, self._timeout_s = [part.strip() for part in url.split(",")], name, timeout_s
        self._ack_wait_s, self._max_deliveries, self._backoff_s = ack_wait_s, max_deliveries, tuple(backoff_s)
        self._duplicates_s, self._replicas = duplicates_s, replicas
        self._link: _Link | None = None
        self._trouble: BaseException | None = None
        self._closing, self._closed = Lock(), False
        self._loop = asyncio.new_event_loop()
        self._linked = asyncio.Event()
        self._thread = Thread(target=self._loop.run_forever, name=f"{name}-nats", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._keep_connected(), self._loop)

    def publish(self, messages: Sequence[Message]) -> None:
        """RefusedError where one is larger than the server takes: then none was sent. An empty one tries the bus."""
        for message in messages:
            stream_of(message.subject)
        self._call(self._publish, messages)

    def pull(self, stream: str, group: str, *, limit: int, timeout_s: float) -> list[Delivery]:
        check_stream(stream)
        _check_group(group)
        return self._call(self._pull, stream, group, limit, timeout_s)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._call(_tell, [_Request(delivery.handle.reply, b"+ACK") for delivery in deliveries])

    def retry(self, delivery: Delivery, *, reason: str, delay_s: float | None = None) -> None:
        if delivery.attempt >= self._max_deliveries:
            self.bury(delivery, reason=reason)
            return
        delay = backoff(self._backoff_s, delivery.attempt) if delay_s is None else delay_s
        nak = b'-NAK {"delay": %d}' % (delay * 1e9) if delay > 0 else b"-NAK"
        self._call(_tell, [_Request(delivery.handle.reply, nak)])

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
        """The server overwrites what it removes. `match` is called from the bus's thread: it must not use the bus."""
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
            for window in _windows([_Request(m.subject, m.body, _headers(m)) for m in run]):
                if stream not in link.atomic or len(window) < ATOMIC_FROM or not await _send_at_once(link, window):
                    await _send(link, window)

    async def _pull(self, link: _Link, stream: str, group: str, limit: int, timeout_s: float) -> list[Delivery]:
        await link.ensure_consumer(stream, self._consumer(group))
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

    def _consumer(self, group: str) -> ConsumerConfig:
        """Given again for ever: we bury what was given too often, the server would only fall silent about it."""
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        waits = [self._ack_wait_s + wait for wait in self._backoff_s]
        return ConsumerConfig(
            name=group,
            durable_name=group,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=waits[0] if waits else self._ack_wait_s,
            backoff=waits or None,
            max_deliver=-1,
            max_ack_pending=-1,  # what waits for its next attempt must not keep others from their first
        )

    def _call(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Let the loop do it, and wait."""
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
        from nats.errors import Error, NoRespondersError

        link = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while (link := self._link) is None:
                    await self._linked.wait()
            return await work(link, *args)
        except NoRespondersError as error:
            if link is not None:
                await link.close()  # a stream or consumer has gone: connecting makes them anew
            raise self._away("JetStream does not answer for a stream", error) from error
        except TimeoutError as error:
            raise self._away(f"no answer within {self._timeout_s:g} s", self._trouble) from error
        except (Error, OSError) as error:
            raise self._away("it failed", error) from error

    def _away(self, what: str, error: BaseException | None) -> BusError:
        why = f" ({error})" if error is not None and str(error) else ""
        return BusError(f"NATS at {self._hosts()}: {what}{why}: check that it runs with JetStream, and do it again")

    def _hosts(self) -> str:
        """Without passwords."""
        return ", ".join((urlsplit(server).netloc or server).rpartition("@")[2] for server in self._servers)

    async def _keep_connected(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            link = _Link(timeout_s=self._timeout_s)
            try:
                await link.open(self._servers, self._name)
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
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _ensure_streams(self, link: _Link) -> None:
        """What an operator set besides stays as it is."""
        from nats.js.api import RetentionPolicy, StorageType, StreamConfig
        from nats.js.errors import NotFoundError

        version = link.client.connected_server_version
        for name, days in STREAMS.items():
            ours: dict[str, Any] = {
                "subjects": _subjects(name),
                "max_age": days * DAY_S,
                "duplicate_window": min(self._duplicates_s, days * DAY_S),
            }
            if self._replicas is not None:
                ours["num_replicas"] = self._replicas
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
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _Request(NamedTuple):
    subject: str
    payload: bytes = b""
    headers: dict[str, str] | None = None
    quiet: bool = False  # nobody waits for an answer


class _Handle(NamedTuple):
    """Of a delivery: where it is answered, and which message it is."""

    reply: str
    stream: str
    group: str
    number: int


class _Link:
    """One connection, from when it is made to when it breaks."""

    def __init__(self, *, timeout_s: float) -> None:
        from nats.aio.client import Client

        self.client: Client = Client()
        self.jetstream: JetStreamContext = self.client.jetstream(timeout=timeout_s)
        self.lost = asyncio.Event()
        self.trouble: Exception | None = None
        self._timeout_s = timeout_s
        self.atomic: set[str] = set()
        """Streams that take several messages as one."""
        self._consumers: set[tuple[str, str | None]] = set()
        self._tokens = count()
        self._inbox = ""
        self._waiting: dict[str, asyncio.Future[Msg | None]] = {}

    async def open(self, servers: list[str], name: str) -> None:
        await self.client.connect(
            servers,
            name=name,
            allow_reconnect=False,  # the bus does, with a new link: nothing of the old one is left to be sent
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=max(1, int(self._timeout_s)),
            ping_interval=10,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
        )
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*", cb=self._on_answer, pending_msgs_limit=0, pending_bytes_limit=0)

    async def close(self) -> None:
        with suppress(Exception):  # of a connection that never stood, too
            await self.client.close()
        await self._on_closed()

    async def ask(self, requests: Sequence[_Request]) -> list[Msg]:
        """The answers, in the order of the requests, many of which are under way at once."""
        return [answer for window in _windows(requests) for answer in await self._ask(window)]

    async def ensure_consumer(self, stream: str, config: ConsumerConfig) -> None:
        if (stream, config.name) not in self._consumers:
            await self.jetstream.add_consumer(stream, config)
            self._consumers.add((stream, config.name))

    async def fetch(self, stream: str, consumer: str, limit: int, *, wait_s: float = 0.0) -> list[Msg]:
        """What there is, up to a limit; where there is nothing, what comes until the wait is over."""
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
            with suppress(Exception):  # of a connection that broke
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
        """Nobody waits for what cannot come."""
        self.lost.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None)


async def _tell(link: _Link, requests: Sequence[_Request]) -> None:
    await link.ask(requests)


async def _send(link: _Link, requests: Sequence[_Request]) -> None:
    """Publish; when it returns the server has said of each that it is stored."""
    for request, answer in zip(requests, await link.ask(requests), strict=True):
        error = json.loads(answer.data).get("error")
        if error is not None:
            kind = RefusedError if error.get("err_code") == SIZE_EXCEEDED else BusError
            raise kind(f"NATS did not store a message of {request.subject}: {error.get('description')}")


async def _send_at_once(link: _Link, requests: Sequence[_Request]) -> bool:
    """Publish a window as one: the server waits for its disk once. Where one is a duplicate none is stored: False."""
    batch, last = link.client.new_inbox().rpartition(".")[2], len(requests)
    parts = []
    for number, request in enumerate(requests, start=1):
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
        headers |= {"Nats-Batch-Commit": "1"} if number == last else {}
        parts.append(request._replace(headers=(request.headers or {}) | headers, quiet=number < last))
    (answer,) = await link.ask(parts)
    return "error" not in json.loads(answer.data)


async def _bury(link: _Link, delivery: Delivery, reason: str, *, attempts: int | None = None) -> None:
    """First kept as a dead letter, then ended: who dies in between leaves it to be given again."""
    message, handle = delivery.message, delivery.handle
    headers = {
        MSG_ID: f"dead:{handle.stream}:{handle.group}:{handle.number}",
        ID: _quoted(message.id),
        REASON: _quoted(reason)[:LONGEST_REASON],
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
    """Sent anew first: who dies in between leaves a dead letter that is not sent twice."""
    from nats.js.errors import NotFoundError

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
    from nats.js.errors import NotFoundError

    try:
        info = await link.jetstream.consumer_info(stream, group)
    except NotFoundError:
        return (await link.jetstream.stream_info(stream)).state.messages
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


async def _erase_all(link: _Link, match: Callable[[Message], bool]) -> int:
    """Streams twice: a dead letter may be replayed while this goes on."""
    others = [stream for stream in STREAMS if stream != DEAD_LETTERS]
    done, last = 0, dict.fromkeys(STREAMS, 0)
    for stream in (*others, DEAD_LETTERS, *others):
        async for batch in _scan(link, stream, last[stream]):
            numbers = [message.metadata.sequence.stream for message in batch]
            found = [number for number, m in zip(numbers, batch, strict=True) if match(_message(m))]
            done += await _delete(link, stream, found)
            last[stream] = numbers[-1]
    return done


async def _scan(link: _Link, stream: str, after: int, *, limit: int = 1000) -> AsyncGenerator[list[Msg], None]:
    """All messages above a number, in batches."""
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    config = ConsumerConfig(
        name=f"scan-{link.client.new_inbox().rpartition('.')[2]}",
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=after + 1,
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
        with suppress(Exception):  # it ends by itself when nobody reads
            await link.jetstream.delete_consumer(stream, config.name)


async def _delete(link: _Link, stream: str, numbers: Sequence[int]) -> int:
    """Overwritten, not only marked; how many were still there."""
    subject = f"$JS.API.STREAM.MSG.DELETE.{stream}"
    done = 0
    for answer in await link.ask([_Request(subject, json.dumps({"seq": number}).encode()) for number in numbers]):
        error = json.loads(answer.data).get("error")
        if error is None:
            done += 1
        elif error.get("code") != 404 and error.get("err_code") != NO_MESSAGE:
            raise BusError(f"NATS did not remove a message of {stream}: {error.get('description')}")
    return done


def _headers(message: Message) -> dict[str, str]:
    return {MSG_ID: f"{message.subject}:{_quoted(message.id)}", ID: _quoted(message.id)}


def _quoted(text: str) -> str:
    """As a header can say it."""
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
    """Others than Etude may publish, too: without our header the server's id is taken, or the number."""
    headers, subject = found.headers or {}, found.subject.removeprefix(DEAD_PREFIX)
    sent = headers.get(MSG_ID, "").removeprefix(f"{subject}:") or str(found.metadata.sequence.stream)
    return Message(id=unquote(headers[ID]) if ID in headers else sent, subject=subject, body=found.data)


def _check_answers(answers: Sequence[Msg | None]) -> list[Msg]:
    from nats.errors import NoRespondersError

    good = [answer for answer in answers if answer is not None]
    if len(good) < len(answers):
        raise ConnectionError("the connection broke")
    if any(_status(answer) == "503" for answer in good):
        raise NoRespondersError
    return good


def _status(message: Msg) -> str | None:
    """Of a message that the server itself made: it has a status and nothing else."""
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
    """Every version of them."""
    if stream == DEAD_LETTERS:
        return [DEAD_PREFIX + ">"]
    families = dict.fromkeys(topic.subject.rpartition(".")[0] for topic in TOPICS if topic.stream == stream)
    return [subject for family in families for subject in (family, f"{family}.*")]


def _check_group(group: str) -> None:
    if not group or any(character in " .*>/\\\t\r\n" for character in group):
        raise BusError(f"group {group!r} cannot be a NATS consumer: expected a name without space . * > / \\")
