"""An instruction to a DAG of subtasks, each with its worker, and what to do when one fails."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from etude.contracts.errors import ConfigError
from etude.problems.spec import FROM_LOGS, IMITATE, PRACTISE, Flag, Metric, ProblemSpec

ROUTE = "route"
"""Learning who answers which query from recorded outcomes: phase 2 with `replay`."""


PHASES = {IMITATE: 1, PRACTISE: 2, ROUTE: 2}


def choose_method(inputs: Mapping[str, Any]) -> str:
    """Which learner the inputs ask for; ConfigError for inputs that contradict each other."""
    given = {name for name, value in inputs.items() if value not in (None, [], ())}
    if "dataset" in given:
        wrong = given & {"data", "replay", "episodes", "shift", "encoder", "batch-size", "epochs"}
        if wrong:
            raise ConfigError(f"{min(wrong)} does not go with a dataset, whose settings are below `from_logs`")
        return FROM_LOGS
    phase = inputs.get("phase") or PHASES.get(inputs.get("method", ""), 1)
    if phase not in (1, 2):
        raise ConfigError(f"phase is {phase}: expected 1, learning from experts, or 2, learning from outcomes")
    if "algorithm" in given:
        raise ConfigError("algorithm goes with a dataset: phase 1 imitates, phase 2 learns by PPO")
    if phase == 1 and given & {"replay", "checkpoint"}:
        raise ConfigError("replay and checkpoint are for phase 2: phase 1 learns from data, expert workflows")
    if "shift" in given and (phase == 1 or "replay" in given):
        raise ConfigError("shift is for phase 2 in the simulated office: experts and records are as they are")
    if phase == 1:
        return IMITATE
    if {"data", "replay"} <= given:
        raise ConfigError("data and replay: plans are practised on, outcomes are recorded; give one of them")
    if not given & {"replay", "checkpoint"}:
        raise ConfigError("phase 2 needs a checkpoint, the planner to continue from, or replay, recorded outcomes")
    return ROUTE if "replay" in given else PRACTISE


def choose_preset(method: str, inputs: Mapping[str, Any]) -> str | None:
    """What suits the many plain examples of the simulated office, where those are learned from."""
    return "office" if method == IMITATE and not inputs.get("data") else None


def data_files(inputs: Mapping[str, Any]) -> list[tuple[Path, Path | None]]:
    """Each data file with its own catalogue, where catalogues are given."""
    files: list[Path] = [inputs["replay"]] if inputs.get("replay") else list(inputs.get("data") or ())
    catalogues: list[Path] = list(inputs.get("catalogue") or ())
    if catalogues and len(catalogues) != len(files):
        raise ConfigError(
            f"there are {len(files)} data files and {len(catalogues)} catalogues: give one for each, in order"
        )
    return [(file, own) for file, own in zip_longest(files, catalogues) if file]


SPEC = ProblemSpec(
    name="workflow",
    summary="How an instruction becomes a plan: which subtasks, in which order, and which worker does each.",
    settings="etude.problems.workflow.settings:WorkflowSettings",
    sections=("office", "limits", "planner", "training"),
    learners={
        IMITATE: "etude.problems.workflow.phase1:imitate",
        PRACTISE: "etude.problems.workflow.phase2:practise_workflow",
        FROM_LOGS: "etude.problems.workflow.from_logs:from_logs",
        ROUTE: "etude.problems.routing.runs:route",
    },
    load="etude.problems.workflow.artefact:load",
    decider="etude.orchestrator.workplace:workflow_decider",
    read_logs="etude.problems.workflow.from_logs:read_logs",
    evaluations={
        "data": "etude.problems.workflow.evaluate:on_examples",
        "replay": "etude.problems.routing.evaluate:on_replay",
    },
    metrics={
        "success": Metric("success", "workflows whose every subtask is done"),
        "cost_usd": Metric("USD", "cost per workflow", "usd"),
        "latency_ms": Metric("seconds", "time per workflow", "ms"),
        "corrections": Metric("corrections", "corrections per workflow", "number"),
    },
    compare="etude.problems.workflow.evaluate:compare_in_office",
    report="etude.problems.workflow.report:report",
    finish="etude.problems.workflow.evaluate:keep_plans",
    method="etude.problems.workflow:choose_method",
    preset="etude.problems.workflow:choose_preset",
    flags=(
        Flag(
            name="--phase",
            type=int,
            metavar="1|2",
            help="1 learns from expert workflows, 2 from outcomes.",
            default="1",
        ),
        Flag(
            name="--data",
            type=Path,
            multiple=True,
            help="JSON file of expert workflows; may be repeated. Phase 2 practises on them in a simulated world.",
            default="those of a simulated office",
        ),
        Flag(
            name="--catalogue",
            type=Path,
            multiple=True,
            help="JSON file of task types and workers, one per data file.",
            default="catalogue.json next to the data",
        ),
        Flag(name="--replay", type=Path, help="Phase 2: JSONL file of recorded outcomes of queries."),
        Flag(
            name="--encoder",
            setting="planner.encoder",
            metavar="ngrams|fast|minilm|minilm-frozen|URL#MODEL",
            help="How text is read.",
            default="fast",
        ),
        Flag(
            name="--epochs",
            setting="training.phase1_supervised.num_epochs",
            type=int,
            help="Phase 1: maximum number of passes over the examples.",
            default="50",
        ),
        Flag(
            name="--batch-size",
            setting="training.phase1_supervised.batch_size",
            type=int,
            help="Phase 1: examples per gradient step.",
            default="32",
        ),
        Flag(
            name="--episodes",
            setting="training.phase2_rl.num_episodes",
            type=int,
            help="Phase 2: number of workflows to learn from.",
            default="140000",
        ),
        Flag(
            name="--shift",
            setting="office.shift",
            metavar="none|degraded|new_tool|phrasings",
            help="Phase 2: what differs from phase 1.",
            default="none",
        ),
    ),
    presets={
        "document": {
            "training": {
                "phase1_supervised": {
                    "batch_size": 32,
                    "learning_rate": 1e-4,
                    "fresh_scale": 1.0,
                    "num_epochs": 50,
                    "lambda_dag": 0.3,
                    "train_data_size": 300,
                    "synthetic_augmentations": 1000,
                },
                "phase2_rl": {
                    "learning_rate": 3e-5,
                    "num_episodes": 1000,
                    "max_steps_per_episode": 50,
                    "gamma": 0.99,
                    "gae_lambda": 0.95,
                    "epsilon": 0.2,
                    "potential": 0.0,
                    "kl_coef": 0.0,
                },
            },
        },
        "office": {
            "limits": {"max_nodes": 10, "max_corrections": 3},
            "planner": {"width": 64, "layers": 2, "dropout": 0.0, "word_dropout": 0.0},
            "training": {
                "phase1_supervised": {
                    "batch_size": 64,
                    "learning_rate": 3e-4,
                    "num_epochs": 12,
                    "validation_share": 0.05,
                    "synthetic_augmentations": 0,
                    "final_epochs": 2,
                }
            },
        },
    },
    next_commands={
        IMITATE: ("evaluate RUN --data test.json", "runs plot RUN", 'plan RUN "…"'),
        PRACTISE: ("evaluate RUN", "runs plot RUN", 'run RUN "…"'),
        FROM_LOGS: ("evaluate RUN --dataset DATASET", "runs plot RUN", 'plan RUN "…"'),
        ROUTE: ("evaluate RUN --replay outcomes.jsonl",),
    },
    commands={"demo": "etude.cli.orchestrator.demo:demo"},
)
