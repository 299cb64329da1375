"""Logs that contradict themselves: trajectories of workflows in, what cannot be true of them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from etude.contracts.trajectory import Trajectory

MAX_SHARE = 0.02
"""Share of workflows that may contradict themselves; beyond it, nothing is claimed of what was learned from them."""


def contradiction(trajectory: Trajectory) -> str | None:
    """What a workflow says of itself that cannot be true; None if nothing does."""
    last: dict[int, bool] = {}
    for turn in trajectory.turns:
        if isinstance(turn.action, Mapping) and "node" in turn.action:
            last[int(turn.action["node"])] = turn.error is None
    for i, node in enumerate((trajectory.metadata or {}).get("nodes") or ()):
        is_done = last.get(i)
        if is_done is not None and node["status"] != "dropped" and is_done != (node["status"] == "done"):
            return "a subtask is done although its last attempt failed, or the other way round"
    total = trajectory.outcome.cost_usd
    if total is not None and sum(turn.cost_usd or 0.0 for turn in trajectory.turns) > total * 1.001 + 1e-9:
        return "its attempts cost more than the workflow"
    return None


def describe_contradictions(trajectories: Iterable[Trajectory]) -> str | None:
    """A sentence where too many workflows contradict themselves; None otherwise."""
    found = [contradiction(trajectory) for trajectory in trajectories]
    wrong = [one for one in found if one is not None]
    if len(wrong) <= MAX_SHARE * len(found):
        return None
    return (
        f"The log contradicts itself in {len(wrong):,} of {len(found):,} workflows (such as: {wrong[0]}), so nothing "
        "is claimed: look for what changed it, or create the dataset without them."
    )
