"""Prompt mutation as a problem: which of five mutations makes a prompt better, one by one, until it is good."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.contracts.errors import ConfigError
from etude.problems.spec import FROM_LOGS, PRACTISE, Flag, Metric, ProblemSpec, YamlFile

OUTCOMES, JUDGED = "outcomes", "judged"
"""Learning what each mutation earns; learning from the judgements of a language model."""


def choose_method(inputs: Mapping[str, Any]) -> str:
    """Which learner the inputs ask for; ConfigError for inputs that contradict each other."""
    given = {name for name, value in inputs.items() if value not in (None, [], ())}
    if {"dataset", "data"} <= given or {"dataset", "judge"} <= given:
        raise ConfigError("dataset goes without data and judge: logged decisions have their own rewards")
    if "judge" in given and "data" not in given:
        raise ConfigError("judge needs data, the prompts that it judges: a JSONL file with one prompt per line")
    if "dataset" in given:
        return FROM_LOGS
    if "judge" in given:
        return JUDGED
    if given & {"checkpoint", "algorithm"}:
        wrong = min(given & {"checkpoint", "algorithm"})
        raise ConfigError(f"{wrong} goes with dataset or judge: a policy is learned from the beginning otherwise")
    method = str(inputs.get("method") or OUTCOMES)
    if method == JUDGED:
        raise ConfigError("learning from judgements needs judge, URL#MODEL, and data, the prompts that it judges")
    return method


def choose_preset(method: str, inputs: Mapping[str, Any]) -> str | None:
    """What suits the small problem that a sequence of mutations is."""
    return {PRACTISE: "practice", JUDGED: "judged"}.get(method)


SPEC = ProblemSpec(
    name="prompt",
    summary="Which mutations make a prompt better: failure handling, less context, detail, limits, steps.",
    settings="etude.problems.prompt.settings:PromptSettings",
    sections=("prompt", "prompt_network", "prompt_outcomes"),
    learners={
        OUTCOMES: "etude.problems.prompt.learn:learn_outcomes",
        PRACTISE: "etude.problems.prompt.learn:practise_prompts",
        JUDGED: "etude.problems.prompt.judged:learn_from_judge",
        FROM_LOGS: "etude.problems.prompt.from_logs:from_logs",
    },
    load="etude.problems.prompt.policy:load",
    problem="etude.problems.prompt.problem:make_problem",
    metrics={
        "optimal": Metric("optimal", "prompts that were changed in the best possible way"),
        "mutations": Metric("mutations", "mutations per prompt", "number"),
    },
    compare="etude.problems.prompt.evaluate:compare",
    read_logs="etude.problems.prompt.from_logs:read_logs",
    evaluations={"data": "etude.problems.prompt.evaluate:on_data"},
    session="etude.problems.prompt.caller:open_session",
    requests="etude.problems.prompt.gates:gate_requests",
    report="etude.problems.prompt.report:report",
    method="etude.problems.prompt:choose_method",
    preset="etude.problems.prompt:choose_preset",
    flags=(
        Flag(
            name="--data",
            type=Path,
            help="JSONL file of your prompts: a text per line, or objects with prompt.",
            default="generated prompts with known gains",
        ),
        Flag(
            name="--judge",
            metavar="URL#MODEL",
            help="Language model that judges mutated prompts of --data, at an OpenAI-compatible URL.",
            default="none, rules give the reward",
        ),
        Flag(
            name="--encoder",
            setting="prompt.encoder",
            metavar="ngrams|fast|minilm|URL#MODEL",
            help="How text is read.",
            default="fast",
        ),
        Flag(
            name="--prompts",
            setting="prompt.prompts",
            type=int,
            help="Number of generated prompts to learn from.",
            default="3000, or 300 for PPO",
        ),
        Flag(
            name="--max-steps", setting="run.max_steps", type=int, help="With --method practise: budget of decisions."
        ),
    ),
    presets=YamlFile(__name__, "presets.yaml"),
    next_commands=dict.fromkeys(
        (OUTCOMES, PRACTISE), ("evaluate RUN", "runs plot RUN", 'prompt mutate "…" --policy RUN')
    )
    | {
        JUDGED: ("runs plot RUN", 'prompt mutate "…" --policy RUN'),
        FROM_LOGS: ("evaluate RUN --dataset DATASET", 'prompt mutate "…" --policy RUN'),
    },
    commands={"demo": "etude.cli.demo_prompt:demo"},
)
