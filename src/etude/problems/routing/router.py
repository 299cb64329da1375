"""LLM routing: recorded outcomes in, a router fitted in closed form out.

For each task type, kernel ridge regression from a query's text to every worker's score: with K the kernel of the past
queries, centred and of mean diagonal 1, and r the ridge, A = K + r·11ᵀ + r·I and α = A⁻¹y for scores y less the
workers' means. The prediction for a new query is (k + r)α; the leave-one-out prediction for a past one is
y − α / diag(A⁻¹). Text is used only for task types where the leave-one-out predictions choose significantly better than
the type's best worker; other types have one prediction for all queries, which is the same with K = 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from etude.contracts.errors import CatalogueError, CheckpointError, DataError
from etude.contracts.ports import TextEncoder
from etude.problems.catalogue import Catalogue, Worker
from etude.problems.routing.kernels import Floats, Kernel, Texts, make_kernel, read_texts
from etude.problems.routing.replay import UNKNOWN, Curve, Replay, abilities, choose, curve
from etude.text.ngrams import COLUMNS
from etude.text.sentence import sentences
from etude.text.tfidf import inverse_document_frequency

RIDGES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
MIN_STANDARD_ERRORS = 2.0
"""Standard errors by which reading the text must improve the choices of a task type to be used for it."""
MAX_QUERIES_PER_TYPE = 2000
"""Maximum number of queries per task type to fit on, the last ones: the time grows with their cube."""


# Fitting


@dataclass(frozen=True, kw_only=True)
class Branch:
    """The fitted model of one task type. W workers."""

    score: Floats  # (W,) without regard to the text
    cost: Floats  # (W,) relative to the general cost of queries of that length
    kernel: Kernel | None = None  # where reading the text improves the choices
    ridge: float = 0.0
    alpha: Floats | None = None  # (m, W)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The parameters of a fitted router. G task types with outcomes, W workers with outcomes."""

    workers: tuple[Worker, ...]
    branches: Mapping[str, Branch]  # by task type; "" alone where none is known
    mean: Floats  # (W,) scores
    cost: Floats  # (2, W) USD: base cost of a query, and cost per character
    sorter: Floats  # (features, G): a linear classifier of task types
    idf: NDArray[np.float32]  # (2^18,)
    unit_usd: float
    best_single: str
    frontier: Curve  # of the leave-one-out predictions for the past queries


def ridge_regression(kernel: Floats, y: Floats, mask: NDArray[np.bool_], r: float) -> tuple[Floats, Floats]:
    """α and predictions, both (m, W): leave-one-out where `mask`, ordinary elsewhere."""
    alpha, left_out = np.zeros_like(y), np.zeros_like(y)
    patterns, which = np.unique(mask, axis=1, return_inverse=True)
    for i, pattern in enumerate(patterns.T):  # workers with the same queries share an inverse
        rows, columns = np.flatnonzero(pattern), np.flatnonzero(which.ravel() == i)
        cells = np.ix_(rows, columns)
        inverse = np.linalg.inv(kernel[np.ix_(rows, rows)] + r * (1 + np.eye(len(rows))))
        alpha[cells] = inverse @ y[cells]
        left_out[:, columns] = (kernel[:, rows] + r) @ alpha[cells]
        left_out[cells] = y[cells] - alpha[cells] / np.diag(inverse)[:, None]
    return alpha, left_out


def fit_router(replay: Replay, encoder: TextEncoder, texts: Texts | None = None) -> tuple[Router, Tensor]:
    """The router, and its leave-one-out scores (n, W) for the replay's own queries.

    Where not all outcomes are recorded, the choice of the tried workers may depend on the task type, but not otherwise
    on the text (see `Replay.completed`). Each task type is fitted on its last MAX_QUERIES_PER_TYPE queries.
    """
    texts = texts or read_texts(encoder, replay.texts)
    past, catalogue = replay.tried(), replay.catalogue
    y, cost, mask, able = (x.numpy() for x in (past.score, past.cost_usd, past.mask, past.able))
    worth = past.completed()[0].numpy()
    mean = (y * mask).sum(0) / mask.sum(0)
    groups, sorter, kinds = _group_by_type(texts, past.types.numpy())
    idf, line = inverse_document_frequency(texts.counts), _line(texts.length, cost, mask)
    expected = np.maximum(line[0] + texts.length[:, None] * line[1], 0)
    branches, left_out = {}, np.zeros_like(y)
    for i, kind in enumerate(kinds):
        every = np.flatnonzero(groups == i)
        rows = every[-MAX_QUERIES_PER_TYPE:]
        share = _ratio((cost * mask)[every], (expected * mask)[every], mask[every])
        branch, scores = _branch(texts.take(rows), idf, y[rows] - mean, mask[rows], worth[rows], able[rows], mean)
        branches[catalogue.task_types[kind].name if kind >= 0 else ""] = replace(branch, cost=share)
        left_out[every], left_out[rows] = branch.score, scores
        expected[every] *= share
    unit_usd = past.unit_usd()
    learned = Learned(
        workers=past.catalogue.workers,
        branches=branches,
        mean=mean,
        cost=line,
        sorter=sorter,
        idf=idf,
        unit_usd=unit_usd,
        best_single=past.catalogue.workers[past.best_single()].name,
        frontier=curve(_tensor(left_out), _tensor(expected), past, unit_usd=unit_usd),
    )
    router = Router(encoder, learned, catalogue)
    return router, router.spread(_tensor(left_out))


