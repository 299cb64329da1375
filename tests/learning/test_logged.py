"""Learning from logs on a problem whose best return is known: each algorithm gets there from a mediocre logger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from etude.contracts.errors import DataError
from etude.learning.dpo import DPO, MAX_COMPARED, DPOConfig, mined, spread
from etude.learning.logged import SHORT, Logged, batches, effective_share, held_out_value, leave_one_out
from etude.learning.logged_ppo import LoggedPPO, LoggedPPOConfig, doubly_robust, moments
from etude.learning.passes import Algorithm, Passes
from etude.learning.rloo import RLOO, RLOOConfig
from etude.learning.run import StopReason
from etude.problems.base import Action, Evaluation, Obs, Sampled
from etude.problems.distributions import masked, sample_categorical

KINDS, CHOICES = 6, 5
"""A request is of a kind and is answered in two steps, each with one of five choices, some of which are illegal."""


def best(kind: Tensor, step: Tensor, first: Tensor) -> Tensor:
    """The right choice; at the second step it depends on what was chosen first."""
    return torch.where(step == 0, kind % CHOICES, (kind + first + 1) % CHOICES)


def legal(kind: Tensor, step: Tensor, first: Tensor) -> Tensor:
    """(n, choices): all but one, never the right one."""
    away = (best(kind, step, first) + 1 + kind % (CHOICES - 1)) % CHOICES
    return ~F.one_hot(away, CHOICES).bool()


class Small(nn.Module):
    """A Policy over the two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(KINDS * (CHOICES + 1), 64), nn.Tanh())
        self.scores, self.worth = nn.Linear(64, CHOICES), nn.Linear(64, 1)

    def _read(self, obs: Obs) -> tuple[Tensor, Tensor]:
        place = obs["kind"] * (CHOICES + 1) + torch.where(obs["step"] == 0, CHOICES, obs["first"])
        h = self.body(F.one_hot(place, KINDS * (CHOICES + 1)).float())
        return masked(self.scores(h), obs["legal"]).log_softmax(1), self.worth(h)[:, 0]

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        log_p, value = self._read(obs)
        chosen = log_p.argmax(1) if greedy else sample_categorical(log_p, generator)
        return Sampled(action={"choice": chosen}, log_prob=log_p.gather(1, chosen[:, None])[:, 0], value=value)

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        return self.act(obs, greedy=greedy, generator=generator).action

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        log_p, value = self._read(obs)
        entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)
        return Evaluation(log_prob=log_p.gather(1, action["choice"][:, None])[:, 0], entropy=entropy, value=value)

    def value(self, obs: Obs) -> Tensor:
        return self._read(obs)[1]

    def observed(self, obs: Obs) -> None:
        pass


Chooser = Callable[[Obs, Generator], tuple[Tensor, Tensor]]
"""Observations to choices and their log-probabilities, (n,) both."""


def by(policy: Small) -> Chooser:
    def choose(obs: Obs, rng: Generator) -> tuple[Tensor, Tensor]:
        decision = policy.act(obs, generator=rng)
        return decision.action["choice"], decision.log_prob

    return choose


def mostly_greedy(policy: Small, share: float) -> Chooser:
    """The most probable choice, but for a share that is uniform over what is legal."""

    def choose(obs: Obs, rng: Generator) -> tuple[Tensor, Tensor]:
        top = policy.choose(obs, greedy=True)["choice"]
        uniform = torch.multinomial(obs["legal"].float(), 1, generator=rng)[:, 0]
        chosen = torch.where(torch.rand(len(top), generator=rng) < share, uniform, top)
        return chosen, ((1 - share) * (chosen == top) + share / obs["legal"].sum(1)).log()

    return choose


