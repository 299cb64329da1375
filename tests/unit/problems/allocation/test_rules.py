"""Where no policy decides, the rules do: for as many agents as the observation has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import DataError, RequestError
from etude.problems.allocation.rules import make_rules


def decided(context: Any) -> Any:
    decision = make_rules().decide(DecisionRequest(context=context))
    assert (decision.policy, decision.logged[0].propensity) == ("rules", 1.0)
    return decision.action


def named(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: np.full(shape, 0.5).tolist() for name, shape in shapes.items()}


def test_every_agent_accepts_with_its_whole_capacity_and_collaborates() -> None:
    assert decided([0.5] * 94) == [[1.0, 1.0, 1.0]] * 4
    assert decided(named(agents=(3, 7), tasks=(5, 5), matrix=(3, 3))) == [[1.0, 1.0, 1.0]] * 3


def test_where_agents_choose_each_gets_the_task_that_it_is_best_at() -> None:
    observation = named(agents=(3, 10), tasks=(4, 8), matrix=(3, 3), legal=(3, 5))
    observation["legal"] = [[True] * 5] * 3
    agents, tasks = np.zeros((3, 10)), np.zeros((4, 8))
    tasks[:, 2] = 0.5
    for agent, slot, kind in ((0, 2, 0), (1, 0, 1), (2, 3, 2)):
        agents[agent, -4 + kind] = tasks[slot, -4 + kind] = 1
    observation |= {"agents": agents.tolist(), "tasks": tasks.tolist()}
    assert decided(observation)["accept"] == [2, 0, 3]


def test_an_observation_that_is_wrong_or_does_not_say_for_whom_is_refused() -> None:
    with pytest.raises(DataError, match="not an array of numbers"):
        decided("go")
    with pytest.raises(RequestError, match="does not say for how many agents"):
        decided([0.5] * 30)
