"""Logged choices as tensors for off-policy evaluation: with which probability a policy would have made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from etude.contracts.decision import Preferences
from etude.contracts.errors import DataError
from etude.contracts.option import option_name, read_options
from etude.contracts.ports import Example
from etude.learning.from_logs import Examples
from etude.learning.logged import Logged, Shards
from etude.learning.run import PolicyParts
from etude.problems.base import Action, Evaluation, Obs
from etude.problems.choice.contexts import Context, read_context
from etude.problems.choice.policy import ChoicePolicy, Scored

TOGETHER = 1024
"""Decisions that are scored at a time."""
SAME_UTILITY = 1e-12
"""Probability of an option that the policy never chooses, so that logarithms stay finite."""


class Judged(torch.nn.Module):
    """The policy on decisions whose probabilities are known."""

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        probability, score = obs["probability"], obs["score"]
        chosen = probability.gather(1, action["option"][:, None])[:, 0]
        entropy, value = -(probability * probability.clamp(min=1e-300).log()).sum(1), (probability * score).sum(1)
        return Evaluation(
            log_prob=chosen.clamp(min=SAME_UTILITY).log(),
            entropy=entropy,
            value=value,
            advantage=score.gather(1, action["option"][:, None])[:, 0] - value,
        )


class ChoiceLogReader:
    """Reads logged decisions as a policy would make them."""

    def __init__(self, policy: ChoicePolicy) -> None:
        self.decider, self.policy = policy, Judged()
        self.parts = PolicyParts(tensors={})

    def shards(self, examples: Examples, *, seed: int = 0, sample: Callable[[], int] = lambda: 0) -> Shards:
        def parts() -> Iterator[Logged]:
            for part in examples():
                logged = self._logged(part)
                if len(logged):
                    yield logged

        return parts

    def _logged(self, examples: Sequence[Example]) -> Logged:
        made = read_decisions(examples)
        scored = self._scored(made)
        width = max((len(one.eligible) for one in made), default=1)
        table = {
            "probability": _table([one.probability for one in scored], width),
            "score": _table([one.expectation.score[0] for one in scored], width),
        }
        return to_logged(examples, made, table)

    def _scored(self, made: Sequence[Made]) -> list[Scored]:
        """Those that were offered the same options are computed together."""
        alike: dict[bytes, list[int]] = {}
        for place, one in enumerate(made):
            alike.setdefault(msgspec.json.encode(one.eligible), []).append(place)
        found: dict[int, Scored] = {}
        for places in alike.values():
            for low in range(0, len(places), TOGETHER):
                some = places[low : low + TOGETHER]
                contexts = [made[place].context for place in some]
                scored = self.decider.score_all(contexts, made[some[0]].eligible, Preferences())
                found |= zip(some, scored, strict=True)
        return [found[place] for place in range(len(made))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A logged decision, as it was made."""

    trajectory: int  # number of its example
    context: Context
    eligible: Sequence[Any]
    chosen: int  # place in `eligible`
    propensity: float


def read_decisions(examples: Sequence[Example]) -> list[Made]:
    """The decisions of the trajectories' own problem, in their order. Those without a propensity, such as a person's,
    are not the policy's to make."""
    found = []
    for number, example in enumerate(examples):
        for decision in example.trajectory.decisions:
            where = f"trajectory {example.trajectory.id}"
            if decision.problem != example.trajectory.problem or decision.propensity is None:
                continue
            names = [option.name for option in read_options(decision.eligible, where=f"{where}: eligible")]
            chosen = option_name(decision.action)
            if chosen not in names:
                raise DataError(f"{where}: {chosen!r} was chosen and not offered")
            found.append(
                Made(
                    trajectory=number,
                    context=read_context(decision.context, where=f"{where}: context"),
                    eligible=decision.eligible,
                    chosen=names.index(chosen),
                    propensity=decision.propensity,
                )
            )
    return found


def to_logged(
    examples: Sequence[Example],
    made: Sequence[Made],
    obs: Obs,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Logged:
    """Decisions with what a policy observes of them."""

    def numbers(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    def places(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    contexts = {context: i for i, context in enumerate(dict.fromkeys(example.context for example in examples))}
    return Logged(
        obs=obs,
        action={"option": places([one.chosen for one in made])},
        log_propensity=numbers([one.propensity for one in made]).log(),
        trajectory=places([one.trajectory for one in made]),
        reward=numbers([example.reward for example in examples]),
        context=places([contexts[example.context] for example in examples]),
        eligible=numbers([len(one.eligible) for one in made]).log(),
    )


def _table(rows: Sequence[NDArray[np.float64]], width: int) -> torch.Tensor:
    """(n, width), with zeros after shorter rows."""
    found = torch.zeros((len(rows), width), dtype=torch.float64)
    for i, row in enumerate(rows):
        found[i, : len(row)] = torch.from_numpy(row)
    return found
