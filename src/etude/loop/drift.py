"""Whether the requests of a slot have drifted since its last training: stored trajectories in, a sentence out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from etude.contracts.decision import DecisionRequest
from etude.contracts.query import Where
from etude.contracts.store import ExperienceStore
from etude.contracts.trajectory import Trajectory
from etude.evidence.drift import DriftThresholds, Level
from etude.release.gates.drift import compare_features, read_features

COMPARED = 1_000
"""Requests on either side, the newest ones."""
AGAIN = 100
"""New trajectories after which a slot is compared again."""
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The last comparison of a slot."""

    learned: datetime
    new: int
    sentence: str


@dataclass(kw_only=True)
class DriftWatch:
    """Compares what was asked since the last training with what it learned from, feature by feature."""

    store: ExperienceStore
    reward_version: int
    thresholds: DriftThresholds
    _last: dict[str, Compared] = field(default_factory=dict)

    def __call__(self, slot: str, learned: datetime | None) -> str:
        """How a slot drifted after `learned`, the time of its newest training data; empty if it did not."""
        if learned is None:
            return ""
        after = Where(problem=slot, since=learned + MICROSECOND)
        new = self.store.stats(after, version=self.reward_version).trajectories
        if new < self.thresholds.min_count:
            return ""
        last = self._last.get(slot)
        if last is None or last.learned != learned or new >= last.new + AGAIN:
            before = self._requests(Where(problem=slot, until=learned + MICROSECOND))
            sentence = self._sentence(before, self._requests(after))
            self._last[slot] = last = Compared(learned=learned, new=new, sentence=sentence)
        return last.sentence

    def _requests(self, where: Where) -> list[DecisionRequest]:
        """The newest requests; their text, and what else was known of the first decision."""
        page = self.store.page(where, version=self.reward_version, limit=COMPARED).rows
        if not page:
            return []
        rows = self.store.scan(msgspec.structs.replace(where, since=page[-1].time), version=self.reward_version)
        return [_request(msgspec.json.decode(row.body, type=Trajectory)) for row in rows]

    def _sentence(self, before: list[DecisionRequest], now: list[DecisionRequest]) -> str:
        found = compare_features(read_features(before), read_features(now), len(before), len(now), self.thresholds)
        if not found or found[0].level is not Level.FAIL:
            return ""
        return f"requests have drifted since training: {found[0].name!r} has a stability index of {found[0].psi:.2f}"


def _request(trajectory: Trajectory) -> DecisionRequest:
    context: Any = trajectory.decisions[0].context if trajectory.decisions else None
    known = context if isinstance(context, Mapping) else {} if context is None else {"context": context}
    return DecisionRequest(context={"task": trajectory.task, **known})
