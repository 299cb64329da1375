"""Settings of executions. Reading them needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

WhenUnsure = Literal["ask", "fallback", "refuse"]
MIN_PROBABILITY = 0.5
"""Minimum probability of a plan where a fallback is named and no minimum is set."""


@dataclass(frozen=True, kw_only=True)
class OrchestratorConfig:
    """What happens to a plan that the planner is unsure of."""

    min_probability: Annotated[float, Ge(0), Le(1)] = 0.0
    """Minimum probability that a plan has the right subtasks; below it `when_unsure` applies; 0 is none."""
    when_unsure: WhenUnsure = "ask"
    """`ask` a person on a terminal, `fallback` to the plan of the rules or of --fallback, or `refuse` the workflow."""
