"""An instruction to a DAG of subtasks, each with its worker, and what to do when one fails."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from etude.contracts.errors import ConfigError
from etude.problems.spec import FROM_LOGS, IMITATE, PRACTISE, Flag, Metric, ProblemSpec, YamlFile

PHASES = {IMITATE: 1, PRACTISE: 2}


def choose_method(inputs: Mapping[str, Any]) -> str:
    """Which learner the inputs ask for; ConfigError for inputs that contradict each other."""
    given = {name for name, value in inputs.items() if value not in (None, [], ())}
    if "replay" in given:
        raise ConfigError(
            "replay, recorded outcomes, is what a choice learns from: use `etude train choice --replay FILE`"
        )
    if "dataset" in given:
        of_data = set() if "data" in given and "algorithm" not in given else {"data", "batch-size", "epochs"}
        wrong = given & {"episodes", "shift", "encoder", *of_data}
        if wrong:
            raise ConfigError(f"{min(wrong)} does not go with a dataset, whose settings are below `from_logs`")
        return FROM_LOGS
    phase = inputs.get("phase") or PHASES.get(inputs.get("method", ""), 1)
    if phase not in (1, 2):
        raise ConfigError(f"phase is {phase}: expected 1, learning from experts, or 2, learning from outcomes")
    if "algorithm" in given:
        raise ConfigError("algorithm goes with a dataset: phase 1 imitates, phase 2 learns by PPO")
    if phase == 1 and "checkpoint" in given:
        raise ConfigError(
            "phase 1 learns from data alone, expert workflows: leave the checkpoint out, or give a dataset of "
            "executions as well, which plans and workers are judged by"
        )
    if "shift" in given and phase == 1:
        raise ConfigError("shift is for phase 2 in the simulated office: experts are as they are")
    if phase == 1:
        return IMITATE
    if "checkpoint" not in given:
        raise ConfigError("phase 2 needs a checkpoint, the planner to continue from")
    return PRACTISE


def choose_preset(method: str, inputs: Mapping[str, Any]) -> str | None:
    """What suits the many plain examples of the simulated office, where those are learned from."""
    return "office" if method == IMITATE and not inputs.get("data") else None


def data_files(inputs: Mapping[str, Any]) -> list[tuple[Path, Path | None]]:
    """Each data file with its own catalogue, where catalogues are given."""
    files: list[Path] = list(inputs.get("data") or ())
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
    sections=("office", "limits", "planner", "worker_model", "training"),
    learners={
        IMITATE: "etude.problems.workflow.phase1:imitate",
        PRACTISE: "etude.problems.workflow.phase2:practise_workflow",
        FROM_LOGS: "etude.problems.workflow.from_logs:from_logs",
    },
    load="etude.problems.workflow.artefact:load",
    decider="etude.orchestrator.workplace:workflow_decider",
    read_logs="etude.problems.workflow.from_logs:read_logs",
    evaluations={
        "data": "etude.problems.workflow.evaluate:on_examples",
        "instructions": "etude.orchestrator.paired:on_instructions",
    },
    metrics={
        "success": Metric("success", "workflows whose every subtask is done"),
        "cost_usd": Metric("USD", "cost per workflow", "usd"),
        "latency_ms": Metric("seconds", "time per workflow", "ms"),
        "corrections": Metric("corrections", "corrections per workflow", "number"),
    },
    compare="etude.problems.workflow.evaluate:compare_in_office",
    requests="etude.problems.workflow.gates:gate_requests",
    gates={"plan_limits": "etude.problems.workflow.gates:plans_hold"},
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
            help="JSON file of expert workflows; may be repeated. Phase 2 practises on them in a simulated world; with "
            "--dataset, plans are learned from them too.",
            default="those of a simulated office",
        ),
        Flag(
            name="--catalogue",
            type=Path,
            multiple=True,
            help="JSON file of task types and workers, one per data file.",
            default="catalogue.json next to the data",
        ),
        Flag(name="--replay", type=Path, help="Moved to `etude train choice --replay`."),
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
        Flag(
            name="--keep",
            metavar="better|always",
            help="With --dataset: which policy the run keeps, the new one only if it is better, or always.",
            default="better",
        ),
    ),
    presets=YamlFile(__name__, "presets.yaml"),
    next_commands={
        IMITATE: ("evaluate RUN --data test.json", "runs plot RUN", 'plan RUN "…"'),
        PRACTISE: ("evaluate RUN", "runs plot RUN", 'run RUN "…"'),
        FROM_LOGS: ("evaluate RUN --dataset DATASET", "runs plot RUN", 'plan RUN "…"'),
    },
    commands={"demo": "etude.cli.orchestrator.demo:demo"},
)
