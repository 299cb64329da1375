"""Executions as trajectories, and back to what the policy read: nothing that it decided by is lost on the way."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace

from etude.contracts.errors import DataError
from etude.contracts.subjects import decode, encode
from etude.contracts.trajectory import Trajectory
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.record import Execution
from etude.orchestrator.trajectories import to_trajectory
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers.simulated import SimulatedCrew
from etude.problems.base import Action, Obs
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.decide import Chooser, Decider, Luck, by_lot, by_rules, chance_by_lot, exploring
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.logged import read_logged
from etude.problems.workflow.office import Office
from etude.problems.workflow.world import Tables, WorkflowConfig

CONFIG = WorkflowConfig(scenarios=60)
Seen = list[tuple[str, Obs, Action, float]]


def watched(seen: Seen, choosers: Callable[[Rules, str, Luck], Chooser]) -> Callable[[Rules, str, Luck], Chooser]:
    """The same, writing down what it read and chose."""

    def about(rules: Rules, instruction: str, luck: Luck) -> Chooser:
        own = choosers(rules, instruction, luck)

        def choose(draft: Obs) -> tuple[Action, float]:
            action, propensity = own(draft)
            seen.append((instruction, {k: v.clone() for k, v in draft.items()}, action, propensity))
            return action, propensity

        return choose

    return about


@pytest.fixture(scope="module")
def office() -> Office:
    return Office(Tables(CONFIG, None, "cpu"))


@pytest.fixture(scope="module")
def lived(office: Office) -> tuple[Catalogue, list[Execution], Seen]:
    seen: Seen = []
    crew = SimulatedCrew(office, seed=5)
    choosers = watched(seen, exploring(by_rules(), 0.3))
    decider = Decider(version="x", catalogue=crew.catalogue, limits=CONFIG.limits, choosers=choosers)
    orchestrator = Orchestrator(decider, crew, seed=5)
    results = run_virtually(orchestrator.execute_all(office.scenarios.instructions[:60], concurrency=1))
    return crew.catalogue, [result.execution for result in results], seen


def on_the_wire(executions: list[Execution], catalogue: Catalogue) -> list[Trajectory]:
    found = [decode(encode(to_trajectory(execution, catalogue))) for execution in executions]
    return [event for event in found if isinstance(event, Trajectory)]


def test_what_was_read_and_chosen_comes_back_exactly(lived: tuple[Catalogue, list[Execution], Seen]) -> None:
    catalogue, executions, seen = lived
    rules = Rules(catalogue, CONFIG.limits)
    rows = read_logged(rules, on_the_wire(executions, catalogue))
    assert len(rows.log_propensity) == len(seen) > 300
    assert sum(execution.decisions[-1].failed is not None for execution in executions) > 5  # corrections too
    by_instruction = [executions[i].instruction for i in rows.trajectory.tolist()]
    assert by_instruction == [instruction for instruction, _, _, _ in seen]
    for i, (_, draft, action, propensity) in enumerate(seen):
        for name in draft.keys() - {"instruction"}:
            assert torch.equal(rows.obs[name][i], draft[name][0]), (i, name)
        assert math.exp(float(rows.log_propensity[i])) == pytest.approx(propensity)
        for name, chosen in action.items():
            read = rows.action[name][i]
            applies = name != "worker" or int(rows.action["type"][i]) < rules.types or int(chosen) == int(read)
            assert torch.equal(read, chosen[0]) or not applies, (i, name)


def test_the_ways_to_choose_are_those_of_a_lot(office: Office) -> None:
    crew = SimulatedCrew(office, seed=1)
    decider = Decider(version="lot", catalogue=crew.catalogue, limits=CONFIG.limits, choosers=by_lot)
    orchestrator = Orchestrator(decider, crew, seed=2)
    results = run_virtually(orchestrator.execute_all(office.scenarios.instructions[:20], concurrency=1))
    rows = read_logged(
        Rules(crew.catalogue, CONFIG.limits), on_the_wire([r.execution for r in results], crew.catalogue)
    )
    assert torch.allclose(rows.eligible, -rows.log_propensity)
    rules = Rules(crew.catalogue, CONFIG.limits)
    for i in range(0, len(rows.eligible), 7):
        draft = {name: x[i : i + 1] for name, x in rows.obs.items()}
        action = {name: x[i : i + 1] for name, x in rows.action.items()}
        assert math.log(chance_by_lot(rules, draft, action)) == pytest.approx(float(rows.log_propensity[i]))


def test_outcomes_and_attempts_are_told(lived: tuple[Catalogue, list[Execution], Seen]) -> None:
    catalogue, executions, _ = lived
    for execution in executions:
        trajectory = to_trajectory(execution, catalogue, user="u1", group="free")
        assert (trajectory.id, trajectory.task, trajectory.user) == (execution.id, execution.instruction, "u1")
        assert trajectory.outcome.success == execution.success
        assert trajectory.outcome.cost_usd == execution.cost
        assert len(trajectory.turns) == sum(len(node.attempts) for node in execution.nodes)
        assert [turn.at_ms for turn in trajectory.turns] == sorted(turn.at_ms for turn in trajectory.turns)
        assert len(trajectory.decisions) == len(execution.decisions)


def test_another_catalogue_is_refused(lived: tuple[Catalogue, list[Execution], Seen]) -> None:
    catalogue, executions, _ = lived
    worker = replace(catalogue.workers[0], task_types=None)
    fewer = Catalogue(task_types=catalogue.task_types[:2], workers=(worker,))
    with pytest.raises(DataError, match="cannot be read"):
        read_logged(Rules(fewer, CONFIG.limits), on_the_wire(executions, catalogue))


def test_no_trajectories_are_no_rows(office: Office) -> None:
    assert len(read_logged(office.rules, []).log_propensity) == 0
