"""Prompts and what mutations make of them: the states of each, what is masked there, and what each mutation earns.

A state is a prompt and the set of mutations that it has had. Its text is made once, by the first order of these
mutations that is legal, in the order of MUTATIONS: another order gives nearly the same text, and the same state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from etude.contracts.ports import Vectors
from etude.problems.prompt.mutations import MUTATIONS, Prompt, mutate
from etude.problems.prompt.reader import ACTIONS, Rules, State, known_of

Rewards = Callable[[int, State, str, Callable[[], State]], float]
"""Number of the prompt, its state, a mutation, and what makes the state after it → the reward of the mutation."""
OVER, NOT_MADE = -1, -2
"""In place of the next state: the sequence ends; the state was not made."""


@dataclass(frozen=True, kw_only=True)
class Grown:
    """The states of one prompt, its start first."""

    states: tuple[State, ...]
    known: tuple[Vectors, ...]
    masked: tuple[dict[str, str], ...]
    next: tuple[tuple[int, ...], ...]  # per action, numbered within the prompt
    reward: tuple[tuple[float, ...], ...]  # per action


def grow(number: int, prompt: Prompt, rewards: Rewards, rules: Rules, *, paths: int | None, seed: int) -> Grown:
    """All states of a prompt; or with `paths`, that many random sequences of mutations."""
    growing = _Growing(number, prompt, rules)
    if paths is None:
        growing.everywhere()
    else:
        growing.along(paths, random.Random(f"{seed} {number}"))
    return growing.grown(rewards)


class _Growing:
    """The states of a prompt as far as they are made."""

    def __init__(self, number: int, prompt: Prompt, rules: Rules) -> None:
        self.number, self.rules = number, rules
        self.states, self.place = [State(prompt=prompt)], {frozenset[str](): 0}
        self.masked = [rules.masked(self.states[0])]

    def everywhere(self) -> None:
        row = 0
        while row < len(self.states):
            for mutation in self._possible(row):
                self._go(row, mutation)
            row += 1

    def along(self, paths: int, rng: random.Random) -> None:
        """Random sequences of random lengths, all of them with a mutation left to choose."""
        for _ in range(paths):
            row = 0
            for _ in range(rng.randrange(self.rules.max_mutations)):
                if among := self._possible(row):
                    row = self._go(row, rng.choice(among))

    def grown(self, rewards: Rewards) -> Grown:
        nexts, earned = list[tuple[int, ...]](), list[tuple[float, ...]]()
        for row, state in enumerate(self.states):
            own = set(self._possible(row))
            nexts.append(tuple(self.place.get(state.done | {a}, NOT_MADE) if a in own else OVER for a in ACTIONS))
            earned.append(
                tuple(
                    rewards(self.number, state, a, partial(self._after, state, a)) if a in own else 0.0 for a in ACTIONS
                )
            )
        return Grown(
            states=tuple(self.states),
            known=tuple(known_of(state.prompt) for state in self.states),
            masked=tuple(self.masked),
            next=tuple(nexts),
            reward=tuple(earned),
        )

    def _possible(self, row: int) -> list[str]:
        return [mutation for mutation in MUTATIONS if mutation not in self.masked[row]]

    def _go(self, row: int, mutation: str) -> int:
        state = self._after(self.states[row], mutation)
        if state.done not in self.place:
            self.place[state.done] = len(self.states)
            self.states.append(state)
            self.masked.append(self.rules.masked(state))
        return self.place[state.done]

    def _after(self, state: State, mutation: str) -> State:
        done = state.done | {mutation}
        if done in self.place:
            return self.states[self.place[done]]
        return State(prompt=mutate(state.prompt, mutation, seed=self.number).prompt, done=done)
