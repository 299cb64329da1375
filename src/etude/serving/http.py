"""Runs the app on a socket until the process is interrupted."""

from __future__ import annotations

import asyncio
import gc
import socket as sockets

import uvicorn
from threadpoolctl import threadpool_limits

from etude.contracts.errors import ConfigError
from etude.serving.app import make_app
from etude.serving.connections import Connection
from etude.serving.server import Server

BACKLOG = 2048
GARBAGE = (50_000, 20, 20)
"""Thresholds of the garbage collector: what requests make is freed without it, and a full collection stops them all."""
GRACE_S = 10
"""Seconds that requests in progress have to end after an interrupt."""


def listen(host: str, port: int) -> sockets.socket:
    """A socket that listens; ConfigError if the address cannot be had."""
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    made = sockets.socket(family, sockets.SOCK_STREAM)
    made.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise ConfigError(
            f"serving.host and serving.port are {host!r} and {port}: cannot listen there ({error.strerror}): end what "
            "listens, or choose another port"
        ) from error
    made.listen(BACKLOG)
    return made


def run_app(server: Server, socket: sockets.socket) -> None:
    """Serve until SIGINT or SIGTERM; requests in progress are answered."""
    gc.set_threshold(*GARBAGE)
    # Products of a request's size are over before another thread is awake, and on a busy machine long before.
    with threadpool_limits(1, user_api="blas"):
        http_server(server).run(sockets=[socket])


def http_server(server: Server) -> uvicorn.Server:
    config = uvicorn.Config(
        make_app(server),
        http=Connection,
        log_config=None,
        ws="none",  # no route takes a WebSocket: a request that asks for one is answered as any other
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    return _Server(config, server)


class _Server(uvicorn.Server):
    """Says that it is not ready some time before it stops, and ends streams, which it would wait for."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._serves = server

    async def shutdown(self, sockets: list[sockets.socket] | None = None) -> None:
        self._serves.phase = "stopping"
        await asyncio.sleep(self._serves.config.drain_s)
        self._serves.steering.live.end()
        await super().shutdown(sockets)
