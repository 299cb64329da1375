"""A lot: the policy of a problem that nothing is known about yet. What it decides can be learned from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from etude.contracts.errors import DataError
from etude.contracts.plain import plain
from etude.contracts.trajectory import LoggedDecision
from etude.experience.task import Choice

VERSION = "uniform"


class Uniform:
    """Any of what is eligible, all as probable."""

    def __init__(self, problem: str, luck: random.Random | None = None) -> None:
        self.problem, self.luck = problem, luck or random.SystemRandom()

    def __call__(self, context: Any, eligible: Sequence[Any] | None) -> Choice:
        if not eligible:
            raise DataError(
                f"there is nothing to choose from for {self.problem!r}: give task.decide(…, eligible=[…]) at least "
                "one action"
            )
        action, propensity = self.luck.choice(list(eligible)), 1 / len(eligible)
        decision = LoggedDecision(
            problem=self.problem,
            context=plain(context),
            eligible=plain(list(eligible)),
            action=plain(action),
            propensity=propensity,
            policy=VERSION,
        )
        return Choice(problem=self.problem, action=action, propensity=propensity, policy=VERSION, decisions=(decision,))
