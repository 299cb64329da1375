"""An outcome model: features of contexts and the outcomes of options in, expected outcomes with uncertainty out.

The outcome of option a in context x is mean_a + g(x) + d_a(x) + noise: what is usual for the option, what all options
find easy or hard, and what suits this option. g and d are linear in the features φ(x), with normal priors, so that the
fit is in closed form and needs only sums over rows: the Gram matrix Σφφᵀ, which all options and all kinds of outcome
share, and one vector Σφy per option and kind. Sums are linear in rows, can be continued with later rows and faded.

Where only some options were tried, each option is fitted to its own outcomes, weighted by their propensities within
bounds. In the sums, the outcomes of the others are completed by what the model expects of them, corrected by the
observed error over its propensity (doubly robust: Dudík et al. 2011). A row is never judged by a model that has seen
it: ridges are chosen, and values estimated, by cross-validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RIDGES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Ratios of noise to prior variance that are tried, besides using no features at all."""
NONE = 1e12
"""The ridge at which features do not matter."""
FOLDS = 5
ROUNDS = 2
"""How often the completed outcomes are computed from the last fit."""
MAX_WEIGHT = 10.0
"""Maximum of 1 / propensity, or the number of options if there are more: a rarer outcome counts as if it were less
rare, since a few that count for hundreds would decide everything."""
RANK = 512
"""Number of principal directions of the features that ridges are chosen in: the others hardly vary."""
MAX_OBSERVED = 64
"""Maximum number of options that are each fitted to their own outcomes; more share a Gram matrix."""
MAX_RATIO = 4.0
"""Maximum ratio of an outcome's weight to that of the option's others."""
MEAN_PRIOR = 4.0
"""Outcomes that the mean of all options counts for in the mean of each: a few bad ones do not rule an option out."""
FEW = 10
"""Number of outcomes below which an option is little known: its mean may be far off by chance."""
KEPT = 256
"""Number of directions of the features whose uncertainty is known exactly; the others have that of the prior."""
TOLERANCE = 1.0
"""Standard errors by which a ridge's squared error may be above the least one for its choices to be compared."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Observed outcomes: m outcomes of n rows, H kinds of outcome."""

    rows: int
    row: Ints  # (m,)
    option: Ints  # (m,)
    value: Floats  # (m, H), nan where that kind was not reported
    weight: Floats  # (m,) 1 / propensity, up to MAX_WEIGHT or the number of options

    def take(self, rows: Ints) -> Observed:
        """These rows, in this order."""
        place = np.full(self.rows, -1)
        place[rows] = np.arange(len(rows))
        kept = place[self.row] >= 0
        return Observed(
            rows=len(rows),
            row=place[self.row[kept]],
            option=self.option[kept],
            value=self.value[kept],
            weight=self.weight[kept],
        )

    def kind(self, h: int) -> Observed:
        """The outcomes of one kind, (m,) where it was reported."""
        known = np.isfinite(self.value[:, h])
        return Observed(
            rows=self.rows,
            row=self.row[known],
            option=self.option[known],
            value=self.value[known, h],
            weight=self.weight[known],
        )


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The Gram matrix of features, as eigenvalues and eigenvectors."""

    values: Floats  # (r,)
    vectors: Floats  # (D, r)

    @classmethod
    def of(cls, gram: Floats) -> Spectrum:
        values, vectors = np.linalg.eigh(gram)
        return cls(values=values.clip(0), vectors=vectors)

    @classmethod
    def of_rows(cls, features: NDArray[Any]) -> Spectrum:
        """With fewer rows than features, from the smaller of the two matrices."""
        if len(features) >= features.shape[1]:
            return cls.of((features.T @ features).astype(np.float64))
        values, left = np.linalg.eigh((features @ features.T).astype(np.float64))
        kept = values > 1e-9 * max(1e-300, values[-1]) if len(values) else np.zeros(0, bool)
        return cls(values=values[kept], vectors=features.T @ (left[:, kept] / np.sqrt(values[kept])))

    def leading(self, rank: int) -> Spectrum:
        """The directions in which the features vary most."""
        most = np.argsort(-self.values)[:rank]
        return Spectrum(values=self.values[most], vectors=self.vectors[:, most])

    def solve(self, cross: Floats, ridge: Floats | float) -> Floats:
        """(D, K) weights for Σφy (D, K), each column with its own ridge."""
        turned = self.vectors.T @ cross
        return np.asarray(self.vectors @ (turned / (self.values[:, None] + np.asarray(ridge))))


@dataclass(frozen=True, kw_only=True)
class Part:
    """The fit of one kind of outcome. K options, D features."""

    mean: Floats  # (K,)
    count: Floats  # (K,) effective number of observed outcomes
    common: Floats  # (D,) weights of g
    own: Floats  # (D, K) weights of d
    base: Floats  # (D, K) what d is shrunk to: 0, or for an option that appeared later what those like it had then
    ridge: float  # of d
    ridge_common: float
    noise: float  # variance of an outcome around its expectation, in rows that the fit did not see


PART = ("mean", "count", "common", "own", "base")
"""The arrays of a Part."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Everything that later rows are added to. The Gram matrix is that of all rows, faded."""

    rows: float
    gram: Floats  # (D, D)
    common: Floats  # (H, D) Σφ·residual, mean over the options of a row
    own: Floats  # (H, D, K) Σφ·completed deviation, less that of the base
    since: Floats  # (K,) rows since the option appeared
    total: Floats  # (H, K) weighted sum of outcomes
    weight: Floats  # (H, K) their weights
    square: Floats  # (H, K) their squared weights

    def faded(self, factor: float) -> Sums:
        if factor == 1:
            return self
        return Sums(**{name: getattr(self, name) * factor for name in self.__dataclass_fields__})

    def plus(self, other: Sums) -> Sums:
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__})

    def widened(self, options: int) -> Sums:
        """With room for more options, of which nothing is known."""
        more = options - len(self.since)
        names = ("own", "since", "total", "weight", "square")
        empty = {name: np.zeros((*getattr(self, name).shape[:-1], more)) for name in names}
        wide: dict[str, Any] = {name: np.concatenate([getattr(self, name), x], -1) for name, x in empty.items()}
        return replace(self, **wide) if more > 0 else self

    @property
    def mean(self) -> Floats:
        """(H, K); nan where nothing is known."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.total / self.weight

    @property
    def count(self) -> Floats:
        """(H, K): effective number of outcomes (Kish)."""
        return self.weight**2 / np.where(self.square > 0, self.square, 1)


@dataclass(frozen=True, kw_only=True)
class OutcomeModel:
    """A fitted model. The features it expects are those it was fitted to, scaled by `scale`."""

    kinds: tuple[str, ...]
    scale: Floats  # (D,) weight of each feature
    parts: tuple[Part, ...]  # by kind
    values: Floats  # (r,) of the scaled features' Gram matrix
    vectors: NDArray[np.float32]  # (D, r)
    sums: Sums  # of unscaled features

    def expect(self, features: Floats) -> Floats:
        """(H, n, K) expected outcomes."""
        scaled = features * self.scale
        return np.stack([p.mean + (scaled @ p.common)[:, None] + scaled @ p.own for p in self.parts])

    def standard_error(self, features: Floats, h: int = 0) -> Floats:
        """(n, K) standard errors of the expectations of one kind: of the mean and of the features' weights."""
        part, scaled = self.parts[h], features * self.scale
        count = np.maximum(part.count, 1e-9)
        variance = np.broadcast_to(part.noise / (1 + count), (len(features), len(count))).copy()
        if part.ridge < NONE:
            ridge = part.ridge * max(self.sums.rows, 1) / count
            prior = part.noise / part.ridge
            turned = np.square(scaled.astype(np.float32) @ self.vectors)
            known = turned @ (self.values[:, None] / (self.values[:, None] + ridge))
            variance += prior * ((scaled**2).sum(1)[:, None] - known).clip(0)
        return np.sqrt(variance)

    def tensors(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {"scale": self.scale, "values": self.values, "vectors": self.vectors}
        found |= {f"sums.{name}": np.asarray(getattr(self.sums, name)) for name in self.sums.__dataclass_fields__}
        for i, part in enumerate(self.parts):
            found |= {f"{i}.{name}": getattr(part, name) for name in PART}
        return {name: np.ascontiguousarray(x, np.float32 if x.ndim > 1 else np.float64) for name, x in found.items()}

    def to_json(self) -> dict[str, Any]:
        numbers = ("ridge", "ridge_common", "noise")
        return {"kinds": list(self.kinds), "parts": [{n: getattr(p, n) for n in numbers} for p in self.parts]}

    @classmethod
    def from_state(cls, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> OutcomeModel:
        wide: dict[str, Any] = {name: x.astype(np.float64) for name, x in tensors.items()}
        wide["sums.rows"] = wide["sums.rows"].item()
        return cls(
            kinds=tuple(about["kinds"]),
            scale=wide["scale"],
            values=wide["values"],
            vectors=tensors["vectors"],
            parts=tuple(
                Part(**{name: wide[f"{i}.{name}"] for name in PART}, **numbers)
                for i, numbers in enumerate(about["parts"])
            ),
            sums=Sums(**{name: wide[f"sums.{name}"] for name in Sums.__dataclass_fields__}),
        )


# Sums


def add_up(
    features: NDArray[Any], seen: Observed, options: int, means: Floats, expected: Floats, common: Floats, base: Floats
) -> Sums:
    """The sums of these rows. `means` (H, K) are subtracted, `expected` (H, n, K) deviations complete what is not seen,
    `common` (H, n) is what all options of a row share, `base` (H, n, K) the deviations of the base."""
    D, H = features.shape[1], seen.value.shape[1]
    gram = (features.T @ features).astype(np.float64)
    shared, own = np.zeros((H, D)), np.zeros((H, D, options))
    total, weight, square = (np.zeros((H, options)) for _ in range(3))
    for h in range(H):
        o = seen.kind(h)
        rest = o.value - means[h, o.option]
        per_row = np.bincount(o.row, minlength=o.rows).clip(1)
        shared[h] = features.T @ (np.bincount(o.row, rest, minlength=o.rows) / per_row)
        completed, usual = expected[h] - base[h], common[h, o.row] + expected[h, o.row, o.option]
        np.add.at(completed, (o.row, o.option), o.weight * (rest - usual))
        own[h] = features.T @ completed
        # Less what the context explains: an option's mean is that of all contexts, not of those it was tried in.
        total[h], weight[h], square[h] = (
            np.bincount(o.option, x, minlength=options) for x in (o.weight * (o.value - usual), o.weight, o.weight**2)
        )
    return Sums(
        rows=float(seen.rows),
        gram=gram,
        common=shared,
        own=own,
        since=np.full(options, float(seen.rows)),
        total=total,
        weight=weight,
        square=square,
    )


# Fitting


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A model and, for the rows it was fitted to, what folds without the row expect of them."""

    model: OutcomeModel
    expected: Floats  # (H, n, K)
    value: float  # of the choices that the first kind's expectations make
    plain_value: float  # of the best single option
    z: float  # standard errors between the two


def fit_outcomes(
    features: NDArray[Any],
    seen: Observed,
    options: int,
    kinds: tuple[str, ...],
    *,
    scales: tuple[Floats, ...],
    eligible: NDArray[np.bool_] | None = None,
    groups: Ints | None = None,
    importance: Floats | None = None,
    seed: int = 0,
) -> Fitted:
    """Fit to rows that fit into memory.

    Scales and ridges are chosen by squared error; among ridges of nearly the same error, the first kind of outcome has
    the one whose choices are worth most. All by cross-validation, with rows of the same group in the same fold.
    `importance` (n,) are weights of rows.
    """
    n = len(features)
    _, group = np.unique(np.arange(n) if groups is None else groups, return_inverse=True)
    many = int(group.max()) + 1 if n else 0
    fold = (np.random.default_rng(seed).permutation(many) % min(FOLDS, max(2, many)))[group]
    root = np.sqrt(np.ones(n) if importance is None else importance)
    tried = (_Folds(features, scale, fold, root) for scale in scales)
    judged = ((folds, _fit_kind(folds, seen.kind(0), options, eligible)) for folds in tried)
    folds, first = min(judged, key=lambda one: one[1].judged.error)
    return _fit(features, folds, first, seen, options, kinds, eligible)


class _Folds:
    """Features in their principal directions, and predictions for every row by folds that did not see it."""

    def __init__(self, features: NDArray[Any], scale: Floats, fold: Ints, root: Floats) -> None:
        self.scale, self.width, self.active = scale, len(scale), np.flatnonzero(scale > 0)
        given = features[:, self.active] * scale[self.active].astype(features.dtype)
        self.whole = Spectrum.of_rows(given * root[:, None].astype(features.dtype)).leading(RANK)
        self.root, self.weight = root, root**2
        self.x = (given @ self.whole.vectors.astype(features.dtype)).astype(np.float64)
        self.heavy = self.x * root[:, None]  # weighted least squares: rows and targets times the roots of the weights
        self.cuts = []
        for f in np.unique(fold):
            out, spectrum = np.flatnonzero(fold == f), Spectrum.of_rows(self.heavy[fold != f])
            self.cuts.append((out, spectrum, self.x[out] @ spectrum.vectors))

    def predict(self, y: Floats, ridges: list[Floats]) -> list[Floats]:
        """Predictions (n, K) of y for each ridge, one per column or one for all."""
        found, heavy = [np.zeros_like(y) for _ in ridges], y * self.root[:, None]
        whole = self.heavy.T @ heavy
        for out, spectrum, outside in self.cuts:
            cross = spectrum.vectors.T @ (whole - self.heavy[out].T @ heavy[out])
            for place, ridge in zip(found, ridges, strict=True):
                place[out] = outside @ np.where(ridge < NONE, cross / (spectrum.values[:, None] + ridge), 0)
        return found

    def predict_observed(self, o: Observed, y: Floats, K: int, ridges: list[float]) -> list[Floats]:
        """Predictions (n, K) for each ridge from the observed outcomes alone, each option by itself."""
        found = [np.zeros((o.rows, K)) for _ in ridges]
        for out, _, _ in self.cuts:
            inside = ~np.isin(o.row, out)
            for option in range(K):
                own = np.flatnonzero(inside & (o.option == option))
                for place, (mean, w) in zip(found, self.regress(o, y, own, ridges), strict=True):
                    place[out, option] = mean + self.x[out] @ w
        return found

    def regress(self, o: Observed, y: Floats, own: Ints, ridges: list[float]) -> list[tuple[float, Floats]]:
        """Intercept and weights of directions for each ridge, by least squares over these outcomes.

        Weights are those of the propensities, within bounds: the fit is to be right where the option was not tried, and
        not to hang on the few outcomes that were improbable.
        """
        if not len(own):
            return [(0.0, np.zeros(self.x.shape[1]))] * len(ridges)
        usual = o.weight[own] / np.exp(np.log(o.weight[own]).mean())
        weight = self.root[o.row[own]] ** 2 * usual.clip(1 / MAX_RATIO, MAX_RATIO)
        x, total = self.x[o.row[own]], weight.sum()
        centre, mean = weight @ x / total, float(weight @ y[own] / total)
        heavy = (x - centre) * np.sqrt(weight)[:, None]
        spectrum = Spectrum.of_rows(heavy)
        cross = spectrum.vectors.T @ (heavy.T @ ((y[own] - mean) * np.sqrt(weight)))
        mean *= total / (1 + total)  # shrunk to 0 by one outcome
        found = [spectrum.vectors @ (cross / (spectrum.values + ridge) * (ridge < NONE)) for ridge in ridges]
        return [(mean - float(centre @ w), w) for w in found]

    def solve(self, y: Floats, ridge: Floats) -> Floats:
        """(D, K) weights of all features, from all rows."""
        cross = self.heavy.T @ (y * self.root[:, None])
        return self.back(cross / (self.whole.values[:, None] + ridge))

    def back(self, weights: Floats) -> Floats:
        """Weights of directions as weights of all features."""
        found = np.zeros((self.width, weights.shape[1]))
        found[self.active] = self.whole.vectors @ weights
        return found


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A ridge, and what choices by its predictions are worth."""

    ridge: int  # its place in the grid
    error: float
    value: float
    plain_value: float
    z: float


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """The fit of one kind of outcome, with what its sums need."""

    part: Part
    expected: Floats  # (n, K)
    shared: Floats  # (n,) mean residual of a row's options
    own: Floats  # (D, K) Σφ·completed deviation, of scaled features
    total: Floats  # (K,) weighted sums: of outcomes, weights, squared weights
    weight: Floats
    square: Floats
    judged: Judged


def _fit(
    features: NDArray[Any],
    folds: _Folds,
    fit: _Kind,
    seen: Observed,
    K: int,
    kinds: tuple[str, ...],
    eligible: NDArray[np.bool_] | None,
) -> Fitted:
    """All kinds of outcome, the first of which is fitted already."""
    fits = [fit]
    for h in range(1, len(kinds)):
        is_same = np.array_equal(seen.value[:, h], seen.value[:, 0], equal_nan=True)  # as where success is the reward
        fits.append(fit if is_same else _fit_kind(folds, seen.kind(h), K, eligible))
    scale, root, weight = folds.scale, folds.root, folds.weight
    kind = features.dtype  # of 4 bytes where there are many rows
    heavy = features * root[:, None].astype(kind)
    sums = Sums(
        rows=float(weight.sum()),
        gram=(heavy.T @ heavy).astype(np.float64),
        common=np.stack([features.T @ (weight * fit.shared).astype(kind) for fit in fits]).astype(np.float64),
        own=np.stack([fit.own for fit in fits]) / np.where(scale > 0, scale, 1)[:, None],
        since=np.full(K, weight.sum()),
        total=np.stack([fit.total for fit in fits]),
        weight=np.stack([fit.weight for fit in fits]),
        square=np.stack([fit.square for fit in fits]),
    )
    model = OutcomeModel(
        kinds=kinds,
        scale=scale,
        parts=tuple(fit.part for fit in fits),
        values=folds.whole.values[:KEPT],
        vectors=folds.back(np.eye(len(folds.whole.values))[:, :KEPT]).astype(np.float32),
        sums=sums,
    )
    return Fitted(
        model=model,
        expected=np.stack([fit.expected for fit in fits]),
        value=fit.judged.value,
        plain_value=fit.judged.plain_value,
        z=fit.judged.z,
    )


def _fit_kind(folds: _Folds, o: Observed, K: int, eligible: NDArray[np.bool_] | None) -> _Kind:
    n, grid = o.rows, [*RIDGES, NONE]
    load = o.weight * folds.root[o.row] ** 2
    total, weight, square = (
        np.bincount(o.option, x, minlength=K).astype(np.float64) for x in (load * o.value, load, load**2)
    )
    count = weight**2 / np.where(square > 0, square, 1)
    overall = float(total.sum() / max(weight.sum(), 1e-300))
    mean = np.where(weight > 0, total / np.where(weight > 0, weight, 1), overall)
    if len(o.row) < n * K:
        mean = overall + (mean - overall) * count / (count + MEAN_PRIOR)
    rest = o.value - mean[o.option]
    per_row = np.bincount(o.row, minlength=n)
    shared = np.bincount(o.row, rest, minlength=n) / per_row.clip(1)
    guesses = folds.predict(shared[:, None], [np.full(1, ridge) for ridge in grid])
    each = folds.weight * (per_row > 0)
    at = int(np.argmin([each @ np.square(guess[:, 0] - shared) for guess in guesses]))
    g, ridge_common = guesses[at][:, 0], grid[at]
    stretch = max(n, 1) / np.maximum(count, 1e-9)  # an option with fewer outcomes is shrunk more
    ridges = [np.minimum(ridge * stretch, NONE) for ridge in grid]
    if len(o.row) < n * K and K <= MAX_OBSERVED:
        return _fit_observed(folds, o, K, eligible, mean, g, shared, ridge_common, (total, weight, square))
    completed = deviation = np.zeros((n, K))
    judged = Judged(ridge=len(grid) - 1, error=0.0, value=0.0, plain_value=0.0, z=0.0)
    for _ in range(ROUNDS if len(o.row) < n * K else 1):
        completed = deviation.copy()
        np.add.at(completed, (o.row, o.option), o.weight * (rest - g[o.row] - deviation[o.row, o.option]))
        tried = folds.predict(completed, ridges)
        judged = _judge(tried, mean, g, o, deviation, eligible, folds.weight, count)
        deviation = tried[judged.ridge]
    expected = mean + g[:, None] + deviation
    miss = o.value - expected[o.row, o.option]
    part = Part(
        mean=mean,
        count=count,
        common=folds.solve(shared[:, None], np.full(1, ridge_common))[:, 0],
        own=folds.solve(completed, ridges[judged.ridge]),
        base=np.zeros((folds.width, K)),
        ridge=grid[judged.ridge],
        ridge_common=ridge_common,
        noise=_mean(np.square(miss), folds.weight[o.row]) if len(miss) else 0.0,
    )
    return _Kind(
        part=part,
        expected=expected,
        shared=shared,
        own=folds.back(folds.heavy.T @ (completed * folds.root[:, None])),
        total=total,
        weight=weight,
        square=square,
        judged=judged,
    )


def _fit_observed(
    folds: _Folds,
    o: Observed,
    K: int,
    eligible: NDArray[np.bool_] | None,
    mean: Floats,
    g: Floats,
    shared: Floats,
    ridge_common: float,
    totals: tuple[Floats, Floats, Floats],
) -> _Kind:
    """Each option by regression over its own outcomes."""
    grid, (_, weight, square) = [*RIDGES, NONE], totals
    rest, count = o.value - mean[o.option] - g[o.row], weight**2 / np.where(square > 0, square, 1)
    tried = folds.predict_observed(o, rest, K, grid)
    judged = _judge(tried, mean, g, o, np.zeros((o.rows, K)), eligible, folds.weight, count)
    judged = _judge(tried, mean, g, o, tried[judged.ridge], eligible, folds.weight, count)
    fits = [folds.regress(o, rest, np.flatnonzero(o.option == k), [grid[judged.ridge]])[0] for k in range(K)]
    intercept, w = mean + np.array([m for m, _ in fits]), np.stack([w for _, w in fits], 1)
    expected = mean + g[:, None] + tried[judged.ridge]
    miss = o.value - expected[o.row, o.option]
    ridge = np.minimum(grid[judged.ridge] * max(o.rows, 1) / np.maximum(count, 1e-9), NONE)
    part = Part(
        mean=intercept,
        count=count,
        common=folds.solve(shared[:, None], np.full(1, ridge_common))[:, 0],
        own=folds.back(w),
        base=np.zeros((folds.width, K)),
        ridge=grid[judged.ridge],
        ridge_common=ridge_common,
        noise=_mean(np.square(miss), folds.weight[o.row]) if len(miss) else 0.0,
    )
    # The sums of which `refit` makes the same weights.
    own = folds.back((folds.whole.values[:, None] + ridge) * w)
    return _Kind(
        part=part,
        expected=expected,
        shared=shared,
        own=own,
        total=intercept * weight,
        weight=weight,
        square=square,
        judged=judged,
    )


def _judge(
    tried: list[Floats],
    mean: Floats,
    g: Floats,
    o: Observed,
    deviation: Floats,
    eligible: NDArray[np.bool_] | None,
    weight: Floats,
    count: Floats,
) -> Judged:
    """The ridge to use, with rows of this weight. Values are doubly robust where not all outcomes are known.

    Options of which little is known are chosen only where there is no other: one good outcome may be chance.
    """
    n, K = deviation.shape
    worth = deviation + g[:, None] + mean
    np.add.at(worth, (o.row, o.option), o.weight * (o.value - worth[o.row, o.option]))
    rows, allowed = np.arange(n), eligible if eligible is not None else np.ones((n, K), bool)
    known = allowed & well_known(count)
    allowed = np.where(known.any(1, keepdims=True), known, allowed)
    earned = [worth[rows, np.where(allowed, mean + t, -np.inf).argmax(1)] for t in tried]
    errors = _errors(tried, mean, g, o)
    load = weight[o.row] if len(o.row) < n * K else weight
    least = int(np.argmin([_mean(error, load) for error in errors]))
    good = []
    for ridge, error in enumerate(errors):
        gap = error - errors[least]
        if _mean(gap, load) <= TOLERANCE * _mean_error(gap, load):
            good.append(ridge)
    best = max(good, key=lambda ridge: _mean(earned[ridge], weight))
    gain = earned[best] - earned[-1]
    return Judged(
        ridge=best,
        error=_mean(errors[best], load),
        value=_mean(earned[best], weight),
        plain_value=_mean(earned[-1], weight),
        z=_mean(gain, weight) / (_mean_error(gain, weight) + 1e-12),
    )


def well_known(count: Floats) -> NDArray[np.bool_]:
    """(K,) which options have enough outcomes to be compared; those with the most if none has."""
    return np.asarray(count >= min(FEW, float(count.max(initial=0))) * (1 - 1e-9))


def _mean(x: Floats, weight: Floats) -> float:
    return float(weight @ x / max(float(weight.sum()), 1e-300))


def _mean_error(x: Floats, weight: Floats) -> float:
    """Standard error of the weighted mean."""
    spread = _mean(np.square(x - _mean(x, weight)), weight) ** 0.5
    return float(spread * np.linalg.norm(weight) / max(float(weight.sum()), 1e-300))


def _errors(tried: list[Floats], mean: Floats, g: Floats, o: Observed) -> list[Floats]:
    """Squared errors of deviations: by outcome; by row, less what its options share, if every outcome is known."""
    n, K = tried[0].shape
    rest = o.value - mean[o.option] - g[o.row]
    if len(o.row) < n * K:
        return [np.square(t[o.row, o.option] - rest) for t in tried]
    table = np.zeros((n, K))
    table[o.row, o.option] = rest
    missed = [t - table for t in tried]
    return [np.square(miss - miss.mean(1, keepdims=True)).mean(1) for miss in missed]


def choose_ridges(model: OutcomeModel, sums: Sums, held_out: Sums) -> OutcomeModel:
    """The model with ridges that predict the completed outcomes of held-out rows best.

    For weights w, the squared error over rows is wᵀΣφφᵀw − 2wᵀΣφy and a constant, so that the sums are enough.
    """
    outer = np.outer(model.scale, model.scale)
    spectrum, gram = Spectrum.of(sums.gram * outer), held_out.gram * outer

    def best(cross: Floats, held: Floats, stretch: Floats) -> float:
        errors = []
        for ridge in (*RIDGES, NONE):
            w = spectrum.solve(cross, np.minimum(ridge * stretch, NONE))
            errors.append(float((w * (gram @ w - 2 * held)).sum()))
        return (*RIDGES, NONE)[int(np.argmin(errors))]

    parts, by_feature = [], model.scale[:, None]
    for h, part in enumerate(model.parts):
        stretch = max(sums.rows, 1.0) / np.maximum(sums.count[h], 1e-9)
        own = best(sums.own[h] * by_feature, held_out.own[h] * by_feature, stretch)
        common = best(sums.common[h][:, None] * by_feature, held_out.common[h][:, None] * by_feature, np.ones(1))
        parts.append(replace(part, ridge=own, ridge_common=common))
    return replace(model, parts=tuple(parts))


def refit(model: OutcomeModel, sums: Sums, mix: Floats | None = None) -> OutcomeModel:
    """The model of other sums, such as the old ones and those of later rows, with the ridges it has.

    `mix` (K, known) is each option of the sums as a mixture of those that the model knows. An option that appeared
    later starts as its mixture; only rows since then say how it differs.
    """
    gram = sums.gram * np.outer(model.scale, model.scale)
    spectrum = Spectrum.of(gram)
    parts, n = [], max(sums.rows, 1.0)
    for h, part in enumerate(model.parts):
        mean, base = (part.mean, part.base) if mix is None else (part.mean @ mix.T, widen_base(part, mix))
        count, known = sums.count[h], sums.weight[h] > 0
        ridge = np.minimum(part.ridge * n / np.maximum(count, 1e-9), NONE)
        own = spectrum.solve(sums.own[h] * model.scale[:, None], ridge) * (n / np.maximum(sums.since, 1e-9))
        common = spectrum.solve((sums.common[h] * model.scale)[:, None], part.ridge_common)[:, 0]
        mean = np.where(known, sums.total[h] / np.where(known, sums.weight[h], 1), mean)
        parts.append(replace(part, mean=mean, count=count, common=common, own=base + own, base=base))
    kept = np.argsort(-spectrum.values)[:KEPT]
    vectors = spectrum.vectors[:, kept].astype(np.float32)
    return replace(model, parts=tuple(parts), values=spectrum.values[kept], vectors=vectors, sums=sums)


def widen_base(part: Part, mix: Floats) -> Floats:
    """(D, K) with what is expected of new options, the last of `mix`."""
    return np.concatenate([part.base, part.own @ mix[part.base.shape[1] :].T], 1)
