"""Addresses are shown without what is secret in them."""

from __future__ import annotations

import pytest

from etude.contracts.services import mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("embedded", "embedded"),
        ("nats://broker:4222", "nats://broker:4222"),
        ("nats://me:s3cret@broker:4222", "nats://…@broker:4222"),
        ("natz://s3cret@broker", "natz://…@broker"),
        ("me:s3cret@broker:4222", "…@broker:4222"),
        ("nats://me:s3@cret@broker:4222", "nats://…@broker:4222"),
        ("nats://me:s3,cret@broker:4222", "nats://…@broker:4222"),
        ("nats://me:s3/cret@broker:4222", "nats://…@broker:4222"),
        ("nats://a:s3cret@one:1,nats://b:s3cret@two:2", "nats://…@one:1,two:2"),
        ("clickhouse://me:s3cret@host:8123/etude", "clickhouse://…@host:8123/etude"),
        ("clickhouse://host/etude?password=s3cret&x=1", "clickhouse://host/etude?password=…&x=1"),
        ("s3://bucket/p?endpoint=http://h:1&secret_key=s3cret", "s3://bucket/p?endpoint=http://h:1&secret_key=…"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert mask_url(url) == shown