@torch.no_grad()
def play(choose: Chooser, *, contexts: int, executions: int, seed: int) -> Logged:
    """Each right choice earns 1, with noise; 2 is the best an answer can earn on average."""
    rng = Generator().manual_seed(seed)
    context = torch.arange(contexts).repeat_interleave(executions)
    kind = torch.randint(KINDS, (contexts,), generator=rng)[context]
    n, first, seen = len(kind), torch.zeros(len(context), dtype=torch.long), []
    reward = torch.randn(n, generator=rng)
    for number in range(2):
        step = torch.full_like(kind, number)
        obs = {"kind": kind, "step": step, "first": first, "legal": legal(kind, step, first)}
        choice, log_p = choose(obs, rng)
        reward = reward + (choice == best(kind, step, first))
        seen.append((obs, choice, log_p))
        first = choice

    def flat(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts, 1).flatten(0, 1)

    return Logged(
        obs={name: flat([obs[name] for obs, _, _ in seen]) for name in seen[0][0]},
        action={"choice": flat([choice for _, choice, _ in seen])},
        log_propensity=flat([log_p for _, _, log_p in seen]),
        trajectory=torch.arange(n).repeat_interleave(2),
        reward=reward,
        context=context,
        eligible=torch.full((2 * n,), CHOICES - 1.0).log(),
    )


@torch.no_grad()
def worth(policy: Small) -> float:
    """The mean return of its most probable choices, exactly."""
    kind = torch.arange(KINDS)
    first, total = torch.zeros_like(kind), torch.zeros(KINDS)
    for number in range(2):
        step = torch.full_like(kind, number)
        obs = {"kind": kind, "step": step, "first": first, "legal": legal(kind, step, first)}
        choice = policy.choose(obs, greedy=True)["choice"]
        total, first = total + (choice == best(kind, step, first)), choice
    return float(total.mean())


def untrained(seed: int) -> Small:
    torch.manual_seed(seed)
    return Small()


LEARNERS: dict[str, Callable[[Small], Algorithm]] = {
    "ppo": lambda policy: LoggedPPO(policy, LoggedPPOConfig(epochs=25, minibatch=512, lr=0.01, patience=25)),
    "rloo": lambda policy: RLOO(policy, RLOOConfig(epochs=25, minibatch=512, lr=0.01, patience=25)),
    "dpo": lambda policy: DPO(policy, DPOConfig(epochs=15, minibatch=256, lr=0.01, patience=15)),
}


def trained(make: Callable[[Small], Algorithm], *parts: Logged, seed: int = 0) -> Small:
    policy = untrained(seed)
    for _ in Passes(make(policy), lambda: iter(parts)):
        pass
    return policy


@pytest.fixture(scope="module")
def logs() -> Logged:
    """4,000 answers of an untrained policy, four to each request."""
    return play(by(untrained(1)), contexts=1000, executions=4, seed=0)


@pytest.mark.parametrize("name", LEARNERS)
def test_it_finds_the_best_choices_in_logs_of_a_mediocre_policy(name: str, logs: Logged) -> None:
    assert float(logs.reward.mean()) < 0.8
    assert worth(trained(LEARNERS[name], logs)) >= 0.95 * 2


@pytest.mark.parametrize("name", LEARNERS)
def test_it_begins_with_any_policy_that_the_logs_cover(name: str, logs: Logged) -> None:
    """Yesterday's policy need not be the behaviour policy."""
    assert worth(trained(LEARNERS[name], logs, seed=7)) >= 0.95 * 2


