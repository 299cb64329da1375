"""What is learned from: generated prompts with known gains, or a user's own prompts with the rewards of rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.problems.prompt.data import read_prompts
from etude.problems.prompt.generated.gains import KnownGains
from etude.problems.prompt.generated.prompts import make_prompts
from etude.problems.prompt.growth import Rewards
from etude.problems.prompt.mutations import Prompt
from etude.problems.prompt.reader import PromptReader
from etude.problems.prompt.rewards import RuleRewards
from etude.problems.prompt.settings import PromptConfig
from etude.problems.prompt.states import States, make_states

MANY, MANY_WITH_ALL_STATES = 3_000, 300
"""Generated prompts, unless the settings say otherwise."""
HELD_OUT = 0.15
"""Share of the prompts by which a run chooses its best policy."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """States to learn from and states to choose the best policy by, of different prompts."""

    train: States
    validation: States
    data: tuple[str, ...] = ()
    """Hashes of the files that were read."""


def make_training(
    inputs: Mapping[str, Any], config: PromptConfig, reader: PromptReader, *, paths: int | None, seed: int
) -> Training:
    """With `paths`, states along that many random sequences per prompt; else all."""
    path: Path | None = inputs.get("data")
    if path is None:
        made = make_prompts(config.prompts or (MANY if paths else MANY_WITH_ALL_STATES), seed)
        return _split([one.text for one in made], KnownGains(made), reader, paths, seed, ())
    prompts = read_prompts(path)
    rewards = RuleRewards(mutation_cost=config.mutation_cost)
    return _split(prompts, rewards, reader, paths, seed, (hashlib.sha256(path.read_bytes()).hexdigest(),))


def _split(
    prompts: Sequence[Prompt],
    rewards: Rewards,
    reader: PromptReader,
    paths: int | None,
    seed: int,
    data: tuple[str, ...],
) -> Training:
    states = make_states(prompts, rewards, reader, paths=paths, seed=seed)
    last = len(prompts) - max(1, round(HELD_OUT * len(prompts)))
    return Training(train=states.of(range(last)), validation=states.of(range(last, len(prompts))), data=data)
