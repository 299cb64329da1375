"""One execution in detail: a drawing of its plan, its events in words, and the correction of each failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from markupsafe import Markup

from etude.contracts.decision import LoggedDecision
from etude.contracts.formats import duration, fixed, plural, usd
from etude.orchestrator.record import Attempt, Execution, NodeRecord, correction_of, failed_node
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decisions import Choice, Eligible
from etude.problems.workflow.drawing import Note, task_colours, to_svg
from etude.problems.workflow.plan import Node, Plan, topological_order
from etude.reports.blocks import Strong, Text


def drawing(execution: Execution, catalogue: Catalogue, figure: int) -> Markup | None:
    """The final nodes, below each of them its attempts, cost and time; None where there are none.

    Task types have the same colours in all drawings of a catalogue.
    """
    nodes = standing(execution)
    if not nodes:
        return None
    plan = final_plan(nodes, catalogue)
    svg = to_svg(
        plan,
        status=[node.status for node in nodes],
        notes=[_note(node.attempts) for node in nodes],
        colours=task_colours([*(t.name for t in catalogue.task_types), *(node.task_type for node in plan.nodes)]),
        figure=figure,
    )
    return Markup(svg)


def standing(execution: Execution) -> list[NodeRecord]:
    """The nodes that were not dropped by a replan, each after those that it depends on."""
    nodes = [node for node in execution.nodes if node.status != "dropped"]
    order = topological_order([node.dependencies for node in nodes])
    return [
        msgspec.structs.replace(nodes[i], dependencies=tuple(sorted(order.index(j) for j in nodes[i].dependencies)))
        for i in order
    ]


def final_plan(nodes: Sequence[NodeRecord], catalogue: Catalogue, instruction: str = "") -> Plan:
    """The plan of these nodes, in this order."""
    return Plan(
        instruction=instruction,
        nodes=tuple(
            Node(
                task_type=_type_name(catalogue, node.task_type),
                dependencies=node.dependencies,
                worker=None if node.worker is None else _worker_name(catalogue, node.worker),
            )
            for node in nodes
        ),
    )


def _note(attempts: Sequence[Attempt]) -> Note:
    if not attempts:
        return Note(text="not started")
    money, latency = sum(a.cost_usd for a in attempts), sum(a.latency_ms for a in attempts)
    text = f"{plural(len(attempts), 'attempt')} · {usd(money)} · {took(latency)}"
    return Note(text=text, is_fault=any(attempt.fault is not None for attempt in attempts))


def _type_name(catalogue: Catalogue, i: int) -> str:
    return catalogue.task_types[i].name if 0 <= i < len(catalogue.task_types) else f"#{i}"


def _worker_name(catalogue: Catalogue, i: int) -> str:
    return catalogue.workers[i].name if 0 <= i < len(catalogue.workers) else f"#{i}"


def instructive(executions: Sequence[Execution]) -> Execution | None:
    """An execution that succeeded although a subtask failed, preferably corrected in more ways than by a retry."""
    corrected = [
        execution
        for execution in executions
        if execution.success
        and any(node.status == "done" and any(a.fault is not None for a in node.attempts) for node in execution.nodes)
    ]
    ways = {e.id: {correction_of(decision) for decision in e.decisions} - {None, "retry"} for e in corrected}
    return max(corrected, key=lambda e: (len(ways[e.id]), -abs(len(e.nodes) - 4)), default=None)


@dataclass(frozen=True, kw_only=True)
class Moment:
    at_ms: float
    what: Text
    kind: str = ""  # a class of the style sheet


def detail(execution: Execution, catalogue: Catalogue) -> list[Moment]:
    """The events of an execution by time: plans, ends of attempts, corrections, the end."""
    moments = _attempts(execution, catalogue) + _decisions(execution, catalogue)
    first = [decision for decision in execution.decisions if failed_node(decision) is None and decision.at_ms == 0]
    planned = Moment(at_ms=0.0, what=f"plans {_given(first, catalogue)}")
    end = Moment(at_ms=execution.latency_ms, what=f"fails: {execution.error}", kind="down")
    if execution.success:
        what = f"everything that was asked for is done, for {usd(execution.cost)}"
        end = Moment(at_ms=execution.latency_ms, what=what, kind="up")
    return [planned, *sorted(moments, key=lambda moment: moment.at_ms), end]  # at the same time, attempts come first


def _attempts(execution: Execution, catalogue: Catalogue) -> list[Moment]:
    moments = []
    for node in execution.nodes:
        for attempt in node.attempts:
            worker, task = _worker_name(catalogue, attempt.worker), _type_name(catalogue, node.task_type)
            spent = f"({usd(attempt.cost_usd)}, {took(attempt.latency_ms)})"
            what: Text = f"{worker} has done {task} {spent}"
            if attempt.fault is not None:
                what = [f"{worker} fails at ", Strong(task), f": {attempt.fault}, “{attempt.message}” {spent}"]
            kind = "up" if attempt.fault is None else "down"
            moments.append(Moment(at_ms=attempt.started_ms + attempt.latency_ms, what=what, kind=kind))
    return moments


def _decisions(execution: Execution, catalogue: Catalogue) -> list[Moment]:
    """Corrections, and what is planned after one."""
    moments, replanned = [], dict[float, list[LoggedDecision]]()
    subjects = {id(decision): node for node, _, decision in reversed(followed(execution)) if decision is not None}
    for decision in execution.decisions:
        if failed_node(decision) is None:
            replanned.setdefault(decision.at_ms, []).append(decision)
        else:
            what = _choice(decision, subjects.get(id(decision)), catalogue)
            moments.append(Moment(at_ms=decision.at_ms, what=what))
    later = [(at_ms, made) for at_ms, made in replanned.items() if at_ms > 0]
    return moments + [Moment(at_ms=at_ms, what=f"plans again: {_given(made, catalogue)}") for at_ms, made in later]


def followed(execution: Execution) -> list[tuple[NodeRecord, Attempt, LoggedDecision | None]]:
    """Each failed attempt with the correction that followed; None where the workflow ended.

    A replan answers all that it drops.
    """
    left = [(node, attempt) for node in execution.nodes for attempt in node.attempts if attempt.fault is not None]
    left.sort(key=lambda one: one[1].started_ms + one[1].latency_ms)
    found: list[tuple[NodeRecord, Attempt, LoggedDecision | None]] = []
    made = [decision for decision in execution.decisions if failed_node(decision) is not None]
    for decision in made:
        own = [i for i, (node, _) in enumerate(left) if node is execution.nodes[failed_node(decision) or 0]][:1]
        if correction_of(decision) == "replan":
            own += [i for i, (node, _) in enumerate(left) if node.status == "dropped" and i not in own]
        found += [(*left[i], decision) for i in own]
        left = [one for i, one in enumerate(left) if i not in own]
    return found + [(*one, None) for one in left]


def _choice(decision: LoggedDecision, node: NodeRecord | None, catalogue: Catalogue) -> Text:
    eligible, choice = msgspec.convert(decision.eligible, Eligible), msgspec.convert(decision.action, Choice)
    subject = f" for {_type_name(catalogue, node.task_type)}" if node is not None else ""
    words = [f"eligible{subject}: {', '.join(eligible.corrections or ())}; chosen: ", Strong(choice.correction or "")]
    if choice.task_type is not None:
        words.append(f", first {_type_name(catalogue, choice.task_type)}")
    if choice.worker is not None:
        others = ", ".join(_worker_name(catalogue, w) for w in eligible.workers or ())
        to = "by" if choice.task_type is not None else "to"
        words += [f" {to} ", Strong(_worker_name(catalogue, choice.worker)), f" (of {others})"]
    chance = "a person’s choice" if decision.propensity is None else f"propensity {fixed(decision.propensity, 2)}"
    return [*words, f", {chance}"]


def _given(decisions: Sequence[LoggedDecision], catalogue: Catalogue) -> str:
    """Subtasks and the workers they are given to."""
    choices = [msgspec.convert(decision.action, Choice) for decision in decisions]
    nodes = [choice for choice in choices if choice.task_type is not None]
    words = [
        _type_name(catalogue, node.task_type or 0)
        + (f" by {_worker_name(catalogue, node.worker)}" if node.worker is not None else "")
        for node in nodes
    ]
    return f"{plural(len(nodes), 'subtask')}: {', '.join(words)}" if words else "nothing"


def corrections(execution: Execution) -> int:
    """Those that count against the limit: to abort does not."""
    return sum(correction_of(decision) not in (None, "abort") for decision in execution.decisions)


def took(ms: float) -> str:
    return duration(ms / 1000)
