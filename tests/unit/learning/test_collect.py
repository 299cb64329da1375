"""The collector: every number in its batch is where and what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from etude.learning.collect import Batch, Collector
from etude.learning.gae import gae
from etude.problems.allocation.network import EntityPolicy, MLPPolicy, NetworkConfig
from etude.problems.allocation.world import AllocationConfig, make_world
from etude.problems.base import Action, Evaluation, Obs, Sampled, Transition

TERMINATES, TRUNCATES = 0, 1
LENGTHS = torch.tensor([3, 4])  # of the episodes of the two environments; the first terminates, the second truncates
STEPS = 10


class Clocks:
    """Two environments that show their number and the step of their episode, and earn a hundred times the action."""

    n, device = 2, torch.device("cpu")

    def __init__(self) -> None:
        self.generator = Generator()

    def reset(self, seed: int) -> Obs:
        self.generator.manual_seed(seed)
        self.step_of = torch.zeros(2, dtype=torch.long)
        self.first_noise = torch.rand(2, generator=self.generator)
        return self.observe()

    def observe(self) -> Obs:
        return {"seen": torch.stack([torch.arange(2), self.step_of], 1).float()}

    def step(self, action: Action) -> Transition:
        reward = 100 * action["chosen"]
        self.step_of = self.step_of + 1
        ended, final = self.step_of == LENGTHS, self.observe()
        self.step_of = torch.where(ended, 0, self.step_of)
        return Transition(
            obs=self.observe(),
            reward=reward,
            terminated=ended & torch.tensor([True, False]),
            truncated=ended & torch.tensor([False, True]),
            final_obs=final if bool(ended.any()) else None,
            metrics={"length": final["seen"][:, 1], "pair": final["seen"]} if bool(ended.any()) else {},
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {"step_of": self.step_of, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.step_of = state["step_of"].clone()
        self.generator.set_state(state["generator"])


class Ruler(torch.nn.Module):
    """Values a state at ten times its environment plus its step; acts by chance."""

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        chosen = torch.rand(len(obs["seen"]), generator=generator)
        return Sampled(action={"chosen": chosen}, log_prob=-chosen, value=self.value(obs))

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        raise NotImplementedError

    def value(self, obs: Obs) -> Tensor:
        return 10 * obs["seen"][:, 0] + obs["seen"][:, 1]

    def observed(self, obs: Obs) -> None: ...


def collector(seed: int = 0, steps: int = STEPS) -> Collector:
    return Collector(Clocks(), steps=steps, seed=seed)


def test_every_step_keeps_what_was_seen_done_and_earned() -> None:
    batch = collector().collect(Ruler())
    steps = torch.stack([torch.arange(STEPS) % 3, torch.arange(STEPS) % 4], 1).float()
    assert torch.equal(batch.obs["seen"][..., 1], steps)
    assert torch.equal(batch.value, steps + torch.tensor([0, 10]))
    assert torch.equal(batch.reward, 100 * batch.action["chosen"])
    assert torch.equal(batch.log_prob, -batch.action["chosen"])
    assert torch.equal(batch.ended, steps + 1 == LENGTHS)
    assert torch.equal(batch.terminated, batch.ended & torch.tensor([True, False]))
    assert len(batch.action["chosen"].unique()) == 2 * STEPS


def continues(batch: Batch) -> bool:
    """Whether next values are of what each step led to, wherever anything follows."""
    follows = ~batch.terminated
    return torch.equal(batch.next_value[follows], (batch.value + 1)[follows])


def test_next_value_is_of_the_state_before_the_reset() -> None:
    batch = collector().collect(Ruler())
    assert (batch.ended & ~batch.terminated).sum() == 2
    assert continues(batch)  # the value after a reset would be 10


@pytest.mark.parametrize("steps", [4, 12])
def test_a_batch_may_end_where_an_episode_does(steps: int) -> None:
    batch = collector(steps=steps).collect(Ruler())
    assert batch.ended[-1].tolist() == [steps == 12, True]
    assert continues(batch)


class Asked(Ruler):
    """Remembers which ends it was asked to value."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[list[bool]] = []

    def value(self, obs: Obs) -> Tensor:
        ends = (obs["seen"][:, 1] == LENGTHS).tolist()
        self.ends += [ends] if any(ends) else []
        return super().value(obs)


def test_only_ends_that_were_cut_off_are_valued() -> None:
    policy = Asked()
    collector(steps=12).collect(policy)
    assert policy.ends == [[False, True], [False, True], [True, True]]  # terminations at 3, 6 and 9 are not asked for


def test_nothing_that_follows_a_termination_counts() -> None:
    batch = collector(steps=12).collect(Ruler())
    other = torch.where(batch.terminated, 1e6, batch.next_value)
    shared = {name: getattr(batch, name) for name in ("reward", "value", "terminated", "ended")}
    one, two = (gae(**shared, next_value=x, gamma=0.9, lam=0.8) for x in (batch.next_value, other))
    assert torch.equal(one, two)


