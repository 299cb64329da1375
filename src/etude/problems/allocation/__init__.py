"""Which agent takes which task, how much of its capacity the task gets, and which agents work together."""

from __future__ import annotations

from etude.problems.spec import PRACTISE, Flag, Metric, ProblemSpec, YamlFile

METRICS = {
    "completion_rate": Metric("completion", "tasks completed of those that arrived"),
    "utilisation": Metric("utilisation", "agent-steps with a task in work"),
    "collaboration": Metric("collaboration", "share of possible pairs (in matched, of agents) that worked together"),
    "specialisation": Metric("specialisation", "how much the agent tells about its tasks’ type, some of it by chance"),
    "load_balance": Metric("load balance", "Jain’s index of completed tasks, 100 % when all agents carry the same"),
}

SPEC = ProblemSpec(
    name="allocation",
    summary="Which agent takes which task, how much of its capacity it gets, and who works together.",
    settings="etude.problems.allocation.problem:AllocationSettings",
    sections=("allocation", "network"),
    learners={PRACTISE: "etude.problems.allocation.problem:practise_allocation"},
    load="etude.problems.allocation.loaded:load",
    rules="etude.problems.allocation.rules:make_rules",
    problem="etude.problems.allocation.problem:make_problem",
    metrics=METRICS,
    record="etude.problems.allocation.behaviour:RecordingActor",
    requests="etude.problems.allocation.gates:gate_requests",
    report="etude.problems.allocation.report:report",
    environments="etude.problems.allocation.registration:register",
    flags=(
        Flag(
            name="--variant",
            setting="allocation.variant",
            metavar="document|matched",
            help="Which allocation problem.",
            default="document",
        ),
        Flag(name="--agents", setting="allocation.agents", type=int, help="Number of agents that share the queue."),
        Flag(name="--slots", setting="allocation.slots", type=int, help="Number of tasks that the queue holds."),
        Flag(
            name="--target-return",
            setting="run.target_return",
            type=float,
            help="Stop once an evaluation reaches this return.",
        ),
        Flag(
            name="--target-completion-rate",
            setting="run.target_completion_rate",
            type=float,
            help="Stop once an evaluation completes this share of the tasks.",
        ),
        Flag(name="--max-steps", setting="run.max_steps", type=int, help="Budget of environment steps."),
    ),
    presets=YamlFile(__name__, "presets.yaml"),
    variants=(
        "allocation.variant",
        {
            "matched": {
                "allocation": {"agents": 16, "slots": 64},
                "ppo": {"envs": 128, "epochs": 2, "gamma": 0.95, "entropy_coef": 0.001},
                "run": {"max_steps": 450_000, "eval_every": 50_000},
            },
        },
    ),
)
