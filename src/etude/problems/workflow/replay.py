"""Recorded outcomes: a file of what workers scored and cost in; what a choice of workers gives, and a world, out.

The file has one query a line: `{"instruction", "task_type", "outcomes": {worker: {"score", "cost_usd"}}}`. A log knows
the outcome of the worker that was chosen and of no other; a benchmark knows them all. Lines about the same query are
one query, so a log that tried several workers on it may be appended to.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from annotated_types import Ge, Gt
from msgspec import Struct
from torch import Tensor

from etude.contracts.errors import ConfigError, DataError
from etude.problems.base import Action, Obs, Transition
from etude.problems.workflow.catalogue import LARGEST, Catalogue
from etude.problems.workflow.grammar import Correction, Rules, at
from etude.problems.workflow.plan import Limits

UNKNOWN = -1
"""The task type of a query that does not say it."""
CHUNK = 4096
"""Queries whose drafts are looked at together."""
WEIGHTS = torch.cat([torch.zeros(1), torch.logspace(-3, 2, 101)]).double()
"""Of cost, in score per unit: those that a curve goes through."""


class Outcome(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one worker made of a query."""

    score: float  # the more the better
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
    types: Tensor  # (n,) long, into the catalogue; UNKNOWN where a query does not say it
    score: Tensor  # (n, W) float64, 0 where nothing is recorded
    cost_usd: Tensor  # (n, W) float64
    mask: Tensor  # (n, W) bool: what is recorded

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
        """Without the workers that have no outcome."""
        seen = self.mask.any(0)
        idle = [w.name for w, used in zip(self.catalogue.workers, seen.tolist(), strict=True) if not used]
        tables = {name: getattr(self, name)[:, seen] for name in ("score", "cost_usd", "mask")}
        return replace(self, catalogue=self.catalogue.withdrawn(*idle), **tables)

    @property
    def able(self) -> Tensor:
        """(n, W) bool: who is able to do it; of an unknown type, everyone."""
        return abilities(self.catalogue)[self.types]

    def completed(self) -> tuple[Tensor, Tensor]:
        """Score and cost (n, W) of every worker for every query: as recorded, else estimated without bias.

        An estimate is the mean of the query's task type, corrected where there is a record by how far that lies from
        the mean, in inverse proportion to how often a query of that type has one (doubly robust: Dudík et al. 2011).
        Averages over queries are right as long as who was tried depended on nothing but the type. Where all outcomes
        are recorded, nothing is estimated.
        """
        if bool(self.mask.all()):
            return self.score, self.cost_usd
        return self._completed(self.score), self._completed(self.cost_usd)

    def _completed(self, values: Tensor) -> Tensor:
        mean, share = left_out_means(values, self.mask, self.types), _shares(self.mask, self.types)
        return mean + (values - mean) * self.mask / share.clamp(min=1 / len(self))

    def best_single(self) -> int:
        """The worker to take if it had to be one for all queries."""
        score = torch.where(self.mask.any(0), self.completed()[0].mean(0), -torch.inf)
        return int(score.argmax())

    def unit_usd(self) -> float:
        """What a call of the best single worker costs on average: the unit that costs are weighed in."""
        mean = float(self.completed()[1][:, self.best_single()].mean())
        return mean if mean > 0 else 1.0  # where it is free, so is comparing with it: US dollars


def abilities(catalogue: Catalogue) -> Tensor:
    """(T + 1, W) bool: who is able to do each task type; the last row, for UNKNOWN, is everyone."""
    rows = [[w.task_types is None or t.name in w.task_types for w in catalogue.workers] for t in catalogue.task_types]
    return torch.tensor([*rows, [True] * len(catalogue.workers)])


def left_out_means(values: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """(n, W) mean of each worker over the *other* queries of the type, drawn to its mean over all as if by one more."""
    value = values * mask
    overall = value.sum(0) / mask.sum(0).clamp(min=1)
    overall = torch.where(mask.any(0), overall, value.sum() / mask.sum().clamp(min=1))
    total, count = by_type(value, types), by_type(mask.double(), types)
    return (overall + total - value) / (1 + count - mask.double())


def by_type(values: Tensor, types: Tensor) -> Tensor:
    """(n, W): for each query, the sum over the queries of its type."""
    group = types - UNKNOWN
    sums = torch.zeros((int(group.max()) + 1, values.shape[1]), dtype=values.dtype).index_add(0, group, values)
    return sums[group]


def _shares(mask: Tensor, types: Tensor) -> Tensor:
    return by_type(mask.double(), types) / by_type(torch.ones_like(mask[:, :1]).double(), types)


# Reading


def read_outcomes(path: Path, catalogue: Catalogue) -> Replay:
    """DataError names the line that is not what the format says."""
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
                    f"{path}, line {number}: the outcome of {worker!r} for this instruction stands in line {first} "
                    "already: keep one of them, or their mean"
                )
        rows.setdefault(key, {}).update(query.outcomes)
    if not rows:
        raise DataError(f"{path}: is empty: expected one query with its outcomes a line")
    return to_replay([Query(instruction=i, task_type=t, outcomes=o) for (i, t), o in rows.items()], catalogue)


