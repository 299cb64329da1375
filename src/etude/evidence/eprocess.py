"""E-processes of a canary: closed units in, evidence of harm and of safety out, valid whenever one looks.

Units enter in the order of their assignment, each with the candidate's share p_t at that moment. All evidence is kept
as natural logarithms. By Ville's inequality an e-process reaches 1/α with probability at most α while its null
hypothesis holds, at any time, under any ramp that depends on closed units alone and any drift of the base rate.

`Evidence` updates every process of one release, unit by unit. The functions `…_path` compute a single process from
whole arrays, for the audit, which replays a decision, and for tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import ArrayLike

from etude.contracts.errors import ConfigError, DataError
from etude.evidence.intervals import Array, Estimate
from etude.evidence.sequences import average_effect

BETS: Array = np.geomspace(0.002, 0.9, 16)
"""f_k, averaged: no single bet must be right for every size of effect."""
WORSE: Array = np.geomspace(1.1, 50.0, 16)
"""κ of `errors`: the candidate's error rate over the control's, if it is worse."""
FINE: Array = np.geomspace(0.1, 1.9, 16)
"""κ of `fine`: ratios that are acceptable."""
FINE_WEIGHT = 0.9
"""Weight of the error ratio in `fine`; the rest is for `rare`, the difference of error rates, which alone can show that
a candidate is fine where there are hardly any errors to compare."""
ODDS: Array = np.geomspace(0.5, 2.0, 16)
"""θ of `mismatch`: how much more often than p_t the candidate is assigned, in odds."""
MAX_DETECTOR = 1e250
"""Cap of the detector, far above every threshold, so that it stays finite."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One closed unit: a trajectory, or the conversation that it belongs to."""

    candidate: bool  # A_t
    share: float  # p_t in (0, 1): the candidate's share when the unit was assigned
    score: float  # Y_t in [0, 1]; 0 where no reward arrived
    error: bool = False
    group: str | None = None
    guardrails: Mapping[str, float] = field(default_factory=dict)  # further scores in [0, 1]; missing counts as 0
    slow: bool = False  # took longer than the latency objective


@dataclass(frozen=True, kw_only=True)
class EarlyError:
    """One unit when its early window closed: whether it failed by then."""

    candidate: bool
    share: float
    error: bool


@dataclass(frozen=True, kw_only=True)
class EvidenceConfig:
    """When evidence decides. The defaults are a joint proof: 5 % wrong rollbacks, 5 % wrong promotions at most."""

    alpha_rollback: Annotated[float, Gt(0), Lt(1)] = 0.04
    """Probability of a rollback without harm, by the weighted evidence; also what all groups together may spend."""
    alpha_hard: Annotated[float, Gt(0), Lt(1)] = 0.01
    """Probability of a false alarm of the change detector within the horizon."""
    alpha_promote: Annotated[float, Gt(0), Lt(1)] = 0.05 / 3
    """Probability, per stage, to pass it although the candidate is worse by the stage's margin."""
    reward_weight: Annotated[float, Ge(0), Le(1)] = 0.7
    """Weight of harm to rewards in the rollback evidence."""
    error_weight: Annotated[float, Ge(0), Le(1)] = 0.3
    """Weight of the error ratio in the rollback evidence."""
    guardrails: Mapping[str, float] = field(default_factory=dict)
    """Weights of further scores in [0, 1] (latency, cost) by name; all weights sum to 1."""
    harm_margin: Annotated[float, Ge(0), Lt(1)] = 0.0
    """m_R: a loss of reward up to this is not harm."""
    margins: tuple[Annotated[float, Ge(0), Lt(1)], ...] = (0.10, 0.05, 0.03)
    """m_P of each stage: a stage is passed on proof that the loss of reward is smaller."""
    fine_ratio: Annotated[float, Gt(1.9)] = 2.0
    """The last stage is passed on proof that the candidate's error rate over the control's is below this …"""
    error_margin: Annotated[float, Gt(0), Lt(1)] = 0.01
    """… or that it exceeds the control's by less than this."""
    groups: tuple[str, ...] = ()
    """Groups watched for harm, fixed when the release starts; units of other groups count in the whole only."""
    mismatch_alpha: Annotated[float, Gt(0), Lt(1)] = 0.001
    """Probability of a false alarm of the sample-ratio check."""
    horizon: Annotated[int, Ge(1)] = 30_000
    """Units after which an undecided canary ends; it never ships."""
    min_share: Annotated[float, Gt(0), Le(0.5)] = 0.1
    """Smallest planned share of either arm: the displayed interval needs a bound fixed in advance."""

    def __post_init__(self) -> None:
        weights = {"reward": self.reward_weight, "error": self.error_weight, **self.guardrails}
        if min(weights.values()) < 0 or not math.isclose(sum(weights.values()), 1.0, abs_tol=1e-9):
            raise ConfigError(f"guardrail weights are {weights!r}: expected weights >= 0 that sum to 1")
        if not self.margins:
            raise ConfigError("margins is empty: expected one margin per stage")
        if len(set(self.groups)) != len(self.groups):
            raise ConfigError(f"groups is {self.groups!r}: expected each name once")


