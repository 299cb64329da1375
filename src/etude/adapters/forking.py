"""Makes SQLite connections safe under fork: none is in use during a fork, and a child opens its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from weakref import WeakSet

PATIENCE_S = 2.0
"""Seconds that a fork waits for connections in use. A thread that forks during its own scan waits in vain, and must not
continue that scan in the child."""


class ForkGate:
    """A gate around connection use: before a fork it waits for users to leave and closes idle connections."""

    def __init__(self, *, close_idle: Callable[[], None], renew: Callable[[], None]) -> None:
        """`renew` replaces the locks in a child, since their holders may be threads that do not exist there."""
        self._close_idle, self._renew = close_idle, renew
        self._changed, self._inside, self._shut = Condition(), 0, False
        _gates.add(self)

    @contextmanager
    def use(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._inside, timeout=PATIENCE_S)
        self._close_idle()

    def open(self) -> None:
        with self._changed:
            self._shut = False
            self._changed.notify_all()

    def reset(self) -> None:
        self._changed, self._inside, self._shut = Condition(), 0, False
        self._renew()


_gates: WeakSet[ForkGate] = WeakSet()


def _before() -> None:
    for gate in list(_gates):
        gate.shut()


def _in_parent() -> None:
    for gate in list(_gates):
        gate.open()


def _in_child() -> None:
    for gate in list(_gates):
        gate.reset()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
