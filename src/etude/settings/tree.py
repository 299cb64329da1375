"""Everything that can be set, in one tree; the parts of it that need no torch are read without it.

Later sources win: defaults, the variant's defaults, a preset, etude.yaml, ETUDE_… variables, command-line flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from etude.contracts.errors import ConfigError
from etude.experience.config import ExperienceConfig
from etude.learning.from_logs import FromLogsConfig
from etude.learning.health import HealthConfig
from etude.learning.imitation import ImitationConfig
from etude.learning.outcomes import OutcomesConfig
from etude.learning.ppo import DOCUMENT, PPOConfig
from etude.learning.train import RunConfig, Stage
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.world import AllocationConfig
from etude.problems.workflow.network import PlannerConfig
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.world import OfficeConfig
from etude.settings.sources import Assignment, Resolved, Tree

OF_THE_RUN = {"problem", "phase", "data", "algorithm", "dataset"}
"""What config.json keeps beside settings: what a run is about."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "document": {"ppo": DOCUMENT, "network": {"hidden": [256, 256, 128], "activation": "relu"}},
    "wide": {
        "ppo": {"envs": 1024, "epochs": 4, "minibatch": 8192, "lr": 5e-3},
        "run": {"max_steps": 3_000_000, "eval_every": 250_000, "checkpoint_every": 500_000},
    },
    "office": {
        "limits": {"max_nodes": 10, "max_corrections": 3},
        "planner": {"width": 64, "layers": 2, "dropout": 0.0, "word_dropout": 0.0},
        "training": {
            "phase1_supervised": {
                "batch_size": 64,
                "learning_rate": 3e-4,
                "num_epochs": 12,
                "validation_share": 0.05,
                "synthetic_augmentations": 0,
                "final_epochs": 2,
            }
        },
    },
}
"""Named groups of settings; `document` has the source document's hyper-parameters, `wide` large batches for a GPU,
`office` what suits the many plain examples of the simulated office."""

VARIANT_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "document": {},
    "matched": {
        "allocation": {"agents": 16, "slots": 64},
        "ppo": {"envs": 128, "epochs": 2, "gamma": 0.95, "entropy_coef": 0.001},
        "run": {"max_steps": 450_000, "eval_every": 50_000},
    },
}
"""Defaults that depend on allocation.variant."""

FLAGS = {
    "--variant": "allocation.variant",
    "--agents": "allocation.agents",
    "--slots": "allocation.slots",
    "--seed": "run.seed",
    "--target-return": "run.target_return",
    "--max-steps": "run.max_steps",
    "--device": "run.device",
    "--tracker": "run.trackers",
    "--encoder": "planner.encoder",
    "--epochs": "training.phase1_supervised.num_epochs",
    "--batch-size": "training.phase1_supervised.batch_size",
    "--episodes": "training.phase2_rl.num_episodes",
    "--shift": "office.shift",
}
"""Command-line flags with a name of their own; `--set key=value` reaches the rest."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The two phases in which a planner learns, under the source document's names."""

    phase1_supervised: ImitationConfig = dataclass_field(default_factory=ImitationConfig)
    phase2_rl: OutcomesConfig = dataclass_field(default_factory=OutcomesConfig)


class Settings(BaseModel):
    """Everything that can be set. A section is the config dataclass of the component it belongs to."""

    # Strict: "3" or true is no integer. Read as JSON, where an integer may be a number and a list a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    allocation: AllocationConfig = AllocationConfig()
    network: NetworkConfig = NetworkConfig()
    office: OfficeConfig = OfficeConfig()
    limits: Limits = Limits()
    planner: PlannerConfig = PlannerConfig()
    training: TrainingSettings = TrainingSettings()
    ppo: PPOConfig = PPOConfig()
    run: RunConfig = RunConfig()
    health: HealthConfig = HealthConfig()
    experience: ExperienceConfig = ExperienceConfig()
    from_logs: FromLogsConfig = FromLogsConfig()
    curriculum: tuple[Stage, ...] = ()
    """Smaller problems to learn first, in order, each for a share of the budget; the full problem takes the rest."""


TREE = Tree(Settings)


def resolve(
    *,
    preset: str | None = None,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    assignments: Sequence[str] = (),
) -> Resolved[Settings]:
    """Settings from all sources, the later ones winning; ConfigError for the first source with something wrong.

    `config` is a file that must exist; `flags` maps names of `FLAGS` to values, None for those not given; `assignments`
    are the texts after `--set`.
    """
    chosen = [
        *(TREE.from_file(config) if config else ()),
        *TREE.from_environment(environ or {}),
        *_from_flags(flags or {}),
        *(assignment for text in assignments for assignment in TREE.from_assignment(text)),
    ]
    if preset is not None:
        chosen = [*_from_preset(preset), *chosen]
    variant = next((a.value for a in reversed(chosen) if a.key == "allocation.variant"), "document")
    own = TREE.flatten(VARIANT_DEFAULTS.get(variant, {}) if isinstance(variant, str) else {})
    return TREE.build([*(Assignment(key, value, f"default for {variant}") for key, value in own), *chosen])


def restore(tree: Mapping[str, Any], *, source: Path) -> Settings:
    """Settings as config.json keeps them; the same checks as for a file."""
    values = {key: value for key, value in tree.items() if key not in OF_THE_RUN}
    return TREE.build([Assignment(key, value, str(source)) for key, value in TREE.flatten(values)]).settings


def _from_preset(name: str) -> Iterator[Assignment]:
    if name not in PRESETS:
        raise ConfigError(f"--preset is {name!r}: expected one of {', '.join(map(repr, PRESETS))}")
    for key, value in TREE.flatten(PRESETS[name]):
        yield Assignment(key, value, f"preset {name}")


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Assignment]:
    for flag, value in flags.items():
        if value is not None:
            yield Assignment(FLAGS[flag], value, flag)
