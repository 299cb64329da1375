"""A chat service on a free port of this machine that answers as scripted: well, late, wrongly, partly or not at all.

In this process: `async with ChatServer([Act.BUSY, Act.ANSWER]) as server: … server.url`. In one of its own, for
benchmarks: `python -m tests.chat_server '{"chances": {"hang": 0.05, "busy": 0.1}, "seed": 1}'`, which prints the URL
and serves until its stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from random import Random
from threading import Thread
from typing import Any, cast

USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}


class Act(StrEnum):
    """How the server treats a request."""

    ANSWER = "answer"  # as a stream, where the request says so
    STALL = "stall"  # half of it, then silence
    HANG = "hang"  # silence
    DIE = "die"  # half of it, then the connection is closed
    DROP = "drop"  # the connection is closed, nothing is said
    GARBAGE = "garbage"  # status 200, and no JSON
    BUSY = "busy"  # 429
    ERROR = "error"  # 500
    WRONG = "wrong"  # 400
    UNAUTHORISED = "unauthorised"  # 401


def response(status: int, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """A whole HTTP response, for the script in place of an act."""
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def events(*data: Any, kind: str = "text/event-stream", end: bool = True) -> bytes:
    """A response that streams these, texts as they stand."""
    lines = [f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n".encode() for one in data]
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines) + (b"0\r\n\r\n" if end else b"")


def delta(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An event of a stream."""
    return {"choices": [{"index": 0, "delta": {"content": text} | more, "finish_reason": finish}]}


def message(
    text: str | None, finish: str = "stop", usage: Mapping[str, Any] | None = USAGE, **more: Any
) -> dict[str, Any]:
    """A whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text} | more, "finish_reason": finish}
    return {"choices": [choice]} | ({"usage": usage} if usage else {})


class ChatServer:
    """Follows `script` first, one entry per request; then samples by `chances` and `seed`; else it answers."""

    def __init__(
        self,
        script: Iterable[Act | bytes] = (),
        *,
        chances: Mapping[Act | str, float] = {},
        seed: int = 0,
        answer: Callable[[dict[str, Any]], str] = lambda request: "all is well",
        usage: Mapping[str, int] | None = USAGE,
        latency_s: float = 0.0,
        piece_bytes: int | None = None,  # answers come in pieces of this size
        retry_after: str | None = "0",  # the header of 429
        keep: int = 1000,  # requests to keep
    ) -> None:
        self.script = deque(script)
        self.answer, self.usage, self.latency_s, self.piece_bytes = answer, usage, latency_s, piece_bytes
        self.requests = self.connected = 0
        self.acts: Counter[str] = Counter()
        self.asked: deque[dict[str, Any]] = deque(maxlen=keep)
        self.paths: deque[str] = deque(maxlen=keep)
        self.headers: deque[dict[str, str]] = deque(maxlen=keep)
        self.connections: set[asyncio.Transport] = set()
        self.url = ""
        self._chances = [(Act(act), chance) for act, chance in chances.items()]
        self._random = Random(seed)
        busy = [f"Retry-After: {retry_after}"] if retry_after is not None else []
        self._canned = {
            Act.GARBAGE: response(200, b"<html>Bad Gateway</html>"),
            Act.BUSY: response(429, b'{"error": {"message": "slow down"}}', *busy),
            Act.ERROR: response(500, b'{"error": {"message": "out of order"}}'),
            Act.WRONG: response(400, b'{"error": {"message": "too long"}}'),
            Act.UNAUTHORISED: response(401, b'{"error": {"message": "wrong key"}}'),
        }
        self._made: dict[tuple[str, bool], bytes] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ChatServer:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=4096)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for transport in list(self.connections):
            transport.abort()
        await self._server.wait_closed()
        while self.connections:
            await asyncio.sleep(0)

    def next_act(self) -> Act | bytes:
        if self.script:
            return self.script.popleft()
        left = self._random.random() if self._chances else 1.0
        for act, chance in self._chances:
            left -= chance
            if left < 0:
                return act
        return Act.ANSWER

    def said(self, act: Act | bytes, request: dict[str, Any]) -> tuple[bytes, bool]:
        """What is sent, and whether the connection is closed then."""
        if isinstance(act, bytes):
            return act, False
        if act in self._canned:
            return self._canned[act], False
        if act in (Act.HANG, Act.DROP):
            return b"", act is Act.DROP
        whole = self._answered(self.answer(request), bool(request.get("stream")))
        # Half of an answer has its head and some of its text.
        half = whole[: whole.index(b"\r\n\r\n") + 4 + len(whole) // 3]
        return (whole, False) if act is Act.ANSWER else (half, act is Act.DIE)

    def _answered(self, text: str, stream: bool) -> bytes:
        if (text, stream) not in self._made:
            if len(self._made) > 1000:
                self._made.clear()
            self._made[text, stream] = self._streamed(text) if stream else self._whole(text)
        return self._made[text, stream]

    def _whole(self, text: str) -> bytes:
        return response(200, json.dumps(message(text, usage=self.usage)).encode())

    def _streamed(self, text: str) -> bytes:
        words = [delta(word) for word in text.split(" ")[:1]] + [delta(f" {word}") for word in text.split(" ")[1:]]
        last = [{"choices": [], "usage": self.usage}] if self.usage else []
        return events(*words, delta(finish="stop"), *last, "[DONE]")


class _Connection(asyncio.Protocol):
    """One client, which sends one request after the other."""

    def __init__(self, server: ChatServer) -> None:
        self.server, self.buffer = server, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.connections.add(self.transport)
        self.server.connected += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        start, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", 0))
        if len(body) >= size:
            self.buffer = body[size:]
            self._serve(start.split(" ")[1], headers, json.loads(body[:size] or b"{}"))

    def _serve(self, path: str, headers: dict[str, str], request: dict[str, Any]) -> None:
        server = self.server
        server.requests += 1
        server.asked.append(request)
        server.paths.append(path)
        server.headers.append(headers)
        act = server.next_act()
        server.acts[act if isinstance(act, Act) else "response"] += 1
        said, closes = server.said(act, request)
        if server.latency_s:
            asyncio.get_running_loop().call_later(server.latency_s, self._say, said, closes)
        else:
            self._say(said, closes)

    def _say(self, said: bytes, closes: bool) -> None:
        if self.transport.is_closing():
            return
        size = self.server.piece_bytes or len(said)
        self.transport.write(said[:size])
        if said[size:]:
            asyncio.get_running_loop().call_later(0.001, self._say, said[size:], closes)
        elif closes:
            self.transport.close()


@contextmanager
def in_thread(server: ChatServer) -> Iterator[ChatServer]:
    """The server in a thread and event loop of its own, for commands that run in this one."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        yield server
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def serve(options: dict[str, Any]) -> None:
    """Until stdin ends."""
    async with ChatServer(**options) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}))
