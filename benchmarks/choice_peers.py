"""Peers of a choice among options on recorded outcomes: Vowpal Wabbit, nearest neighbours and ridge regression.

Each learns from all outcomes, or from one logged outcome per query with its propensity; with task types, or from the
text alone. Vowpal Wabbit also learns online, from a cold start. Settings are chosen on queries held out of the
training part: by the score of the choices where all outcomes are known, by the squared error of the logged outcomes
otherwise. `choices.py` runs them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array
from vowpalwabbit import Workspace

from etude.text.encoders import make_encoder
from etude.text.ngrams import words
from etude.text.sentence import sentences, unit
from etude.text.tfidf import count_matrix, inverse_document_frequency, tfidf

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.intp]
Mask = NDArray[np.bool_]
HELD_OUT = 0.25
"""Share of the training part on which settings are chosen."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """n queries, K options, and the outcome of every pair. Features are computed once, when the file is read."""

    texts: list[str]
    types: list[str] | None
    options: list[dict[str, Any]]  # name, description, prices
    score: Floats  # (n, K)
    cost: Floats  # (n, K), USD
    counts: csr_array  # (n, 2^18) of n-grams
    vectors: Floats  # (n, width) sentence vectors

    @classmethod
    def read(cls, path: Path, catalogue: Path) -> Outcomes:
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        options = json.loads(catalogue.read_text(encoding="utf-8"))["workers"]
        score, cost = (
            np.array([[row["outcomes"][option["name"]][part] for option in options] for row in rows], float)
            for part in ("score", "cost_usd")
        )
        texts = [row["instruction"] for row in rows]
        return cls(
            texts=texts,
            types=[row["task_type"] for row in rows] if all("task_type" in row for row in rows) else None,
            options=options,
            score=score,
            cost=cost,
            counts=count_matrix(texts),
            vectors=sentences(make_encoder("fast"), texts).astype(np.float64),
        )

    def take(self, rows: Ints) -> Outcomes:
        return Outcomes(
            texts=[self.texts[i] for i in rows],
            types=self.types and [self.types[i] for i in rows],
            options=self.options,
            score=self.score[rows],
            cost=self.cost[rows],
            counts=self.counts[rows],
            vectors=self.vectors[rows],
        )

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def best_single(self) -> int:
        return int(self.score.mean(0).argmax())


@dataclass(frozen=True, kw_only=True)
class Logged:
    """The one option that was tried per query, and the probability with which it was."""

    action: Ints  # (n,)
    propensity: Floats  # (n,)

    def take(self, rows: Ints) -> Logged:
        return Logged(action=self.action[rows], propensity=self.propensity[rows])


def log_uniformly(n: int, options: int, rng: np.random.Generator) -> Logged:
    return Logged(action=rng.integers(options, size=n), propensity=np.full(n, 1 / options))


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Predicted scores of test queries, and the setting that was chosen to predict them."""

    score: Floats  # (n, K)
    setting: str
    thrifty: Ints | None = None  # (n,) choices at the best single option's score for the least cost


def loss(predicted: Floats, asked: Outcomes, logged: Logged | None) -> float:
    """The criterion for settings: minus the score of the choices, or the squared error of the logged outcomes."""
    rows = np.arange(len(asked))
    if logged is None:
        return -float(asked.score[rows, predicted.argmax(1)].mean())
    errors = predicted[rows, logged.action] - asked.score[rows, logged.action]
    return float(np.average(errors**2, weights=1 / logged.propensity))


def hold_out(n: int) -> tuple[Ints, Ints]:
    """Rows to learn from, and rows to choose settings on."""
    return tuple(np.split(np.random.default_rng(0).permutation(n), [round((1 - HELD_OUT) * n)]))  # type: ignore


