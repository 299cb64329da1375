"""The simulated office for one workflow at a time, in plain Python: available workers, and outcomes of attempts.

The tensor world simulates thousands of workflows at once; an execution asks for one attempt after the other. Both use
the same tables and the same probabilities.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Lock

import torch
from torch import Generator

from etude.problems.base import Action, Actor, Obs
from etude.problems.workflow.decide import Chooser, Choosers
from etude.problems.workflow.experts import KeywordReader
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import WORKERS, Rules
from etude.problems.workflow.office.problem import without_new_entries
from etude.problems.workflow.office.world import (
    DISTRACTED,
    DOWN,
    MEAN_LOAD,
    MEMORY,
    SKILL_AFTER_FAILURE,
    SLOWER,
    Tables,
    flakiness,
)
from etude.problems.workflow.progress import Live


@dataclass(kw_only=True)
class EpisodeConditions:
    """The conditions of one workflow: what it requires, loads, which worker is down, which proved unable to do what."""

    needs: dict[int, set[int]]  # by required task type: the types it depends on
    load: list[float]  # by worker
    down: int  # the worker that is down; the number of workers if none is
    beyond: set[tuple[int, int]] = field(default_factory=set)  # (task type, worker) that proved unable to do it


class Office:
    """Instructions with their best plans, workers with their hidden skills."""

    def __init__(self, tables: Tables) -> None:
        self.rules: Rules = tables.rules
        self.scenarios = tables.scenarios
        is_new = bool((tables.offered & tables.exists.all()).all())
        # New entries are last in the catalogue, so ids are the same without them.
        self.catalogue = self.scenarios.catalogue if is_new else without_new_entries(self.scenarios)
        self.skill: list[list[float]] = tables.skill.tolist()  # [task type][worker]
        self.exists: list[bool] = tables.exists.tolist()
        self.rows = {text.strip(): row for row, text in enumerate(self.scenarios.instructions)}
        self._reader = KeywordReader(self.catalogue, without=set(self.scenarios.new_entries))

    def begin(self, instruction: str, rng: Random) -> EpisodeConditions:
        """Samples the conditions of a workflow. The plan of an unknown instruction is found by its keywords."""
        workers = range(len(self.catalogue.workers))
        load = [rng.random() ** 2 for _ in workers]
        count = len(self.scenarios.catalogue.workers)
        down = int(rng.random() * count / DOWN) if sum(self.exists) > 1 else count
        return EpisodeConditions(needs=self.requirements(instruction), load=load, down=down)

    def requirements(self, instruction: str) -> dict[int, set[int]]:
        """The task types of the best plan, each with the types it depends on."""
        row = self.rows.get(instruction.strip())
        types, needs = self._reader.read(instruction) if row is None else self.scenarios.of(row)
        return {kind: {types[j] for j in before} for kind, before in zip(types, needs, strict=True)}

    def live(self, conditions: EpisodeConditions, success: Sequence[float]) -> tuple[Live, ...]:
        """The live numbers of every worker, with its success rate so far."""
        up = [exists and i != conditions.down for i, exists in enumerate(self.exists)]
        return tuple(
            Live(w.cost_usd(), self.latency_ms(conditions, i), success[i], up[i], None)
            for i, w in enumerate(self.catalogue.workers)
        )

    def latency_ms(self, conditions: EpisodeConditions, worker: int) -> float:
        return self.catalogue.workers[worker].latency_ms * (1 + SLOWER * conditions.load[worker])

    def attempt(
        self, conditions: EpisodeConditions, kind: int, given: Collection[int], worker: int, u: float
    ) -> ErrorCategory:
        """The outcome of a subtask of this type with outputs of the types `given`, from a uniform number `u`."""
        needs = conditions.needs.get(kind)
        if needs is None:
            return ErrorCategory.NOT_APPLICABLE
        if not needs <= set(given):
            return ErrorCategory.MISSING_INPUT
        skill = self.skill[kind][worker] * DISTRACTED ** sum(one not in needs for one in given)
        if (kind, worker) in conditions.beyond:
            skill = SKILL_AFTER_FAILURE
        flaky = flakiness(conditions.load[worker])
        if u < flaky:
            return ErrorCategory.TRANSIENT
        if u < flaky + (1 - flaky) * skill:
            return ErrorCategory.NONE
        conditions.beyond.add((kind, worker))
        return ErrorCategory.CAPABILITY

    def success_so_far(self, rng: Random) -> list[float]:
        """The observed success rate of each worker before the first workflow."""
        found = []
        capable = self.rules.capable.tolist()
        for worker in range(len(self.catalogue.workers)):
            able = [row[worker] for row, can in zip(self.skill, capable, strict=True) if can[worker]]
            mean = sum(able) / max(1, len(able)) * (1 - flakiness(MEAN_LOAD))
            noise = (mean * (1 - mean) / MEMORY * 12) ** 0.5 * (rng.random() - 0.5)
            found.append(min(1.0, max(0.0, mean + noise)))
        return found


def knowing(actor: Actor, office: Office) -> Choosers:
    """An actor that knows instructions by their row among the scenarios, and entries that are not there yet."""
    known, turn = office.rules, Lock()  # some actors keep what they computed last

    def choosers(rules: Rules, instruction: str) -> Chooser:
        row = torch.tensor([office.rows[instruction.strip()]])
        more = {"offered": known.types - rules.types}
        more |= dict.fromkeys(WORKERS, known.workers - rules.workers)

        def choose(draft: Obs, rng: Generator) -> Sequence[tuple[Action, float]]:
            wider = {name: torch.nn.functional.pad(draft[name], (0, count)) for name, count in more.items()}
            with turn:
                action = actor(draft | wider | {"instruction": row}, rng)
            return [(action | {"type": action["type"].clamp(max=rules.types)}, 1.0)]

        return choose

    return choosers
