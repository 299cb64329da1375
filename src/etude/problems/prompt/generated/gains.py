"""What a mutation of a generated prompt is worth: it mends a defect, is not needed, or harms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etude.problems.prompt.generated.prompts import DEFECTS, GeneratedPrompt, needs, remaining
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.reader import State, text_of

MENDS = dict(zip(MUTATIONS, DEFECTS, strict=True))
"""The defect that each mutation mends."""
COST = 0.05
"""Of any mutation."""
NOT_NEEDED = 0.3
"""Loss by a mutation that a prompt of its kind may need, and this one does not."""
ENOUGH_GONE = 0.5
"""Share of the noise that has to go for the whole gain."""
MIXED = 0.6
"""Share of a gain by expansion while the prompt still has several tasks in one: separate them first."""


class KnownGains:
    """The expected reward of each mutation of each prompt, since its defects are known."""

    def __init__(self, prompts: Sequence[GeneratedPrompt]) -> None:
        self.prompts = prompts

    def __call__(self, number: int, before: State, mutation: str, after: Callable[[], State]) -> float:
        prompt, defect = self.prompts[number], MENDS[mutation]
        need = needs(prompt.kind)[defect]
        if defect not in prompt.defects:
            return -COST - (NOT_NEEDED if need > 0 else -need)
        if defect == "noise":
            return need * _cleaned(prompt, text_of(before.prompt), text_of(after().prompt)) - COST
        mended = {MENDS[one] for one in before.done}
        mixed = defect == "vague" and "bundle" in prompt.defects - mended
        return need * (MIXED if mixed else 1.0) - COST


def _cleaned(prompt: GeneratedPrompt, before: str, after: str) -> float:
    """From 0 to 1 as noise is gone, less the share of the task that is gone with it."""
    gone = remaining(before, prompt.noise) - remaining(after, prompt.noise)
    lost = remaining(before, prompt.needed) - remaining(after, prompt.needed)
    return min(1.0, gone / ENOUGH_GONE) - lost
