"""What carrying out costs in addition to the work itself: ours, the same DAGs in LangGraph, and in asyncio by hand.

    python benchmarks/executor.py                # about 3 minutes

Plans of 10 subtasks are given, none fails. Ours checks the plan, reserves money, watches time and logs every
workflow to a file; LangGraph runs without a checkpointer; by hand there are only tasks that wait for each other. All
take turns in one process. `waited` is the time in which the process could have run and the machine was with others:
on a shared one, compare by CPU and by ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import operator
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

import torch
from results import save

from etude.contracts.work import Subtask
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.log import ExecutionLog
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.decide import WorkflowDecider, by_rules
from etude.problems.workflow.plan import Limits, Node, Plan

SHAPES = {"chain": (1,) * 10, "layered": (1, 3, 3, 2, 1)}
"""Subtasks side by side, layer by layer; each needs all of the layer before."""
SUBTASKS, WORK_S, CONCURRENCY = 10, 0.05, 200
ALONE, TOGETHER = 200, 1000
"""Workflows one after the other, and side by side."""
LIMITS = Limits(max_cost_usd=1.0, max_time_ms=120_000.0)
INSTRUCTION = "Read the invoice, put its amounts into a table and mail it to Ann."
CATALOGUE = Catalogue(
    task_types=tuple(TaskType(name=f"step_{i}", description=f"Step {i} of ten.") for i in range(SUBTASKS)),
    workers=tuple(Worker(name=name, usd_per_call=0.001, latency_ms=1000 * WORK_S) for name in ("ann", "bob")),
)

Workflow = Callable[[], Awaitable[object]]
"""Carries out one."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    wall_s: float
    cpu_s: float
    waited_s: float


def layered(layers: tuple[int, ...]) -> Plan:
    nodes: list[Node] = []
    before: tuple[int, ...] = ()
    for width in layers:
        here = tuple(range(len(nodes), len(nodes) + width))
        nodes += [Node(task_type=f"step_{i}", dependencies=before, worker=("ann", "bob")[i % 2]) for i in here]
        before = here
    assert len(nodes) == SUBTASKS
    return Plan(instruction=INSTRUCTION, nodes=tuple(nodes))


def ours(plan: Plan, work_s: float, log: ExecutionLog) -> Workflow:
    async def work(subtask: Subtask) -> str:
        if work_s:
            await asyncio.sleep(work_s)
        return f"{subtask.task_type} of {len(subtask.inputs)}"

    decider = WorkflowDecider(version="rules", catalogue=CATALOGUE, limits=LIMITS, choosers=by_rules())
    orchestrator = Orchestrator(decider, {"ann": work, "bob": work}, log=log)

    async def run() -> None:
        result = await orchestrator.execute(INSTRUCTION, plan=plan)
        assert result.success, result.error

    return run


class Made(TypedDict):
    """LangGraph's state: outputs by node."""

    outputs: Annotated[dict[str, str], operator.or_]


def by_langgraph(plan: Plan, work_s: float) -> Workflow:
    from langgraph.graph import END, START, StateGraph

    def node_of(name: str, needs: list[str]) -> Any:
        async def work(state: Made) -> Made:
            if work_s:
                await asyncio.sleep(work_s)
            return {"outputs": {name: f"{name} of {len([state['outputs'][need] for need in needs])}"}}

        return work

    graph = StateGraph(Made)
    names = [node.task_type for node in plan.nodes]
    for name, node in zip(names, plan.nodes, strict=True):
        needs = [names[j] for j in node.dependencies]
        graph.add_node(name, node_of(name, needs))
        graph.add_edge(needs or START, name)
    followed = {j for node in plan.nodes for j in node.dependencies}
    for i in set(range(len(names))) - followed:
        graph.add_edge(names[i], END)
    app = graph.compile()

    async def run() -> None:
        state = await app.ainvoke({"outputs": {}}, {"recursion_limit": 50})
        assert len(state["outputs"]) == SUBTASKS

    return run


def by_hand(plan: Plan, work_s: float) -> Workflow:
    async def run() -> None:
        tasks: list[asyncio.Task[str]] = []

        async def work(i: int) -> str:
            inputs = [await tasks[j] for j in plan.nodes[i].dependencies]
            if work_s:
                await asyncio.sleep(work_s)
            return f"{i} of {len(inputs)}"

        tasks += [asyncio.create_task(work(i)) for i in range(len(plan.nodes))]
        await asyncio.gather(*tasks)

    return run


async def one_by_one(run: Workflow, count: int) -> None:
    for _ in range(count):
        await run()


async def side_by_side(run: Workflow, count: int) -> None:
    to_come = iter(range(count))

    async def lane() -> None:
        for _ in to_come:
            await run()

    await asyncio.gather(*(lane() for _ in range(CONCURRENCY)))


