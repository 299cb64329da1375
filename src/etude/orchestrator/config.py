"""Settings of executions. Reading them needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

WhenUnsure = Literal["ask", "fallback", "refuse"]


@dataclass(frozen=True, kw_only=True)
class OrchestratorConfig:
    """What happens to a plan that the planner is unsure of."""

    min_probability: Annotated[float, Ge(0), Le(1)] | None = None
    """Minimum probability of a plan; below it `when_unsure` applies. null: 0, or how often the fallback is right."""
    when_unsure: WhenUnsure = "ask"
    """`ask` a person on a terminal, `fallback` to the plan of the rules or of --fallback, or `refuse` the workflow."""
