"""The policies of `etude.task`, made on first use, and a policy that samples uniformly."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Lock

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError
from etude.contracts.plain import plain
from etude.contracts.ports import Decider

UNIFORM = "uniform"


class Uniform:
    """Samples every option with the same probability: the first policy of a new choice.

    Policies can learn from its decisions.
    """

    version = UNIFORM

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def decide(self, request: DecisionRequest) -> Decision:
        if not request.options:
            raise DataError(f"options of {self.problem!r} are empty: give options=[…] with at least one of them")
        action, propensity = random.Random(request.seed).choice(request.options), 1 / len(request.options)
        logged = LoggedDecision(
            problem=self.problem,
            context=plain(request.context),
            eligible=plain(request.options),
            action=plain(action),
            propensity=propensity,
            policy=self.version,
        )
        return Decision(action=action, propensity=propensity, policy=self.version, logged=(logged,))


class Deciders:
    """The decider of each problem, made on first use."""

    def __init__(self, make: Callable[[str], Decider]) -> None:
        self._make, self._made, self._turn = make, dict[str, Decider](), Lock()

    def __call__(self, problem: str) -> Decider:
        with self._turn:
            if problem not in self._made:
                self._made[problem] = self._make(problem)
            return self._made[problem]
