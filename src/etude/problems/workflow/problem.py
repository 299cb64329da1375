"""Workflow as a Problem: its worlds, planners and baselines over one set of scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from etude.contracts.errors import CheckpointError, ConfigError
from etude.problems.base import Actor
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.encode import Known, Surroundings, make_library, surround
from etude.problems.workflow.experts import baselines
from etude.problems.workflow.lesson import Reader
from etude.problems.workflow.likeness import Likeness
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlannerConfig, PlanPolicy
from etude.problems.workflow.scenarios import Scenarios
from etude.problems.workflow.world import Tables, WorkflowConfig, WorkflowWorld
from etude.text.ngrams import COLUMNS


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a planner brings along from an earlier training."""

    known: Known
    weights: Mapping[str, Tensor]
    memory: Memory
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkflowProblem:
    """Without a `beginning` a planner is untrained, remembers nothing and knows the names of all that is not new.

    Scenarios are `given` or generated. The last of them are kept aside in two parts: to `choose` a policy by, and to
    `measure` it on.
    """

    reader: Reader
    config: WorkflowConfig = field(default_factory=WorkflowConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    beginning: Beginning | None = None
    given: Scenarios | None = None
    part: Literal["learn", "choose", "measure"] = "learn"
    name: str = "workflow"

    @property
    def size(self) -> Mapping[str, int]:
        return {}

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> WorkflowWorld:
        """Episodes differ in length, so environments fall out of step by themselves, whatever the `phases`."""
        return WorkflowWorld(self.config, n=n, device=device, scenarios=self.scenarios, rows=self.rows)

    @property
    def rows(self) -> range:
        """Which scenarios this part has."""
        aside, count = self.config.held_out, len(self.scenarios)
        if 2 * aside >= count:
            raise ConfigError(
                f"office.held_out is {aside}, of {count} scenarios: twice as many are kept aside, nothing is left; "
                "lower it"
            )
        ends = (0, count - 2 * aside, count - aside, count) if aside else (0, count, count, count)
        place = ("learn", "choose", "measure").index(self.part) if aside else 0
        return range(ends[place], ends[place + 1])

    def policy(self) -> PlanPolicy:
        """Its weights are those it begins with, if any. Nothing is dropped: PPO compares the same network's odds."""
        config = self.planner.undisturbed()
        policy = PlanPolicy(
            config,
            text_width=self.reader.encoder.width,
            known_types=len(self.known.task_types),
            known_workers=len(self.known.workers),
            nodes=self.config.limits.max_nodes,
            reader=self.reader.network and self.reader.network(config.dropout),
        )
        if self.beginning is not None:
            try:
                policy.load_state_dict(self.beginning.weights)
            except RuntimeError as error:
                raise CheckpointError(
                    "the planner to begin with does not fit: it needs the same encoder, network and limits.max_nodes "
                    f"({error!s:.300})"
                ) from error
        return policy.within(self.surroundings)

    def baselines(self) -> Mapping[str, Actor]:
        return baselines(self.config, scenarios=self.scenarios)

    def resized(self, size: Mapping[str, int]) -> WorkflowProblem:
        if size:
            raise ConfigError(f"a curriculum cannot change the size of workflow problems: {sorted(size)} unknown")
        return self

    @cached_property
    def scenarios(self) -> Scenarios:
        return self.given or Tables(self.config, None, "cpu").scenarios

    @cached_property
    def known(self) -> Known:
        return names(self.scenarios) if self.beginning is None else self.beginning.known

    @cached_property
    def surroundings(self) -> Surroundings:
        """The scenarios' instructions, read once. A planner trained on others decides about these `within` them."""
        encoder, types = self.reader.encoder, len(self.known.task_types)
        memory = no_memory(types, encoder.width) if self.beginning is None else self.beginning.memory
        votes = memory.votes(encoder, self.scenarios.instructions)
        alike = Likeness(encoder, self.scenarios.catalogue.task_types)(self.scenarios.instructions)
        library = make_library(encoder, self.scenarios.instructions, votes, alike, self.reader.tokenise)
        return surround(encoder, self.scenarios.catalogue, self.config.limits, self.known, memory, library)


def names(scenarios: Scenarios) -> Known:
    """All of the catalogue but newcomers."""
    return Known.of(without_newcomers(scenarios))


def without_newcomers(scenarios: Scenarios) -> Catalogue:
    """The catalogue before anything new has come."""
    catalogue, new = scenarios.catalogue, scenarios.newcomers
    return Catalogue(
        task_types=tuple(t for t in catalogue.task_types if t.name not in new),
        workers=tuple(w for w in catalogue.workers if w.name not in new),
    )


def no_memory(types: int, width: int) -> Memory:
    """A memory without past queries: it votes for nothing."""
    return Memory(
        types=types,
        pairs=torch.empty((0, 2), dtype=torch.long),
        links=torch.empty((0, 2), dtype=torch.long),
        grams=csr_array((0, COLUMNS), dtype=np.float32),
        idf=np.ones(COLUMNS, np.float32),
        vectors=np.empty((0, width), np.float32),
        weights=np.empty((0, types), np.float32),
    )
