"""What to expect of each worker: logged attempts at subtasks in; expected success, cost and latency out.

An attempt is described by its task type, by the workers that had failed at the same subtask, and by how the last of
them failed. The outcome model of `learning/` says what to expect of every worker then, with its uncertainty, so that a
worker is chosen by what it did at this kind of subtask, and a retry is compared with a switch.

Success is what is known best. Where a verifier, a judge or a person judges whole workflows, it is the credit that each
attempt gets for them (`credit.py`). Where no one does, it is that of the attempt alone; then cost counts only at task
types whose outputs a verifier checks, since elsewhere the cheapest worker may be the one that is wrong. Either says
which worker does a subtask well; neither says which subtasks a plan needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray

from etude.contracts.errors import DatasetError
from etude.contracts.trajectory import Trajectory
from etude.learning.explore import probabilities
from etude.learning.outcome_model import Observed, OutcomeModel, fit_outcomes
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.attempts import VERIFIED, Attempt
from etude.problems.workflow.credit import Credit, assign_credit
from etude.problems.workflow.faults import ErrorCategory

Floats = NDArray[np.float64]
SUCCESS, COST, LATENCY = KINDS = ("success", "cost_usd", "latency_ms")
MIN_WEIGHT = 0.05
"""Of an attempt in a plan that does not suit its request; 1 in a plan that does."""
PRIOR_AGAIN = 2.0
"""Attempts for which the prior counts that an attempt after a failure succeeds as a first one does."""
MIN_FIRST = 0.05
"""Success that a first attempt has at least where others are compared with it."""
MIN_VERIFIED = 0.5
"""Share of workflows with a verdict on the whole from which that verdict is what workers are judged by."""


@dataclass(frozen=True, kw_only=True)
class WorkerModelConfig:
    """How a planner chooses workers and corrections by what was logged of them."""

    cost_weight: Annotated[float, Ge(0)] = 0.05
    """Share of success that is given up to save the mean cost of one attempt."""
    latency_weight: Annotated[float, Ge(0)] = 0.0
    """Share of success that is given up to save the mean latency of one attempt."""
    caution: Annotated[float, Ge(0)] = 0.5
    """Standard errors by which a worker must be better than the planner's own choice to take its place."""
    min_attempts: Annotated[int, Ge(1)] = 4
    """Logged attempts at a task type that a worker needs to take the place of the planner's own choice."""
    posterior_scale: Annotated[float, Gt(0)] = 0.5
    """Where it explores: factor of the standard errors; below 1 it explores less than they say."""
    min_success: Annotated[float, Ge(0)] = 0.1
    """Expected success below which another attempt is not worth it: the planner's own correction is taken."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Of each worker of a model, (W,)."""

    success: Floats
    error: Floats  # standard error of the success
    cost_usd: Floats
    latency_ms: Floats
    count: Floats  # attempts it was learned from, effective


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkerModel:
    """A fitted model over the task types and workers of the logs, by name."""

    outcomes: OutcomeModel
    task_types: tuple[str, ...]
    workers: tuple[str, ...]
    typical_usd: float  # mean cost of an attempt
    typical_ms: float
    tried: Mapping[str, Mapping[str, int]]  # by task type and worker: logged attempts
    checked: frozenset[str]  # task types whose outputs are judged: there a cheaper worker may be as good
    again: Floats | None = None
    """(categories, 2): success after a failure, relative to that of a first attempt, by the category of the last fault
    and whether the worker had failed itself. None in models of before: they expect what the outcome model does."""
    config: WorkerModelConfig = WorkerModelConfig()

    @cached_property
    def expect(self) -> Any:
        """From a task type, the workers that failed and the category of the last fault to what is expected of each."""
        return lru_cache(4096)(self._expect)

    def _expect(self, task_type: str, failed: tuple[str, ...] = (), category: int = 0) -> Expected:
        if failed and self.again is not None:
            first: Expected = self.expect(task_type)
            factor = self.again[category, [int(worker in failed) for worker in self.workers]]
            success = (first.success.clip(MIN_FIRST) * factor).clip(0, 1)
            return replace(first, success=success, error=first.error * factor)
        row = _features([(task_type, failed, category)], self.task_types, self.workers)
        success, cost, latency = self.outcomes.expect(row)[:, 0]
        return Expected(
            success=success.clip(0, 1),
            error=self.outcomes.standard_error(row)[0] if failed else self._error_of_share(task_type, success),
            cost_usd=cost.clip(0),
            latency_ms=latency.clip(0),
            count=self.outcomes.parts[0].count,
        )

    def _error_of_share(self, task_type: str, success: Floats) -> Floats:
        """(W,) standard errors of success at first attempts. A share is known better near 0 and 1 than in between,
        where the outcome model has one error for all; half a success and half a failure are added to each."""
        tried = self.tried.get(task_type, {})
        n = np.array([tried.get(worker, 0) for worker in self.workers], np.float64)
        p = (n * success.clip(0, 1) + 0.5) / (n + 1)
        return np.asarray(np.sqrt(p * (1 - p) / (n + 1)))

    def utility(self, expected: Expected, task_type: str) -> Floats:
        """(W,) success, less what cost and latency are worth; success alone where no one judges it."""
        c = self.config
        if task_type not in self.checked:
            return expected.success
        cost = c.cost_weight * expected.cost_usd / self.typical_usd
        return np.asarray(expected.success - cost - c.latency_weight * expected.latency_ms / self.typical_ms)

    def chances(
        self,
        names: Sequence[str],
        legal: NDArray[np.bool_],
        task_type: str,
        *,
        failed: tuple[str, ...] = (),
        category: int = 0,
        own: int | None = None,
        explore: bool = False,
    ) -> Floats | None:
        """(len(names),) the probability of each worker; None if no legal one is known, or after a failure if none of
        them is likely to succeed.

        `own` is the planner's own choice: another takes its place if it was tried `min_attempts` times, or as often as
        that one, and is better by `caution` standard errors.
        """
        place = {name: i for i, name in enumerate(self.workers)}
        known = np.array([place.get(name, -1) for name in names])
        free = np.flatnonzero(legal & (known >= 0))
        if not len(free) or task_type not in self.task_types:
            return None
        expected = self.expect(task_type, failed, category)
        if failed and expected.success[known[free]].max() < self.config.min_success:
            return None
        utility, error = self.utility(expected, task_type)[known[free]], expected.error[known[free]]
        found = np.zeros(len(names))
        if explore:
            found[free] = probabilities(utility, self.config.posterior_scale * error, explore="thompson")
            return found
        if own is None:
            best = int((utility - self.config.caution * error).argmax())
        else:
            mine = np.flatnonzero(free == own)
            if not len(mine):
                return None
            at = int(mine[0])
            gain = utility - utility[at] - self.config.caution * np.hypot(error, error[at])
            tried = self.tried.get(task_type, {})
            enough = min(self.config.min_attempts, tried.get(names[own], 0))  # its own may be as little known
            few = [tried.get(names[i], 0) < enough for i in free.tolist()]
            gain[few] = -np.inf
            gain[at] = 0.0
            best = int(gain.argmax())
        found[free[best]] = 1.0
        return found

    def tensors(self) -> dict[str, NDArray[Any]]:
        return self.outcomes.tensors()

    def to_json(self) -> dict[str, Any]:
        names = ("task_types", "workers", "typical_usd", "typical_ms", "tried")
        own = {name: getattr(self, name) for name in names}
        own |= {} if self.again is None else {"again": self.again.tolist()}
        return {"outcomes": self.outcomes.to_json(), "checked": sorted(self.checked), **own}

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any], config: WorkerModelConfig
    ) -> WorkerModel:
        return cls(
            outcomes=OutcomeModel.from_state(tensors, about["outcomes"]),
            task_types=tuple(about["task_types"]),
            workers=tuple(about["workers"]),
            typical_usd=about["typical_usd"],
            typical_ms=about["typical_ms"],
            tried=about["tried"],
            checked=frozenset(about["checked"]),
            again=np.array(about["again"]) if "again" in about else None,
            config=config,
        )


