"""Workers and corrections by what was logged of them: a planner's choices in, the same with other workers out.

A `WorkerModel` says which worker to take; the planner's network says which subtasks there are and how they depend on
each other. What the rules forbid stays impossible, and every probability is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator

from etude.problems.base import Action, Obs
from etude.problems.workflow.corrections import correction, substitutes
from etude.problems.workflow.grammar import Correction, Rules, at
from etude.problems.workflow.worker_model import Floats, WorkerModel


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Chooses the workers of one draft at a time, (1, …) tensors."""

    model: WorkerModel
    rules: Rules

    def plan(self, draft: Obs, actions: Sequence[Action]) -> list[Action]:
        """The actions of a whole plan, with the workers that are expected to do best; as they are where the limits
        would not allow the rest of the plan."""
        found, d = list[Action](), draft
        for action in actions:
            chances = self.chances(d, action)
            chosen = action if chances is None else action | {"worker": torch.tensor([int(chances.argmax())])}
            if not self._is_legal(d, chosen):
                return list(actions)
            found.append(chosen)
            d, _ = self.rules.grow(d, chosen)
        return found

    def _is_legal(self, draft: Obs, action: Action) -> bool:
        """Whether task type and worker are; what earlier nodes cost and take may have changed since it was chosen."""
        of, kind = action["correction"], action["type"]
        workers = self.rules.workers_for(draft, of, kind, action["links"])
        return bool(at(self.rules.task_types(draft, of), kind) & at(workers, action["worker"]))

    def chances(self, draft: Obs, action: Action, *, explore: bool = False) -> Floats | None:
        """(W,) the probability of each worker for a node that an action adds; None where the planner's own is taken."""
        kind = int(action["type"])
        if kind >= self.rules.types:
            return None
        legal = self.rules.workers_for(draft, action["correction"], action["type"], action["links"])[0]
        name, own = self.rules.catalogue.task_types[kind].name, int(action["worker"])
        return self.model.chances(self._names, legal.numpy(), name, own=own, explore=explore)

    def correct(self, draft: Obs, usual: Action | None, rng: Generator | None) -> tuple[Action, float] | None:
        """A retry or a switch after a failure, with its probability; None where neither is worth it. With `rng` it
        explores.

        `usual` is the correction to take unless another is better; None where there is none to beat.
        """
        rules, failed = self.rules, int(draft["failed"])
        current, kind = int(draft["workers"][0, failed]), int(draft["types"][0, failed])
        legal = np.zeros(rules.workers, bool)
        legal[substitutes(rules, draft)] = True
        legal[current] = bool(rules.corrections(draft)[0, Correction.RETRY])
        own = None
        if usual is not None:
            of = int(usual["correction"])
            if of not in (Correction.RETRY, Correction.SWITCH):
                return None
            own = current if of == Correction.RETRY else int(usual["worker"])
        tried = {current, *draft["tried"][0].nonzero()[:, 0].tolist()}
        chances = self.model.chances(
            self._names,
            legal,
            rules.catalogue.task_types[kind].name,
            failed=tuple(self._names[i] for i in sorted(tried)),
            category=int(draft["error"]),
            own=own,
            explore=rng is not None,
        )
        if chances is None:
            return None
        worker, probability = _draw(chances, rng)
        if worker == current:
            return correction(rules, Correction.RETRY, 0), probability
        return correction(rules, Correction.SWITCH, worker), probability

    @property
    def _names(self) -> list[str]:
        return [worker.name for worker in self.rules.catalogue.workers]


def _draw(chances: Floats, rng: Generator | None) -> tuple[int, float]:
    if rng is None:
        return int(np.argmax(chances)), 1.0
    worker = int(torch.multinomial(torch.from_numpy(chances), 1, generator=rng))
    return worker, float(chances[worker])
