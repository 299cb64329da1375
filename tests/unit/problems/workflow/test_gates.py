"""A workflow's own gate: plans of real rules stay within catalogue and limits, and illegal ones are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from etude.contracts.decision import Decision, DecisionRequest
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import Contender, GateContext, GateResult
from etude.problems.catalogue import Catalogue, TaskType
from etude.problems.workflow import SPEC
from etude.problems.workflow.decide import WorkflowDecider, at_random
from etude.problems.workflow.gates import plans_hold
from etude.problems.workflow.plan import Limits
from etude.release.gates.gate import run_gate
from etude.release.gates.red_team import read_instructions
from tests.crew import entry

KNOWN = Catalogue(
    task_types=(TaskType(name="draft", description="write a text"), TaskType(name="send", description="mail a text")),
    workers=(
        entry("cheap", usd_per_call=0.01, latency_ms=900.0, success_rate=0.6),
        entry("quick", usd_per_call=0.2, latency_ms=100.0, success_rate=0.8),
        entry("mailer", task_types=("send",), usd_per_call=0.02, latency_ms=50.0, success_rate=0.9),
    ),
)


class Planner:
    """Plans at random within the rules of the catalogue and limits that it is given, or of its own only."""

    catalogue, limits = KNOWN, Limits(max_nodes=5)

    def __init__(self, *, obeys: bool = True, changed: Any = None) -> None:
        self.obeys, self.changed = obeys, changed

    def decider(self, *, catalogue: Catalogue, limits: Limits) -> Any:
        kept = (catalogue, limits) if self.obeys else (self.catalogue, self.limits)
        decider = WorkflowDecider(version="v", catalogue=kept[0], limits=kept[1], choosers=at_random)
        return decider if self.changed is None else Changed(decider, self.changed)


class Changed:
    """A decider whose plans are changed after all checks."""

    def __init__(self, decider: WorkflowDecider, change: Any) -> None:
        self.inner, self.change = decider, change

    def decide(self, request: DecisionRequest) -> Decision:
        found = self.inner.decide(request)
        return Decision(
            action=self.change(found.action), propensity=found.propensity, policy=found.policy, logged=found.logged
        )


def judged(planner: Planner) -> GateResult:
    contender = Contender(artefact=cast(Artefact, None), load=lambda: cast(Any, planner))
    context = GateContext(slot="workflow", spec=SPEC, candidate=contender, instructions=read_instructions()[1])
    return run_gate("plan_limits", plans_hold, context)


def test_plans_within_the_rules_pass() -> None:
    found = judged(Planner())
    assert found.verdict is Verdict.PASS, found.reason
    assert found.evidence["planned"] > 200


@pytest.mark.parametrize(
    ("planner", "said"),
    [
        (Planner(obeys=False), "the limit is|not able to do|calls left"),
        (Planner(changed=lambda plan: [{**node, "worker": "nobody"} for node in plan]), "'nobody'"),
        (Planner(changed=lambda plan: [{**node, "task_type": "hack"} for node in plan]), "'hack'"),
        (Planner(changed=lambda plan: [{**node, "dependencies": [7]} for node in plan]), "depends on 7"),
        (Planner(changed=lambda plan: []), "no nodes"),
        (Planner(changed=lambda plan: 1 / 0), "ZeroDivisionError"),
    ],
)
def test_plans_that_break_a_rule_fail(planner: Planner, said: str) -> None:
    import re

    found = judged(planner)
    assert found.verdict is Verdict.FAIL
    assert any(re.search(said, one) for one in found.evidence["broken"]), found.evidence["broken"]


def test_a_planner_that_never_plans_is_not_passed() -> None:
    unavailable = replace_workers(KNOWN)
    planner = Planner()
    planner.catalogue = unavailable  # type: ignore[misc]
    assert judged(planner).verdict is Verdict.CANNOT_TELL


def replace_workers(catalogue: Catalogue) -> Catalogue:
    for worker in catalogue.workers:
        catalogue = catalogue.updated(worker.name, available=False)
    return catalogue


def test_limits_are_tightened_from_the_planners_own() -> None:
    from etude.problems.workflow.gates import _situations

    limits = replace(Limits(), max_nodes=4)
    found = _situations(KNOWN, limits)
    assert found["two subtasks"][1].max_nodes == 2
    assert found["small budget"][1].max_cost_usd == pytest.approx(0.04)
    assert found["little time"][1].max_time_ms == pytest.approx(200)
    assert sum(not worker.available for worker in found["a worker less"][0].workers) == 1
