"""Whatever the catalogue, the limits and the scores: drafts are those of a plain twin in exact fractions, mask by mask.

The twin is written from the rules' words: nodes are objects, times come from a recursion, money from a ledger. Prices,
latencies and limits are tenths, which no float holds exactly, so budgets are met to their edge all the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.distributions import masked, sample_categorical, uniform_like
from etude.problems.workflow.grammar import UNLIMITED, Correction, Rules, Status
from etude.problems.workflow.plan import Limits

ROWS = 5
HOSTILE = ("normal", "nan", "inf", "-inf", "huge", "equal", "mixed")
LAW = settings(deadline=None, derandomize=True, max_examples=40)


@dataclass(eq=False)
class Task:
    type: int
    worker: int
    needs: list[Task]
    cost: Fraction
    duration: Fraction
    ready: Fraction
    paid: Fraction = Fraction(0)
    calls: list[int] = field(default_factory=list)
    attempts: int = 1
    status: Status = Status.PLANNED
    over_at: Fraction = Fraction(0)  # of one that is over

    @property
    def start(self) -> Fraction:
        return max([self.ready, *(need.finish for need in self.needs)])

    @property
    def finish(self) -> Fraction:
        return self.start + self.duration if self.status is Status.PLANNED else self.over_at


class Twin:
    """One workflow."""

    def __init__(self, catalogue: Catalogue, limits: Limits) -> None:
        self.limits, self.types, self.workers = limits, len(catalogue.task_types), catalogue.workers
        names = [t.name for t in catalogue.task_types]
        self.skill = {
            (t, w): worker.task_types is None or names[t] in worker.task_types
            for t, (w, worker) in product(range(self.types), enumerate(self.workers))
        }
        self.price = [exact(w.usd_per_call) for w in self.workers]
        self.latency = [exact(w.latency_ms) for w in self.workers]
        self.available = [w.available for w in self.workers]
        self.offered = [True] * self.types
        self.nodes: list[Task] = []
        self.sunk, self.used = Fraction(0), [0] * len(self.workers)  # of nodes that are forgotten
        self.clock, self.failed = Fraction(0), -1
        self.corrections = self.replans = self.decisions = 0

    @property
    def spent(self) -> Fraction:
        return self.sunk + sum((node.paid for node in self.nodes), Fraction(0))

    def calls_left(self, w: int) -> float:
        quota = self.workers[w].quota
        given = self.used[w] + sum(node.calls.count(w) for node in self.nodes)
        return (UNLIMITED if quota is None else quota) - given

    @property
    def now(self) -> Fraction:
        return max(self.nodes[self.failed].finish, self.clock)

    def in_budget(self, *calls: int, end: Fraction) -> bool:
        """Whether these calls can be paid, and all ends in time."""
        money, time = self.limits.max_cost_usd, self.limits.max_time_ms
        cheap = money is None or self.spent + sum(self.price[w] for w in calls) <= exact(money)
        quota = all(calls.count(w) <= self.calls_left(w) for w in calls)
        return cheap and quota and (time is None or end <= exact(time))

    def able(self, t: int, w: int) -> bool:
        return self.offered[t] and self.available[w] and self.skill[t, w]

    def end_with(self, *calls: int) -> Fraction:
        """All that is planned waits for further attempts at the failed node."""
        late = self.now - self.nodes[self.failed].finish + sum(self.latency[w] for w in calls)
        return max(node.finish for node in self.nodes) + late

    def legal_corrections(self) -> list[bool]:
        if self.failed < 0 or self.corrections >= self.limits.max_corrections:
            return [False] * 5 + [True]
        node, everyone = self.nodes[self.failed], range(len(self.workers))
        tries = node.attempts < self.limits.max_attempts
        able = [w for w in everyone if self.able(node.type, w) and self.in_budget(w, end=self.end_with(w))]
        retry = tries and node.worker in able
        switch = tries and any(w != node.worker for w in able)
        repair = tries and any(self.legal_repair(t, w) for t in range(self.types) for w in everyone)
        fresh = Twin.__new__(Twin)
        fresh.__dict__ |= self.__dict__ | {"nodes": list(self.nodes), "used": list(self.used)}
        fresh.replan()
        replan = self.replans < self.limits.max_replans and any(fresh.legal_types(Correction.ABORT)[:-1])
        return [retry, switch, repair, replan, True, True]

    def legal_repair(self, t: int, w: int) -> bool:
        node = self.nodes[self.failed]
        room = len(self.nodes) < self.limits.max_nodes
        able = self.able(t, w) and self.able(node.type, node.worker)
        return room and able and self.in_budget(w, node.worker, end=self.end_with(w, node.worker))

    def legal_node(self, t: int, w: int, needs: list[Task]) -> bool:
        start = max([self.clock, *(need.finish for need in needs)])
        return self.able(t, w) and self.in_budget(w, end=start + self.latency[w])

    def legal_types(self, correction: int) -> list[bool]:
        everyone = range(len(self.workers))
        if self.failed >= 0:
            if correction != Correction.REPAIR:
                return [False] * self.types + [True]
            return [any(self.legal_repair(t, w) for w in everyone) for t in range(self.types)] + [False]
        room = len(self.nodes) < self.limits.max_nodes
        legal = [room and any(self.legal_node(t, w, []) for w in everyone) for t in range(self.types)]
        return [*legal, len(self.nodes) > 0 or not any(legal)]

    def legal_links(self, t: int) -> list[bool]:
        if self.failed >= 0 or t == self.types:
            return [False] * self.limits.max_nodes
        legal = [any(self.legal_node(t, w, [need]) for w in range(len(self.workers))) for need in self.nodes]
        return legal + [False] * (self.limits.max_nodes - len(legal))

    def legal_workers(self, correction: int, t: int, links: list[bool]) -> list[bool]:
        everyone = range(len(self.workers))
        if self.failed < 0 and t < self.types:
            needs = [node for node, linked in zip(self.nodes, links, strict=False) if linked]
            return [self.legal_node(t, w, needs) for w in everyone]
        if self.failed >= 0 and correction == Correction.REPAIR:
            return [self.legal_repair(t, w) for w in everyone]
        if self.failed >= 0 and correction == Correction.SWITCH:
            node = self.nodes[self.failed]
            return [
                w != node.worker and self.able(node.type, w) and self.in_budget(w, end=self.end_with(w))
                for w in everyone
            ]
        return [w == 0 for w in everyone]

    def decide(self, correction: int, t: int, links: list[bool], w: int) -> bool:
        """Whether planning or the workflow is over."""
        self.decisions += 1
        if self.failed < 0:
            if t < self.types:
                self.add(t, w, [node for node, linked in zip(self.nodes, links, strict=False) if linked], self.clock)
            return t == self.types
        node, now = self.nodes[self.failed], self.now
        self.corrections += correction != Correction.ABORT
        if correction == Correction.REPLAN:
            self.replan()
        elif correction == Correction.SKIP:
            node.status = Status.SKIPPED
        elif correction != Correction.ABORT:
            if correction == Correction.REPAIR:
                self.add(t, w, list(node.needs), now)
                node.needs.append(self.nodes[-1])
            self.attempt(node, w if correction == Correction.SWITCH else node.worker, now)
            node.attempts += 1
        self.failed = -1
        return correction == Correction.ABORT

    def add(self, t: int, w: int, needs: list[Task], ready: Fraction) -> None:
        node = Task(type=t, worker=w, needs=needs, cost=self.price[w], duration=self.latency[w], ready=ready)
        self.attempt(node, w, ready)
        self.nodes.append(node)

    def attempt(self, node: Task, w: int, ready: Fraction) -> None:
        node.worker, node.cost, node.duration, node.ready = w, self.price[w], self.latency[w], ready
        node.paid += self.price[w]
        node.calls = [*node.calls, w]
        node.status = Status.PLANNED

    def replan(self) -> None:
        now, dropped = self.now, [node for node in self.nodes if node.status is not Status.DONE]
        for node in dropped:
            is_idle = node.status is Status.PLANNED and node.start >= now
            self.sunk += node.paid - (node.cost if is_idle else 0)
            for w in node.calls[:-1] if is_idle else node.calls:
                self.used[w] += 1
        self.nodes = [node for node in self.nodes if node not in dropped]
        self.clock, self.failed, self.replans = now, -1, self.replans + 1

    def run(self, rng: random.Random, share: float) -> bool:
        """Carry on until a node fails or all is over, and whether it is."""
        while waiting := [node for node in self.nodes if node.status is Status.PLANNED]:
            can_start = [x for x in waiting if not any(need.status is Status.PLANNED for need in x.needs)]
            node = min(can_start, key=lambda node: node.finish)
            node.over_at = node.finish
            if rng.random() < share:
                node.status, self.failed = Status.FAILED, self.nodes.index(node)
                return False
            node.status = Status.DONE
        return True

    def within_limits(self) -> bool:
        """Of what all that is planned really comes to."""
        money, time, limits = self.limits.max_cost_usd, self.limits.max_time_ms, self.limits
        return (
            len(self.nodes) <= limits.max_nodes
            and (money is None or self.spent <= exact(money))
            and (time is None or max([Fraction(0), *(node.finish for node in self.nodes)]) <= exact(time))
            and all(self.calls_left(w) >= 0 for w in range(len(self.workers)))
            and all(node.attempts <= limits.max_attempts for node in self.nodes)
            and self.corrections <= limits.max_corrections
            and self.replans <= limits.max_replans
        )


def exact(tenths: float) -> Fraction:
    return Fraction(round(tenths * 10), 10)


def tenths(low: int, high: int) -> st.SearchStrategy[float]:
    return st.sampled_from(range(low, high)).map(lambda k: k / 10)


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    names = [f"t{i}" for i in range(draw(st.integers(1, 4)))]
    some = st.lists(st.sampled_from(names), min_size=1, unique=True).map(tuple)
    one = st.builds(
        Worker,
        name=st.uuids().map(str),
        task_types=st.none() | some,
        usd_per_call=tenths(0, 9),
        latency_ms=tenths(0, 9),
        quota=st.none() | st.sampled_from(range(12)),
        available=st.sampled_from([True, True, True, False]),
    )
    workers = draw(st.lists(one, min_size=1, max_size=4, unique_by=lambda worker: worker.name))
    return Catalogue(task_types=tuple(TaskType(name=name) for name in names), workers=tuple(workers))


limits_ = st.builds(
    Limits,
    max_nodes=st.sampled_from(range(1, 8)),
    max_cost_usd=st.none() | tenths(5, 50),
    max_time_ms=st.none() | tenths(5, 50),
    max_attempts=st.sampled_from(range(1, 5)),
    max_corrections=st.sampled_from(range(12)),
    max_replans=st.sampled_from(range(4)),
)


def scores(kind: str, shape: torch.Size, generator: Generator) -> Tensor:
    """What a network may give, broken ones included."""
    normal = torch.randn(shape, generator=generator)
    normal[..., -1] -= 2  # neither stop nor abort too soon
    extremes = torch.tensor([0.0, torch.nan, torch.inf, -torch.inf, 1e38, -1e38])
    picked = extremes[torch.randint(len(extremes), shape, generator=generator)]
    constant = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "equal": 3.0}
    if kind in constant:
        return torch.full(shape, constant[kind])
    return {"normal": normal, "huge": normal.sign() * 1e38, "mixed": picked}[kind]


def choose(rules: Rules, d: Obs, kind: str, generator: Generator) -> tuple[Action, list[Tensor]]:
    """An action sampled part by part as policies do, and the mask of each part."""

    def sample(legal: Tensor) -> Tensor:
        return sample_categorical(masked(scores(kind, legal.shape, generator), legal), generator)

    masks = [rules.corrections(d)]
    correction = sample(masks[0])
    masks.append(rules.task_types(d, correction))
    task_type = sample(masks[1])
    masks.append(rules.dependencies(d, task_type))
    p = masked(scores(kind, masks[2].shape, generator), masks[2]).sigmoid()
    links = uniform_like(p, generator) < p
    masks.append(rules.workers_for(d, correction, task_type, links))
    return {"correction": correction, "type": task_type, "links": links, "worker": sample(masks[3])}, masks


def expect_row(d: Obs, row: int, twin: Twin, rules: Rules) -> None:
    """Every tensor of this row says what the twin says."""
    length, nodes = len(twin.nodes), twin.nodes
    at = {node: i for i, node in enumerate(nodes)}
    whole: dict[str, list[int]] = {
        "types": [node.type for node in nodes] + [-1] * (rules.nodes - length),
        "workers": [node.worker for node in nodes] + [-1] * (rules.nodes - length),
        "status": [node.status for node in nodes] + [0] * (rules.nodes - length),
        "attempts": [node.attempts for node in nodes] + [0] * (rules.nodes - length),
    }
    for name, values in whole.items():
        assert d[name][row].tolist() == values, name
    for name in ("cost", "duration", "ready", "finish"):
        times = [float(getattr(node, name)) for node in nodes] + [0.0] * (rules.nodes - length)
        assert d[name][row].tolist() == pytest.approx(times, rel=1e-12, abs=1e-12), name
    linked = {(i, at[need]) for node, i in at.items() for need in node.needs if need in at}
    assert {tuple(pair) for pair in d["links"][row].nonzero().tolist()} == linked
    for name in ("failed", "corrections", "replans"):
        assert d[name][row].item() == getattr(twin, name), name
    assert d["length"][row].item() == length
    assert d["spent"][row].item() == pytest.approx(float(twin.spent), abs=1e-12)
    assert d["clock"][row].item() == pytest.approx(float(twin.clock), abs=1e-12)
    assert d["calls"][row].tolist() == [twin.calls_left(w) for w in range(rules.workers)]


def expect_masks(masks: list[Tensor], row: int, action: Action, twin: Twin) -> None:
    correction, t, w = (int(action[name][row]) for name in ("correction", "type", "worker"))
    links = action["links"][row].tolist()
    assert masks[0][row].tolist() == twin.legal_corrections()
    assert masks[1][row].tolist() == twin.legal_types(correction)
    assert masks[2][row].tolist() == twin.legal_links(t)
    assert masks[3][row].tolist() == twin.legal_workers(correction, t, links)
    for mask, chosen in zip((masks[0], masks[1], masks[3]), (correction, t, w), strict=True):
        assert mask[row, chosen]  # one was legal, and a legal one was chosen
    assert not (action["links"][row] & ~masks[2][row]).any()


def change(d: Obs, row: int, twin: Twin, rng: random.Random) -> None:
    """Something happens in the catalogue between two decisions."""
    w, t = rng.randrange(len(twin.workers)), rng.randrange(twin.types)
    twin.available[w] = rng.random() < 0.8
    twin.offered[t] = rng.random() < 0.8
    twin.price[w], twin.latency[w] = Fraction(rng.randrange(9), 10), Fraction(rng.randrange(9), 10)
    d["available"][row, w], d["offered"][row, t] = twin.available[w], twin.offered[t]
    d["price"][row, w], d["latency"][row, w] = float(twin.price[w]), float(twin.latency[w])


def carry_on(d: Obs, row: int, twin: Twin, rng: random.Random, share: float) -> bool:
    """Run the plan in the twin, write what happened into the draft, and say whether all is over."""
    is_over = twin.run(rng, share)
    for i, node in enumerate(twin.nodes):
        d["status"][row, i] = node.status
    d["failed"][row], d["error"][row] = twin.failed, 1
    return is_over


@LAW
@given(catalogues(), limits_, st.sampled_from(("normal", *HOSTILE)), st.integers(0, 2**32), st.sampled_from([0.3, 0.7]))
def test_drafts_are_those_of_the_twin(catalogue: Catalogue, limits: Limits, kind: str, seed: int, share: float) -> None:
    rules, rng, generator = Rules(catalogue, limits), random.Random(seed), Generator().manual_seed(seed)
    d, twins = rules.begin(ROWS), [Twin(catalogue, limits) for _ in range(ROWS)]
    longest = (limits.max_nodes + 1) * (limits.max_replans + 1) + limits.max_corrections + 1
    for _ in range(30):
        action, masks = choose(rules, d, kind, generator)
        expect_one(rules, d, rng.randrange(ROWS), action, masks)
        for row, twin in enumerate(twins):
            expect_masks(masks, row, action, twin)
        d, stopped = rules.grow(d, action)
        d, aborts = rules.amend(d, action)
        for row, twin in enumerate(twins):
            correction, t, w = (int(action[name][row]) for name in ("correction", "type", "worker"))
            was_failed = twin.failed >= 0
            ends = twin.decide(correction, t, action["links"][row].tolist(), w)
            assert ends == bool(stopped[row] | aborts[row])
            expect_row(d, row, twin, rules)
            assert twin.within_limits()
            assert twin.decisions <= longest
            runs = correction != Correction.REPLAN if was_failed else bool(stopped[row])
            if aborts[row] or (runs and carry_on(d, row, twin, rng, share)):
                twins[row] = Twin(catalogue, limits)
                for name, value in rules.begin(1).items():
                    d[name][row] = value[0]
            if row % 2:
                change(d, row, twins[row], rng)


def expect_one(rules: Rules, d: Obs, row: int, action: Action, masks: list[Tensor]) -> None:
    """A draft alone is masked as it is among others."""
    one, chosen = ({name: value[row : row + 1] for name, value in x.items()} for x in (d, action))
    assert torch.equal(rules.corrections(one), masks[0][row : row + 1])
    assert torch.equal(rules.task_types(one, chosen["correction"]), masks[1][row : row + 1])
    assert torch.equal(rules.dependencies(one, chosen["type"]), masks[2][row : row + 1])
    alone = rules.workers_for(one, chosen["correction"], chosen["type"], chosen["links"])
    assert torch.equal(alone, masks[3][row : row + 1])


@pytest.mark.parametrize("kind", HOSTILE)
def test_only_a_mask_says_never(kind: str) -> None:
    generator = Generator().manual_seed(0)
    legal = torch.rand((4000, 7), generator=generator) < 0.3
    legal[:, 3] |= ~legal.any(1)
    given = scores(kind, legal.shape, generator)
    kept = masked(given, legal)
    assert torch.equal(kept.isfinite(), legal)
    assert (kept[~legal] == -torch.inf).all()
    plain = legal & (given.abs() <= 1e4)
    assert torch.equal(kept[plain], given[plain])
    for choice in (sample_categorical(kept, generator), kept.argmax(1)):
        assert legal.gather(1, choice[:, None]).all()
    assert (kept.log_softmax(1).exp().sum(1) - 1).abs().max() < 1e-5
    assert (kept.sigmoid()[~legal] == 0).all()


def test_a_masked_score_that_is_no_number_counts_as_none() -> None:
    legal = torch.tensor([True, True, True, True, False])
    kept = masked(torch.tensor([torch.nan, torch.inf, -1e38, 2.5, 7.0]), legal)
    assert kept.tolist() == [0.0, 1e4, -1e4, 2.5, -torch.inf]
