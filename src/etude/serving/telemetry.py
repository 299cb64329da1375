"""Traces of instrumented agents: OTLP requests in, trajectories out; what cannot be mapped is counted and kept."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Literal

import msgspec

from etude.contracts.errors import EventError
from etude.contracts.trajectory import Trajectory
from etude.serving.gathering import Gathering, GatheringConfig
from etude.serving.ids import id_of_tenant
from etude.serving.keys import Caller
from etude.serving.otlp import answer, parse_logs, parse_traces, to_json
from etude.serving.traces import Unmapped

log = logging.getLogger("etude")

Signal = Literal["traces", "logs"]
PUBLISHED, REFUSED, LATE = "trajectories", "refused", "evaluations of earlier traces"
MAX_FILE_BYTES = 64 << 20
"""Size at which the file of what is unmapped is moved to one of the same name with .1, in place of an earlier one."""


@dataclass(kw_only=True)
class Telemetry:
    """Unfinished traces are in memory: they are lost with the process."""

    publish: Callable[[list[Trajectory]], None]
    redact: Callable[[bytes], bytes]
    """Removes personal data and secrets from JSON."""
    unmapped: Path
    """JSON Lines of what could not be mapped, redacted."""
    max_bytes: int
    config: GatheringConfig = field(default_factory=GatheringConfig)
    counts: Counter[str] = field(default_factory=Counter)
    """Trajectories that were published, and what was not mapped by its reason."""
    _gathered: dict[str | None, Gathering] = field(default_factory=dict)
    _complete: list[Trajectory] = field(default_factory=list)  # not published yet
    _turn: Lock = field(default_factory=Lock)

    async def receive(
        self, signal: Signal, body: bytes, content_type: str, content_encoding: str | None, caller: Caller
    ) -> tuple[bytes, str]:
        """The answer to an exporter, with its content type; DataError if the request cannot be read."""
        return await asyncio.to_thread(self._receive, signal, body, content_type, content_encoding, caller)

    def _receive(
        self, signal: Signal, body: bytes, content_type: str, content_encoding: str | None, caller: Caller
    ) -> tuple[bytes, str]:
        parse = parse_traces if signal == "traces" else parse_logs
        received = parse(body, content_type=content_type, content_encoding=content_encoding, max_bytes=self.max_bytes)
        with self._turn:
            gathering = self._gathered.get(caller.tenant)
            if gathering is None:
                gathering = self._gathered[caller.tenant] = Gathering(self.config, tenant=caller.tenant)
            dropped = gathering.add(received, now_s=monotonic())
            self._keep((*received.unmapped, *dropped))
        return answer(received, content_type)

    def take(self, *, everything: bool = False) -> None:
        """Publish the traces that are complete, or `everything` there is. BusError if that is not possible now: the
        next call continues."""
        with self._turn:
            for tenant, gathering in self._gathered.items():
                mapped = gathering.take_all() if everything else gathering.take(now_s=monotonic())
                self._complete += [
                    msgspec.structs.replace(one, id=id_of_tenant(one.id, tenant)) for one in mapped.trajectories
                ]
                self.counts[LATE] += len(mapped.evaluations)
                self._keep(mapped.unmapped)
            while self._complete:
                try:
                    self.publish(self._complete[:1])
                    self.counts[PUBLISHED] += 1
                except EventError as error:
                    self.counts[REFUSED] += 1
                    log.warning("trace %s is not stored: %s", self._complete[0].id, error)
                del self._complete[0]

    def _keep(self, unmapped: Iterable[Unmapped]) -> None:
        lines = []
        for one in unmapped:
            self.counts[one.reason] += 1
            lines.append(self.redact(to_json(one)))
        if not lines:
            return
        if self.unmapped.exists() and self.unmapped.stat().st_size > MAX_FILE_BYTES:
            self.unmapped.replace(self.unmapped.with_name(f"{self.unmapped.name}.1"))
        self.unmapped.touch(mode=0o600)
        with self.unmapped.open("ab") as file:
            file.writelines(line + b"\n" for line in lines)
