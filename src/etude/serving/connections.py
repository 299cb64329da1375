"""Connections of callers: the head of a request, which anyone may send, has to be short and to arrive soon."""

from __future__ import annotations

from asyncio import TimerHandle, Transport

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from etude.serving.errors import MEDIA_TYPE, Problem

MAX_HEAD_BYTES = 64 << 10
"""Maximum size of the request line and headers that are not complete; the parser would keep them without an end."""
HEAD_S = 10.0
"""Seconds in which they have to arrive."""


class Connection(HttpToolsProtocol):
    """Closes connections that hold memory or a file descriptor without ever asking for something."""

    _is_complete = False
    """Whether the head of the latest request has arrived."""
    _bytes = 0
    """Bytes that arrived while it was not complete."""
    _timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        was_complete = self._is_complete
        super().data_received(data)
        if self._is_complete:
            return
        self._bytes += 0 if was_complete else len(data)  # else it begins somewhere in there, after a body
        if self._bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"the request line and headers have more than {MAX_HEAD_BYTES:,} bytes: send less")
        elif self._timer is None:
            self._wait()

    def on_message_begin(self) -> None:
        self._is_complete = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_complete, self._bytes = True, 0
        self._end_wait()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._timer = self.loop.call_later(HEAD_S, self._refuse, 408, f"no request came within {HEAD_S:g} seconds")

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, detail: str) -> None:
        """Close, with an answer if something came and no earlier request is still answered."""
        self._end_wait()
        if self.transport.is_closing():
            return
        if self._bytes and getattr(self.cycle, "response_complete", True):
            title = "Request Timeout" if status == 408 else "Request Header Fields Too Large"
            body = msgspec.json.encode(Problem(title=title, status=status, detail=detail))
            head = f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
