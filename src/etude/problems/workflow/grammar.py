"""The grammar of plans: masks of the legal choices, and the effect of a choice. Training and serving share it.

A decision has four parts, chosen in this order, each masked by the parts before: a correction (after a failure), a task
type or *stop*, dependencies among earlier nodes, and a worker. Where a part does not apply, one dummy choice is legal;
its probability is 1. Drafts are named tensors with a leading batch axis (see `Rules`), so the same code masks one draft
or thousands.

Every mask guarantees that a legal choice breaks no limit and leaves at least one legal choice after it. Money and time
are float64, so that sums over many nodes stay exact at the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cached_property

import torch
from torch import Tensor

from etude.contracts.errors import CatalogueError
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.plan import SLACK, Limits, Plan, name_plan, topological_order


class Correction(IntEnum):
    """What to do after a node failed."""

    RETRY = 0  # the same worker again
    SWITCH = 1  # another worker
    REPAIR = 2  # a new subtask before it, then the same worker again
    REPLAN = 3  # drop the nodes that are not done and plan the rest again
    SKIP = 4  # continue without it
    ABORT = 5  # end the workflow


class Status(IntEnum):
    """The state of a node."""

    PLANNED = 0
    DONE = 1
    FAILED = 2
    SKIPPED = 3


UNLIMITED = 1e9
"""Calls left of a worker without quota."""
UNKNOWN_SUCCESS = 0.5
"""Success rate of a worker without any calls so far."""


WORKERS = ("available", "price", "latency", "success", "calls", "tried")
"""The fields of a draft for each worker, (n, W)."""
NODES = ("types", "workers", "cost", "duration", "ready", "finish", "status", "attempts")
"""The fields of a draft for each node, (n, N)."""


class Rules:
    """The grammar over one set of task types and workers.

    Drafts have n rows, N = `limits.max_nodes` nodes, T task types, W workers (one placeholder where there are none):
        offered (n, T) bool             task types that exist now
        available (n, W) bool           workers that can be assigned now
        price, latency (n, W)           USD and ms of a typical call, as known now
        success, calls (n, W)           share of calls that succeeded so far, calls left
        types, workers (n, N) long      of each node, −1 beyond the length
        links (n, N, N) bool            [i, j]: node i depends on node j
        cost, duration (n, N)           USD and ms of a node's last attempt, as known when it was assigned
        ready, finish (n, N)            ms before which that attempt cannot start, and when it ends
        status, attempts (n, N) long    Status, and how often it was tried
        length (n,) long                nodes so far
        spent, clock (n,)               USD committed, and ms before which nothing new can start
        failed, error (n,) long         the node to correct, −1 while planning, and what kind of error it had
        tried (n, W) bool               workers that proved unable to do the node that failed last
        corrections, replans (n,) long  number of each so far
    """

    def __init__(self, catalogue: Catalogue, limits: Limits, *, device: torch.device | str = "cpu") -> None:
        self.catalogue, self.limits, self.device = catalogue, limits, torch.device(device)
        self.types, self.nodes = len(catalogue.task_types), limits.max_nodes
        if not self.types:
            raise CatalogueError("the catalogue has no task types: nothing can be planned, add one")
        self.workers = max(1, len(catalogue.workers))
        able = [
            [worker.task_types is None or t.name in worker.task_types for worker in catalogue.workers] or [True]
            for t in catalogue.task_types
        ]
        self.capable = torch.tensor(able, dtype=torch.bool, device=device).view(self.types, self.workers)
        self._doers = self.capable.T.float()  # (W, T): a product with it counts the workers able to do each type
        self.max_cost, self.max_time = _edge(limits.max_cost_usd), _edge(limits.max_time_ms)

    @cached_property
    def usual(self) -> Obs:
        """An empty draft, whose numbers are those of the catalogue; it is not to be changed."""
        with torch.inference_mode(False):  # training reads it too
            return self.begin(1)

    def begin(self, n: int) -> Obs:
        """n empty drafts with the catalogue's current prices, latencies, success rates and quotas."""
        workers = self.catalogue.workers
        rates = (UNKNOWN_SUCCESS if w.success_rate is None else w.success_rate for w in workers)
        live = [
            [w.cost_usd() for w in workers] or [0.0],
            [w.latency_ms for w in workers] or [0.0],
            list(rates) or [1.0],
            [UNLIMITED if w.quota is None else w.quota for w in workers] or [UNLIMITED],
        ]
        numbers = self._tensor(live).unsqueeze(1).expand(4, n, -1).clone()
        available = self._tensor([w.available for w in workers] or [True]).bool()
        N, zeros = self.nodes, torch.zeros(n, dtype=torch.float64, device=self.device)
        none, empty = torch.full((n, N), -1, device=self.device), zeros[:, None].expand(-1, N)
        return {
            "offered": torch.ones((n, self.types), dtype=torch.bool, device=self.device),
            "available": available.expand(n, -1).clone(),
            **dict(zip(("price", "latency", "success", "calls"), numbers, strict=True)),
            "types": none,
            "workers": none.clone(),
            "links": torch.zeros((n, N, N), dtype=torch.bool, device=self.device),
            **{name: empty.clone() for name in ("cost", "duration", "ready", "finish")},
            **{name: torch.zeros_like(none) for name in ("status", "attempts")},
            "length": zeros.long(),
            "spent": zeros,
            "clock": zeros.clone(),
            "failed": zeros.long() - 1,
            "error": zeros.long(),
            "tried": torch.zeros((n, self.workers), dtype=torch.bool, device=self.device),
            **{name: zeros.long() for name in ("corrections", "replans")},
        }

    def check(self, drafts: Obs) -> None:
        """CatalogueError where no first node is possible."""
        if not self._open(drafts).any(1).all():
            raise CatalogueError(
                "no task type can be done now: every worker able to do one is unavailable, out of quota, or beyond the "
                "cost or time limit; add or free a worker, or raise the limit"
            )

    def corrections(self, drafts: Obs) -> Tensor:
        """(n, 6) bool by Correction; only the dummy *abort* while planning."""
        d, limits = drafts, self.limits
        failed = d["failed"].clamp(min=0)
        if self.none_failed(d):
            return (torch.arange(len(Correction), device=self.device) == Correction.ABORT).expand(len(failed), -1)
        left = (d["failed"] >= 0) & (d["corrections"] < limits.max_corrections)
        tries = left & (at(d["attempts"], failed) < limits.max_attempts)
        same = at(self._able(d, at(d["types"], failed)) & self._affords(d), at(d["workers"], failed))
        fresh = self._open(self._release(d, d["failed"] >= 0))
        legal = torch.zeros((len(failed), len(Correction)), dtype=torch.bool, device=failed.device)
        legal[:, Correction.RETRY] = tries & same
        legal[:, Correction.SWITCH] = tries & self._substitutes(d).any(1)
        legal[:, Correction.REPAIR] = tries & self._doable(d, self._repairers(d)).any(1)
        legal[:, Correction.REPLAN] = left & (d["replans"] < limits.max_replans) & fresh.any(1)
        legal[:, Correction.SKIP] = left
        legal[:, Correction.ABORT] = True
        return legal

    def task_types(self, drafts: Obs, correction: Tensor) -> Tensor:
        """(n, T + 1) bool; the last is *stop*, which is also the dummy for every correction except a repair.

        A plan needs a node before it can stop, unless no node is possible.
        """
        d = drafts
        planning, repairing = d["failed"] < 0, (d["failed"] >= 0) & (correction == Correction.REPAIR)
        room = (planning & (d["length"] < self.nodes))[:, None]
        legal = self._open(d) & room
        if not self.none_failed(d):
            legal = torch.where(repairing[:, None], self._doable(d, self._repairers(d)), legal)
        stop = ~repairing & ~(planning & (d["length"] == 0) & legal.any(1))
        return torch.cat([legal, stop[:, None]], 1)

    def dependencies(self, drafts: Obs, task_type: Tensor) -> Tensor:
        """(n, N) bool: the nodes that may be dependencies, each optional; none for *stop* or a correction."""
        d = drafts
        grows = (d["failed"] < 0) & (task_type < self.types)
        earlier = torch.arange(self.nodes, device=self.device) < d["length"][:, None]
        if self.max_time == torch.inf:
            return grows[:, None] & earlier
        able = self._able(d, task_type.clamp(max=self.types - 1)) & self._affords(d)
        quickest = torch.where(able, d["latency"], torch.inf).amin(1, keepdim=True)
        return grows[:, None] & earlier & (d["finish"] + quickest <= self.max_time)

    def workers_for(self, drafts: Obs, correction: Tensor, task_type: Tensor, links: Tensor) -> Tensor:
        """(n, W) bool; worker 0 is the dummy where no worker is chosen."""
        d = drafts
        planning = d["failed"] < 0
        known = task_type.clamp(max=self.types - 1)
        legal = self._able(d, known) & self._affords(d)
        if self.max_time < torch.inf:
            start = torch.maximum((d["finish"] * links).amax(1), d["clock"])
            legal = legal & (start[:, None] + d["latency"] <= self.max_time)
        chooses = task_type < self.types
        if not self.none_failed(d):
            repair = self._able(d, known) & self._repairers(d)
            corrects = torch.where((correction == Correction.SWITCH)[:, None], self._substitutes(d), repair)
            legal = torch.where(planning[:, None], legal, corrects)
            names = (correction == Correction.SWITCH) | (correction == Correction.REPAIR)
            chooses = torch.where(planning, chooses, names)
        dummy = torch.arange(self.workers, device=self.device) == 0
        return torch.where(chooses[:, None], legal, dummy)

    def grow(self, drafts: Obs, action: Action) -> tuple[Obs, Tensor]:
        """Adds a node to drafts that are planning; also returns (n,) bool which of them stopped. Others are unchanged.

        In a batch with both kinds, call this before `amend`, which turns failed drafts into planning ones.
        """
        d, task_type = drafts, action["type"]
        grows = (d["failed"] < 0) & (task_type < self.types)
        start = torch.maximum((d["finish"] * action["links"]).amax(1), d["clock"])
        d, here = self._append(d, grows, task_type, action["links"])
        d = self._assign(d, here, action["worker"], d["clock"])
        d["finish"] = torch.where(here, start[:, None] + d["duration"], d["finish"])
        return d, (d["failed"] < 0) & ~grows

    def amend(self, drafts: Obs, action: Action) -> tuple[Obs, Tensor]:
        """Applies corrections to failed drafts; also returns (n,) bool which of them abort. Others are unchanged.

        Nodes to run again get the status *planned*; their cost, calls and time are reserved at once. A repair depends
        on the failed node's dependencies, and the failed node on the repair.
        """
        d, fails, failed = drafts, drafts["failed"] >= 0, drafts["failed"].clamp(min=0)
        is_ = {c: fails & (action["correction"] == c) for c in Correction}
        again = is_[Correction.RETRY] | is_[Correction.SWITCH] | is_[Correction.REPAIR]
        now, here = self._now(d), torch.nn.functional.one_hot(failed, self.nodes).bool()  # (n, N)

        needs = d["links"].gather(1, failed[:, None, None].expand(-1, 1, self.nodes))[:, 0]  # (n, N)
        d, new = self._append(d, is_[Correction.REPAIR], action["type"], needs)
        d = self._assign(d, new, action["worker"], now)
        d["links"] = d["links"] | (here[:, :, None] & new[:, None])
        worker = torch.where(is_[Correction.SWITCH], action["worker"], at(d["workers"], failed))
        d = self._assign(d, here & again[:, None], worker, now)
        d["status"] = torch.where(here & is_[Correction.SKIP][:, None], Status.SKIPPED, d["status"])
        d["corrections"] = d["corrections"] + (fails & ~is_[Correction.ABORT])
        d = self._drop_unfinished(self._release(d, is_[Correction.REPLAN]), is_[Correction.REPLAN])
        d["finish"] = torch.where(again[:, None], self._schedule(d), d["finish"])
        d["failed"], d["error"] = torch.full_like(failed, -1), torch.where(fails, 0, d["error"])
        return d, is_[Correction.ABORT]

    def plans(self, drafts: Obs, instructions: Sequence[str]) -> list[Plan]:
        """Drafts as plans, with repairs before the nodes that depend on them; checked against the catalogue."""
        found = []
        types, workers = drafts["types"].tolist(), drafts["workers"].tolist()
        for row, (instruction, length) in enumerate(zip(instructions, drafts["length"].tolist(), strict=True)):
            links = drafts["links"][row, :length, :length].tolist()
            needs = [[j for j, linked in enumerate(line) if linked] for line in links]
            order = topological_order(needs)
            named = [types[row][i] for i in order], [workers[row][i] for i in order]
            plan = name_plan(self.catalogue, instruction, *named, [sorted(map(order.index, needs[i])) for i in order])
            plan.check(self.catalogue, self.limits)
            found.append(plan)
        return found

    def actions(self, plan: Plan) -> list[Action]:
        """The actions that build this plan node by node, and *stop*."""
        types = {t.name: i for i, t in enumerate(self.catalogue.task_types)}
        workers = {w.name: i for i, w in enumerate(self.catalogue.workers)}
        abort, stop = torch.tensor([int(Correction.ABORT)]), torch.tensor([self.types])
        no_worker, no_links = torch.tensor([0]), torch.zeros((1, self.nodes), dtype=torch.bool)
        found = [
            {
                "correction": abort,
                "type": torch.tensor([types[node.task_type]]),
                "links": no_links.index_fill(1, torch.tensor(node.dependencies, dtype=torch.long), True),
                "worker": torch.tensor([workers[node.worker]]) if node.worker is not None else no_worker,
            }
            for node in plan.nodes
        ]
        return [*found, {"correction": abort, "type": stop, "links": no_links, "worker": no_worker}]

    def _append(self, d: Obs, grows: Tensor, task_type: Tensor, links: Tensor) -> tuple[Obs, Tensor]:
        """Adds a node without a worker where a draft `grows`; also returns (n, N) bool which node it is."""
        d = dict(d)
        here = (torch.arange(self.nodes, device=self.device) == d["length"][:, None]) & grows[:, None]
        d["types"] = torch.where(here, task_type[:, None], d["types"])
        d["links"] = d["links"] | (here[:, :, None] & links[:, None])
        d["length"] = d["length"] + grows
        return d, here

    def _assign(self, d: Obs, here: Tensor, worker: Tensor, ready: Tensor) -> Obs:
        """Assigns a worker to the node that `here` (n, N) marks, if any; its attempt starts at `ready` or later."""
        d, given, worker = dict(d), here.any(1), worker.clamp(min=0)
        price, latency = at(d["price"], worker), at(d["latency"], worker)
        for name, value in (("workers", worker), ("cost", price), ("duration", latency), ("ready", ready)):
            d[name] = torch.where(here, value[:, None], d[name])
        d["status"] = torch.where(here, Status.PLANNED, d["status"])
        d["attempts"] = d["attempts"] + here
        d["spent"] = d["spent"] + price * given
        d["calls"] = d["calls"] - torch.nn.functional.one_hot(worker, self.workers) * given[:, None]
        return d

    def _release(self, d: Obs, replans: Tensor) -> Obs:
        """Releases the cost and calls reserved for nodes that have not started; planning continues from now."""
        d, now = dict(d), self._now(d)
        start = torch.maximum((d["finish"][:, None] * d["links"]).amax(2), d["ready"])  # (n, N)
        unspent = (d["types"] >= 0) & (d["status"] == Status.PLANNED) & (start >= now[:, None]) & replans[:, None]
        d["spent"] = d["spent"] - (d["cost"] * unspent).sum(1)
        d["calls"] = d["calls"].scatter_add(1, d["workers"].clamp(min=0), unspent.to(d["calls"].dtype))
        d["clock"] = torch.where(replans, now, d["clock"])
        d["failed"] = torch.where(replans, -1, d["failed"])
        return d

    def _drop_unfinished(self, d: Obs, replans: Tensor) -> Obs:
        """Drops the nodes that are not done where a draft replans; the others keep their order."""
        d = dict(d)
        drop = (d["types"] >= 0) & (d["status"] != Status.DONE) & replans[:, None]
        order = drop.int().argsort(dim=1, stable=True)  # kept nodes first
        d["length"] = d["length"] - drop.sum(1)
        kept = torch.arange(self.nodes, device=self.device) < d["length"][:, None]
        for name in ("types", "workers"):
            d[name] = torch.where(kept, d[name].gather(1, order), -1)
        for name in NODES[2:]:
            d[name] = d[name].gather(1, order) * kept
        links = d["links"].gather(1, order[:, :, None].expand_as(d["links"]))
        d["links"] = links.gather(2, order[:, None].expand_as(links)) & kept[:, :, None] & kept[:, None]
        d["replans"] = d["replans"] + replans
        return d

    def _schedule(self, d: Obs) -> Tensor:
        """(n, N): when each node ends. Finished nodes keep their time; the others follow their dependencies.

        Nodes are in topological order except repairs, which come after the nodes that depend on them. A repair and the
        node it repairs have no other unfinished dependencies, so one backward sweep settles these and one forward sweep
        the others.
        """
        finish, planned = d["finish"].clone(), (d["status"] == Status.PLANNED) & (d["types"] >= 0)
        links = d["links"].to(finish.dtype)
        for i in (*reversed(range(self.nodes)), *range(self.nodes)):
            start = torch.maximum((finish * links[:, i]).amax(1), d["ready"][:, i])
            finish[:, i] = torch.where(planned[:, i], start + d["duration"][:, i], finish[:, i])
        return finish

    def none_failed(self, d: Obs) -> bool:
        """Whether corrections can be skipped. Never on a GPU: reading the answer back would stall it."""
        return self.device.type == "cpu" and not bool((d["failed"] >= 0).any())

    def _able(self, d: Obs, task_type: Tensor) -> Tensor:
        """(n, W) bool: workers able to do a subtask of this type now."""
        return self.capable[task_type.clamp(min=0)] & d["available"] & at(d["offered"], task_type)[:, None]

    def _affords(self, d: Obs) -> Tensor:
        """(n, W) bool: workers whose call fits the cost limit and the quota and, after a failure, the time left."""
        cheap = (d["spent"][:, None] + d["price"] <= self.max_cost) & (d["calls"] >= 1)
        if self.max_time == torch.inf:
            return cheap
        again = (d["failed"] >= 0)[:, None]
        return cheap & (~again | (self._end(d)[:, None] + d["latency"] <= self.max_time))

    def _open(self, d: Obs) -> Tensor:
        """(n, T) bool: types that some worker can do within all limits."""
        affords = self._affords(d)
        if self.max_time < torch.inf:
            affords = affords & (d["clock"][:, None] + d["latency"] <= self.max_time)
        return self._doable(d, affords)

    def _doable(self, d: Obs, workers: Tensor) -> Tensor:
        """(n, T) bool: types that one of `workers` (n, W) bool can do."""
        return d["offered"] & ((d["available"] & workers).float() @ self._doers > 0)

    def _substitutes(self, d: Obs) -> Tensor:
        """(n, W) bool: other workers able to do the failed node."""
        failed = d["failed"].clamp(min=0)
        current = torch.nn.functional.one_hot(at(d["workers"], failed).clamp(min=0), self.workers).bool()
        return self._able(d, at(d["types"], failed)) & self._affords(d) & ~current

    def _repairers(self, d: Obs) -> Tensor:
        """(n, W) bool: workers able to do a subtask before the failed node, which the same worker then retries."""
        failed = d["failed"].clamp(min=0)
        current = at(d["workers"], failed).clamp(min=0)
        price, latency = at(d["price"], current)[:, None], at(d["latency"], current)[:, None]
        same = torch.nn.functional.one_hot(current, self.workers)
        both = (d["spent"][:, None] + d["price"] + price <= self.max_cost) & (d["calls"] >= 1 + same)
        both &= self._end(d)[:, None] + d["latency"] + latency <= self.max_time
        again = at(self._able(d, at(d["types"], failed)), current) & (at(d["calls"], current) >= 1)
        again &= (d["failed"] >= 0) & (d["length"] < self.nodes)
        return both & again[:, None]

    def _now(self, d: Obs) -> Tensor:
        """(n,): the time at which the failed node failed."""
        return torch.maximum(at(d["finish"], d["failed"]), d["clock"])

    def _end(self, d: Obs) -> Tensor:
        """(n,): the latest end of all nodes if the failed node were done now."""
        return d["finish"].amax(1) + self._now(d) - at(d["finish"], d["failed"])

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.device)


def _edge(limit: float | None) -> float:
    """Stricter than `Plan.check`, so that rounding cannot exceed it."""
    return torch.inf if limit is None else limit * (1 + SLACK / 2)


def at(x: Tensor, index: Tensor) -> Tensor:
    """x (n, k) at index (n,): (n,); an index of −1 reads the first."""
    return x.gather(1, index.clamp(min=0)[:, None])[:, 0]
