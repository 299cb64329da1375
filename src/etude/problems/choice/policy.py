"""A trained choice: a context and options in, one option with its propensity and what is expected of each out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.contracts.arguments import read_context as check_context
from etude.contracts.arguments import read_preferences, read_required_count
from etude.contracts.decision import Decision, DecisionRequest, Expected, LoggedDecision, NoOptionError, Preferences
from etude.contracts.errors import ConfigError, DataError
from etude.contracts.option import DECLARED, Option, check_offer, exceeds, limits, option_name, read_options, why_not
from etude.contracts.plain import plain
from etude.contracts.policy import SAMPLED
from etude.contracts.suggestions import nearest
from etude.learning.artefact import Artefact
from etude.learning.explore import Explore, probabilities
from etude.problems.choice.contexts import Context, read_context
from etude.problems.choice.model import ChoiceModel, Expectation
from etude.problems.choice.options import Offered
from etude.problems.choice.rows import COST, LATENCY, QUALITY, SUCCESS
from etude.problems.choice.settings import ChoiceConfig, ChoiceSettings
from etude.text.ngrams import NGramEncoder
from etude.text.static import StaticEncoder

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
    together: Expectation  # of all contexts that were computed together
    row: int  # of the one that this is about
    utility: Floats  # (K,)
    probability: Floats  # (K,) 0 where masked
    masked: Mapping[str, str]  # reason by name

    @property
    def expectation(self) -> Expectation:
        """Of one context."""
        return self.together.row(self.row)

    def free(self) -> Sequence[Any]:
        """The options that may be chosen, in JSON; the same object where they are those that were offered."""
        if not self.masked:
            return self.values
        return [value for value, one in zip(self.values, self.options, strict=True) if one.name not in self.masked]

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
        preferences = read_preferences(
            quality_weight=quality_weight,
            max_cost_usd=max_cost_usd,
            max_latency_ms=max_latency_ms,
            region=region,
            allowed=allowed,
        )
        if options is not None:
            check_offer(options)
        for name in preferences.allowed or ():
            names = [option_name(one) for one in options] if options is not None else self.model.table.names
            if name not in names:
                raise DataError(f"allowed has {name!r}, which is none of the options{nearest(name, names)}")
        request = DecisionRequest(
            context=check_context(context),
            options=None if options is None else tuple(options),
            preferences=preferences,
            seed=read_required_count("seed", seed),
        )
        return self.decide(request)

    @property
    def quick(self) -> bool:
        """Whether contexts are read without a network or a service."""
        return not self.model.reader.has_text or isinstance(self.model.reader.encoder, StaticEncoder | NGramEncoder)

    def decide(self, request: DecisionRequest) -> Decision:
        (found,) = self._decide_alike([request])
        if isinstance(found, Exception):
            raise found
        return found

    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
        """Those that offer the same options with the same preferences are computed together."""
        alike: dict[tuple[int, Preferences, bool], list[int]] = {}
        for place, request in enumerate(requests):
            alike.setdefault((id(request.options), request.preferences, request.explain), []).append(place)
        found: dict[int, Decision | Exception] = {}
        for places in alike.values():
            answers = self._decided([requests[place] for place in places])
            found |= zip(places, answers, strict=True)
        return [found[place] for place in range(len(requests))]

    def _decided(self, requests: Sequence[DecisionRequest]) -> Sequence[Decision | Exception]:
        """One that cannot be read fails alone."""
        try:
            return self._decide_alike(requests)
        except Exception as error:  # of a context of any kind
            if len(requests) == 1:
                return [error]
            return [self._decided([request])[0] for request in requests]

    def _decide_alike(self, requests: Sequence[DecisionRequest]) -> Sequence[Decision | Exception]:
        """Of requests that differ in their contexts and seeds alone."""
        first, contexts = requests[0], [request.context for request in requests]
        scored = self.score_all(contexts, first.options, first.preferences, errors=first.explain)
        return [self._answer(request, one) for request, one in zip(requests, scored, strict=True)]

    def _answer(self, request: DecisionRequest, scored: Scored) -> Decision | NoOptionError:
        if not scored.probability.any():
            names: dict[str, list[str]] = {}
            for name, reason in scored.masked.items():
                names.setdefault(reason, []).append(name)
            why = "; ".join(f"{', '.join(same)}: {reason}" for reason, same in names.items())
            return NoOptionError(
                f"no option of {self.problem!r} may be chosen ({why}): offer others, or allow more", scored.expected()
            )
        at = _draw(scored.probability, request.seed)
        action = scored.options[at].name if request.options is None else request.options[at]
        propensity = float(scored.probability[at])
        logged = LoggedDecision(
            problem=self.problem,
            context=plain(request.context),
            eligible=scored.free(),
            action=scored.options[at].name,
            propensity=propensity,
            policy=self.version,
        )
        expected = scored.expected() if request.explain else {}
        return Decision(action=action, propensity=propensity, policy=self.version, logged=(logged,), expected=expected)

    def quality_weight(self, preferences: Preferences, offered: Offered | None = None) -> float:
        """Weight of the score against cost; DataError unless it is from 0 to 1."""
        weight = self._usual_weight(offered) if preferences.quality_weight is None else preferences.quality_weight
        if not 0 <= weight <= 1:  # also NaN
            raise DataError(f"quality_weight is {weight!r}: expected a number from 0, cost alone, to 1, quality alone")
        return weight

    @cached_property
    def _usual_weight(self) -> Callable[[Offered | None], float]:
        """Where a request does not name one; found once per list of options."""
        limit, weight = self.config.max_mean_cost_usd, self.config.quality_weight
        if limit is None:
            return lambda offered: weight
        explored = None if self.explore == "none" else self._sampled_as
        return lru_cache(OFFERS)(lambda offered: min(weight, self.model.weight_within(limit, offered, explored)))

    def _sampled_as(self, utility: Floats) -> Floats:
        """(n, K) about the probabilities of options, for many contexts: exact for `epsilon` and `softmax`; the others
        explore little and seldom what is far from the best, which counts alone."""
        if self.model.policy is not None or self.explore == "softmax":
            spread = np.exp((utility - utility.max(1, keepdims=True)) / self._temperature)
            return np.asarray(spread / spread.sum(1, keepdims=True))
        share = self.config.epsilon if self.explore == "epsilon" else 0.0
        return np.asarray((1 - share) * np.eye(utility.shape[1])[utility.argmax(1)] + share / utility.shape[1])

    @property
    def _temperature(self) -> float:
        learned = self.model.policy
        return self.config.temperature if learned is None else learned.temperature

    def score(self, context: Any, options: Sequence[Any] | None, preferences: Preferences) -> Scored:
        """What is expected of each option, and with which probability it is chosen."""
        return next(self.score_all([context], options, preferences))

    def score_all(
        self, contexts: Sequence[Any], options: Sequence[Any] | None, preferences: Preferences, *, errors: bool = True
    ) -> Iterator[Scored]:
        """The same for several contexts, among the same options."""
        given = [read_context(context) for context in contexts]
        offered = None if options is None else self.offer(options)
        known = self.options if offered is None else offered.options
        needs_errors = self._needs_errors(offered)
        expectation = self.model.expect(given, offered, errors=errors or needs_errors)
        weight = self.quality_weight(preferences, offered)
        utility = expectation.utility(weight, self.model.unit_usd)  # (n, K)
        rated = expectation.careful(utility, weight) if needs_errors and self.explore == "none" else utility
        ruled_out, is_limited = self._ruled_out(offered, preferences)
        values = list(self.model.table.names) if offered is None else offered.values
        for i, context in enumerate(given):
            masked = ruled_out
            if is_limited:
                masked = masks(known, partial(self._chars, context), expectation.row(i), preferences, ruled_out)
            yield Scored(
                values=values,
                options=known,
                together=expectation,
                row=i,
                utility=utility[i],
                probability=self._probability(
                    rated[i], weight * expectation.error[i], expectation.count, masked, known
                ),
                masked=masked,
            )

    def _chars(self, context: Context) -> int:
        return len(self.model.reader.text_of(context))

    def _needs_errors(self, offered: Offered | None) -> bool:
        """Whether probabilities depend on standard errors."""
        if self.explore == "none":  # they lower options of which little is known
            return self.model.knows_little or (offered is not None and offered.has_new)
        return self.explore == "thompson"

    def _probability(
        self, utility: Floats, error: Floats, count: Floats, masked: Mapping[str, str], known: Sequence[Option]
    ) -> Floats:
        """(K,)."""
        if self.explore == "thompson":
            error = np.where(count > 0, self.config.posterior_scale, 1.0) * error
        if not masked:
            return self._explored(utility, error)
        free, found = np.array([option.name not in masked for option in known]), np.zeros(len(known))
        if free.any():
            found[free] = self._explored(utility[free], error[free])
        return found

    def _explored(self, utility: Floats, error: Floats) -> Floats:
        is_learned = self.model.policy is not None and self.explore != "none"
        return probabilities(
            utility,
            error,
            explore="softmax" if is_learned else self.explore,
            epsilon=self.config.epsilon,
            temperature=self._temperature,
            price=self.config.price,
        )

    @cached_property
    def _ruled_out(self) -> Callable[[Offered | None, Preferences], tuple[Mapping[str, str], bool]]:
        """Options that rule themselves out, with the reason, and whether contexts can rule out more; found once per
        list of options and preferences."""

        def find(offered: Offered | None, preferences: Preferences) -> tuple[Mapping[str, str], bool]:
            known = self.options if offered is None else offered.options
            reasons = ((option.name, why_not(option, preferences)) for option in known)
            is_limited = any(key in option.numbers for option in known for key in LENGTHS) or bool(limits(preferences))
            return {name: reason for name, reason in reasons if reason is not None}, is_limited

        return lru_cache(OFFERS)(find)

    def offer(self, options: Sequence[Any]) -> Offered:
        """Read once per list of options: agents offer the same ones again and again."""
        try:
            encoded = msgspec.json.encode(options)
        except (TypeError, ValueError):  # no JSON
            read_options(options)
            return self.model.table.offer(plain(options), self.model.reader.encoder)
        if b"null" in encoded:  # as JSON writes a number that is not finite
            read_options(options)
        return self._offers(encoded)

    @cached_property
    def _offers(self) -> Callable[[bytes], Offered]:
        table, encoder = self.model.table, self.model.reader.encoder
        return lru_cache(OFFERS)(lambda options: table.offer(msgspec.json.decode(options), encoder))


def masks(
    options: Sequence[Option],
    chars: Callable[[], int],
    expectation: Expectation,
    preferences: Preferences,
    ruled_out: Mapping[str, str],
) -> dict[str, str]:
    """Why an option may not be chosen, by name, for those that may not: by what it says of itself (`ruled_out`), by its
    context length, or by what it is expected to cost and take."""
    found = dict(ruled_out)
    limited = {kind: (limit, expectation.other.get(kind)) for kind, limit in limits(preferences).items()}
    for i, option in enumerate(options):
        if option.name in found:
            continue
        reason = _too_long(option, chars)
        for kind, (limit, table) in limited.items():
            reason = reason or _too_much(option, kind, None if table is None else float(table[0, i]), limit)
        if reason is not None:
            found[option.name] = reason
    return found


def _too_long(option: Option, chars: Callable[[], int]) -> str | None:
    limit = min((option.numbers[key] for key in LENGTHS if key in option.numbers), default=None)
    if limit is None or (length := chars()) * TOKENS_PER_CHAR <= limit:
        return None
    return f"its context of {limit:,.0f} tokens is too short for {length:,} characters"


def _too_much(option: Option, kind: str, expected: float | None, limit: float) -> str | None:
    """Why an option may exceed a limit of cost or latency; without an expectation it has to say what it costs."""
    if expected is None:
        if any(key in option.numbers for key in DECLARED[kind]):
            return None
        return f"its {kind} is not known: give it with the option, or learn from outcomes that have it"
    shown = f"cost of {expected:.3g} USD is" if kind == COST else f"{expected:,.0f} ms are"
    return f"its expected {shown} above {limit:g}" if exceeds(expected, limit) else None


def _draw(probability: Floats, seed: int) -> int:
    """An index with these probabilities."""
    best = int(probability.argmax())
    if probability[best] == 1:
        return best
    at = int(np.searchsorted(np.cumsum(probability), random.Random(seed).random() * probability.sum(), side="right"))
    at = min(at, len(probability) - 1)
    return at if probability[at] > 0 else best


def load(artefact: Artefact, *, explore: Explore | None = None) -> ChoicePolicy:
    """The policy of an artefact. It takes the best option, unless `explore` names how it explores."""
    from etude.learning.saved_settings import read_own
    from etude.problems.choice.state import read_model

    if explore not in (None, *get_args(Explore)):
        raise ConfigError(f"explore is {explore!r}: expected one of {', '.join(get_args(Explore))}")
    return ChoicePolicy(
        model=read_model(artefact),
        config=read_own(ChoiceSettings, artefact.settings, source=artefact.path).choice,
        artefact_version=artefact.version,
        explore=explore or "none",
    )
