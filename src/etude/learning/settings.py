"""The settings that every learner reads, and access to those of one problem."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from etude.learning.health import HealthConfig
from etude.learning.passes import FromLogsConfig
from etude.learning.ppo import PPOConfig
from etude.learning.practise import PracticeConfig, Stage
from etude.learning.run import RunConfig
from etude.learning.saved_settings import read_own as read_own

Own = TypeVar("Own")


class LearningSettings(BaseModel):
    """Settings of every learner. A section is the config dataclass of its component; problems add their own."""

    # Strict: "3" or true is no integer. Read as JSON, where an integer may be a number and a list a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    ppo: PPOConfig = PPOConfig()
    run: RunConfig = RunConfig()
    health: HealthConfig = HealthConfig()
    from_logs: FromLogsConfig = FromLogsConfig()
    curriculum: tuple[Stage, ...] = ()
    """Smaller problems to learn first, in order, each for a share of the budget; the full problem takes the rest."""

    def own(self, kind: type[Own]) -> Own:
        """The sections of one problem, as its settings dataclass."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})  # type: ignore[arg-type]

    def sections(self, *names: str) -> dict[str, Any]:
        """Sections by name, as config.json keeps them."""
        return self.model_dump(mode="json", include=set(names))

    def practice(self) -> PracticeConfig:
        return PracticeConfig(ppo=self.ppo, run=self.run, health=self.health, curriculum=self.curriculum)
