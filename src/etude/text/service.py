"""A service that is asked in JSON over HTTP: one object in, the reply as bytes out, with retries."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from etude.contracts.errors import ConfigError, EndpointError
from etude.contracts.services import authorisation, checked_url

REPLY_BYTES = 2**28
"""Maximum size of a reply in bytes, more than any batch needs."""
MAX_WAIT_S = 30.0


class JsonService:
    """One path of an OpenAI-compatible service."""

    def __init__(
        self,
        url: str,  # …/v1, with or without the path
        path: str,
        *,
        of: str,
        api_key: str | None = None,  # sent only to this URL; never in a name, message or log
        timeout_s: float = 30.0,
        attempts: int = 5,  # on 408, 429, 5xx and broken connections
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = checked_url(url, of=of, key_in="as api_key", error=ConfigError)
        whole = parts.path.rstrip("/").removesuffix(path) + path
        self._url = parts._replace(path=whole, fragment="").geturl()
        self.shown = parts._replace(path=whole, query="", fragment="").geturl()  # a query may hold a key
        self._headers = {"Content-Type": "application/json", "User-Agent": "etude"} | authorisation(
            api_key, error=ConfigError
        )
        self._secret = api_key
        self._timeout_s, self._attempts, self._sleep = timeout_s, attempts, sleep
        self._opener = build_opener(_NoRedirects)

    def post(self, asked: Any) -> bytes:
        """The reply to an object, as it came; EndpointError where there is none."""
        request = Request(self._url, json.dumps(asked).encode(), self._headers)
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
                failure = f"status {error.code} {self.readable(_body(error))}".strip()
                if error.code not in (408, 429) and error.code < 500:
                    raise EndpointError(f"{self.shown} answered {failure}") from None
                asked = error.headers.get("Retry-After", "") if error.headers else ""
                wait_s = max(wait_s, float(asked) if asked.isdecimal() else 0.0)
            except (OSError, http.client.HTTPException) as error:  # no connection, a broken one, or a timeout
                failure = self.readable(str(error).encode()) or type(error).__name__
            wait_s = min(wait_s, MAX_WAIT_S)
        raise EndpointError(f"{self.shown} failed {self._attempts} times, the last time with {failure}")

    def readable(self, reply: bytes) -> str:
        """The beginning of a reply, without the key."""
        text = reply[:2000].decode("utf-8", "replace")
        return (text.replace(self._secret, "***") if self._secret else text)[:200]


class _NoRedirects(HTTPRedirectHandler):
    """Rejects redirects: urllib would send the key to the new URL, and no texts."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _body(error: HTTPError) -> bytes:
    with error, suppress(OSError, http.client.HTTPException):
        return bytes(error.read(2000))
    return b""
