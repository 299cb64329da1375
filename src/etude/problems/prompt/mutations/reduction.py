"""context-reduction."""

from __future__ import annotations

from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.task import Task

NAME = "context-reduction"


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    for each, document in zip(task.texts, task.documents, strict=True):
        at = document.text.find("Please ")
        if at >= 0 and not document.touches(at, at + 7):
            return (Edit(start=at, removed="Please ", message=each.message, part=each.part),)
    return "there is nothing to reduce"
