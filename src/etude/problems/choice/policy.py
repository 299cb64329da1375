"""A trained choice: a context and options in, one option with its propensity and what is expected of each out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.contracts.decision import Decision, DecisionRequest, Expected, LoggedDecision, Preferences
from etude.contracts.errors import DataError
from etude.contracts.option import Option
from etude.contracts.plain import plain
from etude.contracts.policy import SAMPLED
from etude.learning.artefact import Artefact
from etude.learning.explore import Explore, probabilities
from etude.problems.choice.contexts import read_context
from etude.problems.choice.model import ChoiceModel, Expectation
from etude.problems.choice.options import Offered
from etude.problems.choice.rows import COST, LATENCY, QUALITY, SUCCESS
from etude.problems.choice.settings import ChoiceConfig, ChoiceSettings

Floats = NDArray[np.float64]
TOKENS_PER_CHAR = 0.3
"""Tokens per character of text, as an upper estimate for limits of context length."""
OFFERS = 16
"""Lists of options that are remembered."""
LENGTHS = ("context_tokens", "max_context_tokens", "context_length")
"""Numbers of an option that limit the tokens of a context."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The options of one decision."""

    values: Sequence[Any]  # as they were offered, in JSON
    options: tuple[Option, ...]
    expectation: Expectation  # of one context
    utility: Floats  # (K,)
    probability: Floats  # (K,) 0 where masked
    masked: Mapping[str, str]  # reason by name

    def expected(self) -> dict[str, Expected]:
        e = self.expectation
        return {
            option.name: Expected(
                score=float(e.score[0, i]),
                score_se=float(e.error[0, i]),
                **{kind: float(e.other[kind][0, i]) for kind in (SUCCESS, QUALITY, COST, LATENCY) if kind in e.other},
                utility=float(self.utility[i]),
                probability=float(self.probability[i]),
                masked=self.masked.get(option.name),
                decisions=float(e.count[i]),
            )
            for i, option in enumerate(self.options)
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class ChoicePolicy:
    """Decides among options; re-entrant, and the same request gives the same answer."""

    model: ChoiceModel
    config: ChoiceConfig
    artefact_version: str
    problem: str = "choice"
    explore: Explore = "none"

    @property
    def version(self) -> str:
        return self.artefact_version + (SAMPLED if self.explore != "none" else "")

    @property
    def options(self) -> tuple[Option, ...]:
        """The options it has learned about."""
        return self.model.table.options

    def sampled(self) -> ChoicePolicy:
        """The same policy, exploring as its settings say, or as it has learned to."""
        return replace(self, explore=self.config.explore if self.model.policy is None else "softmax")

    def named(self, problem: str) -> ChoicePolicy:
        """The same policy, for decisions of this problem; a first one imports all that deciding needs."""
        found = replace(self, problem=problem)
        found.decide(DecisionRequest(context=""))
        return found

    def choose(
        self,
        context: Any = None,
        *,
        options: Sequence[Any] | None = None,
        quality_weight: float | None = None,
        max_cost_usd: float | None = None,
        max_latency_ms: float | None = None,
        region: str | None = None,
        allowed: Sequence[str] | None = None,
        seed: int = 0,
    ) -> Decision:
        """Choose among `options`, by default those it knows: `.action` is the option, with `.propensity`, and
        `.expected` what is expected of each."""
        try:
            preferences = msgspec.convert(
                {
                    "quality_weight": quality_weight,
                    "max_cost_usd": max_cost_usd,
                    "max_latency_ms": max_latency_ms,
                    "region": region,
                    "allowed": None if allowed is None else tuple(allowed),
                },
                Preferences,
            )
        except msgspec.ValidationError as error:
            raise DataError(f"preferences are not valid: {error}") from error
        given = None if options is None else tuple(options)
        return self.decide(DecisionRequest(context=context, options=given, preferences=preferences, seed=seed))

    def decide(self, request: DecisionRequest) -> Decision:
        scored = self.score(request.context, request.options, request.preferences)
        if not scored.probability.sum() > 0:
            why = "; ".join(f"{name}: {reason}" for name, reason in scored.masked.items())
            raise DataError(f"no option of {self.problem!r} may be chosen ({why}): offer others, or allow more")
        at = _draw(scored.probability, request.seed)
        action = scored.options[at].name if request.options is None else request.options[at]
        free = [value for i, value in enumerate(scored.values) if scored.options[i].name not in scored.masked]
        propensity = float(scored.probability[at])
        logged = LoggedDecision(
            problem=self.problem,
            context=plain(request.context),
            eligible=free,
            action=scored.options[at].name,
            propensity=propensity,
            policy=self.version,
        )
        return Decision(
            action=action, propensity=propensity, policy=self.version, logged=(logged,), expected=scored.expected()
        )

    def quality_weight(self, preferences: Preferences) -> float:
        """Weight of the score against cost."""
        return self.config.quality_weight if preferences.quality_weight is None else preferences.quality_weight

    def score(self, context: Any, options: Sequence[Any] | None, preferences: Preferences) -> Scored:
        """What is expected of each option, and with which probability it is chosen."""
        given = read_context(context)
        offered = None if options is None else self.offer(options)
        expectation = self.model.expect([given], offered)
        known = self.options if offered is None else offered.options
        weight = self.quality_weight(preferences)
        utility = expectation.utility(weight, self.model.unit_usd)
        masked = masks(known, len(self.model.reader.text_of(given)), expectation, preferences)
        free = np.array([option.name not in masked for option in known])
        probability = np.zeros(len(known))
        if free.any():
            learned = self.model.policy
            careful = expectation.careful(utility, weight) if self.explore == "none" else utility
            trust = np.where(expectation.count > 0, self.config.posterior_scale, 1.0)
            probability[free] = probabilities(
                careful[0, free],
                weight * (trust * expectation.error[0])[free],
                explore="softmax" if learned is not None and self.explore != "none" else self.explore,
                epsilon=self.config.epsilon,
                temperature=self.config.temperature if learned is None else learned.temperature,
                price=self.config.price,
            )
        return Scored(
            values=self.model.table.names if offered is None else offered.values,
            options=known,
            expectation=expectation,
            utility=utility[0],
            probability=probability,
            masked=masked,
        )

    def offer(self, options: Sequence[Any]) -> Offered:
        """Read once per list of options: agents offer the same ones again and again."""
        try:
            return self._offers(msgspec.json.encode(options))
        except (TypeError, ValueError):  # no JSON
            return self.model.table.offer(plain(options), self.model.reader.encoder)

    @cached_property
    def _offers(self) -> Callable[[bytes], Offered]:
        table, encoder = self.model.table, self.model.reader.encoder
        return lru_cache(OFFERS)(lambda options: table.offer(msgspec.json.decode(options), encoder))


def masks(options: Sequence[Option], chars: int, expectation: Expectation, preferences: Preferences) -> dict[str, str]:
    """Why an option may not be chosen, by name, for those that may not."""
    found: dict[str, str] = {}
    cost, latency = (expectation.other.get(kind) for kind in (COST, LATENCY))
    for i, option in enumerate(options):
        limit = min((option.numbers[key] for key in LENGTHS if key in option.numbers), default=None)
        regions = option.words.get("regions", option.words.get("region"))
        if preferences.allowed is not None and option.name not in preferences.allowed:
            found[option.name] = "it is not among the allowed options"
        elif option.numbers.get("available") == 0:
            found[option.name] = "it is not available"
        elif preferences.region is not None and regions is not None and preferences.region not in regions:
            found[option.name] = f"it is in {', '.join(regions)}, not in {preferences.region}"
        elif limit is not None and chars * TOKENS_PER_CHAR > limit:
            found[option.name] = f"its context of {limit:,.0f} tokens is too short for {chars:,} characters"
        elif preferences.max_cost_usd is not None and cost is not None and cost[0, i] > preferences.max_cost_usd:
            found[option.name] = f"its expected cost of {cost[0, i]:.3g} USD is above {preferences.max_cost_usd:g}"
        elif (
            preferences.max_latency_ms is not None
            and latency is not None
            and latency[0, i] > preferences.max_latency_ms
        ):
            found[option.name] = f"its expected {latency[0, i]:,.0f} ms are above {preferences.max_latency_ms:g}"
    return found


def _draw(probability: Floats, seed: int) -> int:
    """An index with these probabilities."""
    at = int(np.searchsorted(np.cumsum(probability), random.Random(seed).random() * probability.sum(), side="right"))
    at = min(at, len(probability) - 1)
    return at if probability[at] > 0 else int(probability.argmax())


def load(artefact: Artefact, *, explore: Explore | None = None) -> ChoicePolicy:
    """The policy of an artefact. It takes the best option, unless `explore` names how it explores."""
    from etude.learning.saved_settings import read_own
    from etude.problems.choice.state import read_model

    return ChoicePolicy(
        model=read_model(artefact),
        config=read_own(ChoiceSettings, artefact.manifest.settings, source=artefact.path).choice,
        artefact_version=artefact.version,
        explore=explore or "none",
    )
