"""Workflows among workers that misbehave: none hangs, none is lost, none exceeds a budget; and who corrects best.

    python benchmarks/chaos.py --policy runs/p2             # 10,000 workflows a policy
    python benchmarks/chaos.py --count 500                  # quicker, and without a learned policy

Six workers ask one HTTP service in a process of its own, which for 30 % of its calls hangs, dies in mid-response,
stalls in mid-stream, answers garbage, 429 or 500, each as often. Two workers are no good at some task types besides:
there, four of five answers are not what was asked for, which verifiers see and no retry cures. All policies get the
same instructions with the same plans, the best ones with workers chosen at random among the able; they decide about
corrections alone. They take turns, a block of workflows each, so that all meet the same machine. One core does all that
200 workflows need, 20 to 50 ms each: with an attempt's time as short as a second, answers would lie unread longer than
that (`--timeout 1 --latency 0.2 --time 20` shows what happens then).

`retry` only tries again; `retry+` does where no worker is left alone after failures in a row, which forbids just that.

Success is strict: every subtask of the best plan done and verified, with the results that it needs; to skip one, or to
plan less, is none. `false_timeouts` are answers that came too late because this machine was too busy to read them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from results import save
from torch import Tensor

from etude.contracts.errors import PlanError
from etude.contracts.ports import Verifier
from etude.evidence.intervals import estimate_share
from etude.orchestrator.crew import Crew
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.log import Damaged, ExecutionLog, read_log
from etude.orchestrator.metrics import summarise
from etude.orchestrator.record import Execution, correction_of, failed_node
from etude.orchestrator.verifiers import RegexVerifier, SchemaVerifier
from etude.orchestrator.workers.openai import OpenAIWorker
from etude.problems.base import Obs
from etude.problems.catalogue import Catalogue, Worker
from etude.problems.workflow.artefact import load_planner
from etude.problems.workflow.decide import Chooser, WorkflowDecider, by_rules, certain
from etude.problems.workflow.experts import KeywordReader, RulePlanner, by_reputation
from etude.problems.workflow.grammar import Correction, Rules
from etude.problems.workflow.office import phrases
from etude.problems.workflow.office.scenarios import from_examples, generate
from etude.problems.workflow.plan import SLACK, Limits, Node, Plan
from etude.problems.workflow.progress import Live

ACTS = ("hang", "die", "stall", "garbage", "busy", "error")
MISBEHAVES = 0.3
UNABLE = 0.8
"""Share of answers that are wrong where a worker is no good."""
USAGE = {"prompt_tokens": 300, "completion_tokens": 500, "total_tokens": 800}
MAX_TOKENS = 600
PROMPT = """\
You carry out one step of a larger task for an office, and answer with its result alone: one object in JSON that names
the step and says how it went. Leave out greetings, explanations and anything that was not asked for.
Task: {instruction}
Step: {task_type}
What it is: {description}
{inputs}"""

DATA = ("search_web", "read_document", "query_database", "extract_table", "compute_statistics", "make_chart")
CODE = ("write_code", "run_tests", "review_code", "query_database", "compute_statistics", "make_chart")
DESK = ("summarise", "translate", "write_report", "make_slides", "send_email", "schedule_meeting")
WORKERS = (
    Worker(name="atlas", description="A large general language model.", usd_per_mtok_in=10, usd_per_mtok_out=40),
    Worker(name="birch", description="A balanced language model for everyday.", usd_per_mtok_in=2, usd_per_mtok_out=10),
    Worker(name="cedar", description="A small, quick and cheap model.", usd_per_mtok_in=0.2, usd_per_mtok_out=0.8),
    Worker(
        name="delta",
        description="A language model trained on source code: programs, queries, tests.",
        task_types=CODE,
        usd_per_mtok_in=3,
        usd_per_mtok_out=15,
    ),
    Worker(
        name="ember",
        description="A model for office work: mail, calendar, presentations and letters.",
        task_types=DESK,
        usd_per_mtok_in=1,
        usd_per_mtok_out=4,
    ),
    Worker(
        name="fjord",
        description="A data model: pages, documents, queries, statistics and charts over tables.",
        task_types=DATA,
        usd_per_mtok_in=2,
        usd_per_mtok_out=8,
    ),
)
NO_GOOD = {
    "cedar": {"read_document", "query_database", "extract_table", "write_code", "review_code", "compute_statistics"}
    | {"write_report", "translate"},
    "ember": {"summarise", "translate", "make_slides"},
}
"""Half of what each of the two takes on."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How the office is run."""

    concurrency: int
    timeout_s: float  # of an attempt
    latency_s: float  # of an answer
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workflow that every policy is given."""

    plan: Plan
    no_good: int  # subtasks that it gives to workers who are no good at them


@dataclass(kw_only=True)
class Contender:
    """A policy with workers and a log of its own, and what was seen of it."""

    name: str
    orchestrator: Orchestrator
    log: ExecutionLog
    folder: Path
    took_s: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    cpu_s: float = 0.0


def serve(options: Mapping[str, Any]) -> None:
    """The service, until stdin ends; then what it did, as JSON."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.chat_server import Act, ChatServer

    rng, acts, bills = Random(options["seed"]), defaultdict[str, Counter[str]](Counter), Counter[str]()
    prices = {w.name: w.cost_usd(tokens_in=300, tokens_out=500) for w in WORKERS}

    def answer(request: dict[str, Any]) -> str:
        step = _line(request, "Step: ")
        unable = step in NO_GOOD.get(request["model"], ()) and rng.random() < UNABLE
        return "I am afraid so" if unable else json.dumps({"step": step, "result": "done"})

    class Service(ChatServer):
        def said(self, act: Act | bytes, request: dict[str, Any]) -> tuple[bytes, bool]:
            acts[request["user"]][str(act)] += 1
            if act not in (Act.BUSY, Act.ERROR):  # at its worst, a service bills whatever it began
                bills[f"{request['user']}\n{_line(request, 'Task: ')}"] += prices[request["model"]]  # type: ignore[assignment]
            return super().said(act, request)

    async def until_stopped() -> None:
        chances = dict.fromkeys(ACTS, MISBEHAVES / len(ACTS))
        service = Service(
            chances=chances,
            seed=options["seed"] + 1,
            answer=answer,
            usage=USAGE,
            latency_s=options["latency_s"],
            keep=1,
        )
        async with service:
            print(service.url, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            print(json.dumps({"acts": acts, "bills": bills, "open": len(service.connections)}), flush=True)

    asyncio.run(until_stopped())


def _line(request: Mapping[str, Any], start: str) -> str:
    lines: list[str] = request["messages"][-1]["content"].split("\n")
    return next(line for line in lines if line.startswith(start)).removeprefix(start)


@contextmanager
def service(options: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--serve", json.dumps(options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def catalogue(load: Load) -> Catalogue:
    types = tuple(t for t in phrases.CATALOGUE.task_types if t.name not in phrases.NEW_ENTRIES)
    offered = Catalogue(task_types=types, workers=WORKERS)
    for worker in WORKERS:
        offered = offered.updated(worker.name, latency_ms=1000 * load.latency_s)
    return offered


def cases(count: int, offered: Catalogue, limits: Limits, *, seed: int) -> list[Case]:
    """Best plans of 2 to 6 subtasks, workers chosen at random among the able."""
    scenarios, rng, found = generate(seed, count + count // 5 + 100), Random(seed), list[Case]()
    for row in (scenarios.length >= 2).nonzero()[:, 0].tolist()[:count]:
        best, plan = scenarios.plan(row), None
        while plan is None:
            nodes = [
                {"task_type": n.task_type, "dependencies": n.dependencies, "worker": _able(offered, n.task_type, rng)}
                for n in best.nodes
            ]
            plan = _checked(best.instruction, nodes, offered, limits)
        no_good = sum(node.task_type in NO_GOOD.get(node.worker or "", ()) for node in plan.nodes)
        found.append(Case(plan=plan, no_good=no_good))
    assert len(found) == count
    return found


def _able(offered: Catalogue, task_type: str, rng: Random) -> str:
    return rng.choice([w.name for w in offered.workers if offered.able(w, task_type)])


def _checked(instruction: str, nodes: Sequence[Mapping[str, Any]], offered: Catalogue, limits: Limits) -> Plan | None:
    plan = Plan(instruction=instruction, nodes=tuple(Node(**node) for node in nodes))
    try:
        plan.check(offered, limits)
    except PlanError:  # too expensive: other workers
        return None
    return plan


def crew(user: str, url: str, offered: Catalogue, load: Load, *, of: type[Crew]) -> Crew:
    hands = {
        w.name: OpenAIWorker(
            w.name,
            url=url,
            model=w.name,
            prompt=PROMPT,
            usd_per_mtok_in=w.usd_per_mtok_in,
            usd_per_mtok_out=w.usd_per_mtok_out,
            max_tokens=MAX_TOKENS,
            stall_s=20.0 if i % 2 else 0.9 * load.timeout_s,  # given up by the orchestrator, or by itself
            attempts=1,  # whatever goes wrong is the policy's to correct
            extra={"user": user},
        )
        for i, w in enumerate(WORKERS)
    }
    names = [t.name for t in offered.task_types]
    said = {"type": "object", "properties": {"result": {"const": "done"}}, "required": ["step", "result"]}
    verifiers: dict[str, Verifier] = {
        name: SchemaVerifier(said | {"properties": {"step": {"const": name}, **said["properties"]}})  # type: ignore[dict-item]
        if i % 4 == 0
        else RegexVerifier(f'"step": "{name}", "result": "done"')
        for i, name in enumerate(names)
    }
    return of(offered, hands, verifiers=verifiers, timeout_s=dict.fromkeys(hands, load.timeout_s))


class Tireless(Crew):
    """Where no worker is given a rest after failures in a row: to try again is always allowed."""

    def live(self, workflow: str, *, now_s: float) -> tuple[Live, ...]:
        for member in self.members:
            member.down_until_s = 0.0
        return super().live(workflow, now_s=now_s)


def by_switching(rules: Rules, instruction: str) -> Chooser:
    """Another worker after every failure, by reputation; the same one where there is no other; then replan."""

    def at_once(draft: Obs) -> Tensor:
        liking = torch.zeros((1, len(Correction)))
        liking[0, [Correction.SWITCH, Correction.RETRY, Correction.REPLAN]] = torch.tensor([3.0, 2.0, 1.0])
        return liking

    read = KeywordReader(rules.catalogue, without=set()).read(instruction)
    plans = from_examples([(instruction, *read)], rules.catalogue)
    return certain(RulePlanner(rules, plans, worker=by_reputation(rules), correction=at_once))


def contenders(
    url: str, offered: Catalogue, load: Load, folder: Path, who: Sequence[str], run: Path
) -> list[Contender]:
    choosers = {"retry": by_rules(retries_only=True), "rules": by_rules(), "switch": by_switching}
    found = []
    for name in who:
        policy, tireless, _ = name.partition("+")
        if policy == "learned":
            decider = load_planner(run).decider(catalogue=offered, limits=load.limits)
        else:
            decider = WorkflowDecider(version=policy, catalogue=offered, limits=load.limits, choosers=choosers[policy])
        assert decider.limits == load.limits
        staff = crew(name, url, offered, load, of=Tireless if tireless else Crew)
        log = ExecutionLog(folder / name, offered, redact=None)
        orchestrator = Orchestrator(decider, staff, log=log)
        found.append(Contender(name=name, orchestrator=orchestrator, log=log, folder=folder / name))
    return found


async def carry_out(those: Sequence[Contender], work: Sequence[Case], load: Load, block: int) -> list[str]:
    """Everything by everybody, in turns; what was left over in the loop at the end."""
    began = time.perf_counter()
    for start in range(0, len(work), block):
        for one in those:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            await _block(one, range(start, min(start + block, len(work))), work, load)
            one.busy_s, one.cpu_s = one.busy_s + time.perf_counter() - wall_s, one.cpu_s + time.process_time() - cpu_s
        done = min(start + block, len(work))
        so_far_s = time.perf_counter() - began
        left_s = so_far_s * (len(work) - done) / done
        print(f"  {done:6,} of {len(work):,} workflows each, {so_far_s:.0f} s, {left_s:.0f} s to go", flush=True)
    for one in those:
        await one.orchestrator.close()
    await asyncio.sleep(0.1)
    return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def _block(one: Contender, numbers: range, work: Sequence[Case], load: Load) -> None:
    to_come, loop = iter(numbers), asyncio.get_running_loop()

    async def lane() -> None:
        for number in to_come:
            began_s, plan = loop.time(), work[number].plan
            await one.orchestrator.execute(plan.instruction, plan=plan, number=number)
            one.took_s.append(loop.time() - began_s)

    await asyncio.gather(*(lane() for _ in range(load.concurrency)))


def is_done(execution: Execution, plan: Plan, offered: Catalogue) -> bool:
    """Whether every subtask of the plan is, with what it needs."""
    names = [t.name for t in offered.task_types]
    made = {
        names[n.task_type]: {names[execution.nodes[j].task_type] for j in n.dependencies}
        for n in execution.nodes
        if n.status == "done"
    }
    return all(
        node.task_type in made and {plan.nodes[j].task_type for j in node.dependencies} <= made[node.task_type]
        for node in plan.nodes
    )


def share(hits: Sequence[bool]) -> dict[str, Any]:
    return estimate_share(sum(hits), len(hits)).to_json()


def judged(
    one: Contender, work: Sequence[Case], offered: Catalogue, load: Load, seen: Mapping[str, Any]
) -> dict[str, Any]:
    """What the log says, held against the limits and against what the service saw."""
    limits = load.limits
    assert limits.max_cost_usd is not None
    assert limits.max_time_ms is not None
    max_usd, most_ms = limits.max_cost_usd * (1 + SLACK), limits.max_time_ms * (1 + SLACK)
    lines = list(read_log(one.folder))
    executions = [line for line in lines if not isinstance(line, Damaged)]
    costs = [sum(a.cost_usd for n in e.nodes for a in n.attempts) for e in executions]
    bills = {key.split("\n")[1]: usd for key, usd in seen["bills"].items() if key.startswith(f"{one.name}\n")}
    summary = summarise(executions, offered)
    faults = Counter(a.fault for e in executions for n in e.nodes for a in n.attempts if a.fault)
    acts = seen["acts"].get(one.name, {})
    checks = {
        "lines": len(lines),
        "damaged": len(lines) - len(executions),
        "lost": len(work) - len({e.number for e in executions}),
        "same_id_twice": len(executions) - len({e.id for e in executions}),
        "with_violations": sum(bool(e.violations) for e in executions),
        "violations": dict(list(summary.violations.items())[:5]),  # examples
        "costs_that_do_not_add_up": sum(abs(c - e.cost) > 1e-9 for c, e in zip(costs, executions, strict=True)),
        "over_cost": sum(cost > max_usd for cost in costs),
        "over_cost_if_all_that_began_was_billed": sum(usd > max_usd for usd in bills.values()),
        "over_time": sum(e.latency_ms > most_ms for e in executions),
        "longest_ms": max(e.latency_ms for e in executions),
        "longest_return_ms": 1000 * max(one.took_s),
        "dearest_usd": max(costs),
        "dearest_bill_usd": max(bills.values()),
        "over_attempts": sum(len(n.attempts) > limits.max_attempts for e in executions for n in e.nodes),
        "ended": summary.ended,
    }
    success = {e.number: is_done(e, work[e.number].plan, offered) for e in executions if e.number is not None}
    return {
        "checks": checks,
        "success": share(list(success.values())),
        "success_by_its_own_account": share([e.success for e in executions]),
        "success_where_nobody_is_no_good": share([ok for i, ok in success.items() if not work[i].no_good]),
        "success_where_somebody_is": share([ok for i, ok in success.items() if work[i].no_good]),
        "cost_usd": summary.cost_usd.to_json(),
        "latency_ms": summary.latency_ms.to_json(),
        "corrections": dict(Counter(correction_of(d) for e in executions for d in e.decisions)),
        "faults": summary.to_json()["faults"],
        "calls": sum(acts.values()),
        "acts": acts,
        "false_timeouts": faults["timeout"] - acts.get("hang", 0) - acts.get("stall", 0),
        "not_again_while_it_rests": _not_again(executions, limits),
        "wall_s": one.busy_s,
        "cpu_s": one.cpu_s,
    }


def _not_again(executions: Sequence[Execution], limits: Limits) -> int:
    """Failures that could not be tried again only because their worker was left alone for a while."""
    found = 0
    for execution in executions:
        assert execution.planner_outputs is not None
        workers, tries = dict(enumerate(execution.planner_outputs.model_selections)), Counter[int]()
        live: Sequence[Any] = ()
        for made, decision in enumerate(execution.decisions):
            live, node = (decision.context or {}).get("live") or live, failed_node(decision)
            if node is None or node not in workers:
                break  # replanned: nodes have other numbers
            tries[node] += 1
            may = tries[node] < limits.max_attempts and made < limits.max_corrections
            found += may and "retry" not in decision.eligible["corrections"] and not live[workers[node]][3]
            workers[node] = decision.action.get("worker", workers[node])
    return found


def show(name: str, found: Mapping[str, Any]) -> None:
    def summary(part: Mapping[str, Any]) -> str:
        return f"{100 * part['mean']:.1f} % [{100 * part['ci95'][0]:.1f}, {100 * part['ci95'][1]:.1f}]"

    print(f"{name}: success {summary(found['success'])} of {found['success']['count']:,}")
    print(f"  where every worker is good {summary(found['success_where_nobody_is_no_good'])}, ", end="")
    print(f"where somebody is {summary(found['success_where_somebody_is'])}, ", end="")
    print(f"by its own account {summary(found['success_by_its_own_account'])}")
    print(f"  {100 * found['cost_usd']['mean']:.2f} cents, {found['latency_ms']['mean']:.0f} ms, ", end="")
    print(f"{found['calls']:,} calls, {found['false_timeouts']} false timeouts, ", end="")
    print(f"{found['wall_s']:.0f} s, CPU {found['cpu_s']:.0f} s")
    print(f"  corrections {found['corrections']}; ", end="")
    print(f"{found['not_again_while_it_rests']} not tried again as their worker rests")
    for fault, part in found["faults"].items():
        print(f"  {fault:16} {part['count']:6,}  {part['corrections']}  done in the end {summary(part['done'])}")
    print(f"  {found['checks']}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--policy", type=Path, help="a run of `etude train workflow` to compare: `learned`")
    arguments.add_argument("--who", nargs="+", help="among retry, rules, switch, learned; with + where no worker rests")
    arguments.add_argument("--count", type=int, default=10_000, help="workflows each")
    arguments.add_argument("--concurrency", type=int, default=200)
    arguments.add_argument("--timeout", type=float, default=6.0, help="seconds of an attempt")
    arguments.add_argument("--latency", type=float, default=1.0, help="seconds of an answer")
    arguments.add_argument("--time", type=float, default=60.0, help="seconds of a workflow")
    arguments.add_argument("--seed", type=int, default=4)
    arguments.add_argument("--block", type=int, default=1000, help="workflows before the next policy's turn")
    arguments.add_argument("--logs", type=Path, help="an empty folder to keep the logs in")
    arguments.add_argument("--name", default="chaos", help="of the file in results/")
    arguments.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.serve:
        serve(given.serve)
        return
    torch.set_num_threads(1)
    limits = Limits(max_nodes=10, max_cost_usd=0.15, max_time_ms=1000 * given.time, max_attempts=3, max_corrections=6)
    load = Load(concurrency=given.concurrency, timeout_s=given.timeout, latency_s=given.latency, limits=limits)
    offered = catalogue(load)
    work = cases(given.count, offered, limits, seed=given.seed)
    no_good = sum(case.no_good for case in work) / sum(len(case.plan.nodes) for case in work)
    print(f"{given.count:,} workflows, {100 * no_good:.1f} % of their subtasks given to somebody who is no good at it")
    with (
        tempfile.TemporaryDirectory() as scratch,
        service({"seed": given.seed, "latency_s": given.latency}) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        folder = given.logs or Path(scratch)
        who = given.who or ["retry", "rules", *(["learned"] if given.policy else [])]
        those = contenders(url, offered, load, folder, who, given.policy)
        files = len(os.listdir("/proc/self/fd"))
        left_over = asyncio.run(carry_out(those, work, load, given.block))
        gc.collect()
        leaked = len(os.listdir("/proc/self/fd")) - files
        process.stdin.write("\n")
        process.stdin.flush()
        seen = json.loads(process.stdout.readline())
        for one in those:
            one.log.close()
        found = {one.name: judged(one, work, offered, load, seen) for one in those}
    for name, part in found.items():
        show(name, part)
    above = {
        f"{name} above {base}": found[name]["success"]["mean"] / found[base]["success"]["mean"] - 1
        for base in found
        for name in found
        if base.startswith("retry") and not name.startswith("retry")
    }
    print(", ".join(f"{pair} {100 * part:+.1f} %" for pair, part in above.items()))
    print(f"left over in the loop: {len(left_over)}; files and sockets leaked: {leaked}; still open: {seen['open']}")
    data = {
        "count": given.count,
        "concurrency": given.concurrency,
        "timeout_s": given.timeout,
        "latency_s": given.latency,
        "limits": {"max_cost_usd": limits.max_cost_usd, "max_time_ms": limits.max_time_ms}
        | {"max_attempts": limits.max_attempts, "max_corrections": limits.max_corrections},
        "no_good_share": no_good,
        "above": above,
        "versions": {one.name: one.orchestrator.decider.version for one in those},
        "left_over": left_over,
        "leaked": leaked,
        "policies": found,
    }
    save(given.name, data)


if __name__ == "__main__":
    main()
