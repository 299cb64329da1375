"""Workflow planning as a Problem: its worlds, planners and baselines over one set of scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from etude.contracts.errors import CheckpointError, ConfigError
from etude.problems.base import Actor
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.encode import KnownNames, PolicyContext, TextReader, read_context
from etude.problems.workflow.experts import baselines
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlannerConfig, PlanPolicy, make_plan_policy
from etude.problems.workflow.office.scenarios import Scenarios
from etude.problems.workflow.office.world import Tables, WorkflowConfig, WorkflowWorld
from etude.text.ngrams import COLUMNS


@dataclass(frozen=True, kw_only=True)
class PretrainedPlanner:
    """The weights, names and memory of a planner from an earlier training."""

    known: KnownNames
    weights: Mapping[str, Tensor]
    memory: Memory
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkflowProblem:
    """Planning in the simulated office.

    Without a `pretrained` planner the policy is untrained, its memory is empty and it knows all names but those of new
    entries. Scenarios are `given` or generated. The last ones are held out in two parts: to `choose` a policy by, and
    to `measure` it on.
    """

    reader: TextReader
    config: WorkflowConfig = field(default_factory=WorkflowConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    pretrained: PretrainedPlanner | None = None
    given: Scenarios | None = None
    part: Literal["learn", "choose", "measure"] = "learn"
    name: str = "workflow"

    metric_names: ClassVar = {"success": "success_rate", "cost_usd": "avg_cost", "latency_ms": "avg_latency"}
    """Metrics of evaluations that the source document names."""

    @property
    def size(self) -> Mapping[str, int]:
        return {}

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> WorkflowWorld:
        """`phases` has no effect: episodes differ in length, so environments do not stay synchronised."""
        return WorkflowWorld(self.config, n=n, device=device, scenarios=self.scenarios, rows=self.rows)

    @property
    def rows(self) -> range:
        """The scenarios of this part."""
        held_out, count = self.config.held_out, len(self.scenarios)
        if 2 * held_out >= count:
            raise ConfigError(
                f"office.held_out is {held_out}, of {count} scenarios: twice as many are held out, nothing is left; "
                "lower it"
            )
        ends = (0, count - 2 * held_out, count - held_out, count) if held_out else (0, count, count, count)
        place = ("learn", "choose", "measure").index(self.part) if held_out else 0
        return range(ends[place], ends[place + 1])

    def policy(self) -> PlanPolicy:
        """A policy with the pretrained weights, if any, and without dropout: PPO's probability ratios need that."""
        policy = make_plan_policy(self.planner.without_dropout(), self.known, self.reader, self.config.limits)
        if self.pretrained is not None:
            try:
                policy.load_state_dict(self.pretrained.weights)
            except RuntimeError as error:
                raise CheckpointError(
                    "the pretrained planner does not fit: it needs the same encoder, network and limits.max_nodes "
                    f"({error!s:.300})"
                ) from error
        return policy.with_context(self.policy_context)

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
    def known(self) -> KnownNames:
        return known_names(self.scenarios) if self.pretrained is None else self.pretrained.known

    @cached_property
    def policy_context(self) -> PolicyContext:
        """The context for these scenarios, with their instructions encoded once."""
        types, scenarios = len(self.known.task_types), self.scenarios
        pretrained, limits = self.pretrained, self.config.limits
        memory = empty_memory(types, self.reader.encoder.width) if pretrained is None else pretrained.memory
        return read_context(self.reader, scenarios.catalogue, limits, self.known, memory, scenarios.instructions)


def known_names(scenarios: Scenarios) -> KnownNames:
    """The names in the catalogue without new entries."""
    return KnownNames.of(without_new_entries(scenarios))


def without_new_entries(scenarios: Scenarios) -> Catalogue:
    """The catalogue before its new entries were added."""
    catalogue, new = scenarios.catalogue, scenarios.new_entries
    return Catalogue(
        task_types=tuple(t for t in catalogue.task_types if t.name not in new),
        workers=tuple(w for w in catalogue.workers if w.name not in new),
    )


def empty_memory(types: int, width: int) -> Memory:
    """A memory without past queries: all its votes are 0."""
    return Memory(
        types=types,
        pairs=torch.empty((0, 2), dtype=torch.long),
        links=torch.empty((0, 2), dtype=torch.long),
        grams=csr_array((0, COLUMNS), dtype=np.float32),
        idf=np.ones(COLUMNS, np.float32),
        vectors=np.empty((0, width), np.float32),
        weights=np.empty((0, types), np.float32),
    )
