"""Policies for allocation: observation in, a decision for every agent out.

`MLPPolicy` reads everything as one vector of fixed size, as in the source document. `EntityPolicy` reads agents and
tasks as two sets, so its weights fit any number of either, and points at the task an agent takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt, MinLen
from torch import Generator, Tensor, nn

from etude.problems.allocation.matched import MAX_DEADLINE_STEPS, WORK
from etude.problems.allocation.world import COLUMNS, TASK_TYPES, AllocationConfig
from etude.problems.base import Action, Evaluation, Obs, Sampled
from etude.problems.distributions import Beta, Distribution, Gaussian, Levels, Threshold, finite, gumbel, masked

DISTRIBUTIONS: dict[str, tuple[Distribution, Distribution, Distribution]] = {
    "mixed": (Threshold(), Levels(), Threshold()),
    "beta": (Beta(), Beta(), Beta()),
    "gaussian": (Gaussian(), Gaussian(), Gaussian()),
}
"""Distributions of accept, allocate and collaborate."""


FITS = 3
"""Number of features of how well a task fits an agent."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The policy and value networks."""

    kind: Literal["auto", "mlp", "entity"] = "auto"
    """`mlp` for one size of problem, `entity` for any; `auto` takes mlp for document, entity for matched."""
    hidden: Annotated[tuple[Annotated[int, Gt(0)], ...], MinLen(1)] = (64, 64)
    """Widths of the hidden layers of each trunk; the document has (256, 256, 128)."""
    shared: bool = False
    """One trunk for policy and value instead of two; `entity` embeds agents and tasks once for both anyway."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Non-linearity after each hidden layer; the document has relu."""
    norm: Literal["none", "layer", "batch"] = "none"
    """Normalisation before each non-linearity."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Dropout rate of hidden units while learning."""
    init: Literal["orthogonal", "xavier"] = "orthogonal"
    """Initialisation of the weights; either way the policy starts near uniform."""
    distribution: Literal["mixed", "beta", "gaussian"] = "mixed"
    """Distribution of actions; `mixed` is yes/no for thresholds and levels for proportions."""
    normalise: bool = True
    """Scale observations by their running mean and deviation."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the matrix products; weights, normalisation and losses stay in float32."""


class MLPPolicy(nn.Module):
    """Separate (or one shared) fully connected trunks over the flattened observation."""

    def __init__(self, problem: AllocationConfig, config: NetworkConfig) -> None:
        super().__init__()
        agents, slots = problem.agents, problem.slots
        self.agents, self.is_half = agents, config.precision == "bfloat16"
        self.columns = DISTRIBUTIONS[config.distribution]
        self.sizes = [column.size for column in self.columns]
        width = 7 * agents + 5 * slots + agents**2
        self.scale = RunningScale(width) if config.normalise else None
        self.actor = trunk(width, config)
        self.critic = None if config.shared else trunk(width, config)
        self.policy_head = linear(config.hidden[-1], agents * sum(self.sizes), config, gain=0.01)
        self.value_head = linear(config.hidden[-1], 1, config, gain=1.0)

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        with self._precision(obs):
            raw = self.policy_head(self.actor(self._flat(obs)))
        return self._pick(self._split(raw), greedy, generator)

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        parts, value = self._forward(obs)
        action = self._pick(parts, greedy, generator)
        return Sampled(action=action, log_prob=self._log_prob(parts, action), value=value)

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        parts, value = self._forward(obs)
        entropy = sum(column.entropy(part).sum(1) for column, part in zip(self.columns, parts, strict=True))
        assert isinstance(entropy, Tensor)
        return Evaluation(log_prob=self._log_prob(parts, action), entropy=entropy, value=value)

    def value(self, obs: Obs) -> Tensor:
        return self._forward(obs)[1]

    def observed(self, obs: Obs) -> None:
        if self.scale is not None:
            self.scale.update(flatten(obs))

    def _flat(self, obs: Obs) -> Tensor:
        x = flatten(obs)
        return x if self.scale is None else self.scale(x)

    def _precision(self, obs: Obs) -> torch.autocast:
        return torch.autocast(obs["agents"].device.type, torch.bfloat16, enabled=self.is_half)

    def _forward(self, obs: Obs) -> tuple[tuple[Tensor, ...], Tensor]:
        """Raw outputs by column (n, agents, size), value (n,)."""
        x = self._flat(obs)
        with self._precision(obs):
            features = self.actor(x)
            raw = self.policy_head(features)
            value = self.value_head(features if self.critic is None else self.critic(x))
        return self._split(raw), value.float()[:, 0]

    def _split(self, raw: Tensor) -> tuple[Tensor, ...]:
        columns: tuple[Tensor, ...] = raw.float().view(len(raw), self.agents, -1).split(self.sizes, -1)
        return columns

    def _pick(self, parts: tuple[Tensor, ...], greedy: bool, generator: Generator | None) -> Action:
        return {
            name: column.mode(part) if greedy else column.sample(part, generator)
            for name, column, part in zip(COLUMNS, self.columns, parts, strict=True)
        }

    def _log_prob(self, parts: tuple[Tensor, ...], action: Action) -> Tensor:
        total = sum(
            column.log_prob(part, action[name]).sum(1)
            for name, column, part in zip(COLUMNS, self.columns, parts, strict=True)
        )
        assert isinstance(total, Tensor)
        return total


