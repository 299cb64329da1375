"""Contexts in a few groups that people can read: by a category, or by clusters of texts with their typical words."""

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


def group_contexts(reader: ContextReader, contexts: Sequence[Context]) -> list[str]:
    """The name of each context's group: the value of its category with the fewest values, or its cluster's words."""
    keys = [key for key, values in reader.categories.items() if len(values) > 1]
    if keys:
        key = min(keys, key=lambda key: len(reader.categories[key]))
        return _largest([_shown(context.get(key)) for context in contexts])
    if not reader.has_text:
        return [ALL] * len(contexts)
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
