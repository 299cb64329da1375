"""How near a predicted plan is to the expert's: node F1, link F1, accuracy.

Over the names of nodes, then over (source, target) pairs of names: what is in both, once, against the length of either
list, so that a repeated name counts against the plan. Means over examples; accuracy is the share with node F1 ≥ .99.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from etude.problems.workflow.plan import Plan


@dataclass(frozen=True, kw_only=True)
class PlanScores:
    """One number an example."""

    node_f1: np.ndarray
    link_f1: np.ndarray

    @property
    def accuracy(self) -> np.ndarray:
        return (self.node_f1 >= 0.99).astype(float)

    @property
    def overall(self) -> float:
        """What validation goes by: the mean of the three."""
        return float((self.node_f1.mean() + self.link_f1.mean() + self.accuracy.mean()) / 3)


def score_plans(predicted: Sequence[Plan], wanted: Sequence[Plan]) -> PlanScores:
    pairs = list(zip(predicted, wanted, strict=True))
    nodes = [f1([n.task_type for n in p.nodes], [n.task_type for n in w.nodes]) for p, w in pairs]
    links = [f1(p.links, w.links) for p, w in pairs]
    return PlanScores(node_f1=np.array(nodes), link_f1=np.array(links))


def f1(predicted: Sequence[Hashable], wanted: Sequence[Hashable]) -> float:
    if not predicted or not wanted:
        return 0.0
    both = len(set(predicted) & set(wanted))
    precision, recall = both / len(predicted), both / len(wanted)
    return 2 * precision * recall / (precision + recall + 1e-9)
