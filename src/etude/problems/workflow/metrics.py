"""Scores of predicted plans against the expert's: node F1, link F1, accuracy.

F1 is computed over the names of nodes, then over (source, target) pairs of names: the distinct entries that both lists
have, against the length of either list, so a repeated name lowers the score. Scores are means over examples; accuracy
is the share of examples with node F1 ≥ .99.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from etude.problems.workflow.plan import Plan


@dataclass(frozen=True, kw_only=True)
class PlanScores:
    """One number per example."""

    node_f1: np.ndarray
    link_f1: np.ndarray

    @property
    def accuracy(self) -> np.ndarray:
        return (self.node_f1 >= 0.99).astype(float)

    @property
    def overall(self) -> float:
        """The validation score: the mean of the three."""
        return float((self.node_f1.mean() + self.link_f1.mean() + self.accuracy.mean()) / 3)


def score_plans(predicted: Sequence[Plan], expected: Sequence[Plan]) -> PlanScores:
    pairs = list(zip(predicted, expected, strict=True))
    nodes = [f1([n.task_type for n in p.nodes], [n.task_type for n in e.nodes]) for p, e in pairs]
    links = [f1(p.links, e.links) for p, e in pairs]
    return PlanScores(node_f1=np.array(nodes), link_f1=np.array(links))


def f1(predicted: Sequence[Hashable], expected: Sequence[Hashable]) -> float:
    if not predicted or not expected:
        return 0.0
    both = len(set(predicted) & set(expected))
    precision, recall = both / len(predicted), both / len(expected)
    return 2 * precision * recall / (precision + recall + 1e-9)
