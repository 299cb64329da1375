"""Turns lines of files into redacted messages, on all cores if there are many lines: redaction is most of the work."""

from __future__ import annotations

import multiprocessing as mp
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice

from etude.contracts.bus import Message
from etude.experience.cleaning import Cleaner, make_cleaner
from etude.experience.config import ExperienceConfig
from etude.experience.files import UNREADABLE, Convert, Line, to_message

BATCH = 100
MIN_POOL_BYTES = 8_000_000
"""Minimum input size for which a process pool pays off."""


def clean_messages(
    lines: Iterator[Line], config: ExperienceConfig, convert: Convert, *, jobs: int | None = None
) -> Iterator[tuple[list[Message], int]]:
    """Batches of messages, nearly in the order of the lines, and their size in bytes.

    `jobs` processes redact in parallel with this one, which redacts as well while no batch is ready.
    """
    cleaner, seen = make_cleaner(config), 0
    others = max(1, (os.cpu_count() or 1) - 1) if jobs is None else jobs
    while seen < MIN_POOL_BYTES or not others:
        batch = list(islice(lines, BATCH))
        if not batch:
            return
        yield [to_message(line, cleaner, convert) for line in batch], _size(batch)
        seen += _size(batch)
    context = mp.get_context("spawn")
    with ProcessPoolExecutor(others, mp_context=context, initializer=_start_worker, initargs=(config,)) as pool:
        waiting: deque[tuple[Future[list[Message]], int]] = deque()
        while True:
            while len(waiting) < 3 * others and (batch := list(islice(lines, BATCH))):
                read = [_converted(line, convert) for line in batch]
                waiting.append((pool.submit(_clean, read), _size(batch)))
            if not waiting:
                return
            if not waiting[0][0].done() and (batch := list(islice(lines, BATCH // 4))):
                yield [to_message(line, cleaner, convert) for line in batch], _size(batch)
                continue
            made, size = waiting.popleft()
            yield made.result(), size


def _size(lines: list[Line]) -> int:
    return sum(line.size for line in lines)


def _converted(line: Line, convert: Convert) -> Line:
    """Convert a line in this process; the consumer reports a line that cannot be converted."""
    try:
        made = convert(line.text) if line.whole else None
    except UNREADABLE:
        made = None
    return line if made is None else line._replace(text=made)


_cleaner: list[Cleaner] = []


def _start_worker(config: ExperienceConfig) -> None:
    _cleaner.append(make_cleaner(config))


def _clean(lines: list[Line]) -> list[Message]:
    return [to_message(line, _cleaner[0]) for line in lines]
