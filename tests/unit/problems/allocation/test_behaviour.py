"""The reported behaviour of a policy is what it did."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Generator

from etude.learning.evaluate import evaluate
from etude.problems.allocation.baselines import script
from etude.problems.allocation.behaviour import RecordingActor, Tendency
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Actor, Obs


def watch(actor: Actor, *, variant: Literal["document", "matched"] = "document") -> dict[tuple[str, str], Tendency]:
    problem = AllocationProblem(config=AllocationConfig(variant=variant, agents=3, slots=6, horizon=40))
    watched = RecordingActor(actor)
    with_notes, without = (evaluate(problem, a, episodes=20) for a in (watched, actor))
    assert with_notes.returns == without.returns
    return {(t.decision, t.state): t for t in watched.tendencies()}


def test_constant_decisions_are_reported_as_they_are() -> None:
    found = watch(script(1, 0.25, 0.6))  # .6 is below the threshold of collaborating
    assert len(found) == 12
    for (decision, _), tendency in found.items():
        assert tendency.x
        assert tendency.x == sorted(tendency.x)
        assert tendency.y == pytest.approx(
            [{"accepts": 1.0, "allocates": 0.25, "collaborates": 0.0}[decision]] * len(tendency.y)
        )


def test_a_decision_that_depends_on_the_state_shows_it() -> None:
    def only_when_long(obs: Obs, generator: Generator) -> Action:
        long = obs["tasks"][..., 3].sum(1, keepdim=True).expand(-1, 3) > 3
        skilled = obs["agents"][..., 5:].mean(2) > 0.6
        return {
            "accept": long.float(),
            "allocate": torch.ones_like(long, dtype=torch.float),
            "collaborate": skilled.float(),
        }

    found = watch(only_when_long)
    accepts = found["accepts", "tasks waiting"]
    assert accepts.y == [float(waiting > 3) for waiting in accepts.x]
    assert 0 not in accepts.x  # with nothing to take, the answer means nothing
    collaborates = found["collaborates", "own expertise"]
    assert collaborates.y == sorted(collaborates.y)
    assert (collaborates.y[0], collaborates.y[-1]) == (0, 1)


def test_time_is_in_steps() -> None:
    found = watch(script(1, 1, 1))["collaborates", "step"]
    assert 0 <= found.x[0] < found.x[-1] <= 39
    assert np.diff(found.x) == pytest.approx(40 / 12, abs=1)


def test_in_matched_accepting_is_naming_a_slot() -> None:
    def first_legal(obs: Obs, generator: Generator) -> Action:
        one = torch.ones_like(obs["agents"][..., 0])
        return {"accept": obs["legal"].int().argmax(2), "allocate": one, "collaborate": 0.6 * one}

    found = watch(first_legal, variant="matched")
    full = found["accepts", "own load"]
    assert full.x[-1] == 1
    assert full.y == [float(load < 1) for load in full.x]  # hands full: no slot is legal
    assert set(found["collaborates", "step"].y) == {1.0}
