"""Instructions to plans with a trained network: greedily for many at once, by a beam for one at a time.

A beam keeps the most probable drafts. Of the plans it ends with, the one is taken that agrees best with all of them,
each weighed by its probability (Kumar & Byrne, 2004): the most probable plan is not the least wrong one on average.
The tokens of a draft know its types alone, so the probability of a plan's subtasks does not depend on its links and
workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from etude.problems.base import Obs
from etude.problems.distributions import finite, masked
from etude.problems.workflow.encode import PolicyContext
from etude.problems.workflow.grammar import Correction
from etude.problems.workflow.hint import Hint
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


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A complete plan of a beam, with the log-probability of each of its choices."""

    plan: Plan
    log_prob: float
    """Of all choices, the most probable worker of each node included."""
    types: tuple[float, ...]
    """Of the task type of each node, then of the end of the plan."""
    links: tuple[tuple[float, ...], ...]
    """Of each node: of its dependence, or not, on each earlier node."""
    workers: tuple[float, ...]


@torch.inference_mode()
def plan_by_beam(
    policy: PlanPolicy,
    draft: Obs,
    instruction: str,
    *,
    beam: int = 5,
    reading: Reading | None = None,
    hint: Hint | None = None,
) -> Plan:
    """The plan of one draft, (1, …) tensors; `reading` is of its instruction, where that was read before."""
    return agreed(search_by_beam(policy, draft, [instruction], beam=beam, reading=reading, hint=hint)[0]).plan


