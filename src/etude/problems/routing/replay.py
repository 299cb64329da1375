"""Recorded outcomes: a file with scores and costs of workers in; the score and cost of any choice of workers out.

The file has one query per line: `{"instruction", "task_type", "outcomes": {worker: {"score", "cost_usd"}}}`. A log has
only the outcome of the worker that was chosen; a benchmark has the outcomes of all. Lines with the same query are
merged, so a log that tried several workers may be appended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from etude.contracts.errors import DataError
from etude.contracts.suggestions import nearest
from etude.problems.catalogue import MAX_AMOUNT, Catalogue

UNKNOWN = -1
"""The task type of a query without one."""
WEIGHTS = torch.cat([torch.zeros(1), torch.logspace(-3, 2, 101)]).double()
"""Weights of cost, in score per unit of cost, at which a curve is evaluated."""


class Outcome(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of one query with one worker."""

    score: float  # higher is better
    cost_usd: float


class Query(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file."""

    instruction: str
    outcomes: dict[str, Outcome]
    task_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """n queries, W workers of the catalogue."""

    catalogue: Catalogue
    texts: tuple[str, ...]
    types: Tensor  # (n,) long, into the catalogue; UNKNOWN where a query has none
    score: Tensor  # (n, W) float64, 0 where nothing is recorded
    cost_usd: Tensor  # (n, W) float64
    mask: Tensor  # (n, W) bool: true where an outcome is recorded

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Tensor) -> Replay:
        return Replay(
            catalogue=self.catalogue,
            texts=tuple(self.texts[i] for i in rows.tolist()),
            types=self.types[rows],
            score=self.score[rows],
            cost_usd=self.cost_usd[rows],
            mask=self.mask[rows],
        )

    def tried(self) -> Replay:
        """The replay without workers that have no outcome."""
        seen = self.mask.any(0)
        idle = [w.name for w, used in zip(self.catalogue.workers, seen.tolist(), strict=True) if not used]
        tables = {name: getattr(self, name)[:, seen] for name in ("score", "cost_usd", "mask")}
        return replace(self, catalogue=self.catalogue.withdrawn(*idle), **tables)

    @property
    def able(self) -> Tensor:
        """(n, W) bool: workers able to do each query; all of them where its type is unknown."""
        return abilities(self.catalogue)[self.types]

    def completed(self) -> tuple[Tensor, Tensor]:
        """Score and cost (n, W) of every worker for every query: recorded, or else an unbiased estimate.

        An estimate is the mean over the task type plus, where an outcome is recorded, its deviation from that mean
        divided by the share of the type's queries that have one (doubly robust: Dudík et al. 2011). Averages over
        queries are unbiased if the choice of the tried workers depended on the type alone. Where all outcomes are
        recorded, nothing is estimated.
        """
        if bool(self.mask.all()):
            return self.score, self.cost_usd
        return self._completed(self.score), self._completed(self.cost_usd)

    def _completed(self, values: Tensor) -> Tensor:
        mean, share = left_out_means(values, self.mask, self.types), _shares(self.mask, self.types)
        return mean + (values - mean) * self.mask / share.clamp(min=1 / len(self))

    def best_single(self) -> int:
        """The best worker if one had to do all queries."""
        score = torch.where(self.mask.any(0), self.completed()[0].mean(0), -torch.inf)
        return int(score.argmax())

    def unit_usd(self) -> float:
        """The mean cost of a call of the best single worker: the unit in which costs are weighted."""
        mean = float(self.completed()[1][:, self.best_single()].mean())
        return mean if mean > 0 else 1.0  # one US dollar where that worker is free


def abilities(catalogue: Catalogue) -> Tensor:
    """(T + 1, W) bool: workers able to do each task type; the last row, for UNKNOWN, has all workers."""
    rows = [[w.task_types is None or t.name in w.task_types for w in catalogue.workers] for t in catalogue.task_types]
    return torch.tensor([*rows, [True] * len(catalogue.workers)])


def left_out_means(values: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """(n, W): leave-one-out mean of each worker over the type's queries, shrunk towards its overall mean."""
    value = values * mask
    overall = value.sum(0) / mask.sum(0).clamp(min=1)
    overall = torch.where(mask.any(0), overall, value.sum() / mask.sum().clamp(min=1))
    total, count = by_type(value, types), by_type(mask.double(), types)
    return (overall + total - value) / (1 + count - mask.double())


def by_type(values: Tensor, types: Tensor) -> Tensor:
    """(n, W): for each query, the sum over all queries of its type."""
    group = types - UNKNOWN
    sums = torch.zeros((int(group.max()) + 1, values.shape[1]), dtype=values.dtype).index_add(0, group, values)
    return sums[group]


def _shares(mask: Tensor, types: Tensor) -> Tensor:
    return by_type(mask.double(), types) / by_type(torch.ones_like(mask[:, :1]).double(), types)


# Reading


def read_outcomes(path: Path, catalogue: Catalogue) -> Replay:
    """The outcomes of a file; DataError names the first line that is not valid."""
    if not catalogue.workers:
        raise DataError(f"{path}: outcomes need the workers they are of, and the catalogue has none: add them")
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): expected a file of outcomes") from error
    rows: dict[tuple[str, str | None], dict[str, Outcome]] = {}
    came_from: dict[tuple[str, str | None, str], int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        query = _query(line, f"{path}, line {number}", catalogue)
        key = (query.instruction, query.task_type)
        for worker in query.outcomes:
            first = came_from.setdefault((*key, worker), number)
            if first != number:
                raise DataError(
                    f"{path}, line {number}: the outcome of {worker!r} for this instruction is on line {first} too: "
                    "keep one of them, or their mean"
                )
        rows.setdefault(key, {}).update(query.outcomes)
    if not rows:
        raise DataError(f"{path}: is empty: expected one query with its outcomes per line")
    return to_replay([Query(instruction=i, task_type=t, outcomes=o) for (i, t), o in rows.items()], catalogue)


def to_replay(queries: Sequence[Query], catalogue: Catalogue) -> Replay:
    """Queries as tables with one row per query; their workers and task types must be in the catalogue."""
    shape = (len(queries), len(catalogue.workers))
    score, cost = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    mask = torch.zeros(shape, dtype=torch.bool)
    place = {worker.name: i for i, worker in enumerate(catalogue.workers)}
    types = {None: UNKNOWN} | {t.name: i for i, t in enumerate(catalogue.task_types)}
    for row, query in enumerate(queries):
        for worker, outcome in query.outcomes.items():
            column = place[worker]
            score[row, column], cost[row, column], mask[row, column] = outcome.score, outcome.cost_usd, True
    return Replay(
        catalogue=catalogue,
        texts=tuple(query.instruction for query in queries),
        types=torch.tensor([types[query.task_type] for query in queries]),
        score=score,
        cost_usd=cost,
        mask=mask,
    )


def _query(line: bytes, where: str, catalogue: Catalogue) -> Query:
    try:
        query = msgspec.json.decode(line, type=Query)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        expected = '{"instruction", "task_type", "outcomes": {worker: {"score", "cost_usd"}}}'
        raise DataError(f"{where}: {error}; expected {expected}") from error
    if not query.instruction.strip():
        raise DataError(f"{where}: the instruction is empty")
    if not query.outcomes:
        raise DataError(f"{where}: has no outcomes: expected the outcome of at least one worker")
    types, workers = {t.name for t in catalogue.task_types}, {w.name: w for w in catalogue.workers}
    if query.task_type is not None and query.task_type not in types:
        raise DataError(
            f"{where}: {query.task_type!r} is no task type of the catalogue{nearest(query.task_type, types)}"
        )
    for name, outcome in query.outcomes.items():
        if name not in workers:
            raise DataError(f"{where}: {name!r} is no worker of the catalogue{nearest(name, workers)}")
        able = workers[name].task_types
        if query.task_type is not None and able is not None and query.task_type not in able:
            raise DataError(f"{where}: {name!r} is not able to do {query.task_type!r} according to the catalogue")
        if not -MAX_AMOUNT <= outcome.score <= MAX_AMOUNT:
            raise DataError(f"{where}: the score of {name!r} is {outcome.score!r}, expected a number")
        if not 0 <= outcome.cost_usd <= MAX_AMOUNT:
            raise DataError(f"{where}: cost_usd of {name!r} is {outcome.cost_usd!r}, expected 0 to {MAX_AMOUNT:g}")
    return query


# Choices by expected scores and costs, and their results


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean score and cost over queries at each weight of cost, from score only to mostly cost."""

    weight: Tensor  # (weights,) in score per unit of cost
    score: Tensor
    cost_usd: Tensor

    def weight_for(self, score: float) -> float:
        """The weight with the lowest cost among those that reach `score`; if none does, the highest-scoring one."""
        enough = self.score >= min(score, float(self.score.max()))
        return float(self.weight[torch.where(enough, self.cost_usd, torch.inf).argmin()])

    def area(self, low: float, high: float) -> float:
        """AIQ: the mean, over budgets from `low` to `high` USD per query, of the best score within the budget.

        Budgets below the cheapest point count with its score. From the cheapest worker's cost to the best single
        worker's, the range is the same for all routers that are compared.
        """
        costs = torch.linspace(low, max(low, high), 1001, dtype=torch.float64)
        affordable = self.cost_usd <= costs[:, None] * (1 + 1e-9)  # (1001, weights)
        best = torch.where(affordable, self.score, -torch.inf).amax(1)
        return float(torch.where(affordable.any(1), best, self.score[self.cost_usd.argmin()]).mean())


def curve(score: Tensor, cost_usd: Tensor, replay: Replay, *, unit_usd: float) -> Curve:
    """The curve of choosing by expected scores and costs (n, W) on a replay."""
    worth, paid = replay.completed()
    rows, able = torch.arange(len(replay)), replay.able
    picks = [choose(score, cost_usd, able, weight=float(w), unit_usd=unit_usd) for w in WEIGHTS]
    earned, spent = (torch.stack([table[rows, pick].mean() for pick in picks]) for table in (worth, paid))
    return Curve(weight=WEIGHTS, score=earned, cost_usd=spent)


def choose(score: Tensor, cost_usd: Tensor, able: Tensor, *, weight: float, unit_usd: float) -> Tensor:
    """(n,) from (n, W): the worker with the highest score − weight · cost_usd / unit_usd; the first of equals."""
    return torch.where(able, score - weight * cost_usd / unit_usd, -torch.inf).argmax(1)


def references(replay: Replay, *, best_single: int, seed: int = 0) -> dict[str, Tensor]:
    """Baseline choices (n,) among able workers that ignore the query's text, and `oracle`, which knows the outcomes."""
    score, cost = replay.completed()
    W, able = score.shape[1], replay.able
    u = torch.rand(score.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    single = torch.nn.functional.one_hot(torch.tensor(best_single), W).expand_as(score)
    return {
        "best_single": torch.where(able, single - cost / (cost.max() + 1), -torch.inf).argmax(1),
        "cheapest": torch.where(able, -cost, -torch.inf).argmax(1),
        "random": torch.where(able, u, -torch.inf).argmax(1),
        "oracle": torch.where(able, score - 1e-9 * cost / (cost.max() + 1), -torch.inf).argmax(1),
    }


def type_means(past: Replay, asked: Replay) -> tuple[Tensor, Tensor]:
    """Mean scores (n, W) by task type: leave-one-out for past queries, and for the queries asked."""
    grid = torch.zeros((len(past.catalogue.task_types) + 1, past.score.shape[1]), dtype=torch.float64)
    value, mask = past.score * past.mask, past.mask.double()
    total, count = (grid.index_add(0, past.types - UNKNOWN, x) for x in (value, mask))
    mean = value.sum(0) / mask.sum(0).clamp(min=1)
    return left_out_means(past.score, past.mask, past.types), ((mean + total) / (1 + count))[asked.types - UNKNOWN]
