"""Allocation as a Problem: its worlds, networks and baselines from one configuration; how it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from etude.contracts.errors import ConfigError
from etude.learning.practise import practise
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Run
from etude.learning.run_folder import RunFolder
from etude.problems.allocation import SPEC
from etude.problems.allocation.baselines import baselines
from etude.problems.allocation.network import EntityPolicy, MLPPolicy, NetworkConfig
from etude.problems.allocation.world import AllocationConfig, AllocationWorld, make_world
from etude.problems.base import Actor


@dataclass(frozen=True, kw_only=True)
class AllocationSettings:
    """The sections of etude.yaml that allocation reads."""

    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)


@dataclass(frozen=True, kw_only=True)
class AllocationProblem:
    config: AllocationConfig = field(default_factory=AllocationConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    name: str = "allocation"

    def __post_init__(self) -> None:
        if self.config.variant == "matched" and self.network.kind == "mlp":
            raise ConfigError(
                "network.kind 'mlp' cannot point at tasks: use 'entity' (or 'auto') for variant 'matched'"
            )
        if self._kind == "entity" and self.network.distribution != "mixed":
            raise ConfigError(
                f"network.distribution {self.network.distribution!r} needs network.kind 'mlp'; "
                "the entity network uses 'mixed'"
            )

    @property
    def size(self) -> Mapping[str, int]:
        return {"agents": self.config.agents, "slots": self.config.slots}

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> AllocationWorld:
        return make_world(self.config, n=n, device=device, phases=phases)

    def policy(self) -> MLPPolicy | EntityPolicy:
        return (MLPPolicy if self._kind == "mlp" else EntityPolicy)(self.config, self.network)

    def baselines(self) -> Mapping[str, Actor]:
        return baselines(self.config)

    def resized(self, size: Mapping[str, int]) -> AllocationProblem:
        if self._kind == "mlp" and dict(size) != dict(self.size):
            raise ConfigError(
                "a curriculum changes the number of agents and slots, which network.kind 'mlp' cannot follow: "
                "set network.kind to 'entity'"
            )
        agents, slots = size["agents"], size["slots"]
        return replace(self, config=replace(self.config, agents=agents, slots=slots))

    @property
    def _kind(self) -> str:
        automatic = "mlp" if self.config.variant == "document" else "entity"
        return automatic if self.network.kind == "auto" else self.network.kind


def make_problem(own: AllocationSettings) -> AllocationProblem:
    return AllocationProblem(config=own.allocation, network=own.network)


def practise_allocation(request: LearnRequest) -> Run:
    settings = request.settings
    problem = make_problem(settings.own(AllocationSettings))
    size = problem.config
    about = About(
        problem=SPEC.name,
        method=request.method,
        title=f"{SPEC.name} {size.variant} {size.agents}×{size.slots}",
        unit="steps",
        budget=f"{settings.run.max_steps:,}",
        score="return",
        settings=settings.sections(*SPEC.sections, "ppo", "run", "health", "curriculum"),
        policy_sections=SPEC.sections,
    )
    return practise(about, problem, settings.practice(), RunFolder(request.out))
