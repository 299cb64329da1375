"""The workflows of `loop_cycles.py`: executions in the simulated office, in virtual time, by the planner that serves.

The first planner imitates a log: plans of which 20 % are wrong, workers by reputation (`office_logs.py`). Workers of
the office change: prices, skills, and each week one is replaced by another one with its own name and skills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from copy import copy
from datetime import datetime, timedelta
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from loop_choice import add_success_reward
from office_logs import Bench, flawed, settings
from workflow_loop import FEW

import etude
from etude.bootstrap.clock import set_clock
from etude.bootstrap.experience import collector
from etude.bootstrap.release import served_policy, settings_here
from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.trajectory import Trajectory
from etude.loop.coordinator import Coordinator
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.log import ExecutionLog
from etude.orchestrator.prepare import prepare, write_prepared
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers.simulated import SimulatedCrew
from etude.orchestrator.workplace import instructions_for
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.artefact import load
from etude.problems.workflow.decide import WorkflowDecider
from etude.problems.workflow.experts import RulePlanner, by_reputation, retry_then_switch
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.office.office import Office, knowing
from etude.release.registry import Registry

SLOT = "workflow"
EXPLORE = 0.1
FIRST = 1000
"""Executions that the first planner imitates."""
WAVE = 125
"""Workflows that begin at the same time."""
MEASURED = 300
"""Held-out instructions that each policy carries out, under the same conditions."""
PRICES, SKILLS = 0.15, 0.8
"""Standard deviations per cycle of the logarithm of prices, and of the logit of skills of the workers that change."""


class Publisher:
    """A log that publishes executions as trajectories, at the time of the simulated clock."""

    def __init__(self, clock: Any, seconds: float) -> None:
        self.clock, self.seconds, self.collector = clock, seconds, collector()

    def append(self, trajectory: Trajectory) -> None:
        self.collector.publish(msgspec.structs.replace(trajectory, time=self.clock()))
        self.clock.advance(self.seconds)


class _Clock:
    """The simulated time of a process that serves."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Together:
    """Asks a policy about all workflows that begin at the same time in one call, as a server does."""

    def __init__(self, decider: Any) -> None:
        self._policy, self.problem, self.version = decider, decider.problem, decider.version
        self.catalogue, self.limits = decider.catalogue, decider.limits
        self._waiting: list[tuple[DecisionRequest, asyncio.Future[Decision]]] = []

    def decide(self, request: DecisionRequest) -> Decision:
        decision: Decision = self._policy.decide(request)
        return decision

    async def adecide(self, request: DecisionRequest) -> Decision:
        if request.state is not None:
            return self.decide(request)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Decision] = loop.create_future()
        self._waiting.append((request, future))
        if len(self._waiting) == 1:
            loop.call_later(1e-6, self._decide)  # when no other workflow begins at this time
        return await future

    def _decide(self) -> None:
        waiting, self._waiting = self._waiting, []
        for (_, future), answer in zip(waiting, self._policy.decide_many([one for one, _ in waiting]), strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def check(self) -> None:
        """It waits for no service."""

    async def close(self) -> None:
        """It holds nothing."""


class WorkflowWorld:
    slot, per_day, batch, start = SLOT, 6000, 500, "behaviour policy"

    def __init__(self, seed: int, *, processes: int = 1) -> None:
        """Traffic is served by this many processes."""
        torch.set_num_threads(1)
        self.processes = processes
        self.seed, self.chosen = seed, settings(seed)
        self.bench = Bench(seed=seed, policy="flawed", chosen=self.chosen)
        assert self.bench.place.config is not None
        self.limits, self.count = self.bench.place.config.limits, 0
        self.held_out = self.bench.place.config.held_out
        self.drift(-1)

    def budget(self) -> None:
        """Plans have no budget of a mean."""

    def settings(self) -> dict[str, Any]:
        return {
            "experience": {"reward_version": 4, "explore": EXPLORE},
            "loop": {"threshold": 4000},
            # The first planner imitates, it has no logs. Logs of some thousand executions tell a planner from one that
            # is worse by a tenth; the canary proves that it is not worse by the margin.
            "release": {"gates": {"first_needs_evidence": False, "margin": 0.1, "latency_calls": 100}},
            "run": {"threads": 1, "device": "cpu"},
        }

    def drift(self, cycle: int) -> str:
        """The office after all drifts up to this cycle, which depends on the seed alone."""
        self.cycle, rng = cycle, np.random.default_rng([self.seed, 2])
        base = self.bench.office
        catalogue = base.catalogue
        skill = np.array(base.skill)[: len(catalogue.task_types), : len(catalogue.workers)]
        price, said = np.ones(len(catalogue.workers)), ""
        for number in range(cycle + 1):
            price *= np.exp(rng.normal(0, PRICES, len(price)))
            changed = rng.choice(len(price) - 1, 2, replace=False)  # the person stays
            for worker in changed:
                moved = 1 / (1 + np.exp(-(_logit(skill[:, worker]) + rng.normal(-0.3, SKILLS))))
                skill[:, worker] = np.where(skill[:, worker] > 0, moved, 0)
            gone = int(rng.integers(len(price) - 1))
            fresh = np.clip(skill[:, gone] + rng.normal(0, 0.15, len(skill)), 0.05, 0.98)
            skill[:, gone] = np.where(skill[:, gone] > 0, fresh, 0)
            old = catalogue.workers[gone]
            name = f"{old.name.partition(' ')[0]} {number + 2}"
            catalogue = _replaced(catalogue, gone, name)
            said = f"{old.name} is replaced by {name}; skills of " + ", ".join(
                catalogue.workers[i].name for i in changed
            )
        priced = [
            msgspec.structs.replace(
                w,
                usd_per_call=w.usd_per_call * factor,
                usd_per_mtok_in=w.usd_per_mtok_in * factor,
                usd_per_mtok_out=w.usd_per_mtok_out * factor,
            )
            for w, factor in zip(catalogue.workers, price.tolist(), strict=True)
        ]
        office = copy(base)
        office.catalogue = Catalogue(task_types=catalogue.task_types, workers=tuple(priced))
        office.skill, office.exists = skill.tolist(), [True] * len(priced)
        office.rules = Rules(office.catalogue, self.limits)
        self.office: Office = office
        self._serving: tuple[Any, SimulatedCrew] | None = None
        return said

    def first(self, loop: Coordinator, clock: Any) -> str:
        add_success_reward()
        data, run, place = Path("first.json"), Path("first"), self.bench.place
        if not data.exists():
            with ExecutionLog(Path("logs"), place.crew.catalogue, redact=None) as log:
                behaviour = Orchestrator(self.bench.explorer, place.crew, log=log, seed=self.seed)
                run_virtually(behaviour.execute_all(instructions_for(place, FIRST)))
            write_prepared(prepare(Path("logs"), max_nodes=self.limits.max_nodes), data)
        etude.train("workflow", out=run, preset="office", settings=self.chosen | FEW, data=data)
        return str(run)

    def serve(self, number: int, clock: Any) -> list[dict[str, float]]:
        """By all processes: each takes every n-th task, at its time."""
        texts, seconds, n = (
            self.office.scenarios.instructions[: -2 * self.held_out],
            86400 / self.per_day,
            self.processes,
        )
        chosen = [texts[(self.count + i) % len(texts)] for i in range(number)]
        for i, server in enumerate(self._servers):
            start = clock() + timedelta(seconds=i * seconds)
            server.send((self.cycle, chosen[i::n], start, n * seconds, self.count + i * number))
        self.count += number
        clock.advance(number * seconds)
        return [found for server in self._servers for found in server.recv()]

    @cached_property
    def _servers(self) -> list[Connection]:
        context, found = get_context("spawn"), []
        for _ in range(self.processes):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(self.seed, theirs), daemon=True).start()
            found.append(ours)
        return found

    def carry_out(self, texts: Sequence[str], clock: Any, seconds: float, first: int) -> list[dict[str, float]]:
        """In this process, by what serves."""
        if self._serving is None:
            served = served_policy(SLOT, settings_here(Path("etude.yaml")))
            decider = served.decider(catalogue=self.office.catalogue, limits=self.limits, explore=EXPLORE)
            self._serving = decider, SimulatedCrew(self.office, seed=first)
        decider, crew = self._serving
        orchestrator = Orchestrator(
            Together(decider), crew, log=Publisher(clock, seconds), seed=10**6 * self.seed + first
        )

        async def wave(start: int) -> list[dict[str, float]]:
            """Workflows that begin at the same time."""
            tasks = enumerate(texts[start : start + WAVE], start)
            async with aclosing(orchestrator.stream(tasks, concurrency=WAVE)) as results:
                return [_measured(result.trajectory) async for result in results]

        return [found for start in range(0, len(texts), WAVE) for found in run_virtually(wave(start))]

    def measure(self, registry: Registry, version: str) -> dict[str, float]:
        planner = load(registry.artefact(version))
        decider = planner.decider(catalogue=self.office.catalogue, limits=self.limits, explore=EXPLORE)
        return self._carry_out(decider)

    def _carry_out(self, decider: Any) -> dict[str, float]:
        """Means over held-out instructions; loads and outages depend on the instruction's number alone."""
        texts, found = self.office.scenarios.instructions[-self.held_out :], []
        for number, text in enumerate(texts[:MEASURED]):
            crew = SimulatedCrew(self.office, seed=MEASURED * self.seed + number)
            result = run_virtually(Orchestrator(decider, crew, seed=self.seed).execute(text, number=number))
            found.append(_measured(result.trajectory))
        return {name: float(np.mean([row[name] for row in found])) for name in found[0]}

    def baselines(self) -> dict[str, dict[str, float]]:
        """What made the first log: plans of which a fifth is wrong, workers by reputation."""
        office = self.office
        planner = RulePlanner(
            office.rules,
            flawed(office, self.seed),
            worker=by_reputation(office.rules),
            correction=retry_then_switch,
        )
        decider = WorkflowDecider(
            version="flawed", catalogue=office.catalogue, limits=self.limits, choosers=knowing(planner, office)
        )
        return {"behaviour policy": self._carry_out(decider)}


