"""Policies on the same instructions and workers: which one does more of the work, at what cost and in what time.

Every instruction is carried out by all of them, one after the other in random order, so that differences are paired
and what changes with time falls on all alike. The new policy is compared with the old one and with each peer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from etude.contracts.errors import ConfigError, WorkersError
from etude.contracts.trajectory import Outcome
from etude.evidence.intervals import Estimate, estimate_mean
from etude.learning.requests import EvaluateRequest, Measurement
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.flow import PlanDecider
from etude.orchestrator.instructions import read_instructions
from etude.orchestrator.language_model import is_language_model
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers_file import unreachable_workers
from etude.orchestrator.workplace import Workplace, make_decider, make_workplace, settings_of

NEW, OLD = "new", "old"
CONCURRENCY = 8
NUMBERS = {"success": ("share", 100.0, "points"), "cost_usd": ("USD", 1.0, "USD"), "latency_ms": ("s", 1e-3, "s")}
"""What is compared: its unit, and how a difference is written."""
COLUMNS = ("measure", "new", "other", "difference, 95 % interval", "compared with")


class Contender(NamedTuple):
    """A policy that is compared."""

    name: str
    decider: PlanDecider


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcomes of one instruction by role: new, old, and the place of each peer."""

    instruction: str
    outcomes: Mapping[str, Outcome]

    def number(self, role: str, measure: str) -> float:
        return float(getattr(self.outcomes[role], measure) or 0.0)


def on_instructions(request: EvaluateRequest) -> Measurement:
    """The policies of the request on a file of instructions, until its budget is spent."""
    inputs = request.inputs
    against, file = inputs.get("against"), Path(inputs["instructions"])
    if against is None:
        raise ConfigError("instructions compare two policies: name the other one too, such as the run it started from")
    workers = Path(inputs["workers"]) if inputs.get("workers") is not None else None
    place = make_workplace(workers, settings=settings_of(str(request.run)), seed=request.seed)
    compared = make_contenders(str(request.run), str(against), inputs.get("peer", ()), place)
    asked = read_instructions(file)
    trials = carry_out_all(
        compared, place, asked, max_cost_usd=inputs.get("max-cost"), seed=request.seed, status=request.status
    )
    return measured(trials, {role: one.name for role, one in compared.items()}, place, asked=len(asked))


def make_contenders(new: str, old: str, peers: Sequence[str], place: Workplace) -> dict[str, Contender]:
    """Policies by role. A language model is named by its version, which has no path; ConfigError for a name twice."""
    policies = {NEW: new, OLD: old} | {f"peer {i}": peer for i, peer in enumerate(peers, 1)}
    found = dict[str, Contender]()
    for role, policy in policies.items():
        decider = make_decider(policy, place)
        name = decider.version if is_language_model(policy) else policy
        if role not in (NEW, OLD) and name in (one.name for one in found.values()):
            raise ConfigError(f"{name!r} is compared twice: name each peer once")
        found[role] = Contender(name, decider)
    return found


def carry_out_all(
    compared: Mapping[str, Contender],
    place: Workplace,
    instructions: Sequence[str],
    *,
    max_cost_usd: float | None,
    seed: int,
    status: Callable[[str], None] = lambda text: None,
) -> list[Trial]:
    """All policies on each instruction, in random order; none begins once `max_cost_usd` is spent.

    EndpointError, before anything is carried out, if a policy asks a service that cannot be reached.
    """
    working = {role: Orchestrator(one.decider, place.crew, seed=seed) for role, one in compared.items()}
    spent, found, order = 0.0, dict[int, Trial](), random_orders(list(working), len(instructions), seed=seed)

    async def one(number: int) -> None:
        nonlocal spent
        outcomes: dict[str, Outcome] = {}
        for role in order[number]:
            result = await working[role].execute(instructions[number], number=number)
            if result.refused:
                raise WorkersError(result.error)
            outcomes[role], spent = result.trajectory.outcome, spent + result.cost_usd
        found[number] = Trial(instruction=instructions[number], outcomes=outcomes)
        status(_progress(len(found), len(instructions), len(working)))

    async def all_of_them() -> None:
        try:
            for orchestrator in working.values():
                await orchestrator.check()
            if place.file is not None and not place.is_simulated:
                place.crew.unreachable = await unreachable_workers(place.file)
            waiting = iter(range(len(instructions)))

            async def next_ones() -> None:
                for number in waiting:
                    if max_cost_usd is not None and spent >= max_cost_usd:
                        return
                    await one(number)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(CONCURRENCY, len(instructions))):
                    group.create_task(next_ones())
        finally:
            for orchestrator in working.values():
                await orchestrator.close()

    status(_progress(0, len(instructions), len(working)))
    try:
        run_virtually(all_of_them()) if place.is_simulated else asyncio.run(all_of_them())
    except* WorkersError as errors:
        raise errors.exceptions[0] from None
    return [found[i] for i in sorted(found)]


