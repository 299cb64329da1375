"""What a unit enters the evidence with: stored trajectories and rewards in; scores, an error and a group out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from etude.contracts.release import ClosedUnit, EarlyUnit, ReleaseSpec
from etude.contracts.reward import Reward
from etude.contracts.store import ExperienceStore, TrajectoryDetail
from etude.contracts.trajectory import Trajectory
from etude.release.assignment import Assigned


@dataclass(kw_only=True)
class OpenUnit:
    """A unit whose window has not closed."""

    first: Assigned
    trajectories: list[str]
    failed: str = ""


def collect_units(lines: Iterable[Assigned], units: dict[str, OpenUnit]) -> None:
    """Add lines of the journal to the units that they are about: a unit keeps its first assignment."""
    for line in lines:
        unit = units.get(line.unit)
        if unit is None:
            units[line.unit] = unit = OpenUnit(first=line, trajectories=[])
        elif line.at_ns < unit.first.at_ns:  # two processes assigned it at once
            unit.first = line
        if line.trajectory not in unit.trajectories:
            unit.trajectories.append(line.trajectory)
        unit.failed = unit.failed or line.failed


def due(units: Iterable[OpenUnit], window_s: float, now: datetime) -> list[OpenUnit]:
    """Units whose window has closed, in the order of their assignment."""
    latest = int((now.timestamp() - window_s) * 1e9)
    found = [unit for unit in units if unit.first.at_ns <= latest]
    return sorted(found, key=lambda unit: (unit.first.at_ns, unit.first.unit))


def close_early(unit: OpenUnit, window_s: float, store: ExperienceStore) -> EarlyUnit:
    """Whether the unit failed within the early window; a task that still runs then did not."""
    closes = datetime.fromtimestamp(unit.first.at_ns / 1e9 + window_s, UTC)
    details = [store.detail(trajectory) for trajectory in unit.trajectories]
    known = [detail.trajectory for detail in details if detail is not None and _ended(detail.trajectory) <= closes]
    return EarlyUnit(
        unit=unit.first.unit,
        candidate=unit.first.candidate,
        share=unit.first.share,
        error=bool(unit.failed) or any(_is_error(trajectory) for trajectory in known),
    )


def close(unit: OpenUnit, spec: ReleaseSpec, store: ExperienceStore) -> ClosedUnit:
    """A conversation has the mean score of its trajectories. Whatever did not arrive in time counts as the worst."""
    closes = datetime.fromtimestamp(unit.first.at_ns / 1e9 + spec.window_s, UTC)
    details = [store.detail(trajectory) for trajectory in unit.trajectories]
    scores = [_score(detail, spec, closes) for detail in details]
    known = [detail.trajectory for detail in details if detail is not None and _ended(detail.trajectory) <= closes]
    return ClosedUnit(
        unit=unit.first.unit,
        assigned_ns=unit.first.at_ns,
        candidate=unit.first.candidate,
        share=unit.first.share,
        score=0.0 if unit.failed else sum(scores) / len(scores),
        error=bool(unit.failed) or len(known) < len(details) or any(_is_error(trajectory) for trajectory in known),
        group=next((trajectory.group for trajectory in known if trajectory.group), None),
        guardrails=_guardrails(known, spec) if len(known) == len(details) else {},
        slow=spec.latency_objective_ms is not None
        and any((trajectory.outcome.latency_ms or 0.0) > spec.latency_objective_ms for trajectory in known),
    )


def _guardrails(known: Sequence[Trajectory], spec: ReleaseSpec) -> dict[str, float]:
    """Latency and cost as scores, where the release has a limit of them; what was not reported counts as the worst."""
    limits = {"latency_ms": ("latency", spec.latency_limit_ms), "cost_usd": ("cost", spec.cost_limit_usd)}
    found = {}
    for field, (name, limit) in limits.items():
        if limit is not None and name in spec.evidence.get("guardrails", {}):
            amounts = [getattr(trajectory.outcome, field) for trajectory in known]
            scores = [0.0 if amount is None else max(0.0, 1 - amount / limit) for amount in amounts]
            found[name] = sum(scores) / len(scores)
    return found


def _score(detail: TrajectoryDetail | None, spec: ReleaseSpec, closes: datetime) -> float:
    if detail is None or _ended(detail.trajectory) > closes:
        return 0.0
    reward = _current(detail.rewards, spec.reward_version, closes)
    if reward is None:
        return 0.0
    return min(1.0, max(0.0, (reward.total - spec.low) / (spec.high - spec.low)))


def _current(rewards: Sequence[Reward], version: int, closes: datetime) -> Reward | None:
    """The last revision before the window closed. The first one counts whenever it was computed: it rests on the
    trajectory alone, which may be ingested later."""
    found = [r for r in rewards if r.version == version and (r.revision == 0 or r.time <= closes)]
    return max(found, key=lambda reward: reward.revision, default=None)


def _ended(trajectory: Trajectory) -> datetime:
    return trajectory.time + timedelta(milliseconds=trajectory.outcome.latency_ms or 0.0)


def _is_error(trajectory: Trajectory) -> bool:
    """The task broke; a task that ended normally without success is no error."""
    return trajectory.outcome.error is not None or trajectory.outcome.ended in ("failed", "aborted", "deadline")
