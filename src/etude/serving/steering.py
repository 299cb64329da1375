"""What routes read and steer besides decisions: releases, jobs, datasets, the catalogue, and the live stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from etude.contracts.errors import RequestError
from etude.contracts.jobs import JobQueue
from etude.contracts.trajectory import Id
from etude.experience.datasets import Manifest
from etude.loop.notify import Notices
from etude.problems.catalogue import Catalogue
from etude.release.canary import Controller
from etude.release.registry import Registry
from etude.release.start import CanaryConfig, Started
from etude.release.strategy import Strategy
from etude.serving.keys import Caller
from etude.serving.live import Live
from etude.serving.operations import Operations

SHOWN = 10
"""Names that a message about an unknown one shows."""


class Starts(Protocol):
    """Begins releases with the settings in force, or with other ones."""

    def start(
        self,
        slot: str,
        candidate: str,
        *,
        by: str,
        canary: CanaryConfig | None = None,
        strategy: Strategy | None = None,
    ) -> Started: ...

    def compare(self, first: str, second: str, *, share: float, by: str) -> Started: ...


@dataclass(kw_only=True)
class Releases:
    """The registry and the releases of this installation."""

    registry: Registry
    controller: Controller
    canary: CanaryConfig
    starts: Starts
    lineage: Callable[[str], dict[str, Any]]
    """A version and those it continues, with their datasets."""
    learned_from: Callable[[Id], dict[str, Any] | None]
    """The datasets and versions that learned from a trajectory; None for an unknown one."""
    turn: Lock = field(default_factory=Lock)
    """Held while the controller is asked: it keeps what it read."""

    def version(self, digits: str) -> str:
        """A registered version by its first digits; RequestError 404 with what there is."""
        known = [v for slot in self.registry.slots() if (head := self.registry.head(slot)) for v in head.states]
        found = sorted({version for version in known if version.startswith(digits)})
        if len(found) == 1:
            return found[0]
        if found:
            raise RequestError(
                f"version {digits!r}: {', '.join(found[:SHOWN])} begin with it: give more digits", status=404
            )
        raise RequestError(f"there is no version {digits!r}: {_there(known, 'registered')}", status=404)

    def slot(self, slot: str) -> str:
        """A slot with a registered version; RequestError 404 with what there is."""
        if self.registry.head(slot) is None:
            raise RequestError(f"there is no slot {slot!r}: {_there(self.registry.slots(), 'registered')}", status=404)
        return slot


@dataclass(frozen=True, kw_only=True)
class Steering:
    """What is opened when it is first used: a server that only decides needs none of it."""

    releases: Callable[[], Releases]
    """MissingExtraError without the extra `release`."""
    jobs: Callable[[], JobQueue]
    slots: Callable[[], list[str]]
    """Slots with experience."""
    notices: Notices
    operations: Operations
    live: Live
    catalogue: Callable[[], Catalogue]
    dataset_place: Callable[[str], str]
    """Where a new dataset of this name is made."""
    dataset_named: Callable[[str], Manifest | None]
    """The dataset that was made there under this name."""
    datasets: Callable[[], Mapping[str, Manifest]]
    """Manifests of the datasets by id."""


def actor(caller: Caller, by: str | None = None) -> str:
    """Who takes a step, for the audit log: the key, and the name that is given with it."""
    return f"key {caller.key}" if by is None else f"{by} by key {caller.key}"


def _there(names: Sequence[str], what: str) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what}: {', '.join(names[:SHOWN])}{more}" if names else f"none is {what} yet"
