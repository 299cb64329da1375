"""Contexts in a few groups that people can read: by a category, or by clusters of texts with their typical words,
whichever says more about who is chosen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from etude.problems.choice.contexts import Context, ContextReader, Rows, k_means, read_texts
from etude.text.ngrams import words

MAX_GROUPS = 10
OTHERS, ALL = "others", "all"
TOPICS, STARTS = 8, 8
"""Clusters of texts, the best of several attempts."""
WORDS = 3
"""Typical words that name a cluster."""


def group_contexts(reader: ContextReader, contexts: Sequence[Context], chosen: Sequence[int]) -> list[str]:
    """The name of each context's group: the value of a category or its cluster's words, by whichever the options that
    are chosen differ most; between equals, by the category with the fewest values."""
    keys = [key for key, values in reader.categories.items() if len(values) > 1]
    keys.sort(key=lambda key: len(reader.categories[key]))
    found = [_largest([_shown(context.get(key)) for context in contexts]) for key in keys]
    if reader.has_text:
        found.append(_topics(reader, contexts))
    return max(found, key=lambda names: information(names, chosen), default=[ALL] * len(contexts))


def information(names: Sequence[str], chosen: Sequence[int]) -> float:
    """What a group says about who is chosen: their mutual information, less what chance alone gives (Miller 1955)."""
    n, pairs = len(names), Counter(zip(names, chosen, strict=True))
    groups, options = Counter(names), Counter(chosen)
    known = sum(
        many / n * math.log(many * n / (groups[name] * options[option])) for (name, option), many in pairs.items()
    )
    return known - (len(groups) - 1) * (len(options) - 1) / (2 * max(n, 1))


def _topics(reader: ContextReader, contexts: Sequence[Context]) -> list[str]:
    texts = [reader.text_of(context) for context in contexts]
    topics = reader.joint(read_texts(reader.encoder, texts))[:, : len(reader.centre)]
    clusters = _clusters(topics)
    names = _typical_words(texts, clusters)
    return _largest([names[cluster] for cluster in clusters])


def _clusters(x: Rows) -> list[int]:
    """The closest of a few attempts at clusters."""
    found = []
    for seed in range(STARTS):
        centres = k_means(x, min(TOPICS, max(1, len(x) // 2)), seed)
        squares = np.einsum("ij,ij->i", centres, centres) - 2 * (x @ centres.T)
        found.append((float(squares.min(1).sum()), squares.argmin(1).tolist()))
    best: list[int] = min(found)[1]
    return best


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else OTHERS if value is None else str(value)


def _largest(names: list[str]) -> list[str]:
    kept = {name for name, _ in Counter(names).most_common(MAX_GROUPS)}
    if len(set(names)) > MAX_GROUPS:
        kept = {name for name, _ in Counter(names).most_common(MAX_GROUPS - 1)}
    return [name if name in kept else OTHERS for name in names]


def _typical_words(texts: Sequence[str], own: Sequence[int]) -> dict[int, str]:
    """By cluster, the words that most tell its texts from others: frequent there and rare elsewhere."""
    sizes, within, total = Counter(own), dict[int, Counter[str]](), Counter[str]()
    for text, cluster in zip(texts, own, strict=True):
        found = {word for word in words(text) if len(word) > 2}
        within.setdefault(cluster, Counter()).update(found)
        total.update(found)

    def tells(word: str, cluster: int) -> float:
        inside = within[cluster][word] / sizes[cluster]
        outside = (total[word] - within[cluster][word] + 1) / (len(texts) - sizes[cluster] + 1)
        return inside * math.log(max(inside / outside, 1)) ** 2

    return {
        cluster: ", ".join(sorted(count, key=lambda word: (-tells(word, cluster), word))[:WORDS]) or "short texts"
        for cluster, count in within.items()
    }
