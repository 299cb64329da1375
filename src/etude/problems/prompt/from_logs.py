"""Learning from logged decisions about prompts, whatever their reward is: thumbs and stars, outcomes, a judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import CheckpointError, DataError, DatasetError
from etude.contracts.ports import Example
from etude.learning.artefact import Artefact
from etude.learning.from_logs import Examples, Keep
from etude.learning.logged import Logged, Shards
from etude.learning.logs_run import learn_from_logs
from etude.learning.requests import LearnRequest
from etude.learning.run import PolicyParts, Run
from etude.problems.base import Obs
from etude.problems.prompt import SPEC
from etude.problems.prompt.network import PromptPolicy, as_obs
from etude.problems.prompt.policy import load, read_state
from etude.problems.prompt.reader import ACTIONS, PromptReader
from etude.problems.prompt.world import ACTION

KEPT = 20_000
"""Decisions that stay in memory once they are read; the parts of a dataset that follow are read in every pass."""


def from_logs(request: LearnRequest) -> Run:
    """A run that continues a policy on a dataset of logged decisions."""
    return learn_from_logs(request, SPEC, read_logs, keep=Keep.BETTER)


def read_logs(artefact: Artefact, inputs: Mapping[str, Any], device: torch.device) -> PromptLogs:
    decider = load(artefact)
    details = artefact.manifest.details
    if "known" not in details:
        raise CheckpointError(f"{artefact.path}: it does not say which features it reads: train it again")
    return PromptLogs(decider.network.to(device), decider.reader, details, device)


class PromptLogs:
    """A policy, and logged decisions as it observes them. What it learns makes its scores something else than expected
    rewards."""

    def __init__(
        self, policy: PromptPolicy, reader: PromptReader, details: Mapping[str, Any], device: torch.device
    ) -> None:
        self.policy, self.reader, self.device = policy, reader, device
        self.parts = PolicyParts(tensors={}, details={**details, "scores_are_rewards": False})

    def shards(self, examples: Examples, *, seed: int = 0, sample: Callable[[], int] = lambda: 0) -> Shards:
        kept: list[Logged] = []

        def parts() -> Iterator[Logged]:
            decisions = 0
            for number, part in enumerate(examples()):
                if number == len(kept) and sum(map(len, kept)) < KEPT:
                    kept.append(self.logged(part))
                logged = kept[number] if number < len(kept) else self.logged(part)
                decisions += len(logged)
                if len(logged):
                    yield logged
            if not decisions:
                raise DatasetError("no decision of the dataset has a propensity: create one of a policy that samples")

        return parts

    def logged(self, examples: Sequence[Example]) -> Logged:
        rows = [
            (number, decision, f"trajectory {example.trajectory.id}")
            for number, example in enumerate(examples)
            for decision in example.trajectory.decisions
            if decision.problem == SPEC.name and decision.propensity is not None
        ]
        contexts = {context: i for i, context in enumerate(dict.fromkeys(example.context for example in examples))}

        def numbers(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.device)

        return Logged(
            obs=self._observed([decision for _, decision, _ in rows], [where for _, _, where in rows]),
            action={ACTION: torch.tensor([_number(d, where) for _, d, where in rows], device=self.device).long()},
            log_propensity=numbers([decision.propensity or 1.0 for _, decision, _ in rows]).log(),
            trajectory=torch.tensor([number for number, _, _ in rows], device=self.device).long(),
            reward=numbers([example.reward for example in examples]),
            context=torch.tensor([contexts[example.context] for example in examples], device=self.device),
            eligible=numbers([len(decision.eligible or ACTIONS) for _, decision, _ in rows]).log(),
        )

    def _observed(self, decisions: Sequence[LoggedDecision], where: Sequence[str]) -> Obs:
        """What the policy sees now of the prompts of then; eligible is what was eligible then."""
        states = []
        for decision, place in zip(decisions, where, strict=True):
            try:
                states.append(read_state(decision.context))
            except DataError as error:
                raise DataError(f"{place}: {error}") from error
        if not states:
            return {}
        masked = [set(ACTIONS) - set(decision.eligible or ACTIONS) for decision in decisions]
        obs = as_obs(self.reader.read(states, masked))
        return {name: value.to(self.device) for name, value in obs.items()}


def _number(decision: LoggedDecision, where: str) -> int:
    if decision.action not in ACTIONS:
        raise DataError(f"{where}: the action is {decision.action!r:.60}: expected one of {', '.join(ACTIONS)}")
    return ACTIONS.index(decision.action)
