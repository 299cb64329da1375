"""A policy is judged by the logs of another where its true value is known; where logs cannot tell, that is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from etude.contracts.errors import DataError
from etude.evidence.overlap import Cause, Thresholds
from etude.learning.logged import Logged
from etude.learning.off_policy import (
    DM,
    DR,
    FQE,
    IS,
    SNIPS,
    SWITCH,
    Answer,
    OffPolicyEvaluation,
    evaluate_off_policy,
)
from etude.problems.base import Action, Evaluation, Obs
from tests.learning.test_logged import CHOICES, KINDS, Small, best, by, legal, mostly_greedy, play, untrained
from tests.learning.test_logged_overlap import sharpened, shuffled


@torch.no_grad()
def true_value(policy: Small) -> float:
    """The mean return of a policy that samples, over all kinds and first choices."""
    kind = torch.arange(KINDS).repeat_interleave(CHOICES)
    first, probability, total = torch.arange(CHOICES).repeat(KINDS), torch.ones(len(kind)), torch.zeros(len(kind))
    nothing = torch.zeros_like(first)
    for number, before in enumerate((nothing, first)):
        step = torch.full_like(kind, number)
        obs = {"kind": kind, "step": step, "first": before, "legal": legal(kind, step, before)}
        p = policy._read(obs)[0].exp()
        right = best(kind, step, before)
        if number == 0:
            probability = p.gather(1, first[:, None])[:, 0]
            total = total + (first == right)
        else:
            total = total + p.gather(1, right[:, None])[:, 0]
    return float((probability * total).sum() / KINDS)


def improved(factor: float, seed: int = 1) -> Small:
    """The behaviour policy, moved towards the right choices (negative: away from them)."""
    policy = untrained(seed)
    kind = torch.arange(KINDS).repeat(CHOICES + 1)
    first = torch.arange(CHOICES + 1).repeat_interleave(KINDS) % CHOICES
    step = (torch.arange(CHOICES + 1).repeat_interleave(KINDS) < CHOICES).long()
    obs = {"kind": kind, "step": step, "first": first, "legal": legal(kind, step, first)}
    target, optimizer = best(kind, step, first), torch.optim.SGD(policy.scores.parameters(), lr=abs(factor))
    for _ in range(10):
        loss = torch.nn.functional.cross_entropy(policy._read(obs)[0], target)
        optimizer.zero_grad()
        (loss if factor > 0 else -loss).backward()
        optimizer.step()
    return policy


def judged(policy: Small, *parts: Logged, limits: Thresholds | None = None) -> OffPolicyEvaluation:
    return evaluate_off_policy(policy, lambda: iter(parts), limits)


@pytest.fixture(scope="module")
def draws() -> Sequence[Logged]:
    return [play(by(untrained(1)), contexts=400, executions=2, seed=seed) for seed in range(40)]


@pytest.mark.parametrize("factor", [2.0, -0.5])
def test_intervals_hold_the_true_value_and_the_true_difference(factor: float, draws: Sequence[Logged]) -> None:
    policy, behaviour = improved(factor), true_value(untrained(1))
    truth = true_value(policy)
    found = [judged(policy, logs) for logs in draws]
    assert abs(truth - behaviour) > 0.04
    for name in (DR, SNIPS, IS):
        assert np.mean([e.estimates[name].low <= truth <= e.estimates[name].high for e in found]) >= 0.88, name
        assert np.mean([e.estimates[name].mean for e in found]) == pytest.approx(truth, abs=0.03), name
    assert np.mean([e.estimates[DM].mean for e in found]) == pytest.approx(truth, abs=0.05)
    assert np.mean([e.behaviour.low <= behaviour <= e.behaviour.high for e in found]) >= 0.88
    assert np.mean([e.difference.low <= truth - behaviour <= e.difference.high for e in found]) >= 0.88
    assert not {e.answer for e in found} & {Answer.CANNOT_TELL, Answer.WORSE if factor > 0 else Answer.BETTER}


def test_a_value_model_narrows_the_interval(draws: Sequence[Logged]) -> None:
    found = [judged(improved(4.0), logs) for logs in draws[:20]]
    assert np.mean([e.estimates[DR].error for e in found]) < np.mean([e.estimates[IS].error for e in found])


def test_many_logs_tell_the_better_policy_from_the_worse() -> None:
    logs = play(by(untrained(1)), contexts=3000, executions=2, seed=0)
    answers = {factor: judged(improved(factor), logs).answer for factor in (2.0, -0.5)}
    assert answers == {2.0: Answer.BETTER, -0.5: Answer.WORSE}


def test_the_behaviour_policy_is_not_distinguishable_from_itself(draws: Sequence[Logged]) -> None:
    found = judged(untrained(1), draws[0])
    assert found.answer is Answer.NOT_DISTINGUISHABLE
    assert found.difference.mean == pytest.approx(0, abs=1e-4)
    assert found.overlap.ess == pytest.approx(800, abs=0.01)
    assert "is not distinguishable from the behaviour policy" in found.sentences()[0]


def test_a_policy_that_the_logs_do_not_cover_cannot_be_judged() -> None:
    logs = play(mostly_greedy(untrained(1), 0.02), contexts=400, executions=2, seed=0)
    found = judged(sharpened(untrained(9), 200), logs)
    assert found.answer is Answer.CANNOT_TELL
    assert Cause.SAMPLE_SIZE in found.overlap.reasons
    assert found.sentences()[0] == "These 800 trajectories cannot tell whether the policy is better."
    assert any(sentence.startswith("The effective sample size is ") for sentence in found.sentences())


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_propensities_cannot_judge(seed: int) -> None:
    logs = play(by(sharpened(untrained(1), 10)), contexts=500, executions=4, seed=seed)
    found = judged(sharpened(untrained(1), 10), shuffled(logs, seed))
    assert found.answer is Answer.CANNOT_TELL
    assert Cause.MEAN_WEIGHT in found.overlap.reasons


def test_decisions_that_the_policy_never_makes_have_weight_0(draws: Sequence[Logged]) -> None:
    """They are no error here, unlike in learning: a policy may have stricter rules."""
    logs = draws[0]
    strict = {**logs.obs, "legal": logs.obs["legal"].clone()}
    strict["legal"][torch.arange(10), logs.action["choice"][:10]] = False
    found = judged(untrained(1), replace(logs, obs=strict))
    assert np.isfinite(found.estimates[DR].mean)
    assert found.overlap.ess < 796


def test_parts_are_judged_as_the_whole(draws: Sequence[Logged]) -> None:
    logs = draws[0]
    whole, parts = (
        judged(improved(2.0), logs),
        judged(improved(2.0), *(logs.only(p) for p in torch.arange(800).split(200))),
    )
    assert (whole.trajectories, whole.contexts, whole.decisions) == (
        parts.trajectories,
        parts.contexts,
        parts.decisions,
    )
    assert whole.contexts == 400
    assert whole.estimates[DR].mean == pytest.approx(parts.estimates[DR].mean, abs=1e-6)


def test_copies_of_trajectories_add_no_certainty(draws: Sequence[Logged]) -> None:
    logs = draws[0]
    copied = logs.only(torch.arange(800).repeat_interleave(3))
    one, three = judged(improved(2.0), logs), judged(improved(2.0), copied)
    assert three.difference.error == pytest.approx(one.difference.error, rel=0.1)


def test_trajectories_without_decisions_and_a_single_context_count(draws: Sequence[Logged]) -> None:
    logs = draws[0]
    gaps = replace(logs, trajectory=logs.trajectory[4:], obs={k: x[4:] for k, x in logs.obs.items()})
    gaps = replace(gaps, action={"choice": logs.action["choice"][4:]}, log_propensity=logs.log_propensity[4:])
    gaps = replace(gaps, eligible=logs.eligible[4:])
    assert judged(untrained(1), gaps).estimates[DR].mean == pytest.approx(float(logs.reward.mean()), abs=1e-4)
    alone = judged(improved(2.0), replace(logs, context=torch.zeros_like(logs.context)))
    assert alone.contexts == 1
    assert alone.estimates[DR].mean == pytest.approx(judged(improved(2.0), logs).estimates[DR].mean, abs=0.05)
    assert alone.estimates[DM].mean == pytest.approx(alone.estimates[DR].mean, abs=0.1)
    assert alone.estimates[DR].error > 0


def test_long_trajectories_have_finite_estimates_and_no_answer() -> None:
    """Two hundred decisions in one: the product of their ratios says nothing, and overflows nothing."""
    logs = play(by(untrained(1)), contexts=400, executions=2, seed=0)
    long = replace(logs, trajectory=logs.trajectory // 100, reward=logs.reward[:8], context=logs.context[:8])
    found = judged(sharpened(untrained(9), 200), long)
    assert found.answer is Answer.CANNOT_TELL
    assert np.isfinite(found.estimates[DR].mean)
    assert found.estimates[SNIPS].to_json()["mean"] is None  # all weights are 0
    json.dumps(found.to_json(), allow_nan=False)
    heavy = judged(untrained(1), replace(long, log_propensity=torch.full_like(long.log_propensity, -30)))
    assert heavy.answer is Answer.CANNOT_TELL
    assert all(np.isfinite(e.mean) for e in heavy.estimates.values())


def test_rows_and_json_have_every_estimate(draws: Sequence[Logged]) -> None:
    found = judged(improved(2.0), draws[0])
    rows = found.rows()
    assert [name for name, *_ in rows] == ["behaviour policy", DR, SNIPS, IS, DM, "difference"]
    assert all(low <= value <= high for _, value, low, high in rows)
    result = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert result["answer"] == found.answer
    assert result["overlap"]["verdict"] == "pass"
    assert result["estimates"][DR]["ci95"] == [found.estimates[DR].low, found.estimates[DR].high]


def first_decisions(logs: Logged) -> Logged:
    """The same rewards, as if only the first decision had been the policy's."""
    return replace(
        logs,
        obs={name: x[::2] for name, x in logs.obs.items()},
        action={"choice": logs.action["choice"][::2]},
        log_propensity=logs.log_propensity[::2],
        trajectory=logs.trajectory[::2],
        eligible=logs.eligible[::2],
    )


