"""PPO: its loss against Stable-Baselines3 and by hand, then each part of an update, then saving and going on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stable_baselines3.common.logger import Logger
from torch import Generator, Tensor, nn
from torch.distributions import Bernoulli, kl_divergence

from etude.learning.collect import Batch, Collector
from etude.learning.ppo import METRICS, PPO, PPOConfig, RewardScale, ppo_loss
from etude.learning.samples import Samples
from etude.problems.allocation.document import DocumentWorld
from etude.problems.allocation.network import MLPPolicy, NetworkConfig
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Evaluation, Obs, Sampled
from etude.problems.distributions import Threshold

LAW = settings(deadline=None, derandomize=True, max_examples=50)
STEPS, ENVS = 16, 4
TOTAL = STEPS * ENVS
WHOLE = PPOConfig(epochs=1, minibatch=TOTAL, normalise_returns=False)  # one gradient step with the whole batch


class Coin(nn.Module):
    """The smallest policy: a yes or no and a value, both linear in what it sees."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=Generator().manual_seed(seed)))

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        raw, value = self._read(obs)
        action = Threshold().mode(raw) if greedy else Threshold().sample(raw, generator)
        return Sampled(action={"yes": action}, log_prob=Threshold().log_prob(raw, action), value=value)

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        raw, value = self._read(obs)
        log_prob, entropy = Threshold().log_prob(raw, action["yes"]), Threshold().entropy(raw)
        return Evaluation(log_prob=log_prob, entropy=entropy, value=value)

    def value(self, obs: Obs) -> Tensor:
        return self._read(obs)[1]

    def observed(self, obs: Obs) -> None: ...

    def _read(self, obs: Obs) -> tuple[Tensor, Tensor]:
        return self.linear(obs["x"]).split(1, -1)[0], self.linear(obs["x"])[..., 1]


@torch.no_grad()
def experience(policy: Coin, seed: int = 0, steps: int = STEPS, envs: int = ENVS) -> Batch:
    """Steps in a world of noise that rewards yes."""
    generator = Generator().manual_seed(seed)
    x = torch.randn(steps + 1, envs, 3, generator=generator)
    decision, value = policy.act({"x": x[:-1]}, generator=generator), policy.value({"x": x})
    ended = torch.rand(steps, envs, generator=generator) < 0.2
    return Batch(
        obs={"x": x[:-1]},
        action=decision.action,
        log_prob=decision.log_prob,
        value=value[:-1],
        next_value=value[1:],
        reward=decision.action["yes"] + 0.5 * torch.randn(steps, envs, generator=generator),
        terminated=ended & (torch.rand(steps, envs, generator=generator) < 0.5),
        ended=ended,
        last_obs={"x": x[-1]},
    )


def samples(**values: list[float] | Tensor) -> Samples:
    given = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in values.items()}
    zeros = torch.zeros_like(next(iter(given.values())))
    defaults = dict.fromkeys(("log_prob", "value", "advantage", "returns"), zeros)
    return Samples(obs={}, action={}, **{**defaults, "weight": zeros + 1, **given})


def evaluation(**values: list[float] | Tensor) -> Evaluation:
    given = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in values.items()}
    zeros = torch.zeros_like(next(iter(given.values())))
    return Evaluation(**{**dict.fromkeys(("log_prob", "entropy", "value"), zeros), **given})


def loss_and_parts(
    new: Evaluation, old: Samples, config: PPOConfig, kl_coef: float = 0.0
) -> tuple[Tensor, dict[str, float]]:
    loss, metrics = ppo_loss(new, old, config, torch.tensor(kl_coef))
    return loss, {name: float(value) for name, value in zip(METRICS, metrics, strict=False)}


RAW = PPOConfig(normalise_advantages=False, entropy_coef=0, value_coef=0)  # the policy's part of the loss alone


# The loss compared with another library's.


