"""A real server on a free port, in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from etude.bootstrap.serving import open_server
from etude.serving.http import http_server, listen
from etude.serving.keys import Role
from etude.serving.server import Server


@dataclass(frozen=True)
class Served:
    server: Server
    url: str
    clients: ExitStack
    stop: Callable[[], None]
    """Tells it to stop, and returns."""

    def client(self, role: Role = Role.ADMIN, tenant: str | None = None, **of_key: Any) -> httpx.Client:
        _, key = self.server.keys.create(role, tenant=tenant, **of_key)
        return self.bare(authorization=f"Bearer {key}")

    def bare(self, **headers: str) -> httpx.Client:
        """A client without a key, unless the headers have one."""
        return self.clients.enter_context(httpx.Client(base_url=self.url, headers=headers, timeout=30))


@contextmanager
def serving(
    folder: Path,
    *,
    experience: Mapping[str, Any] | None = None,
    routing: Mapping[str, Any] | None = None,
    around: Callable[[Server, Path], AbstractContextManager[None]] = lambda server, config: nullcontext(),
    **serving: Any,
) -> Iterator[Served]:
    """With settings of its own, below this folder. `around` is entered with the server and its settings."""
    config, where = folder / "etude.yaml", {"folder": str(folder / ".etude")}
    sections = {"experience": where | dict(experience or {}), "serving": serving, "routing": dict(routing or {})}
    config.write_text(yaml.safe_dump(sections))
    with open_server(config) as server, around(server, config):
        socket = listen("127.0.0.1", 0)
        running = http_server(server)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 90
        while not running.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert running.started
        try:
            with ExitStack() as clients:
                url = f"http://127.0.0.1:{socket.getsockname()[1]}"
                yield Served(server, url, clients, lambda: setattr(running, "should_exit", True))
        finally:
            running.should_exit = True
            thread.join(30)
            socket.close()
