"""Forwards events from a local bus to a broker: nothing is lost while the broker is unreachable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from etude.contracts.bus import Delivery, EventBus, Message
from etude.contracts.errors import BusError, EtudeError, EventError, RefusedError
from etude.contracts.subjects import DEAD_LETTERS, STREAMS, TRAJECTORIES

GROUP = "forward"
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Pauses while a bus is unreachable; each is twice the previous one."""
FIRST_IDLE_S, MAX_IDLE_S = 0.005, 0.05
"""Pauses while there is nothing to forward."""
WARN_S = 3600.0

log = logging.getLogger("etude")


class Target(Protocol):
    """Where events are forwarded to: a broker, or a server."""

    def publish(self, messages: Sequence[Message]) -> None:
        """As `EventBus.publish` says."""

    def close(self) -> None: ...


class Forwarding:
    """A thread that forwards the events of the outbox until the process ends."""

    def __init__(self, outbox: EventBus, open_broker: Callable[[], Target]) -> None:
        self._outbox, self._open_broker, self._stop = outbox, open_broker, threading.Event()
        self._thread = threading.Thread(target=self._run, name="etude-forward", daemon=True)
        self._thread.start()

    def end(self, *, timeout_s: float = 0.0) -> None:
        """Stop when the outbox is empty, or after the timeout: the next process that opens it forwards the rest."""
        deadline = time.monotonic() + timeout_s
        with suppress(BusError):  # the process ends: there is no other way to handle it
            while time.monotonic() < deadline and self._outbox.pending(TRAJECTORIES, GROUP):
                time.sleep(0.01)
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            broker = self._open_broker()
        except EtudeError as error:
            log.error("events wait in the outbox and are not forwarded: %s", error)
            return
        try:
            forward(self._outbox, broker, stop=self._stop, on_trouble=TroubleLog())
        finally:
            broker.close()


class TroubleLog:
    """Logs why events wait: each reason once, and again after an hour."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def __call__(self, error: BusError) -> None:
        text, now = str(error), time.monotonic()
        if now - self._logged.get(text, float("-inf")) >= WARN_S:
            self._logged[text] = now
            log.warning("events wait in the outbox until they can be sent: %s", text)


def forward(
    source: EventBus,
    target: Target,
    *,
    stop: threading.Event,
    batch: int = 256,
    on_trouble: Callable[[BusError], None] = lambda _: None,
) -> int:
    """Forward messages until `stop` is set; return how many.

    Each is sent at least once: it is acknowledged at the source when the target has it, and the target drops
    duplicates. A message that the target will never accept is buried at the source. `on_trouble` is called with errors.
    """
    moved, pause_s, idle_s = 0, FIRST_PAUSE_S, FIRST_IDLE_S
    held: list[Delivery] = []
    while not stop.is_set():
        try:
            if not held:
                # The target is tested first: a delivery that cannot be sent uses up an attempt.
                target.publish([])
                held = _take(source, batch)
            _send(source, target, held)
        except BusError as error:
            on_trouble(error)
            with suppress(BusError):
                source.renew(held)
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            continue
        if not held:
            stop.wait(idle_s)
        idle_s = FIRST_IDLE_S if held else min(2 * idle_s, MAX_IDLE_S)
        moved, pause_s, held = moved + len(held), FIRST_PAUSE_S, []
    with suppress(BusError):
        source.release(held)  # for the next process
    return moved


def _take(source: EventBus, batch: int) -> list[Delivery]:
    """A few deliveries of each stream, so that none waits for another."""
    streams = [stream for stream in STREAMS if stream != DEAD_LETTERS]
    return [delivery for stream in streams for delivery in source.pull(stream, GROUP, limit=batch, timeout_s=0)]


def _send(source: EventBus, target: Target, deliveries: Sequence[Delivery]) -> None:
    """Send a batch; if a message is refused, send them one by one."""
    if not deliveries:
        return
    try:
        target.publish([delivery.message for delivery in deliveries])
    except (RefusedError, EventError) as error:
        if len(deliveries) > 1:
            for delivery in deliveries:
                _send(source, target, [delivery])
        else:
            message = deliveries[0].message
            log.error("%s %s is kept as a dead letter: %s", message.subject, message.id, error)
            source.bury(deliveries[0], reason=str(error))
    else:
        source.ack(deliveries)