def _serve(seed: int, asked: Connection) -> None:
    """A process that serves: tasks in, outcomes out."""
    world, clock = WorkflowWorld(seed), _Clock()
    set_clock(clock)
    while True:
        cycle, texts, clock.now, seconds, first = asked.recv()
        if cycle != world.cycle:
            world.drift(cycle)
        asked.send(world.carry_out(texts, clock, seconds, first))


def _logit(p: np.ndarray) -> np.ndarray:
    clipped = np.clip(p, 0.01, 0.99)
    return np.asarray(np.log(clipped / (1 - clipped)))


def _replaced(catalogue: Catalogue, place: int, name: str) -> Catalogue:
    workers = list(catalogue.workers)
    old = workers[place]
    about = f"{old.description} Another supplier: {name}."
    workers[place] = msgspec.structs.replace(old, name=name, description=about)
    return Catalogue(task_types=catalogue.task_types, workers=tuple(workers))


def _measured(trajectory: Trajectory) -> dict[str, float]:
    outcome = trajectory.outcome
    return {
        "success": float(bool(outcome.success)),
        "cost_usd": outcome.cost_usd or 0.0,
        "latency_ms": outcome.latency_ms or 0.0,
        "attempts": float(len(trajectory.turns)),
    }


__all__: Sequence[str] = ("WorkflowWorld",)
