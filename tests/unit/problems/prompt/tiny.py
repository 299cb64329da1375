"""Small things for tests of the prompt problem: prompts, states and networks that are made at once."""

from __future__ import annotations

from functools import cache

import torch

from etude.problems.prompt.generated.gains import KnownGains
from etude.problems.prompt.generated.prompts import GeneratedPrompt, make_prompts
from etude.problems.prompt.network import PromptPolicy
from etude.problems.prompt.reader import PromptReader, Rules
from etude.problems.prompt.settings import PromptNetworkConfig
from etude.problems.prompt.states import States, make_states

NETWORK = PromptNetworkConfig(hidden=(32, 16), sentence_units=16)
READER = PromptReader("ngrams-64", Rules(max_mutations=2))


@cache
def prompts(n: int = 24, seed: int = 0) -> list[GeneratedPrompt]:
    return make_prompts(n, seed)


@cache
def states(n: int = 24, seed: int = 0) -> States:
    made = prompts(n, seed)
    return make_states([one.text for one in made], KnownGains(made), READER)


def policy(seed: int = 0) -> PromptPolicy:
    torch.manual_seed(seed)
    found = PromptPolicy(READER.width, NETWORK)
    found.reading.fit(states().features, states().vectors[1:])
    return found.train(False)
