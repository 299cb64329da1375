"""Which mutations make sense for a prompt, and the reasons of those that do not."""

from __future__ import annotations

from etude.problems.prompt.mutations.prompts import Prompt
from etude.problems.prompt.mutations.rules import MUTATIONS, planned


def cannot(prompt: Prompt, mutation: str) -> str | None:
    """Why a mutation makes no sense for a prompt, such as *there is nothing to reduce*; None where it does.

    PromptError if the prompt cannot be mutated at all, or there is no such mutation.
    """
    found = planned(prompt, mutation)
    return found if isinstance(found, str) else None


def reasons(prompt: Prompt) -> dict[str, str | None]:
    """The same of every mutation."""
    return {mutation: cannot(prompt, mutation) for mutation in MUTATIONS}
