"""Choices that learn from the rewards of whole tasks, by RLOO, DPO or PPO: logged decisions in, logits out.

The utilities of a fitted choice are the start, and stay as they are. What is learned is a temperature, a linear
function of the context for each known option, and a value for PPO.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Generator, Tensor, nn

from etude.contracts.decision import Preferences
from etude.contracts.errors import DatasetError
from etude.contracts.ports import Example
from etude.learning.artefact import Artefact
from etude.learning.from_logs import Examples
from etude.learning.logged import Logged, Shards
from etude.learning.logs_run import learn_from_logs
from etude.learning.requests import LearnRequest
from etude.learning.run import Run
from etude.problems.base import Action, Evaluation, Obs, Sampled
from etude.problems.choice import SPEC
from etude.problems.choice.logged import ChoiceLogReader, read_decisions, to_logged
from etude.problems.choice.logits import Logits, start
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.options import Offered
from etude.problems.choice.policy import ChoicePolicy, load
from etude.problems.choice.state import write_model
from etude.problems.distributions import sample_categorical

DECAY = 0.003
"""Weight decay of the linear function, added to its gradients."""
KEPT = 100_000
"""Decisions that stay in memory once they are read; the parts of a dataset that follow are read in every pass."""


def from_tasks(request: LearnRequest) -> Run:
    """A run that continues a choice by the algorithm of the request."""
    return learn_from_logs(request, SPEC, lambda artefact, inputs, device: TaskLogs(load(artefact), device))


def read_logs(artefact: Artefact, inputs: Mapping[str, Any], device: torch.device) -> ChoiceLogReader | TaskLogs:
    """For the policy that was learned from whole tasks, which samples; else for the options of highest utility, or
    with `explore` for those that it samples where it explores."""
    policy = load(artefact)
    if policy.model.policy is not None:
        return TaskLogs(policy, device)
    return ChoiceLogReader(policy.sampled() if inputs.get("explore") else policy)


class LogitsPolicy(nn.Module):
    """Logits as a network; options that were not offered are masked."""

    log_temperature: Tensor
    weight: Tensor
    bias: Tensor
    value_weight: Tensor
    value_bias: Tensor
    mix: Tensor  # (options, K): each as a mixture of the known ones

    def __init__(self, logits: Logits) -> None:
        super().__init__()
        for name, x in vars(logits).items():
            self.register_parameter(name, nn.Parameter(torch.tensor(x, dtype=torch.float32)))
        self.weight.register_hook(lambda gradient: gradient + DECAY * self.weight.detach())
        self.register_buffer("mix", torch.eye(len(logits.bias)), persistent=False)

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        logits = self._logits(obs)
        return {"option": logits.argmax(1) if greedy else sample_categorical(logits, generator)}

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        action = self.choose(obs, greedy=greedy, generator=generator)
        found = self.evaluate(obs, action)
        return Sampled(action=action, log_prob=found.log_prob, value=found.value)

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        log_p, place = self._logits(obs).log_softmax(1), action["option"][:, None]  # (n, offered), (n, 1)
        entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)
        mean = (log_p.exp() * obs["utility"]).sum(1)
        return Evaluation(
            log_prob=log_p.gather(1, place)[:, 0],
            entropy=entropy,
            value=self.value(obs),
            advantage=obs["utility"].gather(1, place)[:, 0] - mean,
        )

    def value(self, obs: Obs) -> Tensor:
        return obs["features"] @ self.value_weight + self.value_bias

    def observed(self, obs: Obs) -> None:
        """Nothing to scale: features are standardised."""

    def _logits(self, obs: Obs) -> Tensor:
        learned = (obs["features"] @ self.weight + self.bias) @ self.mix.T  # (n, options)
        logits = obs["utility"] / self.log_temperature.exp() + learned.gather(1, obs["option"])  # (n, offered)
        return logits.masked_fill(~obs["legal"], -torch.inf)


class TaskLogs:
    """Logits, and logged decisions as they observe them."""

    def __init__(self, decider: ChoicePolicy, device: torch.device) -> None:
        self.base = replace(decider, model=replace(decider.model, policy=None))
        self.policy = LogitsPolicy(decider.model.policy or _start(decider.model)).to(device)
        self.device = device
        fitted = write_model(self.base.model)
        self.parts = replace(fitted, details={"choice": {**fitted.details["choice"], "policy": True}})
        self._mixes = {row.tobytes(): i for i, row in enumerate(np.eye(len(decider.options)))}

    def shards(self, examples: Examples, *, seed: int = 0, sample: Callable[[], int] = lambda: 0) -> Shards:
        kept: list[tuple[Logged, Tensor]] = []

        def parts() -> Iterator[Logged]:
            rng, decisions = Generator().manual_seed(1_000_003 * seed + sample()), 0
            for number, part in enumerate(examples()):
                if number == len(kept) and sum(len(logged) for logged, _ in kept) < KEPT:
                    kept.append(self._read(part))
                logged, weight = kept[number] if number < len(kept) else self._read(part)
                if len(logged):
                    decisions += len(logged)
                    yield logged if bool((weight == weight[0]).all()) else _drawn(logged, weight, rng)
            if not decisions:
                raise DatasetError("no decision of the dataset has a propensity: create one of a policy that samples")

        return parts

    def _read(self, examples: Sequence[Example]) -> tuple[Logged, Tensor]:
        """With the weights of the trajectories."""
        made, model = read_decisions(examples), self.base.model
        read = model.reader([one.context for one in made])
        width = max((len(one.eligible) for one in made), default=1)
        utility, option = np.zeros((len(made), width), np.float32), np.zeros((len(made), width), np.int64)
        legal = np.zeros((len(made), width), bool)
        alike: dict[bytes, list[int]] = defaultdict(list)  # rows by what was offered
        for row, one in enumerate(made):
            alike[msgspec.json.encode(one.eligible)].append(row)
        for rows in alike.values():
            offered = self.base.offer(made[rows[0]].eligible)
            expected = model.expect([made[row].context for row in rows], offered, read=read[rows])
            own = slice(0, len(offered.options))
            utility[rows, own] = expected.utility(self.base.quality_weight(Preferences()), model.unit_usd)
            option[rows, own], legal[rows, own] = self._places(offered), True
        found = {"features": read, "utility": utility, "option": option, "legal": legal}
        obs = {name: torch.from_numpy(x).to(self.device) for name, x in found.items()}
        logged = to_logged(examples, made, obs, dtype=torch.float32, device=self.device)
        return logged, torch.tensor([example.weight for example in examples])

    def _places(self, offered: Offered) -> list[int]:
        """Row of each option in the policy's table of mixtures, to which new ones are added."""
        new = [row for row in offered.mix if row.tobytes() not in self._mixes]
        for row in new:
            self._mixes.setdefault(row.tobytes(), len(self._mixes))
        if new:
            table = np.stack([np.frombuffer(row) for row in self._mixes])
            self.policy.mix = torch.tensor(table, dtype=torch.float32, device=self.device)
        return [self._mixes[row.tobytes()] for row in offered.mix]


def _start(model: ChoiceModel) -> Logits:
    """At a temperature of one standard deviation of outcomes, or of the options' means where that is more."""
    scores = model.outcomes.parts[0]
    temperature = max(scores.noise**0.5, float(scores.mean.std()), 1e-6)
    return start(model.reader.width, len(model.table.options), temperature)


def _drawn(logged: Logged, weight: Tensor, rng: Generator) -> Logged:
    """Trajectories as often as they weigh."""
    drawn = torch.multinomial(weight, len(weight), replacement=True, generator=rng)
    return logged.only(drawn.sort().values.to(logged.reward.device))
