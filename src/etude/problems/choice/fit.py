"""Fits a choice model to past choices: rows in, in one or two passes; a model out. Time is linear in rows."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from etude.contracts.errors import DataError
from etude.contracts.option import Option
from etude.contracts.ports import TextEncoder
from etude.learning.outcome_model import (
    FEW,
    FOLDS,
    MAX_WEIGHT,
    Fitted,
    Observed,
    Part,
    Sums,
    add_up,
    choose_ridges,
    fit_outcomes,
    refit,
    well_known,
    widen_base,
)
from etude.problems.choice.contexts import fit_contexts
from etude.problems.choice.memory import remember
from etude.problems.choice.model import ChoiceModel, Expectation, Frontier, amount
from etude.problems.choice.options import make_table, price_ratio
from etude.problems.choice.remarks import CANNOT_JUDGE, Occurrence, on_changes, on_few_outcomes, on_new_kinds, on_rows
from etude.problems.choice.rows import COST, KINDS, LATENCY, SCORE, Row, Rows
from etude.problems.choice.settings import ChoiceConfig

Floats = NDArray[np.float64]
TEXT_WEIGHTS = (1.0, 0.4, 0.0)
"""Weights of text that are tried where a context has categories or numbers besides."""
QUALITY_WEIGHTS = 1 / (1 + np.concatenate([[0.0], np.logspace(-3, 3, 121)]))
"""Weights of quality at which costs and scores of past rows are known."""
PAST_CONTEXTS = 1024
"""Past contexts that a policy keeps, as features, to know what choices among other options would cost."""
MAX_CELLS = 2_000_000
"""Rows of the sample times options: with very many options, the sample is smaller."""
MAX_PROCESSES, MIN_ROWS_FOR_PROCESSES = 4, 50_000
Report = Callable[[float], None]
F = TypeVar("F", bound=Callable[..., object])


def one_blas_thread(function: F) -> F:
    """A fit is many small products: where other work keeps a core busy, BLAS threads wait for each other, and it takes
    30 times as long."""
    limited: F = threadpool_limits.wrap(limits=1, user_api="blas")(function)
    return limited


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model, with what is known of the rows it was fitted to."""

    model: ChoiceModel
    rows: int
    value: float  # cross-validated score of its choices; nan where there are too few rows, or none that are held out
    plain_value: float  # of the best single option
    z: float  # standard errors between them
    remarks: tuple[str, ...] = ()
    held_out: tuple[list[Row], Expectation] | None = None  # past rows, with what folds that did not see them expect


