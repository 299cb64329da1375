"""What a policy does with generated prompts, by their kinds and defects: an actor in, shares of mutations out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from etude.problems.base import Action, Actor, Obs
from etude.problems.prompt.generated.prompts import DEFECTS, GeneratedPrompt
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.states import States
from etude.problems.prompt.world import ACTION, PromptWorld


@dataclass(frozen=True, kw_only=True)
class Share:
    """Prompts of one kind or with one defect."""

    name: str
    prompts: int
    mutations: dict[str, float]  # share of these prompts that got each mutation


class RecordingActor:
    """Decides like `actor`, and counts the mutations of each environment's first prompt."""

    def __init__(self, actor: Actor, prompts: Sequence[GeneratedPrompt]) -> None:
        self.actor, self.prompts = actor, prompts
        self._done: Tensor | None = None
        self._going: Tensor | None = None

    def __call__(self, obs: Obs, generator: Generator) -> Action:
        action = self.actor(obs, generator)
        chosen = torch.nn.functional.one_hot(action[ACTION], len(MUTATIONS) + 1)
        if self._done is None or self._going is None:
            self._done = torch.zeros(len(chosen), len(MUTATIONS))
            self._going = torch.ones(len(chosen), dtype=torch.bool)
        self._done += chosen[:, :-1] * self._going[:, None]
        self._going = self._going & ~chosen[:, -1].bool()
        return action

    def notes(self, states: States, seed: int) -> dict[str, Any]:
        """Shares by kind and by defect; the world gives its prompts in the order of the seed."""
        assert self._done is not None
        world = PromptWorld(states, n=len(states.start))
        world.reset(seed)
        order = [self.prompts[i] for i in states.prompt_of(world.row).tolist()]
        kinds = dict.fromkeys(prompt.kind for prompt in self.prompts)
        by_kind = {kind: [prompt.kind == kind for prompt in order] for kind in kinds}
        by_defect = {defect: [defect in prompt.defects for prompt in order] for defect in DEFECTS}
        by_defect["none"] = [not prompt.defects for prompt in order]
        return {"kinds": self._shares(by_kind), "defects": self._shares(by_defect)}

    def _shares(self, groups: dict[str, list[bool]]) -> list[Share]:
        assert self._done is not None
        found = []
        for name, rows in groups.items():
            own = self._done[torch.tensor(rows)]
            if len(own):
                shares = dict(zip(MUTATIONS, own.mean(0).tolist(), strict=True))
                found.append(Share(name=name, prompts=len(own), mutations=shares))
        return found