def _branch(
    texts: Texts,
    idf: NDArray[np.float32],
    y: Floats,
    mask: NDArray[np.bool_],
    worth: Floats,
    able: NDArray[np.bool_],
    mean: Floats,
) -> tuple[Branch, Floats]:
    """The model of one task type, and its queries' leave-one-out scores.

    y (m, W) are scores less the mean, `worth` (m, W) the scores that a choice earns.
    """
    total, count = (y * mask).sum(0), mask.sum(0)
    plain = (total - y * mask) / (1 + count - mask)  # as `ridge_regression` with K = 0
    branch = Branch(score=mean + total / (1 + count), cost=np.ones_like(mean))
    rows = np.arange(len(y))

    def earned(predicted: Floats) -> Floats:
        gained: Floats = worth[rows, np.where(able, mean + predicted, -np.inf).argmax(1)]
        return gained

    if len(y) < 2:
        return branch, mean + plain
    kernel, matrix = make_kernel(texts, idf)
    best, best_z = (branch, plain), MIN_STANDARD_ERRORS
    for r in RIDGES:
        alpha, left_out = ridge_regression(matrix, y, mask, r)
        gain = earned(left_out) - earned(plain)
        z = gain.mean() / (gain.std() / len(gain) ** 0.5 + 1e-9)
        if z > best_z:
            best_z = z
            best = Branch(score=branch.score, cost=branch.cost, kernel=kernel, ridge=r, alpha=alpha), left_out
    return best[0], mean + best[1]


def _group_by_type(texts: Texts, types: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats, list[int]]:
    """Each query's group, the classifier of groups (features, G) and their task types; one group if no type is known.

    A query without a task type goes to the group that the classifier predicts from its text.
    """
    kinds = sorted({int(t) for t in types if t != UNKNOWN}) or [UNKNOWN]
    features = _type_features(texts)
    known = np.isin(types, kinds)
    target = (types[known, None] == np.array(kinds)).astype(np.float64)
    x = features[known]
    sorter = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ target)
    groups = np.where(known, np.searchsorted(kinds, types), (features @ sorter).argmax(1))
    return groups, sorter, kinds


def _type_features(texts: Texts) -> Floats:
    """(n, features): the input of the classifier of task types."""
    ones = np.ones((len(texts.length), 1))
    return np.concatenate([4 * texts.vectors, texts.surface, ones], 1)


def _line(length: Floats, cost: Floats, mask: NDArray[np.bool_]) -> Floats:
    """(2, W): each worker's base cost and cost per character, the latter shrunk where there are few queries."""
    count = mask.sum(0)
    x, y = (mask * length[:, None]).sum(0) / count, (mask * cost).sum(0) / count
    away = (length[:, None] - x) * mask
    slope = np.maximum((away * (cost - y)).sum(0) / ((away**2).sum(0) * (1 + 1 / count) + 1e-9), 0)
    return np.stack([y - slope * x, slope])


def _ratio(cost: Floats, predicted: Floats, mask: NDArray[np.bool_]) -> Floats:
    """(W,): actual cost divided by predicted cost, shrunk towards 1 by one pseudo-call of mean cost."""
    one = predicted.sum(0) / np.maximum(mask.sum(0), 1)
    total = predicted.sum(0) + one
    return np.where(total > 0, (cost.sum(0) + one) / np.where(total > 0, total, 1), 1.0)


def _tensor(x: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))


