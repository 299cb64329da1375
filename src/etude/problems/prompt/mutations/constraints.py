"""constraint-addition."""

from __future__ import annotations

from etude.problems.prompt.mutations.additions import addition
from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.task import Task

NAME = "constraint-addition"
LEADS = ("Keep to these constraints constraints",)


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    if LEADS[0].lower() in task.words:
        return "it is there already"
    return (addition(task.document, LEADS[0], ("Be precise.",), title=LEADS[0]),)
