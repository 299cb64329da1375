"""The port to stored experience, and the types that are read from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from msgspec import Struct

from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.trajectory import Event, Feedback, Trajectory

REWARD_BOUNDS = (-10.0, -5.0, -2.0, -1.0, -0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds, inclusive, of the ranges in which rewards are counted; the last range has none."""


class Stored(StrEnum):
    """The result of storing an event."""

    NEW = "new"
    DUPLICATE = "duplicate"  # the same is there: nothing changed
    CONFLICT = "conflict"  # another event with this id is there: nothing changed
    FORGOTTEN = "forgotten"  # its trajectory or user was erased
    OPTED_OUT = "opted_out"  # its user opted out


class Summary(NamedTuple):
    """A trajectory without its content."""

    id: str
    time: datetime
    problem: str
    policy: str | None
    agent: str | None
    user: str | None
    group: str | None
    tenant: str | None
    success: bool | None
    cost_usd: float | None
    latency_ms: float | None
    context: str  # the same for trajectories that answer the same request (problem and task)
    decisions: int
    turns: int
    size: int  # bytes
    reward: float | None  # last revision under the requested version
    confidence: float | None
    feedback: float | None  # mean rating, from 0 to 1


class Row(NamedTuple):
    """A trajectory as it was received, with its summary."""

    summary: Summary
    body: bytes


class Page(NamedTuple):
    rows: list[Summary]
    next: str | None  # cursor of the next page; None at the end


class TrajectoryDetail(Struct, frozen=True, kw_only=True):
    """Everything that is stored about one trajectory."""

    trajectory: Trajectory
    feedback: tuple[Feedback, ...]
    """Feedback by time."""
    rewards: tuple[Reward, ...]
    """Rewards by version and revision; a later one does not remove an earlier one."""


class Group(Struct, frozen=True, kw_only=True):
    """Number of trajectories of one problem, policy and outcome."""

    problem: str
    policy: str | None
    success: bool | None
    count: int
    mean_reward: float | None
    mean_cost_usd: float | None
    mean_latency_ms: float | None


class Stats(Struct, frozen=True, kw_only=True):
    trajectories: int
    decisions: int
    turns: int
    feedback: int
    waiting: int
    """Number of ratings in the whole store whose trajectory has not arrived: it may be late, or its id is wrong."""
    rewards: int
    """Number of rewards of all versions and revisions."""
    users: int
    bytes: int
    first: datetime | None
    last: datetime | None
    mean_reward: float | None
    mean_confidence: float | None
    groups: tuple[Group, ...]
    successes_by: dict[str, int]
    """Successes by who said so: verifier, judge, person, self, or unknown; without those that are 0."""
    days: tuple[tuple[str, int], ...]
    """Trajectories by day, YYYY-MM-DD in UTC."""


class Collected(Struct, frozen=True, kw_only=True):
    """What was stored of a problem since the beginning: these counts never fall."""

    problem: str
    trajectories: int
    ratings: int
    rewards: tuple[int, ...]
    """Trajectories by their first reward: one count for each range of REWARD_BOUNDS, and one for those above."""
    reward: float
    """Sum of these rewards."""


class ExperienceStore(Protocol):
    """An append-only store of trajectories, feedback and rewards, and of documents about them.

    Once `append` has returned, its events survive the death of the process and of the machine. Reads see everything
    that any process appended before. StoreError if the store cannot be reached, read or written (such as a full disk):
    then the call had no effect, or calling it again completes it. Instances may be used by several threads.
    """

    def ping(self) -> None:
        """Raise StoreError if the store cannot be reached and read. It writes nothing and costs one short query."""

    def append(self, events: Sequence[tuple[Event, bytes]]) -> list[Stored]:
        """Append events with their original bytes, in order, and return the result for each.

        Idempotent by id within a kind: contents are equal if their bytes are. Feedback and rewards may come before
        their trajectory. Erased events, events about erased trajectories, and events of users who opted out are not
        stored; erasure is checked before opt-outs. ValueError for any event but Trajectory, Feedback and Reward.
        """

    def detail(self, trajectory_id: str) -> TrajectoryDetail | None: ...

    def page(self, where: Where, *, version: int, after: str | None = None, limit: int = 100) -> Page:
        """Trajectories, newest first, ties by id. A cursor stays valid while events are appended."""

    def scan(self, where: Where, *, version: int) -> Iterator[Row]:
        """All trajectories, oldest first, ties by id, as of its start; only a few are in memory at a time."""

    def stats(self, where: Where, *, version: int) -> Stats: ...

    def groups(self, where: Where, *, version: int) -> tuple[Group, ...]:
        """The groups of `stats` alone: of whole days, UTC, in milliseconds in a store with a million trajectories."""

    def collected(self, *, version: int) -> tuple[Collected, ...]:
        """Counts of everything that was ever stored, by problem: also of what has expired or was erased since. It
        takes milliseconds in a store with a million trajectories."""

    def forget(self, user: str) -> list[str]:
        """Erase a user's trajectories with their feedback, rewards and decisions; return the ids, which are kept.

        The user's ratings of other trajectories are erased too. It may take as long as copying the store; if it
        failed, calling it again completes it.
        """

    def forgotten(self, trajectory_ids: Sequence[str]) -> set[str]:
        """The ids that were erased."""

    def set_opt_out(self, user: str, out: bool) -> None: ...

    def opted_out(self) -> frozenset[str]: ...

    def expire(self, before: datetime) -> int:
        """Remove trajectories that began before, with their feedback and rewards, and return how many.

        They do not count as `forgotten`.
        """

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Store or replace a document by kind and key: reward definitions, baselines, datasets, jobs."""

    def documents(self, kind: str) -> Mapping[str, bytes]:
        """Documents of a kind, sorted by key."""

    def add_members(self, dataset: str, trajectory_ids: Sequence[str]) -> None:
        """Record the trajectories of a dataset; a repeated call is harmless."""

    def datasets_of(self, trajectory_ids: Sequence[str]) -> Mapping[str, int]:
        """Datasets that contain any of these trajectories, and how many of them."""

    def close(self) -> None:
        """Close the store; a second call does nothing."""
