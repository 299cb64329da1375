"""How sure a planner is of its plan: the plans of a beam in, a plan with its probability and its doubts out.

The probability is that of one event: the plan has exactly the right subtasks (node F1 ≥ .99 against the expert's plan).
Plans of the beam that differ in the order of subtasks, in links or in workers have the same subtasks, so their
probabilities are added. A calibration, fitted on examples that the network has not learned from, maps the sum to a
frequency (Platt, 1999).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import TypeAlias

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from etude.problems.base import Obs
from etude.problems.workflow.decode import Candidate, agreed, search_by_beam
from etude.problems.workflow.encode import type_columns
from etude.problems.workflow.metrics import score_plans
from etude.problems.workflow.network import PlanPolicy, Reading
from etude.problems.workflow.plan import Plan
from etude.problems.workflow.similarity import PART, WHERE

Floats: TypeAlias = NDArray[np.float64]

MIN_UNCOVERED = 0.5
"""A task type counts as asked and not covered if it is more likely than not."""
MAX_DOUBTS = 3
MAX_DOUBTED = 0.9
"""A choice is a doubt if its own probability is below this."""
MIN_VOTE, MIN_SHARE = 0.1, 0.02
"""A task type outside the plan is considered if past queries vote for it, or plans of the beam contain it."""
SCALES = np.array([1.0, 2.0])
"""Typical size of 1 and of log-odds, so that one prior suits both weights."""
COVERAGE_SCALES = np.array([1.0, 0.2, 2.0, 0.3, 2.0, 0.2])
"""The same for 1 and the coverage features."""
PRIOR_STRENGTH = 1.0
"""Weight of the prior of each parameter, in squared units of its typical size."""
EDGE = 1e-4
CALIBRATION = "calibration"
"""Name of a calibration among the details of a policy."""


class Doubt(Struct, frozen=True, kw_only=True):
    """A choice of the plan with the probability that the network gives it."""

    node: int
    part: str
    """task type, link, worker, or end: that nothing follows the node."""
    choice: str
    probability: float


class Uncovered(Struct, frozen=True, kw_only=True):
    """A task type that the instruction seems to ask for and the plan does not contain."""

    task_type: str
    probability: float


class Alternative(Struct, frozen=True, kw_only=True):
    """A plan with other subtasks."""

    plan: Plan
    probability: float
    """Of exactly these subtasks being right."""
    probability_with_links: float
    """Of the links between them being right as well."""


class Proposal(Struct, frozen=True, kw_only=True):
    """A plan, how sure the planner is of it, and the next best plans."""

    plan: Plan
    probability: float
    """Of exactly these subtasks being right, in whatever order and by whichever workers."""
    probability_with_links: float
    """Of the links between them being right as well."""
    calibrated: bool
    """Whether the probabilities are calibrated on examples that the network has not learned from."""
    doubts: tuple[Doubt, ...]
    """The least certain choices of the plan."""
    uncovered: tuple[Uncovered, ...]
    """What was asked and is not covered."""
    alternatives: tuple[Alternative, ...]
    """The next best plans, the most probable first."""


class Hinted(Struct, frozen=True, kw_only=True):
    """Plans that were made near hints, for held-out examples."""

    cost: float
    """Of a difference from the hint, in log-probability."""
    examples: int
    kept: float
    """Share of the right hints that were kept."""
    mended: float
    """Share of the wrong hints in place of which the right plan was made."""

    def error(self, share: float) -> float:
        """The standard error of the share of right plans, with one more plan of each outcome."""
        n = self.examples + 2
        parts = ((share, self.kept), (1 - share, self.mended))
        smooth = [(weight, (self.examples * p + 1) / n) for weight, p in parts]
        return float(np.sqrt(sum(weight**2 * p * (1 - p) / n for weight, p in smooth)))


class Calibration(Struct, frozen=True, kw_only=True):
    """Weights of three logistic regressions, each with its constant first. The defaults are those of no calibration."""

    examples: int = 0
    """Number of held-out examples that it was fitted on."""
    subtasks: tuple[float, ...] = (0.0, 1.0)
    """From the log-odds of the beam that the subtasks are right."""
    links: tuple[float, ...] = (0.0, 1.0)
    """From the log-odds that the links are right if the subtasks are."""
    coverage: tuple[float, ...] = (-1.45, 2.77, 0.24, 1.45, 0.16, 1.01)
    """From what speaks for a task type outside the plan; the default was fitted on UltraTool."""
    hints: tuple[Hinted, ...] = ()
    """How plans near a hint turn out, by what a difference from it costs; empty where that was not tried."""

    def hint_cost(self, share: float) -> float | None:
        """The cost at which most plans near hints are right if a `share` of the hints is; None if that is fewer than
        the hints themselves, by more than chance."""
        gains = [
            (share * one.kept + (1 - share) * one.mended - share - one.error(share), one.cost) for one in self.hints
        ]
        best, cost = max(gains, default=(0.0, 0.0))
        return cost if best > 0 else None


UNCALIBRATED = Calibration()


@dataclass(frozen=True, kw_only=True)
class Beam:
    """The plans that a search ended with, and what speaks for each of the catalogue's T task types."""

    candidates: Sequence[Candidate]
    task_types: Sequence[str]
    votes: Floats  # (T,): of similar past queries
    parts: Floats  # (T,): similarity of the most similar part of the instruction
    places: Floats  # (T,): where that part is, 0 to 1

    @property
    def chosen(self) -> Candidate:
        return agreed(self.candidates)


