"""What `task.decide` returns for a choice: the option itself, which also knows how it was chosen.

It equals the option and can be used in its place: in f-strings, as a key, in JSON. Copies and pickles are plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from etude.contracts.decision import Decision, Expected


class Chosen:
    """How an option was chosen."""

    decision: Decision
    task: Any = None
    """Of `etude.choose`: the `OneChoice`, where the outcome is reported."""

    @property
    def propensity(self) -> float | None:
        """Probability with which it was chosen; None where it is unknown."""
        return self.decision.propensity

    @property
    def policy(self) -> str:
        """Version of the policy that chose."""
        return self.decision.policy

    @property
    def expected(self) -> dict[str, Expected]:
        """What the policy expects of each option, by name; empty where it expects nothing."""
        return self.decision.expected


class ChosenText(Chosen, str):
    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class ChosenInteger(Chosen, int):
    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


class ChosenNumber(Chosen, float):
    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)


class ChosenMapping(Chosen, dict[str, Any]):
    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def chosen(option: Any, decision: Decision) -> Any:
    """The option with its decision; True, False and members of an Enum as they were offered, since they are unique."""
    if isinstance(option, bool | Enum):
        return option
    found: ChosenText | ChosenInteger | ChosenNumber | ChosenMapping
    if isinstance(option, str):
        found = ChosenText(option)
    elif isinstance(option, int):
        found = ChosenInteger(option)
    elif isinstance(option, float):
        found = ChosenNumber(option)
    elif isinstance(option, Mapping):
        found = ChosenMapping(option)
    else:
        return option
    found.decision = decision
    return found