class Action(StrEnum):
    CONTINUE = "continue"
    ROLL_BACK = "roll back"
    PASS_STAGE = "pass stage"
    CANNOT_TELL = "cannot tell"
    HORIZON = "horizon"


class Crossing(NamedTuple):
    """Evidence compared with its threshold, both as natural logarithms."""

    name: str
    value: float
    threshold: float

    @property
    def reached(self) -> bool:
        return self.value >= self.threshold

    def __str__(self) -> str:
        return f"{self.name} {_plain(self.value)}, threshold {_plain(self.threshold)}"


def _plain(log: float) -> str:
    return f"{math.exp(log):.3g}" if abs(log) < 200 else f"10^{log / math.log(10):.0f}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the evidence says now."""

    action: Action
    reason: str  # a sentence
    decided_by: tuple[Crossing, ...]  # evidence that decided, or that a CONTINUE waits for
    e_values: Mapping[str, float]  # all of them, natural logarithms


class Evidence:
    """All e-processes of one release: never reset between stages, made again for another policy version."""

    def __init__(self, config: EvidenceConfig, *, early_errors: bool = False, slow_share: float | None = None) -> None:
        """With `early_errors`, errors roll back by their early window alone, at their weight's part of alpha_rollback.
        `slow_share` of the candidate's units may be slower than the latency objective, if there is one."""
        self.config, self.early_errors, self.slow_share = config, early_errors, slow_share
        self.effect_total, self.effect_variance, self.least_share = 0.0, 0.0, config.min_share
        self.error_counts = [0, 0]  # of the control, of the candidate
        self._arms, self._error_arms = _Arms(), _Arms()
        self._names = ("harm", *(f"safe_{j}" for j in range(len(config.margins))), "superior", "rare", "mismatch")
        self._logs = np.zeros((len(self._names), len(BETS)))
        self._gains = np.zeros((len(self._names) - 1, 1))
        self._detector = np.zeros(len(BETS))
        self._errors, self._fine = ErrorRatio(WORSE), ErrorRatio(FINE, null=config.fine_ratio)
        self._early, self._slow = ErrorRatio(WORSE), np.zeros(len(BETS))
        self._guardrails = {name: _Harm(config.harm_margin) for name in config.guardrails}
        self._groups = {name: _Harm(config.harm_margin) for name in config.groups}
        self._mismatch_factors: dict[float, tuple[Array, Array]] = {}

    @property
    def count(self) -> int:
        """Number of units."""
        return self._arms.counts[0] + self._arms.counts[1]

    @property
    def candidates(self) -> int:
        """Number of units on the candidate."""
        return self._arms.counts[1]

    @property
    def mean_control(self) -> float:
        """Mean score of the control; NaN without units."""
        return self._arms.mean(0)

    @property
    def mean_candidate(self) -> float:
        """Mean score of the candidate; NaN without units."""
        return self._arms.mean(1)

    def update(self, unit: Unit) -> None:
        """Adds the next unit, in the order of assignment. An invalid unit raises DataError and changes nothing."""
        candidate, share, score, config = unit.candidate, unit.share, unit.score, self.config
        if not 0 < share < 1:
            raise DataError(f"share is {share!r}: expected the candidate's share at assignment, between 0 and 1")
        if not 0 <= score <= 1:
            raise DataError(f"score is {score!r}: expected a number in [0, 1]; scale it by the bounds of its reward")
        for name, value in unit.guardrails.items():
            if name not in self._guardrails or not 0 <= value <= 1:
                known = ", ".join(self._guardrails) or "none configured"
                raise DataError(f"guardrail {name!r} is {value!r}: expected a number in [0, 1] for one of: {known}")
        x, above, below = self._arms.observe(candidate, share, score)
        gains, margin = self._gains[:, 0], config.harm_margin
        gains[0] = -(x + margin) / (above + margin)
        for j, margin in enumerate(config.margins, 1):
            gains[j] = (x + margin) / (below - margin)
        gains[-2] = x / below
        fewer, _, below = self._error_arms.observe(candidate, share, 0.0 if unit.error else 1.0)
        gains[-1] = (fewer + config.error_margin) / (below - config.error_margin)
        bets = self._gains * BETS  # (processes, bets)
        self._detector += 1.0
        self._detector *= 1.0 + bets[0]
        np.minimum(self._detector, MAX_DETECTOR, out=self._detector)
        self._logs[:-1] += np.log1p(bets)
        self._logs[-1] += self._mismatch(share)[candidate]
        if unit.error:
            self.error_counts[candidate] += 1
            self._errors.update(candidate, share)
            self._fine.update(candidate, share)
        for name, guardrail in self._guardrails.items():
            guardrail.update(candidate, share, unit.guardrails.get(name, 0.0))
        if candidate and self.slow_share is not None:
            # E[slow] <= slow_share: the factor has a mean of at most 1, and is at least 1 - f.
            self._slow += np.log1p(BETS * (unit.slow - self.slow_share) / self.slow_share)
        if unit.group is not None and unit.group in self._groups:
            self._groups[unit.group].update(candidate, share, score)
        self._sum_effects(x, share)

    def update_early(self, unit: EarlyError) -> None:
        """Adds the next unit whose early window closed, in the order of assignment."""
        if not 0 < unit.share < 1:
            raise DataError(f"share is {unit.share!r}: expected the candidate's share at assignment, between 0 and 1")
        if unit.error:
            self._early.update(unit.candidate, unit.share)

    def add(self, unit: Unit | EarlyError) -> None:
        """Adds what comes next, of either kind."""
        if isinstance(unit, Unit):
            self.update(unit)
        else:
            self.update_early(unit)

    def _mismatch(self, share: float) -> tuple[Array, Array]:
        """Logarithms of the factors of a control and of a candidate unit; shares are few, so they are remembered."""
        if share not in self._mismatch_factors:
            if len(self._mismatch_factors) >= 64:
                self._mismatch_factors.clear()
            control = -np.log1p(share * (ODDS - 1))
            self._mismatch_factors[share] = control, control + np.log(ODDS)
        return self._mismatch_factors[share]

    def _sum_effects(self, x: float, share: float) -> None:
        earlier = self.count - 1
        predicted = self.effect_total / earlier if earlier else 0.0
        self.effect_variance += (x - predicted) ** 2
        self.effect_total += x
        self.least_share = min(self.least_share, share, 1 - share)

    def e_values(self) -> dict[str, float]:
        """Natural logarithms of all e-values and of the detector's statistic."""
        config = self.config
        found = dict(zip(self._names, _log_mean(self._logs).tolist(), strict=True))
        found |= {"errors": self._errors.log_e, "ratio": self._fine.log_e, "detector": _log(self._detector.mean())}
        found["fine"] = combine([(FINE_WEIGHT, found["ratio"]), (1 - FINE_WEIGHT, found["rare"])])
        weighted = [(config.reward_weight, found["harm"])]
        if self.early_errors:
            found["early_errors"] = self._early.log_e
        else:
            weighted.append((config.error_weight, found["errors"]))
        if self.slow_share is not None:
            found["slow"] = float(_log_mean(self._slow))
        for name, guardrail in self._guardrails.items():
            found[f"guardrail:{name}"] = guardrail.log_e
            weighted.append((config.guardrails[name], guardrail.log_e))
        found["rollback"] = combine(weighted)
        return found | {f"group:{name}": group.log_e for name, group in self._groups.items()}

    def verdict(self, stage: int, *, last: bool) -> Finding:
        """What to do in this stage (from 0); stages beyond the configured margins use the last margin.

        A sample-ratio mismatch comes first: where assignment does not follow p_t, no other evidence is valid.
        """
        found, config = self.e_values(), self.config

        def compare(name: str, odds: float) -> Crossing:
            return Crossing(name, found[name], math.log(odds))

        def finding(action: Action, reason: str, *crossings: Crossing) -> Finding:
            sentence = f"after {self.count:,} units, {reason}"
            if crossings:
                sentence += f" ({'; '.join(map(str, crossings))})"
            return Finding(action=action, reason=sentence, decided_by=crossings, e_values=found)

        mismatch = compare("mismatch", 1 / config.mismatch_alpha)
        if mismatch.reached:
            return finding(
                Action.CANNOT_TELL,
                f"{self.candidates:,} are on the candidate, which its shares make improbable: assignment is broken",
                mismatch,
            )
        alarms = {
            compare("rollback", 1 / config.alpha_rollback): "the candidate does harm",
            compare("detector", config.horizon / config.alpha_hard): "the candidate's rewards became worse",
        }
        if self.early_errors and config.error_weight:
            crossing = compare("early_errors", 1 / (config.error_weight * config.alpha_rollback))
            alarms[crossing] = "the candidate has more errors"
        if self.slow_share is not None:
            crossing = compare("slow", 1 / config.alpha_hard)
            alarms[crossing] = f"more than {self.slow_share:.0%} of the candidate's units miss the latency objective"
        for group in config.groups:
            crossing = compare(f"group:{group}", len(config.groups) / config.alpha_rollback)
            alarms[crossing] = f"the candidate does harm in group {group!r}"
        for crossing, reason in alarms.items():
            if crossing.reached:
                return finding(Action.ROLL_BACK, reason, crossing)
        j = min(stage, len(config.margins) - 1)
        proofs = [compare(f"safe_{j}", 1 / config.alpha_promote)]
        if last:
            proofs.append(compare("fine", 1 / config.alpha_promote))
        if self.count <= config.horizon and all(proof.reached for proof in proofs):
            return finding(Action.PASS_STAGE, f"the candidate loses less than {config.margins[j]:g} of reward", *proofs)
        if self.count >= config.horizon:
            return finding(Action.HORIZON, "the horizon is reached and nothing is proven", *proofs)
        return finding(Action.CONTINUE, "more evidence is needed", *proofs)

    def interval(self, alpha: float = 0.05) -> Estimate:
        """Confidence sequence of the average effect so far, for display: it decides nothing."""
        return average_effect(
            self.count, self.effect_total, self.effect_variance, scale=2 / self.least_share, alpha=alpha
        )