def fit_workers(
    attempts: Sequence[Attempt], catalogue: Catalogue, *, config: WorkerModelConfig | None = None, seed: int = 0
) -> WorkerModel:
    """A model of logged attempts, also by workers that came after the catalogue. DatasetError if there are none."""
    types, named = tuple(t.name for t in catalogue.task_types), {w.name for w in catalogue.workers}
    later = {a.worker for a in attempts if a.task_type in types} - named
    workers = (*(w.name for w in catalogue.workers), *sorted(later))
    known = [a for a in attempts if a.task_type in types and a.worker in workers]
    if not known:
        raise DatasetError(
            "no attempt by a worker of the catalogue is logged: collect executions on these workers, and create the "
            "dataset again"
        )
    place = {name: i for i, name in enumerate(workers)}
    option = np.array([place[a.worker] for a in known])
    tried = {t: Counter(a.worker for a in known if a.task_type == t) for t in {a.task_type for a in known}}
    share = np.array([tried[a.task_type][a.worker] / tried[a.task_type].total() for a in known])
    by_whole, earned = judged_by_whole(known), credits(known)
    seen = Observed(
        rows=len(known),
        row=np.arange(len(known)),
        option=option,
        value=np.column_stack([earned.right, [(a.cost_usd, a.latency_ms) for a in known]]),
        weight=np.minimum(1 / share, 10.0) * np.maximum(earned.suits, MIN_WEIGHT),
    )
    features = _features([(a.task_type, a.failed, a.category) for a in known], types, workers)
    able = {
        t: np.array(
            [w.task_types is None or t in w.task_types for w in catalogue.workers]
            + [t in tried and tried[t][name] > 0 for name in sorted(later)]  # what they were seen to be asked
        )
        for t in types
    }
    fitted = fit_outcomes(
        features,
        seen,
        len(workers),
        KINDS,
        scales=(np.ones(features.shape[1]),),
        eligible=np.stack([able[a.task_type] for a in known]),
        groups=np.unique([a.request for a in known], return_inverse=True)[1],
        seed=seed,
    )
    model = WorkerModel(
        outcomes=fitted.model,
        task_types=types,
        workers=workers,
        typical_usd=max(float(np.mean([a.cost_usd for a in known])), 1e-12),
        typical_ms=max(float(np.mean([a.latency_ms for a in known])), 1e-9),
        tried={t: dict(of) for t, of in sorted(tried.items())},
        checked=frozenset(a.task_type for a in known if by_whole or a.verified),
        config=config or WorkerModelConfig(),
    )
    return replace(model, again=_after_failures(model, known, earned))


