"""`etude serve`: decisions over HTTP, with the loop in the background."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from etude.bootstrap.ingesting import IngestProcess
from etude.bootstrap.serving import open_server, watched
from etude.cli.display import console
from etude.cli.options import ConfigFile
from etude.serving.http import listen, run_app
from etude.serving.keys import Role
from etude.serving.server import Server

log = logging.getLogger("etude")

GRACE_S = 10.0
"""Seconds that the loop has to end."""
NICE = 5
"""Niceness of the loop: decisions go first."""


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 is any free one.", min=0, max=65535)] = None,
    loop: Annotated[bool, typer.Option("--loop/--no-loop", help="Run the loop in the background.")] = True,
    config: ConfigFile = None,
) -> None:
    """Decide over HTTP until interrupted. On first start it prints an API key, unless the log is JSON."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the loop ends, too
    screen = console(stderr=True)
    with open_server(config) as server, watched(server, config):
        server.with_loop = loop
        in_text = server.config.log_format == "text"
        socket = listen(host or server.config.host, server.config.port if port is None else port)
        address = f"http://{socket.getsockname()[0]}:{socket.getsockname()[1]}"
        if in_text and (made := _first_key(server)) is not None:
            screen.print(f"an API key with the role {Role.ADMIN}, shown once: [bold]{made}[/bold]", soft_wrap=True)
        if in_text:
            screen.print(f"serving at {address}; its API is described at {address}/openapi.json", soft_wrap=True)
        else:  # logs are kept, and a key must not be
            log.info("serving on port %s", socket.getsockname()[1])
            if not server.keys.all():
                log.warning(
                    "no one has a key yet, so requests are refused; run `etude keys create --role %s`", Role.ADMIN
                )
        with IngestProcess(config) as server.ingest, _loop(config) if loop else nullcontext():
            run_app(server, socket)


def _first_key(server: Server) -> str | None:
    """A key for a server that has none."""
    if server.keys.all():
        return None
    return server.keys.create(Role.ADMIN, name="first")[1]


@contextmanager
def _loop(config: Path | None) -> Iterator[None]:
    """The loop as a process of its own, so that training does not slow decisions; it ends with the server."""
    named = [] if config is None else ["--config", str(config)]
    process = subprocess.Popen([sys.executable, "-m", "etude.cli", "loop", "run", *named], stdout=subprocess.DEVNULL)
    os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