def to_replay(queries: Sequence[Query], catalogue: Catalogue) -> Replay:
    """Queries that are known to be of the catalogue, one a row."""
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
        raise DataError(f"{where}: has no outcomes: expected that of one worker at least")
    types, workers = {t.name for t in catalogue.task_types}, {w.name: w for w in catalogue.workers}
    if query.task_type is not None and query.task_type not in types:
        raise DataError(f"{where}: {query.task_type!r} is no task type of the catalogue{_near(query.task_type, types)}")
    for name, outcome in query.outcomes.items():
        if name not in workers:
            raise DataError(f"{where}: {name!r} is no worker of the catalogue{_near(name, workers)}")
        able = workers[name].task_types
        if query.task_type is not None and able is not None and query.task_type not in able:
            raise DataError(f"{where}: {name!r} is not able to do {query.task_type!r}, says the catalogue")
        if not -LARGEST <= outcome.score <= LARGEST:
            raise DataError(f"{where}: the score of {name!r} is {outcome.score!r}, expected a number")
        if not 0 <= outcome.cost_usd <= LARGEST:
            raise DataError(f"{where}: cost_usd of {name!r} is {outcome.cost_usd!r}, expected 0 to {LARGEST:g}")
    return query


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


# Choosing by what is expected, and what choices give


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Means over queries at each weight of cost, from all for the score to all for the cost."""

    weight: Tensor  # (weights,) in score per unit of cost
    score: Tensor
    cost_usd: Tensor

    def weight_for(self, score: float) -> float:
        """The weight that is cheapest among those that score so much; where none does, the one that scores most."""
        enough = self.score >= min(score, float(self.score.max()))
        return float(self.weight[torch.where(enough, self.cost_usd, torch.inf).argmin()])

    def area(self, low: float, high: float) -> float:
        """AIQ: the mean, over costs from `low` to `high` USD a query, of the best score that costs no more.

        Costs below the cheapest point count with its score. From the cheapest worker's to the best single one's, it is
        the same range for all that are compared.
        """
        costs = torch.linspace(low, max(low, high), 1001, dtype=torch.float64)
        within = self.cost_usd <= costs[:, None] * (1 + 1e-9)  # (1001, weights)
        best = torch.where(within, self.score, -torch.inf).amax(1)
        return float(torch.where(within.any(1), best, self.score[self.cost_usd.argmin()]).mean())


def curve(score: Tensor, cost_usd: Tensor, replay: Replay, *, unit_usd: float) -> Curve:
    """What choosing by expected scores and costs (n, W) gives on a replay."""
    worth, paid = replay.completed()
    rows, able = torch.arange(len(replay)), replay.able
    picks = [choose(score, cost_usd, able, weight=float(w), unit_usd=unit_usd) for w in WEIGHTS]
    earned, spent = (torch.stack([table[rows, pick].mean() for pick in picks]) for table in (worth, paid))
    return Curve(weight=WEIGHTS, score=earned, cost_usd=spent)


def choose(score: Tensor, cost_usd: Tensor, able: Tensor, *, weight: float, unit_usd: float) -> Tensor:
    """(n,) of (n, W): the highest score − weight · cost_usd / unit_usd; of equals the first."""
    return torch.where(able, score - weight * cost_usd / unit_usd, -torch.inf).argmax(1)


def references(replay: Replay, *, best_single: int, seed: int = 0) -> dict[str, Tensor]:
    """Choices (n,) that know nothing of the query, and `oracle`, which knows the outcomes; all are able to do it."""
    score, cost = replay.completed()
    W, able = score.shape[1], replay.able
    drawn = torch.rand(score.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    single = torch.nn.functional.one_hot(torch.tensor(best_single), W).expand_as(score)
    return {
        "best_single": torch.where(able, single - cost / (cost.max() + 1), -torch.inf).argmax(1),
        "cheapest": torch.where(able, -cost, -torch.inf).argmax(1),
        "random": torch.where(able, drawn, -torch.inf).argmax(1),
        "oracle": torch.where(able, score - 1e-9 * cost / (cost.max() + 1), -torch.inf).argmax(1),
    }


def type_means(past: Replay, asked: Replay) -> tuple[Tensor, Tensor]:
    """Scores (n, W) of the best worker by task type: for past queries, each left out, and for those asked."""
    grid = torch.zeros((len(past.catalogue.task_types) + 1, past.score.shape[1]), dtype=torch.float64)
    value, mask = past.score * past.mask, past.mask.double()
    total, count = (grid.index_add(0, past.types - UNKNOWN, x) for x in (value, mask))
    mean = value.sum(0) / mask.sum(0).clamp(min=1)
    return left_out_means(past.score, past.mask, past.types), ((mean + total) / (1 + count))[asked.types - UNKNOWN]


# The world


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Recorded outcomes as a world."""

    weight: Annotated[float, Ge(0)] = 0.0
    """What a call that costs one unit takes from its score."""
    unit_usd: Annotated[float, Gt(0)] | None = None
    """The unit of cost; null is what the best single worker costs on average."""
    estimated: bool = False
    """Whether workers without a recorded outcome may be chosen, and earn an estimate of theirs."""
    limits: Limits = field(default_factory=Limits)
    """As in planning: the network's. A decision here is a plan of one node."""


