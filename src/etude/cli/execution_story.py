"""One execution for people: its plan as a picture, its story in words, what followed each failure.

Names and messages come from catalogues and logs: they are escaped wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import msgspec

from etude.contracts.decision import Decision
from etude.learning.formats import duration, fixed, usd
from etude.orchestrator.record import Attempt, Execution, NodeRecord
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.drawing import BOX_HEIGHT, BOX_WIDTH, UNWANTED, to_svg
from etude.problems.workflow.plan import Node, Plan, in_order


def drawing(execution: Execution, catalogue: Catalogue, number: int) -> str:
    """The nodes that stood in the end, beneath each of them attempts, cost and time. `number` tells its ids apart."""
    nodes = standing(execution)
    if not nodes:
        return '<p class="note">There is no plan.</p>'
    svg = to_svg(final_plan(nodes, catalogue), status=[node.status for node in nodes])
    svg = svg.replace(' xmlns="http://www.w3.org/2000/svg"', ' style="max-width:100%;height:auto"', 1)
    svg = re.sub(r"arrow-[0-9a-f]{8}", f"arrow-{number}", svg)  # ids belong to the page, which holds many plans
    return BOX.sub(lambda box: box[0] + _beneath(box, nodes[int(box["node"])]), svg)


def standing(execution: Execution) -> list[NodeRecord]:
    """The nodes that stood in the end, what they depend on before them."""
    nodes = [node for node in execution.nodes if node.status != "dropped"]
    order = in_order([node.dependencies for node in nodes])
    return [
        msgspec.structs.replace(nodes[i], dependencies=tuple(sorted(order.index(j) for j in nodes[i].dependencies)))
        for i in order
    ]


def final_plan(nodes: Sequence[NodeRecord], catalogue: Catalogue, instruction: str = "") -> Plan:
    """Of nodes in this order."""
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


BOX = re.compile(r'<g data-node="(?P<node>\d+)"><title>[^<]*</title><rect x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)"[^>]*/>')
"""Of a drawn plan: where a node stands."""


def _beneath(box: re.Match[str], node: NodeRecord) -> str:
    x, y = float(box["x"]) + BOX_WIDTH / 2, float(box["y"]) + BOX_HEIGHT + 12.5
    failures = sum(attempt.fault is not None for attempt in node.attempts)
    ink = "#b91c1c" if failures else "#475569"
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="10.5" fill="{ink}"'
    return f'<text class="what" {at}>{escape(_spent(node.attempts))}</text>'


def _spent(attempts: Sequence[Attempt]) -> str:
    if not attempts:
        return "not begun"
    money, latency = sum(a.cost_usd for a in attempts), sum(a.latency_ms for a in attempts)
    return f"{plural(len(attempts), 'attempt')} · {usd(money)} · {took(latency)}"


def _type_name(catalogue: Catalogue, i: int) -> str:
    return catalogue.task_types[i].name if 0 <= i < len(catalogue.task_types) else f"#{i}"


def _worker_name(catalogue: Catalogue, i: int) -> str:
    return catalogue.workers[i].name if 0 <= i < len(catalogue.workers) else f"#{i}"


def instructive(executions: Sequence[Execution]) -> Execution | None:
    """Of those that succeeded though a subtask failed, one that was corrected in more ways than by trying again."""
    corrected = [e for e in executions if e.success and any(n.status == "done" and _has_failed(n) for n in e.nodes)]
    return max(corrected, key=lambda e: (len(_ways(e)), -abs(len(e.nodes) - 4)), default=None)


def _has_failed(node: NodeRecord) -> bool:
    return any(attempt.fault is not None for attempt in node.attempts)


def _ways(execution: Execution) -> set[str]:
    return {d.choice.correction for d in execution.decisions if d.choice.correction is not None} - {"retry"}


@dataclass(frozen=True, kw_only=True)
class Moment:
    at_ms: float
    what: str  # HTML
    kind: str = ""  # a class of the style sheet


def story(execution: Execution, catalogue: Catalogue) -> list[Moment]:
    """What happened, in the order of time: plans, attempts as they ended, corrections, the end."""
    moments = _attempts(execution, catalogue) + _decisions(execution, catalogue)
    first = [decision for decision in execution.decisions if decision.failed is None and decision.at_ms == 0]
    planned = Moment(at_ms=0.0, what=f"plans {_given(first, catalogue)}")
    how = Moment(at_ms=execution.latency_ms, what=f"fails: {one_line(execution.error)}", kind="down")
    if execution.success:
        told = f"all that was asked for is done, for {usd(execution.cost)}"
        how = Moment(at_ms=execution.latency_ms, what=told, kind="up")
    return [planned, *sorted(moments, key=lambda moment: moment.at_ms), how]  # of one time, attempts come first


def _attempts(execution: Execution, catalogue: Catalogue) -> list[Moment]:
    moments = []
    for node in execution.nodes:
        for attempt in node.attempts:
            who = one_line(_worker_name(catalogue, attempt.worker))
            what = one_line(_type_name(catalogue, node.task_type))
            spent = f"{usd(attempt.cost_usd)}, {took(attempt.latency_ms)}"
            told, kind = f"{who} has done {what} ({spent})", "up"
            if attempt.fault is not None:
                why = f"{one_line(attempt.fault)}, “{one_line(attempt.message)}”"
                told, kind = f"{who} fails at <b>{what}</b>: {why} ({spent})", "down"
            moments.append(Moment(at_ms=attempt.started_ms + attempt.latency_ms, what=told, kind=kind))
    return moments


def _decisions(execution: Execution, catalogue: Catalogue) -> list[Moment]:
    """Corrections, and what is planned after one."""
    moments, anew = [], dict[float, list[Decision]]()
    subjects = {id(decision): node for node, _, decision in reversed(followed(execution)) if decision is not None}
    for decision in execution.decisions:
        if decision.failed is None:
            anew.setdefault(decision.at_ms, []).append(decision)
        else:
            what = _choice(decision, subjects.get(id(decision)), catalogue)
            moments.append(Moment(at_ms=decision.at_ms, what=what))
    later = [(at_ms, made) for at_ms, made in anew.items() if at_ms > 0]
    return moments + [Moment(at_ms=at_ms, what=f"plans anew: {_given(made, catalogue)}") for at_ms, made in later]


def followed(execution: Execution) -> list[tuple[NodeRecord, Attempt, Decision | None]]:
    """Each failed attempt with the correction that followed; none where the workflow was over.

    A replan answers all that it drops.
    """
    left = [(node, attempt) for node in execution.nodes for attempt in node.attempts if attempt.fault is not None]
    left.sort(key=lambda one: one[1].started_ms + one[1].latency_ms)
    found: list[tuple[NodeRecord, Attempt, Decision | None]] = []
    made = [decision for decision in execution.decisions if decision.failed is not None]
    for decision in made:
        own = [i for i, (node, _) in enumerate(left) if node is execution.nodes[decision.failed or 0]][:1]
        if decision.choice.correction == "replan":
            own += [i for i, (node, _) in enumerate(left) if node.status == "dropped" and i not in own]
        found += [(*left[i], decision) for i in own]
        left = [one for i, one in enumerate(left) if i not in own]
    return found + [(*one, None) for one in left]


def _choice(decision: Decision, node: NodeRecord | None, catalogue: Catalogue) -> str:
    eligible, choice = decision.eligible, decision.choice
    subject = f" for {one_line(_type_name(catalogue, node.task_type))}" if node is not None else ""
    told = f"eligible{subject}: {one_line(', '.join(eligible.corrections or ()))}; chosen: "
    told += f"<b>{one_line(choice.correction or '')}</b>"
    if choice.task_type is not None:
        told += f", first {one_line(_type_name(catalogue, choice.task_type))}"
    if choice.worker is not None:
        others = ", ".join(_worker_name(catalogue, w) for w in eligible.workers or ())
        to = "by" if choice.task_type is not None else "to"
        told += f" {to} <b>{one_line(_worker_name(catalogue, choice.worker))}</b> (of {one_line(others)})"
    chance = "a person’s choice" if decision.propensity is None else f"propensity {fixed(decision.propensity, 2)}"
    return f"{told}, {chance}"


def _given(decisions: Sequence[Decision], catalogue: Catalogue) -> str:
    """Subtasks and who they are given to."""
    nodes = [decision.choice for decision in decisions if decision.choice.task_type is not None]
    told = [
        one_line(_type_name(catalogue, node.task_type or 0))
        + (f" by {one_line(_worker_name(catalogue, node.worker))}" if node.worker is not None else "")
        for node in nodes
    ]
    return f"{plural(len(nodes), 'subtask')}: {', '.join(told)}" if told else "nothing"


def corrections(execution: Execution) -> int:
    """Those that count against the limit: to give up is none."""
    return sum(decision.choice.correction not in (None, "abort") for decision in execution.decisions)


def took(ms: float) -> str:
    return duration(ms / 1000)


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def one_line(text: str) -> str:
    """Escaped, on one line, of what HTML allows."""
    return escape(" ".join(UNWANTED.sub(" ", text).split()))
