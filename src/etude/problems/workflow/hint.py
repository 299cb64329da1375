"""A plan that is nearly right, as a hint to the beam: what differs from it costs log-probability.

The hint is the plan of another policy, or a plan that failed because of what it contains: then a subtask that was not
asked for is out, and one whose inputs did not suffice needs another link. This is a noisy channel: the right plan is
probable for the network, and the hint is a slip of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.plan import Plan

NEVER = 50.0
"""What costs so much is only done if nothing else can be."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What each difference from a hint costs, in log-probability."""

    missing: float  # a node of the hint that a plan does not have
    extra: float  # a node that the hint does not have
    link: float  # a link between two nodes of the hint, or none, where the hint has it otherwise


@dataclass(frozen=True, kw_only=True)
class Subtask:
    """A node of a hint."""

    task_type: int
    dependencies: Sequence[int]  # nodes of the hint
    error: int = ErrorCategory.NONE  # how it failed, if it did
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Hint:
    """A hint over T task types; the last of T + 1 is *stop*."""

    types: Tensor  # (T + 1,) long: nodes of each type
    links: Tensor  # (T + 1, T + 1) bool: [target, source]
    lacking: Tensor  # (T + 1,) bool: types whose links do not suffice
    extra: Tensor  # (T + 1,): cost of one more node of each type
    costs: Costs

    def left(self, types: Tensor) -> Tensor:
        """(n, T + 1): nodes of the hint that drafts with these types (n, N) lack; below 0 where they have more."""
        return self.types - F.one_hot(types + 1, len(self.types) + 1)[..., 1:].sum(1)

    def type_costs(self, types: Tensor) -> tuple[Tensor, Tensor]:
        """(n, T + 1) each: the cost of each next type of drafts with `types` (n, N), *stop* with all that is missing
        then; and the same with all that is still missing after it, and the links that can no longer be made, by which
        unfinished drafts are compared."""
        left = self.left(types)
        missing = self.costs.missing * left.clamp(min=0).sum(1, keepdim=True)  # (n, 1)
        costs = self.extra * (left <= 0)
        ahead = costs + missing - self.costs.missing * (left > 0)
        links, later = self.links.float(), (left > 0).float()
        there = F.one_hot(types + 1, len(self.types) + 1)[..., 1:].amax(1).float()
        too_late = ((there @ links) * later).sum(1, keepdim=True) + later @ links.T  # (n, T + 1)
        ahead = ahead + self.costs.link * too_late
        costs[:, -1:] = ahead[:, -1:] = missing
        return costs, ahead

    def choose_links(self, task_type: Tensor, types: Tensor, scores: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
        """(n, N) bool and (n,): the best links of new nodes of `task_type` (n,) by the `scores` (n, N) of links and the
        hint, and what differs from the hint, the links that the order of nodes makes impossible included."""
        there, source = types >= 0, types.clamp(min=0)
        hinted = self.links[task_type[:, None], source] & there
        lacking = self.lacking[task_type]
        known = there & (self.types[source] > 0) & (self.types[task_type] > 0)[:, None]
        known = known & (hinted | ~lacking[:, None])  # it may have any other link
        wanted = torch.where(hinted, self.costs.link, -self.costs.link) * known
        links = (scores + wanted > 0) & legal
        new = legal & ~hinted
        needs = lacking & ~(links & new).any(1)
        best = torch.where(new, scores, -torch.inf).argmax(1)
        links = links | (F.one_hot(best, links.shape[1]).bool() & needs[:, None] & new)
        late = self.links[source, task_type[:, None]] & there
        differs = self.costs.link * (((links != hinted) & known & legal).sum(1) + late.sum(1))
        return links, differs + NEVER * (needs & ~new.any(1))


def hint_of(rules: Rules, subtasks: Sequence[Subtask], costs: Costs) -> Hint:
    """Without the subtasks that were not asked for; those whose inputs did not suffice need another link."""
    out = {i for i, one in enumerate(subtasks) if one.error == ErrorCategory.NOT_APPLICABLE}
    T = rules.types
    types, links = torch.zeros(T + 1, dtype=torch.long), torch.zeros((T + 1, T + 1), dtype=torch.bool)
    lacking, extra = torch.zeros(T + 1, dtype=torch.bool), torch.full((T + 1,), costs.extra)
    for i, one in enumerate(subtasks):
        if i in out:
            extra[one.task_type] = NEVER
            continue
        types[one.task_type] += 1
        had_all = all(subtasks[j].done for j in one.dependencies)  # if not, that is why it failed
        lacking[one.task_type] |= one.error == ErrorCategory.MISSING_INPUT and had_all
        links[one.task_type, [subtasks[j].task_type for j in one.dependencies if j not in out]] = True
    return Hint(types=types, links=links, lacking=lacking, extra=extra, costs=costs)


def subtasks_of(rules: Rules, plan: Plan) -> list[Subtask]:
    """The nodes of a plan whose task types the rules have."""
    place = {entry.name: i for i, entry in enumerate(rules.catalogue.task_types)}
    return [Subtask(task_type=place[node.task_type], dependencies=node.dependencies) for node in plan.nodes]


def same_as(rules: Rules, plan: Plan, given: Sequence[Subtask]) -> bool:
    """Whether a plan has these subtasks and links, in whichever order."""
    return _content(subtasks_of(rules, plan)) == _content(given)


def _content(subtasks: Sequence[Subtask]) -> tuple[list[int], list[tuple[int, int]]]:
    links = [(subtasks[j].task_type, one.task_type) for one in subtasks for j in one.dependencies]
    return sorted(one.task_type for one in subtasks), sorted(links)


def costs_of(cost: float) -> Costs:
    """A link is what a planner that decides one node at a time gets wrong most, so that it is changed last."""
    return Costs(missing=cost, extra=cost, link=2 * cost)


def slip(subtasks: Sequence[Subtask], types: int, rng: Random) -> list[Subtask]:
    """The subtasks with one of them left out, of another type, or with one more after it."""
    how = rng.choice(("drop", "replace", "add") if len(subtasks) > 1 else ("replace", "add"))
    place, other = rng.randrange(len(subtasks)), rng.randrange(types)
    if how == "add":
        return [*subtasks, Subtask(task_type=other, dependencies=(place,))]
    if how == "replace":
        return [replace(one, task_type=other) if i == place else one for i, one in enumerate(subtasks)]
    kept = [i for i in range(len(subtasks)) if i != place]
    return [
        replace(subtasks[i], dependencies=[kept.index(j) for j in subtasks[i].dependencies if j != place]) for i in kept
    ]
