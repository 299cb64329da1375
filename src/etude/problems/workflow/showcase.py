"""Plans to look at: for a few instructions, those of several planners side by side, in a run's plans.json.

[{"instruction": "…", "plans": {"after 1 epoch": {…}, "best": {…}, "expert": {…}}}, …]
The names are shown in their order. The last plan is the wanted one, unless "wanted" is false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from etude.contracts.errors import PlanError, RunError
from etude.files.durable import write_json
from etude.learning.run_folder import RunFolder
from etude.problems.workflow.plan import Plan

PLANS = "plans.json"
MAX_INSTRUCTIONS = 12
"""Of a showcase."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One instruction and its plans by name, at least one."""

    instruction: str
    plans: dict[str, Plan]
    wanted: bool = True  # whether the last plan is the wanted one; if not, the first is the one before training

    def __post_init__(self) -> None:
        if not self.plans:
            raise PlanError(f"the instruction {self.instruction!r} has no plans: expected at least one")


def various(wanted: Sequence[Plan], most: int = MAX_INSTRUCTIONS) -> list[int]:
    """Which of the plans to show: the first of each length, then the second, …; those of one node come last."""
    by_length: dict[int, dict[str, int]] = {}  # by instruction: the same one is shown once
    for i, plan in enumerate(wanted):
        by_length.setdefault(len(plan.nodes), {}).setdefault(plan.instruction, i)
    turns = [(turn, length == 1, i) for length, own in by_length.items() for turn, i in enumerate(own.values())]
    return [i for *_, i in sorted(turns)][:most]


def side_by_side(plans: Mapping[str, Sequence[Plan]], *, wanted: bool = True) -> list[Shown]:
    """Plans of several planners for the same instructions, by the planners' names."""
    return [
        Shown(instruction=own[0].instruction, plans=dict(zip(plans, own, strict=True)), wanted=wanted)
        for own in zip(*plans.values(), strict=True)
    ]


def write_before_and_after(folder: RunFolder, before: Sequence[Plan], after: Sequence[Plan]) -> None:
    """Plans for the same instructions before and after training, where no plan is known to be the wanted one."""
    chosen = various(after)
    plans = {name: [made[i] for i in chosen] for name, made in (("before", before), ("after", after))}
    write_plans(folder, side_by_side(plans, wanted=False))


def write_plans(folder: RunFolder, shown: Sequence[Shown]) -> None:
    """Replace the file atomically with the first MAX_INSTRUCTIONS."""
    write_json((folder.path / PLANS), msgspec.to_builtins(shown[:MAX_INSTRUCTIONS]))


def read_plans(folder: RunFolder) -> list[Shown]:
    """Empty where the run has no such file."""
    try:
        return msgspec.convert(json.loads((folder.path / PLANS).read_bytes()), type=list[Shown])
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, UnicodeDecodeError, msgspec.ValidationError, PlanError) as error:
        raise RunError(f"{(folder.path / PLANS)}: not a list of plans ({error}); delete it to show no plans") from error
