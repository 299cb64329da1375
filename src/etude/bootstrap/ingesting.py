"""Ingests in a process of its own: a server that stores what it has published would have less of Python's lock left
for decisions.

The child ingests once per line that it reads, answers each with a line, and ends when its input does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

import msgspec
from msgspec import Struct

from etude.bootstrap.experience import Experience, experience
from etude.contracts.errors import EtudeError, StoreError

NICE = 5
"""Added to the child's niceness: decisions go first."""
END_S = 10.0
"""Seconds that a batch has to end when the server stops."""


class Ingested(Struct, frozen=True, kw_only=True):
    """A line of the child."""

    events: int = 0
    error: str = ""
    ends: bool = False
    """Whether the child ends with this line."""


class IngestProcess:
    """Ingests when called, by a child that is started at the first call, and again when it has ended. One call at a
    time."""

    def __init__(self, config: Path | None = None) -> None:
        self._config = config
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Store what was published; the number of events. StoreError says what went wrong."""
        child = self._child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        line = b""
        with suppress(BrokenPipeError):
            child.stdin.write(b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        if not line.endswith(b"\n"):
            self.close()
            ended = f"the process that stores events has ended with status {child.returncode}"
            raise StoreError(f"{ended}: it is started again")
        found = msgspec.json.decode(line, type=Ingested)
        if found.ends:
            self.close()
        if found.error:
            raise StoreError(found.error)
        return found.events

    def close(self) -> None:
        """End the child, after the batch that it is at."""
        child, self._child = self._child, None
        if child is None:
            return
        with child:  # its input and output are closed
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.close()
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()  # what it has not acknowledged is delivered again

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        named = [] if self._config is None else [str(self._config)]
        command = [sys.executable, "-m", "etude.bootstrap.ingesting", *named]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def answer_each(lines: BinaryIO, answers: BinaryIO, opened: Experience) -> None:
    """Ingest once per line."""
    for _ in lines:
        try:
            _say(answers, Ingested(events=sum(opened.catch_up().stored.values())))
        except EtudeError as error:
            _say(answers, Ingested(error=str(error)))


def _say(answers: BinaryIO, found: Ingested) -> None:
    answers.write(msgspec.json.encode(found) + b"\n")
    answers.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the server, too, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(NICE)
    try:
        with experience(Path(sys.argv[1]) if len(sys.argv) > 1 else None, catch_up=False) as opened:
            answer_each(sys.stdin.buffer, sys.stdout.buffer, opened)
    except EtudeError as error:  # it cannot be opened
        _say(sys.stdout.buffer, Ingested(error=str(error), ends=True))


if __name__ == "__main__":
    main()
