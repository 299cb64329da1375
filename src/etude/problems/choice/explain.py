"""Why an option was chosen and not the next best: the entries and words of the context, and the past decisions, that
speak for it.

A word speaks for the chosen option if the difference of the two utilities falls when the word is removed. The words
that are named are chosen together, so that removing all of them moves the difference further than any one of them. A
category or number speaks for it if the difference falls when the average of past contexts takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.contracts.decision import DecisionRequest
from etude.problems.choice.contexts import MAX_CHARS, Context, read_context
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.policy import ChoicePolicy
from etude.text.ngrams import WORD

Floats = NDArray[np.float64]
MAX_WORDS = 256
"""Maximum number of distinct words of a text that are tried, from its beginning."""
SHOWN = 5
"""Maximum number of words, for and against, and of past decisions that are shown."""
TRIED = 12
"""Words that are tried together with those already chosen."""
AVERAGED = 50
"""Past decisions whose outcomes are averaged."""
NEGLIGIBLE = 1e-6
"""Difference of utility below which a word has no effect."""
Effects = Callable[[Sequence[Collection[str]]], Floats]
"""For sets of words: by how much the difference of utilities falls when the words of the set are removed."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """Words that speak for the chosen option, or against it."""

    effects: Mapping[str, float]  # of each alone, positive for the chosen option
    together: float  # of all


@dataclass(frozen=True, kw_only=True)
class Past:
    """A past decision, or the mean of several, with the outcomes of the two options that are known."""

    source: str
    similarity: float
    outcomes: Mapping[str, Mapping[str, float]]  # by option, by kind


@dataclass(frozen=True, kw_only=True)
class Explanation:
    chosen: str
    runner_up: str
    difference: float  # of their utilities
    entries: Mapping[str, float]  # effect of each category and number, largest first, positive for the chosen option
    words_for: Words
    words_against: Words
    similar: tuple[Past, ...]  # most similar first
    mean: Past | None  # of the AVERAGED most similar; None if neither option has a past


def explain(policy: ChoicePolicy, request: DecisionRequest, chosen: str) -> Explanation | None:
    """Why `chosen` is the answer to the request; None if no other option is eligible."""
    model, context = policy.model, read_context(request.context)
    scored = policy.score(request.context, request.options, request.preferences)
    names = [option.name for option in scored.options]
    others = [i for i, name in enumerate(names) if name != chosen and name not in scored.masked]
    if not others:
        return None
    weight = policy.quality_weight(request.preferences)
    offered = None if request.options is None else policy.offer(request.options)

    def utilities(contexts: Sequence[Context], read: NDArray[np.float32] | None = None) -> Floats:
        expected = model.expect(contexts, offered, read=read)
        found = expected.utility(weight, model.unit_usd)
        return expected.careful(found, weight) if policy.explore == "none" else found

    now, own = utilities([context])[0], names.index(chosen)
    other = max(others, key=lambda i: float(now[i]))
    difference = float(now[own] - now[other])

    def fall(found: Floats) -> Floats:
        return difference - (found[:, own] - found[:, other])

    def effects(sets: Sequence[Collection[str]]) -> Floats:
        return fall(utilities([without(model, context, words) for words in sets]))

    entries = average_entries(model, context)
    moved = fall(utilities([context] * len(entries), np.array(list(entries.values())))).tolist() if entries else []
    ranked = sorted(zip(entries, moved, strict=True), key=lambda item: -abs(item[1]))
    pair = (chosen, names[other])
    similar, mean = _past(model, context, pair)
    speak_for, speak_against = find_words(distinct_words(model, context), effects)
    return Explanation(
        chosen=pair[0],
        runner_up=pair[1],
        difference=difference,
        entries={entry: effect for entry, effect in ranked if abs(effect) > NEGLIGIBLE},
        words_for=speak_for,
        words_against=speak_against,
        similar=similar,
        mean=mean,
    )


# Categories and numbers


def average_entries(model: ChoiceModel, context: Context) -> dict[str, NDArray[np.float32]]:
    """For each category and number of a context, `key: value`: its features with the average in place of the entry."""
    features, found = model.reader([context])[0], {}
    for name, (low, high) in model.reader.blocks.items():
        key = name.removeprefix("category ").removeprefix("number ")
        if name != key and key in context:
            found[f"{key}: {_shown(context[key])}"] = np.concatenate(
                [features[:low], np.zeros(high - low, np.float32), features[high:]]  # features are centred
            )
    return found


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# Words


def distinct_words(model: ChoiceModel, context: Context) -> list[str]:
    """The words of a context's texts in lower case, without the values of categories."""
    found = dict.fromkeys(word[0].lower() for word in WORD.finditer(model.reader.text_of(context)[:MAX_CHARS]))
    return list(found)[:MAX_WORDS]


