"""One workflow in plain Python compared with the same workflow in the rules' tensors: they must agree."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from etude.problems.base import Action, Obs
from etude.problems.workflow.experts import random_choice
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import UNLIMITED, Correction, Rules, Status
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.progress import Live, Progress, Step, to_draft
from tests.crew import DRAFT, READ, REVIEW, SEND, A, B, catalogue, entry

KNOWN = catalogue(
    entry("a", usd_per_call=0.1),
    entry("b", usd_per_call=0.03, latency_ms=400.0, quota=6),
    entry("c", task_types=("read", "send"), usd_per_call=0.01, latency_ms=2500.0, success_rate=0.9),
)
ROOMY = Limits(max_nodes=6, max_attempts=3, max_corrections=7, max_replans=2)
TIGHT = Limits(max_nodes=6, max_attempts=3, max_corrections=7, max_replans=2, max_cost_usd=0.6, max_time_ms=12_000.0)
SAME = ("types", "workers", "links", "status", "attempts", "cost", "duration", "finish", "length", "clock")
COUNTS = ("failed", "error", "corrections", "replans", "tried", "available", "price", "latency", "success")


class Walk:
    """Random legal choices and random failures, in the world's tensors and in a Progress."""

    def __init__(self, rules: Rules, seed: int) -> None:
        self.rules, self.random = rules, Random(seed)
        self.rng, self.choose = Generator().manual_seed(seed), random_choice(rules)
        self.draft = rules.begin(1)
        self.progress = Progress(instruction="x")
        self.calls: list[float | None] = [w.quota for w in rules.catalogue.workers]
        self.parallel = False  # something had begun, in the rules' eyes, when it was planned away

    @property
    def live(self) -> list[Live]:
        d = self.draft
        return [
            Live(float(d["price"][0, i]), float(d["latency"][0, i]), float(d["success"][0, i]), True, calls)
            for i, calls in enumerate(self.calls)
        ]

    def written(self) -> Obs:
        return to_draft(self.rules, self.progress, self.live)

    def run(self) -> None:
        self._plan()
        while self._execute():
            action = self.choose(self.draft, self.rng)
            self._amend(action)
            if Correction(int(action["correction"])) == Correction.ABORT:
                return
            if Correction(int(action["correction"])) == Correction.REPLAN:
                self._plan()

    def _plan(self) -> None:
        stopped = False
        while not stopped:
            self.compare()
            action = self.choose(self.draft, self.rng)
            now_ms = float(self.draft["clock"])
            kind, worker = int(action["type"]), int(action["worker"])
            if kind < self.rules.types:
                needs = [self.progress.steps[j] for j in action["links"][0].nonzero()[:, 0].tolist()]
                self.progress.add(kind, needs, worker, self.live[worker], now_ms)
            self.draft, ends = self.rules.grow(self.draft, action)
            stopped = bool(ends)
        self.compare()

    def _execute(self) -> bool:
        """Steps in their order, up to the first that fails, if any does."""
        d = self.draft = {name: value.clone() for name, value in self.draft.items()}
        while ready := self.progress.ready():
            step = min(ready, key=self.progress.steps.index)
            place = self.progress.steps.index(step)
            step.ready_ms = float(d["finish"][0, place] - d["duration"][0, place])
            self.progress.spent_usd += step.cost_usd
            calls = self.calls[step.worker]
            self.calls[step.worker] = None if calls is None else calls - 1
            if self.random.random() < 0.4:
                error = self.random.choice([one for one in ErrorCategory if one])
                step.status = Status.FAILED
                self.progress.fail(step, error, unable=error == ErrorCategory.CAPABILITY)
                d["status"][0, place], d["failed"][0], d["error"][0] = Status.FAILED, place, error
                d["tried"][0] = torch.tensor([i in self.progress.tried for i in range(self.rules.workers)])
                self.compare()
                return True
            step.status = Status.DONE
            d["status"][0, place] = Status.DONE
        self.compare()
        return False

    def _amend(self, action: Action) -> None:
        d, correction = self.draft, Correction(int(action["correction"]))
        now_ms = max(float(d["finish"][0, d["failed"]]), float(d["clock"]))
        if correction == Correction.REPLAN:
            start = d["finish"] - d["duration"]
            self.parallel |= bool(((d["status"] == Status.PLANNED) & (d["types"] >= 0) & (start < now_ms)).any())
        self.draft, _ = self.rules.amend(d, action)
        kind, worker = int(action["type"]), int(action["worker"])
        self.progress.amend(correction, self.live, now_ms=now_ms, task_type=kind, worker=worker)
        self.compare()

    def compare(self) -> None:
        wanted, found = self.draft, self.written()
        assert set(found) == {*wanted, "instruction"}
        there = torch.arange(self.rules.nodes) < wanted["length"][:, None]
        for name in (*SAME, *COUNTS):
            a, b = wanted[name], found[name]
            assert a.dtype == b.dtype, name
            if a.shape[1:2] == there.shape[1:2] and a.dim() == 2:
                a, b = a[there], b[there]
            torch.testing.assert_close(b, a, msg=lambda text, name=name: f"{name}: {text}")
        if not self.parallel:  # the rules keep what had begun; an execution waits for it, and pays what it was
            torch.testing.assert_close(found["spent"], wanted["spent"])
            torch.testing.assert_close(found["calls"], wanted["calls"])
            self.compare_masks(wanted, found)

    def compare_masks(self, wanted: Obs, found: Obs) -> None:
        assert torch.equal(self.rules.corrections(found), self.rules.corrections(wanted))
        for correction in Correction:
            chosen = torch.tensor([int(correction)])
            assert torch.equal(self.rules.task_types(found, chosen), self.rules.task_types(wanted, chosen))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.sampled_from([ROOMY, TIGHT]))
