"""Whether requests or rewards of a slot have drifted since its training: stored trajectories in, a sentence out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

import msgspec

from etude.contracts.decision import DecisionRequest
from etude.contracts.query import Where
from etude.contracts.store import ExperienceStore
from etude.contracts.trajectory import Trajectory
from etude.evidence.drift import DriftDetector, DriftThresholds, Level
from etude.experience.definitions import find_definition
from etude.release.gates.drift import compare_features, read_features

COMPARED = 1_000
"""Requests on either side, and rewards before the last training: the newest ones."""
MAX_STREAM = 10_000
"""Rewards since the last training, the newest ones. A detector that starts later raises no more false alarms."""
MIN_CHANGE = 0.05
"""Change of the mean reward, as a share of its range, that matters. Rewards that are compared with a rolling baseline
always move a little, and ranks show it."""
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
    """Compares what was asked and earned since the last training with what it learned from."""

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
            before = Where(problem=slot, until=learned + MICROSECOND)
            sentence = self._drift_of_requests(before, after) or self._drift_of_rewards(before, after)
            self._last[slot] = last = Compared(learned=learned, new=new, sentence=sentence)
        return last.sentence

    def _drift_of_requests(self, before: Where, after: Where) -> str:
        """Feature by feature, by their stability index."""
        old, new = self._requests(before), self._requests(after)
        found = compare_features(read_features(old), read_features(new), len(old), len(new), self.thresholds)
        if not found or found[0].level is not Level.FAIL:
            return ""
        return f"requests have drifted since training: {found[0].name!r} has a stability index of {found[0].psi:.2f}"

    def _requests(self, where: Where) -> list[DecisionRequest]:
        """The newest requests; their text, and what else was known of the first decision."""
        page = self.store.page(where, version=self.reward_version, limit=COMPARED).rows
        if not page:
            return []
        rows = self.store.scan(msgspec.structs.replace(where, since=page[-1].time), version=self.reward_version)
        return [_request(msgspec.json.decode(row.body, type=Trajectory)) for row in rows]

    def _drift_of_rewards(self, before: Where, after: Where) -> str:
        """By a detector on the stream of rewards, and by their mean, which has to change by MIN_CHANGE as well.

        Both are of the policy that decided most before: another one earns other rewards without any drift.
        """
        bounds = find_definition(self.store, self.reward_version).range
        known = self.store.page(before, version=self.reward_version, limit=COMPARED).rows
        if bounds is None or not known:
            return ""
        ((policy, _),) = Counter(row.policy for row in known).most_common(1)
        own = msgspec.structs.replace(after, policy=policy)
        new = self.store.page(own, version=self.reward_version, limit=MAX_STREAM).rows
        old_rewards, rewards = (
            [row.reward for row in reversed(rows) if row.policy == policy and row.reward is not None]
            for rows in (known, new)
        )
        least = self.thresholds.min_count
        if min(len(old_rewards), len(rewards)) < least:
            return ""
        detector = DriftDetector(old_rewards)
        for reward in rewards:
            detector.update(reward)
        mean, old_mean = fmean(rewards[-least:]), fmean(old_rewards)
        if not detector.alarmed or abs(mean - old_mean) < MIN_CHANGE * (bounds[1] - bounds[0]):
            return ""
        return (
            f"rewards of policy {policy} have drifted since training: {mean:.3f} on average over the last {least}, "
            f"{old_mean:.3f} before ({detector.crossing})"
        )


def _request(trajectory: Trajectory) -> DecisionRequest:
    context: Any = trajectory.decisions[0].context if trajectory.decisions else None
    known = context if isinstance(context, Mapping) else {} if context is None else {"context": context}
    return DecisionRequest(context={"task": trajectory.task, **known})