def random_orders(roles: Sequence[str], count: int, *, seed: int) -> list[list[str]]:
    """Who carries out each instruction first, second, …"""
    rng = random.Random(seed)
    return [rng.sample(roles, len(roles)) for _ in range(count)]


def _progress(done: int, instructions: int, policies: int) -> str:
    return f"{done:,} of {instructions:,} instructions, each carried out by {policies} policies"


def measured(trials: Sequence[Trial], names: Mapping[str, str], place: Workplace, *, asked: int) -> Measurement:
    """The comparison of the new policy with all others; `names` are by role."""
    if not trials:
        raise ConfigError("no instruction was carried out within the budget: raise max-cost")
    means = {role: _means(trials, role) for role in names}
    differences = {role: _differences(trials, role) for role in names if role != NEW}
    judged = sorted({str(trial.outcomes[NEW].success_by) for trial in trials})
    *first, last = names.values()
    by = "both" if len(names) == 2 else f"all {len(names)}"
    return Measurement(
        title=f"{', '.join(first)} and {last}: {len(trials):,} instructions, carried out by {by}"
        + (" on simulated workers" if place.is_simulated else ""),
        json={
            NEW: names[NEW],
            OLD: names[OLD],
            "instructions": len(trials),
            "answer": _answer(differences[OLD]["success"]),
            "judged_by": judged,
            **_numbers({NEW: means[NEW], OLD: means[OLD]}, differences[OLD]),
            "peers": {
                names[role]: {"answer": _answer(found["success"]), **_numbers({"mean": means[role]}, found)}
                for role, found in differences.items()
                if role != OLD
            },
        },
        columns=COLUMNS,
        rows=tuple(
            _row(measure, means[NEW], means[role], found, names[role])
            for measure in NUMBERS
            for role, found in differences.items()
        ),
        sentences=tuple(_sentences(trials, names, differences, judged, asked)),
    )


def _means(trials: Sequence[Trial], role: str) -> dict[str, float]:
    return {measure: estimate_mean([trial.number(role, measure) for trial in trials]).mean for measure in NUMBERS}


def _differences(trials: Sequence[Trial], role: str) -> dict[str, Estimate]:
    """New less the other by measure; repetitions of an instruction are not independent."""
    groups = [trial.instruction for trial in trials]
    return {
        measure: estimate_mean([t.number(NEW, measure) - t.number(role, measure) for t in trials], groups)
        for measure in NUMBERS
    }


def _numbers(means: Mapping[str, Mapping[str, float]], differences: Mapping[str, Estimate]) -> dict[str, Any]:
    """In JSON, by measure."""
    return {
        measure: {name: of[measure] for name, of in means.items()} | {"difference": found.to_json()}
        for measure, found in differences.items()
    }


def _row(
    measure: str,
    new: Mapping[str, float],
    other: Mapping[str, float],
    differences: Mapping[str, Estimate],
    name: str,
) -> tuple[str, ...]:
    unit, factor, said = NUMBERS[measure]
    shown = [f"{of[measure]:.1%}" if unit == "share" else f"{of[measure] * factor:.4g} {unit}" for of in (new, other)]
    mean, low, high = (x * factor for x in (differences[measure].mean, *differences[measure].interval))
    return measure, *shown, f"{mean:+.3g} {said} [{low:+.3g}, {high:+.3g}]", name


def _sentences(
    trials: Sequence[Trial],
    names: Mapping[str, str],
    differences: Mapping[str, Mapping[str, Estimate]],
    judged: Sequence[str],
    asked: int,
) -> Iterator[str]:
    for role, found in differences.items():
        yield f"By success, {names[NEW]} is {_answer(found['success'])} {names[role]}."
    for role, name in names.items():
        without = [trial.outcomes[role] for trial in trials if _has_no_plan(trial.outcomes[role])]
        if without:
            yield (
                f"{name} made no plan for {len(without):,} of {len(trials):,} instructions, which count as failed: "
                f"{without[0].error}"
            )
    if judged == ["self"]:
        yield (
            "Success is self-declared: all subtasks of its own plan ended well. Set `verify:` in workers.yaml to know "
            "whether the work was done."
        )
    if len(trials) < asked:
        yield f"The budget was spent after {len(trials):,} of {asked:,} instructions."


def _has_no_plan(outcome: Outcome) -> bool:
    return outcome.subtasks == 0 and not outcome.success


def _answer(difference: Estimate) -> str:
    if difference.low > 0:
        return "better than"
    return "worse than" if difference.high < 0 else "not distinguishable from"
