"""GAE against its definition, against Stable-Baselines3, and by hand where an episode ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stable_baselines3.common.buffers import RolloutBuffer

from etude.learning.gae import gae

GOES_ON, TERMINATED, TRUNCATED, BOTH = range(4)
SHARE = st.floats(0, 1, width=32)
LAW = settings(deadline=None, derandomize=True)


@dataclass(frozen=True)
class Steps:
    """T steps of n environments, every array (T, n)."""

    reward: np.ndarray
    value: np.ndarray
    next_value: np.ndarray
    ending: np.ndarray

    @property
    def terminated(self) -> np.ndarray:
        return np.isin(self.ending, (TERMINATED, BOTH))

    @property
    def ended(self) -> np.ndarray:
        return self.ending != GOES_ON

    def advantages(self, gamma: float, lam: float) -> np.ndarray:
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in ("reward", "value", "next_value")}
        flags = {name: torch.from_numpy(getattr(self, name)) for name in ("terminated", "ended")}
        return gae(**tensors, **flags, gamma=gamma, lam=lam).numpy()


@st.composite
def steps(draw: st.DrawFn) -> Steps:
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 4)))
    numbers = arrays(np.float32, shape, elements=st.floats(-10, 10, width=32))
    ending = draw(arrays(np.int64, shape, elements=st.sampled_from([GOES_ON, GOES_ON, TERMINATED, TRUNCATED, BOTH])))
    return Steps(draw(numbers), draw(numbers), draw(numbers), ending)


@LAW
@given(steps(), SHARE, SHARE)
def test_equals_the_sum_that_defines_it(s: Steps, gamma: float, lam: float) -> None:
    def advantage(t: int, env: int) -> float:
        total, weight = 0.0, 1.0
        for k in range(t, len(s.reward)):
            future = 0.0 if s.terminated[k, env] else gamma * float(s.next_value[k, env])
            total += weight * (float(s.reward[k, env]) + future - float(s.value[k, env]))
            if s.ended[k, env]:
                break
            weight *= gamma * lam
        return total

    expected = [[advantage(t, env) for env in range(s.reward.shape[1])] for t in range(len(s.reward))]
    np.testing.assert_allclose(s.advantages(gamma, lam), expected, atol=1e-4)


@LAW
@given(steps(), SHARE, SHARE)
def test_equals_stable_baselines3(s: Steps, gamma: float, lam: float) -> None:
    """SB3 knows one kind of end, and adds γ·V(final) to the reward of a truncated step."""
    length, n = s.reward.shape
    next_value = s.next_value.copy()
    next_value[:-1] = np.where(s.ended[:-1], next_value[:-1], s.value[1:])  # inside an episode V(next) is the next V
    s = Steps(s.reward, s.value, next_value, s.ending)

    reward = s.reward + np.where(s.ended & ~s.terminated, gamma * s.next_value, 0)
    started = np.concatenate([np.ones((1, n), bool), s.ended[:-1]])
    space = Box(0, 1, (1,))
    buffer = RolloutBuffer(length, space, space, "cpu", gae_lambda=lam, gamma=gamma, n_envs=n)
    for t in range(length):
        nothing = np.zeros((n, 1))
        buffer.add(nothing, nothing, reward[t], started[t], torch.from_numpy(s.value[t]), torch.zeros(n))
    buffer.compute_returns_and_advantage(torch.from_numpy(s.next_value[-1]), s.ended[-1])

    np.testing.assert_allclose(s.advantages(gamma, lam), buffer.advantages, atol=1e-4)


@pytest.mark.parametrize(("ending", "expected"), [(TERMINATED, 1 - 3), (TRUNCATED, 1 + 0.9 * 5 - 3), (BOTH, 1 - 3)])
def test_truncation_bootstraps_and_termination_does_not(ending: int, expected: float) -> None:
    s = Steps(*(np.full((1, 1), x, np.float32) for x in (1, 3, 5)), np.full((1, 1), ending))
    assert s.advantages(gamma=0.9, lam=0.8).item() == pytest.approx(expected)


@pytest.mark.parametrize("ending", [TERMINATED, TRUNCATED, BOTH])
def test_nothing_flows_back_over_the_end_of_an_episode(ending: int) -> None:
    zeros = np.zeros((2, 1), np.float32)
    next_episode_earns = np.array([[0], [100]], np.float32)
    s = Steps(next_episode_earns, zeros, zeros, np.array([[ending], [GOES_ON]]))
    assert s.advantages(gamma=0.9, lam=0.8).tolist() == [[0], [100]]


@LAW
@given(steps(), st.booleans(), SHARE, SHARE)
def test_every_part_of_a_decision_is_judged_alone(s: Steps, by_part: bool, gamma: float, lam: float) -> None:
    shares = np.array([1.0, -0.5, 3.0], np.float32)  # of three parts
    reward = s.reward[..., None] * shares if by_part else s.reward
    wide = Steps(reward, s.value[..., None] * shares, s.next_value[..., None] + shares, s.ending)
    for part, share in enumerate(shares):
        alone = Steps(reward[..., part] if by_part else reward, s.value * share, s.next_value + share, s.ending)
        np.testing.assert_allclose(wide.advantages(gamma, lam)[..., part], alone.advantages(gamma, lam), atol=1e-5)


def test_the_last_step_of_an_unfinished_episode_bootstraps() -> None:
    s = Steps(*(np.array(x, np.float32)[:, None] for x in ([1, 1], [0, 2], [2, 4])), np.zeros((2, 1), np.int64))
    last = 1 + 0.5 * 4 - 2
    assert s.advantages(gamma=0.5, lam=0.5).flatten().tolist() == [1 + 0.5 * 2 - 0 + 0.25 * last, last]
