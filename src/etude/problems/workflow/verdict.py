"""Is a planner with other workers better? Logged attempts and both planners' choices in, a verdict out.

Of each logged first attempt at a subtask, what the old and the new choice of a worker would have brought is estimated
doubly robustly: by a model that has not seen the request, corrected by the outcome of the attempt. A plan's subtasks
are the same for both. The verdict is on the utility that workers are chosen by: success, less what cost is worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np

from etude.evidence.intervals import Estimate
from etude.evidence.ope import dr
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.attempts import Attempt
from etude.problems.workflow.worker_model import WorkerModel, credits, fit_workers, judged_by_whole

FOLDS = 5
MAX_THIN = 0.1
"""Share of the changes that may be to workers with fewer than `min_attempts` outcomes; beyond it nothing is claimed."""
MAX_WEIGHT = 20.0
ONE_SIDED = 1.6448536269514722
"""Standard errors that the gain must be away from 0: of choices that are no better, at most 5 % are called better."""
Answer = Literal["better", "not distinguishable", "worse"]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A worker for each attempt, before and after, with the model that has not seen its request."""

    old: Sequence[str]
    new: Sequence[str]
    models: Sequence[WorkerModel]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The new choice of workers compared with the old one, per subtask."""

    answer: Answer
    utility: Estimate
    success: Estimate
    cost_usd: Estimate
    old_cost_usd: float
    changed: float  # share of subtasks that get another worker
    changes: Mapping[str, int]  # `task type: old → new`, by the number of subtasks
    by_whole: bool
    doubt: str = ""  # why nothing is claimed, where the log cannot be trusted

    def to_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).to_json() for name in ("utility", "success", "cost_usd")}
        kept = ("answer", "old_cost_usd", "changed", "changes", "by_whole", *(["doubt"] if self.doubt else []))
        return {name: getattr(self, name) for name in kept} | numbers

    def rows(self) -> list[tuple[str, float, float, float]]:
        """Name, difference and 95 % interval, for a table."""
        named = {"success": self.success, "cost, USD": self.cost_usd, "utility": self.utility}
        return [(f"difference in {name}", e.mean, e.low, e.high) for name, e in named.items()]

    def sentences(self) -> list[str]:
        if not self.changed:
            return ["Verdict: not distinguishable. No subtask gets another worker than before."]
        success, cost = self.success, self.cost_usd
        by = "by the verdicts on whole workflows" if self.by_whole else "self-declared for the workflow"
        what = f"success of the subtask, {by},"
        share = f" ({cost.mean / self.old_cost_usd:+.0%})" if self.old_cost_usd > 0 else ""
        found = [
            f"Verdict: {self.answer}, on requests that were held out. {self.changed:.0%} of the subtasks get another "
            f"worker: {what} {100 * success.mean:+.1f} points [{100 * success.low:+.1f}, {100 * success.high:+.1f}], "
            f"cost per subtask {cost.mean:+.2g} USD [{cost.low:+.2g}, {cost.high:+.2g}]{share}."
        ]
        found += [self.doubt] if self.doubt else []
        found += [f"  {change}, {count:,} subtasks" for change, count in Counter(self.changes).most_common(5)]
        return found


def cross_fit(
    attempts: Sequence[Attempt], catalogue: Catalogue, old: Sequence[str], template: WorkerModel, seed: int = 0
) -> Choices:
    """The new choice for each attempt by a model that has not seen its request."""
    fold = np.array([crc32(f"{seed}:{a.request}".encode("utf-8", "surrogatepass")) % FOLDS for a in attempts])
    new, models, names = list(old), [template] * len(attempts), [w.name for w in catalogue.workers]
    able = {
        t.name: np.array([w.task_types is None or t.name in w.task_types for w in catalogue.workers])
        for t in catalogue.task_types
    }
    for f in np.unique(fold):
        inside = [a for a, own in zip(attempts, fold, strict=True) if own != f]
        if not inside:
            continue
        model = fit_workers(inside, catalogue, config=template.config, seed=seed)
        for i in np.flatnonzero(fold == f).tolist():
            a, models[i] = attempts[i], model
            own = names.index(old[i]) if old[i] in names else None
            chances = model.chances(names, able[a.task_type], a.task_type, own=own)
            if chances is not None:
                new[i] = names[int(chances.argmax())]
    return Choices(old=old, new=new, models=models)


def judge(attempts: Sequence[Attempt], choices: Choices) -> Verdict:
    """The verdict on first attempts: what came after a failure is left out."""
    rows = [i for i, a in enumerate(attempts) if not a.failed]
    by_whole, model = judged_by_whole(attempts), choices.models[0]
    right = credits(attempts, by_worker=False).right
    tried = Counter((attempts[i].task_type, attempts[i].worker) for i in rows)
    of_type = Counter(attempts[i].task_type for i in rows)
    changed = [i for i in rows if choices.new[i] != choices.old[i]]
    changes = Counter(f"{attempts[i].task_type}: {choices.old[i]} → {choices.new[i]}" for i in changed)
    values = np.zeros((3, 3, len(rows)))  # success, cost, utility; weight · (outcome − model), and both models' values
    weight = np.zeros((2, len(rows)))
    for k, i in enumerate(rows):
        a, own = attempts[i], choices.models[i]
        expected, place = own.expect(a.task_type), {name: j for j, name in enumerate(own.workers)}
        unit = own.config.cost_weight / model.typical_usd if a.task_type in own.checked else 0.0
        logged = right[i], a.cost_usd
        predicted = np.stack([expected.success, expected.cost_usd])
        for p, worker in enumerate((choices.old[i], choices.new[i])):
            if worker == a.worker:
                share = tried[a.task_type, a.worker] / of_type[a.task_type]
                weight[p, k] = min(1 / share, MAX_WEIGHT)
            if worker in place:
                values[:2, p, k] = predicted[:, place[worker]]
        values[:2, 2, k] = np.array(logged) - predicted[:, place[a.worker]]
        values[2, :, k] = values[0, :, k] - unit * values[1, :, k]
    groups = np.unique([attempts[i].request for i in rows], return_inverse=True)[1]
    zero = np.zeros(len(rows))
    success, cost, utility = (dr(weight[1] - weight[0], v[2], zero, v[1] - v[0], groups) for v in values)
    old_cost = dr(weight[0], values[1, 2], zero, values[1, 0], groups).mean
    few = model.config.min_attempts
    thin = sum(tried[attempts[i].task_type, choices.new[i]] < few for i in changed) > MAX_THIN * len(changed)
    answer: Answer = "not distinguishable"
    if changed and not thin:
        away = ONE_SIDED * utility.error
        answer = "better" if utility.mean > away else "worse" if utility.mean < -away else answer
    return Verdict(
        answer=answer,
        utility=utility,
        success=success,
        cost_usd=cost,
        old_cost_usd=old_cost,
        changed=len(changed) / max(1, len(rows)),
        changes=dict(changes.most_common()),
        by_whole=by_whole,
    )