def without(model: ChoiceModel, context: Context, words: Collection[str]) -> dict[str, Any]:
    """The context, without every occurrence of these words in its texts."""
    return {
        key: WORD.sub(lambda found: "" if found[0].lower() in words else found[0], value)
        if isinstance(value, str) and key not in model.reader.categories
        else value
        for key, value in context.items()
    }


def find_words(found: Sequence[str], effects: Effects) -> tuple[Words, Words]:
    """Of these words: those that speak for the chosen option, and those against it."""
    alone = dict(zip(found, effects([{word} for word in found]).tolist(), strict=True)) if found else {}
    return _together(alone, effects, 1), _together(alone, effects, -1)


def _together(alone: Mapping[str, float], effects: Effects, sign: int) -> Words:
    """Up to SHOWN words of one sign, each of which adds to the effect of those before it."""
    ranked = sorted((word for word in alone if sign * alone[word] > NEGLIGIBLE), key=lambda word: -sign * alone[word])
    taken, moved = ranked[:1], sum(alone[word] for word in ranked[:1])
    while len(taken) < SHOWN and (rest := [word for word in ranked if word not in taken][:TRIED]):
        found = effects([{*taken, word} for word in rest])
        best = int((sign * found).argmax())
        if sign * (found[best] - moved) <= NEGLIGIBLE:
            break
        taken, moved = [*taken, rest[best]], float(found[best])
    return Words(effects={word: alone[word] for word in sorted(taken, key=ranked.index)}, together=moved)


# Past decisions


def _past(model: ChoiceModel, context: Context, pair: tuple[str, str]) -> tuple[tuple[Past, ...], Past | None]:
    """The most similar rows with an outcome of either option, later ones first among equals; and the mean of more."""
    memory, known = model.memory, model.table.names
    outcomes = {
        name: {kind: memory.outcome(known.index(name), h) for h, kind in enumerate(model.kinds)}
        for name in pair
        if name in known
    }
    similarity = memory.similarity(model.reader, context)
    order = np.lexsort((-np.arange(len(memory)), -similarity))
    tried = np.isin(order, memory.outcomes.row[np.isin(memory.outcomes.option, [known.index(o) for o in outcomes])])
    nearest = order[tried][:AVERAGED]
    if not len(nearest):
        return (), None

    def past(rows: NDArray[np.int64], source: str) -> Past:
        return Past(
            source=source,
            similarity=float(similarity[rows].mean()),
            outcomes={name: _means({kind: x[rows] for kind, x in own.items()}) for name, own in outcomes.items()},
        )

    shown = tuple(past(nearest[i : i + 1], memory.sources[row]) for i, row in enumerate(nearest[:SHOWN].tolist()))
    return shown, past(nearest, f"{len(nearest)} most similar")


def _means(outcomes: Mapping[str, Floats]) -> dict[str, float]:
    """Of the kinds that are known."""
    return {kind: float(np.nanmean(x)) for kind, x in outcomes.items() if np.isfinite(x).any()}
