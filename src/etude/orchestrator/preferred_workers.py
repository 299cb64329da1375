"""Plans with the workers that a log speaks for: examples and attempts in, the examples with other workers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from etude.orchestrator.record import Execution
from etude.orchestrator.trajectories import to_trajectory
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.attempts import Attempt, read_attempts
from etude.problems.workflow.examples import Example
from etude.problems.workflow.worker_model import WorkerModel, fit_workers


def attempts_of(execution: Execution, catalogue: Catalogue) -> list[Attempt]:
    """The attempts of a line of a log; none where it is not one of this catalogue, or lacks what they need."""
    try:
        return list(read_attempts([to_trajectory(execution, catalogue)]))
    except (IndexError, ValueError):
        return []


class PreferredWorkers:
    """Chooses as a planner that learns from the same log would."""

    def __init__(self, attempts: Sequence[Attempt], catalogue: Catalogue) -> None:
        names = {w.name for w in catalogue.workers}
        known = [a for a in attempts if a.worker in names]
        self.catalogue = catalogue
        self.model: WorkerModel | None = fit_workers(known, catalogue) if known else None
        self.changes = Counter[str]()  # `task type: old → new`, by the number of subtasks

    def give(self, example: Example) -> Example:
        """The example, each subtask by the worker that is expected to do best; its own if no other is better."""
        targets = example.targets
        if self.model is None or targets.model_selections is None:
            return example
        chosen = tuple(map(self._best, targets.task_types, targets.model_selections))
        return msgspec.structs.replace(example, targets=msgspec.structs.replace(targets, model_selections=chosen))

    def _best(self, task_type: int, own: int) -> int:
        assert self.model is not None
        workers, name = self.catalogue.workers, self.catalogue.task_types[task_type].name
        able = np.array([self.catalogue.able(worker, name) for worker in workers])
        chances = self.model.chances([worker.name for worker in workers], able, name, own=own)
        best = own if chances is None else int(chances.argmax())
        if best != own:
            self.changes[f"{name}: {workers[own].name} → {workers[best].name}"] += 1
        return best