def test_a_workflow_in_python_is_the_same_in_tensors(seed: int, limits: Limits) -> None:
    Walk(Rules(KNOWN, limits), seed).run()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), cost_ratios=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=30))
def test_whatever_it_really_cost_no_choice_breaks_a_limit(seed: int, cost_ratios: list[float]) -> None:
    """What is given out fits into what is left, as far as anybody knows."""
    rules, random, rng = Rules(KNOWN, TIGHT), Random(seed), Generator().manual_seed(seed)
    choose, progress, calls = random_choice(rules), Progress(instruction="x"), [w.quota for w in KNOWN.workers]
    now_ms = 0.0

    def live() -> list[Live]:
        return [Live(w.cost_usd(), w.latency_ms, 0.5, True, left) for w, left in zip(KNOWN.workers, calls, strict=True)]

    def fits(*, given: bool) -> Obs:
        draft = to_draft(rules, progress, live(), now_ms=now_ms)
        steps = progress.steps
        assert len(steps) <= TIGHT.max_nodes
        assert progress.corrections <= TIGHT.max_corrections
        assert progress.replans <= TIGHT.max_replans
        assert all(step.attempts <= TIGHT.max_attempts for step in [*steps, *progress.dropped])
        assert not given or progress.spent_usd + progress.reserved_usd <= 0.6 * (1 + 1e-9)
        assert not given or float(draft["calls"].min()) >= 0
        return draft

    def plan() -> None:
        while True:
            action = choose(fits(given=False), rng)
            if int(action["type"]) == rules.types:
                return
            needs = [progress.steps[j] for j in action["links"][0].nonzero()[:, 0].tolist()]
            worker = int(action["worker"])
            step = progress.add(int(action["type"]), needs, worker, live()[worker], now_ms)
            draft = fits(given=True)
            assert float(draft["finish"][0, progress.steps.index(step)]) <= 12_000.0 * (1 + 1e-9)

    plan()
    for share in cost_ratios * 2:
        ready = progress.ready()
        if not ready:
            break
        step = random.choice(ready)
        step.ready_ms, step.cost_usd, step.latency_ms = now_ms, step.cost_usd * share, step.latency_ms * share
        now_ms += step.latency_ms
        progress.spent_usd += step.cost_usd
        left = calls[step.worker]
        calls[step.worker] = None if left is None else left - 1
        step.status = Status.DONE if random.random() < 0.5 else Status.FAILED
        if step.status == Status.FAILED:
            progress.fail(step, ErrorCategory.CAPABILITY, unable=True)
            action = choose(fits(given=False), rng)
            correction = Correction(int(action["correction"]))
            progress.amend(
                correction, live(), now_ms=now_ms, task_type=int(action["type"]), worker=int(action["worker"])
            )
            if correction == Correction.ABORT:
                break
            fits(given=correction in (Correction.RETRY, Correction.SWITCH, Correction.REPAIR))
            if correction == Correction.REPLAN:
                plan()


