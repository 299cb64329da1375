"""What is expected of each option: a context and options in, expected scores, costs and latencies out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.contracts.errors import CheckpointError
from etude.contracts.ports import TextEncoder
from etude.learning.checkpoint import under
from etude.learning.outcome_model import FEW, OutcomeModel
from etude.problems.choice.contexts import Context, ContextReader
from etude.problems.choice.logits import LEARNED, Logits
from etude.problems.choice.memory import Memory
from etude.problems.choice.options import Offered, OptionTable
from etude.problems.choice.rows import COST, QUALITY, SCORE, SUCCESS

Floats = NDArray[np.float64]
MIN_MULTIPLE = 0.05
"""Least expected cost or latency, as a multiple of what a text of that length usually takes."""
HALVINGS = 40
"""Steps of the search for a quality weight: contexts that differ little differ little in the weight that decides."""
SHARES = (SUCCESS, QUALITY)
"""Kinds of outcome between 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """Mean score and cost of choices over past rows, by weight of quality, from folds that did not see the row; with a
    sample of m past contexts, for other options than those."""

    weight: Floats
    score: Floats
    cost_usd: Floats
    features: NDArray[np.floating[Any]] = field(default_factory=lambda: np.zeros((0, 0)))  # (m, D)
    length: Floats = field(default_factory=lambda: np.zeros(0))  # (m,) characters

    def weight_for(self, score: float) -> float:
        """The quality weight of lowest cost at which past rows reach `score`; if none does, the best one."""
        enough = self.score >= min(score, float(self.score.max()))
        return float(self.weight[np.where(enough, self.cost_usd, np.inf).argmin()])

    def weight_within(self, cost_usd: float) -> float:
        """The quality weight of highest score at which past rows cost at most this on average; if none does, the
        cheapest."""
        within = self.cost_usd <= max(cost_usd, float(self.cost_usd.min()))
        return float(self.weight[np.where(within, self.score, -np.inf).argmax()])


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Of n contexts and K options."""

    score: Floats  # (n, K)
    error: Floats  # (n, K) standard error of the score
    other: Mapping[str, Floats]  # by kind, (n, K)
    count: Floats  # (K,) past outcomes

    def row(self, i: int) -> Expectation:
        """Of one context."""
        own = slice(i, i + 1)
        return Expectation(
            score=self.score[own],
            error=self.error[own],
            other={kind: table[own] for kind, table in self.other.items()},
            count=self.count,
        )

    def cost(self) -> Floats:
        return self.other[COST] if COST in self.other else np.zeros_like(self.score)

    def utility(self, weight: float, unit_usd: float) -> Floats:
        """(n, K): score and cost, weighed, with what whole tasks taught; between equals the cheaper."""
        found: Floats = weight * self.score
        if COST in self.other:
            found -= (1 - weight + 1e-9) * self.other[COST] / unit_usd
        return found + self.other[LEARNED] if LEARNED in self.other else found

    def careful(self, utility: Floats, weight: float) -> Floats:
        """The utility, less a standard error for options with few past outcomes, or none."""
        lowered: Floats = utility - np.where(self.count >= FEW, 0, weight * self.error)
        return lowered


def amount(multiple: Floats, line: Floats, length: Floats) -> Floats:
    """(n, K) costs or latencies of texts of these lengths (n, 1), from multiples of what such texts usually take."""
    found: Floats = np.maximum(multiple, MIN_MULTIPLE) * np.maximum(line[0] + line[1] * length, 0)
    return np.asarray(np.maximum(found, line[2]))


@dataclass(frozen=True, kw_only=True)
class ChoiceModel:
    """Everything that a choice's artefact holds. K known options."""

    reader: ContextReader
    outcomes: OutcomeModel
    table: OptionTable
    lines: Mapping[str, Floats]  # of cost and latency: (3, K) per call, per character of the text, the least observed
    between: float  # standard error with which a description predicts an option's mean score
    unit_usd: float  # mean cost of the best single option: what costs are weighed in
    best_single: str
    frontier: Frontier
    memory: Memory  # of past rows, to explain choices
    policy: Logits | None = None  # learned from the rewards of whole tasks

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.outcomes.kinds

    @cached_property
    def knows_little(self) -> bool:
        """Whether an option has few past outcomes."""
        return bool((self.outcomes.parts[0].count < FEW).any())

    def length(self, contexts: Sequence[Context]) -> Floats:
        return np.array([float(len(self.reader.text_of(context))) for context in contexts])

    def expect(
        self,
        contexts: Sequence[Context],
        offered: Offered | None = None,
        *,
        read: NDArray[np.float32] | None = None,
        errors: bool = True,
    ) -> Expectation:
        """For known options, or any others: a new one is expected to do what those like it did. `read` are the
        features of the contexts, where they are known. Without `errors`, standard errors are nan: they take longer
        than the rest."""
        found = self.reader(contexts) if read is None else read
        return self._expect(found, lambda: self.length(contexts), offered, errors=errors)

    def _expect(
        self,
        read: NDArray[np.floating[Any]],
        lengths: Callable[[], Floats],
        offered: Offered | None,
        *,
        errors: bool = True,
    ) -> Expectation:
        features = read.astype(np.float64)
        found = dict(zip(self.kinds, self.outcomes.expect(features), strict=True))
        if self.lines:
            length = lengths()[:, None]
            for kind, line in self.lines.items():
                found[kind] = amount(found[kind], line, length)
        for kind in SHARES:
            if kind in found:
                found[kind] = np.minimum(np.maximum(found[kind], 0), 1)
        if self.policy is not None:
            found[LEARNED] = self.policy.learned(features)
        count = self.outcomes.parts[0].count
        error = self.outcomes.standard_error(features) if errors else None
        if offered is not None:
            if not offered.are_known:
                found = {kind: table @ offered.mix.T for kind, table in found.items()}
                count = np.where(offered.is_new, 0, offered.mix @ count)
            if COST in found:
                found[COST] = found[COST] * offered.price
            if offered.has_new:
                for kind, own in offered.declared.items():
                    if kind in found:
                        found[kind] = np.where(offered.is_new & np.isfinite(own), own, found[kind])
            if error is not None:
                between = np.where(offered.is_new, self.between**2, 0)
                error = np.sqrt(np.square(error) @ np.square(offered.mix.T) + between)
        if error is None:
            error = np.full((len(features), len(count)), np.nan)
        return Expectation(score=found.pop(SCORE), error=error, other=found, count=count)

    def weight_within(
        self, cost_usd: float, offered: Offered | None = None, explored: Callable[[Floats], Floats] | None = None
    ) -> float:
        """The quality weight of highest expected score at which choices among these options cost at most this on
        average, in past contexts and at today's prices; if none does, the cheapest. `explored` gives the probabilities
        of options (n, K) from their utilities, where choices are sampled."""
        known = self.frontier
        if not len(known.features) or (offered is None and explored is None):
            return known.weight_within(cost_usd)
        expected = self._expect(known.features, lambda: known.length, offered)
        cost, rows = expected.cost(), np.arange(len(known.features))

        def is_within(weight: float) -> bool:
            utility = expected.utility(weight, self.unit_usd)
            if explored is not None:
                return bool((explored(utility) * cost).sum(1).mean() <= cost_usd)
            return bool(cost[rows, expected.careful(utility, weight).argmax(1)].mean() <= cost_usd)

        low, high = 0.0, 1.0  # both the expected score and the cost rise with the weight
        if is_within(high):
            return high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if is_within(middle) else (low, middle)
        return low

    def tensors(self) -> dict[str, NDArray[Any]]:
        found = {f"reader.{name}": x for name, x in self.reader.tensors().items()}
        found |= {f"outcomes.{name}": x for name, x in self.outcomes.tensors().items()}
        found |= {f"lines.{kind}": x for kind, x in self.lines.items()}
        found |= {f"frontier.{name}": x for name, x in vars(self.frontier).items()}
        found |= {f"memory.{name}": x for name, x in self.memory.tensors().items()}
        found |= {f"policy.{name}": x for name, x in vars(self.policy).items()} if self.policy is not None else {}
        return found | {"options": self.table.vectors}

    def to_json(self) -> dict[str, Any]:
        return {
            "reader": self.reader.to_json(),
            "outcomes": self.outcomes.to_json(),
            "table": self.table.to_json(),
            "lines": list(self.lines),
            "between": self.between,
            "unit_usd": self.unit_usd,
            "best_single": self.best_single,
            "policy": self.policy is not None,
        }

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any], encoder: TextEncoder
    ) -> ChoiceModel:
        try:
            lines = {kind: tensors[f"lines.{kind}"] for kind in about["lines"]}
            if any(len(line) != 3 for line in lines.values()):
                raise ValueError("lines of costs without the least observed")
            return cls(
                reader=ContextReader.from_state(under("reader.", tensors), about["reader"], encoder),
                outcomes=OutcomeModel.from_state(under("outcomes.", tensors), about["outcomes"]),
                table=OptionTable.from_state(tensors["options"], about["table"]),
                lines=lines,
                between=about["between"],
                unit_usd=about["unit_usd"],
                best_single=about["best_single"],
                frontier=Frontier(**under("frontier.", tensors)),
                memory=Memory.from_state(under("memory.", tensors)),
                policy=Logits(**under("policy.", tensors)) if about.get("policy") else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"a choice's artefact is not complete ({error!r}): train it again") from error
