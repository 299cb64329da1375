"""What decides where no policy of allocation does: the rules that learned policies are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

from torch import Generator, nn

from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import RequestError
from etude.problems.allocation.baselines import baselines
from etude.problems.allocation.loaded import LoadedPolicy
from etude.problems.allocation.problem import AllocationSettings, make_problem
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Actor, Obs

VERSION = "rules"
RULES = {"document": "scripted", "matched": "greedy"}
"""The baseline of each variant that decides."""
MAX_AGENTS, MAX_SLOTS = 64, 256
SIZES = 16
"""Numbers of agents and slots whose rules are remembered."""


class Rules:
    """A Decider. In `document` every agent accepts, with its whole capacity, and collaborates; in `matched` the agents
    get the tasks that they are best at. What there is to allocate is read from the observation."""

    problem, version, quick = "allocation", VERSION, False

    def decide(self, request: DecisionRequest) -> Decision:
        """RequestError if the observation does not say how many agents there are, DataError if it is wrong."""
        return _of_size(_size(request.context)).decide(request)


def make_rules() -> Rules:
    return Rules()


def _size(context: Any) -> AllocationConfig:
    """Of the default size where it is a vector of that size."""
    usual = AllocationConfig()
    if isinstance(context, Mapping):
        agents, slots = (
            len(part) if isinstance(part := context.get(name), list) else 0 for name in ("agents", "tasks")
        )
        if 2 <= agents <= MAX_AGENTS and 3 <= slots <= MAX_SLOTS:
            return AllocationConfig(variant="matched" if "legal" in context else "document", agents=agents, slots=slots)
    elif not isinstance(context, list) or len(context) == sum(map(prod, _of_size(usual).shapes.values())):
        return usual
    raise RequestError(
        "no policy of 'allocation' decides now, and the observation does not say for how many agents: give named "
        "arrays, or try again later",
        status=503,
    )


@lru_cache(SIZES)
def _of_size(size: AllocationConfig) -> LoadedPolicy:
    problem = make_problem(AllocationSettings(allocation=size))
    return LoadedPolicy(_Fixed(baselines(size)[RULES[size.variant]]), problem, version=VERSION)


class _Fixed(nn.Module):
    """A baseline in place of a network."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self._actor = actor

    def choose(self, obs: Obs, *, greedy: bool, generator: Generator | None = None) -> Action:
        return self._actor(obs, generator or Generator())
