"""Sessions: a policy for each caller, which learns from that caller's steps alone and serves no one else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory
from threading import Lock

from etude.contracts.errors import MissingExtraError, RequestError
from etude.contracts.session import Session
from etude.learning.artefact import Artefact
from etude.problems.spec import ProblemSpec
from etude.serving.keys import Caller, Role
from etude.serving.steering import SHOWN, Releases, actor

Open = Callable[[Artefact | None], Session]
"""Begins a session from a policy, or from nothing."""


@dataclass(kw_only=True)
class _Held:
    """A caller's session. One call at a time: an update changes what the others read."""

    session: Session
    used: datetime
    turn: Lock = field(default_factory=Lock)


@dataclass(kw_only=True)
class Sessions:
    """Those of one process: a session is lost with the process, what was saved is not."""

    spec: ProblemSpec
    open: Open
    releases: Callable[[], Releases]
    """MissingExtraError without the extra `release`."""
    limit: int
    """Maximum number of sessions at a time."""
    idle: timedelta
    """A session that is not used for this long makes room for another one."""
    clock: Callable[[], datetime]
    rng: Random = field(default_factory=SystemRandom)
    held: dict[str, _Held] = field(default_factory=dict)
    turn: Lock = field(default_factory=Lock)

    def seed(self) -> int:
        """Of a sample, another one for each request."""
        return self.rng.randrange(2**31)

    @contextmanager
    def of(self, caller: Caller) -> Iterator[Session]:
        """The caller's session, alone; it begins with the policy that serves, if one does.

        RequestError 429 while all sessions are in use.
        """
        held = self._held(caller)
        with held.turn:
            yield held.session

    def save(self, caller: Caller, name: str = "") -> str:
        """Register the caller's policy in a slot of the caller's own; its version."""
        with self.of(caller) as session, TemporaryDirectory() as folder:
            session.save(Path(folder) / "policy")
            artefact = Artefact(Path(folder) / "policy")
            return self.releases().registry.register(
                artefact, self._slot(caller), actor=actor(caller), evidence={"name": name} if name else {}
            )

    def load(self, caller: Caller, digits: str) -> str:
        """Continue with a version that the caller may read, by its first digits; its full name."""
        registry, known = self.releases().registry, self._readable(caller)
        found = [version for version in known if version.startswith(digits)]
        if len(found) != 1:
            there = ", ".join((found or known)[:SHOWN]) or "none yet, so save one first"
            raise RequestError(f"version {digits!r}: expected one that you saved, or that serves: {there}", status=404)
        session = self.open(registry.artefact(found[0]))
        with self.turn:
            self._make_room(caller.key)
            self.held[caller.key] = _Held(session=session, used=self.clock())
        return found[0]

    def _held(self, caller: Caller) -> _Held:
        with self.turn:
            found = self.held.get(caller.key)
            if found is None:
                self._make_room(caller.key)
                found = self.held[caller.key] = _Held(session=self.open(self._serving()), used=self.clock())
            found.used = self.clock()
            return found

    def _make_room(self, key: str) -> None:
        for other, held in list(self.held.items()):
            if self.clock() - held.used > self.idle:
                del self.held[other]
        if key not in self.held and len(self.held) >= self.limit:
            raise RequestError(
                f"all {self.limit} sessions of this server are in use: try again later, or raise serving.max_sessions",
                status=429,
                wait_s=60.0,
            )

    def _serving(self) -> Artefact | None:
        """The policy that serves, which a session begins with."""
        try:
            registry = self.releases().registry
        except MissingExtraError:
            return None
        version = registry.serving(self.spec.name).incumbent
        return None if version is None else registry.artefact(version)

    def _slot(self, caller: Caller) -> str:
        return f"{self.spec.name}:session-{caller.tenant or caller.key}"

    def _readable(self, caller: Caller) -> list[str]:
        """What the caller saved and what serves; for who may release policies, all versions of the problem."""
        registry = self.releases().registry
        incumbent = registry.serving(self.spec.name).incumbent
        slots = {self._slot(caller)}
        if caller.tenant is None and caller.may(Role.RELEASE):
            slots |= {slot for slot in registry.slots() if slot.partition(":")[0] == self.spec.name}
        heads = (registry.head(slot) for slot in slots)
        saved = {version for head in heads if head is not None for version in head.states}
        return sorted(saved | ({incumbent} if incumbent else set()))
