"""Two policies on the same instructions and workers: which one does more of the work, at what cost and in what time.

Every instruction is carried out by both, one after the other in random order, so that differences are paired and what
changes with time falls on both alike.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.contracts.errors import ConfigError, WorkersError
from etude.contracts.trajectory import Outcome
from etude.evidence.intervals import Estimate, estimate_mean
from etude.learning.requests import EvaluateRequest, Measurement
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.instructions import read_instructions
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers_file import unreachable_workers
from etude.orchestrator.workplace import Workplace, make_decider, make_workplace, settings_of

NEW, OLD = "new", "old"
CONCURRENCY = 8
NUMBERS = {"success": ("share", 100.0, "points"), "cost_usd": ("USD", 1.0, "USD"), "latency_ms": ("s", 1e-3, "s")}
"""What is compared: its unit, and how a difference is written."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The outcomes of one instruction with both policies."""

    instruction: str
    new: Outcome
    old: Outcome

    def numbers(self, name: str) -> tuple[float, float]:
        new, old = (float(getattr(outcome, name) or 0.0) for outcome in (self.new, self.old))
        return new, old


def on_instructions(request: EvaluateRequest) -> Measurement:
    """Both policies of the request on a file of instructions, until its budget is spent."""
    inputs = request.inputs
    against, file = inputs.get("against"), Path(inputs["instructions"])
    if against is None:
        raise ConfigError("instructions compare two policies: name the other one too, such as the run it started from")
    workers = Path(inputs["workers"]) if inputs.get("workers") is not None else None
    place = make_workplace(workers, settings=settings_of(str(request.run)), seed=request.seed)
    asked = read_instructions(file)
    request.status(f"carrying out {len(asked):,} instructions with both policies")
    pairs = carry_out_pairs(
        str(request.run), str(against), place, asked, max_cost_usd=inputs.get("max-cost"), seed=request.seed
    )
    return measured(pairs, str(request.run), str(against), place, asked=len(asked))


def carry_out_pairs(
    new: str, old: str, place: Workplace, instructions: Sequence[str], *, max_cost_usd: float | None, seed: int
) -> list[Pair]:
    """Both policies on each instruction, in random order; none begins once `max_cost_usd` is spent."""
    both = {
        name: Orchestrator(make_decider(policy, place), place.crew, seed=seed)
        for name, policy in ((NEW, new), (OLD, old))
    }
    rng, spent, found = random.Random(seed), 0.0, dict[int, Pair]()
    order = {i: rng.sample([NEW, OLD], 2) for i in range(len(instructions))}

    async def one(number: int) -> None:
        nonlocal spent
        outcomes: dict[str, Outcome] = {}
        for name in order[number]:
            result = await both[name].execute(instructions[number], number=number)
            if result.refused:
                raise WorkersError(result.error)
            outcomes[name], spent = result.trajectory.outcome, spent + result.cost_usd
        found[number] = Pair(instruction=instructions[number], new=outcomes[NEW], old=outcomes[OLD])

    async def all_of_them() -> None:
        try:
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
            for orchestrator in both.values():
                await orchestrator.close()

    try:
        run_virtually(all_of_them()) if place.is_simulated else asyncio.run(all_of_them())
    except* WorkersError as errors:
        raise errors.exceptions[0] from None
    return [found[i] for i in sorted(found)]


def measured(pairs: Sequence[Pair], new: str, old: str, place: Workplace, *, asked: int) -> Measurement:
    if not pairs:
        raise ConfigError("no instruction was carried out within the budget: raise max-cost")
    rows, numbers = [], dict[str, Any]()
    for name, (unit, factor, said) in NUMBERS.items():
        values = [pair.numbers(name) for pair in pairs]
        news, olds = ([v[i] for v in values] for i in (0, 1))
        difference = _difference(pairs, name)
        each = [estimate_mean(x).mean for x in (news, olds)]
        numbers[name] = {NEW: each[0], OLD: each[1], "difference": difference.to_json()}
        shown = [f"{x:.1%}" if unit == "share" else f"{x * factor:.4g} {unit}" for x in each]
        low, high = difference.low * factor, difference.high * factor
        rows.append((name, *shown, f"{difference.mean * factor:+.3g} {said} [{low:+.3g}, {high:+.3g}]"))
    judged = sorted({str(pair.new.success_by) for pair in pairs})
    answer = _answer(_difference(pairs, "success"))
    sentences = [f"By success, {new} is {answer} {old}."]
    if judged == ["self"]:
        sentences.append(
            "Success is self-declared: all subtasks of its own plan ended well. Set `verify:` in workers.yaml to know "
            "whether the work was done."
        )
    if len(pairs) < asked:
        sentences.append(f"The budget was spent after {len(pairs):,} of {asked:,} instructions.")
    return Measurement(
        title=f"{new} and {old}: {len(pairs):,} instructions, carried out by both"
        + (" on simulated workers" if place.is_simulated else ""),
        json={"new": new, "old": old, "instructions": len(pairs), "answer": answer, "judged_by": judged, **numbers},
        columns=("measure", "new", "old", "difference, 95 % interval"),
        rows=tuple(rows),
        sentences=tuple(sentences),
    )


def _difference(pairs: Sequence[Pair], name: str) -> Estimate:
    """New less old; repetitions of an instruction are not independent."""
    return estimate_mean([new - old for new, old in (p.numbers(name) for p in pairs)], [p.instruction for p in pairs])


def _answer(difference: Estimate) -> str:
    if difference.low > 0:
        return "better than"
    return "worse than" if difference.high < 0 else "not distinguishable from"