# Deciding


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted score and cost of each worker for queries (n, W), and which workers are able to do them."""

    score: Tensor
    cost_usd: Tensor
    able: Tensor  # bool


class Router:
    """Chooses workers under a catalogue that may have gained and lost entries since it was fitted.

    A worker without outcomes gets the scores of the most similar worker with outcomes (by price, size and description)
    and its costs in proportion to their list prices. Where a task type has no outcomes, or is UNKNOWN, another type is
    predicted from the text.
    """

    def __init__(self, encoder: TextEncoder, learned: Learned, catalogue: Catalogue) -> None:
        if not catalogue.workers:
            raise CatalogueError("the catalogue has no workers: nothing can be chosen, add one")
        self.encoder, self.learned, self.catalogue = encoder, learned, catalogue
        place = {worker.name: i for i, worker in enumerate(learned.workers)}
        self._source = torch.tensor([place.get(w.name, -1) for w in catalogue.workers])
        new = [i for i, source in enumerate(self._source.tolist()) if source < 0]
        if new:
            self._source[new] = _nearest(encoder, [catalogue.workers[i] for i in new], learned.workers)
        old = [learned.workers[i] for i in self._source.tolist()]
        ratio = [_price_ratio(*pair) for pair in zip(catalogue.workers, old, strict=True)]
        self._ratio = torch.tensor(ratio, dtype=torch.float64)
        live = torch.tensor([w.available and w.quota != 0 for w in catalogue.workers])
        self._able = abilities(catalogue) & live
        known = list(learned.branches)
        self._group = [known.index(t.name) if t.name in known else -1 for t in catalogue.task_types]

    def under(self, catalogue: Catalogue) -> Router:
        return Router(self.encoder, self.learned, catalogue)

    @property
    def best_single(self) -> str:
        """The best worker if one had to do all past queries."""
        return self.learned.best_single

    @property
    def unit_usd(self) -> float:
        """The unit of cost: the mean cost of a call of that worker."""
        return self.learned.unit_usd

    def choose(self, texts: Sequence[str], types: Tensor, *, weight: float = 0.0) -> Tensor:
        """(n,) workers of the catalogue, each with the highest score − weight · cost_usd / unit_usd.

        Types (n,) are ids of the catalogue, UNKNOWN where there is none.
        """
        p = self.predict(texts, types)
        return choose(p.score, p.cost_usd, p.able, weight=weight, unit_usd=self.unit_usd)

    def weight_for(self, score: float) -> float:
        """The weight of lowest cost at which past queries (leave-one-out) reach `score`; if none does, the best."""
        return self.learned.frontier.weight_for(score)

    def predict(self, texts: Sequence[str], types: Tensor) -> Prediction:
        return self.predict_read(read_texts(self.encoder, texts), types)

    def predict_read(self, texts: Texts, types: Tensor) -> Prediction:
        """As `predict`, from texts whose features are computed already."""
        able = self._able[types]
        if not bool(able.any(1).all()):
            helpless = int(types[~able.any(1)][0])
            what = "anything" if helpless == UNKNOWN else repr(self.catalogue.task_types[helpless].name)
            raise CatalogueError(f"no worker is able to do {what} now: add or free a worker that is")
        groups = torch.tensor([*self._group, -1])[types].numpy()
        groups = np.where(groups >= 0, groups, (_type_features(texts) @ self.learned.sorter).argmax(1))
        base, slope = self.learned.cost
        cost = np.maximum(base + texts.length[:, None] * slope, 0)
        score = np.zeros_like(cost)
        for i, branch in enumerate(self.learned.branches.values()):
            rows = np.flatnonzero(groups == i)
            cost[rows] *= branch.cost
            score[rows] = branch.score
            if len(rows) and branch.kernel is not None and branch.alpha is not None:
                kernel = branch.kernel.of(texts.take(rows), self.learned.idf)
                score[rows] = self.learned.mean + (kernel + branch.ridge) @ branch.alpha
        return Prediction(
            score=self.spread(_tensor(score)), cost_usd=self.spread(_tensor(cost), self._ratio), able=able
        )

    def spread(self, values: Tensor, ratio: Tensor | None = None) -> Tensor:
        """(n, workers with outcomes) to (n, W workers of the catalogue)."""
        spread = values[:, self._source]
        return spread if ratio is None else spread * ratio

    def state_dict(self) -> dict[str, Tensor]:
        """The router's arrays; with `to_json`, everything except the encoder."""
        got = self.learned
        state = {name: _tensor(getattr(got, name)) for name in ("mean", "cost", "sorter", "idf")}
        state |= {f"frontier.{name}": value for name, value in vars(got.frontier).items()}
        for i, branch in enumerate(got.branches.values()):
            state |= {f"{i}.score": _tensor(branch.score), f"{i}.cost": _tensor(branch.cost)}
            if branch.kernel is not None and branch.alpha is not None:
                kernel, grams = branch.kernel, branch.kernel.grams
                parts = {part.name: getattr(kernel, part.name) for part in fields(kernel) if part.name != "grams"}
                parts |= {"grams.data": grams.data, "grams.indices": grams.indices, "grams.indptr": grams.indptr}
                state |= {f"{i}.{name}": _tensor(part) for name, part in parts.items()}
                state[f"{i}.alpha"] = _tensor(branch.alpha)
        return state

    def to_json(self) -> dict[str, Any]:
        got = self.learned
        return {
            "encoder": self.encoder.name,
            "workers": msgspec.to_builtins(got.workers),
            "branches": [{"task_type": name, "ridge": branch.ridge} for name, branch in got.branches.items()],
            "unit_usd": got.unit_usd,
            "best_single": got.best_single,
            "catalogue": msgspec.to_builtins(self.catalogue),
        }

    @staticmethod
    def from_state(state: Mapping[str, Tensor], meta: Mapping[str, Any], encoder: TextEncoder) -> Router:
        if meta["encoder"] != encoder.name:
            raise CheckpointError(
                f"the router was fitted with the encoder {meta['encoder']!r}, not with {encoder.name!r}: use that one"
            )
        arrays = {name: value.numpy() for name, value in state.items()}
        branches = {b["task_type"]: _restored(arrays, i, b["ridge"]) for i, b in enumerate(meta["branches"])}
        learned = Learned(
            workers=msgspec.convert(meta["workers"], tuple[Worker, ...]),
            branches=branches,
            **{name: arrays[name] for name in ("mean", "cost", "sorter", "idf")},
            unit_usd=meta["unit_usd"],
            best_single=meta["best_single"],
            frontier=Curve(**{name: state[f"frontier.{name}"] for name in ("weight", "score", "cost_usd")}),
        )
        return Router(encoder, learned, msgspec.convert(meta["catalogue"], Catalogue))


