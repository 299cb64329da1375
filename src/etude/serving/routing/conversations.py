"""The model on which a conversation stays, for all processes of the machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from etude.contracts.errors import EtudeError
from etude.contracts.serving import ServingState

log = logging.getLogger("etude")


@dataclass(kw_only=True)
class Conversations:
    """What is being written is known at once; what comes while something is written is written together."""

    state: ServingState
    hours: float
    limit: int
    clock: Callable[[], datetime]
    _waiting: dict[str, str] = field(default_factory=dict)
    _writing: dict[str, str] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    async def model_of(self, key: str) -> str | None:
        found = self._waiting.get(key) or self._writing.get(key)
        if found is not None or not self.hours:
            return found
        since = self.clock() - timedelta(hours=self.hours)
        return await asyncio.to_thread(self.state.kept_model, key, since)

    def stay(self, key: str, model: str) -> None:
        if not self.hours:
            return
        self._waiting[key] = model
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._waiting:
            self._writing, self._waiting = self._waiting, {}
            try:
                await asyncio.to_thread(self.state.keep_models, self._writing, self.clock(), limit=self.limit)
            except EtudeError as error:  # a conversation may change its model: no reason to fail a call
                log.error("models of conversations are not kept: %s", error)
            self._writing = {}

    async def close(self) -> None:
        if self._task is not None:
            await self._task
