"""Operations: what takes longer than a request runs as a command of its own, one after the other.

A process of its own keeps the answers to other requests fast, and what it does is what the command does.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Literal

from msgspec.structs import replace

from etude.contracts.errors import EtudeError, RequestError
from etude.contracts.live import LiveState, Operation, OperationState
from etude.files.durable import make_folder
from etude.loop.runner import LAUNCH

log = logging.getLogger("etude")

MAX_WAITING = 20
TIMEOUT_S = 4 * 3600.0
"""Seconds after which an operation is ended."""
STOP_S = 5.0
"""Seconds that a process has to end."""
TAIL_CHARS = 2000
"""Characters of a command's output that an error shows, at most."""
ENDED_WITH_SERVER = "the server that ran it has ended: ask for it again"


class Operations:
    """The operations that this process runs, and those of others as they are stored."""

    def __init__(
        self,
        state: LiveState,
        *,
        command: Callable[[Sequence[str]], Sequence[str]],
        logs: Path,
        nice: int,
        clock: Callable[[], datetime],
    ) -> None:
        """`command` makes a command line of arguments; what it prints is kept below `logs`."""
        self._state, self._command, self._logs, self._nice, self._clock = state, command, logs, nice, clock
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._runs = ThreadPoolExecutor(1, thread_name_prefix="etude-operations")
        self._turn = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def submit(
        self,
        kind: Literal["gates", "dataset", "rescore"],
        about: str,
        arguments: Sequence[str],
        *,
        by: str,
        result: str,
        done: Collection[int] = (0,),
    ) -> Operation:
        """Start a command, or find the same one that has not ended. `done` are the exit codes of a completed one."""
        with self._turn:
            waiting = self.unfinished()
            same = next((one for one in waiting if (one.kind, one.about) == (kind, about)), None)
            if same is not None:
                return same
            if len(waiting) >= MAX_WAITING or self._closed:
                raise RequestError(
                    f"{len(waiting)} operations wait already: wait for them (GET /v1/operations)", status=503, wait_s=60
                )
            made = Operation(
                id=f"op-{secrets.token_hex(6)}",
                kind=kind,
                about=about,
                state=OperationState.QUEUED,
                by=by,
                created=self._clock(),
                result=result,
            )
            self._state.put(made, owner=self._owner)
            self._runs.submit(self._run, made, tuple(arguments), done)
        return made

    def unfinished(self) -> list[Operation]:
        return [
            one for one, owner in self._state.operations(unfinished=True, limit=-1) if self._settled(one, owner) is one
        ]

    def find(self, id: str) -> Operation | None:
        found = self._state.operations(id=id)
        return self._settled(*found[0]) if found else None

    def page(self, *, after: str | None, limit: int) -> list[Operation]:
        return [self._settled(*row) for row in self._state.operations(after=after, limit=limit)]

    def close(self) -> None:
        """End what runs."""
        self._closed = True
        with suppress(AttributeError, ProcessLookupError):
            self._process.terminate()  # type: ignore[union-attr]
        self._runs.shutdown(wait=True, cancel_futures=True)
        for one, owner in self._state.operations(unfinished=True, limit=-1):
            if owner == self._owner:
                self._end(one, ENDED_WITH_SERVER)

    def _run(self, operation: Operation, arguments: Sequence[str], done: Collection[int]) -> None:
        operation = replace(operation, state=OperationState.RUNNING, started=self._clock())
        try:
            self._state.put(operation, owner=self._owner)
            self._end(operation, self._carry_out(operation, arguments, done))
        except (EtudeError, OSError, ValueError) as error:  # ValueError: no command line can hold an argument
            log.error("operation %s: %s", operation.id, error)
            with suppress(EtudeError):
                self._end(operation, str(error))

    def _carry_out(self, operation: Operation, arguments: Sequence[str], done: Collection[int]) -> str:
        """Why it failed; empty if it did not."""
        make_folder(self._logs)
        path = self._logs / f"{operation.id}.log"
        launch = (sys.executable, "-c", LAUNCH, str(self._nice), str(os.getpid()))
        with path.open("wb") as file:
            self._process = subprocess.Popen(
                [*launch, *self._command(arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file
            )
            try:
                code = self._process.wait(0 if self._closed else TIMEOUT_S)
            except subprocess.TimeoutExpired:
                if self._closed:
                    return ENDED_WITH_SERVER
                return f"it took longer than {TIMEOUT_S / 3600:g} hours and was ended"
            finally:
                _end_process(self._process)
                self._process = None
        if code in done:
            return ""
        if self._closed:
            return ENDED_WITH_SERVER
        said = path.read_text(errors="replace").strip()[-TAIL_CHARS:]
        return said or f"its process ended with the exit code {code}"

    def _end(self, operation: Operation, error: str) -> Operation:
        state = OperationState.FAILED if error else OperationState.COMPLETED
        ended = replace(operation, state=state, ended=self._clock(), error=error)
        self._state.put(ended, owner=self._owner)
        return ended

    def _settled(self, operation: Operation, owner: str) -> Operation:
        """The operation, failed if its process is gone."""
        host, _, process = owner.rpartition(":")
        if operation.ended is not None or host != socket.gethostname() or _is_alive(int(process)):
            return operation
        return self._end(operation, ENDED_WITH_SERVER)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