def test_where_trajectories_are_one_decision_heavy_weights_may_be_left_to_the_model(draws: Sequence[Logged]) -> None:
    logs, policy = first_decisions(draws[0]), improved(8.0)
    assert [name for name, *_ in judged(policy, logs).rows()][-2:] == [SWITCH, "difference"]
    light, heavy = (judged(policy, logs, limits=Thresholds(heavy=heavy)) for heavy in (1000.0, 2.0))
    assert light.weight.max() > 2
    assert light.estimates[SWITCH] == light.estimates[DR]
    assert heavy.estimates[SWITCH].error < 0.9 * heavy.estimates[DR].error
    assert heavy.estimates[SWITCH].mean != heavy.estimates[DR].mean


class Expecting(Small):
    """Says what it expects of an action: whether it is right, which half of the reward is about."""

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        found, right = super().evaluate(obs, action), best(obs["kind"], obs["step"], obs["first"])
        value = self._read(obs)[0].exp().gather(1, right[:, None])[:, 0]
        return replace(found, value=value, advantage=(action["choice"] == right).float() - value)


def test_where_actions_have_an_expected_reward_no_weights_are_needed(draws: Sequence[Logged]) -> None:
    policy = improved(8.0)
    policy.__class__ = Expecting
    found = [judged(policy, logs) for logs in draws[:20]]
    assert [name for name, *_ in found[0].rows()][-2:] == [FQE, "difference"]
    assert np.mean([e.estimates[FQE].mean for e in found]) == pytest.approx(true_value(policy), abs=0.04)
    spread = {name: np.std([e.estimates[name].mean for e in found]) for name in (FQE, IS)}
    assert spread[FQE] < 0.7 * spread[IS]
    no_decision = replace(draws[0], trajectory=draws[0].trajectory.clamp(max=798))
    assert FQE not in judged(policy, no_decision).estimates


def test_thresholds_are_settings(draws: Sequence[Logged]) -> None:
    strict = Thresholds(min_ess=100_000)
    assert judged(untrained(1), draws[0], limits=strict).answer is Answer.CANNOT_TELL


def test_no_logs_and_wrong_logs_are_refused(draws: Sequence[Logged]) -> None:
    with pytest.raises(DataError, match="there are no logged trajectories to judge the policy with"):
        judged(untrained(1))
    with pytest.raises(DataError, match="800 trajectories have no finite reward"):
        judged(untrained(1), replace(draws[0], reward=torch.full_like(draws[0].reward, torch.nan)))
