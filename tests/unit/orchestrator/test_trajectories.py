"""Executions as trajectories, and back to what the policy read: nothing that it decided by is lost on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace
from torch import Generator

from etude.contracts.errors import DataError
from etude.contracts.subjects import decode, encode
from etude.contracts.trajectory import Trajectory
from etude.learning.logged import Logged
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.log import decode_execution, to_line
from etude.orchestrator.record import Execution, failed_node
from etude.orchestrator.trajectories import to_execution, to_trajectory
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers.simulated import SimulatedCrew
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decide import (
    Chooser,
    Choosers,
    WorkflowDecider,
    at_random,
    by_rules,
    exploring,
    random_propensity,
)
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.logged import read_logged
from etude.problems.workflow.office.office import Office
from etude.problems.workflow.office.world import Tables, WorkflowConfig

CONFIG = WorkflowConfig(scenarios=60)
Seen = list[tuple[str, Obs, Action, float]]


def watched(seen: Seen, choosers: Choosers) -> Choosers:
    """The same, writing down what it read and chose."""

    def about(rules: Rules, instruction: str) -> Chooser:
        own = choosers(rules, instruction)

        def choose(draft: Obs, rng: Generator) -> Sequence[tuple[Action, float]]:
            ((action, propensity),) = own(draft, rng)
            seen.append((instruction, {k: v.clone() for k, v in draft.items()}, action, propensity))
            return [(action, propensity)]

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
    decider = WorkflowDecider(version="x", catalogue=crew.catalogue, limits=CONFIG.limits, choosers=choosers)
    orchestrator = Orchestrator(decider, crew, seed=5)
    results = run_virtually(orchestrator.execute_all(office.scenarios.instructions[:60], concurrency=1))
    return crew.catalogue, [result.execution for result in results], seen


def on_the_wire(executions: list[Execution], catalogue: Catalogue) -> list[Trajectory]:
    found = [decode(encode(to_trajectory(execution, catalogue))) for execution in executions]
    return [event for event in found if isinstance(event, Trajectory)]


def read_rows(rules: Rules, trajectories: list[Trajectory]) -> Logged:
    count = len(trajectories)
    return read_logged(rules, trajectories, torch.zeros(count), torch.arange(count))


def test_what_was_read_and_chosen_comes_back_exactly(lived: tuple[Catalogue, list[Execution], Seen]) -> None:
    catalogue, executions, seen = lived
    rules = Rules(catalogue, CONFIG.limits)
    rows = read_rows(rules, on_the_wire(executions, catalogue))
    assert len(rows.log_propensity) == len(seen) > 300
    assert sum(failed_node(execution.decisions[-1]) is not None for execution in executions) > 5  # corrections too
    by_instruction = [executions[i].instruction for i in rows.trajectory.tolist()]
    assert by_instruction == [instruction for instruction, _, _, _ in seen]
    texts = sorted({execution.instruction for execution in executions})
    assert [texts[row] for row in rows.obs["instruction"].tolist()] == by_instruction
    for i, (_, draft, action, propensity) in enumerate(seen):
        for name in draft.keys() - {"instruction"}:
            assert torch.equal(rows.obs[name][i], draft[name][0]), (i, name)
        assert math.exp(float(rows.log_propensity[i])) == pytest.approx(propensity, rel=1e-5)
        for name, chosen in action.items():
            read = rows.action[name][i]
            applies = name != "worker" or int(rows.action["type"][i]) < rules.types or int(chosen) == int(read)
            assert torch.equal(read, chosen[0]) or not applies, (i, name)


def test_the_ways_to_choose_are_those_of_a_random_choice(office: Office) -> None:
    crew = SimulatedCrew(office, seed=1)
    decider = WorkflowDecider(version="lot", catalogue=crew.catalogue, limits=CONFIG.limits, choosers=at_random)
    orchestrator = Orchestrator(decider, crew, seed=2)
    results = run_virtually(orchestrator.execute_all(office.scenarios.instructions[:20], concurrency=1))
    rows = read_rows(Rules(crew.catalogue, CONFIG.limits), on_the_wire([r.execution for r in results], crew.catalogue))
    assert torch.allclose(rows.eligible, -rows.log_propensity)
    rules = Rules(crew.catalogue, CONFIG.limits)
    for i in range(0, len(rows.eligible), 7):
        draft = {name: x[i : i + 1] for name, x in rows.obs.items()}
        action = {name: x[i : i + 1] for name, x in rows.action.items()}
        assert math.log(random_propensity(rules, draft, action)) == pytest.approx(float(rows.log_propensity[i]))


def test_outcomes_and_attempts_are_reported(lived: tuple[Catalogue, list[Execution], Seen]) -> None:
    catalogue, executions, _ = lived
    for execution in executions:
        trajectory = to_trajectory(execution, catalogue, user="u1", group="free")
        assert (trajectory.id, trajectory.task, trajectory.user) == (execution.id, execution.instruction, "u1")
        assert trajectory.outcome.success == execution.success
        assert trajectory.outcome.cost_usd == execution.cost
        assert len(trajectory.turns) == sum(len(node.attempts) for node in execution.nodes)
        assert [turn.at_ms for turn in trajectory.turns] == sorted(turn.at_ms for turn in trajectory.turns)
        assert len(trajectory.decisions) == len(execution.decisions)


def test_a_trajectory_is_exported_as_a_line_and_comes_back_from_it(office: Office) -> None:
    crew = SimulatedCrew(office, seed=1)
    decider = WorkflowDecider(version="lot", catalogue=crew.catalogue, limits=CONFIG.limits, choosers=at_random)
    results = run_virtually(Orchestrator(decider, crew).execute_all(office.scenarios.instructions[:30]))
    assert any("dropped" in {node.status for node in result.execution.nodes} for result in results)
    for result in results:
        line = decode_execution(to_line(to_execution(result.trajectory)))
        assert line == to_execution(result.trajectory)
        assert encode(to_trajectory(line, crew.catalogue)) == encode(result.trajectory)


def test_another_catalogue_is_refused(lived: tuple[Catalogue, list[Execution], Seen]) -> None:
    catalogue, executions, _ = lived
    worker = replace(catalogue.workers[0], task_types=None)
    fewer = Catalogue(task_types=catalogue.task_types[:2], workers=(worker,))
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(Rules(fewer, CONFIG.limits), on_the_wire(executions, catalogue))


def test_no_trajectories_are_no_rows(office: Office) -> None:
    assert len(read_rows(office.rules, []).log_propensity) == 0