@pytest.mark.parametrize("name", LEARNERS)
def test_the_same_seed_gives_the_same_weights(name: str, logs: Logged) -> None:
    some = logs.only(torch.arange(800))
    first, second = (trained(LEARNERS[name], some).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", LEARNERS)
def test_parts_teach_as_the_whole_does(name: str, logs: Logged) -> None:
    halves = (logs.only(torch.arange(2000)), logs.only(torch.arange(2000, 4000)))
    assert worth(trained(LEARNERS[name], *halves)) == pytest.approx(worth(trained(LEARNERS[name], logs)), abs=0.05)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_run_goes_on_where_it_stopped(name: str, logs: Logged) -> None:
    some, held_out = logs.only(torch.arange(600)), logs.only(torch.arange(600, 800))

    def begun(learner: Algorithm) -> Passes:
        return Passes(learner, lambda: iter([some]), lambda: iter([held_out]))

    whole, resumed = LEARNERS[name](untrained(0)), LEARNERS[name](untrained(5))
    first, again = begun(whole), begun(resumed)
    for _ in range(2):
        first.advance()
    saved, weights = copied(first.state_dict()), copied(whole.policy.state_dict())
    reported = [first.advance() for _ in range(2)]

    resumed.policy.load_state_dict(weights)
    again.load_state_dict(saved)
    assert [again.advance() for _ in range(2)] == reported
    assert all(torch.equal(value, resumed.policy.state_dict()[key]) for key, value in whole.policy.state_dict().items())


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


def test_contexts_of_one_are_left_out_and_counted(logs: Logged) -> None:
    alone = replace(logs.only(torch.arange(10)), context=torch.tensor([0, 0, 0, 0, 1, 1, 2, 3, 4, 5]))
    policy = untrained(0)
    metrics = Passes(RLOO(policy, RLOOConfig(minibatch=16)), lambda: iter([alone])).advance()
    assert metrics["left_out"] == 4
    with pytest.raises(DataError, match="all 4 trajectories are alone"):
        Passes(RLOO(policy, RLOOConfig()), lambda: iter([alone.only(torch.arange(6, 10))])).advance()


def test_leave_one_out_compares_with_the_others(logs: Logged) -> None:
    some = replace(logs.only(torch.arange(4)), reward=torch.tensor([1.0, 2, 6, 5]), context=torch.tensor([0, 0, 0, 1]))
    advantage, counts = leave_one_out(some)
    assert advantage.tolist() == [1 - 4, 2 - 3.5, 6 - 1.5, 0]
    assert counts.tolist() == [True, True, True, False]


def test_truncation_bounds_the_weight_of_what_was_hardly_ever_logged(logs: Logged) -> None:
    """A trajectory whose logged propensities are a thousandth of what they were moves the policy no more than twice."""
    some = logs.only(torch.arange(400))
    rare = replace(some, log_propensity=some.log_propensity - 7 * (some.trajectory == 0))

    def moved(part: Logged, truncation: float) -> Tensor:
        policy = untrained(1)
        before = torch.cat([p.detach().flatten() for p in policy.parameters()])
        config = RLOOConfig(epochs=1, minibatch=10_000, truncation=truncation, max_grad_norm=1e9, lr=1e-3)
        learner = RLOO(policy, config)
        learner.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)  # type: ignore[assignment]  # moves by the gradient
        Passes(learner, lambda: iter([part])).advance()
        return torch.cat([p.detach().flatten() for p in policy.parameters()]) - before

    usual = moved(some, 2.0)
    assert float((moved(rare, 2.0) - usual).norm()) < 0.2 * float(usual.norm())
    assert float((moved(rare, 1e9) - usual).norm()) > float(usual.norm())


def test_batches_have_every_trajectory_with_decisions_once_and_are_never_empty(logs: Logged) -> None:
    """Not even where a trajectory is longer than a batch."""
    some = replace(logs.only(torch.arange(6)), trajectory=torch.tensor([0, 0, 0, 0, 0, 0, 2, 2, 2, 4, 4, 5]))
    for seed in range(10):
        found = list(batches(some, 2, Generator().manual_seed(seed)))
        assert all(int(some.lengths[part].sum()) for part in found)
        assert torch.cat(found).sort().values.tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize("name", LEARNERS)
def test_choices_that_the_policy_never_makes_are_refused(name: str, logs: Logged) -> None:
    """Their ratios are 0 at best, and no number after that."""
    wrong = {"choice": logs.action["choice"].clone()}
    wrong["choice"][7] = (~logs.obs["legal"][7]).nonzero()[0, 0]
    with pytest.raises(DataError, match=r"1 of \d+ logged choices are impossible for this policy"):
        for _ in Passes(LEARNERS[name](untrained(0)), lambda: iter([replace(logs, action=wrong)])):
            pass


