"""Which subtask is to blame for a workflow that failed? Attempts, with verdicts on whole workflows, in; credit out.

A workflow succeeds if its plan suits the request and every worker does its subtask right (a noisy AND). Neither is
observed, so both are estimated by expectation maximisation: a plan that succeeded once suits its request, and then its
failures are the workers'; a worker whose other workflows succeed is not blamed for one that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.problems.workflow.attempts import Attempt

Floats = NDArray[np.float64]
PRIOR_STRENGTH = 2.0
"""Attempts that the prior of a worker, and of a plan, is worth."""
PRIOR_RIGHT = 0.9
"""Prior probability that a worker does right what it reports as done."""
ITERATIONS = 50
EDGE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Credit:
    """Of each attempt, (n,)."""

    right: Floats
    """The probability that it did its subtask right: 0 if it failed, 1 if the workflow succeeded."""
    suits: Floats
    """The probability that the plan suits the request: what a worker does in a wrong plan says little about it."""


def assign_credit(attempts: Sequence[Attempt], *, by_worker: bool = True) -> Credit:
    """In a workflow that failed, blame is shared by what else is known of the plan, and of each worker at each task
    type; with `by_worker` False of the task type alone, so that no worker is favoured by its other attempts.

    An attempt of a workflow without a verdict on the whole is right if it is done, and its plan suits.
    """
    found = Credit(right=np.array([float(a.done) for a in attempts]), suits=np.ones(len(attempts)))
    judged = [i for i, a in enumerate(attempts) if a.whole is not None]
    if not judged:
        return found
    those = [attempts[i] for i in judged]
    done = np.array([a.done for a in those])
    cell = _numbered([(a.task_type, a.worker if by_worker else "") for a in those])
    workflow = _numbered([a.trajectory for a in those])
    first = [those[i] for i in np.unique(workflow, return_index=True)[1]]  # one attempt of each workflow
    success = np.array([bool(a.whole) for a in first])
    unfinished = np.array([not a.finished for a in first]) & ~success  # a visible failure explains these
    case = _numbered([(a.request, a.plan) for a in first])  # a plan for a request
    plan = _numbered([a.plan for a in first])[np.unique(case, return_index=True)[1]]  # (cases,)
    proved = np.bincount(case, success) > 0
    right, suits = np.full(cell.max() + 1, PRIOR_RIGHT), np.full(plan.max() + 1, 0.5)
    tried, uses = np.bincount(cell, done), np.bincount(plan)
    z, suitable = right[cell], suits[plan]
    for _ in range(ITERATIONS):
        all_right = np.exp(np.bincount(workflow, done * np.log(right[cell])))  # (workflows,)
        failing = np.where(success | unfinished, 0.0, np.log1p(-np.minimum(all_right, 1 - EDGE)))
        odds = suits[plan] * np.exp(np.bincount(case, failing))
        suitable = np.where(proved, 1.0, odds / np.maximum(odds + 1 - suits[plan], EDGE))  # (cases,)
        r, p, at = suitable[case][workflow], all_right[workflow], right[cell]
        z = (1 - r) * at + r * np.clip((at - p) / np.maximum(1 - p, EDGE), 0, 1)
        z = done * np.where(unfinished[workflow], at, np.where(success[workflow], 1.0, z))
        right = (PRIOR_STRENGTH * PRIOR_RIGHT + np.bincount(cell, z)) / (PRIOR_STRENGTH + tried)
        usual = float(suitable.mean())
        suits = (PRIOR_STRENGTH * usual + np.bincount(plan, suitable)) / (PRIOR_STRENGTH + uses)
    found.right[judged], found.suits[judged] = z, suitable[case][workflow]
    return found


def _numbered(keys: Sequence[object]) -> NDArray[np.intp]:
    """Each key by its number among the distinct ones."""
    numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys])
