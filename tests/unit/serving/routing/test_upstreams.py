"""Where upstreams may be, and how long one that failed is left alone."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

import pytest

from etude.contracts.errors import ConfigError
from etude.serving.routing.config import JudgeConfig, ModelConfig, RoutingConfig, UpstreamConfig
from etude.serving.routing.upstreams import FailedError, PublicResolver, is_public, make_upstreams, retry_after_s
from tests.chat_server import ChatServer, response


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "::1", "::", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_addresses_that_are_not_of_the_internet_are_private(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


def config(url: str, **more: Any) -> RoutingConfig:
    return RoutingConfig(upstreams={"a": UpstreamConfig(url=url, **more)}, models={"m": ModelConfig(upstream="a")})


@pytest.mark.parametrize("url", ["http://127.0.0.1/v1", "http://[::1]:80/v1", "http://localhost/v1"])
def test_a_private_address_is_refused_unless_it_is_allowed(url: str) -> None:
    with pytest.raises(ConfigError, match=r"routing\.upstreams\.a\.allow_private"):
        make_upstreams(config(url), {})
    assert make_upstreams(config(url, allow_private=True), {}).of("m").url == url


def test_a_name_that_leads_to_a_private_address_is_refused_when_it_is_resolved() -> None:
    async def ask() -> int:
        async with ChatServer() as server:
            port = server.url.rpartition(":")[2].partition("/")[0]
            upstream = make_upstreams(config(f"http://0x7f000001:{port}/v1"), {}).of("m")  # a name of this machine
            with pytest.raises(FailedError, match="private addresses alone"):
                async with upstream.ask("/chat/completions", b"{}", stream=False):
                    raise AssertionError("it was asked")
            await upstream.close()
            return server.connected

    assert asyncio.run(ask()) == 0


def test_the_resolver_gives_public_addresses_alone() -> None:
    async def find() -> None:
        resolver = PublicResolver()
        with pytest.raises(OSError, match="allow_private"):
            await resolver.resolve("localhost", 80)
        await resolver.close()

    asyncio.run(find())


def test_redirects_are_not_followed() -> None:
    async def ask() -> int:
        async with ChatServer() as other:
            async with ChatServer([response(307, b"", f"Location: {other.url}/chat/completions")]) as server:
                upstream = make_upstreams(config(server.url, allow_private=True), {}).of("m")
                with pytest.raises(FailedError, match="status 307"):
                    async with upstream.ask("/chat/completions", b"{}", stream=False):
                        raise AssertionError("it was followed")
                await upstream.close()
            return other.connected

    assert asyncio.run(ask()) == 0


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (config("ftp://x/v1"), "routing.upstreams.a"),
        (config("https://key@x/v1"), "api_key_env"),
        (config("https://x/v1?key=1"), "query"),
        (config("https://x/v1", api_key_env="NOT_SET"), "'NOT_SET'"),
        (RoutingConfig(models={"m": ModelConfig(upstream="a")}), "routing.models.m.upstream"),
        (RoutingConfig(models={"etude/x": ModelConfig(upstream="a")}), "begin with etude/"),
        (RoutingConfig(default_model="x"), "routing.default_model"),
        (RoutingConfig(judge=JudgeConfig(model="x")), "routing.judge.model"),
    ],
)
def test_settings_that_lead_nowhere_are_refused(made: RoutingConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_upstreams(made, {})


def test_keys_come_from_the_environment() -> None:
    made = make_upstreams(config("https://x/v1", api_key_env="KEY"), {"KEY": "secret"})
    assert made.of("m").headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(made.config)


def test_a_model_that_failed_is_left_alone_as_long_as_it_asks() -> None:
    made = make_upstreams(config("https://x/v1"), {})
    assert made.wait_s("m") == 0
    made.failed("m", FailedError("x", status=400, pauses="nothing"))
    assert made.wait_s("m") == 0
    made.failed("m", FailedError("x", status=502))
    assert 9 < made.wait_s("m") <= 10
    made.failed("m", FailedError("x", status=429, retry_after_s=1e9))
    assert 299 < made.wait_s("m") <= 300
    made.failed("m", FailedError("x", status=502))
    assert 299 < made.wait_s("m") <= 300  # the later of the two


def test_how_long_to_wait_is_read_in_all_its_forms() -> None:
    assert retry_after_s({"retry-after-ms": "1500"}) == 1.5
    assert retry_after_s({"retry-after": "7"}) == 7
    found = retry_after_s({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert found is not None
    assert 58 < found < 61
    assert [retry_after_s({"retry-after": wrong}) for wrong in ("soon", "-1", "")] == [None, None, None]
    assert retry_after_s({}) is None
