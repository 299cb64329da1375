"""`etude demo prompt`: learns which mutations make prompts better, compares with simpler policies, improves three."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from etude.bootstrap.policies import load_policy
from etude.bootstrap.runs import evaluate, make_request, start_run
from etude.cli.demo import OUT, first_free, print_ending
from etude.cli.display import console
from etude.cli.evaluate import show
from etude.cli.plot import write_report
from etude.cli.progress import Display, follow, interruptible
from etude.learning.requests import EvaluateRequest
from etude.learning.run_folder import RunFolder
from etude.problems.prompt.policy import PromptDecider

SIMULATED = "Prompts and gains are made up: the numbers show how the policy learns, not how a model answers."
EXAMPLES = (
    "Write a Python function that reads sensors.csv and returns the mean per day.",
    "Hello! I hope you are well. Thanks a lot in advance! Please could you kindly tell me about volcanoes?",
    "Write a poem about a lamp.",
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo.")] = OUT,
    seed: Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same policy.")] = 0,
    prompts: Annotated[int, typer.Option(min=50, help="Number of generated prompts to learn from.")] = 3_000,
    episodes: Annotated[int, typer.Option(min=4, help="Number of held-out prompts to compare on.")] = 200,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Print plain lines, no live display.")] = False,
) -> None:
    """Show in a minute how a policy learns which mutations make a prompt better.

    Makes up prompts with defects, learns, compares on held-out prompts, and improves three prompts.

    A finished demo stays as it is: the next one goes to runs/demo-2, then runs/demo-3, …
    """
    began, screen = time.perf_counter(), console()
    folder = RunFolder(first_free(out, lambda path: False))
    with interruptible(screen) as begun, folder.locked():
        with screen.status("making prompts up"):
            inputs = {"seed": seed, "prompts": prompts}
            run = start_run(make_request("prompt", out=folder.path, inputs=inputs, isolated=True))
        begun.append(run)
        screen.print(f"{folder.path}: {run.learner.introduction()}", markup=False, soft_wrap=True)
        follow(run, Display(run, screen, live=screen.is_terminal and not no_progress))
        with screen.status("comparing on held-out prompts") as status:
            measured = evaluate(EvaluateRequest(run=folder.path, episodes=episodes, status=status.update))
            report = write_report(folder, episodes=episodes)
    screen.print("")
    show(measured)
    _improve(load_policy(folder.path), screen)
    screen.print(f"\n{SIMULATED}", markup=False, soft_wrap=True)
    print_ending(report, folder.path, screen, seconds=time.perf_counter() - began)


def _improve(policy: PromptDecider, screen: Console) -> None:
    for prompt in EXAMPLES:
        found = policy.improve(prompt)
        chosen = ", then ".join(found.mutations) or "no mutation: it is good as it is"
        screen.print(f"\n[bold]{chosen}[/]")
        for step in found.steps:
            screen.print(step.mutated.diff().rstrip(), markup=False, soft_wrap=True)
        if not found.steps:
            screen.print(prompt, markup=False, soft_wrap=True)
