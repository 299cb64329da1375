"""What may be chosen next, and what a choice does to a draft: the one rule object of training and of serving.

A decision has four parts, chosen in this order, each masked by what was chosen before: a correction (after a failure),
a task type or *stop*, dependencies among earlier nodes, a worker. Where a part does not apply, one dummy choice is
legal: its probability is 1 and it says nothing. Drafts are named tensors with a leading batch axis (see `Drafts`), so
thousands are masked in one call and one is masked by the same lines.

Every mask keeps two promises: a legal choice breaks no limit, and it leaves a legal choice behind. Money and time are
float64: limits are kept to their edge, however many nodes are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from etude.contracts.errors import CatalogueError
from etude.problems.base import Action, Obs
from etude.problems.workflow.catalogue import Catalogue, Worker
from etude.problems.workflow.plan import SLACK, Limits, Node, Plan, in_order


class Correction(IntEnum):
    """What to do about a failed node."""

    RETRY = 0  # the same worker again
    SWITCH = 1  # another worker
    REPAIR = 2  # a new subtask before it, then the same worker again
    REPLAN = 3  # forget what is not done and plan on from there
    SKIP = 4  # go on without it
    ABORT = 5  # end the workflow


class Status(IntEnum):
    """How far a node is."""

    PLANNED = 0
    DONE = 1
    FAILED = 2
    SKIPPED = 3


UNLIMITED = 1e9
"""Calls left of a worker without quota."""
UNKNOWN_SUCCESS = 0.5
"""Success so far of a worker that nobody has tried."""


WORKERS = ("available", "price", "latency", "success", "calls", "tried")
"""What a draft has for each worker, (n, W)."""
NODES = ("types", "workers", "cost", "duration", "ready", "finish", "status", "attempts")
"""What a draft has for each node, (n, N)."""


class Rules:
    """The grammar over one set of task types and workers.

    Drafts have n rows, N = `limits.max_nodes` nodes, T task types, W workers (one nobody where there are none):
        offered (n, T) bool             task types that exist now
        available (n, W) bool           workers that may be given work now
        price, latency (n, W)           USD and ms of a typical call, as known now
        success, calls (n, W)           share of calls that succeeded so far, calls left
        types, workers (n, N) long      of each node, −1 beyond the length
        links (n, N, N) bool            [i, j]: node i depends on node j
        cost, duration (n, N)           USD and ms of a node's last attempt, as known when it was given out
        ready, finish (n, N)            ms before which that attempt cannot start, and when it ends
        status, attempts (n, N) long    Status, and how often it was tried
        length (n,) long                nodes so far
        spent, clock (n,)               USD given out, and ms before which nothing new can start
        failed, error (n,) long         the node to correct, −1 while planning, and what kind of error it had
        tried (n, W) bool               who has proved unable to do the node that failed last
        corrections, replans (n,) long  how many there were
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
        self._doers = self.capable.T.float()  # (W, T): a product with it counts, exactly, who can do each type
        self.max_cost, self.max_time = _edge(limits.max_cost_usd), _edge(limits.max_time_ms)

    def begin(self, n: int) -> Obs:
        """n empty drafts over the catalogue as it is."""
        workers = self.catalogue.workers
        live = [
            [w.cost_usd(), w.latency_ms, UNKNOWN_SUCCESS if w.success_rate is None else w.success_rate, _calls(w)]
            for w in workers
        ]
        nobody = [[0.0, 0.0, 1.0, UNLIMITED]]
        price, latency, success, calls = self._tensor(live or nobody).T.unsqueeze(1).expand(4, n, -1).clone()
        available = self._tensor([w.available for w in workers] or [True]).bool()
        N, zeros = self.nodes, torch.zeros(n, dtype=torch.float64, device=self.device)
        none, empty = torch.full((n, N), -1, device=self.device), zeros[:, None].expand(-1, N)
        return {
            "offered": torch.ones((n, self.types), dtype=torch.bool, device=self.device),
            "available": available.expand(n, -1).clone(),
            "price": price,
            "latency": latency,
            "success": success,
            "calls": calls,
            "types": none,
            "workers": none.clone(),
            "links": torch.zeros((n, N, N), dtype=torch.bool, device=self.device),
            **{name: empty.clone() for name in ("cost", "duration", "ready", "finish")},
            "status": torch.zeros_like(none),
            "attempts": torch.zeros_like(none),
            "length": zeros.long(),
            "spent": zeros,
            "clock": zeros.clone(),
            "failed": zeros.long() - 1,
            "error": zeros.long(),
            "tried": torch.zeros((n, self.workers), dtype=torch.bool, device=self.device),
            "corrections": zeros.long(),
            "replans": zeros.long(),
        }

    def check(self, drafts: Obs) -> None:
        """CatalogueError where a plan cannot even begin."""
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
        fresh = self._open(self._give_back(d, d["failed"] >= 0))
        legal = torch.zeros((len(failed), len(Correction)), dtype=torch.bool, device=failed.device)
        legal[:, Correction.RETRY] = tries & same
        legal[:, Correction.SWITCH] = tries & self._substitutes(d).any(1)
        legal[:, Correction.REPAIR] = tries & self._doable(d, self._repairers(d)).any(1)
        legal[:, Correction.REPLAN] = left & (d["replans"] < limits.max_replans) & fresh.any(1)
        legal[:, Correction.SKIP] = left
        legal[:, Correction.ABORT] = True
        return legal

    def task_types(self, drafts: Obs, correction: Tensor) -> Tensor:
        """(n, T + 1) bool; the last is *stop*, and the dummy of every correction but a repair.

        A plan has a node before it stops, unless nothing can be done any more.
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
        """(n, N) bool, each free to take or leave; none for a stop or a correction."""
        d = drafts
        grows = (d["failed"] < 0) & (task_type < self.types)
        earlier = torch.arange(self.nodes, device=self.device) < d["length"][:, None]
        if self.max_time == torch.inf:
            return grows[:, None] & earlier
        able = self._able(d, task_type.clamp(max=self.types - 1)) & self._affords(d)
        quickest = torch.where(able, d["latency"], torch.inf).amin(1, keepdim=True)
        return grows[:, None] & earlier & (d["finish"] + quickest <= self.max_time)

    def workers_for(self, drafts: Obs, correction: Tensor, task_type: Tensor, links: Tensor) -> Tensor:
        """(n, W) bool; worker 0 is the dummy where none is chosen."""
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
        """Planning drafts with one node more, and (n,) bool which of them stopped. Others are left as they are.

        Of a batch of both kinds, this comes before `amend`, which turns failed drafts into planning ones.
        """
        d, task_type = drafts, action["type"]
        grows = (d["failed"] < 0) & (task_type < self.types)
        start = torch.maximum((d["finish"] * action["links"]).amax(1), d["clock"])
        d, here = self._append(d, grows, task_type, action["links"])
        d = self._give(d, here, action["worker"], d["clock"])
        d["finish"] = torch.where(here, start[:, None] + d["duration"], d["finish"])
        return d, (d["failed"] < 0) & ~grows

    def amend(self, drafts: Obs, action: Action) -> tuple[Obs, Tensor]:
        """Failed drafts after their correction, and (n,) bool which of them abort. Others are left as they are.

        What is to be run again is *planned* again; its cost, calls and time are taken at once. A repair depends on
        what the failed node depends on, and the failed node on the repair.
        """
        d, fails, failed = drafts, drafts["failed"] >= 0, drafts["failed"].clamp(min=0)
        is_ = {c: fails & (action["correction"] == c) for c in Correction}
        again = is_[Correction.RETRY] | is_[Correction.SWITCH] | is_[Correction.REPAIR]
        now, here = self._now(d), torch.nn.functional.one_hot(failed, self.nodes).bool()  # (n, N)

        needs = d["links"].gather(1, failed[:, None, None].expand(-1, 1, self.nodes))[:, 0]  # (n, N)
        d, new = self._append(d, is_[Correction.REPAIR], action["type"], needs)
        d = self._give(d, new, action["worker"], now)
        d["links"] = d["links"] | (here[:, :, None] & new[:, None])
        worker = torch.where(is_[Correction.SWITCH], action["worker"], at(d["workers"], failed))
        d = self._give(d, here & again[:, None], worker, now)
        d["status"] = torch.where(here & is_[Correction.SKIP][:, None], Status.SKIPPED, d["status"])
        d["corrections"] = d["corrections"] + (fails & ~is_[Correction.ABORT])
        d = self._forget(self._give_back(d, is_[Correction.REPLAN]), is_[Correction.REPLAN])
        d["finish"] = torch.where(again[:, None], self._schedule(d), d["finish"])
        d["failed"], d["error"] = torch.full_like(failed, -1), torch.where(fails, 0, d["error"])
        return d, is_[Correction.ABORT]

    def plans(self, drafts: Obs, instructions: Sequence[str]) -> list[Plan]:
        """Drafts as plans, repairs put before what depends on them; checked against the catalogue as it is."""
        found = []
        types, workers = drafts["types"].tolist(), drafts["workers"].tolist()
        for row, (instruction, length) in enumerate(zip(instructions, drafts["length"].tolist(), strict=True)):
            links = drafts["links"][row, :length, :length].tolist()
            needs = [[j for j, linked in enumerate(line) if linked] for line in links]
            order = in_order(needs)
            nodes = tuple(
                Node(
                    task_type=self.catalogue.task_types[types[row][i]].name,
                    dependencies=tuple(sorted(order.index(j) for j in needs[i])),
                    worker=self.catalogue.workers[workers[row][i]].name if self.catalogue.workers else None,
                )
                for i in order
            )
            plan = Plan(instruction=instruction, nodes=nodes)
            plan.check(self.catalogue, self.limits)
            found.append(plan)
        return found

    def actions(self, plan: Plan) -> list[Action]:
        """What draws up this plan, node by node, and stops."""
        types = {t.name: i for i, t in enumerate(self.catalogue.task_types)}
        workers = {w.name: i for i, w in enumerate(self.catalogue.workers)}
        abort, stop = torch.tensor([int(Correction.ABORT)]), torch.tensor([self.types])
        nobody, nothing = torch.tensor([0]), torch.zeros((1, self.nodes), dtype=torch.bool)
        found = [
            {
                "correction": abort,
                "type": torch.tensor([types[node.task_type]]),
                "links": nothing.index_fill(1, torch.tensor(node.dependencies, dtype=torch.long), True),
                "worker": torch.tensor([workers[node.worker]]) if node.worker is not None else nobody,
            }
            for node in plan.nodes
        ]
        return [*found, {"correction": abort, "type": stop, "links": nothing, "worker": nobody}]

    def is_empty(self, draft: Obs) -> bool:
        """Whether nothing has been planned yet."""
        return not bool(draft["length"].any() or draft["replans"].any())

    def _append(self, d: Obs, grows: Tensor, task_type: Tensor, links: Tensor) -> tuple[Obs, Tensor]:
        """A node more where a draft grows, given to nobody yet, and (n, N) bool which it is."""
        d = dict(d)
        here = (torch.arange(self.nodes, device=self.device) == d["length"][:, None]) & grows[:, None]
        d["types"] = torch.where(here, task_type[:, None], d["types"])
        d["links"] = d["links"] | (here[:, :, None] & links[:, None])
        d["length"] = d["length"] + grows
        return d, here

    def _give(self, d: Obs, here: Tensor, worker: Tensor, ready: Tensor) -> Obs:
        """A worker attempts the node that `here` (n, N) marks, if any, and not before `ready`."""
        d, given, worker = dict(d), here.any(1), worker.clamp(min=0)
        price, latency = at(d["price"], worker), at(d["latency"], worker)
        for name, value in (("workers", worker), ("cost", price), ("duration", latency), ("ready", ready)):
            d[name] = torch.where(here, value[:, None], d[name])
        d["status"] = torch.where(here, Status.PLANNED, d["status"])
        d["attempts"] = d["attempts"] + here
        d["spent"] = d["spent"] + price * given
        d["calls"] = d["calls"] - torch.nn.functional.one_hot(worker, self.workers) * given[:, None]
        return d

    def _give_back(self, d: Obs, replans: Tensor) -> Obs:
        """What was set aside for nodes that have not begun is free again, and planning goes on from now."""
        d, now = dict(d), self._now(d)
        start = torch.maximum((d["finish"][:, None] * d["links"]).amax(2), d["ready"])  # (n, N)
        unspent = (d["types"] >= 0) & (d["status"] == Status.PLANNED) & (start >= now[:, None]) & replans[:, None]
        d["spent"] = d["spent"] - (d["cost"] * unspent).sum(1)
        d["calls"] = d["calls"].scatter_add(1, d["workers"].clamp(min=0), unspent.to(d["calls"].dtype))
        d["clock"] = torch.where(replans, now, d["clock"])
        d["failed"] = torch.where(replans, -1, d["failed"])
        return d

    def _forget(self, d: Obs, replans: Tensor) -> Obs:
        """Keep what is done, in its order."""
        d = dict(d)
        drop = (d["types"] >= 0) & (d["status"] != Status.DONE) & replans[:, None]
        order = drop.int().argsort(dim=1, stable=True)  # what stays comes first
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
        """(n, N) when each node ends: what is over stays, the rest follows what it depends on.

        Nodes stand in order but for repairs, which stand after what depends on them. A repair and what it repairs need
        nothing else that is still to come, so a sweep backwards settles these and a sweep forwards the others.
        """
        finish, planned = d["finish"].clone(), (d["status"] == Status.PLANNED) & (d["types"] >= 0)
        links = d["links"].to(finish.dtype)
        for i in (*reversed(range(self.nodes)), *range(self.nodes)):
            start = torch.maximum((finish * links[:, i]).amax(1), d["ready"][:, i])
            finish[:, i] = torch.where(planned[:, i], start + d["duration"][:, i], finish[:, i])
        return finish

    def none_failed(self, d: Obs) -> bool:
        """Whether corrections need not be looked at. On a GPU to ask would be to wait, so there they always are."""
        return self.device.type == "cpu" and not bool((d["failed"] >= 0).any())

    def _able(self, d: Obs, task_type: Tensor) -> Tensor:
        """(n, W): who may do a subtask of this type now."""
        return self.capable[task_type.clamp(min=0)] & d["available"] & at(d["offered"], task_type)[:, None]

    def _affords(self, d: Obs) -> Tensor:
        """(n, W): whose call is within cost and quota and, as a further attempt, within the time left."""
        cheap = (d["spent"][:, None] + d["price"] <= self.max_cost) & (d["calls"] >= 1)
        if self.max_time == torch.inf:
            return cheap
        again = (d["failed"] >= 0)[:, None]
        return cheap & (~again | (self._end(d)[:, None] + d["latency"] <= self.max_time))

    def _open(self, d: Obs) -> Tensor:
        """(n, T): types with somebody to do them."""
        affords = self._affords(d)
        if self.max_time < torch.inf:
            affords = affords & (d["clock"][:, None] + d["latency"] <= self.max_time)
        return self._doable(d, affords)

    def _doable(self, d: Obs, workers: Tensor) -> Tensor:
        """(n, T): types with somebody to do them among `workers` (n, W) bool."""
        return d["offered"] & ((d["available"] & workers).float() @ self._doers > 0)

    def _substitutes(self, d: Obs) -> Tensor:
        """(n, W): who else could do the failed node."""
        failed = d["failed"].clamp(min=0)
        current = torch.nn.functional.one_hot(at(d["workers"], failed).clamp(min=0), self.workers).bool()
        return self._able(d, at(d["types"], failed)) & self._affords(d) & ~current

    def _repairers(self, d: Obs) -> Tensor:
        """(n, W): who could do a subtask before the failed node, which is then tried again by the same worker."""
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
        """(n,) when the failed node failed."""
        return torch.maximum(at(d["finish"], d["failed"]), d["clock"])

    def _end(self, d: Obs) -> Tensor:
        """(n,) when at the latest all would end, were the failed node done now."""
        return d["finish"].amax(1) + self._now(d) - at(d["finish"], d["failed"])

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.device)


def _edge(limit: float | None) -> float:
    return torch.inf if limit is None else limit * (1 + SLACK / 2)  # well within what `Plan.check` accepts


def _calls(worker: Worker) -> float:
    return UNLIMITED if worker.quota is None else worker.quota


def at(x: Tensor, index: Tensor) -> Tensor:
    """x (n, k), index (n,) to (n,); an index of −1 reads the first."""
    return x.gather(1, index.clamp(min=0)[:, None])[:, 0]
