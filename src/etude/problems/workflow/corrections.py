"""Corrections by the kind of fault, for planners that have not learned to correct: one failed draft in, an action out.

What may pass by itself is tried once more, what is beyond a worker is given to another, and what cannot be had is
skipped.
"""

from __future__ import annotations

import torch
from torch import Generator

from etude.problems.base import Action, Obs
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import Correction, Rules


def correct_by_fault(rules: Rules, draft: Obs) -> Action:
    """For one failed draft, (1, …) tensors; another worker is the one with the best share of success so far."""
    category, attempts = int(draft["error"]), int(draft["attempts"][0, int(draft["failed"])])
    wanted = [Correction.SWITCH, Correction.RETRY]
    if category == ErrorCategory.TRANSIENT and attempts == 1:
        wanted.reverse()
    if category in (ErrorCategory.MISSING_INPUT, ErrorCategory.NOT_APPLICABLE):
        wanted = []
    allowed = rules.corrections(draft)[0]
    chosen = next((one for one in (*wanted, Correction.SKIP) if allowed[one]), Correction.ABORT)
    worker = 0
    if chosen == Correction.SWITCH:
        others = substitutes(rules, draft)
        success, price = draft["success"][0].tolist(), draft["price"][0].tolist()
        worker = max(others, key=lambda i: (success[i], -price[i]))
    return correction(rules, chosen, worker)


def substitutes(rules: Rules, draft: Obs) -> list[int]:
    """Workers that the failed node may be switched to."""
    if not rules.corrections(draft)[0, Correction.SWITCH]:
        return []
    action = correction(rules, Correction.SWITCH, 0)
    legal = rules.workers_for(draft, action["correction"], action["type"], action["links"])[0]
    found: list[int] = legal.nonzero()[:, 0].tolist()
    return found


def correction(rules: Rules, chosen: Correction, worker: int) -> Action:
    """An action that adds no node."""
    return {
        "correction": torch.tensor([int(chosen)]),
        "type": torch.tensor([rules.types]),
        "links": torch.zeros((1, rules.nodes), dtype=torch.bool),
        "worker": torch.tensor([worker]),
    }


def explore_correction(rules: Rules, draft: Obs, usual: Action, share: float, rng: Generator) -> tuple[Action, float]:
    """The usual correction or, in this share of cases, a retry or a switch at random; with its probability."""
    ways = [correction(rules, Correction.SWITCH, worker) for worker in substitutes(rules, draft)]
    if rules.corrections(draft)[0, Correction.RETRY]:
        ways.append(correction(rules, Correction.RETRY, 0))
    if not ways:
        return usual, 1.0
    explores = float(torch.rand((), generator=rng, dtype=torch.float64)) < share
    chosen = ways[int(torch.randint(len(ways), (), generator=rng))] if explores else usual
    is_usual, is_way = _same(chosen, usual), any(_same(chosen, way) for way in ways)
    return chosen, (1 - share) * is_usual + share * is_way / len(ways)


def _same(a: Action, b: Action) -> bool:
    if int(a["correction"]) != int(b["correction"]):
        return False
    return int(a["correction"]) != Correction.SWITCH or int(a["worker"]) == int(b["worker"])
