"""The services that are asked: connections that lead only where the settings allow, and pauses after failures.

A model that failed is not asked for a while; its upstream's others are, unless it cannot be reached or refuses the key.

An address is checked when a connection is made, so that a name that leads somewhere else tomorrow is refused tomorrow.
Redirects are not followed, and proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Literal

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from etude.contracts.errors import ConfigError
from etude.contracts.services import authorisation, checked_url
from etude.contracts.suggestions import nearest
from etude.serving.routing.config import RoutingConfig, UpstreamConfig

CONNECT_S = 10.0
KEEP_S = 30.0
"""Seconds for which a connection that is not used is kept."""
MAX_ANSWER_BYTES = 64 << 20
MAX_REFUSAL_BYTES = 16 << 10
NAT64 = IPv6Network("64:ff9b::/96")
RETRIED = (408, 409, 425, 429)
"""Below 500: statuses after which another model is asked, and this one is left alone for a while."""
REFUSED = (401, 402, 403)
"""Statuses that say that this upstream cannot be used with its key."""
MISCONFIGURED = (404, 405)
"""Statuses that say that it has no such route or model."""


Pauses = Literal["nothing", "model", "upstream"]


class FailedError(Exception):
    """An attempt that gave no answer. What it says may be shown to the caller."""

    def __init__(
        self, message: str, *, status: int, retry_after_s: float | None = None, pauses: Pauses = "model"
    ) -> None:
        """`status` is what the caller gets if no other model answers; `pauses` what is left alone for a while."""
        super().__init__(message)
        self.status, self.retry_after_s, self.pauses = status, retry_after_s, pauses


class RefusedError(Exception):
    """The upstream says that the request is wrong: the caller gets its answer, and no other model is asked."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.body = status, body


class NotAllowedError(OSError):
    """A name that leads to an address that the settings do not allow."""


def is_public(address: str) -> bool:
    """Whether an address is of the internet, also where it is written within another kind of address."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = _within(found)
        if inner is not None:
            return inner.is_global and not inner.is_multicast
    return found.is_global and not found.is_multicast


def _within(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.teredo[1] if address.teredo is not None else None


class PublicResolver(AbstractResolver):
    """Resolves a name to its public addresses alone."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        public = [one for one in found if is_public(one["host"])]
        if not public:
            raise NotAllowedError(f"{host!r} leads to private addresses alone, and allow_private is false")
        return public

    async def close(self) -> None:
        await self._inner.close()


@dataclass(kw_only=True)
class Upstream:
    """One service. It connects when it is first asked."""

    name: str
    config: UpstreamConfig
    headers: Mapping[str, str]
    url: str
    _session: aiohttp.ClientSession | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def ask(self, path: str, body: bytes, *, stream: bool) -> AsyncIterator[aiohttp.ClientResponse]:
        """Its answer, from which the body is still to be read; FailedError or RefusedError if it is none."""
        limit_s = self.config.first_byte_s if stream else self.config.answer_s
        timeout = aiohttp.ClientTimeout(
            total=None if stream else limit_s,
            sock_connect=CONNECT_S,
            sock_read=self.config.stall_s if stream else limit_s,
        )
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(limit_s):
                response = await self._opened().post(
                    f"{self.url}{path}", data=body, headers=self.headers, timeout=timeout, allow_redirects=False
                )
                if response.status != 200:
                    raise await self._refused(response)
            yield response
        except TimeoutError as error:
            raise FailedError(f"the upstream {self.name!r} did not answer in time", status=504) from error
        except (aiohttp.ClientError, OSError) as error:
            cause = getattr(error, "os_error", None)  # of a connection that could not be made
            why = str(cause) if isinstance(cause, NotAllowedError) else "it cannot be reached or broke off"
            pauses: Pauses = "upstream" if isinstance(error, aiohttp.ClientConnectorError) else "model"
            raise FailedError(f"the upstream {self.name!r} failed: {why}", status=502, pauses=pauses) from error
        finally:
            if response is not None:
                response.release()  # closes the connection unless its answer was read to the end

    async def _refused(self, response: aiohttp.ClientResponse) -> FailedError | RefusedError:
        status, body = response.status, await response.content.read(MAX_REFUSAL_BYTES)
        response.close()
        if status == 429 or status in RETRIED or status >= 500:
            return FailedError(
                f"the upstream {self.name!r} answered status {status}",
                status=429 if status == 429 else 502,
                retry_after_s=retry_after_s(response.headers),
            )
        if status in REFUSED or status in MISCONFIGURED or status < 400:
            return FailedError(
                f"the upstream {self.name!r} answered status {status}: its url, model or key are wrong",
                status=502,
                pauses="upstream" if status in REFUSED else "model",
            )
        if b"context_length" in body:  # another model may have room for it
            return FailedError(f"the request is too long for the upstream {self.name!r}", status=400, pauses="nothing")
        return RefusedError(status, body)

    def _opened(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._loop = loop
            resolver = aiohttp.ThreadedResolver() if self.config.allow_private else PublicResolver()
            connector = aiohttp.TCPConnector(resolver=resolver, limit=0, keepalive_timeout=KEEP_S, use_dns_cache=False)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=False, auto_decompress=False)
        return self._session

    async def close(self) -> None:
        if self._session is not None and self._loop is asyncio.get_running_loop():
            await self._session.close()
        self._session = None


