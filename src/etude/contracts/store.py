"""The socket to stored experience, and what is read from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from msgspec import Struct

from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.trajectory import Event, Feedback, Trajectory


class Stored(StrEnum):
    """What became of an event that was to be stored."""

    NEW = "new"
    DUPLICATE = "duplicate"  # the same is there: nothing changed
    CONFLICT = "conflict"  # another event with this id is there: nothing changed
    FORGOTTEN = "forgotten"  # of a trajectory or user that was erased
    OPTED_OUT = "opted_out"  # of a user who does not want it


class Summary(NamedTuple):
    """A trajectory without what is in it."""

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
    reward: float | None  # under the version that was asked for, its last revision
    confidence: float | None
    feedback: float | None  # mean of what was said, from 0 to 1


class Row(NamedTuple):
    """A trajectory as it came, with its summary."""

    summary: Summary
    body: bytes


class Page(NamedTuple):
    rows: list[Summary]
    next: str | None  # the cursor of what follows; None at the end


class Story(Struct, frozen=True, kw_only=True):
    """All there is about one trajectory."""

    trajectory: Trajectory
    feedback: tuple[Feedback, ...]
    """By time."""
    rewards: tuple[Reward, ...]
    """By version and revision; none is ever removed by a later one."""


class Group(Struct, frozen=True, kw_only=True):
    """Trajectories of one problem, policy and outcome."""

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
    rewards: int
    """Of every version and revision."""
    users: int
    bytes: int
    first: datetime | None
    last: datetime | None
    mean_reward: float | None
    mean_confidence: float | None
    groups: tuple[Group, ...]
    days: tuple[tuple[str, int], ...]
    """Trajectories by day, YYYY-MM-DD in UTC."""


class ExperienceStore(Protocol):
    """Trajectories, feedback and rewards, append-only; and documents about them.

    What `append` returned from survives the death of the process and of the machine. Reads see everything that was
    appended before, by any process. StoreError where the store cannot be reached, read or written (a full disk is
    one): then nothing of the call happened, or calling it again completes it. Instances may be used by several threads.
    """

    def append(self, events: Sequence[tuple[Event, bytes]]) -> list[Stored]:
        """Events with the bytes they came as, in order; what became of each.

        Idempotent by id within a kind. Content is the same where the bytes are. Feedback and rewards may come before
        their trajectory. Nothing of users who opted out, of erased trajectories or of erased users' later events about
        them is stored; whether something was erased is looked at before whether somebody opted out. Only Trajectory,
        Feedback and Reward are taken; others are a ValueError.
        """

    def story(self, trajectory_id: str) -> Story | None: ...

    def page(self, where: Where, *, version: int, after: str | None = None, limit: int = 100) -> Page:
        """Newest first, ties by id. A cursor stays valid while events are appended: none is shown twice or left out."""

    def scan(self, where: Where, *, version: int) -> Iterator[Row]:
        """Every one, oldest first, ties by id, as the store is when it begins; memory holds a few at a time."""

    def stats(self, where: Where, *, version: int) -> Stats: ...

    def forget(self, user: str) -> list[str]:
        """Erase all of a user's trajectories with their feedback, rewards and decisions; their ids, which are kept.

        What they said of others' trajectories goes too. It may take as long as copying the store; where it failed,
        calling it again completes it.
        """

    def forgotten(self, trajectory_ids: Sequence[str]) -> set[str]:
        """Which of these were erased."""

    def set_opt_out(self, user: str, out: bool) -> None: ...

    def opted_out(self) -> frozenset[str]: ...

    def expire(self, before: datetime) -> int:
        """Remove trajectories that began before, with all that belongs to them; how many. They are not `forgotten`."""

    def put(self, kind: str, key: str, body: bytes) -> None:
        """Keep a document, in place of the one of this kind and key: reward definitions, baselines, datasets, jobs."""

    def documents(self, kind: str) -> Mapping[str, bytes]:
        """By key, in the order of keys."""

    def add_members(self, dataset: str, trajectory_ids: Sequence[str]) -> None:
        """Remember which trajectories a dataset is made of; again is harmless."""

    def datasets_of(self, trajectory_ids: Sequence[str]) -> Mapping[str, int]:
        """Datasets that have any of these, and how many."""

    def close(self) -> None:
        """It may be called twice."""
