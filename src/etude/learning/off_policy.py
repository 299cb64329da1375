"""Off-policy evaluation: estimates the value of a policy, with 95 % intervals, from decisions that another one logged.

Only the reward of a whole trajectory is known, and a trajectory has several decisions. So a trajectory is one sample,
its importance weight is the product of its decisions' ratios π/μ, and importance sampling per decision equals that per
trajectory. The doubly robust estimate is the sequential one, with a value of states V(s) fitted to other contexts: it
needs only `Policy.evaluate` of a problem, and stays unbiased because V does not depend on the action. Where each
trajectory is one decision, Switch-DR shows what heavy weights contribute; where there are several and the policy says
what it expects of each action, fitted Q evaluation needs no weights at all. The sampling policy is judged, not its most
probable actions.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from torch import Tensor

from etude.contracts.errors import DataError
from etude.evidence.intervals import Array, Estimate, estimate_mean
from etude.evidence.ope import dm, folds, fqe, per_decision_is, sequential_dr_samples, switch_dr, weighted_is
from etude.evidence.overlap import Overlap, Thresholds, Verdict, check_overlap
from etude.learning.logged import Logged, Shards, evaluated
from etude.problems.base import Policy

DR, SNIPS, IS, DM = "doubly robust", "weighted importance sampling", "importance sampling", "direct method"
SWITCH, FQE = "switch doubly robust", "fitted Q evaluation"
FOLDS = 3
"""Parts of the contexts; the value of each is predicted by a model fitted to the others."""
MINIBATCH = 1024
"""Decisions evaluated at once."""
MAX_COLUMNS = 8
"""Numbers that the value model reads from each tensor of an observation; wider ones are projected at random."""


class Answer(StrEnum):
    """How the policy compares with the behaviour policy."""

    BETTER = "better"
    WORSE = "worse"
    NOT_DISTINGUISHABLE = "not distinguishable"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class OffPolicyEvaluation:
    """What the logs say about a policy. Intervals treat trajectories of the same context as dependent."""

    trajectories: int
    contexts: int
    decisions: int
    behaviour: Estimate  # the value of the behaviour policy: the mean of the logged rewards
    estimates: Mapping[str, Estimate]  # of the policy's value, by estimator; the first is the one that decides
    difference: Estimate  # doubly robust value less the behaviour policy's, paired by trajectory
    overlap: Overlap
    answer: Answer
    weight: Array = field(repr=False, compare=False)  # (trajectories,) importance weights, in the order of the logs
    reward: Array = field(repr=False, compare=False)  # (trajectories,)
    value: Array = field(repr=False, compare=False)  # (trajectories,) of first states, as the policy itself expects

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Name, value and 95 % interval, for a table."""
        named = {"behaviour policy": self.behaviour, **self.estimates, "difference": self.difference}
        return [(name, e.mean, e.low, e.high) for name, e in named.items()]

    def sentences(self) -> list[str]:
        """The answer in words, or the reasons why there is none."""
        if self.answer is Answer.CANNOT_TELL:
            reasons = [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in self.overlap.reasons.values()]
            return [f"These {self.trajectories:,} trajectories cannot tell whether the policy is better.", *reasons]
        verdict = {
            Answer.BETTER: "is better than",
            Answer.WORSE: "is worse than",
            Answer.NOT_DISTINGUISHABLE: "is not distinguishable from",
        }[self.answer]
        d, value = self.difference, next(iter(self.estimates.values()))
        return [
            f"The policy {verdict} the behaviour policy: its estimated value is {value.mean:.4g}, compared with "
            f"{self.behaviour.mean:.4g}; the difference is {d.mean:+.3g}, with a 95 % interval from {d.low:+.3g} to "
            f"{d.high:+.3g}.",
            f"The effective sample size is {self.overlap.ess:,.0f} of {self.trajectories:,} trajectories.",
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("trajectories", "contexts", "decisions")},
            "behaviour": self.behaviour.to_json(),
            "estimates": {name: e.to_json() for name, e in self.estimates.items()},
            "difference": self.difference.to_json(),
            "overlap": self.overlap.to_json(),
            "answer": str(self.answer),
        }


