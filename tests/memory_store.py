"""The experience store in memory: a model for the contract tests, and fast for others."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from threading import RLock
from typing import NamedTuple

from etude.adapters.summaries import (
    DAY_US,
    OUTCOMES,
    Cell,
    checked,
    checked_limit,
    collected_of,
    conditions,
    context_of,
    groups_of,
    micros,
    moment,
    page_of,
    rating_totals,
    read_cursor,
    stats_of,
    trajectory_of,
)
from etude.contracts.errors import StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.store import REWARD_BOUNDS, Collected, Group, Page, Row, Stats, Stored, Summary, TrajectoryDetail
from etude.contracts.trajectory import Event, Feedback, Trajectory


class MemoryStore:
    """An in-memory ExperienceStore, the twin of the other stores."""

    def __init__(self) -> None:
        self._turn, self._closed = RLock(), False
        self._events: dict[tuple[type[Event], str], tuple[Event, bytes]] = {}
        self._forgotten: set[tuple[type[Event], str]] = set()
        self._opted_out: set[str] = set()
        self._documents: dict[str, dict[str, bytes]] = {}
        self._members: dict[str, set[str]] = {}
        self._gone: list[_Record] = []  # expired or erased: only counts of them are given

    def ping(self) -> None:
        self._open()

    def append(self, events: Sequence[tuple[Event, bytes]]) -> list[Stored]:
        checked(events)
        with self._open():
            return [self._add(event, body) for event, body in events]

    def _add(self, event: Event, body: bytes) -> Stored:
        place = (type(event), event.id)
        if place in self._forgotten or (Trajectory, trajectory_of(event)) in self._forgotten:
            return Stored.FORGOTTEN
        if isinstance(event, Trajectory | Feedback) and event.user in self._opted_out:
            return Stored.OPTED_OUT
        if place in self._events:
            return Stored.DUPLICATE if self._events[place][1] == body else Stored.CONFLICT
        self._events[place] = (event, body)
        return Stored.NEW

    def detail(self, trajectory_id: str) -> TrajectoryDetail | None:
        with self._open():
            record = next((record for record in self._records() if record.trajectory.id == trajectory_id), None)
        if record is None:
            return None
        return TrajectoryDetail(
            trajectory=record.trajectory,
            feedback=tuple(sorted(record.feedback, key=lambda one: (micros(one.time), one.id))),
            rewards=tuple(sorted(record.rewards, key=lambda one: (one.version, one.revision, one.id))),
        )

    def page(self, where: Where, *, version: int, after: str | None = None, limit: int = 100) -> Page:
        summaries = [record.summary(version) for record in self._found(where, version)]
        if after is not None:
            last = read_cursor(after)
            summaries = [summary for summary in summaries if (micros(summary.time), summary.id) < last]
        return page_of(summaries[::-1][: checked_limit(limit) + 1], limit)

    def scan(self, where: Where, *, version: int) -> Iterator[Row]:
        return iter([Row(record.summary(version), record.body) for record in self._found(where, version)])

    def stats(self, where: Where, *, version: int) -> Stats:
        found = self._found(where, version)
        times = [micros(record.trajectory.time) for record in found]
        outcomes = [record.trajectory.outcome for record in found]
        return stats_of(
            [record.cell(version) for record in found],
            users=len({record.trajectory.user for record in found} - {None}),
            first=min(times, default=None),
            last=max(times, default=None),
            waiting=self._waiting(),
            successes_by=Counter(outcome.success_by for outcome in outcomes if outcome.success and outcome.success_by),
        )

    def groups(self, where: Where, *, version: int) -> tuple[Group, ...]:
        return groups_of(record.cell(version) for record in self._found(where, version))

    def collected(self, *, version: int) -> tuple[Collected, ...]:
        with self._open():
            records = [*self._gone, *self._records()]
        first = [(record.trajectory.problem, record.first_reward(version)) for record in records]
        return collected_of(
            [
                (problem, len(some), sum(record.ratings for record in some))
                for problem in {record.trajectory.problem for record in records}
                for some in [[record for record in records if record.trajectory.problem == problem]]
            ],
            [(problem, bisect_left(REWARD_BOUNDS, total), 1, total) for problem, total in first if total is not None],
        )

    def _waiting(self) -> int:
        with self._open():
            feedback = [event for event, _ in self._events.values() if isinstance(event, Feedback)]
            return sum((Trajectory, event.trajectory_id) not in self._events for event in feedback)

    def forget(self, user: str) -> list[str]:
        with self._open():
            erased = {record.trajectory.id for record in self._records() if record.trajectory.user == user}
            feedback = [event for event, _ in self._events.values() if isinstance(event, Feedback)]
            own = {(Feedback, event.id) for event in feedback if event.user == user}
            self._forgotten |= own | {(Trajectory, identity) for identity in erased}
            self._remove(erased)
            for place in own & set(self._events):
                del self._events[place]
        return sorted(erased)

    def forgotten(self, trajectory_ids: Sequence[str]) -> set[str]:
        with self._open():
            return {identity for identity in trajectory_ids if (Trajectory, identity) in self._forgotten}

    def set_opt_out(self, user: str, out: bool) -> None:
        with self._open():
            (self._opted_out.add if out else self._opted_out.discard)(user)

    def opted_out(self) -> frozenset[str]:
        with self._open():
            return frozenset(self._opted_out)

    def expire(self, before: datetime) -> int:
        limit = micros(before)
        with self._open():
            known = {record.trajectory.id: micros(record.trajectory.time) for record in self._records()}
            old = {identity for identity, us in known.items() if us < limit}
            # Feedback expires too if its trajectory has expired or never arrived.
            events = [event for event, _ in self._events.values()]
            orphans = {trajectory_of(event) for event in events if micros(event.time) < limit} - set(known)
            self._remove(old)
            for event in events:
                if trajectory_of(event) in orphans and micros(event.time) < limit:
                    del self._events[type(event), event.id]
        return len(old)

    def put(self, kind: str, key: str, body: bytes) -> None:
        with self._open():
            self._documents.setdefault(kind, {})[key] = body

    def documents(self, kind: str) -> Mapping[str, bytes]:
        with self._open():
            return dict(sorted(self._documents.get(kind, {}).items()))

    def add_members(self, dataset: str, trajectory_ids: Sequence[str]) -> None:
        with self._open():
            self._members.setdefault(dataset, set()).update(trajectory_ids)

    def datasets_of(self, trajectory_ids: Sequence[str]) -> Mapping[str, int]:
        with self._open():
            counts = {name: len(members.intersection(trajectory_ids)) for name, members in self._members.items()}
        return {name: count for name, count in sorted(counts.items()) if count}

    def close(self) -> None:
        self._closed = True

    def _open(self) -> RLock:
        if self._closed:
            raise StoreError("the store in memory is closed: make another")
        return self._turn

    def _found(self, where: Where, version: int) -> list[_Record]:
        """Matching records, oldest first."""
        with self._open():
            found = [record for record in self._records() if record.holds(where, version)]
        return sorted(found, key=lambda record: (micros(record.trajectory.time), record.trajectory.id))

    def _records(self) -> Iterator[_Record]:
        feedback: dict[str, list[Feedback]] = {}
        rewards: dict[str, list[Reward]] = {}
        for event, _ in self._events.values():
            if isinstance(event, Feedback):
                feedback.setdefault(event.trajectory_id, []).append(event)
            elif isinstance(event, Reward):
                rewards.setdefault(event.trajectory_id, []).append(event)
        for event, body in self._events.values():
            if isinstance(event, Trajectory):
                yield _Record(event, body, feedback.get(event.id, []), rewards.get(event.id, []))

    def _remove(self, trajectories: set[str]) -> None:
        self._gone += [record for record in self._records() if record.trajectory.id in trajectories]
        gone = [place for place, (event, _) in self._events.items() if trajectory_of(event) in trajectories]
        for place in gone:
            del self._events[place]


class _Record(NamedTuple):
    """A trajectory with its feedback and rewards."""

    trajectory: Trajectory
    body: bytes
    feedback: list[Feedback]
    rewards: list[Reward]

    def reward(self, version: int) -> Reward | None:
        under = [reward for reward in self.rewards if reward.version == version]
        return max(under, key=lambda reward: (reward.revision, reward.id), default=None)

    def first_reward(self, version: int) -> float | None:
        under = [reward for reward in self.rewards if reward.version == version]
        first = min(under, key=lambda reward: (reward.revision, reward.id), default=None)
        return None if first is None else first.total

    @property
    def ratings(self) -> int:
        return rating_totals([*self.trajectory.feedback, *self.feedback]).ratings

    def summary(self, version: int) -> Summary:
        totals = rating_totals([*self.trajectory.feedback, *self.feedback])
        return _summary(self.trajectory, len(self.body), reward=self.reward(version), feedback=totals.mean)

    def holds(self, where: Where, version: int) -> bool:
        summary, reward = self.trajectory, self.reward(version)
        total, confidence = (reward.total, reward.confidence) if reward else (None, None)
        time = micros(summary.time)
        rated = rating_totals([*self.trajectory.feedback, *self.feedback]).ratings > 0
        return (
            all(getattr(summary, name) == value for name, value in conditions(where).items())
            and (where.outcome is None or summary.outcome.success is OUTCOMES[where.outcome])
            and (where.since is None or time >= micros(where.since))
            and (where.until is None or time < micros(where.until))
            and (where.min_reward is None or (total is not None and total >= where.min_reward))
            and (where.max_reward is None or (total is not None and total <= where.max_reward))
            and (where.min_confidence is None or (confidence is not None and confidence >= where.min_confidence))
            and (where.feedback is None or where.feedback is rated)
        )

    def cell(self, version: int) -> Cell:
        summary, success = self.summary(version), self.trajectory.outcome.success
        return Cell(
            day=micros(self.trajectory.time) // DAY_US,
            problem=summary.problem,
            policy=summary.policy or "",
            success=-1 if success is None else int(success),
            number=1,
            decisions=summary.decisions,
            turns=summary.turns,
            ratings=self.ratings,
            rewards=len(self.rewards),
            bytes=summary.size,
            cost_usd=summary.cost_usd or 0.0,
            costed=int(summary.cost_usd is not None),
            latency_ms=summary.latency_ms or 0.0,
            timed=int(summary.latency_ms is not None),
            reward=summary.reward or 0.0,
            confidence=summary.confidence or 0.0,
            scored=int(summary.reward is not None),
        )


def _summary(trajectory: Trajectory, size: int, *, reward: Reward | None, feedback: float | None) -> Summary:
    outcome = trajectory.outcome
    return Summary(
        id=trajectory.id,
        time=moment(micros(trajectory.time)),
        problem=trajectory.problem,
        policy=trajectory.policy,
        agent=trajectory.agent,
        user=trajectory.user,
        group=trajectory.group,
        tenant=trajectory.tenant,
        success=outcome.success,
        cost_usd=outcome.cost_usd,
        latency_ms=outcome.latency_ms,
        context=context_of(trajectory.problem, trajectory.task),
        decisions=len(trajectory.decisions),
        turns=len(trajectory.turns),
        size=size,
        reward=reward.total if reward else None,
        confidence=reward.confidence if reward else None,
        feedback=feedback,
    )
