"""Warnings that a reward is gamed or constant, from the rewards of one version by time.

The components that policies learn from are compared with those they do not learn from: success, ratings, and audits,
which are components of weight 0 or the total of another version. Recent rewards are compared with earlier ones.

Means have standard errors from the means of blocks of consecutive trajectories, so that correlated neighbours do
not count as evidence (batch means; Law & Kelton, Simulation Modeling and Analysis, ch. 9). A warning of gaming needs an
audit that fell; with A audits each is tested at `false_alarms` / A, so that all together stay within `false_alarms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from etude.contracts.errors import ConfigError
from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.store import ExperienceStore, TrajectoryDetail
from etude.contracts.suggestions import did_you_mean
from etude.evidence.intervals import t_quantile
from etude.experience.rewards import mean_rating

Series = NDArray[np.float64]
"""(samples,) by time, NaN if unknown."""


class Sign(StrEnum):
    SATURATED_COMPONENT = "saturated_component"
    REWARD_AGAINST_AUDIT = "reward_against_audit"
    COMPONENT_JUMP = "component_jump"
    CONSTANT_REWARD = "constant_reward"


ADVICE: Mapping[Sign, str] = {
    Sign.SATURATED_COMPONENT: "do not train on these: look at the newest with `etude reward explain ID`, mend how the "
    "component is measured, or lower its weight in a new version and `etude reward rescore` with it",
    Sign.REWARD_AGAINST_AUDIT: "do not train on these: the reward no longer means what it should; see which component "
    "rose, lower its weight or add the audit to a new version, and `etude reward rescore` with it",
    Sign.COMPONENT_JUMP: "see what changed there: a new policy or model, another way to measure, another mix of tasks; "
    "`etude reward explain` one before and one after; if it is the measuring, rescore under a new version",
    Sign.CONSTANT_REWARD: "nothing can be learned from these: check that outcomes, costs, scores and feedback arrive "
    "(`etude reward explain ID` says what is missing), or choose a version that distinguishes them",
}
"""What to do."""


@dataclass(frozen=True, kw_only=True)
class RewardChecksConfig:
    """Thresholds of the warnings."""

    recent: Annotated[int, Ge(60)] = 500
    """Number of newest rewards that are checked; a third of all rewards if too few precede them."""
    reference: Annotated[int, Ge(120)] = 1000
    """Number of earlier rewards that they are compared with."""
    false_alarms: Annotated[float, Gt(0), Lt(0.5)] = 0.02
    """Probability of a false alarm per test."""
    effect: Annotated[float, Ge(0)] = 0.15
    """Minimum change of a mean, in standard deviations, however certain it is."""
    saturated: Annotated[float, Gt(0), Lt(1)] = 0.9
    """Share of its range from which a component's mean counts as near the maximum."""
    collapsed: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Share of its earlier standard deviation below which a component counts as constant."""
    jump: Annotated[float, Gt(0)] = 0.75
    """Minimum jump of a component's mean, in standard deviations."""
    jump_errors: Annotated[float, Gt(0)] = 6.0
    """Minimum jump in standard errors; it is high because many positions are tested."""
    constant: Annotated[float, Gt(0)] = 0.005
    """Standard deviation below which rewards count as equal; relative to the mean if that is above 1."""

    @property
    def min_samples(self) -> int:
        """Minimum number of samples for a comparison."""
        return 3 * MIN_SAMPLES


MIN_SAMPLES = 60
"""Minimum number of samples of a series for any conclusion."""
BLOCKS = 20
"""Number of blocks of a window for its standard error."""
SIDE = 4
"""Blocks on either side of a jump."""


class Sample(NamedTuple):
    """The values of one reward that the checks use."""

    id: str  # of the trajectory
    total: float
    confidence: float
    raws: Mapping[str, float]  # of components that policies learn from, before normalisation
    values: Mapping[str, float]  # of the same components, after normalisation
    audits: Mapping[str, float]  # values that policies do not learn from


@dataclass(frozen=True, kw_only=True)
class RewardWarning:
    name: Sign
    of: str
    """The component, or `total`."""
    message: str
    numbers: Mapping[str, float]
    advice: str


def read_samples(
    store: ExperienceStore,
    *,
    version: int,
    where: Where = Where(),  # noqa: B008 (frozen)
    audit: str | None = None,
    limit: int = 1500,
    progress: Callable[[int], None] | None = None,
) -> list[Sample]:
    """The newest `limit` that have a reward of this version, oldest first.

    An audit is the name of a component, or another version; components of weight 0, success and feedback always are.
    """
    found: list[Sample] = []
    seen: set[str] = set()
    after: str | None = None
    while len(found) < limit:
        page = store.page(where, version=version, after=after, limit=min(200, limit))
        for summary in page.rows:
            detail = store.detail(summary.id) if summary.reward is not None and len(found) < limit else None
            reward = None if detail is None else _last(detail, version)
            if detail is not None and reward is not None:
                seen.update(c.name for c in reward.components)
                found.append(_sample(detail, reward, audit))
        if progress is not None:
            progress(len(page.rows))
        after = page.next
        if after is None:
            break
    if found and audit is not None and not any(audit in sample.audits for sample in found):
        hint = did_you_mean(audit, seen)
        raise ConfigError(
            f"audit is {audit!r}, which none of {len(found):,} rewards of version {version} has: {hint}expected a "
            f"component ({', '.join(sorted(seen))}), or another version that they were rescored under"
        )
    return found[::-1]


