"""Choices that learn from the rewards of whole tasks: each algorithm improves on the policy that logged them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from etude.bootstrap.runs import make_request
from etude.contracts.decision import DecisionRequest, LoggedDecision, Preferences
from etude.contracts.errors import ConfigError, DatasetError
from etude.contracts.policy import SAMPLED
from etude.contracts.ports import Decider
from etude.contracts.trajectory import Outcome, Trajectory
from etude.experience.deciders import Uniform
from etude.learning.off_policy import evaluate_off_policy
from etude.learning.passes import ALGORITHMS
from etude.learning.requests import LearnRequest
from etude.learning.run_folder import find_policy
from etude.problems.choice.from_logs import TaskLogs, read_logs
from etude.problems.choice.learn import from_logs
from etude.problems.choice.logged import ChoiceLogReader
from etude.problems.choice.policy import ChoicePolicy, load
from etude.settings.tree import resolve_settings

PROBLEM = "choice:step"
STEPS: Mapping[str, Sequence[str]] = {
    "first": ("direct", "plan"),
    "second": ("draft", "check"),
    "third": ("draft", "check"),
}


def reward(kind: str, made: Sequence[str]) -> float:
    """A plan for a hard task is worth most, but only if both later steps check it; without, direct is better."""
    if made[0] == "direct":
        return 0.9 if kind == "easy" else 0.5
    return 0.6 if kind == "easy" else float(made[1:].count("check") == len(made) - 1)


@dataclass(frozen=True)
class Logged:
    trajectory: Trajectory
    reward: float
    context: str
    weight: float = 1.0
    rating: float | None = None


@dataclass(frozen=True)
class Data:
    """A dataset in memory."""

    parts: Mapping[str, Sequence[Logged]]
    problem: str = PROBLEM
    content: str = "c"
    facts: Mapping[str, str] = field(default_factory=lambda: {"id": "d"})
    policies: Mapping[str, int] = field(default_factory=dict)

    @property
    def splits(self) -> Mapping[str, int]:
        return {name: len(part) for name, part in self.parts.items()}

    def examples(self, split: str) -> Iterator[Sequence[Logged]]:
        half = len(self.parts[split]) // 8 * 4  # two parts, with all trajectories of a request in one
        return iter([self.parts[split][:half], self.parts[split][half:]])


def work(decider: Decider, requests: int, *, times: int = 4, seed: int = 0, steps: int = 3) -> list[Logged]:
    """Tasks of some requests, each done several times."""
    rng, found = random.Random(seed), []
    for number in range(requests):
        kind = rng.choice(("easy", "hard"))
        for again in range(times):
            made: tuple[str, ...] = ()
            logged: list[LoggedDecision] = []
            for step, options in list(STEPS.items())[:steps]:
                context = {"kind": kind, "step": step, "route": made[0] if made else "open"}
                asked = DecisionRequest(context=context, options=tuple(options), seed=rng.randrange(2**40))
                answer = decider.decide(asked)
                made = (*made, answer.action)
                logged += [structs.replace(one, problem=PROBLEM) for one in answer.logged]
            trajectory = Trajectory(
                id=f"t-{seed}-{number}-{again}",
                time=datetime(2026, 1, 1, tzinfo=UTC),
                problem=PROBLEM,
                task=kind,
                policy=decider.version,
                decisions=tuple(logged),
                outcome=Outcome(),
            )
            found.append(Logged(trajectory, reward(kind, made), str(number)))
    return found


def mean_reward(decider: Decider, *, steps: int = 3) -> float:
    return float(np.mean([one.reward for one in work(decider, 300, times=1, seed=9, steps=steps)]))


def make_data(steps: int = 3) -> Data:
    uniform = Uniform(PROBLEM)
    sizes = {"train": 160, "validation": 60, "test": 100}
    return Data({name: work(uniform, n, seed=i, steps=steps) for i, (name, n) in enumerate(sizes.items())})


def request(out: Path, data: Data, *, algorithm: str = "", checkpoint: Path | None = None, **more: Any) -> LearnRequest:
    settings = resolve_settings(
        "choice",
        preset="tasks" if algorithm else None,
        assignments=["choice.encoder=ngrams", "run.device=cpu", "run.threads=1"],
    ).settings
    return LearnRequest(
        problem="choice",
        method="from-logs",
        settings=settings,
        out=out,
        inputs={"dataset": "d", **more, **({"algorithm": algorithm} if algorithm else {})},
        dataset=data,
        checkpoint=checkpoint,
    )


def learn(request: LearnRequest) -> ChoicePolicy:
    run = from_logs(request)
    for _ in run.updates():
        continue
    return load(run.artefact())


@dataclass(frozen=True)
class Fitted:
    """A choice that has learned outcomes, with the logs."""

    folder: Path
    data: Data
    policy: ChoicePolicy


def fit(folder: Path, data: Data) -> Fitted:
    return Fitted(folder, data, learn(request(folder, data)))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return fit(tmp_path_factory.mktemp("several") / "fit", make_data())


@pytest.fixture(scope="module")
def learned_by(fitted: Fitted, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Fitted]:
    @cache
    def by(algorithm: str) -> Fitted:
        out = tmp_path_factory.mktemp("learned") / algorithm
        policy = learn(request(out, fitted.data, algorithm=algorithm, checkpoint=fitted.folder))
        return Fitted(out, fitted.data, policy)

    return by


@pytest.fixture(scope="module")
def learned(learned_by: Callable[[str], Fitted]) -> Fitted:
    return learned_by("rloo")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_improves_on_the_policy_that_logged(
    algorithm: str, fitted: Fitted, learned_by: Callable[[str], Fitted]
) -> None:
    policy = learned_by(algorithm).policy
    logging, single = mean_reward(Uniform(PROBLEM)), mean_reward(fitted.policy)
    assert logging < 0.6 < single < 0.75  # a plan is worth little while later choices are made at random
    assert mean_reward(policy) > (logging if algorithm == "dpo" else single) + 0.1
    assert mean_reward(policy.sampled()) > logging + 0.2


@pytest.fixture(scope="module")
def one_choice(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return fit(tmp_path_factory.mktemp("one") / "fit", make_data(steps=1))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tasks_with_one_choice_work(algorithm: str, one_choice: Fitted, tmp_path: Path) -> None:
    policy = learn(request(tmp_path / "run", one_choice.data, algorithm=algorithm, checkpoint=one_choice.folder))
    assert mean_reward(policy, steps=1) == mean_reward(one_choice.policy, steps=1) > 0.9
    assert mean_reward(policy.sampled(), steps=1) > mean_reward(Uniform(PROBLEM), steps=1) + 0.05


def test_it_stays_a_choice(fitted: Fitted, learned: Fitted) -> None:
    artefact, before = find_policy(learned.folder), find_policy(fitted.folder)
    tensors, old = artefact.tensors(), before.tensors()
    assert (artefact.manifest.problem, artefact.manifest.parent) == ("choice", before.version)
    assert artefact.manifest.details["choice"]["policy"] is True
    assert all(torch.equal(tensors[name], value) for name, value in old.items())
    assert {name for name in tensors if name not in old} == {
        f"policy.{name}" for name in ("log_temperature", "weight", "bias", "value_weight", "value_bias")
    }
    context = {"kind": "hard", "step": "first"}
    now, then = (one.policy.choose(context).expected for one in (learned, fitted))
    assert [one.score for one in now.values()] == [one.score for one in then.values()]


def test_it_samples_by_the_softmax_of_its_logits_and_else_takes_the_largest(learned: Fitted) -> None:
    policy, logits = learned.policy, learned.policy.model.policy
    assert logits is not None
    context, offered = {"kind": "hard", "step": "second", "route": "plan"}, ("draft", "check")
    expected = replace(policy.model, policy=None).expect([context], policy.offer(offered))
    places = [policy.model.table.names.index(name) for name in offered]
    known = policy.model.reader([context])[0] @ logits.weight + logits.bias
    wanted = expected.utility(1.0, policy.model.unit_usd)[0] / logits.temperature + known[places]
    sampled = policy.sampled().score(context, offered, Preferences())
    assert sampled.probability == pytest.approx(np.exp(wanted) / np.exp(wanted).sum())
    assert sampled.expectation.score[0] == pytest.approx(expected.score[0])
    greedy = policy.choose(context, options=offered)
    assert (greedy.action, greedy.propensity) == (offered[int(wanted.argmax())], 1.0)
    assert policy.sampled().version == policy.version + SAMPLED


def test_a_new_option_has_the_mixture_of_the_logits_of_those_like_it(learned: Fitted) -> None:
    policy = learned.policy
    assert policy.model.policy is not None
    offered = policy.offer(("draft", "check", "check twice"))
    assert offered.is_new.tolist() == [False, False, True]
    context = {"kind": "hard", "step": "second", "route": "plan"}
    utility = policy.model.expect([context], offered).utility(1.0, policy.model.unit_usd)[0]
    all_known = policy.model.expect([context]).utility(1.0, policy.model.unit_usd)[0]
    assert utility == pytest.approx(offered.mix @ all_known)
    assert policy.sampled().score(context, offered.values, Preferences()).probability[2] > 0


def test_tensors_and_deciders_agree_on_every_logged_decision(learned: Fitted) -> None:
    """Also where a new option was offered, and what was not offered is impossible."""
    uniform, rng = Uniform(PROBLEM), random.Random(0)
    examples = []
    for number, example in enumerate(learned.data.parts["test"][:20]):
        decisions = list(example.trajectory.decisions)
        asked = DecisionRequest(context=decisions[1].context, options=("draft", "check", "check twice"), seed=number)
        decisions[1] = structs.replace(uniform.decide(asked).logged[0], problem=PROBLEM)
        examples.append(replace(example, trajectory=structs.replace(example.trajectory, decisions=tuple(decisions))))
    rng.shuffle(examples)
    reader = TaskLogs(learned.policy, torch.device("cpu"))
    (logged,) = reader.shards(lambda: iter([examples]))()
    found = reader.policy.evaluate(logged.obs, logged.action).log_prob.exp().detach().numpy()
    sampled, expected = learned.policy.sampled(), []
    for example in examples:
        for decision in example.trajectory.decisions:
            scored = sampled.score(decision.context, decision.eligible, Preferences())
            expected.append(scored.probability[decision.eligible.index(decision.action)])
    assert found == pytest.approx(np.array(expected), rel=1e-4)
    each = [torch.full_like(logged.action["option"], i) for i in range(logged.obs["legal"].shape[1])]
    about = [reader.policy.evaluate(logged.obs, {"option": option}) for option in each]
    gains = [one.log_prob.exp() * one.advantage for one in about if one.advantage is not None]
    assert torch.stack(gains).sum(0).abs().max() < 1e-5, "on average over the policy, actions earn its mean"
    chosen = reader.policy.choose(logged.obs, generator=torch.Generator().manual_seed(0))["option"]
    assert logged.obs["legal"].gather(1, chosen[:, None]).all()
    assert not logged.obs["legal"].all()


def test_it_is_judged_on_logs_as_it_samples_and_fitted_choices_by_their_best(fitted: Fitted, learned: Fitted) -> None:
    readers = [read_logs(find_policy(one.folder), {}, torch.device("cpu")) for one in (fitted, learned)]
    assert [type(reader) for reader in readers] == [ChoiceLogReader, TaskLogs]
    for reader, policy in zip(readers, (fitted.policy, learned.policy.sampled()), strict=True):
        shards = reader.shards(lambda: learned.data.examples("test"))
        value = evaluate_off_policy(reader.policy, shards).estimates["doubly robust"]  # type: ignore[arg-type]
        assert value.low < mean_reward(policy) < value.high


def test_a_fitted_choice_that_explores_is_judged_as_it_samples(fitted: Fitted) -> None:
    reader = read_logs(find_policy(fitted.folder), {"explore": True}, torch.device("cpu"))
    assert isinstance(reader, ChoiceLogReader)
    (logged, *_) = reader.shards(lambda: fitted.data.examples("test"))()
    found = logged.obs["probability"].numpy()
    decision = next(iter(fitted.data.examples("test")))[0].trajectory.decisions[0]
    sampled = fitted.policy.sampled().score(decision.context, decision.eligible, Preferences()).probability
    assert found[0, : len(sampled)] == pytest.approx(sampled)
    assert ((found > 0) & (found < 1)).any()


def test_it_continues_and_outcomes_are_fitted_again_without_it(learned: Fitted, tmp_path: Path) -> None:
    again = TaskLogs(learned.policy, torch.device("cpu")).policy
    assert learned.policy.model.policy is not None
    assert torch.equal(again.weight, torch.from_numpy(learned.policy.model.policy.weight))
    refitted = learn(request(tmp_path / "refit", learned.data, checkpoint=learned.folder))
    assert refitted.model.policy is None


def test_weighted_trajectories_are_drawn_as_often_as_they_weigh(fitted: Fitted) -> None:
    examples = [replace(one, weight=float(i == 3)) for i, one in enumerate(fitted.data.parts["test"][:8])]
    reader = TaskLogs(fitted.policy, torch.device("cpu"))
    (logged,) = reader.shards(lambda: iter([examples]))()
    assert logged.reward.tolist() == pytest.approx([examples[3].reward] * 8)


def test_what_is_missing_is_named(fitted: Fitted) -> None:
    with pytest.raises(ConfigError, match=r"algorithm is 'rloo', which continues a choice .* checkpoint"):
        make_request("choice", inputs={"dataset": "d", "algorithm": "rloo"}, isolated=True)
    unknown = [
        replace(
            one,
            trajectory=structs.replace(
                one.trajectory, decisions=tuple(structs.replace(d, propensity=None) for d in one.trajectory.decisions)
            ),
        )
        for one in fitted.data.parts["test"][:4]
    ]
    with pytest.raises(DatasetError, match="no decision of the dataset has a propensity"):
        list(TaskLogs(fitted.policy, torch.device("cpu")).shards(lambda: iter([unknown]))())