class _Arms:
    """Running sums of both arms: the control is 0, the candidate 1."""

    def __init__(self) -> None:
        self.counts, self.sums = [0, 0], [0.0, 0.0]

    def mean(self, arm: int) -> float:
        return self.sums[arm] / self.counts[arm] if self.counts[arm] else math.nan

    def observe(self, candidate: bool, share: float, score: float) -> tuple[float, float, float]:
        """X_t with its bounds b⁺_t and b⁻_t; c_t is from earlier units, so the unit is added last."""
        counts, sums, p = self.counts, self.sums, share
        q = 1 - p
        c = q * (sums[1] + 0.5) / (counts[1] + 1) + p * (sums[0] + 0.5) / (counts[0] + 1)
        counts[candidate] += 1
        sums[candidate] += score
        x = (score - c) / p if candidate else (c - score) / q
        return x, max((1 - c) / p, c / q), max(c / p, (1 - c) / q)


class _Harm:
    """The harm process of one group or one further guardrail, with means of its own."""

    def __init__(self, margin: float) -> None:
        self.margin, self.arms, self.logs = margin, _Arms(), np.zeros(len(BETS))

    @property
    def log_e(self) -> float:
        return float(_log_mean(self.logs))

    def update(self, candidate: bool, share: float, score: float) -> None:
        x, above, _ = self.arms.observe(candidate, share, score)
        self.logs += np.log1p(-(x + self.margin) / (above + self.margin) * BETS)