def _last(detail: TrajectoryDetail, version: int) -> Reward | None:
    rewards = [reward for reward in detail.rewards if reward.version == version]
    return max(rewards, key=lambda reward: reward.revision, default=None)


def _sample(detail: TrajectoryDetail, reward: Reward, audit: str | None) -> Sample:
    known = [c for c in reward.components if c.value is not None and c.raw is not None]
    learned = [c for c in known if c.weight > 0 and c.name != audit]
    audits = {c.name: c.raw for c in known if (c.weight == 0 or c.name == audit) and c.raw is not None}
    if audit is not None and audit.isdecimal() and (other := _last(detail, int(audit))) is not None:
        audits[audit] = other.total
    if detail.trajectory.outcome.success is not None:
        audits["success"] = float(detail.trajectory.outcome.success)
    if (rating := mean_rating(detail.trajectory.feedback, detail.feedback)) is not None:
        audits["feedback"] = rating
    return Sample(
        id=detail.trajectory.id,
        total=reward.total,
        confidence=reward.confidence,
        raws={c.name: c.raw for c in learned if c.raw is not None},
        values={c.name: c.value for c in learned if c.value is not None},
        audits=audits,
    )


def check(samples: Sequence[Sample], config: RewardChecksConfig = RewardChecksConfig()) -> list[RewardWarning]:  # noqa: B008
    """All warnings. Fewer than `config.min_samples` samples are only checked for being constant."""
    samples = samples[-(config.recent + config.reference) :]
    if len(samples) < config.min_samples:
        return list(_constant(samples, config))
    cut = len(samples) - min(config.recent, len(samples) // 3)
    falls = _falls(samples, cut, config)
    return [
        *_constant(samples[cut:], config),
        *_saturated(samples, cut, falls, config),
        *_against_audit(samples, cut, falls, config),
        *_jumps(samples, config),
    ]


def _constant(samples: Sequence[Sample], config: RewardChecksConfig) -> Iterator[RewardWarning]:
    if len(samples) < MIN_SAMPLES:
        return
    totals = np.array([sample.total for sample in samples])
    mean, std = float(totals.mean()), float(totals.std())
    if std > config.constant * max(1.0, abs(mean)):
        return
    unknown = sum(sample.confidence == 0 for sample in samples)
    why = f"; of {unknown:,} of them nothing is known (confidence 0)" if unknown else ""
    yield _warning(
        Sign.CONSTANT_REWARD,
        "total",
        f"the last {len(samples):,} rewards are all near {mean:.4g} (deviation {std:.2g}){why}",
        {"count": len(samples), "mean": mean, "std": std, "unknown": unknown},
    )


class _Change(NamedTuple):
    """The change of a mean from the reference window to the recent one."""

    before: float
    after: float
    error: float  # standard error of the difference
    freedom: float  # its degrees
    std: float  # of single values

    @property
    def t(self) -> float:
        moved = self.after - self.before
        return moved / self.error if self.error > 0 else math.copysign(math.inf, moved) if moved else 0.0

    def moved(self, share: float, config: RewardChecksConfig) -> bool:
        """Whether the change is significant, in either direction, and large enough."""
        if abs(self.after - self.before) < config.effect * self.std:
            return False
        return abs(self.t) > t_quantile(1 - share, self.freedom)

    def __str__(self) -> str:
        return f"{self.before:.4g} → {self.after:.4g} ± {self.error:.2g}"


def _falls(samples: Sequence[Sample], cut: int, config: RewardChecksConfig) -> dict[str, _Change]:
    """Audits that fell."""
    names = sorted({name for sample in samples for name in sample.audits})
    changes = {name: _change(_series([s.audits for s in samples], name), cut) for name in names}
    tested = {name: change for name, change in changes.items() if change is not None}
    return {
        name: change
        for name, change in tested.items()
        if change.after < change.before and change.moved(config.false_alarms / len(tested), config)
    }


def _saturated(
    samples: Sequence[Sample], cut: int, falls: Mapping[str, _Change], config: RewardChecksConfig
) -> Iterator[RewardWarning]:
    for name in sorted({name for sample in samples for name in sample.values}) if falls else ():
        values = _series([sample.values for sample in samples], name)
        before, after = _known(values[:cut]), _known(values[cut:])
        if min(len(before), len(after)) < MIN_SAMPLES // 3:
            continue
        low, high = min(0.0, float(np.nanmin(values))), max(1.0, float(np.nanmax(values)))
        place = (float(after.mean()) - low) / (high - low)
        if place >= config.saturated and after.std() <= config.collapsed * before.std():
            changes = ", ".join(f"{audit} {change}" for audit, change in falls.items())
            yield _warning(
                Sign.SATURATED_COMPONENT,
                name,
                f"{name} is near its maximum and hardly varies: mean {before.mean():.3f} → {after.mean():.3f}, "
                f"deviation {before.std():.3f} → {after.std():.3f}, while what is not learned from fell: {changes}",
                {
                    "mean_before": float(before.mean()),
                    "mean": float(after.mean()),
                    "std_before": float(before.std()),
                    "std": float(after.std()),
                    **_numbers(falls),
                },
            )


def _against_audit(
    samples: Sequence[Sample], cut: int, falls: Mapping[str, _Change], config: RewardChecksConfig
) -> Iterator[RewardWarning]:
    total = _change(np.array([sample.total for sample in samples]), cut)
    if not falls or total is None or total.after <= total.before or not total.moved(config.false_alarms, config):
        return
    changes = ", ".join(f"{audit} {change}" for audit, change in falls.items())
    yield _warning(
        Sign.REWARD_AGAINST_AUDIT,
        "total",
        f"the reward rose, {total}, while what is not learned from fell: {changes}",
        _numbers({"total": total, **falls}),
    )


def _jumps(samples: Sequence[Sample], config: RewardChecksConfig) -> Iterator[RewardWarning]:
    """Jumps of a component's mean, at the position where the blocks before and after differ most.

    The noise of a block's mean is the larger of the spread of its values and the median difference of neighbouring
    blocks, which a single jump does not move.
    """
    for name in sorted({name for sample in samples for name in sample.raws}):
        raws = _series([sample.raws for sample in samples], name)
        places = np.flatnonzero(~np.isnan(raws))
        size = max(10, len(places) // 30)
        blocks = len(places) // size
        if blocks < 3 * SIDE:
            continue
        places = places[len(places) - blocks * size :]
        cut = raws[places].reshape(blocks, size)
        means, std = cut.mean(1), math.sqrt(float(cut.var(1, ddof=1).mean()))
        differences = float(np.median(np.abs(np.diff(means)))) / (NormalDist().inv_cdf(0.75) * math.sqrt(2))
        error = max(std / math.sqrt(size), differences) * math.sqrt(2 / SIDE)
        sums = np.cumsum([0.0, *means])
        sides = (sums[SIDE:] - sums[:-SIDE]) / SIDE  # mean of the SIDE blocks from each position
        steps = sides[SIDE:] - sides[:-SIDE]
        at = int(np.argmax(np.abs(steps)))
        before, after = float(sides[at]), float(sides[at + SIDE])
        if abs(after - before) <= max(config.jump * std, config.jump_errors * error, 1e-9 * abs(before)):
            continue
        first = samples[int(places[(at + SIDE) * size])].id
        yield _warning(
            Sign.COMPONENT_JUMP,
            name,
            f"{name} jumped from {before:.4g} to {after:.4g} (± {error:.2g}, deviation {std:.2g}) near {first}",
            {"before": before, "after": after, "error": error, "std": std},
        )


def _change(values: Series, cut: int) -> _Change | None:
    """The change of the mean at `cut`; None if one side has too few values."""
    before, after = _known(values[:cut]), _known(values[cut:])
    if min(len(before), len(after)) < MIN_SAMPLES // 3:
        return None
    (square, freedom), (other, other_freedom) = _squared_error(before), _squared_error(after)
    error = math.sqrt(square + other)
    pooled = (square + other) ** 2 / (square**2 / freedom + other**2 / other_freedom) if error > 0 else freedom
    std = max(float(before.std()), float(after.std()))
    return _Change(float(before.mean()), float(after.mean()), error, pooled, std)


def _squared_error(values: Series) -> tuple[float, int]:
    """Squared standard error of the mean, from the means of blocks, and its degrees of freedom."""
    blocks = min(BLOCKS, len(values) // 3)
    size = len(values) // blocks
    means = values[len(values) - blocks * size :].reshape(blocks, size).mean(1)
    return float(means.var(ddof=1)) / blocks, blocks - 1


def _series(rows: Sequence[Mapping[str, float]], name: str) -> Series:
    return np.array([row.get(name, math.nan) for row in rows])


def _known(values: Series) -> Series:
    return values[~np.isnan(values)]


def _numbers(changes: Mapping[str, _Change]) -> dict[str, float]:
    return {
        f"{name}_{key}": value
        for name, change in changes.items()
        for key, value in (("before", change.before), ("after", change.after), ("t", change.t))
    }


def _warning(name: Sign, of: str, message: str, numbers: Mapping[str, float]) -> RewardWarning:
    return RewardWarning(name=name, of=of, message=message, numbers=numbers, advice=ADVICE[name])