# Vowpal Wabbit


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to set up Vowpal Wabbit."""

    namespaces: str  # initials of the namespaces of `contexts` that it reads, each crossed with the option
    arguments: str

    def __str__(self) -> str:
        return f"{self.namespaces} {self.arguments}"


SGD = "--sgd --power_t 0 -l"
ALL = [Setting(namespaces=namespaces, arguments=f"{SGD} 0.001") for namespaces in ("wt", "wbt", "wvt")]
"""Tried when all outcomes are known. Adaptive learning rates, `--coin` and `--ftrl` score less on these data."""
LOGGED = [
    Setting(namespaces=namespaces, arguments=f"--cb_type {kind} {SGD} {rate}")
    for namespaces, kind, rate in (
        ("wt", "mtr", "0.001"),
        ("wt", "mtr", "0.003"),
        ("wvt", "mtr", "0.003"),
        ("wt", "dr", "0.0003"),
        ("wt", "dr", "0.001"),
    )
]
"""Tried when one outcome per query is known."""
PASSES = (1, 2, 3, 5, 8)
"""Numbers of passes over the training part that are tried."""


def vowpal(train: Outcomes, test: Outcomes, *, logged: Logged | None = None, types: bool) -> Predicted:
    """Vowpal Wabbit with the setting and the number of passes that are best on queries held out of `train`.

    It learns all outcomes by cost-sensitive regression (`csoaa_ldf`), one example per query, and logged ones by
    `cb_adf` with their propensities.
    """
    past, asked = (contexts(data, train, types=types) for data in (train, test))
    labels = all_labels(train) if logged is None else logged_labels(train, logged)
    fit, held = hold_out(len(train))
    kept = logged and logged.take(held)
    found: dict[tuple[Setting, int], float] = {}
    for setting in ALL if logged is None else LOGGED:
        for passes, learner in enumerate(learn(setting, past, labels, fit, PASSES[-1]), 1):
            if passes in PASSES:
                found[setting, passes] = loss(learner.predict(past, held), train.take(held), kept)
    setting, passes = min(found, key=lambda key: found[key])
    *_, learner = learn(setting, past, labels, np.arange(len(train)), passes)
    return Predicted(score=learner.predict(asked, np.arange(len(test))), setting=f"{setting}, {passes} passes")


Contexts = dict[str, list[str]]
"""Namespaces by initial, each a list of texts in Vowpal Wabbit's format, one per query."""
Labels = list[list[str]]
"""Per query, the labels of its options in Vowpal Wabbit's format."""


def contexts(data: Outcomes, past: Outcomes, *, types: bool) -> Contexts:
    """Words, word bigrams, sentence vectors less their mean over past queries, and task types, each at unit length."""
    made = {
        "w": [_words(text) for text in data.texts],
        "b": [_bigrams(text) for text in data.texts],
        "v": [_numbers(row) for row in unit(data.vectors - past.vectors.mean(0))],
    }
    if types and data.types:
        made["t"] = [f"|t {kind}" for kind in data.types]
    return made


@lru_cache(None)
def _words(text: str) -> str:
    return _terms("w", words(text))


@lru_cache(None)
def _bigrams(text: str) -> str:
    return _terms("b", (f"{first}_{second}" for first, second in pairwise(words(text))))


def _terms(namespace: str, terms: Iterable[str]) -> str:
    distinct = dict.fromkeys(terms)  # in order; `words` leaves no blank, | or : in a term
    return f"|{namespace}:{1 / math.sqrt(max(1, len(distinct))):.4f} {' '.join(distinct)}"


def _numbers(row: Floats) -> str:
    return "|v " + " ".join(f"{i}:{value:.3f}" for i, value in enumerate(row))


def all_labels(data: Outcomes) -> Labels:
    return [[f"{j}:{-score:.4f}" for j, score in enumerate(row, 1)] for row in data.score.tolist()]


def logged_labels(data: Outcomes, logged: Logged) -> Labels:
    options = range(data.score.shape[1])
    return [
        [f"0:{-row[action]:.4f}:{propensity:.6f}" if j == action else "" for j in options]
        for row, action, propensity in zip(data.score, logged.action, logged.propensity, strict=True)
    ]


class Learner:
    """A Vowpal Wabbit workspace over a fixed set of options."""

    def __init__(self, setting: Setting, reduction: str, options: int, seed: int = 1) -> None:
        crossed = " ".join(f"-q {namespace}o" for namespace in setting.namespaces)
        self.namespaces, self.options = setting.namespaces, [f"|o {j}" for j in range(options)]
        self.blank = [f"{j}" if "csoaa" in reduction else "" for j in range(1, options + 1)]
        self.workspace = Workspace(f"{reduction} {crossed} {setting.arguments} -b 22 --random_seed {seed} --quiet")

    def example(self, contexts: Contexts, row: int, labels: Sequence[str]) -> list[str]:
        read = " ".join(contexts[namespace][row] for namespace in self.namespaces if namespace in contexts)
        options = [f"{label} {option}" for label, option in zip(labels, self.options, strict=True)]
        return [f"shared {read}", *options]

    def learn(self, contexts: Contexts, row: int, labels: Sequence[str]) -> None:
        self.workspace.learn(self.example(contexts, row, labels))

    def predict(self, contexts: Contexts, rows: Ints) -> Floats:
        """(rows, K) predicted scores."""
        found = np.zeros((len(rows), len(self.options)))
        for i, row in enumerate(rows):
            parsed = self.workspace.parse(self.example(contexts, row, self.blank))
            self.workspace.predict(parsed)
            found[i] = [-option.get_partial_prediction() for option in parsed[1:]]
            self.workspace.finish_example(parsed)
        return found

    def probabilities(self, contexts: Contexts, row: int) -> Floats:
        """(K,) with which an explorer takes each option."""
        found = np.array(self.workspace.predict(self.example(contexts, row, self.blank)))
        return np.asarray(found / found.sum())