def _restored(arrays: Mapping[str, NDArray[Any]], i: int, ridge: float) -> Branch:
    own = {name.removeprefix(f"{i}."): array for name, array in arrays.items() if name.startswith(f"{i}.")}
    score, cost, alpha = own.pop("score"), own.pop("cost"), own.pop("alpha", None)
    if alpha is None:
        return Branch(score=score, cost=cost)
    data, indices, indptr = (own.pop(f"grams.{part}") for part in ("data", "indices", "indptr"))
    grams = csr_array((data, indices, indptr), shape=(len(indptr) - 1, COLUMNS))
    return Branch(score=score, cost=cost, kernel=Kernel(grams=grams, **own), ridge=ridge, alpha=alpha)


def _nearest(encoder: TextEncoder, new: Sequence[Worker], known: Sequence[Worker]) -> Tensor:
    """(new,): the nearest known worker in log price, log size and description."""
    texts = [sentences(encoder, [f"{w.name}: {w.description}" for w in workers]) for workers in (new, known)]
    distance = [[abs(_log(a.cost_usd()) - _log(b.cost_usd())) + abs(_size(a, b)) for b in known] for a in new]
    return torch.from_numpy((np.array(distance) - texts[0] @ texts[1].T).argmin(1))


def _size(a: Worker, b: Worker) -> float:
    """The logarithm of the ratio of sizes; 0 where a size is unknown."""
    sizes = [re.match(r"([\d.]*\d)\s*([MBT])", worker.size, re.IGNORECASE) for worker in (a, b)]
    logs = [np.log(float(size[1])) + np.log(1000) * "MBT".index(size[2].upper()) for size in sizes if size]
    return float(logs[0] - logs[1]) if len(logs) == 2 else 0.0


def _log(price: float) -> float:
    return float(np.log(price + 1e-9))


def _price_ratio(now: Worker, then: Worker) -> float:
    """The list price of a call now, divided by the list price of the worker when outcomes were recorded."""
    return now.cost_usd() / then.cost_usd() if then.cost_usd() > 0 else 1.0


def neighbours(past: Replay, seen: Texts, asked: Texts, *, k: int = 100) -> tuple[Tensor, Tensor]:
    """k-nearest-neighbour scores (n, W) by sentence vector: leave-one-out for past queries, and for those asked."""
    k = min(k, len(past) - 1)
    if k < 1:
        raise DataError("nearest neighbours need at least two past queries")

    def means(near: Floats) -> Tensor:
        rows = torch.from_numpy(np.argpartition(-near, k - 1, axis=1)[:, :k])
        value, mask = (past.score * past.mask)[rows].sum(1), past.mask[rows].sum(1)
        overall = (past.score * past.mask).sum(0) / past.mask.sum(0).clamp(min=1)
        return (overall + value) / (1 + mask)

    own = seen.vectors @ seen.vectors.T
    np.fill_diagonal(own, -np.inf)
    return means(own), means(asked.vectors @ seen.vectors.T)
