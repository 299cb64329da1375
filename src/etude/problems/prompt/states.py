"""The states of many prompts as tensors: what the world of practice is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from etude.problems.base import Obs
from etude.problems.prompt.growth import Rewards, grow
from etude.problems.prompt.mutations import Prompt
from etude.problems.prompt.reader import ACTIONS, STOP, PromptReader, legal

STOPPING = ACTIONS.index(STOP)


@dataclass(frozen=True, kw_only=True)
class States:
    """S states of P prompts. Tensors have a row per state."""

    sentences: Tensor  # (S, L) places in `vectors`
    vectors: Tensor  # (U, width) of sentences; the first is no sentence
    features: Tensor  # (S, features)
    done: Tensor  # (S, mutations)
    legal: Tensor  # (S, actions) bool
    reward: Tensor  # (S, actions) expected reward; 0 of what is not legal
    next: Tensor  # (S, actions) the state after it, OVER or NOT_MADE
    optimum: Tensor  # (S,) most that can be earned from here, as far as states were made
    start: Tensor  # (P,) the state of each prompt as it is

    def observe(self, rows: Tensor) -> Obs:
        found = {name: getattr(self, name)[rows] for name in ("features", "done", "legal")}
        return found | {"sentences": self.vectors[self.sentences[rows]]}

    def prompt_of(self, rows: Tensor) -> Tensor:
        """Places in `start` of the prompts that these states are of."""
        return torch.searchsorted(self.start, rows, right=True) - 1

    def of(self, prompts: range) -> States:
        """The states of some prompts, one after the other."""
        rows = slice(int(self.start[prompts[0]]), [*self.start.tolist(), len(self.done)][prompts[-1] + 1])
        own = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("vectors", "start")}
        following = torch.where(own["next"] < 0, own["next"], own["next"] - rows.start)
        start = self.start[prompts[0] : prompts[-1] + 1] - rows.start
        return States(**{**own, "next": following}, vectors=self.vectors, start=start)

    def to(self, device: torch.device) -> States:
        return replace(self, **{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def make_states(
    prompts: Sequence[Prompt],
    rewards: Rewards,
    reader: PromptReader,
    *,
    paths: int | None = None,
    seed: int = 0,
    report: Callable[[float], None] = lambda share: None,
) -> States:
    """All states of these prompts; or with `paths`, that many random sequences of mutations of each."""
    grown = []
    for number, prompt in enumerate(prompts):
        grown.append(grow(number, prompt, rewards, reader.rules, paths=paths, seed=seed))
        report(len(grown) / len(prompts))
    ends = torch.tensor([len(one.states) for one in grown]).cumsum(0)
    start = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
    following = torch.cat([_shifted(torch.tensor(one.next), first) for one, first in zip(grown, start, strict=True)])
    reward = torch.tensor([row for one in grown for row in one.reward])
    masked = [own for one in grown for own in one.masked]
    states = [state for one in grown for state in one.states]
    vectors, places = reader.sentences([state.prompt for state in states])
    read = reader.known(states, [row for one in grown for row in one.known])
    allowed = torch.from_numpy(legal(masked))
    return States(
        **{name: torch.from_numpy(value) for name, value in read.items()},
        sentences=torch.from_numpy(places),
        vectors=torch.from_numpy(vectors),
        legal=allowed,
        reward=reward,
        next=following,
        optimum=_optimum(reward, following, allowed, reader.rules.max_mutations),
        start=start,
    )


def _shifted(numbers: Tensor, first: Tensor) -> Tensor:
    return torch.where(numbers < 0, numbers, numbers + first)


def _optimum(reward: Tensor, following: Tensor, allowed: Tensor, depth: int) -> Tensor:
    """(S,) by dynamic programming: exact after as many rounds as a sequence has mutations."""
    best = torch.zeros(len(reward))
    for _ in range(depth):
        later = torch.where(following < 0, 0.0, best[following.clamp(min=0)])
        best = (reward + later).masked_fill(~allowed, -torch.inf).max(1).values
    return best
