"""What a learned policy is compared with: no change, random choice, each mutation by itself, all, and a rule list."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from etude.learning.comparison import RANDOM
from etude.problems.base import Action, Actor, Obs
from etude.problems.distributions import sample_categorical
from etude.problems.prompt.kinds import KINDS
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.rewards import RULES
from etude.problems.prompt.states import STOPPING
from etude.problems.prompt.world import ACTION

NO_CHANGE, EVERY, RULE_LIST = "no change", "every mutation", "rule list"


def baselines() -> dict[str, Actor]:
    found: dict[str, Actor] = {NO_CHANGE: no_change, RANDOM: random_choice, EVERY: every_mutation, RULE_LIST: rule_list}
    return found | {f"always {mutation}": _always(i) for i, mutation in enumerate(MUTATIONS)}


def no_change(obs: Obs, generator: Generator) -> Action:
    return {ACTION: torch.full((len(obs["legal"]),), STOPPING, device=obs["legal"].device)}


def random_choice(obs: Obs, generator: Generator) -> Action:
    scores = torch.zeros(obs["legal"].shape, device=obs["legal"].device)
    return {ACTION: sample_categorical(scores.masked_fill(~obs["legal"], -torch.inf), generator)}


def every_mutation(obs: Obs, generator: Generator) -> Action:
    """The first that is not masked, until all are."""
    return {ACTION: obs["legal"].int().argmax(1)}


def rule_list(obs: Obs, generator: Generator) -> Action:
    """Every mutation that the reward rules want for the kind of the prompt and that is not masked, then stop."""
    wanted = torch.tensor([[float(RULES[kind][mutation] > 0) for mutation in MUTATIONS] for kind in KINDS])
    wanted = wanted.to(obs["legal"].device)
    score = obs["features"][:, : len(KINDS)] @ wanted * obs["legal"][:, :STOPPING]  # (n, mutations)
    return {ACTION: torch.where(score.amax(1) > 0, score.argmax(1), STOPPING)}


def _always(mutation: int) -> Actor:
    def act(obs: Obs, generator: Generator) -> Action:
        return {ACTION: torch.where(_fresh(obs) & obs["legal"][:, mutation], mutation, STOPPING)}

    return act


def _fresh(obs: Obs) -> Tensor:
    """(n,) nothing has been done yet."""
    fresh: Tensor = obs["done"].sum(1) == 0
    return fresh
