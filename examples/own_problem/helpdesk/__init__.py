"""Who answers a helpdesk ticket: the bot, an expert or a person; whoever failed at it is not asked again."""

from __future__ import annotations

from etude.problems.spec import FROM_LOGS, PRACTISE, Flag, Metric, ProblemSpec

SPEC = ProblemSpec(
    name="helpdesk",
    summary="Who answers a helpdesk ticket: the bot, an expert or a person.",
    settings="helpdesk.world:HelpdeskSettings",
    sections=("helpdesk",),
    learners={PRACTISE: "helpdesk.policy:practise_helpdesk", FROM_LOGS: "helpdesk.policy:from_logs"},
    load="helpdesk.policy:load",
    problem="helpdesk.world:make_problem",
    read_logs="helpdesk.policy:read_logs",
    metrics={"solved": Metric("solved", "tickets that were solved")},
    flags=(
        Flag(
            name="--difficulty",
            setting="helpdesk.difficulty",
            type=float,
            help="Share of its skill that everybody loses.",
            default="0",
        ),
    ),
    presets={"document": {}},
)