def test_held_out_trajectories_that_are_alone_are_compared_with_all_others(logs: Logged) -> None:
    some = logs.only(torch.arange(0, 4000, 4))  # one of each context
    policy = untrained(1)  # the behaviour policy
    reported = held_out_value(policy, lambda: iter([some]), truncation=2.0, minibatch=512)
    assert reported["estimate"] == pytest.approx(float(some.reward.mean()), abs=1e-3)
    with pytest.raises(DataError, match="a single trajectory is held out"):
        held_out_value(policy, lambda: iter([some.only(torch.tensor([3]))]), truncation=2.0, minibatch=512)


@pytest.mark.parametrize(("more", "estimate"), [(0, 1.0), (SHORT - 1, 0.75)])
def test_decisions_of_short_trajectories_count_together(more: int, estimate: float) -> None:
    """Only two right choices earn 1. Of long trajectories the estimate is of first order: the sum over decisions."""
    both = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]).repeat(50, 1)  # (trajectories, 2) each sampled with 1/2
    right = torch.cat([both, torch.ones(len(both), more)], 1)  # and then choices without alternative
    free = torch.tensor([True, True] + [False] * more).expand_as(right)

    class Right(Small):
        def evaluate(self, obs: Obs, action: Action) -> Evaluation:
            log_prob = action["right"].clamp(min=1e-6).log()
            return Evaluation(log_prob=log_prob, entropy=torch.zeros_like(log_prob), value=torch.zeros_like(log_prob))

    logged = Logged(
        obs={},
        action={"right": right.flatten()},
        log_propensity=torch.where(free, 0.5, 1.0).flatten().log(),
        trajectory=torch.arange(len(both)).repeat_interleave(2 + more),
        reward=both.prod(1).float(),
        context=torch.zeros(len(both), dtype=torch.long),
        eligible=torch.where(free, 2.0, 1.0).flatten().log(),
    )
    found = held_out_value(Right(), lambda: iter([logged]), truncation=2.0, minibatch=512)
    assert found["estimate"] == pytest.approx(estimate, abs=0.01)


@pytest.mark.parametrize(("rewards", "reported"), [([3.0], [3, 1]), ([0.1] * 7, [0.1, 1]), ([1.0, 3.0], [2, 2**0.5])])
def test_rewards_without_a_scale_keep_theirs(rewards: list[float], reported: list[float]) -> None:
    assert moments(torch.tensor(rewards)).tolist() == pytest.approx(reported)


def test_what_ends_while_the_value_warms_up_is_kept(logs: Logged) -> None:
    learner = LoggedPPO(untrained(0), LoggedPPOConfig(epochs=1, warm_up=1, minibatch=512))
    passes = Passes(learner, lambda: iter([logs]), lambda: iter([logs]))
    (metrics,) = passes
    assert passes.best_score == metrics["estimate"]
    assert passes.best_weights


def test_the_effective_share_is_that_of_equal_weights() -> None:
    assert float(effective_share(torch.ones(10))) == pytest.approx(1.0)
    assert float(effective_share(torch.tensor([1.0] * 5 + [0.0] * 5))) == pytest.approx(0.5)


def test_the_doubly_robust_estimate_corrects_values_by_what_they_got_wrong(logs: Logged) -> None:
    one = replace(logs.only(torch.tensor([0])), reward=torch.tensor([5.0]))
    value, ratio = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.5])
    second = 0.5 * (5 - 2)
    assert doubly_robust(one, one.reward, value, ratio, 2.0).tolist() == [1 + 2 * (2 - 1) + 1 * second]


def test_the_doubly_robust_estimate_of_who_logged_is_what_was_earned(logs: Logged) -> None:
    found = doubly_robust(logs, logs.reward, torch.randn(len(logs)), torch.ones(len(logs)), 2.0)
    assert torch.allclose(found, logs.reward, atol=1e-5)


