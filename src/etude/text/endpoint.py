"""An encoder for any OpenAI-compatible embeddings service: batches of texts over HTTP in, one vector per text out."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from etude.contracts.errors import ConfigError, EndpointError
from etude.contracts.ports import Vectors
from etude.contracts.services import authorisation, checked_url

REPLY_BYTES = 2**28
"""Maximum size of a reply in bytes, more than any batch needs."""
MAX_WAIT_S = 30.0


class EndpointEncoder:
    """One token per text. It connects with the first call, also of `width`."""

    def __init__(
        self,
        url: str,  # …/v1 or …/v1/embeddings
        model: str,
        *,
        api_key: str | None = None,  # sent only to this URL; never in a name, message or log
        batch: int = 64,  # texts in one request
        max_bytes: int = 8000,  # per text in UTF-8: a token has at least one byte, and services take about 8,000 tokens
        timeout_s: float = 30.0,
        attempts: int = 5,  # on 408, 429, 5xx and broken connections
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = checked_url(url, of="an embeddings service", key_in="as api_key", error=ConfigError)
        path = parts.path.rstrip("/").removesuffix("/embeddings") + "/embeddings"
        self._url = parts._replace(path=path, fragment="").geturl()
        self._shown = parts._replace(path=path, query="", fragment="").geturl()  # a query may hold a key
        self._headers = {"Content-Type": "application/json", "User-Agent": "etude"} | authorisation(
            api_key, error=ConfigError
        )
        self._secret = api_key
        self._model = model
        self._batch, self._max_bytes = batch, max_bytes
        self._timeout_s, self._attempts, self._sleep = timeout_s, attempts, sleep
        self._opener = build_opener(_NoRedirects)
        self._width: int | None = None
        self.name = f"{self._shown}#{model}/{max_bytes}"

    @property
    def width(self) -> int:
        if self._width is None:
            self._ask(["width"])
        assert self._width is not None
        return self._width

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        # Services reject empty texts, texts that are too long, and lone surrogates, which are invalid in UTF-8.
        most = self._max_bytes
        known = {i: text.strip()[:most].encode("utf-8", "replace") for i, text in enumerate(texts) if text.strip()}
        cut = {i: text[:most].decode("utf-8", "ignore") for i, text in known.items()}
        order = list(cut)
        found: dict[int, Vectors] = {}
        for start in range(0, len(order), self._batch):
            batch = order[start : start + self._batch]
            found.update(zip(batch, self._ask([cut[i] for i in batch]), strict=True))
        return [found[i] if i in found else np.zeros((1, self.width), np.float32) for i in range(len(texts))]

    def _ask(self, texts: list[str]) -> list[Vectors]:
        reply = self._post(json.dumps({"model": self._model, "input": texts}).encode())
        try:
            vectors = _vectors(json.loads(reply), len(texts))
        except (ValueError, OverflowError, RecursionError) as error:
            raise EndpointError(f"{self._shown} answered {self._readable(reply)!r}: {error}") from error
        width = vectors[0].shape[1]
        if width != (self._width or width):
            raise EndpointError(f"{self._shown} answered vectors of width {width}: expected {self._width}")
        self._width = width
        return vectors

    def _post(self, body: bytes) -> bytes:
        request = Request(self._url, body, self._headers)
        failure, wait_s = "", 0.0
        for attempt in range(self._attempts):
            if attempt:
                self._sleep(wait_s)
            wait_s = 0.5 * 2**attempt
            try:
                with self._opener.open(request, timeout=self._timeout_s) as reply:
                    data = bytes(reply.read(REPLY_BYTES))
                    if reply.length:
                        raise http.client.IncompleteRead(data, reply.length)
                    return data
            except HTTPError as error:
                failure = f"status {error.code} {self._readable(_body(error))}".strip()
                if error.code not in (408, 429) and error.code < 500:
                    raise EndpointError(f"{self._shown} answered {failure}") from None
                asked = error.headers.get("Retry-After", "") if error.headers else ""
                wait_s = max(wait_s, float(asked) if asked.isdecimal() else 0.0)
            except (OSError, http.client.HTTPException) as error:  # no connection, a broken one, or a timeout
                failure = self._readable(str(error).encode()) or type(error).__name__
            wait_s = min(wait_s, MAX_WAIT_S)
        raise EndpointError(f"{self._shown} failed {self._attempts} times, the last time with {failure}")

    def _readable(self, reply: bytes) -> str:
        text = reply[:2000].decode("utf-8", "replace")
        return (text.replace(self._secret, "***") if self._secret else text)[:200]


class _NoRedirects(HTTPRedirectHandler):
    """Rejects redirects: urllib would send the key to the new URL, and no texts."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _vectors(reply: Any, count: int) -> list[Vectors]:
    """The vectors of a reply in the order of the texts, each (1, width); ValueError where one is missing."""
    rows = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected an object with a list 'data' of objects")
    if len(rows) != count:
        raise ValueError(f"it has {len(rows)} vectors, expected {count}")
    index = [row.get("index", i) for i, row in enumerate(rows)]
    if not all(isinstance(i, int) for i in index) or sorted(index) != list(range(count)):
        raise ValueError(f"its indexes are {index[:10]}, expected each of 0 to {count - 1} once")
    found = [rows[place].get("embedding") for place in np.argsort(index)]
    if not all(isinstance(v, list) and v and all(type(x) in (int, float) for x in v) for v in found):
        raise ValueError("expected every 'embedding' to be a list of numbers")
    if len({len(vector) for vector in found}) > 1:
        raise ValueError("its vectors have several widths")
    with np.errstate(over="ignore"):
        vectors = np.array(found, float).astype(np.float32)[:, None]  # (texts, 1, width)
    if not np.isfinite(vectors).all():
        raise ValueError("expected finite numbers")
    return [vector.copy() for vector in vectors]  # a view would keep the whole batch


def _body(error: HTTPError) -> bytes:
    with error, suppress(OSError, http.client.HTTPException):
        return bytes(error.read(2000))
    return b""
