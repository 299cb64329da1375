"""Settings to objects, and a run folder back to a policy: the only place where objects are wired, by problem."""

from etude.bootstrap.allocation import TrainedPolicy, make_problem, make_training, read_policy, to_config
from etude.bootstrap.imitation import make_imitation
from etude.bootstrap.outcomes import began_with, learned_in_office, make_outcomes, read_office, show_plans
from etude.bootstrap.planner import load_planner, make_plan_policy, make_reader, read_beginning
from etude.bootstrap.routing import load_router, make_router
from etude.bootstrap.runs import find_root, problem_of, read_settings
from etude.bootstrap.serving import load_policy

__all__ = [
    "TrainedPolicy",
    "began_with",
    "find_root",
    "learned_in_office",
    "load_planner",
    "load_policy",
    "load_router",
    "make_imitation",
    "make_outcomes",
    "make_plan_policy",
    "make_problem",
    "make_reader",
    "make_router",
    "make_training",
    "problem_of",
    "read_beginning",
    "read_office",
    "read_policy",
    "read_settings",
    "show_plans",
    "to_config",
]
