"""Planners that learn from logged workflows: trajectories with their rewards in, shards of decisions out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from etude.contracts.errors import ConfigError, DatasetError
from etude.contracts.ports import Example
from etude.contracts.trajectory import Trajectory
from etude.learning.artefact import Artefact
from etude.learning.from_logs import Examples
from etude.learning.logged import Logged
from etude.learning.logs_run import learn_from_logs
from etude.learning.requests import LearnRequest
from etude.learning.run import PolicyParts, Run
from etude.problems.catalogue import read_catalogue
from etude.problems.workflow import SPEC
from etude.problems.workflow.artefact import load, planner_parts
from etude.problems.workflow.attempts import read_attempts
from etude.problems.workflow.decisions import PROBLEM, catalogue_id
from etude.problems.workflow.encode import PolicyContext
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.learn_plans import learn_plans
from etude.problems.workflow.learn_workers import SELF_DECLARED, learn_workers, own_workers, read_keep
from etude.problems.workflow.logged import read_logged
from etude.problems.workflow.network import PlanPolicy
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.verdict import Choices, Verdict, judge
from etude.problems.workflow.worker_model import is_verified

KEPT = 8
"""Shards that stay in memory once they are read."""


def from_logs(request: LearnRequest) -> Run:
    """By default what workers did teaches which one to take; with examples, plans are learned from those. The
    algorithms teach the network, plans included, so they need verdicts on whole workflows."""
    algorithm, dataset = request.inputs.get("algorithm"), request.dataset
    if request.inputs.get("data"):
        return learn_plans(request)
    if algorithm in (None, "workers"):
        return learn_workers(request)
    if dataset is None or is_verified(e.trajectory for part in dataset.examples("train") for e in part):
        return learn_from_logs(request, SPEC, read_logs, keep=read_keep(request.inputs))
    return learn_workers(request, remark=f"{algorithm} learns plans from verdicts on whole workflows. {SELF_DECLARED}")


def read_logs(artefact: Artefact, inputs: Mapping[str, Any], device: torch.device) -> WorkflowLogs:
    """With the planner's own catalogue, or the one that the logs were made with."""
    named = inputs.get("catalogue") or []
    files: list[Path] = named if isinstance(named, list) else [named]
    if len(files) > 1:
        raise ConfigError(f"there are {len(files)} catalogues: a dataset was logged with one")
    planner = load(artefact)
    if files:
        planner = planner.under(read_catalogue(files[0]))
    planner.policy.to(device)
    sees_live = planner.policy.sees_live
    parts = planner_parts(
        planner.catalogue,
        planner.known,
        planner.memory.state_dict(),
        planner.workers,
        corrects=True,
        sees_live=sees_live,
    )
    return WorkflowLogs(planner=planner, parts=parts)


@dataclass(frozen=True, kw_only=True)
class WorkflowLogs:
    """A planner, and logged workflows as what it observed and did."""

    planner: Planner
    parts: PolicyParts

    @property
    def policy(self) -> PlanPolicy:
        return self.planner.policy

    def judge(self, examples: Examples) -> Verdict | None:
        """The planner's choice of workers compared with the logged one; None if its network chooses them."""
        planner = self.planner
        if planner.workers is None:
            return None
        attempts = list(read_attempts(example.trajectory for part in examples() for example in part))
        known = [
            a for a in attempts if a.task_type in planner.workers.task_types and a.worker in planner.workers.workers
        ]
        if not known:
            raise DatasetError("no attempt by a worker that the planner knows is logged: give other executions")
        chosen = own_workers(planner, known)
        return judge(known, Choices(old=[a.worker for a in known], new=chosen, models=[planner.workers] * len(known)))

    def shards(self, examples: Examples, *, seed: int = 0, sample: Callable[[], int] = lambda: 0) -> WorkflowShards:
        return WorkflowShards(examples=examples, planner=self.planner, seed=seed, draw=sample)


@dataclass(kw_only=True)
class WorkflowShards:
    """A pass over logged workflows; the policy is put among a shard's instructions before that is given."""

    examples: Examples
    """Trajectories of one context are in the same part."""
    planner: Planner
    seed: int = 0
    draw: Callable[[], int] = lambda: 0
    """Which draw a pass is. Where trajectories weigh differently, passes with the same number draw the same."""
    _kept: dict[int, tuple[PolicyContext, Logged, torch.Tensor | None]] = field(default_factory=dict)
    _whole: bool = False  # everything is kept

    def __call__(self) -> Iterator[Logged]:
        rng = Generator().manual_seed(1_000_003 * self.seed + self.draw())
        for policy_context, logged, weight in self._parts():
            self.planner.policy.with_context(policy_context)
            if weight is None:
                yield logged
            else:  # as often as they weigh
                drawn = torch.multinomial(weight, len(weight), replacement=True, generator=rng)
                yield logged.only(drawn.sort().values.to(logged.reward.device))

    def _parts(self) -> Iterator[tuple[PolicyContext, Logged, torch.Tensor | None]]:
        if self._whole:
            yield from self._kept.values()
            return
        count, whole = 0, True
        for number, examples in enumerate(self.examples()):
            part = self._kept.get(number) if examples else None
            if part is None:
                decided = [
                    example
                    for example in examples
                    if any(d.problem == PROBLEM and d.propensity is not None for d in example.trajectory.decisions)
                ]
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

    def _prepare(self, examples: Sequence[Example]) -> tuple[PolicyContext, Logged, torch.Tensor | None]:
        trajectories = [example.trajectory for example in examples]
        self._check(trajectories)
        planner, device = self.planner, self.planner.policy.start.device
        texts = sorted({trajectory.task for trajectory in trajectories})
        numbers = {context: i for i, context in enumerate(sorted({example.context for example in examples}))}
        reward = torch.tensor([example.reward for example in examples], dtype=torch.float32)
        context = torch.tensor([numbers[example.context] for example in examples])
        rules = Rules(planner.catalogue, planner.limits)
        logged = read_logged(rules, trajectories, reward, context, device=device)
        weight = torch.tensor([example.weight for example in examples])
        return planner.context(texts).to(device), logged, weight if bool((weight != weight[0]).any()) else None

    def _check(self, trajectories: Sequence[Trajectory]) -> None:
        """That ids mean what they meant when these were logged, where that is known."""
        ours = catalogue_id(self.planner.catalogue)
        for trajectory in trajectories:
            theirs = (trajectory.metadata or {}).get("catalogue", ours)
            if theirs != ours:
                raise DatasetError(
                    f"trajectory {trajectory.id!r} was decided with another catalogue ({theirs}) than {ours}: give the "
                    "catalogue it was logged with, or leave it out of the dataset"
                )
