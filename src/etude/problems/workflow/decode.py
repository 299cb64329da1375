"""Instructions to plans with a trained network: greedily for many at once, by a beam for one at a time.

A beam keeps the most probable drafts. Of the plans it ends with, the one is taken that agrees best with all of them,
each weighed by its probability (Kumar & Byrne, 2004): the most probable plan is not the least wrong one on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from etude.problems.base import Obs
from etude.problems.distributions import finite, masked
from etude.problems.workflow.encode import PolicyContext
from etude.problems.workflow.grammar import Correction
from etude.problems.workflow.metrics import f1
from etude.problems.workflow.network import DraftState, PlanPolicy, Reading
from etude.problems.workflow.plan import Plan

TOGETHER = 128
"""Drafts planned at once on a CPU, those of like length: little of what is read is padding."""


def empty_drafts(policy_context: PolicyContext) -> Obs:
    """One about every instruction of the context."""
    count = len(policy_context.encoded.mask)
    return policy_context.rules.begin(count) | {"instruction": torch.arange(count)}


@torch.inference_mode()
def plan_greedily(policy: PlanPolicy, drafts: Obs, instructions: Sequence[str]) -> list[Plan]:
    """One plan for each draft, which are empty and have the row of their instruction."""
    if not instructions:
        return []
    policy.rules.check(drafts)
    lengths = policy.context.encoded.mask[drafts["instruction"]].sum(1)
    plans: dict[int, Plan] = {}
    for rows in lengths.argsort(stable=True).split(
        TOGETHER if policy.rules.device.type == "cpu" else len(instructions)
    ):
        chosen = rows.tolist()
        plans |= zip(chosen, _greedily(policy, take(drafts, rows), [instructions[i] for i in chosen]), strict=True)
    return [plans[i] for i in range(len(instructions))]


def _greedily(policy: PlanPolicy, drafts: Obs, instructions: Sequence[str]) -> list[Plan]:
    rules = policy.rules
    reading, alive = policy.read(drafts["instruction"]), torch.arange(len(instructions), device=rules.device)
    finished = {name: value.clone() for name, value in drafts.items()}
    d = drafts
    while len(alive):
        action = policy.decide(d, policy.encode_drafts(d, reading), greedy=True)[0]
        d, stopped = rules.grow(d, action)
        for name, value in d.items():
            finished[name][alive] = value
        going = torch.nonzero(~stopped)[:, 0]
        alive, reading, d = alive[going], reading.take(going), take(d, going)
    return rules.plans(finished, instructions)


@torch.inference_mode()
def plan_by_beam(
    policy: PlanPolicy, draft: Obs, instruction: str, *, beam: int = 5, reading: Reading | None = None
) -> Plan:
    """The plan of one draft, (1, …) tensors; `reading` is of its instruction, where that was read before."""
    rules = policy.rules
    rules.check(draft)
    state = policy.encode_drafts(draft, reading or policy.read(draft["instruction"]))
    d, total = draft, torch.zeros(1, device=rules.device)  # (beams,) log-probability
    ended: list[tuple[float, Plan]] = []
    while len(total) and (len(ended) < beam or float(total.max()) > ended[-1][0]):
        d, total, stopped, state = _extend(policy, d, total, state, beam)
        if not len(stopped):
            continue
        plans = rules.plans(take(d, stopped), [instruction] * len(stopped))
        ended += zip(total[stopped].tolist(), plans, strict=True)
        ended = sorted(ended, key=lambda found: -found[0])[:beam]
        going = torch.ones_like(total, dtype=torch.bool).index_fill(0, stopped, False).nonzero()[:, 0]
        d, total, state = take(d, going), total[going], state.take(going)
    return _agreed(ended)


def _extend(
    policy: PlanPolicy, d: Obs, total: Tensor, state: DraftState, beam: int
) -> tuple[Obs, Tensor, Tensor, DraftState]:
    """The best `beam` drafts with one choice more, their log-probabilities, and which of them stopped."""
    rules = policy.rules
    correction = torch.full_like(d["length"], Correction.ABORT)
    log_p = masked(policy.type_scores(d, state), rules.task_types(d, correction)).log_softmax(1)
    best = (total[:, None] + log_p).flatten().topk(min(beam, int(log_p.isfinite().sum())))
    row, task_type = best.indices // log_p.shape[1], best.indices % log_p.shape[1]
    d, state, correction = take(d, row), state.take(row), correction[row]
    token, layers = policy.add(d, state, task_type)
    legal = rules.dependencies(d, task_type)
    scores = finite(policy.link_scores(d, state, token, task_type))
    links = (scores > 0) & legal
    certain = (torch.nn.functional.logsigmoid(scores.abs()) * legal).sum(1)
    able = rules.workers_for(d, correction, task_type, links)
    worker = masked(policy.worker_scores(d, state, token, task_type), able).log_softmax(1).max(1)
    action = {"correction": correction, "type": task_type, "links": links, "worker": worker.indices}
    with_node, stopped = rules.grow(d, action)
    state = state.with_node(d["length"], token, layers)
    return with_node, best.values + certain + worker.values, stopped.nonzero()[:, 0], state


def _agreed(ended: Sequence[tuple[float, Plan]]) -> Plan:
    weights = [math.exp(score - ended[0][0]) for score, _ in ended]
    plans = [plan for _, plan in ended]
    return max(
        plans, key=lambda plan: sum(w * _similarity(plan, other) for w, other in zip(weights, plans, strict=True))
    )


def _similarity(a: Plan, b: Plan) -> float:
    nodes = f1([n.task_type for n in a.nodes], [n.task_type for n in b.nodes])
    return nodes + f1(a.links, b.links) + (nodes >= 0.99)


def take(d: Obs, rows: Tensor) -> Obs:
    return {name: value[rows] for name, value in d.items()}
