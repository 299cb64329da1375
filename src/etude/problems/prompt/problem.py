"""The problem: worlds, networks and baselines from one configuration, and practice in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from etude.problems.base import Actor
from etude.problems.prompt.baselines import baselines
from etude.problems.prompt.network import PromptPolicy
from etude.problems.prompt.reader import PromptReader, Rules
from etude.problems.prompt.settings import PromptConfig, PromptNetworkConfig, PromptSettings
from etude.problems.prompt.states import States
from etude.problems.prompt.world import PromptWorld


@dataclass(frozen=True, kw_only=True)
class PromptProblem:
    config: PromptConfig = field(default_factory=PromptConfig)
    network: PromptNetworkConfig = field(default_factory=PromptNetworkConfig)
    states: States | None = None
    noise: float = 0.0
    name: str = "prompt"

    @property
    def size(self) -> Mapping[str, int]:
        return {}

    @cached_property
    def reader(self) -> PromptReader:
        return PromptReader(
            self.config.encoder,
            Rules(max_mutations=self.config.max_mutations),
            embedding_only=self.config.inputs == "embedding",
        )

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> PromptWorld:
        assert self.states is not None
        return PromptWorld(self.states, n=n, device=device, noise=self.noise)

    def policy(self) -> PromptPolicy:
        made = PromptPolicy(self.reader.width, self.network, embedding_only=self.reader.embedding_only)
        if self.states is not None:
            made.reading.fit(self.states.features, self.states.vectors[1:])
        return made

    def baselines(self) -> Mapping[str, Actor]:
        return baselines()

    def resized(self, size: Mapping[str, int]) -> PromptProblem:
        return self


def make_problem(own: PromptSettings) -> PromptProblem:
    return PromptProblem(config=own.prompt, network=own.prompt_network)
