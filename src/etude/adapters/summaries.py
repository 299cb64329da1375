"""Columns that every store keeps for an event in addition to its bytes, and Stats from totals."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast

from etude.contracts.errors import DataError
from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.store import REWARD_BOUNDS, Collected, Group, Page, Stats, Summary, TrajectoryDetail
from etude.contracts.subjects import decode
from etude.contracts.trajectory import Event, Feedback, Rating, Trajectory, rating_scores

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DAY_US = 86_400_000_000
FIRST_US = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LAST_US = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
SUCCESS: dict[int | None, bool | None] = {None: None, -1: None, 0: False, 1: True}
OUTCOMES: dict[str, bool | None] = {"success": True, "failure": False, "unknown": None}


def checked(events: Sequence[tuple[Event, bytes]]) -> None:
    """ValueError unless all events are trajectories, feedback or rewards."""
    for event, _ in events:
        if not isinstance(event, Trajectory | Feedback | Reward):
            raise ValueError(
                f"{type(event).__name__} {event.id!r} is no experience: a store takes Trajectory, Feedback and Reward"
            )


def micros(time: datetime) -> int:
    """Microseconds since 1970 in UTC; a time before the year 1 in UTC counts as its first moment."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return min(max((aware - EPOCH) // MICROSECOND, FIRST_US), LAST_US)


def moment(us: int) -> datetime:
    return EPOCH + timedelta(0, 0, us)


def context_of(problem: str, task: str) -> str:
    """A hash that is equal for trajectories that answer the same request."""
    text = f"{problem}\0{task.strip()}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text).hexdigest()[:16]


class RatingTotals(NamedTuple):
    """Sums over ratings."""

    ratings: int
    score: float  # of thumbs and stars, each from 0 to 1
    scores: int

    @property
    def mean(self) -> float | None:
        return self.score / self.scores if self.scores else None


def rating_totals(ratings: Iterable[Rating | Feedback]) -> RatingTotals:
    given = [one for one in ratings if one.thumbs is not None or one.stars is not None or one.comment is not None]
    scores = [score for one in given for score in rating_scores(one)]
    return RatingTotals(len(given), sum(scores), len(scores))


def trajectory_of(event: Event) -> str:
    """The id of the trajectory that an event is or is about."""
    return event.trajectory_id if isinstance(event, Feedback | Reward) else event.id


def row_of(event: Event, size: int) -> tuple[Any, ...]:
    """The columns of an event of `size` bytes, without the bytes."""
    if isinstance(event, Trajectory):
        outcome = event.outcome
        return (
            *(event.id, micros(event.time), event.problem, event.policy, event.agent, event.user, event.group),
            *(event.tenant, outcome.success, outcome.cost_usd, outcome.latency_ms),
            *(context_of(event.problem, event.task), len(event.decisions), len(event.turns), size),
            *rating_totals(event.feedback),
            outcome.success_by,
        )
    if isinstance(event, Feedback):
        return (event.id, event.trajectory_id, event.user, micros(event.time), *rating_totals([event]))
    assert isinstance(event, Reward)
    key = (event.id, event.trajectory_id, event.version, event.revision)
    return (*key, micros(event.time), event.total, event.confidence)


def detail_of(trajectory: bytes, feedback: Iterable[bytes], rewards: Iterable[bytes]) -> TrajectoryDetail:
    """The detail of a trajectory from the bytes of its events, of any version."""
    return TrajectoryDetail(
        trajectory=cast(Trajectory, decode(trajectory)),
        feedback=tuple(cast(Feedback, decode(body)) for body in feedback),
        rewards=tuple(cast(Reward, decode(body)) for body in rewards),
    )


class Cell(NamedTuple):
    """Totals over the trajectories of one day, problem, policy and outcome."""

    day: int  # since 1970, in UTC
    problem: str
    policy: str  # empty for none
    success: int  # -1 for unknown
    number: int
    decisions: int
    turns: int
    ratings: int
    rewards: int
    bytes: int
    cost_usd: float
    costed: int  # of how many the cost is known
    latency_ms: float
    timed: int
    reward: float
    confidence: float
    scored: int


