"""A value of which each process has its own, since it holds connections, locks or threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One value per process, made on first use; a forked child makes its own."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._turn = make, threading.Lock()
        self.made: dict[int, T] = {}
        _all.add(self)

    def __call__(self) -> T:
        with self._turn:
            if os.getpid() not in self.made:
                self.made[os.getpid()] = self._make()
            return self.made[os.getpid()]

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, where the thread that held it does not exist."""
        self._turn = threading.Lock()


_all: WeakSet[PerProcess[Any]] = WeakSet()


def _in_child() -> None:
    for one in list(_all):
        one.renew_lock()


os.register_at_fork(after_in_child=_in_child)
