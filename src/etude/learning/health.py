"""Training health: the metrics of each update in, named warnings out, with the value, the limit and advice.

Limits on returns are relative to the run itself (its noise from update to update, its gain so far), so they fit any
problem. Limits on gradients and KL are absolute: PPO's scaled rewards and advantages keep those near 1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Annotated, Any

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
        self._episodes = _Curve(self.config.flat_updates)
        self._evaluations = _Curve(self.config.flat_updates)
        self._first_entropy: float | None = None
        self._ratios: deque[float] = deque(maxlen=self.config.variance_updates)
        self._vanishing = self._value_updates = self._value_dead = 0

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
        return [_warning(step, reading) for reading in found]

    def state_dict(self) -> dict[str, Any]:
        """All that later warnings depend on, as plain JSON."""
        return {
            "gone": dict(self._gone),
            "episodes": self._episodes.state_dict(),
            "evaluations": self._evaluations.state_dict(),
            "first_entropy": self._first_entropy,
            "ratios": list(self._ratios),
            "vanishing": self._vanishing,
            "value_updates": self._value_updates,
            "value_dead": self._value_dead,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restart()
        self._gone = dict(state["gone"])
        self._episodes.load_state_dict(state["episodes"])
        self._evaluations.load_state_dict(state["evaluations"])
        self._first_entropy = state["first_entropy"]
        self._ratios.extend(state["ratios"])
        self._vanishing = state["vanishing"]
        self._value_updates, self._value_dead = state["value_updates"], state["value_dead"]

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
            yield _Reading(
                symptom=Symptom.NON_FINITE,
                sick=True,
                value=float(metrics[new[0]]),
                threshold=math.inf,
                message=f"not a finite number: {', '.join(f'{name} is {metrics[name]}' for name in new)}",
            )

    def _gradients(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        c, norm = self.config, metrics.get("grad_norm")
        if norm is None:
            return
        yield _Reading(
            symptom=Symptom.EXPLODING_GRADIENTS,
            sick=not norm <= c.grad_norm_max,  # so that NaN counts
            value=norm,
            threshold=c.grad_norm_max,
            message=f"the gradient's norm is {norm:.3g}; {c.grad_norm_max:g} is the limit",
        )
        self._vanishing = self._vanishing + 1 if norm < c.grad_norm_min else 0
        yield _Reading(
            symptom=Symptom.VANISHING_GRADIENTS,
            sick=self._vanishing >= c.vanishing_updates,
            value=norm,
            threshold=c.grad_norm_min,
            message=f"the gradient's norm is {norm:.3g}, below {c.grad_norm_min:g} for {self._vanishing} updates",
        )

    def _kl(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        if (kl := metrics.get("approx_kl")) is not None:
            yield _Reading(
                symptom=Symptom.KL_BLOW_UP,
                sick=kl > self.config.kl_max,
                value=kl,
                threshold=self.config.kl_max,
                message=f"one update moved the policy by a KL of {kl:.3g}, above {self.config.kl_max:g}",
            )

    def _value_function(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        c, explained = self.config, metrics.get("explained_variance")
        # All episodes have the same return as those before: a solved problem has no variance to explain. One update
        # with equal returns is not enough evidence for that.
        solved = metrics.get("episode_return_std") == 0 and [metrics.get("episode_return")] == self._episodes.last
        if explained is None or solved:
            return
        self._value_updates += 1
        dead = explained < c.explained_variance_min and self._value_updates > c.value_warmup
        self._value_dead = self._value_dead + 1 if dead else 0
        yield _Reading(
            symptom=Symptom.DEAD_VALUE_FUNCTION,
            sick=self._value_dead >= c.value_updates,
            value=explained,
            threshold=c.explained_variance_min,
            message=f"the value function explains {explained:.3g} of the returns' variance, below "
            f"{c.explained_variance_min:g} for {self._value_dead} updates",
        )

    def _returns(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        mean, std = metrics.get("episode_return"), metrics.get("episode_return_std")
        if mean is not None:
            self._episodes.add(mean, spread=std or 0.0)
            yield from self._constant()
            yield from self._flat()
            yield from self._collapse(self._episodes, "episode return")
        if mean is not None and std is not None:
            yield from self._variance(mean, std)
        if (evaluated := metrics.get("eval_return")) is not None:
            self._evaluations.add(evaluated)
            yield from self._collapse(self._evaluations, "evaluated return")

    def _constant(self) -> Iterator[_Reading]:
        """The same return from the start. Returns that varied and are equal now may mean a solved problem."""
        curve = self._episodes
        for symptom in (Symptom.ZERO_REWARD, Symptom.CONSTANT_REWARD):
            is_zero = curve.high == curve.low == 0
            yield _Reading(
                symptom=symptom,
                sick=curve.constant
                and curve.count >= self.config.constant_updates
                and is_zero == (symptom is Symptom.ZERO_REWARD),
                value=curve.high - curve.low,
                threshold=curve.tolerance,
                message=f"every episode of {curve.count} updates returned {curve.level:.4g}",
            )

    def _flat(self) -> Iterator[_Reading]:
        """No rise since the start. A curve that rose and stays level has reached a plateau, which is no symptom."""
        c, curve = self.config, self._episodes
        if curve.count >= c.flat_updates and not curve.constant:
            limit = c.noise_factor * curve.noise
            yield _Reading(
                symptom=Symptom.FLAT_CURVE,
                sick=curve.climb <= limit and not curve.rising,
                value=curve.climb,
                threshold=limit,
                message=f"the episode return rose by {curve.climb:.4g} in {curve.count} updates, within its "
                f"scatter of {limit:.4g}",
            )

    def _collapse(self, curve: _Curve, what: str) -> Iterator[_Reading]:
        c = self.config
        # A run that started well has no gain to lose a share of: its noise is the limit then.
        limit = max(c.collapse_share * curve.climb, c.collapse_noise * curve.noise)
        fall = curve.best - curve.level
        yield _Reading(
            symptom=Symptom.POLICY_COLLAPSE,
            of=what,
            sick=fall > limit,
            value=fall,
            threshold=limit,
            message=f"the {what} fell by {fall:.4g}, from {curve.best:.4g} to {curve.level:.4g}, after a climb of "
            f"{curve.climb:.4g}; {limit:.4g} is the limit",
        )

    def _variance(self, mean: float, std: float) -> Iterator[_Reading]:
        c = self.config
        signal = max(abs(mean), self._episodes.climb)
        self._ratios.append(min(std / signal, 1e9) if signal > 0 else 1e9 * (std > 0))
        if len(self._ratios) < c.variance_updates:
            return
        ratios, half, ratio = list(self._ratios), c.variance_updates // 2, median(self._ratios)
        # A falling ratio (rare successes becoming frequent) delays a warning, but does not end one.
        falling = median(ratios[half:]) < 0.7 * median(ratios[:half])
        reported = f"{Symptom.REWARD_VARIANCE}:" in self._gone
        yield _Reading(
            symptom=Symptom.REWARD_VARIANCE,
            sick=ratio > c.variance_ratio and (reported or not falling),
            value=ratio,
            threshold=c.variance_ratio,
            message=f"episode returns deviate by {std:.4g} around a mean of {mean:.4g}: the ratio is {ratio:.3g} over "
            f"{c.variance_updates} updates; {c.variance_ratio:g} is the limit",
        )

    def _entropy(self, metrics: Mapping[str, float]) -> Iterator[_Reading]:
        """Low entropy at a return that has risen is a policy that has learned; without the rise it has given up."""
        c, curve, entropy = self.config, self._episodes, metrics.get("entropy")
        if entropy is None:
            return
        if self._first_entropy is None:
            self._first_entropy = entropy
        full = metrics.get("entropy_max", self._first_entropy)
        # The entropy of a density has no zero to measure a share from, and may be negative.
        if full <= 0 or not curve.settled:
            return
        share, risen = entropy / full, curve.level - curve.first > c.noise_factor * curve.noise
        yield _Reading(
            symptom=Symptom.POLICY_COLLAPSE,
            of="entropy",
            sick=share < c.entropy_share and not risen,
            value=share,
            threshold=c.entropy_share,
            message=f"the entropy is down to {share:.2%}, below {c.entropy_share:.0%}, and the return has not risen",
        )


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """One check of one symptom; `of` names the quantity where several could have it."""

    symptom: Symptom
    sick: bool
    value: float
    threshold: float
    message: str
    of: str = ""


def _warning(step: int, r: _Reading) -> HealthWarning:
    advice = ADVICE[r.symptom]
    return HealthWarning(
        name=r.symptom, step=step, value=r.value, threshold=r.threshold, message=r.message, advice=advice
    )


class _Curve:
    """A noisy series of returns: its first value, its best level, its current level, and its noise."""

    SMOOTH = 3  # points that a level averages
    SETTLED = 8  # points before a rise can be distinguished from noise

    def __init__(self, window: int) -> None:
        self.points: deque[float] = deque(maxlen=window)
        self.count = 0
        self.first = 0.0
        self.best = 0.0  # level
        self.low = self.high = 0.0
        self.steps = 0.0  # their lengths summed

    def add(self, value: float, *, spread: float = 0.0) -> None:
        if self.count == 0:
            self.first = self.best = self.low = self.high = value
        else:
            self.steps += abs(value - self.points[-1])
        self.points.append(value)
        self.count += 1
        self.best = max(self.best, self.level)
        self.low, self.high = min(self.low, value - spread), max(self.high, value + spread)

    @property
    def last(self) -> list[float]:
        return list(self.points)[-1:]

    @property
    def level(self) -> float:
        recent = list(self.points)[-self.SMOOTH :]
        return sum(recent) / len(recent)

    @property
    def climb(self) -> float:
        return self.best - self.first

    @property
    def settled(self) -> bool:
        return self.count >= self.SETTLED

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
        points, half = list(self.points), len(self.points) // 2
        gain = (sum(points[-half:]) - sum(points[:half])) / half
        return gain > 3 * self.noise * math.sqrt(2 / half)

    @property
    def tolerance(self) -> float:
        """The rounding error of equal returns in float32."""
        return 1e-6 * max(abs(self.low), abs(self.high))

    @property
    def constant(self) -> bool:
        return self.high - self.low <= self.tolerance

    def state_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("count", "first", "best", "low", "high", "steps")}
        return {"points": list(self.points), **numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.points.extend(state["points"])
        for name in ("count", "first", "best", "low", "high", "steps"):
            setattr(self, name, state[name])