@torch.inference_mode()
def search_by_beam(
    policy: PlanPolicy,
    drafts: Obs,
    instructions: Sequence[str],
    *,
    beam: int = 5,
    reading: Reading | None = None,
    hint: Hint | None = None,
) -> list[list[Candidate]]:
    """For each draft, the complete plans that its beam ends with, the most probable first. Their types differ.

    With a `hint`, the log-probabilities are less what differs from it.
    """
    rules = policy.rules
    rules.check(drafts)
    reading = reading or policy.read(drafts["instruction"])
    d, state = drafts, policy.encode_drafts(drafts, reading)
    # The rows of an instruction's drafts follow each other, as many for each; those without a probability do not count.
    total = torch.zeros((len(instructions), 1), device=rules.device)  # (instructions, beams) log-probability
    choices = torch.zeros(
        (len(instructions), 0, 2 + rules.nodes), device=rules.device
    )  # (…, steps, type + worker + links)
    ended = [list[Candidate]() for _ in instructions]
    going = list(range(len(instructions)))
    while going:
        d, total, choices, stopped, state = _extend(policy, d, total, choices, state, reading, beam, hint)
        width, flat = total.shape[1], total.flatten()
        rows = (stopped & (flat > -torch.inf)).nonzero()[:, 0]
        owners = [going[row // width] for row in rows.tolist()]
        plans = rules.plans(take(d, rows), [instructions[i] for i in owners])
        for i, *found in zip(owners, plans, flat[rows].tolist(), choices[rows].tolist(), strict=True):
            ended[i] = sorted([*ended[i], _candidate(*found)], key=lambda one: -one.log_prob)[:beam]
        total = flat.index_fill(0, rows, -torch.inf).view_as(total)
        left = [
            place
            for place, (i, best) in enumerate(zip(going, total.amax(1).tolist(), strict=True))
            if best > -math.inf and (len(ended[i]) < beam or best > ended[i][-1].log_prob)
        ]
        if len(left) < len(going):
            kept = torch.tensor(left, dtype=torch.long, device=rules.device)
            rows = (kept[:, None] * width + torch.arange(width, device=rules.device)).flatten()
            going, total, reading = [going[place] for place in left], total[kept], reading.take(kept)
            d, choices, state = take(d, rows), choices[rows], state.take(rows, reading.spread(width))
    return ended


def _candidate(plan: Plan, log_prob: float, steps: list[list[float]]) -> Candidate:
    own = list(enumerate(steps[: len(plan.nodes)]))
    return Candidate(
        plan=plan,
        log_prob=log_prob,
        types=tuple(step[0] for step in steps),
        links=tuple(tuple(step[2 : 2 + i]) for i, step in own),
        workers=tuple(step[1] for _, step in own),
    )


def _extend(
    policy: PlanPolicy,
    d: Obs,
    total: Tensor,
    choices: Tensor,
    state: DraftState,
    reading: Reading,
    beam: int,
    hint: Hint | None = None,
) -> tuple[Obs, Tensor, Tensor, Tensor, DraftState]:
    """The best `beam` drafts of each instruction with one choice more, their log-probabilities (instructions, beams)
    and choices, and which of them stopped."""
    rules, (count, width) = policy.rules, total.shape
    correction = torch.full_like(d["length"], Correction.ABORT)
    log_p = masked(policy.type_scores(d, state), rules.task_types(d, correction)).log_softmax(1)
    grown = ahead = total.flatten()[:, None] + log_p
    if hint is not None:
        own, with_missing = hint.type_costs(d["types"])
        grown, ahead = grown - own, grown - with_missing
    options = ahead.view(count, -1)  # (instructions, beams × types)
    best = options.topk(min(beam, int(options.isfinite().sum(1).max()))).indices
    wider = best.shape[1] != width
    width = best.shape[1]
    best = (best + torch.arange(count, device=best.device)[:, None] * options.shape[1]).flatten()
    total = grown.flatten()[best]
    row = best // log_p.shape[1]
    task_type = torch.where(total > -torch.inf, best % log_p.shape[1], rules.types)
    d, correction = take(d, row), correction[row]
    state = state.take(row, reading.spread(width) if wider else state.reading)
    token, layers = policy.add(d, state, task_type)
    legal = rules.dependencies(d, task_type)
    scores = finite(policy.link_scores(d, state, token, task_type))
    links, differs = (scores > 0) & legal, total.new_zeros(())
    if hint is not None:
        links, differs = hint.choose_links(task_type, d["types"], scores, legal)
    certain = F.logsigmoid(torch.where(links, scores, -scores)) * legal
    able = rules.workers_for(d, correction, task_type, links)
    worker = masked(policy.worker_scores(d, state, token, task_type), able).log_softmax(1).max(1)
    action = {"correction": correction, "type": task_type, "links": links, "worker": worker.indices}
    with_node, stopped = rules.grow(d, action)
    state = state.with_node(d["length"], token, layers)
    made = torch.cat([log_p.flatten()[best][:, None], worker.values[:, None], certain], 1)
    choices = torch.cat([choices[row], made[:, None]], 1)
    total = (total - differs + certain.sum(1) + worker.values).view(count, width)
    return with_node, total, choices, stopped, state


def agreed(ended: Sequence[Candidate]) -> Candidate:
    """The plan of a beam that agrees best with all of them."""
    weights = [math.exp(one.log_prob - ended[0].log_prob) for one in ended]
    return max(
        ended,
        key=lambda one: sum(w * _similarity(one.plan, other.plan) for w, other in zip(weights, ended, strict=True)),
    )


def _similarity(a: Plan, b: Plan) -> float:
    nodes = f1([n.task_type for n in a.nodes], [n.task_type for n in b.nodes])
    return nodes + f1(a.links, b.links) + (nodes >= 0.99)


@torch.inference_mode()
def structure_log_probs(policy: PlanPolicy, drafts: Obs) -> Tensor:
    """(n,) log-probability with which finished drafts' subtasks and links are sampled, in their order."""
    found = []
    for rows in torch.arange(len(drafts["length"])).split(TOGETHER):
        d = take(drafts, rows)
        forced, length, types = policy.teacher_forced_scores(d), d["length"], d["types"]
        legal = F.pad(d["offered"], (0, 1), value=True)[:, None].repeat(1, types.shape[1] + 1, 1)  # (n, N + 1, T + 1)
        legal[:, 0, -1] = False  # a plan has a node
        chosen = F.pad(types.clamp(min=0), (0, 1)).scatter(1, length[:, None], policy.rules.types)
        log_p = masked(forced.types, legal).log_softmax(-1).gather(-1, chosen[..., None])[..., 0]  # (n, N + 1)
        steps = torch.arange(types.shape[1] + 1) <= length[:, None]
        there = types >= 0
        earlier = torch.ones(forced.links.shape[1:], dtype=torch.bool).tril(-1) & there[..., None]  # (n, N, N)
        signed = torch.where(d["links"], forced.links, -forced.links)
        found.append((log_p * steps).sum(1) + (F.logsigmoid(signed) * earlier).sum((1, 2)))
    return torch.cat(found)


def take(d: Obs, rows: Tensor) -> Obs:
    return {name: value[rows] for name, value in d.items()}
