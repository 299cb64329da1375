"""Watches the policy that serves after its release: stored trajectories in, an alarm for people out.

There is no control any more, so an alarm rolls nothing back: a change of the traffic looks the same as a worse policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from etude.contracts.query import Where
from etude.contracts.release import Action, Entry, ReleaseSpec
from etude.contracts.store import ExperienceStore
from etude.evidence.eprocess import Watch, WatchConfig

MIN_MEAN = 0.1
"""Mean score below which a loss of .05 says nothing."""


@dataclass
class Watched:
    """The watch of one version in a slot, up to the last trajectory that it has seen."""

    version: str
    spec: ReleaseSpec
    watch: Watch
    since: datetime
    seen: frozenset[str] = frozenset()  # trajectories that began at `since`

    def catch_up(self, store: ExperienceStore, now: datetime) -> None:
        """Add the trajectories whose window has closed, in the order in which they began; without a reward, as 0."""
        spec, latest = self.spec, now - timedelta(seconds=self.spec.window_s)
        where = Where(problem=spec.slot, since=self.since, until=max(latest, self.since))
        for row in store.scan(where, version=spec.reward_version):
            one = row.summary
            if one.id in self.seen or (one.policy or "").partition("+")[0] != self.version:
                continue
            reward = spec.low if one.reward is None else one.reward
            self.watch.update(min(1.0, max(0.0, (reward - spec.low) / (spec.high - spec.low))))
            self.seen = self.seen | {one.id} if one.time == self.since else frozenset({one.id})
            self.since = one.time
            if self.watch.alarmed:
                return


def watched(history: list[Entry], version: str, spec: ReleaseSpec) -> Watched | None:
    """The watch of the policy that serves; None if no canary proved its mean, or it raised its alarm already."""
    own = [entry for entry in history if entry.version == version]
    if any(entry.action is Action.ALARMED for entry in own):
        return None
    last = next((e for e in reversed(own) if e.action in (Action.PROMOTED, Action.STOPPED)), None)
    mean = None if last is None else last.evidence.get("mean_candidate")
    if last is None or mean is None or mean < MIN_MEAN:
        return None
    return Watched(version=version, spec=spec, watch=Watch(WatchConfig(mean=mean)), since=last.time)