RULES = Rules(KNOWN, ROOMY)
LIVE = (Live(0.1, 1000.0, 0.7, True, None), Live(0.03, 400.0, 0.5, False, 4), Live(0.01, 2500.0, 0.9, True, None))


def steps(*nodes: tuple[int, tuple[int, ...], int]) -> Progress:
    progress = Progress(instruction="x")
    for kind, needs, worker in nodes:
        progress.add(kind, [progress.steps[j] for j in needs], worker, LIVE[worker], 0.0)
    return progress


def test_what_is_ready_waits_for_nothing() -> None:
    progress = steps((READ, (), A), (DRAFT, (0,), A), (REVIEW, (), B), (SEND, (1, 2), A))
    read, draft, review, send = progress.steps

    def ready() -> list[Step]:
        return progress.ready()

    assert ready() == [read, review]
    review.begun = True
    assert ready() == [read]
    read.status = Status.FAILED  # to be corrected
    assert ready() == []
    read.status = Status.SKIPPED
    assert ready() == [draft]
    draft.status = review.status = Status.DONE
    assert ready() == [send]


def test_a_draft_tells_what_is_known_now() -> None:
    progress = steps((READ, (), A), (DRAFT, (0,), B), (SEND, (0,), B), (REVIEW, (1, 2), A))
    read, draft, *_ = progress.steps
    read.status, read.ready_ms, read.latency_ms, read.cost_usd, progress.spent_usd = Status.DONE, 50.0, 3000.0, 0.5, 0.5
    draft.begun, draft.ready_ms = True, 3050.0
    d = to_draft(RULES, progress, LIVE, now_ms=9000.0)
    assert d["finish"][0, :4].tolist() == [3050.0, 9000.0, 3450.0, 10_000.0]  # what is late ends now, at the earliest
    assert float(d["spent"]) == pytest.approx(0.5 + 0.03 + 0.03 + 0.1)
    assert d["calls"][0].tolist() == [UNLIMITED - 1, 3.0, UNLIMITED]  # what is under way is counted already
    assert d["available"][0].tolist() == [True, False, True]
    assert d["price"][0].tolist() == [0.1, 0.03, 0.01]
    assert d["success"][0].tolist() == [0.7, 0.5, 0.9]
    assert d["latency"][0].tolist() == [1000.0, 400.0, 2500.0]
    assert d["links"][0].nonzero().tolist() == [[1, 0], [2, 0], [3, 1], [3, 2]]


def test_who_is_unable_is_remembered_by_task_type() -> None:
    progress = steps((READ, (), A), (READ, (), B), (SEND, (), A))
    first, second, third = progress.steps
    progress.fail(first, ErrorCategory.CAPABILITY, unable=True)
    assert progress.tried == {A}
    progress.fail(second, ErrorCategory.TRANSIENT, unable=False)
    assert progress.tried == {A}
    progress.fail(third, ErrorCategory.TRANSIENT, unable=False)
    assert progress.tried == set()
    progress.fail(second, ErrorCategory.CAPABILITY, unable=True)
    assert progress.tried == {A, B}


def test_an_abort_changes_nothing() -> None:
    progress = steps((READ, (), A))
    progress.steps[0].status = Status.FAILED
    progress.fail(progress.steps[0], ErrorCategory.TRANSIENT, unable=False)
    progress.amend(Correction.ABORT, LIVE, now_ms=5.0)
    assert (progress.corrections, progress.failed, progress.steps[0].attempts) == (0, None, 1)


def test_a_replan_cuts_what_is_done_loose_from_what_is_not() -> None:
    progress = steps((READ, (), A), (DRAFT, (), A), (SEND, (0, 1), A), (REVIEW, (2,), A))
    read, draft, send, review = progress.steps
    read.status, draft.status, send.status = Status.SKIPPED, Status.DONE, Status.DONE
    review.status = Status.FAILED
    progress.fail(review, ErrorCategory.TRANSIENT, unable=False)
    progress.amend(Correction.REPLAN, LIVE, now_ms=700.0)
    assert (progress.steps, progress.dropped) == ([draft, send], [read, review])
    assert send.dependencies == [draft]
    assert (progress.clock_ms, progress.replans, progress.corrections) == (700.0, 1, 1)
