"""Calls that are given up after a deadline. They run in daemon threads, which are made when needed and used again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from etude.experience.per_process import PerProcess

T = TypeVar("T")
MAX_THREADS = 64
"""Maximum number of calls at a time, including those that were given up and still run."""


class Deadline:
    """Runs calls with a timeout. Any number of threads may use it; a call may make another."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._threads = PerProcess(lambda: _Threads(max_threads))

    def call(self, work: Callable[[], T], timeout_s: float) -> T:
        """The result of `work`, or what it raises. TimeoutError after `timeout_s`, or if too many calls still run."""
        answer: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
        self.begin(work, answer.put)
        try:
            result, error = answer.get(timeout=max(0.0, timeout_s))
        except Empty:
            raise late(timeout_s) from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # None only with an error, or where T allows it

    def begin(self, work: Callable[[], T], done: Callable[[tuple[T | None, Exception | None]], object]) -> None:
        """Begin a call and return; its thread gives `done` the result, or what was raised. TimeoutError if too many
        calls still run."""
        self._threads().take().put((work, done))


def late(timeout_s: float) -> TimeoutError:
    """The error of a call that took too long."""
    return TimeoutError(f"no answer within {1000 * timeout_s:.0f} ms")


class _Threads:
    """The idle threads of a process, each by the queue from which it takes its next call."""

    def __init__(self, most: int) -> None:
        self._most, self._made = most, 0
        self._idle: list[SimpleQueue[Any]] = []
        self._turn = threading.Lock()

    def take(self) -> SimpleQueue[Any]:
        with self._turn:
            if self._idle:
                return self._idle.pop()  # the last one used: few threads stay in use
            if self._made >= self._most:
                raise TimeoutError(f"{self._made} earlier calls have not ended")
            self._made += 1
        inbox: SimpleQueue[Any] = SimpleQueue()
        try:
            threading.Thread(target=self._serve, args=(inbox,), name="etude-decide", daemon=True).start()
        except RuntimeError:  # the system gives no more threads
            with self._turn:
                self._made -= 1
            raise
        return inbox

    def _serve(self, inbox: SimpleQueue[Any]) -> None:
        while True:
            work, done = inbox.get()
            try:
                answer: tuple[Any, Exception | None] = (work(), None)
            except Exception as error:
                answer = (None, error)
            except BaseException as error:  # such as SystemExit, which is about this thread
                answer = (None, RuntimeError(f"{type(error).__name__}: {error}"))
            self._idle.append(inbox)  # before the answer: who has it may ask again
            done(answer)
            del work, done, answer
