"""Does the grammar let anything invalid through? A million workflows over random catalogues, checked by other means.

Every workflow is planned by random or hostile scores, carried out with random failures and corrected until it ends.
For each draft a separate ledger records every call, when it happens and what it costs, and checks these against the
limits; it shares no code with the grammar. Half of the catalogues change between decisions. Exits 1 on any violation.

python benchmarks/grammar_fuzz.py        # a million workflows, some minutes on one thread
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

import torch
from results import save
from torch import Generator, Tensor

from etude.contracts.errors import PlanError
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.distributions import masked, sample_categorical, uniform_like
from etude.problems.workflow.grammar import Correction, Rules, Status
from etude.problems.workflow.plan import Limits

WITHIN = 1 + 1e-9
KINDS = ("random", "random, greedy", "nan", "+inf", "-inf", "±1e38", "all equal", "any of these")
READ = 100
"""Drafts of a catalogue, where nothing changes, that are made plans as well."""
CHECKS = (
    *("no choice left", "illegal choice", "capability", "availability", "cycle", "order", "length", "cost", "quota"),
    *("time", "attempts", "corrections", "replans", "stuck", "draft is not the ledger", "Plan.check"),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--plans", type=int, default=1_000_000)
    arguments.add_argument("--rows", type=int, default=2048, help="workflows of one catalogue")
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    rng, generator, began = random.Random(given.seed), Generator().manual_seed(given.seed), time.perf_counter()
    seen: Counter[str] = Counter()
    bad: Counter[str] = Counter(dict.fromkeys(CHECKS, 0))
    while seen["plans"] < given.plans:
        changes = seen["catalogues"] % 2 == 1  # in half of them entries come and go between decisions
        Fuzz(rng, generator, given.rows, changes=changes, seen=seen, bad=bad).run()
        if seen["catalogues"] % 32 == 0 or seen["plans"] >= given.plans:
            rate = seen["plans"] / (time.perf_counter() - began)
            print(f"{seen['plans']:9,} plans  {rate:6,.0f} plans/s  {bad.total()} violations", flush=True)
    seconds = time.perf_counter() - began
    print(", ".join(f"{name} {count:,}" for name, count in seen.items()))
    print("violations:", {name: count for name, count in bad.items() if count} or "none")
    rate = round(seen["plans"] / seconds)
    save("grammar_fuzz", {"seconds": round(seconds, 1), "plans_per_s": rate, "seen": seen, "violations": bad})
    sys.exit(bad.total() > 0)


class Fuzz:
    """All workflows of one catalogue, from their first decision to their end."""

    def __init__(
        self,
        rng: random.Random,
        generator: Generator,
        n: int,
        *,
        changes: bool,
        seen: Counter[str],
        bad: Counter[str],
    ) -> None:
        self.generator, self.changes, self.seen, self.bad = generator, changes, seen, bad
        self.unread = 0 if changes else READ
        self.catalogue, self.limits = any_catalogue(rng)
        self.rules = Rules(self.catalogue, self.limits)
        self.d = self.rules.begin(n)
        if self.changes:
            self.change(torch.ones(n, dtype=torch.bool))
        self.ledger = Ledger(self.catalogue, self.limits, self.d)
        self.kind = torch.randint(len(KINDS), (n,), generator=generator)
        self.is_first = torch.ones(n, dtype=torch.bool)
        self.failure = rng.choice([0.1, 0.4, 0.8])

    def run(self) -> None:
        self.seen["catalogues"] += 1
        rules = self.rules
        while len(self.kind):
            action = self.choose()
            self.ledger.expect_able(self.d, action, self.bad)
            fails = self.d["failed"] >= 0
            self.seen["corrections"] += int(fails.sum())
            for c in Correction:
                self.seen[f"of them {c.name.lower()}"] += int((fails & (action["correction"] == c)).sum())
            self.d, stopped = rules.grow(self.d, action)
            self.d, aborted = rules.amend(self.d, action)
            self.ledger.record(self.d, action)
            if not torch.equal(stopped, ~fails & (action["type"] == rules.types)):
                self.bad["draft is not the ledger"] += 1
            empty = stopped & (self.d["length"] == 0)
            if self.changes:
                self.seen["empty stops, nothing being left to do"] += int(empty.sum())
            else:
                self.bad["no choice left"] += int(empty.sum())
            self.seen["plans"] += int((stopped & self.is_first & ~empty).sum())
            self.seen["later plans"] += int((stopped & ~self.is_first & ~empty).sum())
            self.is_first &= ~stopped
            settled = stopped | (fails & (action["correction"] != Correction.REPLAN))
            self.ledger.check(self.d, settled | fails, self.bad, self.seen)
            self.read(stopped & ~empty)
            runs = settled & ~aborted & ~empty
            ended = self.ledger.carry_on(self.d, runs, self.failure, self.generator, self.bad)
            self.read(ended)
            self.keep(~(ended | aborted | empty))
            if self.changes:
                self.change(torch.rand(len(self.kind), generator=self.generator) < 0.3)

    def choose(self) -> Action:
        """Part by part, as policies do."""
        d, rules = self.d, self.rules
        correction = self.sample(rules.corrections(d))
        task_type = self.sample(rules.task_types(d, correction))
        legal = rules.dependencies(d, task_type)
        p = masked(self.scores(legal.shape), legal).sigmoid()
        links = uniform_like(p, self.generator) < p
        worker = self.sample(rules.workers_for(d, correction, task_type, links))
        return {"correction": correction, "type": task_type, "links": links, "worker": worker}

    def sample(self, legal: Tensor) -> Tensor:
        scores = masked(self.scores(legal.shape), legal)
        chosen = torch.where(self.kind == 1, scores.argmax(1), sample_categorical(scores, self.generator))
        self.bad["no choice left"] += int((~legal.any(1)).sum())
        self.bad["illegal choice"] += int((~legal.gather(1, chosen[:, None])).sum())
        return chosen

    def scores(self, shape: torch.Size) -> Tensor:
        """By row, what KINDS says; a little against the last choice, so that not all stop or abort at once."""
        normal = torch.randn(shape, generator=self.generator)
        normal[:, -1] -= 1.5
        kind = self.kind[:, None].expand(shape)
        kind = torch.where(kind == 7, torch.randint(7, shape, generator=self.generator), kind)
        values = torch.tensor([0.0, 0.0, torch.nan, torch.inf, -torch.inf, 1e38, 0.0])
        hostile = torch.where(kind == 5, normal.sign() * 1e38, values[kind])
        return torch.where(kind <= 1, normal, hostile)

    def change(self, rows: Tensor) -> None:
        """Entries come and go and cost something else, row by row."""
        n, g = len(rows), self.generator
        for name in ("offered", "available"):
            there = torch.rand(self.d[name].shape, generator=g) < 0.85
            self.d[name] = torch.where(rows[:, None], there, self.d[name])
        for name in ("price", "latency"):
            factor = torch.randint(5, 16, (n, self.rules.workers), generator=g, dtype=torch.float64) / 10
            self.d[name] = torch.where(rows[:, None], self.d[name] * factor, self.d[name])

    def read(self, rows: Tensor) -> None:
        """Drafts as plans: the one place that says what is valid agrees."""
        for row in rows.nonzero()[: min(self.unread, 20), 0].tolist():
            self.unread -= 1
            self.seen["plans read"] += 1
            try:
                self.rules.plans({name: value[row : row + 1] for name, value in self.d.items()}, ["do it"])
            except PlanError:
                self.bad["Plan.check"] += 1

    def keep(self, rows: Tensor) -> None:
        if not rows.all():
            self.d = {name: value[rows] for name, value in self.d.items()}
            self.ledger.x = {name: value[rows] for name, value in self.ledger.x.items()}
            self.kind, self.is_first = self.kind[rows], self.is_first[rows]


class Ledger:
    """What really happens to n workflows: who attempts what, from when to when, and what it costs."""

    def __init__(self, catalogue: Catalogue, limits: Limits, d: Obs) -> None:
        n, N, W = len(d["failed"]), limits.max_nodes, max(1, len(catalogue.workers))
        self.limits, self.nodes, self.types = limits, N, len(catalogue.task_types)
        self.skill = torch.ones((self.types, W), dtype=torch.bool)
        for w, worker in enumerate(catalogue.workers):
            for t, task_type in enumerate(catalogue.task_types):
                self.skill[t, w] = worker.task_types is None or task_type.name in worker.task_types
        whole, real = torch.zeros((n, N), dtype=torch.long), torch.zeros((n, N), dtype=torch.float64)
        self.x: dict[str, Tensor] = {
            **{name: whole.clone() - 1 for name in ("type", "worker")},
            **{name: whole.clone() for name in ("state", "tries")},
            **{name: real.clone() for name in ("cost", "time", "since", "end")},
            "called": whole.bool(),  # the last attempt has begun
            "needs": torch.zeros((n, N, N), dtype=torch.bool),
            "length": whole[:, 0].clone(),
            "failed": whole[:, 0] - 1,
            "corrections": whole[:, 0].clone(),
            "replans": whole[:, 0].clone(),
            "money": real[:, 0].clone(),
            "clock": real[:, 0].clone(),
            "calls": torch.zeros((n, W), dtype=torch.float64),
            "quota": d["calls"].double().clone(),
        }

    def expect_able(self, d: Obs, action: Action, bad: Counter[str]) -> None:
        """Whoever is called now is there, and of the right kind."""
        x, c = self.x, action["correction"]
        is_failed = x["failed"] >= 0
        new = torch.where(is_failed, c == Correction.REPAIR, action["type"] < self.types).nonzero()[:, 0]
        again = (is_failed & (c <= Correction.REPAIR)).nonzero()[:, 0]
        f = x["failed"][again]
        worker = torch.where(c[again] == Correction.SWITCH, action["worker"][again], x["worker"][again, f])
        same = (c[again] == Correction.SWITCH) & (worker == x["worker"][again, f])
        bad["illegal choice"] += int(same.sum())
        for rows, t, w in ((new, action["type"][new], action["worker"][new]), (again, x["type"][again, f], worker)):
            bad["capability"] += int((~self.skill[t, w]).sum())
            bad["availability"] += int((~(d["available"][rows, w] & d["offered"][rows, t])).sum())

    def record(self, d: Obs, action: Action) -> None:
        x, c = self.x, action["correction"]
        is_failed = x["failed"] >= 0
        rows = (~is_failed & (action["type"] < self.types)).nonzero()[:, 0]
        self.add(d, rows, action, action["links"][rows], x["clock"][rows])
        now = torch.maximum(x["end"].gather(1, x["failed"].clamp(min=0)[:, None])[:, 0], x["clock"])
        rows = (is_failed & (c == Correction.REPAIR)).nonzero()[:, 0]
        i, f = x["length"][rows], x["failed"][rows]
        self.add(d, rows, action, x["needs"][rows, f], now[rows])
        x["needs"][rows, f, i] = True
        rows = (is_failed & (c <= Correction.REPAIR)).nonzero()[:, 0]
        f = x["failed"][rows]
        worker = torch.where(c[rows] == Correction.SWITCH, action["worker"][rows], x["worker"][rows, f])
        self.attempt(d, rows, f, worker, now[rows])
        rows = (is_failed & (c == Correction.SKIP)).nonzero()[:, 0]
        x["state"][rows, x["failed"][rows]] = int(Status.SKIPPED)
        self.replan((is_failed & (c == Correction.REPLAN)).nonzero()[:, 0], now)
        x["corrections"] += is_failed & (c != Correction.ABORT)
        x["failed"] = torch.full_like(x["failed"], -1)

    def add(self, d: Obs, rows: Tensor, action: Action, needs: Tensor, since: Tensor) -> None:
        i = self.x["length"][rows].clamp(max=self.nodes - 1)
        self.x["type"][rows, i] = action["type"][rows]
        self.x["needs"][rows, i] = needs
        self.x["tries"][rows, i] = 0
        self.attempt(d, rows, i, action["worker"][rows], since)
        self.x["length"][rows] += 1

    def attempt(self, d: Obs, rows: Tensor, i: Tensor, worker: Tensor, since: Tensor) -> None:
        values = {
            "worker": worker,
            "since": since,
            "cost": d["price"][rows, worker],
            "time": d["latency"][rows, worker],
        }
        for name, value in values.items():
            self.x[name][rows, i] = value.to(self.x[name].dtype)
        self.x["tries"][rows, i] += 1
        self.x["state"][rows, i] = int(Status.PLANNED)
        self.x["called"][rows, i] = False

    def replan(self, rows: Tensor, now: Tensor) -> None:
        """What is done moves to the front: a permutation matrix [new, old], zero where nothing is kept."""
        x = self.x
        kept = (x["type"][rows] >= 0) & (x["state"][rows] == Status.DONE)
        place = (kept.cumsum(1) - 1).clamp(min=0)
        move = torch.nn.functional.one_hot(place, self.nodes).mT.double() * kept[:, None]
        for name in ("type", "worker", "state", "tries", "cost", "time", "since", "end", "called"):
            blank = -1 if name in ("type", "worker") else 0
            moved = (move @ (x[name][rows].double() - blank)[..., None])[..., 0] + blank
            x[name][rows] = moved.to(x[name].dtype)
        x["needs"][rows] = (move @ x["needs"][rows].double() @ move.mT) > 0
        x["length"][rows] = kept.sum(1)
        x["clock"][rows] = now[rows]
        x["replans"][rows] += 1

    def carry_on(self, d: Obs, runs: Tensor, failure: float, generator: Generator, bad: Counter[str]) -> Tensor:
        """The next to end, ends or fails, until a node has failed or all is over; (n,) which are."""
        x, ended, rows = self.x, torch.zeros_like(runs), runs.nonzero()[:, 0]
        while len(rows):
            planned = (x["type"][rows] >= 0) & (x["state"][rows] == Status.PLANNED)
            needs, end = x["needs"][rows], x["end"][rows]
            can = planned & ~(needs & planned[:, None]).any(2)
            start = torch.maximum((end[:, None] * needs).amax(2), x["since"][rows])
            over = ~can.any(1)
            bad["stuck"] += int((over & planned.any(1)).sum())
            ended[rows[over]] = True
            soonest, i = torch.where(can, start + x["time"][rows], torch.inf).min(1)
            begun = can & (start < soonest[:, None])
            begun[torch.arange(len(rows)), i] |= can.any(1)
            new = begun & ~x["called"][rows]
            x["money"][rows] += (x["cost"][rows] * new).sum(1)
            x["calls"][rows] = x["calls"][rows].scatter_add(1, x["worker"][rows].clamp(min=0), new.double())
            x["called"][rows] |= begun
            rows, i, soonest = rows[~over], i[~over], soonest[~over]
            fails = torch.rand(len(rows), generator=generator) < failure
            x["state"][rows, i] = torch.where(fails, Status.FAILED, Status.DONE)
            x["end"][rows, i] = soonest
            x["failed"][rows[fails]] = i[fails]
            rows = rows[~fails]
        d["status"], d["failed"] = x["state"].clone(), x["failed"].clone()
        d["error"] = (d["failed"] >= 0).long()
        return ended

    def check(self, d: Obs, rows: Tensor, bad: Counter[str], seen: Counter[str]) -> None:
        """Everything that is planned, and was paid, against the limits; and against what the draft says of it."""
        limits = self.limits
        x, d = ({name: value[rows] for name, value in y.items()} for y in (self.x, d))
        there = torch.arange(self.nodes) < x["length"][:, None]
        planned = there & (x["state"] == Status.PLANNED)
        pending = planned & ~x["called"]
        money = x["money"] + (x["cost"] * pending).sum(1)
        calls = x["calls"].scatter_add(1, x["worker"].clamp(min=0), pending.double())
        end, left = torch.where(planned, 0.0, x["end"]), there
        for _ in range(self.nodes):  # Kahn: remove nodes without a dependency left
            left = left & (d["links"] & left[:, None]).any(2)
            end = torch.where(planned, torch.maximum((end[:, None] * x["needs"]).amax(2), x["since"]) + x["time"], end)
        bad["cycle"] += int(left.any(1).sum())
        bad["order"] += int((d["links"] & ~(there[:, :, None] & there[:, None])).sum())
        bad["length"] += int((x["length"] > limits.max_nodes).sum())
        bad["cost"] += _beyond(money, limits.max_cost_usd)
        bad["time"] += _beyond(end.amax(1), limits.max_time_ms)
        bad["quota"] += int((calls > x["quota"]).any(1).sum())
        bad["attempts"] += int((x["tries"] > limits.max_attempts).any(1).sum())
        bad["corrections"] += int((x["corrections"] > limits.max_corrections).sum())
        bad["replans"] += int((x["replans"] > limits.max_replans).sum())
        seen["at the edge of their money"] += _at_edge(money, limits.max_cost_usd)
        seen["at the edge of their time"] += _at_edge(end.amax(1), limits.max_time_ms)
        seen["with a repair in them"] += int(x["needs"].triu().any(2).any(1).sum())
        whole = {"types": "type", "workers": "worker", "links": "needs", "status": "state", "attempts": "tries"}
        whole |= {name: name for name in ("length", "failed", "corrections", "replans")}
        differs = sum((d[a] != x[b]).flatten(1).any(1) if d[a].dim() > 1 else d[a] != x[b] for a, b in whole.items())
        differs += (d["calls"] != x["quota"] - calls).any(1)
        for a, b in ((d["spent"], money), (d["clock"], x["clock"]), (d["finish"].amax(1), end.amax(1))):
            differs += ~torch.isclose(a.double(), b, rtol=1e-9, atol=1e-9)
        differs += ~torch.isclose(d["finish"].double(), end, rtol=1e-9, atol=1e-9).all(1)
        assert isinstance(differs, Tensor)
        bad["draft is not the ledger"] += int((differs > 0).sum())


def any_catalogue(rng: random.Random) -> tuple[Catalogue, Limits]:
    """One that has something to do: of 1 to 8 types, 0 to 8 workers, prices in round tenths or any."""
    names = [f"type {i}" for i in range(rng.randint(1, 8))]
    is_round = rng.random() < 0.5

    def amount(most: float) -> float:
        return rng.randrange(int(most * 10) + 1) / 10 if is_round else rng.uniform(0, most)

    def worker(i: int) -> Worker:
        return Worker(
            name=f"worker {i}",
            task_types=None if rng.random() < 0.4 else tuple(t for t in names if rng.random() < 0.6),
            usd_per_call=amount(1.0),
            latency_ms=amount(rng.choice([1.0, 30.0])),
            quota=None if rng.random() < 0.6 else rng.randrange(10),
            available=rng.random() < 0.85,
        )

    limits = Limits(
        max_nodes=rng.randint(1, 9),
        max_cost_usd=None if rng.random() < 0.3 else amount(rng.choice([2.0, 6.0])) + 0.1,
        max_time_ms=None if rng.random() < 0.3 else amount(rng.choice([3.0, 80.0])) + 0.1,
        max_attempts=rng.randint(1, 4),
        max_corrections=rng.randint(0, 10),
        max_replans=rng.randint(0, 3),
    )
    workers = tuple(worker(i) for i in range(rng.randint(0, 8)))
    made = Catalogue(task_types=tuple(TaskType(name=name) for name in names), workers=workers)

    def can_begin(w: Worker) -> bool:
        cheap = limits.max_cost_usd is None or w.usd_per_call <= limits.max_cost_usd
        quick = limits.max_time_ms is None or w.latency_ms <= limits.max_time_ms
        return cheap and quick and any(made.able(w, name) for name in names)

    return (made, limits) if not workers or any(map(can_begin, workers)) else any_catalogue(rng)


def _beyond(x: Tensor, limit: float | None) -> int:
    return 0 if limit is None else int((x > limit * WITHIN).sum())


def _at_edge(x: Tensor, limit: float | None) -> int:
    return 0 if limit is None else int(((x - limit).abs() <= 1e-9 * limit).sum())


if __name__ == "__main__":
    main()
