"""Plans that the planner is unsure of: the flags and settings for them, and the question to a person."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from etude.cli.orchestrator.plan import proposal_lines, subtasks
from etude.contracts.errors import ConfigError
from etude.orchestrator.config import WhenUnsure
from etude.orchestrator.labels import read_labels
from etude.orchestrator.log import read_ended
from etude.problems.workflow.plan import Plan

if TYPE_CHECKING:  # these bring torch, which help does not need
    from etude.orchestrator.flow import PlanDecider
    from etude.orchestrator.unsure import AskPlan, Unsure
    from etude.orchestrator.workplace import Workplace
    from etude.problems.workflow.doubt import Proposal

RULES = "rules"

MinProbability = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Minimum probability that a plan is right, subtasks and links; below it --when-unsure applies.",
        show_default="orchestrator.min_probability, 0; with --fallback the share of its workflows that are right",
    ),
]
WhenUnsureOption = Annotated[
    WhenUnsure | None,
    typer.Option(
        help="Ask a person on a terminal, fall back to the plan of another policy, or refuse the workflow.",
        show_default="orchestrator.when_unsure, ask",
    ),
]
Fallback = Annotated[
    str | None,
    typer.Option(
        help="Policy that plans what a run is unsure of: llm:URL#MODEL, llm (that of the workers file), rules, a run.",
        metavar="POLICY",
        show_default="rules",
    ),
]


def make_unsure(
    place: Workplace,
    decider: PlanDecider,
    *,
    min_probability: float | None,
    when_unsure: WhenUnsure | None,
    fallback: str | None,
    ask: AskPlan | None = None,
) -> Unsure | None:
    """What flags and settings say about plans that are not probable enough; None if any plan is carried out."""
    from etude.bootstrap.executions import execution_config
    from etude.orchestrator.unsure import Unsure, with_fallback
    from etude.orchestrator.workplace import make_decider

    if fallback is not None and when_unsure not in (None, "fallback"):
        raise ConfigError(
            f"when_unsure is {when_unsure!r}, and the fallback is {fallback!r}, which would never plan: leave "
            "--when-unsure or --fallback out"
        )
    then: WhenUnsure | None = when_unsure if fallback is None else "fallback"
    config = execution_config({"--min-probability": min_probability, "--when-unsure": then})
    follows = fallback is not None and config.min_probability is None
    if not config.min_probability and not follows:
        if then is not None:
            raise ConfigError(
                f"when_unsure is {then!r}, and min_probability is 0, so that no plan is unsure: set it, "
                "such as --min-probability 0.5"
            )
        return None
    if config.when_unsure != "fallback":
        return Unsure(min_probability=config.min_probability, then=config.when_unsure, ask=ask)
    other = make_decider(fallback or RULES, replace(place, limits=decider.limits))
    if fallback is not None:
        return with_fallback(decider, other, min_probability=config.min_probability)
    return Unsure(min_probability=config.min_probability, then="fallback", fallback=other)


def learn_from_log(unsure: Unsure | None, folder: Path | None, place: Workplace) -> None:
    """Start from the verdicts on the fallback's workflows that a log shows, labels of people included."""
    if unsure is not None and folder is not None:
        labels = read_labels(folder)
        unsure.learn(map(labels.apply, read_ended(folder)), judged=place.crew.judge is not None)


def fallback_sentence(unsure: Unsure | None) -> str:
    """How often the fallback was right, and what it plans from now on; empty without one."""
    if unsure is None or unsure.fallback is None:
        return ""
    right, count = unsure.verdicts.right, unsure.verdicts.right + unsure.verdicts.wrong
    measured = f"right in {right:,} of {count:,} judged workflows" if count else "no judged workflow yet"
    fixed = "" if unsure.min_probability is None else ", which is set"
    return (
        f"fallback {unsure.fallback.version}: {measured}; it plans where the planner's probability is below "
        f"{unsure.threshold():.2f}{fixed}"
    )


def fallback_json(unsure: Unsure | None) -> dict[str, Any]:
    """The same for programs."""
    if unsure is None or unsure.fallback is None:
        return {}
    about = {"policy": unsure.fallback.version, "min_probability": unsure.threshold()}
    return {"fallback": about | vars(unsure.verdicts)}


def ask_for_plan(screen: Console) -> AskPlan | None:
    """Asks on a terminal; None where there is none."""
    if not sys.stdin.isatty():
        return None

    async def ask(proposal: Proposal) -> Plan | None:
        plans = [proposal.plan, *(other.plan for other in proposal.alternatives)]
        screen.print(f"The planner is unsure of its plan:\n  0  {escape(subtasks(proposal.plan))}")
        for line in proposal_lines(proposal):
            screen.print(line)
        last = f" to {len(plans) - 1}" if len(plans) > 1 else ""
        screen.print(f"Which plan is right? (0{last}; anything else: none of them)")
        answer = (await asyncio.to_thread(input, "> ")).strip()
        return plans[int(answer)] if answer.isdecimal() and int(answer) < len(plans) else None

    return ask