class ReplayWorld:
    """A World of one decision: who is to do this query. Actions are those of `WorkflowWorld`.

    Observations are drafts (see `Rules`) without a node and `instruction` (n,), the row of the query. The query's task
    type alone is offered (all are where it is unknown) and those workers alone are available whose outcome is known,
    so the rules leave nothing but the worker to choose. The node ends the episode: *stop* would be forced.

    reward    score − weight · cost_usd / unit_usd
    metrics   return, score, cost_usd
    """

    def __init__(self, config: ReplayConfig, replay: Replay, *, n: int, device: torch.device | str = "cpu") -> None:
        self.config, self.replay, self.n, self.device = config, replay, n, torch.device(device)
        self.rules = Rules(replay.catalogue, config.limits, device=device)
        score, cost = replay.completed() if config.estimated else (replay.score, replay.cost_usd)
        self.unit_usd = config.unit_usd or replay.unit_usd()
        reward = score - config.weight * cost / self.unit_usd
        self._tables = {"return": reward, "score": score, "cost_usd": cost}  # (queries, W)
        self._tables = {name: table.float().to(self.device) for name, table in self._tables.items()}
        self._fresh = self.rules.begin(1)
        self._known = (replay.able if config.estimated else replay.mask).to(self.device)
        self._types = replay.types.to(self.device)
        self._rows = self._decidable()
        self.generator = torch.Generator(self.device)
        self.state = {"instruction": torch.zeros(n, dtype=torch.long, device=self.device)}

    def reset(self, seed: int) -> Obs:
        self.generator.manual_seed(seed)
        self._draw()
        return self.observe()

    def observe(self) -> Obs:
        return self.queries(self.state["instruction"])

    def queries(self, rows: Tensor) -> Obs:
        """The drafts of these queries."""
        types = self._types[rows]
        one = torch.nn.functional.one_hot(types.clamp(min=0), self.rules.types).bool()
        drafts = {name: value.expand(len(rows), *value.shape[1:]) for name, value in self._fresh.items()}
        return drafts | {
            "offered": one | (types == UNKNOWN)[:, None],
            "available": self._fresh["available"] & self._known[rows],
            "instruction": rows,
        }

    def rewards(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What each worker would earn for these queries (n, W), and where that is known: for an exact gradient."""
        return self._tables["return"][rows], self._known[rows]

    def step(self, action: Action) -> Transition:
        drafts, rows = self.observe(), self.state["instruction"]
        metrics = {name: at(table[rows], action["worker"]) for name, table in self._tables.items()}
        ended, _ = self.rules.grow(drafts, action)
        over = torch.ones_like(rows, dtype=torch.bool)
        self._draw()
        return Transition(
            obs=self.observe(),
            reward=metrics["return"],
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=ended,
            metrics=metrics,
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.state.items()} | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.state = {"instruction": state["instruction"].to(self.device).clone()}

    def _draw(self) -> None:
        place = torch.randint(len(self._rows), (self.n,), generator=self.generator, device=self.device)
        self.state = {"instruction": self._rows[place]}

    def _decidable(self) -> Tensor:
        """The queries that somebody may do under the catalogue and the limits as they are."""
        found = []
        for rows in torch.arange(len(self.replay), device=self.device).split(CHUNK):
            planning = torch.full_like(rows, Correction.ABORT)
            found.append(rows[self.rules.task_types(self.queries(rows), planning)[:, :-1].any(1)])
        rows = torch.cat(found)
        if not len(rows):
            raise ConfigError(
                "no query can be decided: every worker with a recorded outcome is unavailable, out of quota or beyond "
                "the limits; free one, raise the limits, or set estimated"
            )
        return rows
