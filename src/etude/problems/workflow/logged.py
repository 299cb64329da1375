"""Logged decisions about workflows, back to what a policy read and chose when they were made.

A decision is logged with the state it was made in, or follows from the one before it, which added a node. Rows come
back in the order of trajectories and, within one, of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from etude.contracts.errors import DataError
from etude.contracts.trajectory import Trajectory
from etude.learning.logged import Logged
from etude.problems.base import Action, Obs
from etude.problems.workflow.decisions import PROBLEM, Choice, Eligible, State
from etude.problems.workflow.grammar import Correction, Rules
from etude.problems.workflow.progress import Live, from_state, to_draft, write_live


class _Context(Struct, frozen=True):
    live: tuple[Live, ...] | None = None
    state: State | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Segment:
    """Decisions that follow from one draft."""

    trajectory: int
    first: int  # its place within the trajectory
    draft: Obs | None  # None: nothing has happened yet
    live: Sequence[Live]
    decisions: list[tuple[Choice, Eligible, float | None]]


def read_logged(
    rules: Rules,
    trajectories: Sequence[Trajectory],
    reward: Tensor,
    context: Tensor,
    *,
    device: torch.device | str = "cpu",
) -> Logged:
    """Decisions that a policy made; those of people, which have no propensity, are left out.

    `reward` and `context` (M,) are as `Logged` has them. An instruction's row is its place among the trajectories'
    tasks in the order of the alphabet. DataError names a trajectory that cannot be read with these rules.
    """
    segments = []
    for i, trajectory in enumerate(trajectories):
        try:
            segments += _segments(rules, i, trajectory)
        except (msgspec.ValidationError, IndexError, ValueError) as error:
            raise DataError(
                f"trajectory {trajectory.id!r}: its decisions cannot be read ({error}): expected workflow decisions as "
                "`etude collect` logs them, with this catalogue"
            ) from error
    obs, action, log_propensity, number, eligible = _replayed(rules, segments)
    place = {text: i for i, text in enumerate(sorted({trajectory.task for trajectory in trajectories}))}
    instruction = torch.tensor([place[trajectory.task] for trajectory in trajectories], dtype=torch.long)
    return Logged(
        obs={name: x.to(device) for name, x in (obs | {"instruction": instruction[number]}).items()},
        action={name: x.to(device) for name, x in action.items()},
        log_propensity=log_propensity.to(device),
        trajectory=number.to(device),
        reward=reward.to(device),
        context=context.to(device),
        eligible=eligible.to(device),
    )


def _segments(rules: Rules, number: int, trajectory: Trajectory) -> list[_Segment]:
    own = [decision for decision in trajectory.decisions if decision.problem == PROBLEM]
    segments: list[_Segment] = []
    live: Sequence[Live] = ()
    for place, decision in enumerate(own):
        context = msgspec.convert(decision.context or {}, _Context)
        read = (msgspec.convert(decision.action, Choice), msgspec.convert(decision.eligible, Eligible))
        _check(rules, *read)
        live = context.live if context.live is not None else live
        follows = context.state is None and place > 0
        if follows and segments:
            segments[-1].decisions.append((*read, decision.propensity))
        else:
            draft = None
            if context.state is not None:
                progress = from_state(context.state)
                if len(progress.steps) > rules.nodes:
                    raise ValueError(f"a plan of {len(progress.steps)} nodes, more than the {rules.nodes} allowed")
                draft = to_draft(rules, progress, live, now_ms=decision.at_ms)
            decisions = [(*read, decision.propensity)]
            segments.append(_Segment(trajectory=number, first=place, draft=draft, live=live, decisions=decisions))
    return segments


def _check(rules: Rules, choice: Choice, eligible: Eligible) -> None:
    types = [*(eligible.task_types or ()), *([] if choice.task_type is None else [choice.task_type])]
    workers = [*(eligible.workers or ()), *([] if choice.worker is None else [choice.worker])]
    if any(not 0 <= t < rules.types for t in types) or any(not 0 <= w < rules.workers for w in workers):
        raise ValueError("an id that the catalogue does not have")


def _replayed(rules: Rules, segments: Sequence[_Segment]) -> tuple[Obs, Action, Tensor, Tensor, Tensor]:
    """All segments at once: the first decision of each, then the second of those that have one, and so on.

    What was observed and done, log-propensities, trajectories' numbers and the log of how many ways to choose there
    were; (N, …) each.
    """
    drafts = _begun(rules, segments)
    obs, actions = [{name: x[:0] for name, x in drafts.items()}], [_actions(rules, [])]
    log_p, ways, order = list[float](), list[float](), list[tuple[int, int]]()
    going, depth = torch.arange(len(segments)), 0
    while len(going):
        chosen = [segments[i].decisions[depth] for i in going.tolist()]
        action = _actions(rules, [choice for choice, _, _ in chosen])
        obs.append(drafts)
        actions.append(action)
        log_p += [math.nan if p is None else math.log(p) for _, _, p in chosen]
        ways += [_ways(eligible) for _, eligible, _ in chosen]
        order += [(segments[i].trajectory, segments[i].first + depth) for i in going.tolist()]
        depth += 1
        more = torch.tensor([len(segments[i].decisions) > depth for i in going.tolist()])
        drafts = {name: x[more] for name, x in rules.grow(drafts, action)[0].items()}
        going = going[more]
    place = torch.tensor(sorted(range(len(order)), key=order.__getitem__), dtype=torch.long)
    log_propensity = torch.tensor(log_p, dtype=torch.float64)[place]
    place = place[~log_propensity.isnan()]
    return (
        {name: torch.cat([o[name] for o in obs])[place] for name in drafts},
        {name: torch.cat([a[name] for a in actions])[place] for name in actions[0]},
        log_propensity[~log_propensity.isnan()].float(),
        torch.tensor([trajectory for trajectory, _ in order], dtype=torch.long)[place],
        torch.tensor(ways, dtype=torch.float32)[place],
    )


def _begun(rules: Rules, segments: Sequence[_Segment]) -> Obs:
    """The draft that each segment starts from; most of them are empty, and those are made together."""
    drafts = rules.begin(len(segments))
    drafts["instruction"] = torch.tensor([segment.trajectory for segment in segments], dtype=torch.long)
    fresh = [i for i, segment in enumerate(segments) if segment.draft is None and segment.live]
    if fresh:
        write_live(drafts, fresh, [segments[i].live for i in fresh])
    begun = [i for i, segment in enumerate(segments) if segment.draft is not None]
    for name in drafts.keys() - {"instruction"} if begun else ():
        drafts[name][begun] = torch.cat([draft[name] for i in begun if (draft := segments[i].draft) is not None])
    return drafts


def _actions(rules: Rules, choices: Sequence[Choice]) -> Action:
    links = torch.zeros((len(choices), rules.nodes), dtype=torch.bool)
    for i, choice in enumerate(choices):
        links[i, list(choice.dependencies or ())] = True
    corrections = [Correction.ABORT if c.correction is None else Correction[c.correction.upper()] for c in choices]
    return {
        "correction": torch.tensor([int(correction) for correction in corrections], dtype=torch.long),
        "type": torch.tensor([rules.types if c.task_type is None else c.task_type for c in choices], dtype=torch.long),
        "links": links,
        "worker": torch.tensor([c.worker or 0 for c in choices], dtype=torch.long),
    }


def _ways(eligible: Eligible) -> float:
    """Log of how many choices there were, each part given those before it."""
    types = len(eligible.task_types or ()) + eligible.stop
    return (
        math.log(len(eligible.corrections or (0,)))
        + math.log(max(1, types))
        + len(eligible.dependencies or ()) * math.log(2)
        + math.log(len(eligible.workers or (0,)))
    )
