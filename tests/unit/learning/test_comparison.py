"""A comparison says no more than its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from etude.evidence.intervals import interval
from etude.learning.comparison import contenders, difference, interpret, strongest
from etude.learning.evaluate import Score, evaluate
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig


def make_score(returns: list[float] | np.ndarray, **metrics: float) -> Score:
    values = np.asarray(returns, dtype=float)
    low, high = interval(values)
    return Score(
        episodes=len(values),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)),
        low=low,
        high=high,
        metrics=metrics,
        returns=values.tolist(),
    )


def test_the_difference_is_paired_by_episode() -> None:
    episodes = np.random.default_rng(0).normal(1000, 300, 40)
    noise = np.random.default_rng(1).normal(0, 1, 40)
    mean, low, high = difference(make_score(episodes + 5 + noise), make_score(episodes))
    assert mean == pytest.approx(5 + noise.mean())
    assert 4 < low < mean < high < 6  # the episodes' own deviation of 300 does not count


def test_of_different_episodes_it_is_not() -> None:
    a, b = make_score([10.0, 20.0] * 20), make_score([0.0, 2.0] * 10)
    mean, low, high = difference(a, b)
    assert mean == 14
    assert high - mean == pytest.approx(2.018 * np.sqrt(a.std**2 / 40 + b.std**2 / 20), rel=1e-2)
    assert low == pytest.approx(2 * mean - high)


def test_scores_from_different_streams_are_not_paired() -> None:
    """The same number of episodes from the same seed, on two kinds of devices."""
    episodes = np.random.default_rng(0).normal(1000, 300, 40)
    ours, peer = make_score(episodes + 5), make_score(episodes)
    mean, low, high = difference(replace(ours, stream="seed 1 on cuda"), replace(peer, stream="seed 1 on cpu"))
    assert mean == pytest.approx(5)
    assert high - low > 200
    other = {"policy": replace(ours, stream="seed 1 on cuda"), "rules": peer}
    assert "over different episodes the difference" in interpret(other, shares={})[0]
    assert "over the same episodes the difference" in interpret({"policy": ours, "rules": peer}, shares={})[0]


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(30, "better than"), (-30, "worse than"), (4, "not distinguishable from"), (-4, "not distinguishable from")],
)
def test_the_verdict_follows_from_the_interval(gain: float, verdict: str) -> None:
    rng = np.random.default_rng(2)
    scripted = rng.normal(1500, 50, 200)
    noise = rng.normal(0, 40, 200)
    scores = {"policy": make_score(scripted + gain + noise - noise.mean()), "scripted": make_score(scripted)}
    (sentence,) = interpret(scores, shares={})
    assert f", {verdict} scripted with" in sentence


def test_the_strongest_rival_is_no_chance_policy_where_there_is_another() -> None:
    weak, strong = make_score([1.0, 2.0]), make_score([8.0, 9.0])
    assert strongest({"policy": weak, "random": strong, "greedy": weak, "untrained": strong}) == "greedy"
    assert strongest({"policy": weak, "random": weak, "untrained": strong}) == "untrained"
    assert strongest({"policy": weak, "rules": weak, "oracle": strong}) == "rules"
    assert strongest({"policy": weak, "oracle": strong}) == "oracle"
    assert strongest({"policy": weak}) is None
    assert strongest({}) is None
    assert interpret({"policy": weak}, shares={}) == interpret({}, shares={}) == []


def test_only_habits_that_differ_from_chance_are_named() -> None:
    policy = make_score([100.0, 110.0], collaboration=0.9, specialisation=0.06, utilisation=0.5)
    chance = make_score([50.0, 55.0], collaboration=0.1, specialisation=0.05)
    shares = {name: (name, "") for name in ("collaboration", "specialisation", "utilisation")}
    sentence = interpret({"policy": policy, "random": chance}, shares=shares)[1].replace("\N{NO-BREAK SPACE}", " ")
    assert sentence == "That is 2.0 times what random choice returns; what differs: collaboration 90 % (random 10 %)."
    loss = make_score([-50.0, -55.0])
    assert interpret({"policy": policy, "random": loss}, shares={})[1] == "That is +158 compared with random choice."
    for next_to_nothing in (0.0, 0.5):
        score = make_score([next_to_nothing] * 2)
        assert interpret({"policy": policy, "random": score}, shares={})[1].startswith("That is +10")


def test_digits_shares_and_an_oracle_are_shown_where_given() -> None:
    policy, rules = make_score([8.0, 8.5], success=0.8), make_score([5.0, 5.25], success=0.5)
    scores = {"policy": policy, "rules": rules, "random": make_score([1.0, 1.5], success=0.1)}
    scores["oracle"] = make_score([10.0, 10.0])
    sentences = [
        s.replace("\N{NO-BREAK SPACE}", " ") for s in interpret(scores, shares={"success": ("success", "")}, digits=2)
    ]
    assert sentences[0].startswith("The policy returns 8.25 per episode, better than rules with 5.12: ")
    assert "the difference is +3.12" in sentences[0]
    assert sentences[1].endswith("; what differs: success 80 % (random 10 %).")
    assert sentences[2] == "It is 82 % of what an oracle that knows everything returns."
    scores["oracle"] = make_score([-1.0, -1.0])
    assert len(interpret(scores, shares={})) == 2  # a share of a loss says nothing


@pytest.mark.parametrize("variant", ["document", "matched"])
def test_all_contenders_play(variant: str) -> None:
    problem = AllocationProblem(config=AllocationConfig(variant=variant, agents=3, slots=5, horizon=6))  # type: ignore[arg-type]
    torch.manual_seed(1)
    policy = problem.policy().train(False)
    before = torch.get_rng_state()
    actors = contenders(problem, policy, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(actors) == ["policy", *problem.baselines(), "untrained"]
    for actor in actors.values():
        assert len(evaluate(problem, actor, episodes=4).returns) == 4