def evaluate_off_policy(policy: Policy, shards: Shards, thresholds: Thresholds | None = None) -> OffPolicyEvaluation:
    """Evaluate a policy on logged decisions that it has not learned from; DataError if these are no logs.

    `thresholds` are the minimum overlap of logs and policy for a verdict.
    """
    limits = thresholds or Thresholds()
    d = _read(policy, shards)
    several = bool((d.context != d.context[0]).any())
    fold = folds(d.context if several else np.arange(len(d.context)), FOLDS, np.random.default_rng(0))
    state_value = d.padded(_values(d, fold, limits))
    reward = np.zeros(d.shape)  # paid with the last decision
    reward[np.arange(len(d.reward)), (d.lengths - 1).clip(min=0)] = d.reward
    ratio = d.padded(d.ratio, 1.0)
    doubly_robust = sequential_dr_samples(ratio, reward, state_value, state_value)
    decided = d.lengths > 0  # without a decision the policy does not matter
    estimates = {
        DR: estimate_mean(doubly_robust, d.context),
        SNIPS: weighted_is(ratio, reward, d.context),
        IS: per_decision_is(ratio, reward, d.context),
        DM: dm(np.where(decided, state_value[:, 0], d.reward), d.context),
    }
    if d.shape[1] == 1:
        first = state_value[:, 0]
        estimates[SWITCH] = switch_dr(ratio[:, 0], d.reward, first, first, threshold=limits.heavy, groups=d.context)
    elif d.advantage is not None and decided.all():
        estimates[FQE] = fqe(*d.action_features(d.advantage), reward, fold=fold, groups=d.context)
    overlap = check_overlap(
        ratio.prod(1),
        {name: estimates[name] for name in (DM, SNIPS, DR)},
        limits,
        groups=d.context,
        ratios=(d.ratio, d.context[d.trajectory]),
    )
    difference = estimate_mean(doubly_robust - d.reward, d.context)
    better, worse = difference.low > 0, difference.high < 0
    answer = Answer.BETTER if better else Answer.WORSE if worse else Answer.NOT_DISTINGUISHABLE
    return OffPolicyEvaluation(
        trajectories=len(d.reward),
        contexts=len(np.unique(d.context)),
        decisions=len(d.ratio),
        behaviour=estimate_mean(d.reward, d.context),
        estimates=estimates,
        difference=difference,
        overlap=overlap,
        answer=answer if overlap.verdict is Verdict.PASS else Answer.CANNOT_TELL,
        weight=ratio.prod(1),
        reward=d.reward,
        value=d.padded(d.value)[:, 0],
    )


@dataclass(frozen=True, kw_only=True)
class _Data:
    """All parts of the logs as the policy evaluates them: N decisions of M trajectories."""

    ratio: Array  # (N,)
    value: Array  # (N,) of states, as the policy itself expects
    advantage: Array | None  # (N,) of actions, as the policy itself expects, if it does
    features: Array  # (N, F) of states, before the decision
    trajectory: np.ndarray  # (N,)
    lengths: np.ndarray  # (M,)
    reward: Array  # (M,)
    context: np.ndarray  # (M,)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.reward), max(1, int(self.lengths.max()))

    @property
    def position(self) -> np.ndarray:
        """(N,) of each decision within its trajectory."""
        return _positions(self.trajectory, self.lengths)

    def padded(self, x: Array, fill: float = 0.0) -> Array:
        """(N,) as (M, steps)."""
        table = np.full(self.shape, fill)
        table[self.trajectory, self.position] = x
        return table

    def action_features(self, advantage: Array) -> tuple[Array, Array]:
        """(M, steps, 4) φ(s, a) = (1, V, A, past) and E_π[φ(s, a)] = (1, V, 0, past), as the policy expects them.

        The past is V + A of all decisions before: the reward is paid at the end, and what follows from an early
        decision has to be in the states after it.
        """
        one, value, own = (self.padded(x) for x in (np.ones_like(self.value), self.value, advantage))
        past = one * ((value + own).cumsum(1) - value - own)
        return np.stack([one, value, own, past], 2), np.stack([one, value, np.zeros_like(own), past], 2)