class ErrorRatio:
    """E-process of the candidate's error rate over the control's; only units with an error enter.

    An error is the candidate's with probability q(κ) = pκ/(pκ + 1 − p), however the base rate moves. With `kappas`
    above `null` it tests that the ratio is at most `null`, with those below that it is at least `null`. A guardrail
    with a window of its own (an error within 60 s) runs one by itself, with threshold 1/(weight·α), because it cannot
    be averaged with processes whose units close later.
    """

    def __init__(self, kappas: Array, *, null: float = 1.0) -> None:
        self.kappas, self.null, self.logs = kappas, null, np.zeros(len(kappas))

    @property
    def log_e(self) -> float:
        return float(_log_mean(self.logs))

    def update(self, candidate: bool, share: float) -> None:
        """Adds the next unit with an error."""
        self.logs += _error_factors(candidate, share, self.kappas, self.null)


def _error_factors(candidate: ArrayLike, share: ArrayLike, kappas: Array, null: float) -> Array:
    """log of q(κ)/q(null) for errors of the candidate, of (1 − q(κ))/(1 − q(null)) for those of the control."""
    share = np.asarray(share)[..., None]
    control = np.log1p(share * (null - 1)) - np.log1p(share * (kappas - 1))
    found: Array = control + np.where(np.asarray(candidate)[..., None], np.log(kappas / null), 0.0)
    return found


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """The watch after a full release."""

    mean: Annotated[float, Gt(0), Le(1)]
    """Mean score of the candidate that the canary found; frozen."""
    margin: Annotated[float, Gt(0), Lt(1)] = 0.05
    """A loss of mean score up to this raises no alarm."""
    units_between_alarms: Annotated[float, Gt(1)] = 100_000.0
    """Average number of units until a false alarm, at least."""


