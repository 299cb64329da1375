"""What a proxy adds to a language model: `etude serve`, and LiteLLM's proxy in the same run, before the same upstream.

    python benchmarks/chat_proxy.py --litellm /path/to/venv/bin/litellm

The upstream is a real HTTP server that streams 20 tokens, the first after 20 ms. Requests arrive at a fixed rate,
whatever is still in progress; each is streamed to its end. A proxy has one core and one worker, the upstream and the
load generator share the other. What is added is the difference to asking the upstream directly, quantile by quantile.
Etude chooses among two models and has each call on disk, redacted, before its last event; LiteLLM gets one model, a
master key, no logging and no database. LiteLLM needs an environment of its own: its dependencies exclude ours. `bare`
is the floor: the server and the client that Etude has, uvicorn and aiohttp, which pass bytes on and read none of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import uvloop
import yaml
from results import save

ROOT = Path(__file__).parents[1]
WORDS = " ".join(["word"] * 20)
FIRST_S, PIECE_BYTES = 0.02, 250
WARM_UP, PATIENCE_S = 50, 30.0
END = b"data: [DONE]"
READY_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path, help="the command litellm of an environment that has litellm[proxy]")
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0, 200.0], help="requests per second")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    proxy_core, other = {cores[0]}, {cores[-1]}
    os.sched_setaffinity(0, other)
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(_upstream())
        peers: dict[str, tuple[str, str, str]] = {"direct": (upstream, "", "small")}
        peers["bare"] = (*stack.enter_context(_bare(upstream, folder, proxy_core)), "small")
        peers["etude"] = (*stack.enter_context(_etude(folder, upstream, proxy_core)), "etude/auto")
        if arguments.litellm is not None:
            peers["litellm"] = (
                *stack.enter_context(_litellm(arguments.litellm, folder, upstream, proxy_core)),
                "small",
            )
        for rate in arguments.rates:
            rows: dict[str, list[Mapping[str, float]]] = {name: [] for name in peers}
            ours = [name for name in peers if name != "litellm"]
            # LiteLLM comes last, so that what it has not answered in time disturbs none, and not again if it fails.
            turns = [(number, name) for number in range(arguments.rounds) for name in ours]
            turns += [(number, "litellm") for number in range(arguments.rounds) if "litellm" in peers]
            for number, name in turns:
                if name == "litellm" and any(row["errors"] or row["per_s"] < rate / 2 for row in rows[name]):
                    continue
                rows[name].append(_measure(*peers[name], rate=rate, seconds=arguments.seconds, seed=number))
                print(f"{rate:g}/s, round {number + 1}, {name}: {_shown(rows[name][-1])}", flush=True)
            found[f"{rate:g}"] = added = {
                name: _added(rows[name], rows["direct"]) for name in peers if name != "direct"
            }
            for name, values in added.items():
                print(f"{rate:g}/s, added by {name}: {_shown(values)}", flush=True)
    version = None if arguments.litellm is None else _version(arguments.litellm)
    results: dict[str, Any] = {
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "litellm": version,
        "added_ms": found,
    }
    save("chat_proxy", results)


def _measure(url: str, key: str, model: str, *, rate: float, seconds: float, seed: int) -> dict[str, float]:
    return uvloop.run(_load(url, key, model, rate=rate, number=int(rate * seconds), seed=seed))


async def _load(url: str, key: str, model: str, *, rate: float, number: int, seed: int) -> dict[str, float]:
    parts, rng = urlsplit(url), random.Random(seed)
    client = _Client(parts.hostname or "", parts.port or 80)
    waiting: list[asyncio.Task[tuple[float, float]]] = []
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for i in range(number + WARM_UP):
        if i == WARM_UP:
            begin = loop.time()
        body = json.dumps(
            {
                "model": model,
                "stream": True,
                "messages": [{"role": "user", "content": f"Where is parcel {rng.randrange(10**6)}, please?"}],
            }
        ).encode()
        head = (
            f"POST {parts.path.rstrip('/')}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        task = asyncio.create_task(client.ask(head.encode() + body))
        if i < WARM_UP:
            await asyncio.wait({task}, timeout=5)
            continue
        waiting.append(task)
        await asyncio.sleep(max(0.0, begin + (i - WARM_UP + 1) / rate - loop.time()))
    done = await asyncio.gather(*waiting, return_exceptions=True)
    took = loop.time() - begin
    times = np.array([one for one in done if not isinstance(one, BaseException)]) * 1e3
    client.close()
    found = {"errors": float(number - len(times)), "per_s": len(times) / took}
    for place, what in enumerate(("first", "whole")):
        for quantile in (50, 99):
            found[f"{what}_p{quantile}_ms"] = float(np.percentile(times[:, place], quantile)) if len(times) else np.nan
    return found


class _Client:
    """Keeps connections, and makes another where none is free."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._free: list[_Connection] = []

    async def ask(self, request: bytes) -> tuple[float, float]:
        """Seconds until the first event, and until the last."""
        began = time.perf_counter()
        connection = self._free.pop() if self._free else None
        if connection is None or connection.transport.is_closing():
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Connection, self._host, self._port)
        try:
            first, last = await asyncio.wait_for(connection.ask(request), PATIENCE_S)
        except BaseException:
            connection.transport.abort()
            raise
        self._free.append(connection)
        return first - began, last - began

    def close(self) -> None:
        for connection in self._free:
            connection.transport.abort()


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class

    async def ask(self, request: bytes) -> tuple[float, float]:
        self._got, self._first = b"", 0.0
        self._done: asyncio.Future[tuple[float, float]] = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._done

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._first and b"\ndata: " in self._got:
            self._first = time.perf_counter()
            if not self._got.startswith(b"HTTP/1.1 200"):
                self._fail(f"status: {self._got[:200]!r}")
        if END in self._got and self._got.endswith(b"0\r\n\r\n") and not self._done.done():
            self._done.set_result((self._first, time.perf_counter()))
        elif self._got.startswith(b"HTTP/1.1") and not self._got.startswith(b"HTTP/1.1 200"):
            self._fail(f"refused: {self._got[:200]!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the connection was closed")

    def _fail(self, why: str) -> None:
        if hasattr(self, "_done") and not self._done.done():
            self._done.set_exception(ConnectionError(why))


