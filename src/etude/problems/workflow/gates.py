"""Gates of workflows: what a planner is asked before it is released, and that no plan leaves its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import CatalogueError, DataError, PlanError
from etude.contracts.ports import Decider
from etude.contracts.trajectory import Trajectory
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateContext, GateResult
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.artefact import read_catalogue_of
from etude.problems.workflow.decisions import PROBLEM
from etude.problems.workflow.plan import Limits, Node, Plan

MAX_PLANS = 60
"""Instructions per set of limits."""
SHOWN = 12


def gate_requests(
    artefact: Artefact, trajectories: Iterable[Trajectory], number: int, seed: int
) -> list[DecisionRequest]:
    """The instructions of logged workflows; without any, what the catalogue's task types say of themselves."""
    logged = (t.task for t in trajectories if t.problem == PROBLEM and t.task.strip())
    texts = list(islice(dict.fromkeys(logged), number))
    if not texts:
        kinds = [t.description or t.name for t in read_catalogue_of(artefact).task_types]
        texts = [*kinds, *(f"{a}, then {b}" for a, b in pairwise(kinds))][:number]
    return [DecisionRequest(context=text, seed=seed + i) for i, text in enumerate(texts)]


def plans_hold(context: GateContext) -> GateResult:
    """Plans for red-team instructions have only task types and able workers of the catalogue, within every limit."""
    policy: Any = context.candidate.load()
    texts = [one.text * one.repeat for one in context.instructions]
    texts = [text for text in texts if text.strip()] or [str(request.context) for request in context.requests]
    found, counts = list[str](), {"planned": 0, "refused": 0}
    for name, (catalogue, limits) in _situations(policy.catalogue, policy.limits).items():
        decider: Decider = policy.decider(catalogue=catalogue, limits=limits)
        for number, text in enumerate(texts[:: max(1, len(texts) // MAX_PLANS)]):
            request = DecisionRequest(context=text, seed=context.seed + number)
            wrong = _wrong(decider, request, catalogue, limits)
            counts["refused" if wrong is None else "planned"] += 1
            found += [f"{name}, {text[:40]!r}: {wrong}"] if wrong else []
    asked = sum(counts.values())
    reason = f"All {counts['planned']:,} plans are within catalogue, budgets and limits; {counts['refused']:,} refused."
    if found:
        reason = f"{len(found)} of {asked:,} plans break a rule; the first: {found[0]}. Correct the policy."
    return GateResult(
        name="plan_limits",
        verdict=Verdict.FAIL if found else Verdict.PASS if counts["planned"] else Verdict.CANNOT_TELL,
        value=float(len(found)),
        bound=0.0,
        reason=reason,
        evidence={**counts, "broken": found[:SHOWN]},
    )


def _situations(catalogue: Catalogue, limits: Limits) -> Mapping[str, tuple[Catalogue, Limits]]:
    """The planner's own catalogue and limits, and tighter ones."""
    found = {"own limits": (catalogue, limits), "two subtasks": (catalogue, replace(limits, max_nodes=2))}
    if not catalogue.workers:
        return found
    usd = sorted(worker.cost_usd() for worker in catalogue.workers)
    ms = sorted(worker.latency_ms for worker in catalogue.workers)
    usual = max(catalogue.workers, key=lambda worker: len(worker.task_types or catalogue.task_types))
    if usd[-1] > 0:
        found["small budget"] = catalogue, replace(limits, max_cost_usd=max(2 * usd[len(usd) // 2], 1e-9))
    if ms[-1] > 0:
        found["little time"] = catalogue, replace(limits, max_time_ms=max(2 * ms[len(ms) // 2], 1e-9))
    found["a worker less"] = catalogue.updated(usual.name, available=False), limits
    found["quotas of 1"] = catalogue.updated(usual.name, quota=1), limits
    return found


def _wrong(decider: Decider, request: DecisionRequest, catalogue: Catalogue, limits: Limits) -> str | None:
    """What is wrong with the plan, empty if nothing is; None if there is none because nothing can be planned."""
    try:
        decision = decider.decide(request)
    except (DataError, CatalogueError):
        return None
    except Exception as error:  # whatever a policy of any package raises
        return f"it raised {type(error).__name__}: {error!s:.120}"
    try:
        nodes = [Node(**{**node, "dependencies": tuple(node["dependencies"])}) for node in decision.action]
        Plan(instruction=str(request.context)[:100], nodes=tuple(nodes)).check(catalogue, limits)
    except (PlanError, TypeError, KeyError) as error:
        return f"{error!s:.200}"
    return ""