def stats_of(
    cells: Sequence[Cell],
    *,
    users: int,
    first: int | None,
    last: int | None,
    waiting: int,
    successes_by: Mapping[str, int],  # of those of which it is known
) -> Stats:
    unknown = sum(cell.number for cell in cells if cell.success == 1) - sum(successes_by.values())
    days: Counter[int] = Counter()
    for cell in cells:
        days[cell.day] += cell.number
    return Stats(
        trajectories=sum(cell.number for cell in cells),
        decisions=sum(cell.decisions for cell in cells),
        turns=sum(cell.turns for cell in cells),
        feedback=sum(cell.ratings for cell in cells),
        waiting=waiting,
        rewards=sum(cell.rewards for cell in cells),
        users=users,
        bytes=sum(cell.bytes for cell in cells),
        first=None if first is None else moment(first),
        last=None if last is None else moment(last),
        mean_reward=_mean((cell.reward, cell.scored) for cell in cells),
        mean_confidence=_mean((cell.confidence, cell.scored) for cell in cells),
        successes_by=dict(sorted(successes_by.items())) | ({"unknown": unknown} if unknown else {}),
        groups=groups_of(cells),
        days=tuple((moment(day * DAY_US).date().isoformat(), count) for day, count in sorted(days.items())),
    )


def groups_of(cells: Iterable[Cell]) -> tuple[Group, ...]:
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.problem, cell.policy, cell.success), []).append(cell)
    return tuple(_group(key, some) for key, some in sorted(groups.items()))


def _group(key: tuple[str, str, int], cells: Sequence[Cell]) -> Group:
    problem, policy, success = key
    return Group(
        problem=problem,
        policy=policy or None,
        success=SUCCESS[success],
        count=sum(cell.number for cell in cells),
        mean_reward=_mean((cell.reward, cell.scored) for cell in cells),
        mean_cost_usd=_mean((cell.cost_usd, cell.costed) for cell in cells),
        mean_latency_ms=_mean((cell.latency_ms, cell.timed) for cell in cells),
    )


def collected_of(
    counts: Iterable[tuple[str, int, int]], rewards: Iterable[tuple[str, int, int, float]]
) -> tuple[Collected, ...]:
    """From problem, trajectories and ratings, and from problem, range of the reward, trajectories and their sum."""
    found = {problem: (trajectories, ratings) for problem, trajectories, ratings in counts}
    ranges: dict[str, list[int]] = {}
    sums: dict[str, float] = {}
    for problem, place, count, reward in rewards:
        ranges.setdefault(problem, [0] * (len(REWARD_BOUNDS) + 1))[place] += count
        sums[problem] = sums.get(problem, 0.0) + reward
    return tuple(
        Collected(
            problem=problem,
            trajectories=found.get(problem, (0, 0))[0],
            ratings=found.get(problem, (0, 0))[1],
            rewards=tuple(ranges.get(problem, [0] * (len(REWARD_BOUNDS) + 1))),
            reward=sums.get(problem, 0.0),
        )
        for problem in sorted(found.keys() | ranges.keys())
    )


def _mean(parts: Iterable[tuple[float, int]]) -> float | None:
    total, count = 0.0, 0
    for part, some in parts:
        total, count = total + part, count + some
    return total / count if count else None


def page_of(rows: list[Summary], limit: int) -> Page:
    """A page from up to `limit` + 1 rows; the extra row shows that there are more."""
    shown = rows[:limit]
    return Page(shown, f"{micros(shown[-1].time)}:{shown[-1].id}" if len(rows) > limit else None)


def read_cursor(after: str) -> tuple[int, str]:
    """Time and id of the last row shown."""
    us, colon, identity = after.partition(":")
    try:
        if colon and identity:
            return int(us), identity
    except ValueError:
        pass
    raise DataError(f"{after!r} is no cursor: expected the `next` of an earlier page, or none to begin with the newest")


def checked_limit(limit: int) -> int:
    if limit < 1:
        raise ValueError(f"limit is {limit}: a page has at least one row")
    return limit


def conditions(where: Where) -> dict[str, object]:
    """Columns with the values that they must equal."""
    named = {name: getattr(where, name) for name in ("user", "policy", "problem", "agent", "group", "tenant")}
    return {name: value for name, value in named.items() if value is not None}


def bounds(where: Where) -> dict[str, float]:
    """Comparisons of columns of a trajectory t and its score s, with the values that they are compared to."""
    named = {
        "t.time >=": None if where.since is None else micros(where.since),
        "t.time <": None if where.until is None else micros(where.until),
        "s.total >=": where.min_reward,
        "s.total <=": where.max_reward,
        "s.confidence >=": where.min_confidence,
    }
    return {name: value for name, value in named.items() if value is not None}
