"""Behaviour by state: an actor in, how often it accepts, allocates and collaborates out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from etude.problems.base import Action, Actor, Obs

MIN_DECISIONS = 50
"""Minimum number of decisions that a point is the mean of."""


@dataclass(frozen=True, kw_only=True)
class Tendency:
    """The mean of a decision as a function of one quantity of the state."""

    decision: str
    state: str
    x: list[float]
    y: list[float]  # in [0, 1]


class RecordingActor:
    """Decides like `actor`, and records every decision with the state it was made in."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self._records: list[dict[str, Tensor]] = []

    def __call__(self, obs: Obs, generator: Generator) -> Action:
        action = self.actor(obs, generator)
        agents = obs["agents"].shape[:2]
        records = _record(obs, action, step=len(self._records))
        self._records.append({name: value.expand(agents).cpu() for name, value in records.items()})
        return action

    def notes(self) -> dict[str, Any]:
        """What a report shows of it."""
        return {"tendencies": self.tendencies()}

    def tendencies(self) -> list[Tendency]:
        records = {name: torch.stack([n[name] for n in self._records]).flatten().numpy() for name in self._records[0]}
        decisions = {  # each only where it has an effect
            "accepts": ("take", records["queued"] > 0),
            "allocates": ("allocate", records["load"] > 0),
            "collaborates": ("collaborate", np.ones_like(records["load"], dtype=bool)),
        }
        states = {"step": "step", "tasks waiting": "queued", "own load": "load", "own expertise": "skill"}
        return [
            _tendency(decision, state, records[x][where], records[y][where])
            for decision, (y, where) in decisions.items()
            for state, x in states.items()
        ]


def _record(obs: Obs, action: Action, *, step: int) -> dict[str, Tensor]:
    """Every value (n, agents) or (n, 1). The variants differ in their columns and in what `accept` holds."""
    agents, tasks, matched = obs["agents"], obs["tasks"], "legal" in obs
    accept, willing = action["accept"], action["collaborate"]
    return {
        "step": torch.full_like(agents[..., 0], step),
        "queued": tasks[..., 0 if matched else 3].sum(1, keepdim=True),
        "load": agents[..., 1].round(decimals=3),  # removes the rounding error that finished tasks leave
        "skill": agents[..., 6 if matched else 5 :].mean(2),
        "take": (accept < tasks.shape[1] if matched else accept > 0.5).float(),
        "allocate": action["allocate"],
        "collaborate": (willing > (0.5 if matched else 0.7)).float(),
    }


def _tendency(decision: str, state: str, x: np.ndarray, y: np.ndarray) -> Tendency:
    """Few distinct states are one point each; many are grouped into quantiles."""
    values = np.unique(x)
    edges = values if len(values) <= 12 else np.unique(np.quantile(x, np.linspace(0, 1, 13))[:-1])
    group = np.searchsorted(edges, x, side="right") - 1
    groups = [g for g in range(len(edges)) if (group == g).sum() >= MIN_DECISIONS]
    means = [(float(x[group == g].mean()), float(y[group == g].mean())) for g in groups]
    return Tendency(decision=decision, state=state, x=[a for a, _ in means], y=[b for _, b in means])
