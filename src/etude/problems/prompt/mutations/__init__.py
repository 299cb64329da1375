"""Five mutations of prompts: they read a prompt as Markdown, lose nothing of it, and can be reverted.

Rules carry them out; a language model may, with the rules as its check and its fallback.
"""

from etude.problems.prompt.mutations.by_model import Model, mutate_by_model
from etude.problems.prompt.mutations.edits import Edit, Mutated
from etude.problems.prompt.mutations.invariants import violations
from etude.problems.prompt.mutations.prompts import Message, Prompt
from etude.problems.prompt.mutations.rules import MUTATIONS, mutate

__all__ = ["MUTATIONS", "Edit", "Message", "Model", "Mutated", "Prompt", "mutate", "mutate_by_model", "violations"]
