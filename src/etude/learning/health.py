"""Training health: the metrics of each update in, named warnings out, with the value, the limit and advice.

Limits on returns are relative to the run itself (its noise from update to update, its gain so far), so they fit any
problem. Limits on gradients and KL are absolute: PPO's scaled rewards and advantages keep those near 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le, Lt


class Symptom(StrEnum):
    POLICY_COLLAPSE = "policy_collapse"
    FLAT_CURVE = "flat_curve"
    REWARD_VARIANCE = "reward_variance"
    EXPLODING_GRADIENTS = "exploding_gradients"
    VANISHING_GRADIENTS = "vanishing_gradients"
    KL_BLOW_UP = "kl_blow_up"
    DEAD_VALUE_FUNCTION = "dead_value_function"
    ZERO_REWARD = "zero_reward"
    CONSTANT_REWARD = "constant_reward"
    NON_FINITE = "non_finite"


ADVICE: dict[Symptom, str] = {
    Symptom.POLICY_COLLAPSE: "reduce the learning rate `lr`, or bound each update with `target_kl`; "
    "where the entropy is gone, raise `entropy_coef`",
    Symptom.FLAT_CURVE: "explore more: raise `entropy_coef` (or `curiosity_coef` where reward is rare); "
    "then try a larger `lr`",
    Symptom.REWARD_VARIANCE: "reduce the clip range `clip_coef`; "
    "average over more episodes with larger `envs` or `steps`",
    Symptom.EXPLODING_GRADIENTS: "clip gradients with `max_grad_norm`, keep `normalise_returns` on, reduce `lr`",
    Symptom.VANISHING_GRADIENTS: "change the network: another `activation` or `init`, `norm` set to layer, "
    "fewer layers in `hidden`",
    Symptom.KL_BLOW_UP: "reduce `lr` or `epochs`, or stop an update's epochs early with `target_kl`",
    Symptom.DEAD_VALUE_FUNCTION: "raise `value_coef`, give the value its own trunk (`shared` off), check that the "
    "observation holds what the reward depends on; harmless if outcomes do not depend on the state",
    Symptom.ZERO_REWARD: "check that rewards reach the learner; if success is only rare, raise `curiosity_coef` or "
    "`entropy_coef`, or begin with an easier problem",
    Symptom.CONSTANT_REWARD: "check the reward: it does not depend on what the policy does, so nothing can be learned",
    Symptom.NON_FINITE: "check rewards and observations for NaN and infinity, then reduce `lr`; "
    "continue from an earlier checkpoint, since the weights may be lost",
}
"""What to do, with the names of the settings to change."""


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """Limits beyond which a symptom gives a warning."""

    collapse_share: Annotated[float, Gt(0), Le(1)] = 0.5
    """Share of its gain that a return may lose."""
    collapse_noise: Annotated[float, Gt(0)] = 6.0
    """Loss that a return may always have, as a multiple of its noise from update to update."""
    noise_factor: Annotated[float, Gt(0)] = 4.0
    """Rise of a return, as a multiple of its noise, from which it counts as a gain."""
    entropy_share: Annotated[float, Ge(0), Lt(1)] = 0.05
    """Minimum entropy while the return has not risen, as a share of a uniform policy's (or else of the first)."""
    flat_updates: Annotated[int, Ge(10)] = 30
    """Updates with finished episodes within which the return must rise by more than its noise."""
    variance_ratio: Annotated[float, Gt(0)] = 2.0
    """Maximum deviation of episode returns relative to their mean, or to the gain where that is larger."""
    variance_updates: Annotated[int, Ge(4)] = 20
    """Updates over which the median of that ratio is taken; a falling ratio gives no warning."""
    grad_norm_max: Annotated[float, Gt(0)] = 100.0
    """Maximum norm of the gradient before it is clipped."""
    grad_norm_min: Annotated[float, Ge(0)] = 1e-6
    """Minimum norm of the gradient."""
    vanishing_updates: Annotated[int, Ge(1)] = 5
    """Consecutive updates below the minimum norm that give a warning."""
    kl_max: Annotated[float, Gt(0)] = 0.2
    """Maximum KL divergence of one update."""
    explained_variance_min: Annotated[float, Lt(1)] = 0.05
    """Minimum share of the returns' variance that the value function explains."""
    value_warmup: Annotated[int, Ge(0)] = 10
    """First updates, in which the value function is not judged."""
    value_updates: Annotated[int, Ge(1)] = 20
    """Consecutive updates below the minimum explained variance that give a warning."""
    constant_updates: Annotated[int, Ge(2)] = 5
    """Updates from the start with the same return in all episodes that give a warning."""
    recovery_updates: Annotated[int, Ge(1)] = 5
    """Updates without a symptom after which it can be reported again."""


