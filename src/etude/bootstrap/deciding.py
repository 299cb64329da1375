"""Workflow decisions for a task of anybody's, and executions as events."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from etude.bootstrap.orchestration import make_decider, make_workplace
from etude.contracts.errors import DataError
from etude.contracts.subjects import encode
from etude.experience.config import ExperienceConfig
from etude.experience.task import Choice, Chooser
from etude.orchestrator.crew import Crew
from etude.orchestrator.log import decode_execution, log_catalogue
from etude.orchestrator.trajectories import logged_decision, to_trajectory
from etude.problems.workflow.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.progress import Progress


def workflow_chooser(config: ExperienceConfig) -> Chooser:
    """Plans by the policy that the settings name, for the workers they name."""
    place = make_workplace(Path(config.workers) if config.workers else None)
    policy = config.policies.get("workflow", "rules")
    decider = make_decider(policy, place, explore=config.explore)
    catalogue = place.crew.catalogue

    def choose(context: Any, eligible: Sequence[Any] | None) -> Choice:
        if eligible is not None:
            raise DataError("eligible is for problems of your own: of a workflow, the workers and limits say what is")
        progress = Progress(instruction=_instruction(context))
        mind = decider.about(progress.instruction, seed=secrets.randbits(62))
        decisions = mind.plan(progress, Crew.live(place.crew, "", now_s=time.monotonic()))
        chances = [decision.propensity for decision in decisions]
        return Choice(
            problem="workflow",
            action=_plan(progress, catalogue),
            propensity=None if None in chances else math.prod(p for p in chances if p is not None),
            policy=decider.version,
            decisions=tuple(logged_decision(decision) for decision in decisions),
        )

    return choose


def _instruction(context: Any) -> str:
    found = context.get("instruction") if isinstance(context, Mapping) else context
    if not isinstance(found, str):
        raise DataError(f"the context of a workflow is {context!r:.80}: expected the instruction, or a mapping with it")
    return found


def _plan(progress: Progress, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Subtasks by name, in an order in which they can be done."""
    place = {id(step): i for i, step in enumerate(progress.steps)}
    return [
        {
            "task_type": catalogue.task_types[step.task_type].name,
            "worker": catalogue.workers[step.worker].name if catalogue.workers else None,
            "dependencies": [place[id(before)] for before in step.dependencies],
        }
        for step in progress.steps
    ]


def log_catalogue_of(log: Path, catalogue: Path | None) -> Catalogue:
    return read_catalogue(catalogue) if catalogue is not None else log_catalogue(log)


def execution_event(line: bytes, catalogue: Catalogue) -> bytes:
    """A line of an execution log as a trajectory; one of UNREADABLE where it is none."""
    execution = decode_execution(line)
    if not execution.id:  # as the source document has it
        execution = msgspec.structs.replace(execution, id=f"e-{sha256(line).hexdigest()[:24]}")
    return encode(to_trajectory(execution, catalogue))