class PeerCoin(nn.Module):
    """SB3's own policy network behind our protocol."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        self.theirs = theirs

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        value, log_prob, entropy = self.theirs.evaluate_actions(obs["x"], action["a"])
        return Evaluation(log_prob=log_prob, entropy=entropy, value=value.flatten())

    def observed(self, obs: Obs) -> None: ...


class Nothing(gymnasium.Env[np.ndarray, np.ndarray]):
    """Tells SB3 the shapes."""

    observation_space = gymnasium.spaces.Box(-10, 10, (3,))

    def __init__(self, action_space: gymnasium.Space[np.ndarray]) -> None:
        self.action_space = action_space


def peer(config: PPOConfig, action_space: gymnasium.Space[np.ndarray]) -> stable_baselines3.PPO:
    made = stable_baselines3.PPO(
        "MlpPolicy",
        Nothing(action_space),
        learning_rate=config.lr,
        n_steps=TOTAL,
        batch_size=TOTAL,
        n_epochs=config.epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_coef,
        clip_range_vf=config.value_clip,
        normalize_advantage=config.normalise_advantages,
        ent_coef=config.entropy_coef,
        vf_coef=config.value_coef,
        max_grad_norm=config.max_grad_norm,
        seed=0,
        device="cpu",
    )
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


def fill(theirs: stable_baselines3.PPO, gamma: float) -> Batch:
    """Puts the same steps of one environment into SB3's buffer and into a batch.

    Old log-probabilities and values are a little off, so that ratios are not 1 and clips bite. Values are off away
    from far returns: there SB3, which takes the clipped error alone, and the paper's larger of both errors agree.
    """
    rng = Generator().manual_seed(0)
    x = torch.randn(TOTAL + 1, 3, generator=rng)
    with torch.no_grad():
        action, value, log_prob = theirs.policy(x)
    value = value.flatten() - 0.3 * torch.rand(TOTAL + 1, generator=rng)
    log_prob = log_prob[:-1] + 0.3 * torch.randn(TOTAL, generator=rng)
    reward = 5 + torch.randn(TOTAL, generator=rng)
    ended = torch.rand(TOTAL, generator=rng) < 0.2
    terminated = ended & (torch.rand(TOTAL, generator=rng) < 0.5)

    start = True
    for t in range(TOTAL):
        bootstrapped = float(reward[t] + gamma * value[t + 1] * (ended[t] & ~terminated[t]))
        seen, done = x[t, None].numpy(), action[t, None].numpy()
        theirs.rollout_buffer.add(seen, done, bootstrapped, start, value[t], log_prob[t])
        start = bool(ended[t])
    theirs.rollout_buffer.compute_returns_and_advantage(value[-1], ended[-1:].numpy())
    steps = {"log_prob": log_prob, "value": value[:-1], "next_value": value[1:], "reward": reward}
    steps |= {"terminated": terminated, "ended": ended}
    return Batch(
        obs={"x": x[:-1, None]},
        action={"a": action[:-1, None]},
        last_obs={"x": x[-1, None]},
        **{name: v[:, None] for name, v in steps.items()},
    )


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize(
    "action_space", [gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.MultiBinary(2)], ids=["normal", "bernoulli"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_clip": 0.1},
        {"normalise_advantages": False},
        {"clip_coef": 0.05, "entropy_coef": 0.1, "value_coef": 2.0},
        {"max_grad_norm": 0.01, "gamma": 0.8, "gae_lambda": 0.5},
    ],
    ids=str,
)
def test_an_update_equals_stable_baselines3(
    options: dict[str, object], action_space: gymnasium.Space[np.ndarray], epochs: int
) -> None:
    config = replace(WHOLE, epochs=epochs, **options)
    theirs = peer(config, action_space)
    batch = fill(theirs, config.gamma)
    ours = PeerCoin(peer(config, action_space).policy)
    ours.theirs.load_state_dict(theirs.policy.state_dict())

    metrics = PPO(ours, config).update(batch, progress=0)
    theirs.train()

    log = theirs.logger.name_to_value
    assert metrics["policy_loss"] == pytest.approx(log["train/policy_gradient_loss"], abs=1e-5)
    assert metrics["value_loss"] == pytest.approx(log["train/value_loss"], rel=1e-5)
    assert metrics["entropy"] == pytest.approx(-log["train/entropy_loss"], rel=1e-5)
    assert metrics["clip_fraction"] == pytest.approx(log["train/clip_fraction"])
    assert metrics["explained_variance"] == pytest.approx(log["train/explained_variance"], abs=1e-5)
    assert 0.1 < metrics["clip_fraction"] < 0.9
    if epochs == 1:  # SB3 reports the KL of the last epoch
        assert metrics["approx_kl"] == pytest.approx(log["train/approx_kl"], rel=1e-4)
    for a, b in zip(ours.theirs.parameters(), theirs.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


# The loss by hand.


@pytest.mark.parametrize(
    ("ratio", "advantage", "gains"),
    [(1.5, 1.0, False), (0.5, 1.0, True), (1.5, -1.0, True), (0.5, -1.0, False), (1.1, 1.0, True), (0.9, -1.0, True)],
)
def test_the_clip_stops_what_moved_too_far_in_its_favour(ratio: float, advantage: float, gains: bool) -> None:
    log_prob = torch.tensor([ratio]).log().requires_grad_()
    loss, _ = loss_and_parts(evaluation(log_prob=log_prob), samples(advantage=[advantage]), RAW)
    loss.backward()
    clipped = min(ratio * advantage, float(np.clip(ratio, 0.8, 1.2)) * advantage)
    assert float(loss.detach()) == pytest.approx(-clipped)
    assert float(log_prob.grad) == pytest.approx(-ratio * advantage if gains else 0)


@pytest.mark.parametrize("clip_coef", [0.2, None])
@pytest.mark.parametrize("kl_coef", [0.0, 3.0])
def test_clip_and_kl_penalty_together_and_alone(clip_coef: float | None, kl_coef: float) -> None:
    ratio, advantage = np.array([0.5, 1.0, 1.5]), np.array([1.0, 2.0, 3.0])
    gain = ratio * advantage
    if clip_coef is not None:
        gain = np.minimum(gain, np.clip(ratio, 0.8, 1.2) * advantage)
    kl = np.mean(ratio - 1 - np.log(ratio))
    new = evaluation(log_prob=torch.from_numpy(np.log(ratio)))
    loss, metrics = loss_and_parts(new, samples(advantage=advantage), replace(RAW, clip_coef=clip_coef), kl_coef)
    assert float(loss) == pytest.approx(-gain.mean() + kl_coef * kl)
    assert metrics["approx_kl"] == pytest.approx(kl)
    assert metrics["clip_fraction"] == pytest.approx(0 if clip_coef is None else 2 / 3)


def test_the_kl_estimate_is_the_divergence_from_the_old_policy() -> None:
    old, new, n = Bernoulli(logits=torch.tensor(0.3)), Bernoulli(logits=torch.tensor(-0.5)), 200_000
    action = (torch.rand(n, generator=Generator().manual_seed(0)) < old.probs).float()
    _, metrics = loss_and_parts(evaluation(log_prob=new.log_prob(action)), samples(log_prob=old.log_prob(action)), RAW)
    assert metrics["approx_kl"] == pytest.approx(float(kl_divergence(old, new)), rel=0.02)


def test_the_value_clip_counts_the_larger_error() -> None:
    config = replace(RAW, value_clip=0.5, value_coef=1)
    # Moved 1 towards a far return: counts as 0.5. Moved 1 away from it: nothing is forgiven. Moved 0.2: not clipped.
    new, old = evaluation(value=[1.0, -1.0, 0.2]), samples(value=[0.0] * 3, returns=[3.0] * 3)
    loss, metrics = loss_and_parts(new, old, config)
    expected = (2.5**2 + 4**2 + 2.8**2) / 3
    assert float(loss) == pytest.approx(expected)
    assert metrics["value_loss"] == pytest.approx(expected)


def test_advantages_are_normalised_within_the_minibatch() -> None:
    advantage = torch.tensor([1.0, 2.0, 6.0])
    new = evaluation(log_prob=torch.tensor([1.1, 0.9, 1.0]).log())
    loss, _ = loss_and_parts(new, samples(advantage=advantage), replace(RAW, normalise_advantages=True))
    normal = (advantage - 3) / (advantage.std() + 1e-8)
    assert float(loss) == pytest.approx(-float((torch.tensor([1.1, 0.9, 1.0]) * normal).mean()))


def test_entropy_is_a_bonus() -> None:
    loss, metrics = loss_and_parts(
        evaluation(entropy=[1.0, 3.0]), samples(value=[0, 0]), replace(RAW, entropy_coef=0.1)
    )
    assert float(loss) == pytest.approx(-0.2)
    assert metrics["entropy"] == 2


def test_parts_of_a_decision_count_like_decisions() -> None:
    generator = Generator().manual_seed(0)
    numbers = {
        name: torch.randn(5, 3, generator=generator)
        for name in ("log_prob", "value", "advantage", "returns", "entropy")
    }
    config = PPOConfig(value_clip=0.2)

    def loss(shape: tuple[int, ...]) -> tuple[Tensor, dict[str, float]]:
        x = {name: value.view(shape) for name, value in numbers.items()}
        new = evaluation(log_prob=x["log_prob"] * 0.9, entropy=x["entropy"], value=x["value"] * 0.5)
        return loss_and_parts(new, samples(**{k: v for k, v in x.items() if k != "entropy"}), config, 0.5)

    (a, a_parts), (b, b_parts) = loss((5, 3)), loss((15,))
    assert float(a) == pytest.approx(float(b))
    assert a_parts == pytest.approx(b_parts)


# One update.


@pytest.mark.parametrize(("progress", "share"), [(0.0, 1.0), (0.5, 0.55), (1.0, 0.1)])
def test_the_step_size_decays_linearly_to_a_tenth(progress: float, share: float) -> None:
    policy = Coin()
    before = [p.clone() for p in policy.parameters()]
    metrics = PPO(policy, replace(WHOLE, lr=1e-3)).update(experience(policy), progress=progress)
    moved = max(float((a - b).detach().abs().max()) for a, b in zip(policy.parameters(), before, strict=True))
    assert metrics["lr"] == pytest.approx(1e-3 * share)
    assert moved == pytest.approx(1e-3 * share, rel=0.01)  # Adam's first step is one step size


@pytest.mark.parametrize("limit", [0.01, None])
def test_gradients_are_scaled_down_to_the_limit(limit: float | None) -> None:
    policy = Coin()
    metrics = PPO(policy, replace(WHOLE, max_grad_norm=limit)).update(experience(policy), progress=0)
    norm = torch.cat([p.grad.flatten() for p in policy.parameters()]).norm()
    assert metrics["grad_norm"] > 0.1  # as it was before
    assert float(norm) == pytest.approx(limit or metrics["grad_norm"], rel=1e-3)


def test_the_kl_coefficient_doubles_halves_or_stays() -> None:
    def after(kl_target: float) -> dict[str, float]:
        policy = Coin()
        config = replace(WHOLE, epochs=3, lr=0.01, kl_coef=1.0, kl_target=kl_target)
        learner = PPO(policy, config)
        metrics = learner.update(experience(policy), progress=0)
        assert learner.kl_coef == metrics["kl_coef"]
        return metrics

    def kl_of_the_last_epoch() -> float:
        policy = Coin()
        batch = experience(policy)
        learner = PPO(policy, replace(WHOLE, epochs=2, lr=0.01, kl_coef=1.0))
        learner.update(batch, progress=0)
        log_ratio = policy.evaluate(batch.obs, batch.action).log_prob.detach() - batch.log_prob
        return float((log_ratio.exp() - 1 - log_ratio).mean())

    kl = kl_of_the_last_epoch()
    shares = {share: after(kl / share)["kl_coef"] for share in (1.6, 1.4, 1 / 1.4, 1 / 1.6)}
    assert shares == {1.6: 2, 1.4: 1, 1 / 1.4: 1, 1 / 1.6: 0.5}


def test_without_a_kl_penalty_no_coefficient_grows() -> None:
    policy = Coin()
    assert PPO(policy, WHOLE).update(experience(policy), progress=0)["kl_coef"] == 0


def test_the_kl_penalty_holds_the_policy_back() -> None:
    def moved(**options: object) -> float:
        policy = Coin()
        config = replace(WHOLE, epochs=20, lr=0.02, clip_coef=None, entropy_coef=0, max_grad_norm=None, **options)
        return PPO(policy, config).update(experience(policy), progress=0)["approx_kl"]

    assert moved(kl_coef=10.0) < moved() / 3


def test_epochs_stop_once_the_policy_moved_too_far() -> None:
    def steps(target_kl: float | None) -> float:
        policy = Coin()
        config = replace(WHOLE, epochs=10, minibatch=TOTAL // 2, lr=0.01, clip_coef=None, target_kl=target_kl)
        return PPO(policy, config).update(experience(policy), progress=0)["gradient_steps"]

    assert steps(None) == steps(1e3) == 10 * 2
    assert steps(1e-9) == 1 * 2  # the first epoch's second minibatch already shows it
    assert 1 * 2 < steps(1e-3) < 10 * 2
    assert steps(1e-3) % 2 == 0


def test_learning_happens_in_training_mode_and_leaves_it() -> None:
    policy = Coin()
    seen = []
    policy.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    policy.linear.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    batch = experience(policy.eval())
    seen.clear()
    PPO(policy, WHOLE).update(batch, progress=0)
    assert set(seen) == {True}
    assert not policy.training


# Minibatches.


def minibatches(config: PPOConfig, advantage: Tensor, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    return PPO(Coin(), config, seed=seed)._minibatches(advantage)


@LAW
@given(st.integers(2, 50), st.integers(2, 60))
def test_minibatches_cover_the_batch_once(total: int, size: int) -> None:
    parts = list(minibatches(replace(WHOLE, minibatch=size), torch.zeros(total)))
    drawn = torch.cat([index for index, _ in parts])
    left_out = 1 if total % size == 1 else 0  # a last minibatch of one sample
    assert len(drawn.unique()) == len(drawn) == total - left_out
    assert all(2 <= len(index) <= size for index, _ in parts)
    assert len(parts) == (total - left_out + size - 1) // size
    assert all(bool((weight == 1).all()) for _, weight in parts)


def test_every_epoch_has_its_own_order_decided_by_the_seed() -> None:
    def orders(seed: int) -> list[list[int]]:
        learner = PPO(Coin(), replace(WHOLE, minibatch=50), seed=seed)
        return [next(iter(learner._minibatches(torch.zeros(50))))[0].tolist() for _ in range(2)]

    assert orders(0)[0] != orders(0)[1]
    assert orders(0) == orders(0)
    assert orders(0) != orders(1)


@LAW
@given(st.integers(1, 9), st.integers(2, 7), st.integers(1, 4))
def test_together_an_environments_steps_stay_in_one_minibatch_in_their_order(envs: int, steps: int, per: int) -> None:
    config = replace(WHOLE, envs=envs, steps=steps, minibatch=per * steps, together=True)
    found = [index for index, _ in minibatches(config, torch.zeros(steps * envs))]
    assert sorted(torch.cat(found).tolist()) == list(range(steps * envs))
    for index in found:
        # Samples are (steps, envs) flattened.
        rows = index.view(-1, steps)
        assert torch.equal(rows // envs, torch.arange(steps).expand_as(rows))
        assert (rows % envs == rows[:, :1] % envs).all()
        assert len(rows) <= per


@LAW
@given(st.integers(1, 9), st.integers(2, 7), st.integers(2, 30))
def test_together_every_sample_is_drawn_once_whatever_the_size(envs: int, steps: int, size: int) -> None:
    config = replace(WHOLE, envs=envs, steps=steps, minibatch=size, together=True)
    parts = list(minibatches(config, torch.zeros(steps * envs)))
    drawn = torch.cat([index for index, _ in parts])
    left_out = 1 if steps * envs % size == 1 else 0
    assert len(drawn.unique()) == len(drawn) == steps * envs - left_out
    assert all(2 <= len(index) <= size and bool((weight == 1).all()) for index, weight in parts)


def test_together_environments_are_shuffled_in_every_epoch() -> None:
    config = replace(WHOLE, envs=20, steps=3, minibatch=15, together=True)
    learner = PPO(Coin(), config)
    epochs = [{frozenset((index % 20).tolist()) for index, _ in learner._minibatches(torch.zeros(60))} for _ in "ab"]
    assert epochs[0] != epochs[1]
    assert all(len(group) == 5 for epoch in epochs for group in epoch)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_prioritised_sampling_draws_by_the_size_of_the_advantage(alpha: float) -> None:
    advantage = torch.tensor([0.0, 1.0, -2.0, 4.0])
    config = replace(WHOLE, minibatch=40_000, priority_alpha=alpha)
    (index, weight), *_ = minibatches(config, advantage.repeat(10_000))
    share = torch.bincount(index % 4, minlength=4) / len(index)
    expected = advantage.abs() ** alpha / (advantage.abs() ** alpha).sum()
    torch.testing.assert_close(share, expected, atol=0.01, rtol=0)
    weighted = (weight * expected[index % 4])[index % 4 > 0]
    torch.testing.assert_close(weighted, torch.full_like(weighted, 0.25), rtol=0.01, atol=0)


def test_a_decision_of_parts_is_drawn_by_their_mean() -> None:
    advantage = torch.tensor([[1.0, -3.0], [6.0, 0.0], [0.5, 0.5]])
    config = replace(WHOLE, minibatch=30_000, priority_alpha=1.0)
    (index, weight), *_ = minibatches(config, advantage.repeat(10_000, 1))
    share = torch.bincount(index % 3, minlength=3) / len(index)
    torch.testing.assert_close(share, torch.tensor([2.0, 3.0, 0.5]) / 5.5, atol=0.01, rtol=0)
    assert weight.shape == (30_000, 1)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_beta_is_the_share_of_the_bias_taken_back(beta: float) -> None:
    advantage = torch.linspace(-3, 3, 50)
    whole = replace(WHOLE, minibatch=50, priority_alpha=0.7)
    (index, full), *_ = minibatches(whole, advantage)
    (again, some), *_ = minibatches(replace(whole, priority_beta=beta), advantage)
    assert torch.equal(index, again)
    torch.testing.assert_close(some, full**beta)


@pytest.mark.parametrize("part", ["policy_loss", "value_loss", "entropy", "approx_kl"])
def test_prioritised_sampling_is_unbiased(part: str) -> None:
    """With beta 1 the mean over many draws is the loss of the whole batch, in every part of it."""
    config = replace(WHOLE, priority_alpha=0.8, priority_beta=1.0, normalise_advantages=False)
    old, policy = Coin(seed=0), Coin(seed=1)
    learner = PPO(policy, config)
    s = learner._samples(experience(old))
    # What each term of the loss averages depends on the advantage here, as it does in life.
    s = replace(s, advantage=s.advantage + 2 * s.obs["x"][:, 0] + 2 * s.obs["x"][:, 1])

    @torch.no_grad()
    def value(index: Tensor, weight: Tensor) -> float:
        some = s.take(index, weight)
        return loss_and_parts(policy.evaluate(some.obs, some.action), some, config)[1][part]

    whole = value(torch.arange(TOTAL), torch.ones(TOTAL))
    draws = np.array([value(*minibatch) for _ in range(2000) for minibatch in learner._minibatches(s.advantage)])
    error = draws.std() / len(draws) ** 0.5
    assert draws.mean() == pytest.approx(whole, abs=5 * error)
    assert 5 * error < 0.1 * abs(whole)  # close enough to tell


# Rewards.


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[np.ndarray, np.ndarray]]:
    n = draw(st.integers(1, 3))
    shapes = draw(st.lists(st.integers(1, 6).map(lambda t: (t, n)), min_size=1, max_size=4))
    numbers = st.floats(-10, 10, width=32)
    return [(draw(arrays("float32", s, elements=numbers)), draw(arrays(bool, s))) for s in shapes]


@LAW
@given(batches(), st.floats(0, 1))
def test_reward_scale_is_the_deviation_of_all_discounted_returns(
    given: list[tuple[np.ndarray, np.ndarray]], gamma: float
) -> None:
    scale, carried, returns = RewardScale(gamma), [0.0] * given[0][0].shape[1], []
    for reward, ended in given:
        deviation = scale.update(torch.from_numpy(reward), torch.from_numpy(ended))
        for t, env in np.ndindex(reward.shape):
            carried[env] = gamma * carried[env] + float(reward[t, env])
            returns.append(carried[env])
            if ended[t, env]:
                carried[env] = 0
        expected = np.var(returns) ** 0.5
        assert deviation == pytest.approx(expected, rel=1e-3, abs=1e-5) or (expected < 1e-5 and deviation == 1.0)


def test_reward_scale_counts_every_part() -> None:
    reward, ended = torch.randn(6, 4, 3, generator=Generator().manual_seed(0)), torch.rand(6, 4) < 0.3
    together, separate = RewardScale(0.9), RewardScale(0.9)
    flat = separate.update(reward.view(6, 12), ended.repeat_interleave(3, 1))
    assert together.update(reward, ended) == pytest.approx(flat)
    assert together.carried.shape == (4, 3)


@pytest.mark.parametrize("normalise", [True, False])
def test_rewards_are_divided_by_their_scale(normalise: bool) -> None:
    policy = Coin()
    batch = experience(policy)
    tenfold = replace(batch, reward=10 * batch.reward, value=batch.value * 0, next_value=batch.next_value * 0)
    once = replace(tenfold, reward=batch.reward)
    config = replace(WHOLE, normalise_returns=normalise)
    a, b = (PPO(policy, config)._samples(x).advantage for x in (once, tenfold))
    torch.testing.assert_close(b, a if normalise else 10 * a)


def test_curiosity_adds_its_bonus_to_the_reward() -> None:
    policy = Coin()
    batch = experience(policy)
    flat = replace(batch, ended=torch.ones_like(batch.ended), terminated=torch.ones_like(batch.ended))
    plain, curious = PPO(policy, WHOLE), PPO(policy, replace(WHOLE, curiosity_coef=0.5))
    added = curious._samples(flat).advantage - plain._samples(flat).advantage
    assert bool((added > 0).all())
    assert float(added.mean()) == pytest.approx(0.5, rel=0.5)
    losses = [curious.update(batch, progress=0)["curiosity_loss"] for _ in range(30)]
    assert losses[-1] < losses[0]


BY_ITSELF = {"gamma": 0.0, "gae_lambda": 0.0, "normalise_returns": False}  # advantages are rewards less values


@pytest.mark.parametrize("minibatch", [2, STEPS, 3 * STEPS, TOTAL])
@pytest.mark.parametrize("coef", [0.25, 2.0])
def test_a_departure_from_where_training_began_is_taken_from_the_reward(coef: float, minibatch: int) -> None:
    config = replace(WHOLE, minibatch=minibatch, **BY_ITSELF)
    policy = Coin(seed=0)
    learner = PPO(policy, replace(config, reference_coef=coef))
    policy.load_state_dict(Coin(seed=1).state_dict())
    batch = experience(policy)
    with torch.no_grad():
        before = Coin(seed=0).evaluate(batch.obs, batch.action).log_prob
    taken = PPO(policy, config)._samples(batch).advantage - learner._samples(batch).advantage
    assert (batch.log_prob - before).abs().min() > 0
    torch.testing.assert_close(taken, coef * (batch.log_prob - before).flatten(), atol=1e-5, rtol=1e-5)
    assert float((batch.log_prob - before).mean()) > 0  # on average it is a divergence


def test_a_policy_that_did_not_depart_pays_nothing() -> None:
    policy, config = Coin(), replace(WHOLE, **BY_ITSELF)
    batch = experience(policy)
    plain, held = (PPO(policy, replace(config, reference_coef=coef))._samples(batch) for coef in (0.0, 5.0))
    torch.testing.assert_close(held.advantage, plain.advantage)


def test_what_is_taken_is_part_of_the_reward_that_is_scaled() -> None:
    policy, config = Coin(), replace(WHOLE, reference_coef=1.0, normalise_returns=True)
    learner = PPO(policy, config)
    policy.load_state_dict(Coin(seed=1).state_dict())
    batch = experience(policy)
    reward = batch.reward - learner._log_ratio_to_reference(batch)
    learner._samples(batch)
    expected = RewardScale(config.gamma)
    expected.update(reward, batch.ended)
    torch.testing.assert_close(learner.reward_scale.moments, expected.moments)


def test_it_holds_the_policy_near_where_it_began() -> None:
    def moved(coef: float) -> float:
        policy = Coin()
        learner = PPO(policy, replace(WHOLE, lr=0.05, epochs=4, reference_coef=coef, entropy_coef=0, **BY_ITSELF))
        for seed in range(40):
            learner.update(experience(policy, seed), progress=0)
        batch = experience(policy, 99, steps=500)
        before = Coin().evaluate(batch.obs, batch.action).log_prob.detach()
        return float((batch.log_prob - before).mean())

    assert moved(2.0) < 0.5 * moved(0.0)


def test_the_reference_is_saved_and_stays_what_it_was() -> None:
    policy = Coin(seed=0)
    learner = PPO(policy, replace(WHOLE, lr=0.05, reference_coef=0.5))
    learner.update(experience(policy), progress=0)
    state = {name: value.clone() for name, value in learner.state_dict().items()}
    first = Coin(seed=0).state_dict()
    assert all(torch.equal(state[f"reference.{name}"], value) for name, value in first.items())
    assert not torch.equal(policy.linear.weight, first["linear.weight"])

    other = PPO(Coin(seed=7), learner.config)
    batch = experience(policy, seed=3)
    assert not torch.equal(other._log_ratio_to_reference(batch), learner._log_ratio_to_reference(batch))
    other.load_state_dict(state)
    assert torch.equal(other._log_ratio_to_reference(batch), learner._log_ratio_to_reference(batch))
    assert other.reference is not None
    assert not any(p is q for p in other.policy.parameters() for q in other.reference.parameters())


def test_without_it_no_reference_is_kept() -> None:
    learner = PPO(Coin(), WHOLE)
    assert learner.reference is None
    assert not any(name.startswith("reference.") for name in learner.state_dict())


# Saving and going on.


PROBLEM = AllocationConfig(agents=2, slots=3, horizon=7)
LEARNS = PPOConfig(envs=8, steps=8, epochs=2, minibatch=24, lr=1e-2)


class Run:
    """All that learns: a policy, its learner, its collector."""

    def __init__(self, config: PPOConfig, network: NetworkConfig, seed: int) -> None:
        torch.manual_seed(seed)
        self.policy = MLPPolicy(PROBLEM, network).train(False)
        self.learner = PPO(self.policy, config, seed=seed)
        self.collector = Collector(DocumentWorld(PROBLEM, n=config.envs, phases=3), steps=config.steps, seed=seed)
        self.parts = (self.policy, self.learner, self.collector)

    def updates(self, count: int) -> dict[str, Tensor]:
        for _ in range(count):
            self.learner.update(self.collector.collect(self.policy), progress=0.5)
        return self.saved()[0]

    def saved(self) -> list[dict[str, Tensor]]:
        states = [{name: value.clone() for name, value in part.state_dict().items()} for part in self.parts]
        return [*states, {"rng": torch.get_rng_state()}]  # dropout draws from torch's own generator

    def load(self, states: list[dict[str, Tensor]]) -> None:
        *states, rng = states
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(rng["rng"])


EVERYTHING_THAT_CARRIES_STATE = pytest.mark.parametrize(
    ("options", "network"),
    [
        ({}, {}),
        ({"kl_coef": 1.0, "kl_target": 1e-4}, {"norm": "batch"}),
        ({"priority_alpha": 0.5}, {"distribution": "beta", "shared": True}),
        ({"curiosity_coef": 0.1}, {"distribution": "gaussian"}),
        ({}, {"norm": "layer", "precision": "bfloat16"}),
        ({}, {"dropout": 0.3}),
        ({"reference_coef": 0.5}, {}),
        ({"reference_coef": 0.5, "together": True}, {"norm": "batch"}),
    ],
    ids=str,
)


@EVERYTHING_THAT_CARRIES_STATE
def test_a_loaded_run_goes_on_bit_for_bit(options: dict[str, object], network: dict[str, object]) -> None:
    config, net = replace(LEARNS, **options), NetworkConfig(hidden=(8,), **network)
    run = Run(config, net, seed=0)
    run.updates(2)
    states = run.saved()
    expected = run.updates(2)
    other = Run(config, net, seed=1)
    other.load(states)
    assert same(other.updates(2), expected)


@EVERYTHING_THAT_CARRIES_STATE
def test_a_used_run_can_go_back(options: dict[str, object], network: dict[str, object]) -> None:
    """To the very start too, where the optimiser has no moments yet."""
    run = Run(replace(LEARNS, **options), NetworkConfig(hidden=(8,), **network), seed=0)
    states = run.saved()
    expected = run.updates(2)
    run.load(states)
    assert same(run.updates(2), expected)


def test_a_saved_run_holds_the_carried_returns_and_the_coefficient() -> None:
    run = Run(replace(LEARNS, kl_coef=1.0, kl_target=1e3), NetworkConfig(hidden=(8,)), seed=0)
    run.updates(2)
    state = run.learner.state_dict()
    assert float(state["kl_coef"]) == 0.25
    assert state["reward_scale.carried"].shape == (LEARNS.envs,)
    assert float(state["reward_scale.moments"][0]) == 2 * LEARNS.envs * LEARNS.steps


def test_what_the_policy_observed_counts_after_the_update() -> None:
    """Old and new log-probabilities must be of one scale, so it may not change between collecting and learning."""
    run = Run(replace(LEARNS, epochs=1, minibatch=64), NetworkConfig(hidden=(8,)), seed=0)
    metrics = run.learner.update(run.collector.collect(run.policy), progress=0)
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert float(run.policy.scale.count) == LEARNS.envs * LEARNS.steps


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)
