"""Five mutations of prompts by rules: they read a prompt as Markdown, lose nothing of it, and can be reverted."""

from etude.problems.prompt.mutations.edits import Edit, Mutated
from etude.problems.prompt.mutations.prompts import Message, Prompt
from etude.problems.prompt.mutations.rules import MUTATIONS, mutate

__all__ = ["MUTATIONS", "Edit", "Message", "Mutated", "Prompt", "mutate"]
