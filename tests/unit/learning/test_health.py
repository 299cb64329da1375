"""Training health: each symptom is provoked by real training of a small policy, and a healthy run gives none."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

from etude.learning.collect import Batch, Collector
from etude.learning.health import ADVICE, Health, HealthConfig, HealthWarning, Symptom
from etude.learning.ppo import PPO, PPOConfig
from etude.problems.allocation.network import NetworkConfig
from etude.problems.base import Action, Evaluation, Obs, Policy, Sampled, Transition, World
from etude.problems.distributions import sample_categorical

SIZE, HORIZON = 4, 8
Reward = Callable[[Tensor, Generator], Tensor]
"""Whether the choice was right (n,) to the reward (n,)."""


class EchoWorld:
    """Shows one of four signs; choosing the same is right. Eight signs an episode."""

    def __init__(self, reward: Reward, *, n: int = 64) -> None:
        self.n, self.device, self.reward = n, torch.device("cpu"), reward
        self.generator = Generator()

    def reset(self, seed: int) -> Obs:
        self.generator.manual_seed(seed)
        self.total, self.steps = torch.zeros(self.n), 0
        self._show()
        return self.observe()

    def step(self, action: Action) -> Transition:
        reward = self.reward((action["choice"] == self.sign).float(), self.generator)
        self.total += reward
        self.steps = (self.steps + 1) % HORIZON
        self._show()
        over = torch.full((self.n,), self.steps == 0)
        obs, metrics = self.observe(), {"return": self.total.clone()}
        self.total[over] = 0
        return Transition(
            obs=obs,
            reward=reward,
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=None if self.steps else obs,
            metrics=metrics,
        )

    def observe(self) -> Obs:
        left = torch.full((self.n, 1), 1 - self.steps / HORIZON)
        return {"seen": torch.cat([nn.functional.one_hot(self.sign, SIZE).float(), left], 1)}

    def state_dict(self) -> dict[str, Tensor]:
        return {"sign": self.sign, "total": self.total}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.sign, self.total = state["sign"], state["total"]

    def _show(self) -> None:
        self.sign = torch.randint(SIZE, (self.n,), generator=self.generator)


class EchoPolicy(nn.Module):
    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = nn.Sequential(nn.Linear(SIZE + 1, 16), nn.Tanh(), nn.Linear(16, SIZE))
            self.critic = nn.Sequential(nn.Linear(SIZE + 1, 16), nn.Tanh(), nn.Linear(16, 1))
        self.last: nn.Module = nn.Identity()

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        logits = self._logits(obs)
        choice = logits.argmax(-1) if greedy else sample_categorical(logits, generator)
        log_prob = logits.log_softmax(-1).gather(-1, choice[:, None])[:, 0]
        return Sampled(action={"choice": choice}, log_prob=log_prob, value=self.value(obs))

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        log_p = self._logits(obs).log_softmax(-1)
        log_prob = log_p.gather(-1, action["choice"][:, None])[:, 0]
        return Evaluation(log_prob=log_prob, entropy=-(log_p.exp() * log_p).sum(-1), value=self.value(obs))

    def value(self, obs: Obs) -> Tensor:
        value: Tensor = self.last(self.critic(obs["seen"]))
        return value[:, 0]

    def observed(self, obs: Obs) -> None: ...

    def _logits(self, obs: Obs) -> Tensor:
        logits: Tensor = self.last(self.actor(obs["seen"]))
        return logits


GOOD = PPOConfig(steps=HORIZON, minibatch=256, epochs=4, lr=3e-3)


def metrics_of(learner: PPO, batch: Batch) -> dict[str, float]:
    metrics = learner.update(batch, progress=0.0)
    if batch.episodes:
        returns = batch.episodes["return"]
        metrics |= {"episode_return": float(returns.mean()), "episode_return_std": float(returns.std())}
    return metrics


def train(
    world: World, policy: Policy, config: PPOConfig, *, updates: int, seed: int = 0
) -> Iterator[dict[str, float]]:
    learner, collector = PPO(policy, config, seed=seed), Collector(world, steps=config.steps, seed=seed)
    for _ in range(updates):
        yield metrics_of(learner, collector.collect(policy))


def warnings_of(history: Iterable[Mapping[str, float]], health: Health | None = None) -> list[HealthWarning]:
    health = health or Health()
    return [warning for step, metrics in enumerate(history) for warning in health.check(step, metrics)]


def right(ok: Tensor, generator: Generator) -> Tensor:
    return ok


def symptoms(warnings: Iterable[HealthWarning]) -> list[str]:
    return [str(warning.name) for warning in warnings]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_learns_and_stays_solved_gives_no_warning(seed: int) -> None:
    history = list(train(EchoWorld(right), EchoPolicy(seed=seed), GOOD, updates=60, seed=seed))
    assert history[-1]["episode_return"] > 0.95 * HORIZON
    assert warnings_of(history) == []


def dead_network() -> EchoPolicy:
    """ReLU outputs that are never positive let no gradient through."""
    policy = EchoPolicy()
    policy.last = nn.ReLU()
    for network in (policy.actor, policy.critic):
        assert isinstance(network[-1], nn.Linear)
        nn.init.constant_(network[-1].bias, -10.0)
    return policy


def blind_critic() -> EchoPolicy:
    policy = EchoPolicy()
    for parameter in policy.critic[-1].parameters():
        nn.init.zeros_(parameter)
    return policy


def noisy(ok: Tensor, generator: Generator) -> Tensor:
    return ok + 50 * torch.randn(ok.shape, generator=generator)


PROVOKED: dict[Symptom, tuple[Reward, Callable[[], EchoPolicy], dict[str, Any], int]] = {
    Symptom.KL_BLOW_UP: (right, EchoPolicy, {"lr": 1.0}, 1),
    Symptom.FLAT_CURVE: (right, EchoPolicy, {"lr": 1e-9}, 30),
    Symptom.REWARD_VARIANCE: (noisy, EchoPolicy, {}, 25),
    Symptom.EXPLODING_GRADIENTS: (
        lambda ok, _: 1000 * ok,
        EchoPolicy,
        {"normalise_returns": False, "max_grad_norm": None},
        1,
    ),
    Symptom.VANISHING_GRADIENTS: (right, dead_network, {}, 5),
    Symptom.DEAD_VALUE_FUNCTION: (right, blind_critic, {"value_coef": 0.0}, 30),
    Symptom.ZERO_REWARD: (lambda ok, _: torch.zeros_like(ok), EchoPolicy, {}, 5),
    Symptom.CONSTANT_REWARD: (lambda ok, _: torch.ones_like(ok), EchoPolicy, {}, 5),
    Symptom.NON_FINITE: (lambda ok, _: ok / ok, EchoPolicy, {}, 1),
    # The entropy goes before the reward can have any effect.
    Symptom.POLICY_COLLAPSE: (noisy, EchoPolicy, {"lr": 0.3, "entropy_coef": 0.0}, 10),
}


@pytest.mark.parametrize("symptom", PROVOKED)
def test_bad_training_shows_the_symptom_once(symptom: Symptom) -> None:
    reward, policy, changes, updates = PROVOKED[symptom]
    config = dataclasses.replace(GOOD, **changes)
    warnings = warnings_of(train(EchoWorld(reward), policy(), config, updates=updates))
    assert symptoms(warnings).count(symptom) == 1
    warning = next(w for w in warnings if w.name == symptom)
    assert warning.advice == ADVICE[symptom]
    assert warning.message


def test_every_symptom_is_provoked_by_training() -> None:
    assert set(PROVOKED) == set(Symptom) == set(ADVICE)


def test_a_learned_policy_collapses_under_a_learning_rate_far_too_high() -> None:
    policy, health = EchoPolicy(), Health()
    history = list(train(EchoWorld(right), policy, GOOD, updates=25))
    assert warnings_of(history, health) == []
    history = list(train(EchoWorld(right), policy, dataclasses.replace(GOOD, lr=10.0), updates=12))
    warnings = {warning.name: warning for warning in warnings_of(history, health)}
    assert Symptom.KL_BLOW_UP in warnings
    collapse = warnings[Symptom.POLICY_COLLAPSE]
    assert collapse.value > collapse.threshold
    assert "the episode return fell by" in collapse.message
    assert "`lr`" in collapse.advice


def test_a_reward_that_turns_nan_names_every_metric_it_spoils_in_one_warning() -> None:
    health, learned = Health(), list(train(EchoWorld(right), EchoPolicy(), GOOD, updates=2))
    assert warnings_of(learned, health) == []
    spoiled = list(train(EchoWorld(PROVOKED[Symptom.NON_FINITE][0]), EchoPolicy(), GOOD, updates=3))
    warnings = warnings_of(spoiled, health)
    assert symptoms(warnings) == ["non_finite", "exploding_gradients"]
    assert "policy_loss is nan" in warnings[0].message
    assert "episode_return is nan" in warnings[0].message
    assert math.isnan(warnings[0].value)


def healthy_run(updates: int = 40) -> list[dict[str, float]]:
    """The shape of a real run: 400 to 1530 while the entropy goes from 12 to 9."""
    history = []
    for i in range(updates):
        climbed = 1 / (1 + math.exp((15 - i) / 4))
        wobble = math.sin(i * i)
        metrics = {
            "policy_loss": -0.01,
            "value_loss": 0.3,
            "entropy": 12 - 3 * i / updates,
            "approx_kl": 0.01 + 0.004 * wobble,
            "clip_fraction": 0.1,
            "grad_norm": 1.1 + 0.9 * wobble,
            "explained_variance": 0.9 * climbed,
            "lr": 2e-3,
            "episode_return": 400 + 1130 * climbed + 15 * wobble,
            "episode_return_std": 80.0,
        }
        history.append(metrics | ({"eval_return": 420 + 1150 * climbed} if i % 4 == 0 else {}))
    return history


def test_a_healthy_series_gives_no_warning() -> None:
    assert warnings_of(healthy_run(400)) == []


@pytest.mark.parametrize(("metric", "what"), [("episode_return", "episode"), ("eval_return", "evaluated")])
def test_losing_over_half_of_the_climb_is_a_collapse_and_less_is_not(metric: str, what: str) -> None:
    for fallen, expected in ((1100.0, []), (800.0, ["policy_collapse"])):
        warnings = warnings_of([*healthy_run(), *[{metric: fallen}] * 10])
        assert symptoms(warnings) == expected
        assert all(f"the {what} return fell" in w.message for w in warnings)


def test_two_returns_that_fall_are_one_collapse() -> None:
    fallen = [{"episode_return": 500.0, "eval_return": 500.0, "entropy": 1e-3}] * 10
    assert symptoms(warnings_of([*healthy_run(), *fallen])) == ["policy_collapse"]


def test_a_policy_that_began_good_collapses_when_it_falls_far_beyond_its_scatter() -> None:
    good = [{"episode_return": 1000 + 10 * math.sin(i * i)} for i in range(20)]
    assert symptoms(warnings_of([*good, *[{"episode_return": 980.0}] * 5])) == []
    assert symptoms(warnings_of([*good, *[{"episode_return": 700.0}] * 5])) == ["policy_collapse"]


# Scatter that grows 50-fold within a run cannot be distinguished from a fall every time.
@pytest.mark.parametrize(("growth", "allowed"), [(0.0, 0), (-0.02, 0), (0.05, 3)], ids=["even", "fading", "growing"])
def test_noise_is_no_collapse(growth: float, allowed: int) -> None:
    found = 0
    for seed in range(60):
        noise = torch.randn(80, generator=Generator().manual_seed(seed)).tolist()
        history = [{"episode_return": math.exp(growth * i) * x} for i, x in enumerate(noise)]
        found += "policy_collapse" in symptoms(warnings_of(history))
    assert found <= allowed


def test_a_policy_that_learns_at_once_may_lose_its_entropy_at_once() -> None:
    returns = [2.0, 6.0, *[8.0] * 20]
    assert warnings_of([{"episode_return": r, "entropy": 1e-3, "entropy_max": 1.4} for r in returns]) == []


def test_low_entropy_is_no_collapse_once_the_return_has_risen() -> None:
    given_up = {"entropy": 0.1, "entropy_max": 12.0}
    risen = [metrics | given_up for metrics in healthy_run(60)]
    assert symptoms(warnings_of(risen)[1:]) == []
    level = [metrics | {"episode_return": 400 + i % 2} | given_up for i, metrics in enumerate(healthy_run(20))]
    assert "policy_collapse" in symptoms(warnings_of(level))


def test_the_entropy_of_a_density_is_not_judged() -> None:
    level = [{"episode_return": 400.0 + i % 2, "entropy": -5.0 - i, "entropy_max": 0.0} for i in range(20)]
    assert warnings_of(level) == []


def test_a_symptom_is_reported_again_only_after_it_was_gone_for_a_while() -> None:
    wild, calm = {"approx_kl": 0.9}, {"approx_kl": 0.01}
    health = Health(HealthConfig(recovery_updates=3))
    assert symptoms(warnings_of([wild, wild, calm, calm, wild, calm], health)) == ["kl_blow_up"]
    assert symptoms(warnings_of([calm, calm, wild], health)) == ["kl_blow_up"]


@pytest.mark.parametrize(
    ("metrics", "symptom", "onset"),
    [
        ({"grad_norm": 100.1}, "exploding_gradients", 1),
        ({"grad_norm": 1e-7}, "vanishing_gradients", 5),
        ({"approx_kl": 0.21}, "kl_blow_up", 1),
        ({"explained_variance": 0.04}, "dead_value_function", 30),
        ({"episode_return": 0.0, "episode_return_std": 0.0}, "zero_reward", 5),
        ({"episode_return": -3.0, "episode_return_std": 0.0}, "constant_reward", 5),
        ({"episode_return": 1.0, "episode_return_std": 3.0}, "reward_variance", 20),
    ],
)
def test_a_symptom_sets_in_when_its_updates_are_over_and_is_the_only_one(
    metrics: dict[str, float], symptom: str, onset: int
) -> None:
    assert warnings_of([metrics] * (onset - 1)) == []
    # A curve without any scatter is flat as well, in time.
    assert [w for w in symptoms(warnings_of([metrics] * 40)) if w != "flat_curve"] == [symptom]


def test_a_constant_return_is_not_called_flat_too() -> None:
    assert symptoms(warnings_of([{"episode_return": 0.0, "episode_return_std": 0.0}] * 60)) == ["zero_reward"]


def test_a_slow_rise_within_the_scatter_is_not_flat() -> None:
    wobble = [math.sin(i * i) for i in range(30)]
    assert symptoms(warnings_of([{"episode_return": w} for w in wobble])) == ["flat_curve"]
    assert warnings_of([{"episode_return": w + 0.09 * i} for i, w in enumerate(wobble)]) == []


def test_a_missing_metric_is_no_recovery() -> None:
    health = Health()
    assert symptoms(warnings_of([{"approx_kl": 0.9}, *[{"entropy": 1.0}] * 20, {"approx_kl": 0.9}], health)) == [
        "kl_blow_up"
    ]


def test_a_metric_that_turns_nan_later_is_named_too() -> None:
    health = Health()
    warnings = warnings_of([{"a": math.nan, "b": 1.0}, {"a": math.nan, "b": -math.inf}], health)
    assert [w.message.partition(": ")[2] for w in warnings] == ["a is nan", "b is -inf"]


def test_a_return_that_varied_before_may_be_constant_now() -> None:
    solved = [{"episode_return": min(i, 5.0), "episode_return_std": 0.0} for i in range(60)]
    assert warnings_of(solved) == []


def test_a_problem_solved_leaves_the_value_function_nothing_to_explain() -> None:
    solved = [{"episode_return": min(i, 5.0), "episode_return_std": 0.0, "explained_variance": -1e6} for i in range(60)]
    assert warnings_of(solved) == []


def test_a_value_function_is_judged_where_an_update_has_one_episode_alone() -> None:
    single = [{"episode_return": 9.0 + i % 2, "episode_return_std": 0.0, "explained_variance": 0.0} for i in range(60)]
    assert "dead_value_function" in symptoms(warnings_of(single))


def test_a_climb_that_crosses_zero_is_no_variance_warning() -> None:
    crossing = [{"episode_return": 20.0 * min(i - 25, 0) + i % 3, "episode_return_std": 100.0} for i in range(80)]
    assert warnings_of(crossing) == []


def test_variance_that_falls_for_a_while_is_reported_once() -> None:
    means = [*[1.0] * 25, *[2.0] * 25, *[1.0] * 25]
    noisy = [{"episode_return": m + 0.2 * (i % 2), "episode_return_std": 9.0} for i, m in enumerate(means)]
    assert symptoms(warnings_of(noisy)).count("reward_variance") == 1


def test_rare_successes_that_become_frequent_are_no_variance_warning() -> None:
    rates = [0.004 * 1.1**i for i in range(45)]
    rare = [{"episode_return": p, "episode_return_std": math.sqrt(p * (1 - p))} for p in rates]
    assert warnings_of(rare) == []
    stuck = [{"episode_return": 0.004, "episode_return_std": 0.06}] * 25
    assert "reward_variance" in symptoms(warnings_of(stuck))


def test_a_new_stage_is_measured_from_its_start() -> None:
    health = Health()
    assert warnings_of(healthy_run(), health) == []
    health.restart()
    harder = [metrics | {"episode_return": metrics["episode_return"] - 1000} for metrics in healthy_run()]
    harder = [{name: value for name, value in m.items() if name != "eval_return"} for m in harder]
    assert warnings_of(harder, health) == []


def test_advice_names_settings_that_exist() -> None:
    known = {field.name for config in (PPOConfig, NetworkConfig) for field in dataclasses.fields(config)}
    for symptom, advice in ADVICE.items():
        named = set(re.findall(r"`(\w+)`", advice))
        assert named <= known, symptom
        assert named or symptom is Symptom.CONSTANT_REWARD


numbers = st.floats(width=32) | st.sampled_from([0.0, 1.0, 500.0, math.nan, math.inf])
NAMES = ("episode_return", "eval_return", "entropy", "approx_kl", "grad_norm", "explained_variance")
updates = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, numbers) | {"episode_return_std": st.floats(0, 1e30)})
SMALL = HealthConfig(flat_updates=10, variance_updates=4, value_warmup=1, value_updates=3, recovery_updates=1)


def test_a_warning_given_before_the_interruption_is_not_given_again() -> None:
    sick = {"approx_kl": 1.0, "grad_norm": 1e-9, "explained_variance": -1.0, "episode_return": 0.0, "loss": math.nan}
    expected = symptoms(warnings_of([sick] * 40))
    assert len(expected) == 5
    for cut in range(40):
        before, after = Health(), Health()
        found = symptoms(warnings_of([sick] * cut, before))
        after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
        assert found + symptoms(warnings_of([sick] * (40 - cut), after)) == expected


@settings(deadline=None)
@given(st.lists(updates, max_size=30), st.integers(0, 30))
def test_a_resumed_run_warns_as_one_never_interrupted(history: list[dict[str, float]], cut: int) -> None:
    whole, before, after = Health(SMALL), Health(SMALL), Health(SMALL)
    expected = warnings_of(history, whole)
    found = warnings_of(history[:cut], before)
    after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
    found += warnings_of(history[cut:], after)
    assert [repr(dataclasses.replace(w, step=0)) for w in found] == [
        repr(dataclasses.replace(w, step=0)) for w in expected
    ]
    assert after.state_dict() == whole.state_dict()


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100), max_size=60), st.integers(-20, 20))
def test_the_scale_of_returns_does_not_matter(returns: list[float], exponent: int) -> None:
    def found(scale: float) -> list[tuple[str, int]]:
        history = [{"episode_return": scale * r, "episode_return_std": scale * 30.0} for r in returns]
        return [(str(w.name), w.step) for w in warnings_of(history)]

    assert found(2.0**exponent) == found(1.0)
