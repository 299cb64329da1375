"""The sections of etude.yaml that workflows read; `training` has the source document's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from etude.problems.workflow.imitation import ImitationConfig
from etude.problems.workflow.network import PlannerConfig
from etude.problems.workflow.office.world import OfficeConfig
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.practice import OutcomesConfig
from etude.problems.workflow.worker_model import WorkerModelConfig


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The two phases in which a planner learns."""

    phase1_supervised: ImitationConfig = field(default_factory=ImitationConfig)
    phase2_rl: OutcomesConfig = field(default_factory=OutcomesConfig)


@dataclass(frozen=True, kw_only=True)
class WorkflowSettings:
    office: OfficeConfig = field(default_factory=OfficeConfig)
    limits: Limits = field(default_factory=Limits)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    worker_model: WorkerModelConfig = field(default_factory=WorkerModelConfig)
    training: TrainingSettings = field(default_factory=TrainingSettings)


Tree = TypeVar("Tree")


def with_values(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """Settings with some of them changed, as a preset names them."""
    changed = {
        name: with_values(getattr(tree, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return replace(tree, **changed)  # type: ignore[type-var]