def test_the_next_batch_goes_on_where_the_last_one_stopped() -> None:
    whole, halves = collector(steps=10).collect(Ruler()), collector(steps=5)
    first = {name: value.clone() for name, value in tensors(halves.collect(Ruler())).items()}
    second = tensors(halves.collect(Ruler()))
    for name, value in tensors(whole).items():
        assert torch.equal(value, torch.cat([first[name], second[name]])), name


def test_metrics_are_of_the_episodes_that_ended() -> None:
    episodes = collector().collect(Ruler()).episodes
    assert episodes["length"].tolist() == [3, 4, 3, 4, 3]
    assert episodes["pair"].tolist() == [[0, 3], [1, 4], [0, 3], [1, 4], [0, 3]]


def test_no_episode_ended_no_metrics() -> None:
    batch = collector(steps=2).collect(Ruler())
    assert batch.episodes == {}
    assert continues(batch)


def test_buffers_are_made_once() -> None:
    made = collector()
    first, second = made.collect(Ruler()), made.collect(Ruler())
    assert first.reward.data_ptr() == second.reward.data_ptr()
    assert first.obs["seen"].data_ptr() == second.obs["seen"].data_ptr()


def test_the_seed_decides_what_is_collected() -> None:
    same, other = collector(seed=0).collect(Ruler()), collector(seed=1).collect(Ruler())
    again = collector(seed=0).collect(Ruler())
    assert torch.equal(same.reward, again.reward)
    assert not torch.equal(same.reward, other.reward)


def test_actions_do_not_draw_the_worlds_own_numbers() -> None:
    """One stream for both would tie what is tried to what happens."""
    made = collector()
    assert isinstance(made.world, Clocks)
    assert not torch.equal(made.collect(Ruler()).action["chosen"][0], made.world.first_noise)


def test_a_loaded_state_goes_on_bit_for_bit() -> None:
    made, other = collector(seed=0), collector(seed=9)
    made.collect(Ruler())
    other.load_state_dict({name: value.clone() for name, value in made.state_dict().items()})
    expected, actual = tensors(made.collect(Ruler())), tensors(other.collect(Ruler()))
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


DOCUMENT = AllocationConfig(agents=2, slots=3, horizon=7)
MATCHED = replace(DOCUMENT, variant="matched")
NETWORK = NetworkConfig(hidden=(16,))


@pytest.mark.parametrize("options", [{}, {"dropout": 0.5}, {"norm": "batch"}], ids=str)
def test_a_new_policy_already_decides_without_dropout_and_batch_norm(options: dict[str, object]) -> None:
    """Else the first ratios compare a network with a randomly thinned one."""
    torch.manual_seed(0)
    policy = MLPPolicy(DOCUMENT, replace(NETWORK, **options))
    batch = Collector(make_world(DOCUMENT, n=8), steps=9, seed=0).collect(policy)
    policy.train(False)
    flat = {name: value.flatten(0, 1) for name, value in (batch.obs | batch.action).items()}
    evaluation = policy.evaluate(flat, flat)
    torch.testing.assert_close(evaluation.log_prob, batch.log_prob.flatten())
    torch.testing.assert_close(evaluation.value, batch.value.flatten())


@pytest.mark.parametrize(
    ("make", "problem"),
    [(MLPPolicy, DOCUMENT), (EntityPolicy, DOCUMENT), (EntityPolicy, MATCHED)],
    ids=["mlp, document", "entity, document", "entity, matched"],
)
def test_allocation_bootstraps_from_the_final_observation(
    make: type[MLPPolicy | EntityPolicy], problem: AllocationConfig
) -> None:
    torch.manual_seed(0)
    policy = make(problem, NETWORK).train(False)
    batch = Collector(make_world(problem, n=4), steps=8, seed=0).collect(policy)

    world = make_world(problem, n=4)
    world.reset(0)
    last, *_ = [world.step({name: value[t] for name, value in batch.action.items()}) for t in range(7)][::-1]
    assert last.final_obs is not None
    torch.testing.assert_close(batch.next_value[6], policy.value(last.final_obs).detach())
    assert not torch.allclose(policy.value(last.obs), policy.value(last.final_obs), atol=1e-3)
    assert batch.ended.sum(1).tolist() == [0, 0, 0, 0, 0, 0, 4, 0]
    assert not batch.terminated.any()
    whole = batch.reward[:7].flatten(2).sum((0, 2)) if batch.reward.dim() == 3 else batch.reward[:7].sum(0)
    torch.testing.assert_close(batch.episodes["return"], whole)


def tensors(batch: Batch) -> dict[str, Tensor]:
    scalars = {name: getattr(batch, name) for name in ("log_prob", "value", "next_value", "reward", "ended")}
    return {**batch.obs, **batch.action, **scalars}
