"""The mutations by their names, and carrying one out by rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from etude.contracts.errors import PromptError
from etude.contracts.suggestions import did_you_mean
from etude.problems.prompt.mutations import constraints, decomposition, expansion, fallbacks, reduction
from etude.problems.prompt.mutations.edits import Edit, Mutated, mutated
from etude.problems.prompt.mutations.prompts import Prompt
from etude.problems.prompt.mutations.task import Task, task_of

PLANS: Mapping[str, Callable[[Task], tuple[Edit, ...] | str]] = {
    module.NAME: module.plan for module in (fallbacks, reduction, expansion, constraints, decomposition)
}
MUTATIONS = tuple(PLANS)
"""Every mutation, in the order of a policy's actions."""


def mutate(prompt: Prompt, mutation: str, *, seed: int = 0) -> Mutated:
    """The prompt after a mutation; the same where the mutation makes no sense, with the reason.

    It is pure: the seed chooses among phrasings. PromptError if the prompt cannot be mutated.
    """
    found = planned(prompt, mutation, seed=seed)
    if isinstance(found, str):
        return Mutated(prompt=prompt, mutation=mutation, reason=found)
    return mutated(prompt, mutation, found)


def planned(prompt: Prompt, mutation: str, *, seed: int = 0) -> tuple[Edit, ...] | str:
    """The edits of a mutation, or the reason why it makes no sense here."""
    if mutation not in PLANS:
        raise PromptError(
            f"there is no mutation {mutation!r}: {did_you_mean(mutation, PLANS)}there are {', '.join(PLANS)}"
        )
    task = task_of(prompt, seed=seed)
    found = PLANS[mutation](task)
    if isinstance(found, str):
        return found
    target = task.texts[task.target]
    return tuple(
        edit if edit.message is not None else replace(edit, message=target.message, part=target.part) for edit in found
    )
