"""Plans to be looked at: for a few instructions, those of several planners side by side, in a run's plans.json.

[{"instruction": "…", "plans": {"after 1 epoch": {…}, "best": {…}, "expert": {…}}}, …]
The names are those to be shown, in their order; the last is the plan that was wanted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from etude.contracts.errors import PlanError, RunError
from etude.learning.checkpoint import write_json
from etude.learning.runs import RunFolder
from etude.problems.workflow.plan import Plan

MOST = 12
"""Instructions of a showcase."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One instruction and its plans by name, one at least."""

    instruction: str
    plans: dict[str, Plan]

    def __post_init__(self) -> None:
        if not self.plans:
            raise PlanError(f"the instruction {self.instruction!r} has no plans: at least one is to be shown")


def various(wanted: Sequence[Plan], most: int = MOST) -> list[int]:
    """Which of the plans to show: the first of each length, then the second, …; those of one node come last."""
    by_length: dict[int, dict[str, int]] = {}  # by instruction: the same one is shown once
    for i, plan in enumerate(wanted):
        by_length.setdefault(len(plan.nodes), {}).setdefault(plan.instruction, i)
    turns = [(turn, length == 1, i) for length, own in by_length.items() for turn, i in enumerate(own.values())]
    return [i for *_, i in sorted(turns)][:most]


def side_by_side(plans: Mapping[str, Sequence[Plan]]) -> list[Shown]:
    """Plans of several planners for the same instructions, by the planners' names."""
    return [
        Shown(instruction=own[0].instruction, plans=dict(zip(plans, own, strict=True)))
        for own in zip(*plans.values(), strict=True)
    ]


def write_plans(folder: RunFolder, shown: Sequence[Shown]) -> None:
    """At any moment the file is the old or the new one. It holds the first MOST."""
    write_json(folder.plans, msgspec.to_builtins(shown[:MOST]))


def read_plans(folder: RunFolder) -> list[Shown]:
    """None where the run shows none."""
    try:
        return msgspec.convert(json.loads(folder.plans.read_bytes()), type=list[Shown])
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, UnicodeDecodeError, msgspec.ValidationError, PlanError) as error:
        raise RunError(f"{folder.plans}: not plans to be shown ({error}); delete it to do without") from error