def spent(work: Coroutine[Any, Any, None]) -> Spent:
    gc.collect()
    wall_s, cpu_s, waited_s = time.perf_counter(), time.process_time(), _waited_s()
    asyncio.run(work)
    return Spent(
        wall_s=time.perf_counter() - wall_s, cpu_s=time.process_time() - cpu_s, waited_s=_waited_s() - waited_s
    )


def _waited_s() -> float:
    """In the queue for a core so far; NaN where the system does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return float("nan")


def memory(log: ExecutionLog) -> dict[str, float]:
    """MB that the process holds, by how many subtasks it has carried out."""
    run, found, done = ours(layered(SHAPES["layered"]), 0.0, log), dict[str, float](), 0
    for subtasks in (1_000, 10_000, 50_000, 100_000):
        asyncio.run(side_by_side(run, (subtasks - done) // SUBTASKS))
        done = subtasks
        found[str(subtasks)] = _held_mb()
        print(f"memory after {subtasks:7,} subtasks: {found[str(subtasks)]:.1f} MB", flush=True)
    return found


def _held_mb() -> float:
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def summary(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def shown(values: dict[str, float], form: str) -> str:
    return f"{values['median']:{form}} [{values['least']:{form}}, {values['most']:{form}}]"


def compare(shape: str, log: ExecutionLog, repeats: int) -> dict[str, Any]:
    plan, ideal_s = layered(SHAPES[shape]), len(SHAPES[shape]) * WORK_S * TOGETHER / CONCURRENCY
    at_once: dict[str, Workflow] = {
        "etude": ours(plan, 0.0, log),
        "langgraph": by_langgraph(plan, 0.0),
        "asyncio": by_hand(plan, 0.0),
    }
    working: dict[str, Workflow] = {
        "etude": ours(plan, WORK_S, log),
        "langgraph": by_langgraph(plan, WORK_S),
        "asyncio": by_hand(plan, WORK_S),
    }
    for run in at_once.values():
        asyncio.run(one_by_one(run, 20))
    alone: dict[str, list[Spent]] = {name: [] for name in at_once}
    together: dict[str, list[Spent]] = {name: [] for name in at_once}
    for _ in range(repeats):  # they take turns, so that all meet the same noise
        for name in at_once:
            alone[name].append(spent(one_by_one(at_once[name], ALONE)))
            together[name].append(spent(side_by_side(working[name], TOGETHER)))
    found: dict[str, Any] = {"layers": SHAPES[shape], "ideal_s": ideal_s}
    for name in at_once:
        us, own = 1e6 / (ALONE * SUBTASKS), together[name]
        found[name] = {
            "cpu_us_per_subtask": summary([s.cpu_s * us for s in alone[name]]),
            "wall_us_per_subtask": summary([s.wall_s * us for s in alone[name]]),
            "total_s": summary([s.wall_s for s in own]),
            "times_ideal": summary([s.wall_s / ideal_s for s in own]),
            "total_cpu_s": summary([s.cpu_s for s in own]),
            "total_waited_s": summary([s.waited_s for s in own]),
        }
        mine = found[name]
        print(
            f"{shape:8} {name:10} overhead a subtask {shown(mine['cpu_us_per_subtask'], '.0f')} µs of CPU, "
            f"{shown(mine['wall_us_per_subtask'], '.0f')} µs; {TOGETHER:,} workflows "
            f"{shown(mine['total_s'], '.2f')} s, {shown(mine['times_ideal'], '.2f')}× ideal, "
            f"CPU {mine['total_cpu_s']['median']:.2f} s, waited {mine['total_waited_s']['median']:.2f} s",
            flush=True,
        )
    for peer in ("langgraph", "asyncio"):
        cpu = summary([a.cpu_s / b.cpu_s for a, b in zip(alone[peer], alone["etude"], strict=True)])
        total = summary([a.wall_s / b.wall_s for a, b in zip(together[peer], together["etude"], strict=True)])
        found[f"{peer}_to_etude"] = {"cpu": cpu, "total": total}
        print(
            f"{shape:8} {peer} ÷ ours: overhead {shown(cpu, '.2f')}, {TOGETHER:,} workflows {shown(total, '.2f')}",
            flush=True,
        )
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    data: dict[str, Any] = {"repeats": given.repeats, "load_before": os.getloadavg()}
    with tempfile.TemporaryDirectory() as folder, ExecutionLog(Path(folder), CATALOGUE, redact=None) as log:
        data["memory_mb"] = memory(log)  # before LangGraph is there
        from importlib.metadata import version

        data["langgraph"] = version("langgraph")
        print(f"LangGraph {data['langgraph']}", flush=True)
        by_langgraph(layered(SHAPES["chain"]), 0.0)
        gc.collect()
        gc.freeze()  # what is imported is no garbage: as servers do, for all alike
        data["shapes"] = {shape: compare(shape, log, given.repeats) for shape in SHAPES}
    data["load_after"] = os.getloadavg()
    save("executor", data)


if __name__ == "__main__":
    main()