class Watch:
    """Shiryaev–Roberts detector of a mean score below μ₀ = mean − margin, after the control is gone.

    An alarm is for people and rolls nothing back: without a control, a change of the traffic looks the same.
    """

    def __init__(self, config: WatchConfig) -> None:
        self.config, self.count, self.total = config, 0, 0.0
        self._detector = np.zeros(len(BETS))

    @property
    def mu_0(self) -> float:
        return self.config.mean - self.config.margin

    @property
    def crossing(self) -> Crossing:
        return Crossing("watch", _log(self._detector.mean()), math.log(self.config.units_between_alarms))

    @property
    def alarmed(self) -> bool:
        return self.crossing.reached

    def update(self, score: float) -> None:
        """Adds the next unit's score."""
        if not 0 <= score <= 1:
            raise DataError(f"score is {score!r}: expected a number in [0, 1]; scale it by the bounds of its reward")
        self.count += 1
        self.total += score
        factor = 1 - BETS * ((score - self.mu_0) / (1 - self.mu_0))
        self._detector = np.minimum((1 + self._detector) * factor, MAX_DETECTOR)


# Single processes from whole arrays, (units,) in the order of assignment: log e-values after each unit.


class Effects(NamedTuple):
    """X_t, an unbiased estimate of the difference at t given the past, with −b⁻_t ≤ X_t ≤ b⁺_t."""

    x: Array
    above: Array  # b⁺
    below: Array  # b⁻


