"""Logged attempts at subtasks: trajectories in, what each worker did at each subtask out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from etude.contracts.trajectory import Trajectory
from etude.contracts.work import Fault
from etude.problems.workflow.decisions import PROBLEM
from etude.problems.workflow.faults import CATEGORY, NOT_THE_WORKERS

VERIFIED = frozenset({"verifier", "judge", "person"})
"""Who may say that a whole workflow succeeded; anything else is self-declared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One logged attempt at a subtask."""

    trajectory: str
    request: str  # the instruction
    task_type: str
    worker: str
    failed: tuple[str, ...]  # workers that had failed at this subtask
    category: int  # of the last one's fault, 0 at the first attempt
    done: bool
    verified: bool  # whether a verifier of its task type checked the output
    whole: bool | None  # whether the whole workflow succeeded; None if that is self-declared
    plan: str  # the same for workflows with the same subtasks and links
    finished: bool  # whether every subtask of the workflow is done
    cost_usd: float
    latency_ms: float


def read_attempts(trajectories: Iterable[Trajectory]) -> Iterator[Attempt]:
    """Attempts in order; those that ended for reasons that are not the worker's are left out."""
    for trajectory in trajectories:
        if trajectory.problem != PROBLEM:
            continue
        outcome, failed = trajectory.outcome, dict[int, tuple[str, ...]]()
        whole = outcome.success if outcome.success_by in VERIFIED else None
        plan, finished, last = _plan_of(trajectory), outcome.subtasks == outcome.subtasks_done, dict[int, int]()
        for turn in trajectory.turns:
            if not isinstance(turn.action, Mapping) or turn.action.get("worker") is None:
                continue
            node, fault = int(turn.action["node"]), _fault(turn.error)
            if fault not in NOT_THE_WORKERS:
                yield Attempt(
                    trajectory=trajectory.id,
                    request=trajectory.task,
                    task_type=turn.action["task_type"],
                    worker=turn.action["worker"],
                    failed=failed.get(node, ()),
                    category=last.get(node, 0),
                    done=fault is None,
                    verified=bool(turn.action.get("verified")),
                    whole=whole,
                    plan=plan,
                    finished=finished,
                    cost_usd=turn.cost_usd or 0.0,
                    latency_ms=turn.latency_ms or 0.0,
                )
            if fault is not None:
                failed[node] = (*failed.get(node, ()), turn.action["worker"])
                last[node] = int(CATEGORY[fault])


def _plan_of(trajectory: Trajectory) -> str:
    """Subtasks and links of the end, where they are known; else the subtasks in the order of their attempts."""
    nodes = (trajectory.metadata or {}).get("nodes")
    if nodes:
        kept = [(node["task_type"], node["dependencies"]) for node in nodes if node["status"] != "dropped"]
        return repr(kept)
    done = [turn.action for turn in trajectory.turns if isinstance(turn.action, Mapping) and turn.error is None]
    return repr([action.get("task_type") for action in done])


def _fault(error: str | None) -> Fault | None:
    """The fault that a turn's error begins with."""
    name = (error or "").partition(":")[0]
    return None if error is None else Fault(name) if name in set(Fault) else Fault.UNKNOWN
