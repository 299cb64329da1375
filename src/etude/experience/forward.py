"""Events from a bus on this machine to a broker elsewhere: nothing is lost while the broker is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from etude.contracts.bus import Delivery, EventBus
from etude.contracts.errors import BusError, EventError, RefusedError
from etude.contracts.subjects import DEAD_LETTERS, STREAMS

GROUP = "forward"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""While a bus is away; each is twice the one before."""
FIRST_IDLE_S, LONGEST_IDLE_S = 0.005, 0.05
"""While there is nothing to move."""


def forward(
    source: EventBus,
    target: EventBus,
    *,
    stop: threading.Event,
    batch: int = 256,
    on_trouble: Callable[[BusError], None] = lambda _: None,
) -> int:
    """Until it is told to stop; how many it moved.

    At least once each: a message is acknowledged at the source when the target has it, and the target drops what comes
    again. What the target will never take is buried at the source. `on_trouble` is told what keeps it waiting.
    """
    moved, pause_s, idle_s = 0, FIRST_PAUSE_S, FIRST_IDLE_S
    held: list[Delivery] = []
    while not stop.is_set():
        try:
            if not held:
                # Whether the target is there comes first: a delivery that cannot be handed over is an attempt lost.
                target.publish([])
                held = _take(source, batch)
            _hand_over(source, target, held)
        except BusError as error:
            on_trouble(error)
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            continue
        if not held:
            stop.wait(idle_s)
        idle_s = FIRST_IDLE_S if held else min(2 * idle_s, LONGEST_IDLE_S)
        moved, pause_s, held = moved + len(held), FIRST_PAUSE_S, []
    return moved


def _take(source: EventBus, batch: int) -> list[Delivery]:
    """Some of each stream, so that none waits for another."""
    streams = [stream for stream in STREAMS if stream != DEAD_LETTERS]
    return [delivery for stream in streams for delivery in source.pull(stream, GROUP, limit=batch, timeout_s=0)]


def _hand_over(source: EventBus, target: EventBus, deliveries: Sequence[Delivery]) -> None:
    """Where one is refused, one by one."""
    if not deliveries:
        return
    try:
        target.publish([delivery.message for delivery in deliveries])
    except (RefusedError, EventError) as error:
        if len(deliveries) > 1:
            for delivery in deliveries:
                _hand_over(source, target, [delivery])
        else:
            source.bury(deliveries[0], reason=str(error))
    else:
        source.ack(deliveries)
