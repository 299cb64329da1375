"""A real server before another one: it passes connections on, or answers as a service that is busy, broken or dying."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from urllib.parse import urlsplit

from tests.chat_server import Act, response

CUT_BYTES = 700
"""Size of an answer when its connection dies: its head, and the first events."""
CANNED = {
    Act.BUSY: response(429, b'{"error": {"message": "slow down"}}', "Retry-After: 0", "Connection: close"),
    Act.ERROR: response(500, b'{"error": {"message": "out of order"}}', "Connection: close"),
}


class FaultyFront:
    """Follows `script`, one entry per request; then it passes everything on. Each request has its own connection."""

    def __init__(self, behind: str, script: Iterable[Act] = ()) -> None:
        parts = urlsplit(behind)
        self._host, self._port, self.script = parts.hostname, parts.port, deque(script)
        self.url, self.connected = "", 0
        self._server: asyncio.Server | None = None
        self._served: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FaultyFront:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keeps the task of the request: asyncio forgets it when the client leaves, though it may wait for others."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        act = self.script.popleft() if self.script else Act.ANSWER
        try:
            if act in CANNED:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(CANNED[act])
                await writer.drain()
                await reader.read()  # until the client closes
            elif act is Act.HANG:
                await reader.read(-1)
            else:
                await self._pass_on(reader, writer, CUT_BYTES if act is Act.DIE else None)
        except OSError:  # one of the two is gone
            return
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int | None) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        behind, to_behind = await asyncio.open_connection(self._host, self._port)
        to_behind.write(head[:-2] + b"Connection: close\r\n\r\n")
        there = asyncio.create_task(_copy(reader, to_behind, None))
        back = asyncio.create_task(_copy(behind, writer, cut))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)  # a client that leaves ends both
        finally:
            for one in (there, back):
                one.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            to_behind.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    while (limit is None or limit > 0) and (data := await reader.read(65536)):
        data = data if limit is None else data[:limit]
        limit = None if limit is None else limit - len(data)
        writer.write(data)
        await writer.drain()
