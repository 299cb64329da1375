"""The faces pass the checkers of Gymnasium and PettingZoo, and say the same as the world inside."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from pettingzoo.test import parallel_api_test, parallel_seed_test

from etude.contracts.errors import ConfigError, ObservationError
from etude.problems.allocation.gym import AllocationEnv, AllocationVectorEnv, parallel_env
from etude.problems.allocation.network import flatten
from etude.problems.allocation.registration import ENVIRONMENT_ID, register
from etude.problems.allocation.world import AllocationConfig, make_world

both_variants = pytest.mark.parametrize("variant", ["document", "matched"])
both_sizes = pytest.mark.parametrize(("agents", "slots"), [(4, 10), (2, 3)])


@both_variants
@both_sizes
def test_gymnasium_accepts_the_environment(variant: str, agents: int, slots: int) -> None:
    env = gymnasium.make(ENVIRONMENT_ID, variant=variant, agents=agents, slots=slots)
    check_env(env.unwrapped)


@both_variants
@both_sizes
def test_pettingzoo_accepts_the_parallel_environment(variant: str, agents: int, slots: int) -> None:
    config = {"variant": variant, "agents": agents, "slots": slots, "horizon": 40}
    parallel_api_test(parallel_env(**config), num_cycles=100)
    parallel_seed_test(lambda: parallel_env(**config), num_cycles=100)


@both_variants
def test_the_vector_environment_says_what_gymnasium_itself_makes_of_single_ones(variant: str) -> None:
    """Observations, types, and the infos of same-step resets, from one environment with the same seed."""
    config: dict[str, Any] = {"variant": variant, "horizon": 5}
    ours = gymnasium.make_vec(ENVIRONMENT_ID, num_envs=1, **config)
    theirs = SyncVectorEnv([lambda: AllocationEnv(**config)], autoreset_mode=AutoresetMode.SAME_STEP)
    assert isinstance(ours, AllocationVectorEnv)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert data_equivalence(ours.reset(seed=1), theirs.reset(seed=1), exact=True)
    ours.action_space.seed(0)
    for step in range(1, 6):
        action = ours.action_space.sample()
        obs, *rest = ours.step(action)
        their_obs, *their_rest = theirs.step(action)
        assert obs in ours.observation_space
        assert data_equivalence(rest, their_rest, exact=True)
        assert data_equivalence(obs, their_obs, exact=True) == (step < 5)  # a new episode of each its own


def test_many_environments_end_with_their_own_observation_and_metrics() -> None:
    envs = gymnasium.make_vec(ENVIRONMENT_ID, num_envs=8, horizon=5)
    world = make_world(AllocationConfig(horizon=5), n=8)
    world.reset(seed=2)
    envs.reset(seed=2)
    ones = np.ones(envs.action_space.shape or ())
    moves = [envs.step(ones) for _ in range(5)]
    tensors = dict.fromkeys(("accept", "allocate", "collaborate"), torch.ones(8, 4))
    ours = [world.step(tensors) for _ in range(5)][-1]
    *_, truncated, info = moves[-1]
    assert truncated.all()
    assert all(not move[4] for move in moves[:-1])
    assert ours.final_obs is not None
    assert np.array_equal(np.stack(info["final_obs"]), flatten(ours.final_obs).numpy())
    total = sum(move[1] for move in moves)
    assert info["final_info"]["metrics"]["return"] == pytest.approx(total, rel=1e-5)
    assert info["final_info"]["metrics"]["taken"].shape == (8, 4, 4)


def test_gymnasiums_episode_statistics_see_whole_episodes() -> None:
    envs = RecordEpisodeStatistics(gymnasium.make_vec(ENVIRONMENT_ID, num_envs=3, horizon=5))
    envs.reset(seed=0)
    for _ in range(10):
        envs.step(envs.action_space.sample())
    assert list(envs.length_queue) == [5] * 6


@both_variants
def test_a_seed_decides_the_episode_and_later_resets(variant: str) -> None:
    def episode(seed: int | None, env: AllocationEnv) -> list[Any]:
        env.action_space.seed(0)
        return [env.reset(seed=seed), *(env.step(env.action_space.sample()) for _ in range(10))]

    a, b = AllocationEnv(variant=variant, horizon=10), AllocationEnv(variant=variant, horizon=10)
    assert data_equivalence(episode(5, a), episode(5, b), exact=True)
    second = episode(None, a)
    assert data_equivalence(second, episode(None, b), exact=True)
    assert not data_equivalence(second, episode(5, a))
    assert not data_equivalence(episode(6, a), episode(5, b))


@both_variants
def test_the_last_step_is_truncated_and_carries_the_metrics(variant: str) -> None:
    env = AllocationEnv(variant=variant, horizon=3)
    env.reset(seed=0)
    steps = [env.step(env.action_space.sample()) for _ in range(3)]
    assert [step[2:4] for step in steps] == [(False, False)] * 2 + [(False, True)]
    assert [step[4] for step in steps[:2]] == [{}, {}]
    metrics = steps[2][4]["metrics"]
    assert metrics["return"] == pytest.approx(sum(step[1] for step in steps), rel=1e-5)
    assert 0 <= metrics["completion_rate"] <= 1
    with pytest.raises(ResetNeeded):
        env.step(env.action_space.sample())


def test_the_observation_is_the_documents_vector() -> None:
    env = AllocationEnv()
    obs, _ = env.reset(seed=7)
    assert obs.shape == (7 * 4 + 5 * 10 + 4 * 4,)
    assert np.array_equal(obs, flatten(make_world(AllocationConfig(), n=1).reset(7))[0].numpy())


def test_legal_is_the_mask_that_sampling_takes() -> None:
    env = AllocationEnv(variant="matched")
    obs, _ = env.reset(seed=0)
    legal = obs["legal"]
    assert isinstance(env.action_space, gymnasium.spaces.Dict)
    assert legal.sum() > 4  # more than waiting
    for _ in range(50):
        accept = env.action_space["accept"].sample(mask=tuple(legal))
        assert all(legal[agent, slot] for agent, slot in enumerate(accept))


@both_variants
def test_every_agent_sees_itself_first_and_acts_for_itself(variant: str) -> None:
    team, joint = parallel_env(variant=variant), AllocationEnv(variant=variant)
    seen, _ = team.reset(seed=3)
    joint.reset(seed=3)
    joint.action_space.seed(1)
    for _ in range(30):
        action = joint.action_space.sample()
        each = {
            agent: {k: v[i] for k, v in action.items()} if isinstance(action, dict) else action[i]
            for i, agent in enumerate(team.agents)
        }
        seen, reward, *_ = team.step(each)
        _, joint_reward, *_ = joint.step(action)
        assert reward == dict.fromkeys(team.agents, joint_reward)
        for i, agent in enumerate(team.agents):
            agents, matrix = joint.obs["agents"][0].numpy(), joint.obs["matrix"][0].numpy()
            order = [i, *range(i + 1, 4), *range(i)]
            if variant == "document":
                assert np.array_equal(seen[agent][:28], agents[order].flatten())
                assert np.array_equal(seen[agent][-16:], matrix[order][:, order].flatten())
            else:
                assert np.array_equal(seen[agent]["agents"], agents[order])
                assert np.array_equal(seen[agent]["legal"], joint.obs["legal"][0, i])
    assert team.state().shape == (sum(part.numel() for part in joint.obs.values()),)


def test_the_team_is_gone_when_the_episode_is_over() -> None:
    team = parallel_env(horizon=1)
    team.reset(seed=0)
    _, _, terminated, truncated, info = team.step({agent: np.ones(3) for agent in team.agents})
    assert team.agents == []
    assert (set(terminated.values()), set(truncated.values())) == ({False}, {True})
    assert set(info) == set(team.possible_agents)
    assert all("return" in one["metrics"] for one in info.values())
    with pytest.raises(ResetNeeded):
        team.step({agent: np.ones(3) for agent in team.possible_agents})


def part(name: str, value: Any) -> dict[str, Any]:
    whole = {"accept": np.zeros(4, int), "allocate": np.zeros(4), "collaborate": np.zeros(4)}
    return {**whole, name: value}


@pytest.mark.parametrize(
    ("variant", "action", "message"),
    [
        ("document", np.full((4, 3), 1.01), r"holds 1.01, expected numbers from 0 to 1 in shape \(4, 3\): clip"),
        ("document", np.full((4, 3), -0.01), "holds -0.01"),
        ("document", np.full((4, 3), np.nan), "holds nan"),
        ("document", np.ones(12), r"has shape \(12,\), expected numbers from 0 to 1 in shape \(4, 3\)"),
        ("document", [[1, 1, 1], [1, 1]], r"is \[\[1, 1, 1\], \[1, 1\]\], expected"),
        ("document", None, "is None, expected"),
        ("document", "all", "is 'all', expected"),
        ("matched", np.ones((4, 3)), r"expected a dict of exactly \['accept', 'allocate', 'collaborate'\]"),
        ("matched", {"accept": np.zeros(4, int)}, "expected a dict of exactly"),
        ("matched", part("accept", np.full(4, 11)), r"action\['accept'\] holds 11, expected integers from 0 to 10"),
        ("matched", part("accept", np.full(4, -1)), "holds -1"),
        ("matched", part("accept", np.zeros(4)), "expected integers"),
        ("matched", part("allocate", np.ones(3)), r"action\['allocate'\] has shape \(3,\)"),
        ("matched", part("collaborate", np.full(4, 2.0)), r"action\['collaborate'\] holds 2"),
    ],
)
def test_a_wrong_action_is_refused_and_says_why(variant: str, action: Any, message: str) -> None:
    env = AllocationEnv(variant=variant)
    env.reset(seed=0)
    with pytest.raises(ObservationError, match=message):
        env.step(action)
    assert env.world.state["step"].item() == 0


def test_lists_and_wider_types_are_actions_too() -> None:
    env = AllocationEnv(variant="matched")
    env.reset(seed=0)
    env.step({"accept": [0, 1, 10, 10], "allocate": [0, 1, 1, 0], "collaborate": np.zeros(4, np.float64)})
    assert env.world.state["taken"][0].sum(1).tolist() == [1, 1, 0, 0]


def test_vector_and_parallel_refuse_wrong_actions() -> None:
    envs = AllocationVectorEnv(2)
    envs.reset(seed=0)
    with pytest.raises(ObservationError, match=r"expected numbers from 0 to 1 in shape \(2, 4, 3\)"):
        envs.step(np.ones((4, 3)))
    team = parallel_env()
    team.reset(seed=0)
    with pytest.raises(ObservationError, match="agent_2 holds 2"):
        team.step({agent: np.full(3, 2 if agent == "agent_2" else 1) for agent in team.agents})
    with pytest.raises(ObservationError, match=r"\['agent_0'\], expected one for each of \['agent_0', 'agent_1'"):
        team.step({"agent_0": np.ones(3)})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"agents": -1}, "agents is -1: Input should be greater than or equal to 2"),
        ({"variant": "documents"}, "variant is 'documents': Input should be 'document' or 'matched'"),
        ({"num_envs": 0}, "num_envs is 0"),
    ],
)
def test_a_wrong_setting_is_refused_and_says_why(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gymnasium.make_vec(ENVIRONMENT_ID, **config)


def test_registering_twice_is_fine_and_needs_no_torch() -> None:
    register()
    code = "import sys, etude.problems.allocation.registration; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_gymnasium_finds_the_environment_by_its_module() -> None:
    env = gymnasium.make(f"{register.__module__}:{ENVIRONMENT_ID}", agents=3)
    assert env.action_space.shape == (3, 3)