def learn(setting: Setting, contexts: Contexts, labels: Labels, rows: Ints, passes: int) -> Iterator[Learner]:
    """The learner after each pass over these rows."""
    reduction = "--cb_adf" if "--cb_type" in setting.arguments else "--csoaa_ldf m"
    learner = Learner(setting, reduction, len(labels[0]))
    rng = np.random.default_rng(0)
    for _ in range(passes):
        for row in rng.permutation(rows):
            learner.learn(contexts, row, labels[row])
        yield learner


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """One way to explore online."""

    setting: Setting
    exploration: str

    def __str__(self) -> str:
        return f"{self.exploration}, {self.setting}"


EXPLORERS = {
    name: [
        Explorer(setting=Setting(namespaces="wt", arguments=arguments), exploration=exploration)
        for exploration, arguments in tried
    ]
    for name, tried in {
        "epsilon": (("--epsilon 0.05", "-l 0.5"), ("--epsilon 0.05", "-l 0.1")),
        "softmax": (("--softmax --lambda 20", "-l 0.5"), ("--softmax --lambda 40", "-l 0.5")),
        "squarecb": (
            ("--squarecb --gamma_scale 100", "-l 0.5"),
            ("--squarecb --gamma_scale 300", "-l 0.5"),
            ("--squarecb --gamma_scale 1000", "-l 0.1"),
        ),
    }.items()
}
"""Kinds of exploration, each with the settings that are tried. Cover and regcb score less on these data."""


def vowpal_online(stream: Outcomes, order: Ints, *, explorer: Explorer, types: bool, seed: int = 0) -> Floats:
    """(n,) scores of the decisions, in order: each option is sampled, and only its outcome is learned from.

    Costs are 1 − score, in [0, 1] as squarecb and regcb expect. A cost of 0 is predicted for what was never seen, so
    that unseen options look good: optimism in the face of uncertainty.
    """
    asked, rng = contexts(stream, stream, types=types), np.random.default_rng(seed)
    options = stream.score.shape[1]
    learner = Learner(explorer.setting, f"--cb_explore_adf {explorer.exploration}", options)
    scores = np.zeros(len(order))
    for i, row in enumerate(order):
        probabilities = learner.probabilities(asked, row)
        action = rng.choice(options, p=probabilities)
        scores[i] = stream.score[row, action]
        labels = [""] * options
        labels[action] = f"0:{1 - scores[i]:.4f}:{probabilities[action]:.6f}"
        learner.learn(asked, row, labels)
    return scores


# Nearest neighbours and ridge regression


SIMILARITIES = {"TF-IDF": (1.0, 0.0), "vectors": (0.0, 1.0), "both": (0.5, 0.5)}
"""Weights of TF-IDF and of sentence vectors in the similarity of two queries."""
TYPE = 1.0
"""What a shared task type adds to the similarity of two queries: as much as the same text."""
NEIGHBOURS = (10, 20, 50, 100, 200, 500)
"""Numbers of neighbours that are tried."""
PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Penalties of ridge regression that are tried."""


def vowpal_from_file(path: Path, options: int) -> float:
    """Seconds for one pass over logged outcomes by `cb_adf` on words crossed with the option, one thread."""
    began, ids = time.perf_counter(), [f"|o option-{j:02d}" for j in range(options)]
    workspace = Workspace("--cb_adf --cb_type mtr -q wo -b 22 --quiet")
    with path.open() as file:
        for line in file:
            row = json.loads(line)
            ((name, outcome),) = row["outcomes"].items()
            label = f"0:{-outcome['score']:.4f}:{row['propensity']:.6f}"
            offered = [f"{label if one.endswith(name) else ''} {one}" for one in ids]
            workspace.learn([f"shared {_terms('w', words(row['context']))}", *offered])
    workspace.finish()
    return time.perf_counter() - began


def knn(
    train: Outcomes, test: Outcomes, *, logged: Logged | None = None, types: bool, k: Sequence[int] = NEIGHBOURS
) -> Predicted:
    """The mean score of each option over the k nearest past queries, shrunk to its overall mean by one observation."""
    return _by_similarity(_knn, k, train, test, logged, types)


def ridge(
    train: Outcomes, test: Outcomes, *, logged: Logged | None = None, types: bool, penalty: Sequence[float] = PENALTIES
) -> Predicted:
    """Ridge regression of each option's score, in its dual form."""
    return _by_similarity(_ridge, penalty, train, test, logged, types)


