"""A load generator for HTTP/1.1: one thread, epoll, as quick as Python is.

`at_rate` is open: requests are due at fixed times whatever the server does, and a latency counts from the time at which
a request was due, so that a server that stalls is seen to (no coordinated omission). `saturated` is closed: every
connection sends its next request when it has its answer.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

Requests = Callable[[int], bytes]
"""The bytes of the n-th request, head and body."""
PATIENCE_S = 30.0
"""Seconds after the last request was due for which answers are waited for."""


@dataclass
class Load:
    """The outcome of the requests."""

    latencies_ms: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    """When each answer was there, from the beginning."""
    statuses: Counter[int] = field(default_factory=Counter)
    bodies: list[bytes] = field(default_factory=list)
    """The answers, where they are kept."""
    lost: int = 0
    """Requests without an answer: the connection was closed, or it took too long."""
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        return self.lost + sum(count for status, count in self.statuses.items() if status >= 400)

    @property
    def per_s(self) -> float:
        return len(self.latencies_ms) / self.seconds

    def summary(self) -> dict[str, float]:
        found = {name: float(np.quantile(self.latencies_ms, q)) for name, q in (("p50", 0.5), ("p99", 0.99))}
        found |= {"p999": float(np.quantile(self.latencies_ms, 0.999)), "max": float(max(self.latencies_ms))}
        return found | {"requests": len(self.latencies_ms), "per_s": self.per_s, "failed": self.failed}


class _Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.due, self.got, self.to_send = 0.0, b"", b""

    def send(self, request: bytes, due: float) -> None:
        self.due, self.got = due, b""
        sent = self.socket.send(request)
        self.to_send = request[sent:]  # of one that is larger than the socket's buffer
        while self.to_send:
            select.select([], [self.socket], [])
            self.to_send = self.to_send[self.socket.send(self.to_send) :]

    def receive(self) -> tuple[int, bytes] | None:
        """Status and body once the answer is complete; ConnectionError if the server closed the connection."""
        part = self.socket.recv(1 << 16)
        if not part:
            raise ConnectionError
        self.got = self.got + part if self.got else part
        head = self.got.find(b"\r\n\r\n")
        if head < 0:
            return None
        at = self.got.lower().find(b"content-length:", 0, head)
        length = int(self.got[at + 15 : self.got.index(b"\r\n", at)])
        if len(self.got) < head + 4 + length:
            return None
        return int(self.got[9:12]), self.got[head + 4 :]


def at_rate(
    address: tuple[str, int],
    requests: Requests,
    *,
    per_s: float,
    seconds: float,
    connections: int = 64,
    core: int | None = None,
    keep: bool = False,
) -> Load:
    """Requests at a fixed rate, each on a free connection; those that find none wait, and their latency grows."""
    total = int(per_s * seconds)
    return _run(address, requests, ((i / per_s) for i in range(total)), connections, core, keep)


def saturated(
    address: tuple[str, int], requests: Requests, *, seconds: float, connections: int = 32, core: int | None = None
) -> Load:
    """As many requests as the server answers. Latencies are from the sending."""

    def always() -> Iterator[float]:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            yield -1.0

    return _run(address, requests, always(), connections, core, keep=False)


def _rest(poll: select.epoll, began: float, upcoming: float | None) -> None:
    """Wait for answers until the next request is due, and leave the core to others meanwhile: a generator that only
    looks again and again takes it from the server. epoll counts in milliseconds, select in microseconds."""
    seconds = 0.1 if upcoming is None else began + upcoming - time.perf_counter()
    if seconds > 0:
        select.select([poll], [], [], seconds)


def _run(
    address: tuple[str, int],
    requests: Requests,
    due: Iterator[float],
    connections: int,
    core: int | None,
    keep: bool,
) -> Load:
    if core is not None:
        os.sched_setaffinity(0, {core})
    load, poll = Load(), select.epoll()
    known = {made.socket.fileno(): made for made in (_Connection(address) for _ in range(connections))}
    for number in known:
        poll.register(number, select.EPOLLIN)
    free, busy, sent = deque(known.values()), 0, 0
    began = time.perf_counter()
    upcoming, gave_up = next(due, None), None
    while upcoming is not None or busy:
        now = time.perf_counter()
        while upcoming is not None and free and began + upcoming <= now:
            connection = free.pop()
            connection.send(requests(sent), now if upcoming < 0 else began + upcoming)
            sent, busy = sent + 1, busy + 1
            upcoming = next(due, None)
        if upcoming is None:
            gave_up = gave_up or now + PATIENCE_S
            if now > gave_up:
                break
        _rest(poll, began, upcoming)
        for number, _ in poll.poll(0):
            connection = known[number]
            try:
                answer = connection.receive()
            except OSError:
                load.lost, busy = load.lost + 1, busy - 1
                poll.unregister(number)
                fresh = _Connection(address)
                del known[number]
                known[fresh.socket.fileno()] = fresh
                poll.register(fresh.socket.fileno(), select.EPOLLIN)
                free.append(fresh)
                continue
            if answer is None:
                continue
            ended = time.perf_counter()
            load.latencies_ms.append((ended - connection.due) * 1e3)
            load.ended_s.append(ended - began)
            load.statuses[answer[0]] += 1
            if keep or answer[0] >= 400:
                load.bodies.append(answer[1])
            busy -= 1
            free.append(connection)
    load.lost, load.seconds = load.lost + busy, time.perf_counter() - began
    for connection in known.values():
        connection.socket.close()
    poll.close()
    return load
