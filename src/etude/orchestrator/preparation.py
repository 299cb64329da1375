"""Before a plan is carried out, its subtasks get their parameters, and what they need is checked.

Nothing is spent on a plan that lacks an input or a parameter, except on a language model that fills parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from etude.contracts.work import Fault, WorkerError
from etude.orchestrator.attempts import Attempts
from etude.orchestrator.crew import TIMEOUT_S
from etude.orchestrator.parameters import Needs, Parameters
from etude.orchestrator.workers.openai import OpenAIWorker
from etude.problems.catalogue import TaskType
from etude.problems.workflow.grammar import Status


async def prepare(attempts: Attempts) -> None:
    """Set the parameters of all planned subtasks. WorkerError names the subtask that lacks something, and what to do.

    Task types whose parameters a model fills come last: it is asked only if nothing else is missing.
    """
    types, needs = attempts.crew.catalogue.task_types, attempts.crew.needs
    waiting = [step for step in attempts.progress.steps if step.status == Status.PLANNED and not step.begun]
    for step in waiting:
        with _naming(types[step.task_type]):
            attempts.check_input(step, outputs_are_known=False)
    of = {kind: needs.get(types[kind].name, Needs()).parameters for kind in {step.task_type for step in waiting}}
    for kind, parameters in sorted(of.items(), key=lambda item: bool(item[1] and item[1].model)):
        with _naming(types[kind]):
            if parameters is not None and kind not in attempts.parameters:
                attempts.parameters[kind] = await _filled(attempts, parameters, types[kind])
            for step in waiting:
                if step.task_type == kind:
                    attempts.check_subtask(step)


@contextmanager
def _naming(task_type: TaskType) -> Iterator[None]:
    """Errors name this task type and their fault."""
    try:
        yield
    except WorkerError as error:
        message = f"{task_type.name}: {error} ({error.fault})"
        raise WorkerError(message, fault=error.fault, cost_usd=error.cost_usd) from error


async def _filled(attempts: Attempts, parameters: Parameters, task_type: TaskType) -> dict[str, Any]:
    """The parameters that patterns find in the instruction, then a model, then the defaults."""
    found = parameters.found_in(attempts.instruction)
    if parameters.model is not None and parameters.properties.keys() - found.keys():
        prompt = parameters.question(attempts.instruction, task_type.name, task_type.description)
        answer, cost_usd = await _answered(attempts, parameters.model, prompt)
        found = parameters.read_answer(answer, cost_usd) | found
    return parameters.completed(found)


async def _answered(attempts: Attempts, model: OpenAIWorker, prompt: str) -> tuple[Any, float]:
    """A model's answer and its cost, which the workflow pays; WorkerError if it costs too much or does not answer."""
    if refusal := attempts.over_budget(model.max_usd_for(prompt) or 0.0):
        raise WorkerError(f"to fill its parameters: {refusal}", fault=Fault.BUDGET, cost_usd=0.0)
    limit_s = attempts.time_for(TIMEOUT_S)
    try:
        async with asyncio.timeout(limit_s):
            reply = await model.ask(prompt, timeout_s=limit_s)
    except TimeoutError as error:
        message = f"the model that fills its parameters did not answer within {limit_s:g} s"
        raise WorkerError(message, fault=Fault.TIMEOUT) from error
    except WorkerError as error:
        attempts.progress.spent_usd += error.cost_usd or 0.0
        raise WorkerError(f"the model that fills its parameters: {error}", fault=error.fault) from error
    attempts.progress.spent_usd += reply.cost_usd or 0.0
    return reply.output, reply.cost_usd or 0.0