class EntityPolicy(nn.Module):
    """Agents and tasks are sets: each is embedded separately, pooling adds the others, and agents point at tasks.

    In `matched`, agents choose in index order and a chosen slot is masked for later agents, so no two take the same.
    """

    def __init__(self, problem: AllocationConfig, config: NetworkConfig) -> None:
        super().__init__()
        self.points, self.is_half = problem.variant == "matched", config.precision == "bfloat16"
        agent_width, task_width = (10, 8) if self.points else (7, 5)
        d = config.hidden[-1]
        self.agent_scale = RunningScale(agent_width + 2) if config.normalise else None
        self.task_scale = RunningScale(task_width) if config.normalise else None
        self.agent_trunk, self.task_trunk = trunk(agent_width + 2, config), trunk(task_width, config)
        self.mix = trunk(4 * d, config)
        self.query = linear(d, d, config, gain=1.0)
        self.key = linear(d, d, config, gain=0.1)
        self.urgency = linear(d, 1, config, gain=0.01)
        self.fit = linear(d, FITS, config, gain=0.01)  # the weights an agent gives to the fit features
        self.allocate, self.collaborate = Levels(), Threshold()
        self.sizes = [1, self.allocate.size, self.collaborate.size]  # accept: to wait, or a threshold in `document`
        self.policy_head = linear(d, sum(self.sizes), config, gain=0.01)
        self.value_trunk = trunk(4 * d, config)
        self.value_head = linear(d, 1, config, gain=1.0)

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        return self._pick(*self._policy(obs, *self._embed(obs)), greedy, generator)

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        logits, parts, value = self._forward(obs)
        action = self._pick(logits, parts, greedy, generator)
        log_prob, _ = self._judge(logits, parts, action)
        return Sampled(action=action, log_prob=log_prob, value=value)

    def _pick(self, logits: Tensor, parts: tuple[Tensor, ...], greedy: bool, generator: Generator | None) -> Action:
        if self.points:
            accept = _best_in_turn(logits) if greedy else _choose_in_turn(logits + gumbel(logits, generator))
        else:
            accept = Threshold().mode(parts[0]) if greedy else Threshold().sample(parts[0], generator)
        action = {"accept": accept}
        for name, column, part in (("allocate", self.allocate, parts[1]), ("collaborate", self.collaborate, parts[2])):
            action[name] = column.mode(part) if greedy else column.sample(part, generator)
        return action

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        logits, parts, value = self._forward(obs)
        log_prob, entropy = self._judge(logits, parts, action)
        return Evaluation(log_prob=log_prob, entropy=entropy, value=value)

    def value(self, obs: Obs) -> Tensor:
        return self._value(self._embed(obs)[0])

    def observed(self, obs: Obs) -> None:
        if self.agent_scale is not None and self.task_scale is not None:
            agents, tasks = self._read(obs)
            self.agent_scale.update(agents.flatten(0, 1))
            self.task_scale.update(tasks[tasks[..., 0] > 0])

    def _forward(self, obs: Obs) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """Pointer logits (n, agents, slots + 1), raw outputs by column (n, agents, size), value (n, agents)."""
        each, tasks = self._embed(obs)
        return *self._policy(obs, each, tasks), self._value(each)

    def _embed(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Agents with the pooled others and the pooled queue (n, agents, 4 d), and tasks (n, slots, d)."""
        agents, tasks = self._read(obs)
        there = (tasks[..., :1] > 0).float()  # (n, slots, 1)
        if self.agent_scale is not None and self.task_scale is not None:
            agents, tasks = self.agent_scale(agents), self.task_scale(tasks)
        with self._precision(obs):
            a = self.agent_trunk(agents)  # (n, agents, d)
            t = self.task_trunk(tasks) * there  # (n, slots, d)
            crowd = t.sum(1) / 8  # the amount of waiting work, by kind
            typical = t.sum(1) / there.sum(1).clamp(min=1)
            context = torch.cat([a.mean(1), typical, crowd], 1)[:, None]  # (n, 1, 3 d)
            return torch.cat([a, context.expand(-1, a.shape[1], -1)], 2), t

    def _policy(self, obs: Obs, each: Tensor, tasks: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        with self._precision(obs):
            mixed = self.mix(each)  # (n, agents, d)
            parts = self.policy_head(mixed).float().split(self.sizes, -1)
            if not self.points:
                return parts[0], parts
            scores = self.query(mixed) @ self.key(tasks).mT / tasks.shape[-1] ** 0.5 + self.urgency(tasks).mT
            scores = scores + (_fit(obs) * self.fit(mixed)[:, :, None]).sum(3)  # (n, agents, slots)
        scores = masked(scores.float(), obs["legal"][..., :-1])
        # Relative to all slots together: whether to take a task and which one are separate choices.
        wait = finite(parts[0]) + scores.logsumexp(2, keepdim=True).clamp(min=-10)
        return torch.cat([scores, wait], 2), parts

    def _value(self, each: Tensor) -> Tensor:
        with torch.autocast(each.device.type, torch.bfloat16, enabled=self.is_half):
            value: Tensor = self.value_head(self.value_trunk(each))
        return value.float()[..., 0]

    def _precision(self, obs: Obs) -> torch.autocast:
        return torch.autocast(obs["agents"].device.type, torch.bfloat16, enabled=self.is_half)

    def _read(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Features of agents, with mean and maximum of their matrix rows, and of tasks, existence first."""
        matrix = obs["matrix"]
        rows = torch.stack([matrix.mean(2), matrix.amax(2)], 2)
        tasks = obs["tasks"] if self.points else obs["tasks"][..., [3, 0, 1, 2, 4]]
        return torch.cat([obs["agents"], rows], 2), tasks

    def _judge(self, logits: Tensor, parts: tuple[Tensor, ...], action: Action) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (n, agents) of each agent's part."""
        if self.points:
            log_p = logits.masked_fill(_taken_before(action["accept"], logits.shape[2]), -torch.inf).log_softmax(2)
            log_prob = log_p.gather(2, action["accept"][..., None])[..., 0]
            entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(2)
        else:
            log_prob = Threshold().log_prob(parts[0], action["accept"])
            entropy = Threshold().entropy(parts[0])
        for name, column, part in (("allocate", self.allocate, parts[1]), ("collaborate", self.collaborate, parts[2])):
            log_prob = log_prob + column.log_prob(part, action[name])
            entropy = entropy + column.entropy(part)
        return log_prob, entropy


def _fit(obs: Obs) -> Tensor:
    """(n, agents, slots, FITS): how well each task fits each agent: expertise, expertise·priority, spare time."""
    agents, tasks = obs["agents"], obs["tasks"]
    types = len(TASK_TYPES)
    match = agents[..., -types:] @ tasks[..., -types:].mT  # (n, agents, slots)
    work, priority, left = tasks[:, None, :, 1], tasks[:, None, :, 2], tasks[:, None, :, 3]
    pace = (match * agents[..., :1]).clamp(min=0.05)
    spare = left - work / pace * (WORK / MAX_DEADLINE_STEPS)  # in units of LONGEST steps
    return torch.stack([match, match * priority, spare.clamp(-1, 1)], 3)


def _choose_in_turn(scores: Tensor) -> Tensor:
    """Agents take their best free slot in index order: (n, agents, slots + 1) to (n, agents). All may wait."""
    n, agents, choices = scores.shape
    chosen = torch.empty((n, agents), dtype=torch.long, device=scores.device)
    gone = torch.zeros((n, choices), device=scores.device)
    for i in range(agents):
        chosen[:, i] = (scores[:, i] + gone).argmax(1)
        gone.scatter_(1, chosen[:, i : i + 1], -torch.inf)
        gone[:, -1] = 0
    return chosen


def _best_in_turn(logits: Tensor) -> Tensor:
    """As `_choose_in_turn` for the most probable choice: first whether to take a task, then which slot."""
    chosen = torch.empty(logits.shape[:2], dtype=torch.long, device=logits.device)
    left, wait = logits[..., :-1].clone(), logits[..., -1]
    for i in range(logits.shape[1]):
        takes = left[:, i].logsumexp(1) > wait[:, i]
        slot = left[:, i].argmax(1)
        chosen[:, i] = torch.where(takes, slot, left.shape[2])
        gone = torch.where(takes, -torch.inf, 0.0)[:, None, None].expand(-1, left.shape[1], 1)
        left = left.scatter_add(2, slot[:, None, None].expand(-1, left.shape[1], 1), gone)
    return chosen


def _taken_before(accept: Tensor, choices: int) -> Tensor:
    """Slots that agents with a lower index took; (n, agents) to bool (n, agents, slots + 1)."""
    taken = torch.zeros((*accept.shape, choices), device=accept.device).scatter_(2, accept[..., None], 1.0)
    taken[..., -1] = 0
    return (taken.cumsum(1) - taken) > 0


class RunningScale(nn.Module):
    """Normalises by the running mean and deviation of all observations. They are buffers, saved with the weights."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Chan's parallel update with a batch (n, width)."""
        if len(x) == 0:
            return
        var, mean = torch.var_mean(x, 0, correction=0)
        total = self.count + len(x)
        delta, share = mean - self.mean, len(x) / total
        self.var.copy_(self.var * (1 - share) + var * share + delta**2 * share * (1 - share))
        self.mean.add_(delta * share)
        self.count.copy_(total)

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * (self.var + 1e-6).rsqrt()).clamp(-10, 10)


def flatten(obs: Obs) -> Tensor:
    """The document's observation vector (n, 7·agents + 5·slots + agents²)."""
    return torch.cat([obs["agents"].flatten(1), obs["tasks"].flatten(1), obs["matrix"].flatten(1)], 1)


def trunk(width: int, config: NetworkConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for out in config.hidden:
        layers.append(linear(width, out, config, gain=2**0.5))
        if config.norm != "none":
            layers.append(nn.LayerNorm(out) if config.norm == "layer" else BatchNorm(out))
        layers.append(nn.Tanh() if config.activation == "tanh" else nn.ReLU())
        if config.dropout:
            layers.append(nn.Dropout(config.dropout))
        width = out
    return nn.Sequential(*layers)


class BatchNorm(nn.BatchNorm1d):
    """Over all axes but the last, so that agents and tasks count as samples."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).view_as(x)


def linear(width: int, out: int, config: NetworkConfig, *, gain: float) -> nn.Linear:
    layer = nn.Linear(width, out)
    init = nn.init.orthogonal_ if config.init == "orthogonal" else nn.init.xavier_uniform_
    init(layer.weight, gain=gain)
    nn.init.zeros_(layer.bias)
    return layer
