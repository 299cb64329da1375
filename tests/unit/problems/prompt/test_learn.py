"""From the command line's side: train, evaluate, load, continue from ratings, and the page of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.cli.plot import write_report
from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import ConfigError
from etude.contracts.ports import Example
from etude.contracts.trajectory import Trajectory
from etude.learning.requests import LearnRequest
from etude.learning.run_folder import RunFolder
from etude.problems.prompt import choose_method
from etude.problems.prompt.from_logs import read_logs
from etude.problems.prompt.generated.prompts import make_prompts
from etude.problems.prompt.policy import load
from etude.problems.prompt.reader import ACTIONS, STOP
from tests.unit.problems.prompt.test_judged import SMALL


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("runs") / "prompt"
    return etude.train("prompt", out=out, prompts=300, settings={**SMALL, "prompt_outcomes.epochs": 6})


def test_a_run_learns_and_is_resumed_with_the_same_weights(trained: Any, tmp_path: Path) -> None:
    assert max(trained.scores) > trained.scores[0]
    again = etude.train("prompt", out=tmp_path / "b", prompts=300, settings={**SMALL, "prompt_outcomes.epochs": 6})
    assert again.artefact().version == trained.artefact().version


def test_it_is_compared_with_simpler_policies_on_both_groups(trained: Any) -> None:
    found = etude.evaluate(trained.folder.path, episodes=12)
    names = {row[0] for row in found.rows}
    assert {"policy", "no change", "random", "every mutation", "always expansion", "untrained", "oracle"} <= names
    oracle = found.json["baselines"]["oracle"]["mean_return"]
    assert all(found.json["baselines"][name]["mean_return"] <= oracle + 1e-6 for name in found.json["baselines"])
    assert found.json["policy"]["mean_return"] <= oracle + 1e-6
    assert found.json["baselines"]["no change"]["mean_return"] == 0
    assert sum("held-out prompts of" in sentence for sentence in found.sentences) == 2


def test_own_prompts_are_learned_by_rules_and_measured_by_them(tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": one.text}) for one in make_prompts(30, 5)))
    run = etude.train("prompt", out=tmp_path / "run", data=data, settings={**SMALL, "prompt_outcomes.epochs": 10})
    found = etude.evaluate(run.folder.path, data=data)
    assert found.json["policy"]["mean_return"] > found.json["baselines"]["random"]["mean_return"]
    assert "Rewards are those of rules" in found.sentences[-1]


def test_ppo_practises_in_the_same_world(tmp_path: Path) -> None:
    settings = {**SMALL, "ppo.envs": 16, "ppo.steps": 8, "ppo.minibatch": 64, "run.eval_every": 1_000}
    run = etude.train("prompt", out=tmp_path / "run", method="practise", prompts=20, max_steps=1_500, settings=settings)
    assert run.step >= 1_500
    assert load(run.artefact()).decide(DecisionRequest(context="Write a poem.")).action in ACTIONS


def test_the_documents_preset_has_its_numbers(tmp_path: Path) -> None:
    from etude.bootstrap.runs import make_request

    inputs = {"method": "practise"}
    settings: Any = make_request("prompt", out=tmp_path, inputs=inputs, preset="document", isolated=True).settings
    ppo = settings.ppo
    assert (ppo.lr, ppo.gamma, ppo.gae_lambda, ppo.clip_coef) == (3e-4, 0.99, 0.95, 0.2)
    assert (ppo.entropy_coef, ppo.value_coef, ppo.epochs, ppo.minibatch) == (0.01, 0.5, 4, 64)
    assert ppo.envs * ppo.steps == 2048
    assert settings.prompt_network.hidden == (256, 256, 128)
    assert (settings.prompt_network.norm, settings.prompt_network.dropout) == ("batch", 0.1)
    assert (settings.prompt.inputs, settings.prompt.encoder) == ("embedding", "ngrams-1536")


def test_the_page_of_a_run_says_what_the_policy_does(trained: Any, tmp_path: Path) -> None:
    page = write_report(RunFolder(trained.folder.path), episodes=12, out=tmp_path / "page.html").read_text("utf-8")
    assert "What the policy does about defects: seen kinds" in page
    assert "What the policy does by kind: unseen kinds" in page
    assert "says nothing of failures" in page


def test_methods_follow_from_the_inputs() -> None:
    assert choose_method({}) == "outcomes"
    assert choose_method({"method": "practise"}) == "practise"
    assert choose_method({"dataset": "d"}) == "from-logs"
    assert choose_method({"data": "d", "judge": "u#m"}) == "judged"
    with pytest.raises(ConfigError, match="judge needs data"):
        choose_method({"judge": "u#m"})
    with pytest.raises(ConfigError, match="without data and judge"):
        choose_method({"dataset": "d", "data": "p"})


@dataclass(frozen=True, kw_only=True)
class Rated:
    """A logged example, as a dataset gives it."""

    trajectory: Trajectory
    reward: float
    context: str
    rating: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """A dataset in memory: people like prompts that were left alone, and nothing else."""

    policy: Any
    content: str = "0" * 64
    problem: str = "prompt"
    facts: dict[str, Any] = field(default_factory=dict)
    made: dict[str, list[Example]] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=lambda: {"train": 160, "validation": 60})

    def examples(self, split: str) -> Iterator[Sequence[Example]]:
        yield self._kept(split)

    @cached_property
    def _prompts(self) -> list[str]:
        return [one.text for one in make_prompts(220, 3)]

    def _kept(self, split: str) -> list[Example]:
        if split not in self.made:
            self.made[split] = [self._rated(split, i) for i in range(self.splits[split])]
        return self.made[split]

    def _rated(self, split: str, number: int) -> Rated:
        seed = number + 1000 * (split != "train")
        text = self._prompts[number if split == "train" else 160 + number]
        decision = self.policy.sampled().decide(DecisionRequest(context=text, seed=seed))
        trajectory = Trajectory(
            id=f"{split}-{number}",
            time=datetime(2026, 1, 1, tzinfo=UTC),
            task=text[:40],
            problem="prompt",
            decisions=decision.logged,
        )
        return Rated(trajectory=trajectory, reward=float(decision.action == STOP), context=text)


def test_ratings_of_logged_decisions_change_the_policy(trained: Any, tmp_path: Path) -> None:
    from etude.bootstrap.runs import make_request, start_run

    policy = etude.load(trained.folder.path)
    request: LearnRequest = make_request(
        "prompt",
        out=tmp_path / "run",
        assignments=[
            *(f"{k}={json.dumps(v)}" for k, v in SMALL.items()),
            "from_logs.ppo.epochs=12",
            "from_logs.ppo.lr=0.02",
            "from_logs.ppo.minibatch=64",
            "from_logs.ppo.max_kl=null",
            "from_logs.ppo.min_ess=0",
        ],
        isolated=True,
    )
    rated: Any = Ratings(policy=policy)
    run = start_run(replace(request, method="from-logs", dataset=rated, checkpoint=trained.folder.path))
    for _ in run.updates():
        continue
    assert probability_of_stop(etude.load(run.folder.path)) > 0.2 + probability_of_stop(policy)


def probability_of_stop(policy: Any) -> float:
    asked = [DecisionRequest(context=one.text) for one in make_prompts(20, 8)]
    found: Sequence[Any] = policy.sampled().decide_many(asked)
    return float(sum(one.expected[STOP].probability for one in found) / len(found))


def test_logs_are_read_as_they_were_decided(trained: Any) -> None:
    rated = Ratings(policy=etude.load(trained.folder.path))
    reader = read_logs(trained.artefact(), {}, "cpu")  # type: ignore[arg-type]
    examples: Sequence[Example] = next(rated.examples("train"))
    logged = reader.logged(examples)
    now = reader.policy.evaluate(logged.obs, logged.action)
    assert (now.log_prob - logged.log_propensity).abs().max() < 1e-3
    assert len(logged) == 160
