"""Plans that the planner is unsure of: the flags and settings for them, and the question to a person."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from etude.bootstrap.executions import execution_config
from etude.cli.orchestrator.plan import proposal_lines, subtasks
from etude.contracts.errors import ConfigError
from etude.orchestrator.config import WhenUnsure
from etude.orchestrator.unsure import AskPlan, Unsure
from etude.orchestrator.workplace import Workplace, make_decider
from etude.problems.workflow.doubt import Proposal
from etude.problems.workflow.plan import Plan

FALLBACK = "rules"

MinProbability = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Minimum probability that a plan has the right subtasks; below it --when-unsure applies.",
        show_default="orchestrator.min_probability, 0",
    ),
]
WhenUnsureOption = Annotated[
    WhenUnsure | None,
    typer.Option(
        help="Ask a person on a terminal, fall back to the plan of the rules, or refuse the workflow.",
        show_default="orchestrator.when_unsure, ask",
    ),
]


def make_unsure(
    place: Workplace, min_probability: float | None, when_unsure: WhenUnsure | None, ask: AskPlan | None
) -> Unsure | None:
    """What flags and settings say about plans that are not probable enough; None if any plan is carried out."""
    config = execution_config({"--min-probability": min_probability, "--when-unsure": when_unsure})
    if not config.min_probability:
        if when_unsure is not None:
            raise ConfigError(
                f"when_unsure is {when_unsure!r}, and min_probability is 0, so that no plan is unsure: set it, "
                "such as --min-probability 0.5"
            )
        return None
    fallback = make_decider(FALLBACK, place) if config.when_unsure == "fallback" else None
    return Unsure(min_probability=config.min_probability, then=config.when_unsure, fallback=fallback, ask=ask)


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
