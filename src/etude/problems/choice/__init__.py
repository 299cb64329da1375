"""Any decision among described options: which model, which tool, which template, retry or give up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.contracts.errors import ConfigError
from etude.problems.spec import FROM_LOGS, Flag, ProblemSpec

REPLAY = "replay"
"""Learning from a file with the outcomes of options."""
TASKS = "tasks"
"""Preset for learning from the rewards of whole tasks."""


def choose_method(inputs: Mapping[str, Any]) -> str:
    """Which learner the inputs ask for."""
    given = {name for name, value in inputs.items() if value not in (None, [], ())}
    if {"dataset", "replay"} <= given:
        raise ConfigError("dataset and replay: logged decisions or recorded outcomes; give one of them")
    if "algorithm" in given and not {"dataset", "checkpoint"} <= given:
        raise ConfigError(
            f"algorithm is {inputs['algorithm']!r}, which continues a choice on a dataset: give the dataset, and as "
            "checkpoint the run of that choice; without an algorithm, the outcomes of options are learned"
        )
    if "dataset" in given:
        return FROM_LOGS
    if "replay" not in given:
        raise ConfigError("a choice learns from replay, a file of outcomes, or from a dataset of logged decisions")
    return REPLAY


def choose_preset(method: str, inputs: Mapping[str, Any]) -> str | None:
    """What suits the few weights of a choice, where an algorithm learns them."""
    return TASKS if inputs.get("algorithm") else None


SPEC = ProblemSpec(
    name="choice",
    summary="Which of some described options to take: a model, a tool, a template, retry or give up.",
    settings="etude.problems.choice.settings:ChoiceSettings",
    sections=("choice",),
    learners={REPLAY: "etude.problems.choice.learn:from_replay", FROM_LOGS: "etude.problems.choice.learn:from_logs"},
    load="etude.problems.choice.policy:load",
    method="etude.problems.choice:choose_method",
    continues=False,
    in_force=("choice.max_mean_cost_usd",),
    read_logs="etude.problems.choice.from_logs:read_logs",
    evaluations={"replay": "etude.problems.choice.evaluate:on_replay"},
    requests="etude.problems.choice.gates:gate_requests",
    gates={"choice_limits": "etude.problems.choice.gates:limits_hold"},
    report="etude.problems.choice.report:report",
    finish="etude.problems.choice.learn:keep_findings",
    flags=(
        Flag(name="--replay", type=Path, help="JSONL file of contexts with the outcomes of options."),
        Flag(
            name="--options",
            type=Path,
            help="JSON file that describes the options.",
            default="options.json or catalogue.json next to the replay file",
        ),
        Flag(
            name="--algorithm",
            metavar="ppo|rloo|dpo",
            help="Algorithm that continues --checkpoint on --dataset by the rewards of whole tasks.",
            default="none, the outcomes of options are learned",
        ),
        Flag(name="--checkpoint", type=Path, help="Run or policy to continue from."),
        Flag(name="--name", help="Name of the choice in the dataset, as in task.decide(NAME, …)."),
        Flag(
            name="--encoder",
            setting="choice.encoder",
            metavar="ngrams|fast|minilm|URL#MODEL",
            help="How text is read.",
            default="fast",
        ),
        Flag(
            name="--half-life",
            setting="choice.half_life_rows",
            type=int,
            help="Number of newer rows after which a row counts half.",
            default="never",
        ),
    ),
    preset="etude.problems.choice:choose_preset",
    presets={
        TASKS: {
            "from_logs": {
                "ppo": {"epochs": 40, "minibatch": 256, "lr": 0.02, "patience": 8},
                "rloo": {"epochs": 40, "minibatch": 256, "lr": 0.02, "patience": 8},
                "dpo": {"epochs": 40, "minibatch": 128, "lr": 0.05, "beta": 0.5, "patience": 8},
                "overlap": {"lr": 0.02},
            }
        }
    },
    next_commands={
        REPLAY: ('choose RUN "…"', "evaluate RUN --replay FILE", "runs plot RUN"),
        FROM_LOGS: ('choose RUN "…"', "evaluate RUN --dataset DATASET", "runs plot RUN"),
    },
    commands={"demo": "etude.cli.demo_choice:demo"},
)
