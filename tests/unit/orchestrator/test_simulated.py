"""The executor on simulated workers compared with the tensor world: the same policy does as well in both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from etude.contracts.work import Fault, Input, Subtask, WorkerError
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.record import Execution, correction_of
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers.simulated import SimulatedCrew
from etude.problems.workflow.decide import Choosers, WorkflowDecider, at_random, by_rules
from etude.problems.workflow.experts import KeywordReader, baselines, read_all
from etude.problems.workflow.office.office import Office
from etude.problems.workflow.office.scenarios import Scenarios
from etude.problems.workflow.office.world import Tables, WorkflowConfig, WorkflowWorld

CONFIG = WorkflowConfig(scenarios=300)
EPISODES = 4000
Sample = dict[str, NDArray[np.float64]]


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables(CONFIG, None, "cpu")


@pytest.fixture(scope="module")
def office(tables: Tables) -> Office:
    return Office(tables)


def in_the_world(scenarios: Scenarios, policy: str) -> Sample:
    """The metrics of EPISODES workflows in the tensor world."""
    world = WorkflowWorld(CONFIG, n=EPISODES, scenarios=scenarios)
    actor = baselines(CONFIG, scenarios=scenarios)[policy]
    rng, waiting = torch.Generator().manual_seed(12), torch.ones(EPISODES, dtype=torch.bool)
    obs, found = world.reset(11), dict[str, torch.Tensor]()
    with torch.inference_mode():
        while waiting.any():
            step = world.step(actor(obs, rng))
            obs, first = step.obs, waiting & step.terminated
            for name, value in step.metrics.items():
                found.setdefault(name, torch.zeros_like(value))[first] = value[first]
            waiting &= ~first
    return {name: value.double().numpy() for name, value in found.items()}


def carried_out(tables: Tables, choosers: Choosers, instructions: Sequence[str], *, seed: int = 3) -> list[Execution]:
    crew = SimulatedCrew(Office(tables), seed=seed)
    decider = WorkflowDecider(version="x", catalogue=crew.catalogue, limits=CONFIG.limits, choosers=choosers)
    results = run_virtually(Orchestrator(decider, crew, seed=seed).execute_all(instructions, concurrency=1))
    assert crew.days == {}
    assert all(result.execution.violations == () for result in results)
    return [result.execution for result in results]


def measured(executions: Sequence[Execution]) -> Sample:
    corrections = [
        sum(correction_of(d) not in (None, "abort") for d in execution.decisions) for execution in executions
    ]
    return {
        "success": np.array([float(execution.success) for execution in executions]),
        "cost_usd": np.array([execution.cost for execution in executions]),
        "latency_ms": np.array([execution.latency_ms for execution in executions]),
        "corrections": np.array(corrections, dtype=np.float64),
    }


def errors_between(world: Sample, executor: Sample, name: str) -> float:
    """By how many standard errors of their difference the executor's mean is above the world's."""
    a, b = world[name], executor[name]
    error = (a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)) ** 0.5
    return float((b.mean() - a.mean()) / error)


def those(scenarios: Scenarios, rows: list[int]) -> Scenarios:
    return replace(
        scenarios,
        instructions=tuple(scenarios.instructions[row] for row in rows),
        types=scenarios.types[rows],
        links=scenarios.links[rows],
        length=scenarios.length[rows],
    )


def test_the_executor_agrees_with_the_world(tables: Tables) -> None:
    """In a chain nothing runs in parallel, and all is alike; elsewhere what runs next to a failure is paid."""
    scenarios = tables.scenarios
    read = read_all(scenarios)
    chains = [
        row for row in range(len(scenarios)) if all(read.links[row, i, i - 1] for i in range(1, int(read.length[row])))
    ]
    others = sorted(set(range(len(scenarios))) - set(chains))
    assert min(len(chains), len(others)) > 80
    asked = [scenarios.instructions[row] for row in chains * 5]
    alone = measured(carried_out(tables, by_rules(), asked[:320]))
    world = in_the_world(those(scenarios, chains), "rules")
    for name in ("success", "cost_usd", "latency_ms", "corrections"):
        assert abs(errors_between(world, alone, name)) < 3, name

    parallel = measured(carried_out(tables, by_rules(), [scenarios.instructions[row] for row in others]))
    world = in_the_world(those(scenarios, others), "rules")
    for name in ("success", "corrections"):
        assert abs(errors_between(world, parallel, name)) < 3, name
    assert errors_between(world, parallel, "cost_usd") > -3
    assert errors_between(world, parallel, "latency_ms") < 3


def test_it_agrees_about_random_choices(tables: Tables) -> None:
    executor = measured(carried_out(tables, at_random, tables.scenarios.instructions[:70]))
    world = in_the_world(tables.scenarios, "random")
    for name in ("success", "corrections"):
        assert abs(errors_between(world, executor, name)) < 3, name
    assert errors_between(world, executor, "cost_usd") > -3


def test_the_expert_reads_the_same_in_both(tables: Tables, office: Office) -> None:
    read, reader = read_all(tables.scenarios), KeywordReader(office.catalogue, without=set())
    for row, text in enumerate(tables.scenarios.instructions):
        types, needs = reader.read(text)
        assert types == read.types[row][read.types[row] >= 0].tolist()
        assert needs == [read.links[row, i].nonzero()[:, 0].tolist() for i in range(len(types))]


def test_the_same_seed_gives_the_same_executions(tables: Tables) -> None:
    def summary(seed: int) -> list[tuple[object, ...]]:
        found = carried_out(tables, at_random, tables.scenarios.instructions[:6], seed=seed)
        return [(e.nodes, e.cost, e.latency_ms, e.decisions) for e in found]

    assert summary(5) == summary(5)
    assert summary(5) != summary(6)


def test_a_worker_answers_after_its_time_or_says_what_is_wrong(office: Office) -> None:
    crew = SimulatedCrew(office, seed=1)
    text = office.scenarios.instructions[0]
    crew.begin("w", text)
    day = crew.days["w"]
    names = [t.name for t in office.catalogue.task_types]
    wanted = next(kind for kind, needs in day.needs.items() if not needs)
    able = next(i for i, can in enumerate(office.rules.capable[wanted].tolist()) if can)
    usd = office.catalogue.workers[able].cost_usd()

    def subtask(kind: int, *given: int) -> Subtask:
        inputs = tuple(Input(task_type=names[one], output="") for one in given)
        return Subtask(workflow="w", node=0, attempt=1, instruction=text, task_type=names[kind], inputs=inputs)

    async def ask(one: Subtask) -> tuple[object, float | None, float]:
        worker = crew.members[able].worker
        try:
            reply = await worker.do(one)
            answer: tuple[object, float | None] = (reply.output, reply.cost_usd)
        except WorkerError as error:
            answer = (error.fault, error.cost_usd)
        return *answer, asyncio.get_running_loop().time()

    answers = []
    for _ in range(60):
        day.beyond.clear()
        answer, cost_usd, took_s = run_virtually(ask(subtask(wanted)))
        assert (cost_usd, took_s) == (usd, pytest.approx(office.latency_ms(day, able) / 1000))
        answers.append(answer)
    assert f"{names[wanted]} by {office.catalogue.workers[able].name}" in answers
    unwanted = next(kind for kind in range(len(names)) if kind not in day.needs)
    assert run_virtually(ask(subtask(unwanted)))[:2] == (Fault.NOT_APPLICABLE, usd)
    needy = next((kind for kind, needs in day.needs.items() if needs), None)
    if needy is not None:
        assert run_virtually(ask(subtask(needy)))[0] == Fault.WRONG_INPUT
    crew.end("w")
    assert crew.days == {}


def test_success_is_that_everything_wanted_is_done(office: Office) -> None:
    crew = SimulatedCrew(office, seed=1)
    text = office.scenarios.instructions[1]
    crew.begin("w", text)
    names = [t.name for t in office.catalogue.task_types]
    wanted = sorted(crew.days["w"].needs)
    assert crew.judge is not None

    def verdict(done: Sequence[int]) -> tuple[bool, str]:
        inputs = tuple(Input(task_type=names[kind], output="") for kind in done)
        asked = Subtask(workflow="w", node=-1, attempt=1, instruction=text, task_type="workflow", inputs=inputs)
        assert crew.judge is not None
        said = asyncio.run(crew.judge(asked, None))  # type: ignore[arg-type]
        return said.ok, said.reason

    assert verdict(wanted) == (True, "")
    ok, reason = verdict(wanted[1:])
    assert (ok, reason) == (False, f"not done: {names[wanted[0]]}")


def test_reputations_are_kept_over_workflows(tables: Tables) -> None:
    crew = SimulatedCrew(Office(tables), seed=2)
    before = [member.success for member in crew.members]
    decider = WorkflowDecider(version="x", catalogue=crew.catalogue, limits=CONFIG.limits, choosers=by_rules())
    orchestrator = Orchestrator(decider, crew)
    run_virtually(orchestrator.execute_all(tables.scenarios.instructions[:10], concurrency=4))
    after = [member.success for member in crew.members]
    assert before != after
    crew.begin("w", "x")
    assert [one.success for one in crew.live("w", now_s=0.0)] == after
