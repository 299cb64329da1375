"""The allocation policies: what they decide, how they start, what changes while they learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from etude.problems.allocation.network import EntityPolicy, MLPPolicy, NetworkConfig, RunningScale
from etude.problems.allocation.world import COLUMNS, AllocationConfig, make_world
from etude.problems.base import Obs

DOCUMENT = AllocationConfig(agents=3, slots=4, horizon=20)
MATCHED = replace(DOCUMENT, variant="matched")
SMALL = NetworkConfig(hidden=(16, 12))
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared": {"shared": True},
    "layer norm": {"norm": "layer", "activation": "relu"},
    "batch norm": {"norm": "batch"},
    "dropout": {"dropout": 0.5},
    "xavier": {"init": "xavier", "normalise": False},
    "bfloat16": {"precision": "bfloat16"},
}
DISTRIBUTIONS = ("mixed", "beta", "gaussian")


@dataclass(frozen=True)
class Case:
    """A network in the problem it is for."""

    make: type[MLPPolicy | EntityPolicy] = MLPPolicy
    problem: AllocationConfig = DOCUMENT
    config: NetworkConfig = SMALL

    def fresh(self, seed: int = 0, **options: Any) -> MLPPolicy | EntityPolicy:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make(self.problem, replace(self.config, **options)).train(False)

    def policy(self) -> MLPPolicy | EntityPolicy:
        """In use: scaled by what it has seen, its outputs no longer near zero."""
        made = self.fresh()
        nn.init.normal_(made.policy_head.weight, std=0.3, generator=Generator().manual_seed(0))
        made.observed(self.observations(seed=1))
        return made

    def observations(self, n: int = 32, seed: int = 0) -> Obs:
        """A few steps into episodes."""
        world, stranger, generator = (
            make_world(self.problem, n=n),
            self.fresh(norm="none"),
            Generator().manual_seed(seed),
        )
        obs = world.reset(seed)
        for _ in range(5):
            with torch.no_grad():
                obs = world.step(stranger.act(obs, generator=generator).action).obs
        return obs


DOCUMENT_CASES = {
    f"mlp, {distribution}, {name}": Case(config=replace(SMALL, distribution=distribution, **options))
    for distribution in DISTRIBUTIONS
    for name, options in OPTIONS.items()
}
ENTITY_CASES = {
    f"entity, {problem.variant}, {name}": Case(EntityPolicy, problem, replace(SMALL, **options))
    for problem in (DOCUMENT, MATCHED)
    for name, options in OPTIONS.items()
}
CASES = DOCUMENT_CASES | ENTITY_CASES
EVERY_NETWORK = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
EVERY_KIND = pytest.mark.parametrize(
    "case",
    [Case(), Case(EntityPolicy), Case(EntityPolicy, MATCHED)],
    ids=["mlp", "entity, document", "entity, matched"],
)


@EVERY_NETWORK
@pytest.mark.parametrize("greedy", [False, True])
def test_evaluate_agrees_with_act(case: Case, greedy: bool) -> None:
    policy, obs = case.policy(), case.observations()
    decision = policy.act(obs, greedy=greedy, generator=Generator().manual_seed(0))
    evaluation = policy.evaluate(obs, decision.action)
    torch.testing.assert_close(evaluation.log_prob, decision.log_prob)
    torch.testing.assert_close(evaluation.value, decision.value)
    torch.testing.assert_close(policy.value(obs), decision.value)
    assert {tensor.shape for tensor in decision.action.values()} == {(32, case.problem.agents)}
    parts = (32,) if case.make is MLPPolicy else (32, case.problem.agents)  # one per agent
    assert decision.log_prob.shape == evaluation.entropy.shape == decision.value.shape == parts
    assert evaluation.log_prob.isfinite().all()
    assert evaluation.entropy.isfinite().all()


@EVERY_NETWORK
def test_greedy_is_one_answer_and_chance_another(case: Case) -> None:
    policy, obs = case.policy(), case.observations()
    greedy = [policy.act(obs, greedy=True, generator=Generator().manual_seed(seed)) for seed in range(2)]
    sampled = policy.act(obs, generator=Generator().manual_seed(0))
    for name in COLUMNS:
        assert torch.equal(greedy[0].action[name], greedy[1].action[name])
        assert not torch.equal(greedy[0].action[name], sampled.action[name])


@pytest.mark.parametrize("case", DOCUMENT_CASES.values(), ids=DOCUMENT_CASES.keys())
def test_nothing_sampled_is_likelier_than_greedy(case: Case) -> None:
    policy, obs = case.policy(), case.observations()
    best = policy.act(obs, greedy=True).log_prob
    for seed in range(20):
        assert bool((policy.act(obs, generator=Generator().manual_seed(seed)).log_prob <= best + 1e-4).all())


@EVERY_KIND
def test_the_same_generator_state_gives_the_same_actions(case: Case) -> None:
    policy, obs = case.policy(), case.observations()
    a, b, c = (policy.act(obs, generator=Generator().manual_seed(seed)).action for seed in (0, 0, 1))
    for name in COLUMNS:
        assert torch.equal(a[name], b[name])
        assert not torch.equal(a[name], c[name])


@EVERY_KIND
def test_each_environment_is_decided_alone(case: Case) -> None:
    policy, obs = case.policy(), case.observations()
    action = policy.act(obs, greedy=True).action
    together = policy.evaluate(obs, action)
    alone = policy.evaluate({k: v[5:6] for k, v in obs.items()}, {k: v[5:6] for k, v in action.items()})
    torch.testing.assert_close(alone.log_prob, together.log_prob[5:6])
    torch.testing.assert_close(alone.value, together.value[5:6])


def test_log_prob_and_entropy_add_up_over_agents_and_columns() -> None:
    policy, obs = Case().policy(), Case().observations()
    nn.init.zeros_(policy.policy_head.weight)
    nn.init.zeros_(policy.policy_head.bias)
    evaluation = policy.evaluate(obs, policy.act(obs, greedy=True).action)
    expected = DOCUMENT.agents * np.log(2 * 5 * 2)  # two even coins and five even levels an agent
    np.testing.assert_allclose(evaluation.entropy.detach(), expected, rtol=1e-5)
    np.testing.assert_allclose(evaluation.log_prob.detach(), -expected, rtol=1e-5)


@EVERY_KIND
@pytest.mark.parametrize("init", ["orthogonal", "xavier"])
def test_starts_near_even(case: Case, init: str) -> None:
    policy, obs = case.fresh(init=init), case.observations()
    action = policy.act(obs, generator=Generator().manual_seed(0)).action
    evaluation = policy.evaluate(obs, action)
    nn.init.zeros_(policy.policy_head.weight)
    even = policy.evaluate(obs, action)
    torch.testing.assert_close(evaluation.entropy, even.entropy, rtol=0.02, atol=0.02)
    if case.make is MLPPolicy:
        np.testing.assert_allclose(even.entropy.detach(), DOCUMENT.agents * np.log(2 * 5 * 2), rtol=1e-5)


def test_orthogonal_weights_are_orthogonal() -> None:
    policy = Case().fresh(hidden=(16, 16), init="orthogonal")
    for layer, gain in ((policy.actor[2], 2**0.5), (policy.policy_head, 0.01), (policy.value_head, 1.0)):
        assert isinstance(layer, nn.Linear)
        w = layer.weight.detach()
        gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), atol=1e-5, rtol=1e-4)
        assert not layer.bias.any()


def test_xavier_weights_fill_their_interval_evenly() -> None:
    layer = Case().fresh(hidden=(128, 128), init="xavier").actor[2]
    assert isinstance(layer, nn.Linear)
    w, bound = layer.weight.detach(), 2**0.5 * (6 / (128 + 128)) ** 0.5
    assert float(w.abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(w.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert not layer.bias.any()


def test_the_trunk_is_shared_only_when_asked() -> None:
    own, shared = Case().policy(), Case(config=replace(SMALL, shared=True)).policy()
    for policy in (own, shared):
        policy.value(Case().observations()).sum().backward()
    assert all(p.grad is None for p in own.actor.parameters())
    assert all(p.grad is not None for p in shared.actor.parameters())
    assert sum(p.numel() for p in shared.parameters()) < 0.7 * sum(p.numel() for p in own.parameters())


@EVERY_KIND
@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"norm": "batch"}], ids=str)
def test_dropout_and_batch_norm_act_only_while_learning(case: Case, options: dict[str, Any]) -> None:
    case = replace(case, config=replace(SMALL, **options))
    policy, obs = case.policy(), case.observations()
    action = policy.act(obs, greedy=True).action
    before, saved = policy.evaluate(obs, action).value, {k: v.clone() for k, v in policy.state_dict().items()}
    assert torch.equal(policy.evaluate(obs, action).value, before)
    assert all(torch.equal(value, saved[name]) for name, value in policy.state_dict().items())
    policy.train()
    assert not torch.allclose(policy.evaluate(obs, action).value, before, atol=1e-3)


def test_dropout_silences_the_share_it_should() -> None:
    torch.manual_seed(0)
    case = Case(config=NetworkConfig(hidden=(4096,), dropout=0.3))
    policy = case.policy().train()
    silent = (policy.actor(policy._flat(case.observations())) == 0).float().mean()
    assert float(silent) == pytest.approx(0.3, abs=0.01)


def test_layer_norm_gives_each_hidden_layer_mean_zero_and_deviation_one() -> None:
    case = Case(config=replace(SMALL, norm="layer"))
    policy = case.policy()
    normal = policy.actor[:2](policy._flat(case.observations())).detach()
    torch.testing.assert_close(normal.mean(1), torch.zeros(32), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std(1, correction=0), torch.ones(32), atol=1e-3, rtol=0)


# Pointing at tasks.


def test_joint_choices_have_probabilities_that_sum_to_one() -> None:
    """Over all that two agents can do with three slots, the impossible included."""
    problem = AllocationConfig(variant="matched", agents=2, slots=3)
    case = Case(EntityPolicy, problem)
    obs = {name: value[:1] for name, value in case.observations().items()}
    ways = list(product(range(4), range(4), np.arange(5) / 4, np.arange(5) / 4, (0.0, 1.0), (0.0, 1.0)))
    columns = torch.tensor(ways).float().view(-1, 3, 2)
    action = {"accept": columns[:, 0].long(), "allocate": columns[:, 1], "collaborate": columns[:, 2]}
    everywhere = {name: value.expand(len(ways), *value.shape[1:]) for name, value in obs.items()}
    p = case.policy().evaluate(everywhere, action).log_prob.detach().sum(1).exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-4)
    legal = obs["legal"][0]
    taken_twice = (columns[:, 0, 0] == columns[:, 0, 1]) & (columns[:, 0, 0] < 3)
    impossible = taken_twice | ~legal[0][action["accept"][:, 0]] | ~legal[1][action["accept"][:, 1]]
    assert not p[impossible].any()
    assert bool((p[~impossible] > 0).all())


def test_choices_are_drawn_as_often_as_they_are_probable() -> None:
    case, n = Case(EntityPolicy, AllocationConfig(variant="matched", agents=2, slots=3)), 20_000
    obs = {name: value[:1].expand(n, *value.shape[1:]) for name, value in case.observations().items()}
    policy = case.policy()
    nn.init.normal_(policy.query.weight, generator=Generator().manual_seed(0))
    decision = policy.act(obs, generator=Generator().manual_seed(0))
    chosen = decision.action["accept"]
    pair, count = (4 * chosen[:, 0] + chosen[:, 1]).unique(return_counts=True)
    fixed = {name: torch.zeros(len(pair), 2) for name in ("allocate", "collaborate")}
    few = {name: value[: len(pair)] for name, value in obs.items()}

    def log_prob(accept: Tensor) -> Tensor:
        return policy.evaluate(few, {**fixed, "accept": accept}).log_prob.detach().sum(1)

    p = log_prob(torch.stack([pair // 4, pair % 4], 1)).softmax(0)  # the other columns are the same for all
    assert float((count / n - p).abs().max()) < 5 * 0.5 / n**0.5


@pytest.mark.parametrize("greedy", [False, True])
def test_only_what_is_legal_is_chosen_and_no_slot_twice(greedy: bool) -> None:
    case = Case(EntityPolicy, AllocationConfig(variant="matched", agents=6, slots=4))
    policy, obs = case.policy(), case.observations(n=256)
    for seed in range(5):
        chosen = policy.act(obs, greedy=greedy, generator=Generator().manual_seed(seed)).action["accept"]
        assert obs["legal"].gather(2, chosen[..., None]).all()
        takers = nn.functional.one_hot(chosen, 5).sum(1)[:, :4]
        assert int(takers.max()) == 1


def test_the_order_of_slots_means_nothing() -> None:
    case = Case(EntityPolicy, MATCHED)
    policy, obs = case.policy(), case.observations()
    order = torch.tensor([2, 0, 3, 1])
    with_wait = torch.cat([order, torch.tensor([4])])
    moved = obs | {"tasks": obs["tasks"][:, order], "legal": obs["legal"][:, :, with_wait]}
    action = policy.act(obs, generator=Generator().manual_seed(0)).action
    renamed = action | {"accept": with_wait.argsort()[action["accept"]]}
    a, b = policy.evaluate(obs, action), policy.evaluate(moved, renamed)
    torch.testing.assert_close(a.log_prob, b.log_prob)
    torch.testing.assert_close(a.value, b.value)


def test_empty_slots_mean_nothing() -> None:
    case = Case(EntityPolicy, MATCHED)
    policy, obs = case.policy(), case.observations()
    empty, never = torch.zeros_like(obs["tasks"][:, :2]), torch.zeros_like(obs["legal"][:, :, :2])
    longer = obs | {
        "tasks": torch.cat([obs["tasks"], empty], 1),
        "legal": torch.cat([obs["legal"][:, :, :-1], never, obs["legal"][:, :, -1:]], 2),
    }
    action = policy.act(obs, generator=Generator().manual_seed(0)).action
    waits = action["accept"] == MATCHED.slots
    renamed = action | {"accept": torch.where(waits, MATCHED.slots + 2, action["accept"])}
    a, b = policy.evaluate(obs, action), policy.evaluate(longer, renamed)
    torch.testing.assert_close(a.log_prob, b.log_prob)
    torch.testing.assert_close(a.value, b.value)


@pytest.mark.parametrize("variant", ["document", "matched"])
def test_entity_weights_fit_any_size(variant: str) -> None:
    small = Case(EntityPolicy, replace(DOCUMENT, variant=variant))
    large = Case(EntityPolicy, AllocationConfig(variant=variant, agents=7, slots=11))
    policy = large.fresh(seed=1)
    policy.load_state_dict(small.policy().state_dict())
    action = policy.act(large.observations(), generator=Generator().manual_seed(0)).action
    assert policy.evaluate(large.observations(), action).log_prob.isfinite().all()


def test_gradients_stay_finite_under_masks() -> None:
    case = Case(EntityPolicy, MATCHED)
    policy, obs = case.policy(), case.observations()
    evaluation = policy.evaluate(obs, policy.act(obs, generator=Generator().manual_seed(0)).action)
    (evaluation.log_prob + evaluation.entropy + evaluation.value).sum().backward()
    assert not obs["legal"].all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.parameters())


# Scaling observations.


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.floats(0.1, 100), st.floats(-100, 100))
def test_running_scale_equals_numpy(sizes: list[int], spread: float, center: float) -> None:
    scale, rng = RunningScale(3), np.random.default_rng(0)
    batches = [(center + spread * rng.normal(size=(size, 3))).astype(np.float32) for size in sizes]
    for batch in batches:
        scale.update(torch.from_numpy(batch))
    seen = np.concatenate(batches).astype(np.float64)
    tolerance = 1e-4 * (spread + abs(center))
    np.testing.assert_allclose(scale.mean, seen.mean(0), atol=tolerance)
    np.testing.assert_allclose(scale.var, seen.var(0), atol=tolerance * (spread + abs(center)))
    assert float(scale.count) == len(seen)
    if len(seen) > 10 and spread > abs(center) / 100:  # float32 sees the spread
        expected = np.clip((seen - seen.mean(0)) / (seen.std(0) + 1e-6), -10, 10)
        np.testing.assert_allclose(scale(torch.from_numpy(seen).float()), expected, atol=0.02)


def test_scale_changes_nothing_before_it_has_seen_anything() -> None:
    x = torch.tensor([[0.5, -2.0, 9.0]])
    torch.testing.assert_close(RunningScale(3)(x), x)


def test_outliers_are_held_to_ten_deviations() -> None:
    assert RunningScale(2)(torch.tensor([[1e6, -1e6]])).tolist() == [[10, -10]]


@EVERY_KIND
def test_the_scale_is_saved_with_the_weights(case: Case) -> None:
    policy, obs = case.policy(), case.observations()
    copy = case.fresh(seed=1)
    before = copy.value(obs)
    copy.load_state_dict(policy.state_dict())
    assert torch.equal(copy.value(obs), policy.value(obs))
    assert not torch.equal(copy.value(obs), before)


def test_seeing_nothing_changes_nothing() -> None:
    scale = RunningScale(3)
    scale.update(torch.randn(10, 3))
    before = {name: value.clone() for name, value in scale.state_dict().items()}
    scale.update(torch.zeros(0, 3))
    assert all(torch.equal(value, before[name]) for name, value in scale.state_dict().items())


def test_an_empty_queue_leaves_the_scale_of_tasks_alone() -> None:
    case = Case(EntityPolicy, MATCHED)
    policy, obs = case.policy(), case.observations()
    policy.observed(obs | {"tasks": torch.zeros_like(obs["tasks"])})
    assert policy.value(obs).isfinite().all()


def test_numbers_outside_the_unit_interval_count_as_its_ends() -> None:
    """A Gaussian policy gives such numbers, and relies on the world to clip them."""
    rewards = []
    for allocate in (1.0, 5.0, 0.0, -5.0):
        world = make_world(DOCUMENT, n=64)
        world.reset(0)
        action = {"accept": 1.0, "allocate": allocate, "collaborate": 0.0}
        full = {name: torch.full((64, DOCUMENT.agents), number) for name, number in action.items()}
        rewards.append(torch.stack([world.step(full).reward for _ in range(10)]))
    assert torch.equal(rewards[0], rewards[1])
    assert torch.equal(rewards[2], rewards[3])