Method = Callable[[Floats, Floats, Floats, Mask, Sequence[Any]], list[Floats]]
"""Predicted scores (n, K), one per setting: from the similarities of m past queries (m, m) and of n new ones to them
(n, m), and from the scores of past queries (m, K) and a mask of the known ones."""


def _by_similarity(
    method: Method, settings: Sequence[Any], train: Outcomes, test: Outcomes, logged: Logged | None, types: bool
) -> Predicted:
    """The similarity and the setting that are best on queries held out of `train`, fitted to all of it."""
    known = np.ones(train.score.shape, bool)
    if logged is not None:
        known = logged.action[:, None] == np.arange(train.score.shape[1])
    own, cross = (similarities(data, train, types=types) for data in (train, test))
    fit, held = hold_out(len(train))
    asked, kept = train.take(held), logged and logged.take(held)
    found: dict[tuple[str, Any], float] = {}
    for name, weights in SIMILARITIES.items():
        mixed = _mix(weights, own)
        near, far = mixed[np.ix_(fit, fit)], mixed[np.ix_(held, fit)]
        predicted = method(near, far, train.score[fit], known[fit], settings)
        found |= {(name, s): loss(p, asked, kept) for s, p in zip(settings, predicted, strict=True)}
    name, setting = min(found, key=lambda key: found[key])
    past, new = (_mix(SIMILARITIES[name], each) for each in (own, cross))
    return Predicted(score=method(past, new, train.score, known, [setting])[0], setting=f"{name}, {setting}")


def similarities(data: Outcomes, past: Outcomes, *, types: bool) -> tuple[Floats, Floats]:
    """(n, m) each: cosines of TF-IDF rows and of centred sentence vectors, plus `TYPE` for the same task type."""
    idf, centre = inverse_document_frequency(past.counts), past.vectors.mean(0)
    lexical: Floats = (tfidf(data.counts, idf) @ tfidf(past.counts, idf).T).toarray()
    near: Floats = unit(data.vectors - centre) @ unit(past.vectors - centre).T
    if types and data.types and past.types:
        same = TYPE * (np.array(data.types)[:, None] == np.array(past.types)).astype(np.float32)
        return lexical + same, near + same
    return lexical, near


def _mix(weights: tuple[float, float], parts: tuple[Floats, Floats]) -> Floats:
    if 0 in weights:
        return parts[weights.index(1)]
    return sum(np.float32(weight) * part for weight, part in zip(weights, parts, strict=True))  # type: ignore


def _knn(own: Floats, cross: Floats, score: Floats, known: Mask, settings: Sequence[int]) -> list[Floats]:
    most = min(max(settings), len(score))
    nearest = np.argpartition(-cross, most - 1, axis=1)[:, :most]
    nearest = np.take_along_axis(nearest, np.argsort(-np.take_along_axis(cross, nearest, 1), axis=1), 1)
    overall = (score * known).sum(0) / known.sum(0).clip(1)
    total, count = (np.cumsum(x[nearest], axis=1) for x in (score * known, known))  # (n, most, K)
    return [(overall + total[:, min(k, most) - 1]) / (1 + count[:, min(k, most) - 1]) for k in settings]


def _ridge(own: Floats, cross: Floats, score: Floats, known: Mask, settings: Sequence[float]) -> list[Floats]:
    options = np.arange(score.shape[1])
    groups = [options] if known.all() else np.split(options, len(options))  # options known on the same queries
    found: list[Floats] = [np.zeros((len(cross), len(options))) for _ in settings]
    for group, (penalty, predicted) in product(groups, zip(settings, found, strict=True)):
        rows = known[:, group[0]].nonzero()[0]
        past = own[np.ix_(rows, rows)] + np.float32(penalty) * np.eye(len(rows), dtype=np.float32)
        seen = score[np.ix_(rows, group)]  # (rows, group)
        weights = cho_solve(cho_factor(past, overwrite_a=True), seen - seen.mean(0))
        predicted[:, group] = seen.mean(0) + cross[:, rows] @ weights
    return found


def best_single(train: Outcomes, logged: Logged | None) -> int:
    """The option with the highest mean score among the known outcomes."""
    if logged is None:
        return train.best_single
    known = (logged.action[:, None] == np.arange(train.score.shape[1])) / logged.propensity[:, None]
    return int(np.average(train.score, axis=0, weights=known).argmax())
