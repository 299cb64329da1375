"""What the server writes to its log: one line for each event, as text or JSON, and of requests no content.

Lines of requests hold the route, never the path; every other line is redacted as a whole, with its traceback, since an
error may quote what a request contained.
"""

from __future__ import annotations

import logging
import sys
from asyncio import TimerHandle, get_running_loop
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from re import compile as pattern
from typing import Any, BinaryIO, Literal

import msgspec

FLUSH_S = 0.1
"""Seconds after which lines of requests are written; 1,000 of them are written at once."""
MAX_LINES = 1000
PLAIN_ID = pattern(r"[0-9a-f]{16}|[0-9a-f]{32}")
"""A request id that the server or a proxy made."""

Redact = Callable[[str], str]
_encode = msgspec.json.Encoder().encode


class TextLines(logging.Formatter):
    """Redacted text."""

    def __init__(self, redact: Redact) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


class JsonLines(logging.Formatter):
    """One redacted object per line: time, level, logger, message, and error with the traceback."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redact(record.getMessage()),
        }
        if (request_id := getattr(record, "request_id", None)) is not None:
            found["request_id"] = _safe_id(request_id, self._redact)
        if record.exc_info:
            found["error"] = self._redact(self.formatException(record.exc_info))
        return _encode(found).decode()


class RequestLines:
    """A line for each request, written in groups. Used from the event loop alone."""

    def __init__(self, redact: Redact, stream: BinaryIO) -> None:
        self._redact, self._stream = redact, stream
        self._lines: list[bytes] = []
        self._timer: TimerHandle | None = None

    def __call__(self, scope: Mapping[str, Any], route: str, status: int, seconds: float) -> None:
        state = scope.get("state") or {}
        caller = state.get("caller")
        line: dict[str, Any] = {
            "time": _time(datetime.now(UTC).timestamp()),
            "level": "info" if status < 500 else "error",
            "logger": "etude.requests",
            "message": "request",
            "request_id": _safe_id(state.get("request_id", ""), self._redact),
            "route": route,
            "method": scope["method"],
            "status": status,
            "duration_ms": round(seconds * 1e3, 3),
            "key": None if caller is None else caller.key,
            "tenant": None if caller is None else caller.tenant,
        }
        self._lines.append(_encode(line))
        if len(self._lines) >= MAX_LINES:
            self.flush()
        elif self._timer is None:
            self._timer = get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write(b"\n".join(lines) + b"\n")
            self._stream.flush()


@contextmanager
def logging_as(form: Literal["text", "json"], redact: Redact) -> Iterator[RequestLines | None]:
    """Write the log of this process to stderr; what writes lines of requests, if there are any."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(redact) if form == "json" else TextLines(redact))
    root, own = logging.getLogger(), logging.getLogger("etude")
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO if form == "json" else logging.WARNING)
    requests = RequestLines(redact, sys.stderr.buffer) if form == "json" else None
    try:
        yield requests
    finally:
        if requests is not None:
            requests.flush()
        own.setLevel(before)
        root.removeHandler(handler)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _safe_id(request_id: str, redact: Redact) -> str:
    return request_id if PLAIN_ID.fullmatch(request_id) else redact(request_id)
