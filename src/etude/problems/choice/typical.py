"""What speaks for the options of a policy: past rows with the options chosen for them in, a few explained rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.contracts.decision import DecisionRequest, Preferences
from etude.problems.choice.explain import Explanation, explain
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.choice.rows import Row
from etude.problems.choice.settings import ChoiceConfig

MAX_OPTIONS, PER_OPTION = 4, 2
"""Options that are explained, those chosen most, and rows for each, of different groups."""
TRIED = 5
"""Rows of a group that are tried until the policy chooses as the group does."""


@dataclass(frozen=True, kw_only=True)
class Typical:
    """A row that an option is typically chosen for, and what speaks for the option there."""

    group: str
    source: str  # where the row is recorded
    why: Explanation


def find_typical(
    model: ChoiceModel,
    rows: Sequence[Row],
    groups: Sequence[str],
    pick: NDArray[np.int64],
    allowed: NDArray[np.bool_],
) -> list[Typical]:
    """For the options that are chosen most: the middle of the groups that they are chosen for most."""
    policy = ChoicePolicy(model=model, config=ChoiceConfig(), artefact_version="")
    found = []
    for option, _ in Counter(pick.tolist()).most_common(MAX_OPTIONS):
        own = np.flatnonzero(pick == option)
        for group, _ in Counter(groups[row] for row in own.tolist()).most_common(PER_OPTION):
            members = own[[groups[row] == group for row in own.tolist()]]
            typical = _explained(policy, rows, _middle(model, rows, members), allowed, model.table.names[option])
            found += [Typical(group=group, source=rows[row].source, why=why) for row, why in typical]
    return found


def _middle(model: ChoiceModel, rows: Sequence[Row], members: NDArray[np.int64]) -> NDArray[np.int64]:
    """The members closest to their mean."""
    some = members[:: max(1, len(members) // 1000)]  # the middle of a thousand is as typical
    features = model.reader([rows[row].context for row in some.tolist()])
    distance = np.square(features - features.mean(0)).sum(1)
    return np.asarray(some[distance.argsort(kind="stable")[:TRIED]])


def _explained(
    policy: ChoicePolicy, rows: Sequence[Row], tried: NDArray[np.int64], allowed: NDArray[np.bool_], option: str
) -> list[tuple[int, Explanation]]:
    """The first of the rows for which the policy chooses this option, explained; none if there is another choice."""
    for row in tried.tolist():
        names = tuple(name for name, free in zip(policy.model.table.names, allowed[row], strict=True) if free)
        request = DecisionRequest(context=rows[row].context, preferences=Preferences(allowed=names))
        if policy.score(request.context, None, request.preferences).expected()[option].probability > 0:
            why = explain(policy, request, option)
            return [] if why is None else [(row, why)]
    return []
