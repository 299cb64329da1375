"""Logged workflows as learners take them: trajectories with their rewards in, shards of decisions out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Generator

from etude.contracts.errors import DatasetError
from etude.contracts.trajectory import Trajectory
from etude.learning.logged import Logged
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.encode import Known, Surroundings, make_library, surround
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.lesson import Reader
from etude.problems.workflow.likeness import Likeness
from etude.problems.workflow.logged import catalogue_id, read_logged
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlanPolicy
from etude.problems.workflow.plan import Limits

KEPT = 8
"""Shards that stay in memory once they are read."""


class Example(Protocol):
    """A trajectory and what it was worth."""

    @property
    def trajectory(self) -> Trajectory: ...
    @property
    def reward(self) -> float: ...
    @property
    def weight(self) -> float: ...
    @property
    def context(self) -> str: ...


@dataclass(kw_only=True)
class WorkflowShards:
    """A pass over logged workflows; the policy is put among a shard's instructions before that is given."""

    examples: Callable[[], Iterator[Sequence[Example]]]
    """Trajectories of one context are in the same part."""
    policy: PlanPolicy
    catalogue: Catalogue
    limits: Limits
    reader: Reader
    known: Known
    memory: Memory
    seed: int = 0
    draw: Callable[[], int] = lambda: 0
    """Which draw a pass is. Where trajectories weigh differently, passes with the same number draw the same."""
    _kept: dict[int, tuple[Surroundings, Logged, torch.Tensor | None]] = field(default_factory=dict)
    _whole: bool = False  # everything is kept

    def __call__(self) -> Iterator[Logged]:
        luck = Generator().manual_seed(1_000_003 * self.seed + self.draw())
        for surroundings, logged, weight in self._parts():
            self.policy.within(surroundings)
            if weight is None:
                yield logged
            else:  # as often as they weigh
                drawn = torch.multinomial(weight, len(weight), replacement=True, generator=luck)
                yield logged.only(drawn.sort().values.to(logged.reward.device))

    def _parts(self) -> Iterator[tuple[Surroundings, Logged, torch.Tensor | None]]:
        if self._whole:
            yield from self._kept.values()
            return
        count, whole = 0, True
        for number, examples in enumerate(self.examples()):
            part = self._kept.get(number) if examples else None
            if part is None:
                decided = [example for example in examples if _is_decided(example.trajectory)]
                if not decided:
                    continue
                part = self._prepare(decided)
                if len(self._kept) < KEPT:
                    self._kept[number] = part
            count, whole = count + 1, whole and number in self._kept
            yield part
        if not count:
            raise DatasetError(
                "nothing is left to learn from: its trajectories were all forgotten, or people made every decision; "
                "create a new dataset"
            )
        self._whole = whole

    def _prepare(self, examples: Sequence[Example]) -> tuple[Surroundings, Logged, torch.Tensor | None]:
        trajectories = [example.trajectory for example in examples]
        self._check(trajectories)
        device = self.policy.start.device
        rows = read_logged(Rules(self.catalogue, self.limits), trajectories)
        texts = sorted({trajectory.task for trajectory in trajectories})
        place = {text: i for i, text in enumerate(texts)}
        numbers = {context: i for i, context in enumerate(sorted({example.context for example in examples}))}
        instruction = torch.tensor([place[trajectory.task] for trajectory in trajectories])[rows.trajectory]
        logged = Logged(
            obs={name: x.to(device) for name, x in (rows.obs | {"instruction": instruction}).items()},
            action={name: x.to(device) for name, x in rows.action.items()},
            log_propensity=rows.log_propensity.float().to(device),
            trajectory=rows.trajectory.to(device),
            reward=torch.tensor([example.reward for example in examples], dtype=torch.float32, device=device),
            context=torch.tensor([numbers[example.context] for example in examples], device=device),
            eligible=rows.eligible.float().to(device),
        )
        encoder, kinds = self.reader.encoder, self.catalogue.task_types
        votes, alike = self.memory.votes(encoder, texts), Likeness(encoder, kinds)(texts)
        library = make_library(encoder, texts, votes, alike, self.reader.tokenise)
        around = surround(encoder, self.catalogue, self.limits, self.known, self.memory, library)
        weight = torch.tensor([example.weight for example in examples])
        return around.to(device), logged, weight if bool((weight != weight[0]).any()) else None

    def _check(self, trajectories: Sequence[Trajectory]) -> None:
        """That ids mean what they meant when these were logged, where that is known."""
        ours = catalogue_id(self.catalogue)
        for trajectory in trajectories:
            theirs = (trajectory.metadata or {}).get("catalogue", ours)
            if theirs != ours:
                raise DatasetError(
                    f"trajectory {trajectory.id!r} was decided with another catalogue ({theirs}) than {ours}: give the "
                    "one it was logged with, --catalogue, or leave it out of the dataset"
                )


def _is_decided(trajectory: Trajectory) -> bool:
    """Whether a policy made any of its decisions."""
    return any(d.problem == "workflow" and d.propensity is not None for d in trajectory.decisions)
