"""The policy that a command names: by its name, by its run, or the one that serves workflows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from etude.problems.workflow.decisions import PROBLEM

if TYPE_CHECKING:  # these bring torch, which help does not need
    from etude.orchestrator.flow import PlanDecider
    from etude.orchestrator.workplace import Workplace
    from etude.problems.workflow.settings import WorkflowSettings


def find_settings(policy: str) -> WorkflowSettings | None:
    """As `settings_of`, also of the policy that serves."""
    from etude.bootstrap.release import open_registry
    from etude.orchestrator.workplace import settings_of

    serving = open_registry().serving(PROBLEM).incumbent if _is_slot(policy) else None
    return settings_of(policy if serving is None else str(open_registry().artefact(serving).path))


def find_decider(policy: str, place: Workplace, *, explore: float = 0.0) -> PlanDecider:
    """As `make_decider`; `workflow` is the policy that serves now, or the one that a release gives the workflow.

    To explore, a run samples its plans; what serves explores workers alone, since users get its plans.
    """
    from etude.bootstrap.release import served_policy
    from etude.orchestrator.workplace import make_decider

    if not _is_slot(policy):
        return make_decider(policy, place, explore=explore, sample_plans=True)
    limits = place.limits or (place.config.limits if place.config else None)
    served = served_policy(policy).decider(catalogue=place.crew.catalogue, limits=limits, explore=explore)
    return cast("PlanDecider", served)


def _is_slot(policy: str) -> bool:
    return policy == PROBLEM and not Path(policy).exists()