@torch.inference_mode()
def search(
    policy: PlanPolicy, drafts: Obs, instructions: Sequence[str], *, beam: int = 5, reading: Reading | None = None
) -> list[Beam]:
    """The beam of each draft."""
    context, rows = policy.context, drafts["instruction"]
    similarity = context.encoded.similarity[rows].double().cpu().numpy()  # (n, T, SIMILARITIES)
    votes = type_columns(context, context.encoded.votes[rows]).double().cpu().numpy()  # (n, T)
    return [
        Beam(
            candidates=candidates,
            task_types=[entry.name for entry in policy.rules.catalogue.task_types],
            votes=voted,
            parts=similar[:, PART],
            places=similar[:, WHERE],
        )
        for candidates, voted, similar in zip(
            search_by_beam(policy, drafts, instructions, beam=beam, reading=reading), votes, similarity, strict=True
        )
    ]


def propose(
    found: Beam, calibration: Calibration | None, *, count: int = 3, assign: Callable[[Plan], Plan] | None = None
) -> Proposal:
    """The plan that a beam agrees on, with at most `count` alternatives; `assign` gives plans other workers.

    The network's probabilities of workers are no doubts then: it does not choose them.
    """
    give = assign or (lambda plan: plan)
    weights, chosen = calibration or UNCALIBRATED, found.chosen
    mass = _mass(found.candidates)
    own = mass.pop(_subtasks(chosen.plan))
    probability = _logistic(weights.subtasks, [_log_odds(own)])
    links = _logistic(weights.links, [_log_odds(_links_share(chosen, found.candidates))])
    left = (1 - probability) / max(1 - own, EDGE)  # what calibration leaves to the others, in proportion
    others = sorted(mass, key=lambda subtasks: -mass[subtasks])[:count]
    return Proposal(
        plan=give(chosen.plan),
        probability=probability,
        probability_with_links=probability * links,
        calibrated=calibration is not None,
        doubts=_doubts(found, chosen, workers=assign is None),
        uncovered=_uncovered(found, chosen, weights.coverage),
        alternatives=tuple(
            _alternative(subtasks, min(1 - probability, left * mass[subtasks]), found, weights, give)
            for subtasks in others
        ),
    )


def _alternative(
    subtasks: tuple[str, ...], probability: float, found: Beam, weights: Calibration, give: Callable[[Plan], Plan]
) -> Alternative:
    same = [one for one in found.candidates if _subtasks(one.plan) == subtasks]
    best = max(same, key=lambda one: one.log_prob)
    links = _logistic(weights.links, [_log_odds(_links_share(best, same))])
    return Alternative(plan=give(best.plan), probability=probability, probability_with_links=probability * links)


def _subtasks(plan: Plan) -> tuple[str, ...]:
    return tuple(sorted(node.task_type for node in plan.nodes))


def _mass(candidates: Sequence[Candidate]) -> dict[tuple[str, ...], float]:
    """The probability of each set of subtasks, over the orders that the beam has of it."""
    found: dict[tuple[str, ...], float] = {}
    for one in candidates:
        subtasks = _subtasks(one.plan)
        found[subtasks] = found.get(subtasks, 0.0) + exp(sum(one.types))
    return found


def _links_share(chosen: Candidate, candidates: Sequence[Candidate]) -> float:
    """The probability of the plan's links, given its subtasks."""
    same = [one for one in candidates if _subtasks(one.plan) == _subtasks(chosen.plan)]
    linked = [one for one in same if sorted(one.plan.links) == sorted(chosen.plan.links)]
    with_links = sum(exp(sum(one.types) + sum(map(sum, one.links))) for one in linked)
    return with_links / max(sum(exp(sum(one.types)) for one in same), 1e-300)


def _doubts(found: Beam, chosen: Candidate, *, workers: bool) -> tuple[Doubt, ...]:
    """The least certain choices. For task types, whose order is free, the share of the beam that has them counts."""
    shares, nodes = _shares(found.candidates), chosen.plan.nodes
    total = sum(_mass(found.candidates).values())
    doubts = []
    for i, node in enumerate(nodes):
        p = shares[node.task_type] / total
        doubts.append(Doubt(node=i, part="task type", choice=node.task_type, probability=p))
        if workers and node.worker is not None:
            doubts.append(Doubt(node=i, part="worker", choice=node.worker, probability=exp(chosen.workers[i])))
        for j, log_prob in enumerate(chosen.links[i]):
            word = "after" if j in node.dependencies else "not after"
            choice = f"{word} {nodes[j].task_type}"
            doubts.append(Doubt(node=i, part="link", choice=choice, probability=exp(log_prob)))
    doubts.append(Doubt(node=len(nodes) - 1, part="end", choice="nothing more", probability=exp(chosen.types[-1])))
    doubts = [doubt for doubt in doubts if doubt.probability < MAX_DOUBTED]
    return tuple(sorted(doubts, key=lambda doubt: doubt.probability)[:MAX_DOUBTS])


