"""Logged choices as tensors: with which probability a policy would have made them, and what it expects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import torch

from etude.contracts.decision import LoggedDecision, Preferences
from etude.contracts.errors import DataError
from etude.contracts.trajectory import Outcome, Trajectory
from etude.experience.datasets import Example
from etude.problems.choice.fit import fit_choice
from etude.problems.choice.logged import ChoiceLogReader
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.choice.rows import Row
from etude.problems.choice.settings import ChoiceConfig
from etude.text.ngrams import NGramEncoder


@pytest.fixture(scope="module")
def policy() -> ChoicePolicy:
    rows = [
        Row(context={"tier": tier}, outcomes={"a": {"score": float(tier == "gold")}, "b": {"score": 0.5}}, group=str(i))
        for i, tier in enumerate(("gold", "basic") * 60)
    ]
    model = fit_choice(lambda: iter([rows]), NGramEncoder(), ChoiceConfig()).model
    return ChoicePolicy(model=model, config=ChoiceConfig(temperature=0.5), artefact_version="v", explore="softmax")


def example(number: int, *decisions: LoggedDecision, reward: float = 1.0, context: str = "c") -> Example:
    trajectory = Trajectory(
        id=f"t{number}",
        time=datetime(2026, 11, 1, tzinfo=UTC),
        task="a task",
        problem="choice:tone",
        decisions=decisions,
        outcome=Outcome(success=True),
    )
    return Example(trajectory=trajectory, reward=reward, confidence=1.0, weight=1.0, context=context)


def decision(**more: Any) -> LoggedDecision:
    given = {"problem": "choice:tone", "context": {"tier": "gold"}, "eligible": ["a", "b"], "action": "a"}
    return LoggedDecision(**{**given, "propensity": 0.5, "policy": "uniform", **more})


def test_decisions_become_probabilities_and_expectations(policy: ChoicePolicy) -> None:
    three = decision(eligible=["b", "c", "a"], action="b", propensity=0.25, context={"tier": "basic"})
    other = decision(problem="choice:other", eligible=None)
    examples = [
        example(0, decision(), three, reward=0.25, context="x"),
        example(1, other, decision(action="b"), context="y"),
        example(2, decision(), context="x"),
    ]
    reader = ChoiceLogReader(policy)
    (logged,) = reader.shards(lambda: iter([examples]))()
    assert len(logged) == 4
    assert logged.trajectory.tolist() == [0, 0, 1, 2]
    assert logged.reward.tolist() == [0.25, 1.0, 1.0]
    assert logged.context.tolist() == [0, 1, 0]
    assert logged.action["option"].tolist() == [0, 0, 1, 0]
    assert logged.log_propensity.exp().tolist() == pytest.approx([0.5, 0.25, 0.5, 0.5])
    assert logged.eligible.exp().tolist() == pytest.approx([2, 3, 2, 2])
    scored = policy.score({"tier": "basic"}, ["b", "c", "a"], Preferences())
    assert logged.obs["probability"][1].tolist() == pytest.approx(scored.probability)
    assert logged.obs["probability"].sum(1).tolist() == pytest.approx([1, 1, 1, 1])
    assert logged.obs["probability"][0, 2] == 0  # there are two options
    found = reader.policy.evaluate(logged.obs, logged.action)
    p = logged.obs["probability"]
    taken = p[[0, 1, 2, 3], [0, 0, 1, 0]].tolist()
    assert found.log_prob.exp().tolist() == pytest.approx(taken)
    assert found.value.tolist() == pytest.approx((p * logged.obs["score"]).sum(1).tolist())
    assert found.advantage is not None
    expected = logged.obs["score"][[0, 1, 2, 3], [0, 0, 1, 0]] - found.value
    assert found.advantage.tolist() == pytest.approx(expected.tolist())
    assert found.entropy[0] == pytest.approx(torch.distributions.Categorical(p[0, :2]).entropy().item())


def test_what_a_greedy_policy_would_not_do_has_almost_no_probability(policy: ChoicePolicy) -> None:
    reader = ChoiceLogReader(ChoicePolicy(model=policy.model, config=policy.config, artefact_version="v"))
    (logged,) = reader.shards(lambda: iter([[example(0, decision(action="b"))]]))()
    found = reader.policy.evaluate(logged.obs, logged.action)
    assert found.log_prob.exp().item() < 1e-9
    assert torch.isfinite(found.log_prob).all()
    assert found.entropy.item() == pytest.approx(0)


def test_parts_without_decisions_are_left_out(policy: ChoicePolicy) -> None:
    parts = [[example(0)], [example(1, decision())]]
    found = list(ChoiceLogReader(policy).shards(lambda: iter(parts))())
    assert [len(logged) for logged in found] == [1]


def test_what_a_person_decided_is_no_decision_of_a_policy(policy: ChoicePolicy) -> None:
    parts = [[example(0, decision(propensity=None), decision())]]
    found = list(ChoiceLogReader(policy).shards(lambda: iter(parts))())
    assert [len(logged) for logged in found] == [1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"action": "z"}, "trajectory t7: 'z' was chosen and not offered"),
        ({"eligible": 3}, "trajectory t7: eligible is 3"),
        ({"context": [1]}, r"trajectory t7: context is \[1\]"),
    ],
)
def test_what_cannot_be_judged_is_named(policy: ChoicePolicy, bad: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(ChoiceLogReader(policy).shards(lambda: iter([[example(7, decision(**bad))]]))())