def _positions(trajectory: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    first = lengths.cumsum() - lengths
    found: np.ndarray = np.arange(len(trajectory)) - first[trajectory]
    return found


def _read(policy: Policy, shards: Shards) -> _Data:
    log_ratios, values, advantages, features = [], [], list[Array](), []
    trajectories, lengths, rewards, contexts = [], [], [], []
    count = number = 0
    for logged in shards():
        logged.check()
        own, length, context = (_array(x).astype(int) for x in (logged.trajectory, logged.lengths, logged.context))
        now = evaluated(policy, logged, minibatch=MINIBATCH, learns=False)
        log_prob, value = (x.flatten(1).sum(1) if x.dim() > 1 else x for x in (now.log_prob, now.value))  # of all parts
        log_ratios.append(_array(log_prob) - _array(logged.log_propensity))
        values.append(_array(value))
        advantages += [] if now.advantage is None else [_array(now.advantage)]
        features.append(_features(logged, values[-1], _positions(own, length)))
        trajectories.append(own + count)
        contexts.append(np.unique(context, return_inverse=True)[1] + number)
        lengths.append(length)
        rewards.append(_array(logged.reward))
        count, number = count + len(length), int(contexts[-1].max(initial=number - 1)) + 1
    if not count:
        raise DataError("there are no logged trajectories to judge the policy with: choose a split that has some")
    log_ratio, length = np.concatenate(log_ratios), np.concatenate(lengths)
    if np.isnan(log_ratio).any():
        raise DataError(f"the policy gives no probability to {np.isnan(log_ratio).sum()} of {len(log_ratio)} decisions")
    shared = [name for name in features[0] if all(name in part for part in features)]
    return _Data(
        # products along a trajectory and their squares stay finite; weights this large are heavy in any case
        ratio=np.exp(log_ratio.clip(max=min(20.0, 300 / max(1, int(length.max()))))),
        value=np.concatenate(values),
        advantage=np.concatenate(advantages) if len(advantages) == len(values) else None,
        features=np.concatenate([np.concatenate([part[name] for name in shared], 1) for part in features]),
        trajectory=np.concatenate(trajectories),
        lengths=length,
        reward=np.concatenate(rewards),
        context=np.concatenate(contexts),
    )


def _array(x: Tensor) -> Array:
    found: Array = x.detach().double().cpu().numpy()
    return found


def _features(logged: Logged, value: Array, position: np.ndarray) -> dict[str, Array]:
    """What a value of states is fitted to, (N, columns) each: nothing of the action, so that it stays a baseline."""
    found = {"": np.stack([position == 0, position, value], 1).astype(float)}
    for name, x in logged.obs.items():
        numbers = np.nan_to_num(_array(x.flatten(1) if x.dim() > 1 else x[:, None]), posinf=0.0, neginf=0.0)
        numbers = np.sign(numbers) * np.log1p(np.abs(numbers))
        width = numbers.shape[1]
        if width > MAX_COLUMNS:
            projection = np.random.default_rng(zlib.crc32(name.encode())).normal(size=(width, MAX_COLUMNS))
            numbers = numbers @ projection / np.sqrt(width)
        found[f"{name}.{width}"] = numbers
    return found


def _values(d: _Data, fold: np.ndarray, limits: Thresholds) -> Array:
    """(N,) the policy's value of each state, by ridge regressions fitted to the other folds.

    Samples are weighted by the ratios of the decisions from the state on: the fit is of what this policy would earn.
    """
    ahead = d.padded(d.ratio, 1.0)[:, ::-1].cumprod(1)[:, ::-1][d.trajectory, d.position]
    weight = ahead.clip(max=limits.heavy)
    target, own = d.reward[d.trajectory], fold[d.trajectory]
    value = np.zeros(len(target))
    for number in range(FOLDS):
        out = own == number
        value[out] = _ridge(d.features[~out], target[~out], weight[~out], d.features[out])
    return value


def _ridge(x: Array, y: Array, weight: Array, new: Array) -> Array:
    """Predictions for `new`; the penalty is that of features which explain half of the variance."""
    if not weight.sum() > 0:
        return np.full(len(new), y.mean() if len(y) else 0.0)
    w = weight / weight.sum()
    centre, mean = w @ x, w @ y
    scale = np.sqrt(w @ np.square(x - centre))
    scale[scale < 1e-9] = np.inf  # a constant says nothing
    x, new = (x - centre) / scale, (new - centre) / scale
    gram = (x * (w * len(y))[:, None]).T @ x + x.shape[1] * np.eye(x.shape[1])
    found: Array = mean + new @ np.linalg.solve(gram, x.T @ (w * len(y) * (y - mean)))
    return found
