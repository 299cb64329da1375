"""The section of etude.yaml that choices read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from etude.learning.explore import Explore


@dataclass(frozen=True, kw_only=True)
class ChoiceConfig:
    """Choices among described options."""

    encoder: str = "fast"
    """How text is read: ngrams, fast, minilm, or https://host/v1#model."""
    score: Literal["reward", "success", "quality"] = "reward"
    """What is maximised in logged decisions: the dataset's reward, or a part of the outcome."""
    quality_weight: Annotated[float, Ge(0), Le(1)] = 1.0
    """Weight of the score against cost, unless a decision says otherwise: 1 is the score alone."""
    max_mean_cost_usd: Annotated[float, Gt(0)] | None = None
    """USD that a choice may cost on average, among the options that are offered, in contexts of the past: the quality
    weight is lowered until it does; null is no limit. Policies that serve a slot keep to it as soon as it is set."""
    half_life_rows: Annotated[int, Gt(0)] | None = None
    """Number of newer rows after which a row counts half; null never fades."""
    sample: Annotated[int, Ge(100)] = 20_000
    """Rows on which features, clusters and ridges are chosen; all rows are learned from."""
    explore: Explore = "thompson"
    """How it explores where exploring is asked for: none, epsilon, softmax, thompson or priced."""
    epsilon: Annotated[float, Gt(0), Le(1)] = 0.1
    """For `epsilon`: probability of choosing any option."""
    temperature: Annotated[float, Gt(0)] = 0.1
    """For `softmax`: difference of utility that makes an option e times as probable."""
    posterior_scale: Annotated[float, Gt(0)] = 0.5
    """For `thompson`: factor of the standard errors of options with a past; below 1 it explores less than they say."""
    price: Annotated[float, Gt(0), Lt(1)] = 0.02
    """For `priced`: maximum share of the expected reward that exploring may cost."""


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings:
    choice: ChoiceConfig = field(default_factory=ChoiceConfig)