def _shares(candidates: Sequence[Candidate]) -> dict[str, float]:
    """For each task type, the probability of the plans of the beam that contain it."""
    found: dict[str, float] = {}
    for one in candidates:
        for name in {node.task_type for node in one.plan.nodes}:
            found[name] = found.get(name, 0.0) + exp(sum(one.types))
    return found


def _uncovered(found: Beam, chosen: Candidate, weights: Sequence[float]) -> tuple[Uncovered, ...]:
    names, features = _outside(found, chosen)
    rated = [
        Uncovered(task_type=name, probability=_logistic(weights, row))
        for name, row in zip(names, features, strict=True)
    ]
    asked = [one for one in rated if one.probability >= MIN_UNCOVERED]
    return tuple(sorted(asked, key=lambda one: -one.probability))


def _outside(found: Beam, chosen: Candidate) -> tuple[list[str], Floats]:
    """Task types outside the plan that something speaks for, and their features (types, 5).

    Votes, log-odds in the beam, votes against the plan's weakest subtask, similarity against its most similar subtask,
    and how far the words for it are from those for any subtask of the plan.
    """
    names, shares = found.task_types, _shares(found.candidates)
    planned = {node.task_type for node in chosen.plan.nodes}
    own = [i for i, name in enumerate(names) if name in planned]
    outside = [
        i
        for i, name in enumerate(names)
        if name not in planned and (found.votes[i] >= MIN_VOTE or shares.get(name, 0.0) >= MIN_SHARE)
    ]
    votes, parts, places = (values[outside] for values in (found.votes, found.parts, found.places))
    beam = [_log_odds(shares.get(names[i], 0.0)) for i in outside]
    ahead, nearer = votes - found.votes[own].min(), parts - found.parts[own].max()
    away = np.abs(places[:, None] - found.places[own]).min(1)
    return [names[i] for i in outside], np.column_stack([votes, beam, ahead, nearer, away])


def fit_calibration(beams: Sequence[Beam], expected: Sequence[Plan]) -> Calibration:
    """The calibration of a planner by the expert's plans for held-out examples."""
    chosen = [found.chosen for found in beams]
    right = score_plans([one.plan for one in chosen], expected).accuracy
    own = [_log_odds(_mass(found.candidates)[_subtasks(one.plan)]) for found, one in zip(beams, chosen, strict=True)]
    shares, linked, features, missing = [], [], [np.zeros((0, 5))], []
    for found, one, plan, is_right in zip(beams, chosen, expected, right, strict=True):
        if is_right:
            shares.append(_log_odds(_links_share(one, found.candidates)))
            linked.append(sorted(one.plan.links) == sorted(plan.links))
        names, rows = _outside(found, one)
        features.append(rows)
        missing += [name in _subtasks(plan) for name in names]
    prior = UNCALIBRATED
    return Calibration(
        examples=len(beams),
        subtasks=_fit(np.array(own).reshape(-1, 1), right, prior.subtasks),
        links=_fit(np.array(shares).reshape(-1, 1), np.array(linked, float), prior.links),
        coverage=_fit(np.concatenate(features), np.array(missing, float), prior.coverage, COVERAGE_SCALES),
    )


def _fit(x: Floats, y: Floats, prior: Sequence[float], scales: Floats = SCALES) -> tuple[float, ...]:
    """Logistic regression (n, k) → (n,) by Newton's method, with a normal prior around `prior`."""
    z = np.column_stack([np.ones(len(y)), x]) / scales  # (n, 1 + k)
    centre = np.array(prior) * scales
    w = centre.copy()
    for _ in range(50):
        p = _sigmoid(z @ w)
        gradient = z.T @ (p - y) + PRIOR_STRENGTH * (w - centre)
        hessian = (z * (p * (1 - p))[:, None]).T @ z + PRIOR_STRENGTH * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient)
        w -= step / max(1.0, float(np.abs(step).max()))  # at most 1: far from the end Newton's step may be too long
        if np.abs(step).max() < 1e-9:
            break
    return tuple((w / scales).tolist())


def _logistic(weights: Sequence[float], features: Sequence[float] | Floats) -> float:
    return float(_sigmoid(weights[0] + np.dot(weights[1:], features)))


def _sigmoid(x: Floats | float) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -40.0, 40.0))))


def _log_odds(probability: float) -> float:
    p = min(max(probability, EDGE), 1 - EDGE)
    return float(np.log(p / (1 - p)))
