"""The world: tickets of three kinds, three who may answer, each with a skill and a price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Generator, Tensor
from torch.nn import functional as F

from etude.problems.base import Action, Actor, Obs, Transition
from etude.problems.distributions import sample_categorical

KINDS, WHO = ("password", "billing", "outage"), ("bot", "expert", "person")
SKILL = torch.tensor([[0.9, 0.9, 0.95], [0.3, 0.8, 0.9], [0.05, 0.4, 0.9]])  # (kinds, who)
PRICE = torch.tensor([0.02, 0.15, 0.4])  # (who,)
ANNOYANCE = 0.25
"""What an answer that does not solve the ticket costs besides its price."""


@dataclass(frozen=True, kw_only=True)
class HelpdeskConfig:
    """How hard tickets are."""

    difficulty: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of its skill that everybody loses."""


@dataclass(frozen=True, kw_only=True)
class HelpdeskSettings:
    helpdesk: HelpdeskConfig = field(default_factory=HelpdeskConfig)


def make_problem(own: HelpdeskSettings) -> Helpdesk:
    return Helpdesk(config=own.helpdesk)


@dataclass(frozen=True, kw_only=True)
class Helpdesk:
    """The Problem: its worlds, networks and baselines."""

    config: HelpdeskConfig = field(default_factory=HelpdeskConfig)
    name: str = "helpdesk"

    @property
    def size(self) -> Mapping[str, int]:
        return {}

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> HelpdeskWorld:
        return HelpdeskWorld(self.config, n, device)

    def policy(self) -> torch.nn.Module:
        from helpdesk.policy import HelpdeskPolicy

        return HelpdeskPolicy()

    def baselines(self) -> Mapping[str, Actor]:
        return {"random": random_choice, "cheapest first": cheapest_first, "knows the table": knows_the_table}

    def resized(self, size: Mapping[str, int]) -> Helpdesk:
        return self


class HelpdeskWorld:
    """An episode is a ticket: it ends when it is solved, or when everybody has tried."""

    def __init__(self, config: HelpdeskConfig, n: int, device: torch.device | str) -> None:
        self.n, self.device = n, torch.device(device)
        self.skill, self.price = SKILL.to(self.device) * (1 - config.difficulty), PRICE.to(self.device)
        self.generator = Generator(self.device)
        self.kind = torch.zeros(n, dtype=torch.long, device=self.device)
        self.tried = torch.zeros((n, len(WHO)), dtype=torch.bool, device=self.device)
        self.earned = torch.zeros(n, device=self.device)

    def reset(self, seed: int) -> Obs:
        self.generator.manual_seed(seed)
        self._open(torch.ones(self.n, dtype=torch.bool, device=self.device))
        return self.observe()

    def step(self, action: Action) -> Transition:
        who = action["who"]
        solved = self._uniform(self.n) < self.skill[self.kind, who]
        reward = solved.float() - self.price[who] - ANNOYANCE * ~solved
        self.earned = self.earned + reward
        self.tried = self.tried.scatter(1, who[:, None], True)
        over = solved | self.tried.all(1)
        final, metrics = self.observe(), {"return": self.earned.clone(), "solved": solved.float(), "whole": over}
        self._open(over)
        return Transition(
            obs=self.observe(),
            reward=reward,
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=final if bool(over.any()) else None,
            metrics=metrics,
        )

    def observe(self) -> Obs:
        kind = F.one_hot(self.kind, len(KINDS)).float()
        return {"kind": kind, "tried": self.tried.float(), "legal": ~self.tried}

    def state_dict(self) -> dict[str, Tensor]:
        state = {"kind": self.kind, "tried": self.tried, "earned": self.earned}
        return state | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.kind, self.tried, self.earned = (state[name].to(self.device) for name in ("kind", "tried", "earned"))
        self.generator.set_state(state["generator"].cpu())

    def _open(self, where: Tensor) -> None:
        """New tickets where the last ones are over."""
        kind = (self._uniform(self.n) * len(KINDS)).long()
        self.kind = torch.where(where, kind, self.kind)
        self.tried = self.tried & ~where[:, None]
        self.earned = torch.where(where, 0.0, self.earned)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)


def random_choice(obs: Obs, generator: Generator) -> Action:
    scores = torch.zeros(obs["legal"].shape, device=obs["legal"].device)
    return {"who": sample_categorical(scores.masked_fill(~obs["legal"], -torch.inf), generator)}


def cheapest_first(obs: Obs, generator: Generator) -> Action:
    return {"who": (-PRICE.to(obs["kind"].device)).masked_fill(~obs["legal"], -torch.inf).argmax(1)}


def knows_the_table(obs: Obs, generator: Generator) -> Action:
    """The best next answer of one who knows every skill."""
    skill, price = obs["kind"] @ SKILL.to(obs["kind"].device), PRICE.to(obs["kind"].device)
    worth = skill - price - ANNOYANCE * (1 - skill)
    return {"who": worth.masked_fill(~obs["legal"], -torch.inf).argmax(1)}
