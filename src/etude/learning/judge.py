"""Judges a policy on logged examples, read as its problem reads them, with rewards as shares of their range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from etude.contracts.ports import Example
from etude.contracts.trajectory import Trajectory
from etude.evidence.intervals import Array, Estimate
from etude.evidence.overlap import Thresholds
from etude.learning.artefact import Artefact
from etude.learning.comparison import POLICY, UNTRAINED
from etude.learning.measure import compare
from etude.learning.off_policy import OffPolicyEvaluation, evaluate_off_policy
from etude.learning.requests import EvaluateRequest
from etude.problems.spec import ProblemSpec, resolve

Examples = Callable[[], Iterator[Sequence[Example]]]


class OwnVerdict(Protocol):
    """How a problem judges a policy that is more than its network: compared with the behaviour policy."""

    @property
    def answer(self) -> str: ...

    @property
    def utility(self) -> Estimate: ...

    @property
    def success(self) -> Estimate: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class UnweightedExample:
    """An example as it was logged: weights are for learning, and a sample drawn by them is not independent."""

    trajectory: Trajectory
    reward: float  # from 0 to 1
    context: str
    rating: float | None
    weight: float = 1.0


def scaled(examples: Examples, reward_range: tuple[float, float]) -> Examples:
    """The examples with rewards as shares of their range, clipped to it."""
    low, high = reward_range

    def parts() -> Iterator[Sequence[Example]]:
        for part in examples():
            yield [
                UnweightedExample(
                    trajectory=e.trajectory,
                    reward=min(1.0, max(0.0, (e.reward - low) / (high - low))),
                    context=e.context,
                    rating=e.rating,
                )
                for e in part
            ]

    return parts


def judge_logs(
    artefact: Artefact, spec: ProblemSpec, examples: Examples, thresholds: Thresholds, *, explores: bool = False
) -> OffPolicyEvaluation | OwnVerdict:
    """What the logs say about the policy of an artefact; the problem's own verdict, where it has one.

    `explores` judges it with the exploration that it serves with.
    """
    assert spec.read_logs is not None
    reader = resolve(spec.read_logs)(artefact, {"explore": explores}, torch.device("cpu"))
    own: OwnVerdict | None = getattr(reader, "judge", lambda examples: None)(examples)
    return own or evaluate_off_policy(reader.policy, reader.shards(examples), thresholds)


def judge_weights(
    artefact: Artefact, spec: ProblemSpec, examples: Examples, *, explores: bool = False
) -> tuple[Array, Array]:
    """(trajectories,) importance weights of the policy's network, and rewards, in the order of the logs."""
    assert spec.read_logs is not None
    reader = resolve(spec.read_logs)(artefact, {"explore": explores}, torch.device("cpu"))
    found = evaluate_off_policy(reader.policy, reader.shards(examples))
    return found.weight, found.reward


@dataclass(frozen=True, kw_only=True)
class Returns:
    """Returns of the same episodes, in the same order."""

    policy: Sequence[float]
    other: Sequence[float]
    name: str  # of the other


def measure_in_world(
    artefact: Artefact, incumbent: Artefact | None, spec: ProblemSpec, *, episodes: int, seed: int
) -> Returns:
    """The policy compared with the incumbent, or with an untrained network where there is none, in their world."""

    def measured(one: Artefact, *, baselines: bool) -> dict[str, Sequence[float]]:
        request = EvaluateRequest(run=one.path, episodes=episodes, seed=seed, baselines=baselines, device="cpu")
        return {name: score.returns for name, score in compare(request, spec).scores.items()}

    own = measured(artefact, baselines=incumbent is None)
    if incumbent is not None:
        return Returns(policy=own[POLICY], other=measured(incumbent, baselines=False)[POLICY], name="the incumbent")
    other = UNTRAINED if UNTRAINED in own else next(name for name in own if name != POLICY)
    return Returns(policy=own[POLICY], other=own[other], name=other)
