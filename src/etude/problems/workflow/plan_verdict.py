"""Are plans better than before? Logged plans with their outcomes, and the plans of two planners, in; a verdict out.

Where a planner would have made the logged plan, its outcome counts, weighed by how improbable that plan was for the
behaviour policy (inverse propensity scoring). So requests that the behaviour policy seldom got right count for what
they are, which plans known to be right cannot show: those are of requests that it could do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from etude.evidence.intervals import Estimate
from etude.evidence.ope import ips
from etude.problems.workflow.plan import Node, Plan

ONE_SIDED = 1.6448536269514722
"""Standard errors that the gain must be away from 0: of planners that are no better, at most 5 % are called better."""
MIN_DIFFERENT = 10
"""Successful workflows with the plan of just one of the planners, below which nothing is claimed."""
MAX_WEIGHT = 20.0
MAX_ORDERS = 24
MAX_SHOWN = 5
Answer = Literal["better", "not distinguishable", "worse"]


class Tried(Struct, frozen=True, kw_only=True):
    """A logged workflow with a verdict on the whole."""

    plan: Plan  # as it was first made
    success: bool


@dataclass(frozen=True, kw_only=True)
class PlanVerdict:
    """The new planner's plans compared with the old one's, by the workers that were logged."""

    answer: Answer
    success: Estimate  # difference in the success of workflows
    old: float  # estimated success of the old planner's plans
    workflows: int
    changes: Sequence[str]  # in sentences

    def to_json(self) -> dict[str, Any]:
        numbers = {"old": self.old, "workflows": self.workflows, "changes": list(self.changes)}
        return {"answer": self.answer, "success": self.success.to_json(), **numbers}

    def sentences(self) -> list[str]:
        if not self.workflows:
            return ["Plans: not distinguishable. No workflow with a verdict on the whole was planned by that planner."]
        s = self.success
        return [
            f"Plans: {self.answer}, on {self.workflows:,} workflows whose requests were held out: success "
            f"{100 * s.mean:+.1f} points [{100 * s.low:+.1f}, {100 * s.high:+.1f}], before {self.old:.0%}.",
            *self.changes,
        ]


def judge_plans(
    tried: Sequence[Tried],
    old: Sequence[Plan],
    new: Sequence[Plan],
    probabilities: Callable[[Sequence[Plan]], Sequence[float]],
) -> PlanVerdict:
    """`old` and `new` are the planners' plans for the same requests, which the new planner has not learned from;
    `probabilities` are those of subtasks and links for the behaviour policy.

    New plans that it would hardly ever make cannot have been tried. They count as failures on the way to *better*, and
    not at all on the way to *worse*.
    """
    if not tried:
        return PlanVerdict(answer="not distinguishable", success=ips([], []), old=float("nan"), workflows=0, changes=())
    weight = np.minimum(1 / np.maximum(probabilities([one.plan for one in tried]), 1e-9), MAX_WEIGHT)
    likely = np.asarray(probabilities(new)) >= 1 / MAX_WEIGHT
    success = np.array([float(one.success) for one in tried])
    is_old, is_new = (
        np.array([is_same_plan(one.plan, plan) for one, plan in zip(tried, plans, strict=True)], float)
        for plans in (old, new)
    )
    groups, shift = [one.plan.instruction for one in tried], weight * (is_new - is_old)
    gain, known = ips(shift, success, groups), ips(shift * likely, success, groups)
    answer: Answer = "not distinguishable"
    if (success * (is_new != is_old)).sum() >= MIN_DIFFERENT:
        better, worse = gain.mean > ONE_SIDED * gain.error, known.mean < -ONE_SIDED * known.error
        answer = "better" if better else "worse" if worse else answer
    return PlanVerdict(
        answer=answer,
        success=gain,
        old=float(np.average(success, weights=weight * is_old)) if is_old.any() else float("nan"),
        workflows=len(tried),
        changes=describe_changes(old, new),
    )


def is_same_plan(a: Plan, b: Plan) -> bool:
    """Whether they have the same subtasks and links, by whichever workers, in whichever order."""
    return _types(a) == _types(b) and Counter(a.links) == Counter(b.links)


def describe_changes(before: Sequence[Plan], after: Sequence[Plan]) -> list[str]:
    """How many plans changed, and which subtasks were added, dropped or moved most often; each request counts once."""
    pairs = {old.instruction: (old, new) for old, new in zip(before, after, strict=True)}
    changed = [(old, new) for old, new in pairs.values() if not is_same_plan(old, new)]
    if not changed:
        return [f"  the plans for {len(pairs):,} requests have the same subtasks and links as before"]
    kinds = {"added": Counter[str](), "dropped": Counter[str](), "moved": Counter[str]()}
    for old, new in changed:
        own, theirs = _types(new), _types(old)
        kinds["added"] += own - theirs
        kinds["dropped"] += theirs - own
        if own == theirs:  # the same subtasks with other links
            links = (Counter(new.links) - Counter(old.links)) + (Counter(old.links) - Counter(new.links))
            kinds["moved"].update({target for _, target in links})
    found = [f"  {len(changed):,} of {len(pairs):,} plans changed"]
    for kind, counts in kinds.items():
        if counts:
            most = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common(MAX_SHOWN))
            more = f" and {len(counts) - MAX_SHOWN} more" if len(counts) > MAX_SHOWN else ""
            found.append(f"  subtasks {kind}: {most}{more}")
    return found


def _types(plan: Plan) -> Counter[str]:
    return Counter(node.task_type for node in plan.nodes)


def reordered(plan: Plan) -> list[Plan]:
    """The same plan with its nodes in every order that is possible, MAX_ORDERS at most."""
    return [
        Plan(instruction=plan.instruction, nodes=tuple(_moved(plan, order)))
        for order in islice(_orders(plan, ()), MAX_ORDERS)
    ]


def _orders(plan: Plan, begun: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(begun) == len(plan.nodes):
        yield begun
    for i, node in enumerate(plan.nodes):
        if i not in begun and set(node.dependencies) <= set(begun):
            yield from _orders(plan, (*begun, i))


def _moved(plan: Plan, order: Sequence[int]) -> Iterator[Node]:
    place = {old: new for new, old in enumerate(order)}
    for i in order:
        yield replace(plan.nodes[i], dependencies=tuple(sorted(place[j] for j in plan.nodes[i].dependencies)))