def test_it_stops_where_the_logs_no_longer_speak_of_it(logs: Logged) -> None:
    learner = LoggedPPO(untrained(0), LoggedPPOConfig(epochs=50, minibatch=512, lr=0.02, min_ess=0.6))
    passes = Passes(learner, lambda: iter([logs]))
    reported = list(passes)
    assert passes.stopped is StopReason.OVERLAP
    assert len(reported) < 50
    assert reported[-1]["ess"] < 0.6


def test_preferences_need_rewards_that_differ(logs: Logged) -> None:
    flat = replace(logs, reward=torch.zeros_like(logs.reward))
    with pytest.raises(DataError, match="no two trajectories"):
        Passes(DPO(untrained(0), DPOConfig()), lambda: iter([flat])).advance()


def test_mined_pairs_share_a_context_and_differ_by_the_margin(logs: Logged) -> None:
    pairs = mined(logs, DPOConfig(pairs=2, margin=1.5), Generator().manual_seed(0))
    assert torch.equal(logs.context[pairs[:, 0]], logs.context[pairs[:, 1]])
    assert bool((logs.reward[pairs[:, 0]] - logs.reward[pairs[:, 1]] > 1.5 * spread(logs)).all())
    assert int(torch.bincount(logs.context[pairs[:, 0]]).max()) == 2


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_scale_of_rewards_does_not_matter_to_preferences(scale: float, logs: Logged) -> None:
    """Rewards of the default definition are between 0 and 1, those of a simulator between −5 and 10."""
    scaled = replace(logs, reward=scale * logs.reward + 0.5)
    assert torch.equal(
        mined(scaled, DPOConfig(), Generator().manual_seed(0)), mined(logs, DPOConfig(), Generator().manual_seed(0))
    )
    metrics = [
        Passes(DPO(untrained(0), DPOConfig()), lambda part=part: iter([part])).advance() for part in (scaled, logs)
    ]
    assert metrics[0]["grad_norm"] == pytest.approx(metrics[1]["grad_norm"], rel=1e-3)


def test_rewards_between_0_and_1_give_pairs_by_default(logs: Logged) -> None:
    """Half of all tasks succeed, and little else distinguishes them."""
    rewards = (logs.reward > 0.5) * 0.8 + 0.1 * torch.rand(len(logs.reward), generator=Generator().manual_seed(0))
    pairs = mined(replace(logs, reward=rewards), DPOConfig(), Generator().manual_seed(0))
    assert len(pairs) > 1000
    assert bool((rewards[pairs[:, 0]] - rewards[pairs[:, 1]] > 0.05).all())


def test_where_no_pair_is_found_the_message_says_what_to_set(logs: Logged) -> None:
    with pytest.raises(DataError, match=r"by more than margin, 99 standard deviations .*: set dpo.margin to 0"):
        Passes(DPO(untrained(0), DPOConfig(margin=99.0)), lambda: iter([logs])).advance()


def test_of_a_context_with_many_trajectories_some_are_compared_each_time(logs: Logged) -> None:
    some = logs.only(torch.arange(300))
    many = replace(some, context=torch.where(torch.arange(300) < 200, 0, some.context))
    first, second = (mined(many, DPOConfig(pairs=200), Generator().manual_seed(seed)) for seed in (0, 1))
    among = [set(pairs[many.context[pairs[:, 0]] == 0].flatten().tolist()) for pairs in (first, second)]
    assert all(2 < len(trajectories) <= MAX_COMPARED for trajectories in among)
    assert among[0] != among[1]
    assert torch.equal(many.context[first[:, 0]], many.context[first[:, 1]])


@pytest.mark.parametrize(
    ("value", "reported"),
    [(float("nan"), "3 are no numbers"), (-torch.inf, "3 are 0 or below"), (0.5, "3 are above 1")],
)
def test_numbers_that_are_no_propensities_are_refused(value: float, reported: str, logs: Logged) -> None:
    wrong = logs.log_propensity.clone()
    wrong[[5, 50, 500]] = value
    with pytest.raises(DataError, match=f"of 8000 logged propensities {reported}"):
        Passes(RLOO(untrained(0), RLOOConfig()), lambda: iter([replace(logs, log_propensity=wrong)])).advance()