def _added(rows: Sequence[Mapping[str, float]], direct: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians over the rounds, of what is measured less the time of asking directly in the same round."""
    found = {name: float(np.median([row[name] for row in rows])) for name in ("errors", "per_s")}
    for name in rows[0]:
        if name.endswith("_ms"):
            found[name] = float(np.median([row[name] - base[name] for row, base in zip(rows, direct, strict=False)]))
    return found


def _shown(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


@contextmanager
def _upstream() -> Iterator[str]:
    command = [sys.executable, str(Path(__file__)), "upstream"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(20)


async def serve_upstream() -> None:
    from tests.chat_server import ChatServer

    async with ChatServer(answer=lambda request: WORDS, latency_s=FIRST_S, piece_bytes=PIECE_BYTES) as server:
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def _bare(upstream: str, folder: Path, cores: set[int]) -> Iterator[tuple[str, str]]:
    port = _free_port()
    with _running([sys.executable, str(Path(__file__)), "bare", upstream, str(port)], folder, cores, {}):
        _until_ready(f"http://127.0.0.1:{port}/ready", {})
        yield f"http://127.0.0.1:{port}/v1", ""


async def serve_bare(upstream: str, port: int) -> None:
    import aiohttp
    import uvicorn

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/ready":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message["body"], message.get("more_body", False)
            url = upstream + scope["path"].removeprefix("/v1")
            async with session.post(url, data=body, headers={"content-type": "application/json"}) as response:
                kind = response.headers["content-type"].encode()
                await send(
                    {"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]}
                )
                async for chunk in response.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        config = uvicorn.Config(app, port=port, log_config=None, access_log=False, lifespan="off")
        await uvicorn.Server(config).serve()


@contextmanager
def _etude(folder: Path, upstream: str, cores: set[int]) -> Iterator[tuple[str, str]]:
    models = {name: {"upstream": "a", "usd_per_mtok_in": 1.0, "usd_per_mtok_out": 2.0} for name in ("small", "large")}
    routing = {"upstreams": {"a": {"url": upstream, "allow_private": True}}, "models": models}
    settings = {"experience": {"folder": str(folder / ".etude")}, "routing": routing}
    (folder / "etude.yaml").write_text(yaml.safe_dump(settings))
    etude = [sys.executable, "-m", "etude.cli"]
    made = subprocess.run([*etude, "keys", "create", "--role", "decide"], cwd=folder, capture_output=True, text=True)
    key = next(word for word in made.stdout.split() if word.startswith("etude_"))
    port = _free_port()
    with _running([*etude, "serve", "--no-loop", "--port", str(port)], folder, cores, {}):
        _until_ready(f"http://127.0.0.1:{port}/ready", {})
        yield f"http://127.0.0.1:{port}/v1", key


@contextmanager
def _litellm(command: Path, folder: Path, upstream: str, cores: set[int]) -> Iterator[tuple[str, str]]:
    key, port = f"sk-{secrets.token_hex(8)}", _free_port()
    config = {
        "model_list": [
            {
                "model_name": "small",
                "litellm_params": {"model": "openai/small", "api_base": upstream, "api_key": "none"},
            }
        ],
        "general_settings": {"master_key": key},
        "litellm_settings": {
            "set_verbose": False,
            "telemetry": False,
            "num_retries": 0,
            "disable_streaming_logging": True,
            "disable_token_counter": True,
        },
    }
    (folder / "litellm.yaml").write_text(yaml.safe_dump(config))
    options = ["--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
    with _running([str(command), *options, "--num_workers", "1"], folder, cores, quiet):
        _until_ready(f"http://127.0.0.1:{port}/health/liveliness", {})
        yield f"http://127.0.0.1:{port}/v1", key


@contextmanager
def _running(command: list[str], folder: Path, cores: set[int], environ: Mapping[str, str]) -> Iterator[None]:
    log = (folder / f"{Path(command[0]).name}.log").open("w")
    with (
        log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | dict(environ),
            stdout=log,
            stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        ) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _version(litellm: Path) -> str:
    shown = subprocess.run([str(litellm), "--version"], capture_output=True, text=True, check=True).stdout
    return shown.split()[-1]


def _until_ready(url: str, headers: Mapping[str, str]) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers)), timeout=5):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"{url} is not ready: {error}") from error
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


if __name__ == "__main__":
    if sys.argv[1:] == ["upstream"]:
        uvloop.run(serve_upstream())
    elif sys.argv[1:2] == ["bare"]:
        uvloop.run(serve_bare(sys.argv[2], int(sys.argv[3])))
    else:
        main()
