"""The world's office for one workflow at a time, in plain Python: who is there today, and what becomes of an attempt.

The tensor world settles thousands of workflows at once; an execution asks about one attempt after the other. Both
follow the same tables and the same chances.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from etude.problems.workflow.experts import Reader
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.problem import without_newcomers
from etude.problems.workflow.progress import Live
from etude.problems.workflow.world import (
    DISTRACTED,
    DOWN,
    MEAN_LOAD,
    MEMORY,
    SECOND_WIND,
    SLOWER,
    ErrorCategory,
    Tables,
    flakiness,
)


@dataclass(kw_only=True)
class Day:
    """What one workflow meets: loads, who is down, what it wants, and what has proved to be beyond whom."""

    needs: dict[int, set[int]]  # by wanted task type: the types it needs
    load: list[float]
    down: int  # who; as many as there are workers is nobody
    beyond: set[tuple[int, int]] = field(default_factory=set)  # task type, worker


class Office:
    """Instructions with their best plans, workers with their hidden skills."""

    def __init__(self, tables: Tables) -> None:
        self.rules: Rules = tables.rules
        self.scenarios = tables.scenarios
        is_new = bool((tables.offered & tables.exists.all()).all())
        # Newcomers stand last in the catalogue: without them ids are the same.
        self.catalogue = self.scenarios.catalogue if is_new else without_newcomers(self.scenarios)
        self.skill: list[list[float]] = tables.skill.tolist()  # [task type][worker]
        self.exists: list[bool] = tables.exists.tolist()
        self.rows = {text.strip(): row for row, text in enumerate(self.scenarios.instructions)}
        self._reader = Reader(self.catalogue, without=set(self.scenarios.newcomers))

    def begin(self, instruction: str, luck: Random) -> Day:
        """A workflow on a day of its own. What the office was never asked is understood by its keywords."""
        workers = range(len(self.catalogue.workers))
        load = [luck.random() ** 2 for _ in workers]
        everybody = len(self.scenarios.catalogue.workers)
        down = int(luck.random() * everybody / DOWN) if sum(self.exists) > 1 else everybody
        return Day(needs=self.wanted(instruction), load=load, down=down)

    def wanted(self, instruction: str) -> dict[int, set[int]]:
        row = self.rows.get(instruction.strip())
        if row is None:
            types, needs = self._reader.read(instruction)
        else:
            count = int(self.scenarios.length[row])
            types = self.scenarios.types[row, :count].tolist()
            needs = [self.scenarios.links[row, i].nonzero()[:, 0].tolist() for i in range(count)]
        return {kind: {types[j] for j in before} for kind, before in zip(types, needs, strict=True)}

    def live(self, day: Day, success: Sequence[float]) -> tuple[Live, ...]:
        """Everybody today, with the success they have had so far."""
        return tuple(
            Live(w.cost_usd(), self.latency_ms(day, i), success[i], self.exists[i] and i != day.down, None)
            for i, w in enumerate(self.catalogue.workers)
        )

    def latency_ms(self, day: Day, worker: int) -> float:
        return self.catalogue.workers[worker].latency_ms * (1 + SLOWER * day.load[worker])

    def attempt(self, day: Day, kind: int, given: Collection[int], worker: int, luck: float) -> ErrorCategory:
        """What becomes of a subtask of this type, `given` outputs of these, with `luck` in [0, 1)."""
        if kind not in day.needs:
            return ErrorCategory.NOT_APPLICABLE
        if not day.needs[kind] <= set(given):
            return ErrorCategory.MISSING_INPUT
        skill = self.skill[kind][worker] * DISTRACTED ** sum(one not in day.needs[kind] for one in given)
        if (kind, worker) in day.beyond:
            skill = SECOND_WIND
        flaky = flakiness(day.load[worker])
        if luck < flaky:
            return ErrorCategory.TRANSIENT
        if luck < flaky + (1 - flaky) * skill:
            return ErrorCategory.NONE
        day.beyond.add((kind, worker))
        return ErrorCategory.CAPABILITY

    def success_so_far(self, luck: Random) -> list[float]:
        """Of each worker, as observed before the first workflow."""
        found = []
        for worker in range(len(self.catalogue.workers)):
            able = [
                row[worker] for row, can in zip(self.skill, self.rules.capable.tolist(), strict=True) if can[worker]
            ]
            mean = sum(able) / max(1, len(able)) * (1 - flakiness(MEAN_LOAD))
            noise = (mean * (1 - mean) / MEMORY * 12) ** 0.5 * (luck.random() - 0.5)
            found.append(min(1.0, max(0.0, mean + noise)))
        return found