@dataclass(frozen=True, kw_only=True)
class HealthWarning:
    """A symptom, reported once when it sets in."""

    name: Symptom
    step: int
    value: float
    threshold: float
    message: str
    advice: str


class Health:
    """Watches one run. A metric that is missing from an update counts neither as a symptom nor as a recovery."""

    def __init__(self, config: HealthConfig = HealthConfig()) -> None:  # noqa: B008 (frozen)
        self.config = config
        self._gone: dict[str, int] = {}  # updates without it, of each symptom reported and not yet recovered from
        self.restart()

    def restart(self) -> None:
        """Start measuring again: a new stage of a curriculum has returns that cannot be compared with the old ones."""
        self._seen = _Seen()

    def check(self, step: int, metrics: Mapping[str, float]) -> list[HealthWarning]:
        """Adds the metrics of one update; returns the symptoms that start with it."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        readings = [
            *self._gradients(metrics),
            *self._kl(finite),
            *self._value_function(finite),
            *self._returns(finite),
            *self._entropy(finite),
        ]
        found = [*self._non_finite(metrics), *(reading for reading in readings if self._is_new(reading))]
        return [
            HealthWarning(name=name, step=step, value=value, threshold=limit, message=message, advice=ADVICE[name])
            for name, _, value, limit, message, _ in found
        ]

    def state_dict(self) -> dict[str, Any]:
        """All that later warnings depend on, as plain JSON."""
        return {"gone": dict(self._gone), **asdict(self._seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        seen = dict(state)
        self._gone = dict(seen.pop("gone"))
        curves: dict[str, Any] = {name: _Curve(**seen.pop(name)) for name in ("episodes", "evaluations")}
        self._seen = _Seen(**curves, **seen)

    def _is_new(self, reading: _Reading) -> bool:
        """Whether this starts now, and no other quantity already has the symptom."""
        known = any(key.startswith(f"{reading.symptom}:") for key in self._gone)
        return self._sets_in(f"{reading.symptom}:{reading.of}", reading.sick) and not known

    def _sets_in(self, key: str, sick: bool) -> bool:
        if sick:
            new = key not in self._gone
            self._gone[key] = 0
            return new
        if key in self._gone:
            self._gone[key] += 1
            if self._gone[key] >= self.config.recovery_updates:
                del self._gone[key]
        return False

    def _non_finite(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        """One reading for all metrics that newly have it: a NaN spreads to most of them at once."""
        sick = {name: not math.isfinite(value) for name, value in metrics.items()}
        if new := [name for name in metrics if self._sets_in(f"{Symptom.NON_FINITE}:{name}", sick[name])]:
            message = f"not a finite number: {', '.join(f'{name} is {metrics[name]}' for name in new)}"
            yield _Reading(Symptom.NON_FINITE, True, float(metrics[new[0]]), math.inf, message)

    def _gradients(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        norm, most, least = metrics.get("grad_norm"), self.config.grad_norm_max, self.config.grad_norm_min
        if norm is None:
            return
        message = f"the gradient's norm is {norm:.3g}; {most:g} is the limit"
        yield _Reading(Symptom.EXPLODING_GRADIENTS, not norm <= most, norm, most, message)  # NaN counts
        self._seen.vanishing = count = self._seen.vanishing + 1 if norm < least else 0
        message = f"the gradient's norm is {norm:.3g}, below {least:g} for {count} updates"
        yield _Reading(Symptom.VANISHING_GRADIENTS, count >= self.config.vanishing_updates, norm, least, message)

    def _kl(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        if (kl := metrics.get("approx_kl")) is not None:
            limit = self.config.kl_max
            message = f"one update moved the policy by a KL of {kl:.3g}, above {limit:g}"
            yield _Reading(Symptom.KL_BLOW_UP, kl > limit, kl, limit, message)

    def _value_function(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        c, seen, explained = self.config, self._seen, metrics.get("explained_variance")
        # All episodes have the same return as those before: a solved problem has no variance to explain. One update
        # with equal returns is not enough evidence for that.
        solved = metrics.get("episode_return_std") == 0 and [metrics.get("episode_return")] == seen.episodes.points[-1:]
        if explained is None or solved:
            return
        least = c.explained_variance_min
        seen.value_updates += 1
        dead = explained < least and seen.value_updates > c.value_warmup
        seen.value_dead = seen.value_dead + 1 if dead else 0
        message = (
            f"the value function explains {explained:.3g} of the returns' variance, below {least:g} for "
            f"{seen.value_dead} updates"
        )
        yield _Reading(Symptom.DEAD_VALUE_FUNCTION, seen.value_dead >= c.value_updates, explained, least, message)

    def _returns(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        mean, std, window = metrics.get("episode_return"), metrics.get("episode_return_std"), self.config.flat_updates
        if mean is not None:
            self._seen.episodes.add(mean, window, spread=std or 0.0)
            yield from self._constant()
            yield from self._flat()
            yield self._collapse(self._seen.episodes, "episode return")
        if mean is not None and std is not None:
            yield from self._variance(mean, std)
        if (evaluated := metrics.get("eval_return")) is not None:
            self._seen.evaluations.add(evaluated, window)
            yield self._collapse(self._seen.evaluations, "evaluated return")

    def _constant(self) -> Iterator[_Reading]:
        """The same return from the start. Returns that varied and are equal now may mean a solved problem."""
        curve = self._seen.episodes
        same = curve.constant and curve.count >= self.config.constant_updates
        is_zero = curve.high == curve.low == 0
        message = f"every episode of {curve.count} updates returned {curve.level:.4g}"
        for symptom, sick in ((Symptom.ZERO_REWARD, is_zero), (Symptom.CONSTANT_REWARD, not is_zero)):
            yield _Reading(symptom, same and sick, curve.high - curve.low, curve.tolerance, message)

    def _flat(self) -> Iterator[_Reading]:
        """No rise since the start. A curve that rose and stays level has reached a plateau, which is no symptom."""
        curve = self._seen.episodes
        if curve.count >= self.config.flat_updates and not curve.constant:
            limit, rise = self.config.noise_factor * curve.noise, curve.climb
            message = (
                f"the episode return rose by {rise:.4g} in {curve.count} updates, within its scatter of {limit:.4g}"
            )
            yield _Reading(Symptom.FLAT_CURVE, rise <= limit and not curve.rising, rise, limit, message)

    def _collapse(self, curve: _Curve, what: str) -> _Reading:
        c = self.config
        # A run that started well has no gain to lose a share of: its noise is the limit then.
        limit = max(c.collapse_share * curve.climb, c.collapse_noise * curve.noise)
        fall = curve.best - curve.level
        message = (
            f"the {what} fell by {fall:.4g}, from {curve.best:.4g} to {curve.level:.4g}, after a climb of "
            f"{curve.climb:.4g}; {limit:.4g} is the limit"
        )
        return _Reading(Symptom.POLICY_COLLAPSE, fall > limit, fall, limit, message, of=what)

    def _variance(self, mean: float, std: float) -> Iterator[_Reading]:
        updates, limit, ratios = self.config.variance_updates, self.config.variance_ratio, self._seen.ratios
        signal = max(abs(mean), self._seen.episodes.climb)
        ratios.append(min(std / signal, 1e9) if signal > 0 else 1e9 * (std > 0))
        del ratios[:-updates]
        if len(ratios) < updates:
            return
        ratio = median(ratios)
        # A falling ratio (rare successes becoming frequent) delays a warning, but does not end one.
        falling = median(ratios[updates // 2 :]) < 0.7 * median(ratios[: updates // 2])
        reported = f"{Symptom.REWARD_VARIANCE}:" in self._gone
        message = (
            f"episode returns deviate by {std:.4g} around a mean of {mean:.4g}: the ratio is {ratio:.3g} over "
            f"{updates} updates; {limit:g} is the limit"
        )
        yield _Reading(Symptom.REWARD_VARIANCE, ratio > limit and (reported or not falling), ratio, limit, message)

    def _entropy(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        """Low entropy at a return that has risen is a policy that has learned; without the rise it has given up."""
        curve, entropy, least = self._seen.episodes, metrics.get("entropy"), self.config.entropy_share
        if entropy is None:
            return
        if self._seen.first_entropy is None:
            self._seen.first_entropy = entropy
        full = metrics.get("entropy_max", self._seen.first_entropy)
        # The entropy of a density has no zero to measure a share from, and may be negative.
        if full <= 0 or curve.count < SETTLED:
            return
        share, risen = entropy / full, curve.level - curve.first > self.config.noise_factor * curve.noise
        message = f"the entropy is down to {share:.2%}, below {least:.0%}, and the return has not risen"
        yield _Reading(Symptom.POLICY_COLLAPSE, share < least and not risen, share, least, message, of="entropy")


class _Reading(NamedTuple):
    """One check of one symptom; `of` names the quantity where several could have it."""

    symptom: Symptom
    sick: bool
    value: float
    threshold: float
    message: str
    of: str = ""


SMOOTH = 3
"""Points of a curve that a level averages."""
SETTLED = 8
"""Points of a curve before a rise can be distinguished from noise."""


@dataclass(kw_only=True)
class _Curve:
    """A noisy series of returns: its first value, its best level, its current level, and its noise."""

    points: list[float] = field(default_factory=list)  # the newest
    count: int = 0
    first: float = 0.0
    best: float = 0.0  # level
    low: float = 0.0
    high: float = 0.0
    steps: float = 0.0  # their lengths summed

    def add(self, value: float, window: int, *, spread: float = 0.0) -> None:
        if self.count == 0:
            self.first = self.best = self.low = self.high = value
        else:
            self.steps += abs(value - self.points[-1])
        self.points = [*self.points, value][-window:]
        self.count += 1
        self.best = max(self.best, self.level)
        self.low, self.high = min(self.low, value - spread), max(self.high, value + spread)

    @property
    def level(self) -> float:
        recent = self.points[-SMOOTH:]
        return sum(recent) / len(recent)

    @property
    def climb(self) -> float:
        return self.best - self.first

    @property
    def noise(self) -> float:
        """The standard deviation of a point, estimated from the mean absolute difference of neighbours.

        That is 1.128 standard deviations for normal noise. It uses the recent points or the whole run, whichever gives
        the larger value.
        """
        recent = [abs(b - a) for a, b in pairwise(self.points)]
        return max(sum(recent) / max(len(recent), 1), self.steps / max(self.count - 1, 1)) / 1.128

    @property
    def rising(self) -> bool:
        """Whether the later half of the window lies three standard errors above the earlier one."""
        half = len(self.points) // 2
        gain = (sum(self.points[-half:]) - sum(self.points[:half])) / half
        return gain > 3 * self.noise * math.sqrt(2 / half)

    @property
    def tolerance(self) -> float:
        """The rounding error of equal returns in float32."""
        return 1e-6 * max(abs(self.low), abs(self.high))

    @property
    def constant(self) -> bool:
        return self.high - self.low <= self.tolerance


@dataclass(kw_only=True)
class _Seen:
    """What was measured since the start."""

    episodes: _Curve = field(default_factory=_Curve)
    evaluations: _Curve = field(default_factory=_Curve)
    first_entropy: float | None = None
    ratios: list[float] = field(default_factory=list)  # of the deviation of returns to their mean
    vanishing: int = 0
    value_updates: int = 0
    value_dead: int = 0
