"""A request to plan as a prompt for a language model, with the JSON Schema of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.problems.catalogue import Catalogue, Worker
from etude.problems.workflow.plan import Limits, Node

SYSTEM = (
    "You plan workflows: you split a request into subtasks, decide which subtask needs the results of which others, "
    "and give each subtask to a worker."
)
PROMPT = """\
Task types, the only kinds of subtasks there are:
{task_types}

Workers:
{workers}

Rules:
- Plan the subtasks that the request needs, no others, at most {max_nodes}.
- Use the names above exactly as they are written.
- Give a subtask only to a worker that does its task type; prefer one that succeeds often, then a cheap one.
- `after` has the ids of the subtasks whose results a subtask needs; subtasks that need nothing from each other run in \
parallel.{limits}
{done}
The request is between the lines of =====.
=====
{instruction}
=====

Answer with JSON alone, such as
{{"nodes": [{{"id": {first}, "task_type": "…", "worker": "…", "after": []}}, \
{{"id": {second}, "task_type": "…", "worker": "…", "after": [{first}]}}]}}"""
AGAIN = """

Your previous answer cannot be used: {error}. It was:
{answer}

Answer again, with JSON alone, and correct this."""
MAX_SHOWN_CHARS = 4000
"""Of a previous answer."""


def plan_prompt(instruction: str, now: Catalogue, limits: Limits, done: Sequence[Node]) -> str:
    """The prompt about one instruction; `now` has the workers' live numbers, `limits` are what is left of them."""
    able = {t.name: any(now.able(worker, t.name) for worker in now.workers) for t in now.task_types}
    types = [
        f"- {_line(t.name, t.description)}{'' if able[t.name] else ' (no worker can do it now)'}"
        for t in now.task_types
    ]
    first = len(done) + 1
    return PROMPT.format(
        task_types="\n".join(types),
        workers="\n".join(f"- {_worker(worker)}" for worker in now.workers if worker.available and worker.quota != 0),
        max_nodes=limits.max_nodes,
        limits=_limits(limits),
        done=_done(done),
        instruction=instruction,
        first=first,
        second=first + 1,
    )


def ask_again(prompt: str, answer: str, error: Exception) -> str:
    """The prompt with an answer to it that cannot be used, and why."""
    return prompt + AGAIN.format(error=str(error).rstrip("."), answer=answer[:MAX_SHOWN_CHARS])


def response_format(catalogue: Catalogue) -> dict[str, Any]:
    """The field of a request that constrains the answer to the names of a catalogue."""
    node = {
        "id": {"type": "integer"},
        "task_type": {"type": "string", "enum": [t.name for t in catalogue.task_types]},
        "worker": {"type": "string", "enum": [worker.name for worker in catalogue.workers]},
        "after": {"type": "array", "items": {"type": "integer"}},
    }
    schema = _object({"nodes": {"type": "array", "items": _object(node)}})
    return {"type": "json_schema", "json_schema": {"name": "plan", "strict": True, "schema": schema}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _line(name: str, description: str) -> str:
    text = " ".join(description.split())
    return f"{name}: {text}" if text else name


def _worker(worker: Worker) -> str:
    does = "every task type" if worker.task_types is None else ", ".join(worker.task_types)
    facts = [f"does {does}", f"{worker.cost_usd():.3g} USD and {worker.latency_ms:.0f} ms per call"]
    if worker.success_rate is not None:
        facts.append(f"{worker.success_rate:.0%} of its calls succeed")
    if worker.quota is not None:
        facts.append(f"{worker.quota} calls left")
    return f"{_line(worker.name, worker.description)} [{'; '.join(facts)}]"


def _limits(limits: Limits) -> str:
    cost = [] if limits.max_cost_usd is None else [f"cost at most {limits.max_cost_usd:.3g} USD"]
    time = [] if limits.max_time_ms is None else [f"take at most {limits.max_time_ms:.0f} ms"]
    return f"\n- All subtasks together {' and '.join([*cost, *time])}." if cost or time else ""


def _done(done: Sequence[Node]) -> str:
    if not done:
        return ""
    nodes = "\n".join(f"- id {i}: {node.task_type}" for i, node in enumerate(done, 1))
    return f"\nThese subtasks are done, do not plan them again; `after` may have their ids:\n{nodes}\n"
