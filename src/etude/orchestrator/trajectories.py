"""An execution as a trajectory: what everything that learns from experience takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from etude.contracts.decision import Decision
from etude.contracts.plain import plain
from etude.contracts.trajectory import LoggedDecision, Outcome, Trajectory, Turn
from etude.orchestrator.record import Execution
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.logged import catalogue_id

ENDED = {"done", "failed", "aborted", "cancelled", "deadline"}


def to_trajectory(execution: Execution, catalogue: Catalogue, **about: Any) -> Trajectory:
    """Its decisions as they were logged, an attempt a turn; `about` are fields such as user and group."""
    time = datetime.fromisoformat(execution.timestamp)
    wanted = [node for node in execution.nodes if node.status != "dropped"]
    return Trajectory(
        id=execution.id,
        time=time if time.tzinfo else time.replace(tzinfo=UTC),
        task=execution.instruction,
        problem="workflow",
        policy=execution.policy or None,
        decisions=tuple(logged_decision(decision) for decision in execution.decisions),
        turns=tuple(_turns(execution, catalogue)),
        outcome=Outcome(
            success=execution.success,
            ended=execution.ended if execution.ended in ENDED else "failed",  # type: ignore[arg-type]  # just checked
            error=execution.error or None,
            cost_usd=execution.cost,
            latency_ms=execution.latency_ms,
            subtasks=len(wanted),
            subtasks_done=sum(node.status == "done" for node in wanted),
        ),
        metadata={"catalogue": catalogue_id(catalogue), "execution_reward": execution.reward},
        **about,
    )


def logged_decision(decision: Decision) -> LoggedDecision:
    """As every kind of decision is kept."""
    told = msgspec.to_builtins(decision)
    known = {name: told[name] for name in ("failed", "live", "state") if name in told}
    return LoggedDecision(
        problem="workflow",
        at_ms=decision.at_ms,
        context=known or None,
        eligible=told["eligible"],
        action=told["choice"],
        propensity=decision.propensity,
        policy=decision.policy,
    )


def _turns(execution: Execution, catalogue: Catalogue) -> list[Turn]:
    """Attempts in the order in which they began."""
    turns = []
    for number, node in enumerate(execution.nodes):
        for attempt in node.attempts:
            done = attempt.fault is None
            turns.append(
                Turn(
                    at_ms=attempt.started_ms,
                    action={
                        "node": number,
                        "task_type": catalogue.task_types[node.task_type].name,
                        "worker": catalogue.workers[attempt.worker].name if catalogue.workers else None,
                    },
                    result=plain(execution.execution_result.outputs.get(str(number))) if done else None,
                    error=None if done else f"{attempt.fault}: {attempt.message}",
                    cost_usd=attempt.cost_usd,
                    latency_ms=attempt.latency_ms,
                )
            )
    return sorted(turns, key=lambda turn: turn.at_ms)