def effects(candidate: ArrayLike, share: ArrayLike, score: ArrayLike) -> Effects:
    a, p, y = np.asarray(candidate, bool), np.asarray(share, float), np.asarray(score, float)
    m_1, m_0 = (_earlier_mean(y, arm) for arm in (a, ~a))
    c = (1 - p) * m_1 + p * m_0
    x = np.where(a, (y - c) / p, (c - y) / (1 - p))
    return Effects(x, np.maximum((1 - c) / p, c / (1 - p)), np.maximum(c / p, (1 - c) / (1 - p)))


def _earlier_mean(score: Array, arm: Array) -> Array:
    """(S + ½)/(n + 1) of this arm's earlier units."""
    found: Array = (np.cumsum(score * arm) - score * arm + 0.5) / (np.cumsum(arm) - arm + 1)
    return found


def harm_path(e: Effects, *, margin: float = 0.0) -> Array:
    """Evidence against Δ_s ≥ −margin for all s: the candidate does harm."""
    return _log_mean(np.cumsum(np.log1p(_harm_gains(e, margin)), 0))


def _harm_gains(e: Effects, margin: float) -> Array:
    return np.multiply.outer(-(e.x + margin) / (e.above + margin), BETS)  # (units, bets)


def safe_path(e: Effects, *, margin: float) -> Array:
    """Evidence against Δ_s ≤ −margin for all s: the candidate loses less; margin 0 tests superiority."""
    gains = np.multiply.outer((e.x + margin) / (e.below - margin), BETS)  # (units, bets)
    return _log_mean(np.cumsum(np.log1p(gains), 0))


def error_path(candidate: ArrayLike, share: ArrayLike, error: ArrayLike, *, kappas: Array, null: float) -> Array:
    """Evidence on the ratio of error rates: `WORSE` against ratio ≤ 1, `FINE` against ratio ≥ 2."""
    factors = _error_factors(candidate, share, kappas, null) * np.asarray(error, float)[:, None]
    return _log_mean(np.cumsum(factors, 0))


def mismatch_path(candidate: ArrayLike, share: ArrayLike) -> Array:
    """Evidence that the candidate's units are not assigned with probability p_t."""
    a, p = np.asarray(candidate, float)[:, None], np.asarray(share, float)[:, None]
    return _log_mean(np.cumsum(a * np.log(ODDS) - np.log1p(p * (ODDS - 1)), 0))


def detector_path(e: Effects, *, margin: float = 0.0) -> Array:
    """log of the Shiryaev–Roberts statistic of harm: its alarm at A leaves A units between false alarms on average."""
    return shiryaev_roberts(1 + _harm_gains(e, margin))


def shiryaev_roberts(factors: Array) -> Array:
    """(units,) log of the mean over bets of M_t = (1 + M_{t−1})·factor_t, from (units, bets) factors."""
    statistic, found = np.zeros(factors.shape[1]), np.zeros(len(factors))
    for t, factor in enumerate(factors):
        statistic = np.minimum((1 + statistic) * factor, MAX_DETECTOR)
        found[t] = _log(statistic.mean())
    return found


def combine(weighted: Sequence[tuple[float, float]]) -> float:
    """log Σ w·E of (weight, log E) pairs: an average of e-values is one, under any dependence."""
    logs = [math.log(weight) + log for weight, log in weighted if weight > 0]
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs))


def _log_mean(logs: Array) -> Array:
    """log of the mean of exp over the last axis."""
    top = logs.max(-1, keepdims=True)
    found: Array = np.log(np.exp(logs - top).mean(-1)) + top[..., 0]
    return found


def _log(x: float) -> float:
    """Of a detector that is 0 before its first unit; the floor keeps it finite, as JSON needs."""
    return math.log(max(x, 1e-300))
