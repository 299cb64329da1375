"""The reward model by rules: a prompt in, how good it is out, by its kind and by what its text has.

It is a start where there is no better judge: it knows what a kind of prompt usually needs, and not whether a model
answers better. What it rewards is what the mutations do, so a policy that it trains has learned the rules, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from etude.problems.prompt.kinds import kind_of
from etude.problems.prompt.masks import cannot
from etude.problems.prompt.mutations import MUTATIONS, Prompt
from etude.problems.prompt.reader import State, text_of
from etude.problems.spec import YamlFile

RULES = YamlFile(__package__, "reward_rules.yaml")
TOO_LONG = 0.5
"""What a text of twice its usual length loses."""


def score(prompt: Prompt, kind: str | None = None) -> float:
    """How good a prompt is for its kind; a mutated prompt keeps the kind that it had."""
    own = kind or kind_of(text_of(prompt))
    return _of_text(prompt, own) if isinstance(prompt, str) else _by_rules(prompt, own)


@lru_cache(4096)
def _of_text(text: str, kind: str) -> float:
    """Remembered: a state of a prompt is scored once for each mutation that leads to it or from it."""
    return _by_rules(text, kind)


def _by_rules(prompt: Prompt, kind: str) -> float:
    text, rules = text_of(prompt), RULES[kind]
    has = sum(rules[mutation] for mutation in MUTATIONS if cannot(prompt, mutation) is not None)
    beyond = len(text.split()) / rules["words"] - 1
    return float(has - TOO_LONG * min(1.0, max(0.0, beyond)))


@dataclass(frozen=True, kw_only=True)
class RuleRewards:
    """The reward of a mutation: by how much the prompt's score rises, less what a mutation costs."""

    mutation_cost: float

    def __call__(self, number: int, before: State, mutation: str, after: Callable[[], State]) -> float:
        kind = kind_of(text_of(before.prompt))
        return score(after().prompt, kind) - score(before.prompt, kind) - self.mutation_cost