@dataclass(kw_only=True)
class Upstreams:
    config: RoutingConfig
    by_name: Mapping[str, Upstream] = field(default_factory=dict)
    free_at: dict[str, float] = field(default_factory=dict)
    """By model: the time of the monotonic clock until which it is not asked."""

    def of(self, model: str) -> Upstream:
        return self.by_name[self.config.models[model].upstream]

    def failed(self, model: str, error: FailedError) -> None:
        """It is not chosen for a while, nor are the others of its upstream if the error is about that."""
        asked_s = self.config.cooldown_s if error.retry_after_s is None else error.retry_after_s
        until = time.monotonic() + min(max(asked_s, 0.0), self.config.max_cooldown_s)
        models, upstream = self.config.models, self.config.models[model].upstream
        others = [name for name, one in models.items() if one.upstream == upstream]
        for name in {"nothing": [], "model": [model], "upstream": others}[error.pauses]:
            self.free_at[name] = max(self.free_at.get(name, until), until)

    def wait_s(self, model: str) -> float:
        """Seconds until it may be asked; 0 if it may be now."""
        return max(0.0, self.free_at.get(model, -math.inf) - time.monotonic())

    async def close(self) -> None:
        for upstream in self.by_name.values():
            await upstream.close()


def make_upstreams(config: RoutingConfig, environ: Mapping[str, str]) -> Upstreams:
    """ConfigError says which setting is wrong. API keys are read from `environ`."""
    check(config)
    made = {name: _upstream(name, one, environ) for name, one in config.upstreams.items()}
    return Upstreams(config=config, by_name=made)


def check(config: RoutingConfig) -> None:
    """ConfigError for names that lead nowhere."""
    for name, model in config.models.items():
        where = f"routing.models.{name}"
        if not 0 < len(name) <= 256 or not name.isprintable() or name.startswith("etude/"):
            raise ConfigError(f"{where}: a model's name is 1 to 256 characters, and does not begin with etude/")
        if model.upstream not in config.upstreams:
            hint = nearest(model.upstream, list(config.upstreams))
            raise ConfigError(f"{where}.upstream is {model.upstream!r}, which is not in routing.upstreams{hint}")
    chats = [name for name, model in config.models.items() if model.kind == "chat"]
    for where, named in (("default_model", config.default_model), ("judge.model", config.judge.model)):
        if named is not None and named not in chats:
            raise ConfigError(
                f"routing.{where} is {named!r}, which is no chat model of routing.models{nearest(named, chats)}"
            )


def _upstream(name: str, config: UpstreamConfig, environ: Mapping[str, str]) -> Upstream:
    where = f"routing.upstreams.{name}"
    try:
        parts = checked_url(config.url, of="a service", key_in="by api_key_env", error=ConfigError)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error
    if parts.query or parts.fragment:
        raise ConfigError(f"{where}.url is {config.url.partition('?')[0]!r} with a query: expected http://host:port/v1")
    if not config.allow_private and _is_private(parts.hostname or ""):
        raise ConfigError(
            f"{where}.url is {config.url!r}, which is a private address: set {where}.allow_private if it is meant"
        )
    key = None if config.api_key_env is None else environ.get(config.api_key_env)
    if config.api_key_env is not None and not key:
        raise ConfigError(f"{where}.api_key_env is {config.api_key_env!r}: set this environment variable to the key")
    headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "etude"}
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return Upstream(
        name=name,
        config=config,
        headers=headers | authorisation(key, error=ConfigError),
        url=parts._replace(path=path).geturl(),
    )


def _is_private(host: str) -> bool:
    """Of an address: names are checked when they are resolved."""
    try:
        return not is_public(host)
    except ValueError:
        return host == "localhost"


def retry_after_s(headers: Mapping[str, Any]) -> float | None:
    """What a service asks to wait, in milliseconds, seconds or as a date."""
    try:
        if (given := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(given) / 1e3)
        given = headers.get("retry-after")
        if given is None:
            return None
        if given.strip().isdigit():
            return float(given)
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