def _after_failures(model: WorkerModel, attempts: Sequence[Attempt], earned: Credit) -> Floats:
    """(categories, 2): how much of a first attempt's success is left after a failure, over all task types and workers.

    There are too few such attempts to learn this of each worker, and what a fault means for a retry is much the same.
    """
    got, wanted = (np.full((len(ErrorCategory), 2), PRIOR_AGAIN) for _ in range(2))
    for attempt, right, suits in zip(attempts, earned.right, earned.suits, strict=True):
        if attempt.failed:
            cell = attempt.category, int(attempt.worker in attempt.failed)
            got[cell] += suits * right
            first = model.expect(attempt.task_type).success[model.workers.index(attempt.worker)]
            wanted[cell] += suits * max(first, MIN_FIRST)
    return np.asarray(got / wanted)


def credits(attempts: Sequence[Attempt], *, by_worker: bool = True) -> Credit:
    """How far each attempt did its subtask right: by the verdicts on whole workflows, if enough of them have one."""
    if judged_by_whole(attempts):
        return assign_credit(attempts, by_worker=by_worker)
    return Credit(right=np.array([float(a.done) for a in attempts]), suits=np.ones(len(attempts)))


def judged_by_whole(attempts: Sequence[Attempt]) -> bool:
    """Whether enough workflows have a verdict on the whole to judge workers by it."""
    return _enough([whole is not None for whole in {a.trajectory: a.whole for a in attempts}.values()])


def is_verified(trajectories: Iterable[Trajectory]) -> bool:
    """Whether enough of them have a verdict on the whole that is not their own."""
    return _enough([t.outcome.success_by in VERIFIED for t in trajectories])


def _enough(verified: Sequence[bool]) -> bool:
    return sum(verified) >= MIN_VERIFIED * len(verified)


def _features(
    rows: Sequence[tuple[str, tuple[str, ...], int]], task_types: tuple[str, ...], workers: tuple[str, ...]
) -> Floats:
    """(n, T + W + categories): the task type, the workers that failed before, and how the last of them failed."""
    types, names = ({name: i for i, name in enumerate(names)} for names in (task_types, workers))
    found = np.zeros((len(rows), len(types) + len(names) + len(ErrorCategory)))
    for i, (task_type, failed, category) in enumerate(rows):
        found[i, types[task_type]] = 1.0
        found[i, [len(types) + names[worker] for worker in failed if worker in names]] = 1.0
        if failed:
            found[i, len(types) + len(names) + category] = 1.0
    return found