@one_blas_thread
def fit_choice(
    rows: Rows,
    encoder: TextEncoder,
    config: ChoiceConfig,
    *,
    options: Sequence[Option] | None = None,
    report: Report = lambda share: None,
    seed: int = 0,
) -> Trained:
    """Fit a new model. Everything that is chosen is chosen on a sample of rows; the sums are over all rows."""
    taken, total, offered = _sample(rows, config.sample, seed)
    known = _options(options, {name: one.option for name, one in offered.items()})
    rows = _at_prices(known, rows)
    taken = _restated(known, taken[:: max(1, len(taken) * len(known) // MAX_CELLS)])
    if len(known) < 2:
        raise DataError(f"there is one option, {known[0].name!r}: a choice needs at least two, with their outcomes")
    place = {option.name: i for i, option in enumerate(known)}
    kinds = tuple(kind for kind in KINDS if any(kind in o for row in taken for o in row.outcomes.values()))
    reader, features = fit_contexts([row.context for row in taken], encoder, seed=seed)
    report(0.2)
    length = np.array([float(len(reader.text_of(row.context))) for row in taken])
    shares = _shares(taken, place)
    seen = observe(taken, place, kinds, shares)
    lines = {kind: _line(seen.kind(kinds.index(kind)), length, len(known)) for kind in (COST, LATENCY) if kind in kinds}
    relative = _relative(seen, kinds, lines, length)
    texts = TEXT_WEIGHTS if reader.has_text and len(reader.blocks) > 4 else TEXT_WEIGHTS[:1]
    eligible = eligible_mask(taken, place)
    groups = np.unique([row.group for row in taken], return_inverse=True)[1]
    fitted = fit_outcomes(
        features,
        relative,
        len(known),
        kinds,
        scales=tuple(reader.weights(text) for text in texts),
        eligible=eligible,
        groups=groups,
        importance=_importance(len(taken), total, config),
        seed=seed,
    )
    report(0.6)
    outcomes = fitted.model
    table = make_table(known, encoder)
    model = ChoiceModel(
        reader=reader,
        outcomes=outcomes,
        table=table,
        lines=lines,
        between=_between(outcomes.parts[0].mean, outcomes.parts[0].count, table.left_out(), outcomes.parts[0].noise),
        unit_usd=1.0,
        best_single="",
        frontier=Frontier(weight=np.ones(1), score=np.zeros(1), cost_usd=np.zeros(1)),
        memory=remember(reader, taken, seen, features=features, total=total),
    )
    if total > len(taken):
        sums, rest = _all_sums(model, rows, total, place, shares, config, report)
        model = replace(model, outcomes=refit(choose_ridges(outcomes, sums, rest), sums.plus(rest)))
    held_out = _held_out(model, fitted, features, length)
    model = _summarised(model, held_out, seen, eligible, features, length)
    report(1.0)
    judged, scores = len(taken) >= FEW and bool(groups.any()), seen.value[:, 0]
    value, plain_value = (
        float(np.clip(x, scores.min(), scores.max())) if judged else float("nan")
        for x in (fitted.value, fitted.plain_value)
    )
    return Trained(
        model=model,
        rows=total,
        value=value,
        plain_value=plain_value,
        z=fitted.z if judged else float("nan"),
        remarks=(
            *([] if judged else [CANNOT_JUDGE]),
            *on_rows(taken, model.table.names, shares),
            *on_few_outcomes(model.table.names, model.outcomes.parts[0].count, total),
            *on_changes(offered, total),
        ),
        held_out=(taken, held_out),
    )


@one_blas_thread
def continue_choice(
    model: ChoiceModel, rows: Rows, config: ChoiceConfig, *, options: Sequence[Option] | None = None
) -> Trained:
    """The model, with later rows added to its sums; earlier ones fade if the settings say so."""
    taken, total, offered = _sample(rows, config.sample, 0)
    priced = _options([*(options or ()), *model.table.options], {name: one.option for name, one in offered.items()})
    rows, taken = _at_prices(priced, rows), _restated(priced, taken)
    own = _own_lines(model, taken, offered)
    known, place = list(model.table.options), {name: i for i, name in enumerate(model.table.names)}
    sums, memory = model.outcomes.sums, model.memory
    for part in rows():
        new = [o for o in _options(priced, _offered(part)) if o.name not in place]
        for option in new:
            place[option.name] = len(known)
            known.append(option)
        mix = model.table.mixture(known, model.reader.encoder)
        sums = sums.widened(len(known)).faded(_fade(len(part), config))
        shares = _shares(part, place)
        sums = sums.plus(_part_sums(model, part, place, shares, mix, _lines(model, known, mix, own)))
        memory = memory.plus(remember(model.reader, part, observe(part, place, model.kinds, shares)))
    mix = model.table.mixture(known, model.reader.encoder)
    outcomes = refit(model.outcomes, sums, mix)
    table, part0 = make_table(known, model.reader.encoder), outcomes.parts[0]
    later = replace(
        model,
        outcomes=outcomes,
        table=table,
        lines=_lines(model, known, mix, own),
        between=_between(part0.mean, part0.count, table.left_out(), part0.noise),
        best_single=known[_best_single(part0)].name,
        memory=memory,
    )
    return Trained(
        model=later,
        rows=total,
        value=float("nan"),
        plain_value=float("nan"),
        z=float("nan"),
        remarks=(
            *on_new_kinds(taken, model.kinds),
            *on_rows(taken, list(offered), _shares(taken, {name: i for i, name in enumerate(offered)})),
            *on_few_outcomes(table.names, part0.count, total),
            *on_changes(offered, total),
        ),
    )


# Rows to arrays


def observe(rows: Sequence[Row], place: Mapping[str, int], kinds: tuple[str, ...], shares: Floats) -> Observed:
    """Outcomes of the options in `place`, each weighted by one over its propensity."""
    row, option, value, weight = [], [], [], []
    for i, one in enumerate(rows):
        for name, outcome in one.outcomes.items():
            if name in place:
                row.append(i)
                option.append(place[name])
                value.append([outcome.get(kind, np.nan) for kind in kinds])
                weight.append(1 / (one.propensity if one.propensity is not None else shares[place[name]]))
    return Observed(
        rows=len(rows),
        row=np.array(row, np.int64),
        option=np.array(option, np.int64),
        value=np.array(value, np.float64).reshape(len(row), len(kinds)),
        weight=np.minimum(np.array(weight, np.float64), max(MAX_WEIGHT, len(place))),
    )


def eligible_mask(rows: Sequence[Row], place: Mapping[str, int]) -> NDArray[np.bool_] | None:
    """(n, K) which options were offered; None if all always were."""
    if all(row.options is None for row in rows):
        return None
    found = np.ones((len(rows), len(place)), bool)
    for i, row in enumerate(rows):
        if row.options is not None:
            found[i] = False
            found[i, [place[o.name] for o in row.options if o.name in place]] = True
    return found


def _shares(rows: Sequence[Row], place: Mapping[str, int]) -> Floats:
    """(K,) share of the rows without propensities that have the option's outcome: 1 where all outcomes are known."""
    free = [row for row in rows if row.propensity is None]
    count = np.zeros(len(place))
    for row in free:
        for name in row.outcomes:
            if name in place:
                count[place[name]] += 1
    found: Floats = np.maximum(count / max(1, len(free)), 1e-3)
    return found


def _sample(rows: Rows, size: int, seed: int) -> tuple[list[Row], int, dict[str, Occurrence]]:
    """A uniform sample in the order of time (reservoir), the number of rows, and the options that occur."""
    rng, kept, total = np.random.default_rng(seed), list[tuple[int, Row]](), 0
    offered: dict[str, Occurrence] = {}
    for part in rows():
        for name, option in _offered(part).items():
            offered.setdefault(name, Occurrence(option=option)).option = option
        for row in part:
            for name in row.outcomes if row.options is None else [option.name for option in row.options]:
                offered[name].add(total, row.source)
            if len(kept) < size:
                kept.append((total, row))
            elif (at := int(rng.integers(0, total + 1))) < size:
                kept[at] = (total, row)
            total += 1
    kept.sort(key=lambda pair: pair[0])
    return [row for _, row in kept], total, offered


def _offered(part: Iterable[Row]) -> dict[str, Option]:
    """As they are described last."""
    found: dict[str, Option] = {}
    for row in part:
        for option in row.options or ():
            found[option.name] = option
        for name in row.outcomes:
            if name not in found:
                found[name] = Option(name=name)
    return found


def _options(given: Sequence[Option] | None, offered: Mapping[str, Option]) -> list[Option]:
    """The options that occur, as they are described; those that are described and never occur are new ones later."""
    described = {option.name: option for option in given or ()}
    return [described.get(name, option) for name, option in sorted(offered.items())]


# Costs and latencies


def _at_prices(known: Sequence[Option], rows: Rows) -> Rows:
    return lambda: (_restated(known, part) for part in rows())


def _restated(known: Sequence[Option], rows: Sequence[Row]) -> list[Row]:
    """Rows with the costs that they would have at the prices of the known options: those that were paid are at the
    prices of their time."""
    now = {option.name: option for option in known}
    return [_at_price(now, row) for row in rows]


def _at_price(now: Mapping[str, Option], row: Row) -> Row:
    ratios = {
        option.name: ratio
        for option in row.options or ()
        if COST in row.outcomes.get(option.name, ()) and (ratio := price_ratio(now[option.name], option)) != 1
    }
    if not ratios:
        return row
    outcomes = {
        name: {**outcome, COST: outcome[COST] * ratios[name]} if name in ratios else outcome
        for name, outcome in row.outcomes.items()
    }
    return replace(row, outcomes=outcomes)


def _line(o: Observed, length: Floats, K: int) -> Floats:
    """(3, K): amount per call and per character, the latter 0 or more and shrunk where there are few outcomes, and the
    least amount, below which no text is expected to be."""
    at = length[o.row]
    count = np.bincount(o.option, minlength=K)
    some = count.clip(1)
    mean_x, mean_y = (np.bincount(o.option, v, minlength=K) / some for v in (at, o.value))
    away = at - mean_x[o.option]
    slope = np.bincount(o.option, away * (o.value - mean_y[o.option]), minlength=K)
    slope = np.maximum(slope / (np.bincount(o.option, away**2, minlength=K) * (1 + 1 / some) + 1e-9), 0)
    overall = o.value.mean() if len(o.value) else 0.0
    least = np.full(K, np.inf)
    np.minimum.at(least, o.option, o.value)
    found: Floats = np.stack(
        [np.where(count > 0, mean_y - slope * mean_x, overall), slope, np.where(count > 0, least, 0)]
    )
    return found


def _own_lines(model: ChoiceModel, rows: Sequence[Row], names: Collection[str]) -> dict[str, dict[str, Floats]]:
    """By kind and name, (3,) the lines of options that have outcomes of the kind in these rows: fitted to these rows
    where the model knows no other outcomes, else with the least amount of both."""
    order, found = list(names), dict[str, dict[str, Floats]]()
    place = {name: i for i, name in enumerate(order)}
    seen = observe(rows, place, model.kinds, np.ones(len(place)))
    length = model.length([row.context for row in rows]) if model.lines else np.zeros(len(rows))
    past = {name: i for i, name in enumerate(model.table.names)}
    for kind, line in model.lines.items():
        h, found[kind] = model.kinds.index(kind), {}
        outcomes = seen.kind(h)
        fresh = _line(outcomes, length, len(place))
        for i in np.unique(outcomes.option).tolist():
            name, column = order[i], fresh[:, i]
            if name in past and model.outcomes.sums.weight[h, past[name]] > 0:
                base, slope, least = line[:, past[name]]
                column = np.array([base, slope, min(least, column[2])])
            found[kind][name] = column
    return found


def _lines(
    model: ChoiceModel, known: Sequence[Option], mix: Floats, own: Mapping[str, Mapping[str, Floats]]
) -> dict[str, Floats]:
    """By kind, (3, K): each option's own line, or the mixture of those like it."""
    found = {}
    for kind, line in model.lines.items():
        mixed = (line @ mix.T).T
        found[kind] = np.stack([own[kind].get(option.name, mixed[i]) for i, option in enumerate(known)], 1)
    return found


def _relative(seen: Observed, kinds: tuple[str, ...], lines: Mapping[str, Floats], length: Floats) -> Observed:
    """Costs and latencies as multiples of what texts of that length usually take."""
    value = seen.value.copy()
    for kind, line in lines.items():
        usual = line[0, seen.option] + line[1, seen.option] * length[seen.row]
        h = kinds.index(kind)
        value[:, h] = np.where(usual > 0, np.minimum(value[:, h] / np.where(usual > 0, usual, 1), 20.0), 1.0)
    return replace(seen, value=value)


# Sums over all rows


def _all_sums(
    model: ChoiceModel,
    rows: Rows,
    total: int,
    place: Mapping[str, int],
    shares: Floats,
    config: ChoiceConfig,
    report: Report,
) -> tuple[Sums, Sums]:
    """The sums of all rows in two parts: a fifth of the groups, by which ridges are chosen, and the others."""
    empty = model.outcomes.sums.faded(0.0)
    sums, done = (empty, empty), 0
    for many, added in _in_parallel(rows(), _Adding(model=model, place=place, shares=shares), total):
        fade = _fade(many, config)
        sums = tuple(one.faded(fade).plus(own) for one, own in zip(sums, added, strict=True))  # type: ignore
        done += many
        report(0.6 + 0.4 * done / total)
    return sums


@dataclass(frozen=True, kw_only=True)
class _Adding:
    """Adds up parts of the rows; in other processes, too."""

    model: ChoiceModel
    place: Mapping[str, int]
    shares: Floats

    def __call__(self, part: Sequence[Row]) -> tuple[int, list[Sums]]:
        held = [zlib.crc32(row.group.encode("utf-8", "surrogatepass")) % FOLDS == 0 for row in part]
        found = []
        for out in (False, True):
            own = [row for row, is_held in zip(part, held, strict=True) if is_held == out]
            found.append(
                _part_sums(self.model, own, self.place, self.shares, np.eye(len(self.place)), self.model.lines)
            )
        return len(part), found


def _in_parallel(parts: Iterator[list[Row]], add: _Adding, total: int) -> Iterator[tuple[int, list[Sums]]]:
    """The sums of each part, in order; many rows are read by as many processes as there are cores."""
    workers = min(os.cpu_count() or 1, MAX_PROCESSES)
    if workers == 1 or total < MIN_ROWS_FOR_PROCESSES:
        yield from map(add, parts)
        return
    global _adding
    _adding = add  # processes that are forked have it; nothing is sent but rows and sums
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            ahead: deque[Future[tuple[int, list[Sums]]]] = deque()
            for part in parts:
                ahead.append(pool.submit(_add, part))
                if len(ahead) > workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
    finally:
        _adding = None


_adding: _Adding | None = None


def _add(part: list[Row]) -> tuple[int, list[Sums]]:
    assert _adding is not None
    return _adding(part)


def _part_sums(
    model: ChoiceModel,
    part: Sequence[Row],
    place: Mapping[str, int],
    shares: Floats,
    mix: Floats,
    lines: Mapping[str, Floats],
) -> Sums:
    """The sums of some rows, completed by what the model, which has not seen them, expects.

    `mix` (K, known) is each option as a mixture of those that the model knows, `lines` are those of all K.
    """
    contexts = [row.context for row in part]
    x, length = model.reader(contexts), model.length(contexts)
    seen = _relative(observe(part, place, model.kinds, shares), model.kinds, lines, length)
    scaled, parts = x.astype(np.float64) * model.outcomes.scale, model.outcomes.parts
    return add_up(
        x,
        seen,
        len(mix),
        np.stack([p.mean @ mix.T for p in parts]),
        np.stack([scaled @ (p.own @ mix.T) for p in parts]),
        np.stack([scaled @ p.common for p in parts]),
        np.stack([scaled @ widen_base(p, mix) for p in parts]),
    )


def _fade(rows: int, config: ChoiceConfig) -> float:
    return 1.0 if config.half_life_rows is None else float(0.5 ** (rows / config.half_life_rows))


def _importance(taken: int, total: int, config: ChoiceConfig) -> Floats | None:
    """(taken,) weights of a sample in the order of time; None without fading."""
    if config.half_life_rows is None:
        return None
    age = (taken - 1 - np.arange(taken)) * (total / taken)
    found: Floats = 0.5 ** (age / config.half_life_rows)
    return found


# Summary


def _between(mean: Floats, count: Floats, left_out: Floats, noise: float) -> float:
    """Standard error with which the options most like one predict its mean."""
    known = count > 0
    if known.sum() < 3:
        return float(np.sqrt(noise)) if noise > 0 else 1.0
    miss = (left_out @ mean - mean)[known]
    return float(np.sqrt(np.square(miss).mean()))


def _held_out(model: ChoiceModel, fitted: Fitted, features: NDArray[Any], length: Floats) -> Expectation:
    """What folds that did not see a row expect of it; standard errors matter for options with few outcomes alone."""
    found, count = dict(zip(model.kinds, fitted.expected, strict=True)), fitted.model.parts[0].count
    for kind, line in model.lines.items():
        found[kind] = amount(found[kind], line, length[:, None])
    score = found.pop(SCORE)
    error = np.zeros_like(score) if (count >= FEW).all() else fitted.model.standard_error(features.astype(np.float64))
    return Expectation(score=score, error=error, other=found, count=count)


def _best_single(part: Part) -> int:
    """The option with the highest mean, of those that are well known."""
    return int(np.where(well_known(part.count), part.mean, -np.inf).argmax())


def _summarised(
    model: ChoiceModel,
    expected: Expectation,
    seen: Observed,
    eligible: NDArray[np.bool_] | None,
    features: NDArray[Any],
    length: Floats,
) -> ChoiceModel:
    """With the best single option, the unit of cost, and the frontier of past rows by folds that did not see them."""
    part, kinds = model.outcomes.parts[0], model.kinds
    best = _best_single(part)
    score, cost, (n, K) = expected.score, expected.cost(), expected.score.shape
    completed = {SCORE: _completed(score, seen.kind(0))}
    if COST in kinds:
        completed[COST] = _completed(cost, seen.kind(kinds.index(COST)))
    paid = completed.get(COST, cost)
    unit = float(paid[:, best].mean())
    unit = unit if unit > 0 else 1.0
    allowed = eligible if eligible is not None else np.ones((n, K), bool)
    allowed = allowed & (expected.count > 0)
    rows = np.arange(n)
    points = []
    for weight in QUALITY_WEIGHTS:
        utility = expected.careful(weight * score - (1 - weight + 1e-9) * cost / unit, float(weight))
        pick = np.where(allowed, utility, -np.inf).argmax(1)
        points.append((completed[SCORE][rows, pick].mean(), paid[rows, pick].mean()))
    scores, costs = np.array(points).T
    return replace(
        model,
        best_single=model.table.names[best],
        unit_usd=unit,
        frontier=Frontier(
            weight=QUALITY_WEIGHTS,
            score=scores,
            cost_usd=costs,
            features=features[:: -(-n // PAST_CONTEXTS)].astype(np.float32),
            length=length[:: -(-n // PAST_CONTEXTS)],
        ),
    )


def _completed(expected: Floats, o: Observed) -> Floats:
    """Known outcomes, and for the others an unbiased estimate where propensities are right."""
    found = expected.copy()
    np.add.at(found, (o.row, o.option), o.weight * (o.value - expected[o.row, o.option]))
    return found
