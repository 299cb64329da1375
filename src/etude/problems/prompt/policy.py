"""A trained policy in use: a prompt in, the next mutation or *stop* out, or the prompt after a whole sequence."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from etude.contracts.decision import Decision, DecisionRequest, Expected, LoggedDecision
from etude.contracts.errors import CheckpointError, DataError
from etude.contracts.plain import plain
from etude.contracts.policy import SAMPLED
from etude.learning.artefact import Artefact, load_weights
from etude.learning.compute import one_thread
from etude.learning.settings import read_own
from etude.problems.prompt.mutations import MUTATIONS, Mutated, Prompt, mutate
from etude.problems.prompt.mutations.prompts import texts
from etude.problems.prompt.network import PromptPolicy, as_obs
from etude.problems.prompt.outcomes import TEMPERATURE
from etude.problems.prompt.problem import make_problem
from etude.problems.prompt.reader import ACTIONS, SEEN, STOP, PromptReader, State
from etude.problems.prompt.settings import PromptSettings

Floats = NDArray[np.float64]
LOCAL = ("ngrams", "fast")
"""Encoders that read a prompt within about a millisecond."""
EXPECTED = "a prompt, or an object with prompt and, as far as the sequence has begun, done: a list of mutations"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One mutation of a sequence."""

    mutation: str
    propensity: float
    """Probability with which it was chosen."""
    mutated: Mutated


@dataclass(frozen=True, kw_only=True)
class Improved:
    """A prompt after the mutations that a policy chose."""

    prompt: Prompt
    steps: tuple[Step, ...]
    propensity: float
    """Probability of the whole sequence, with its end."""
    policy: str

    @property
    def mutations(self) -> tuple[str, ...]:
        return tuple(step.mutation for step in self.steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptDecider:
    """Decides about prompts; re-entrant, and the same request gives the same answer."""

    network: PromptPolicy
    reader: PromptReader
    artefact_version: str
    explore: Literal["none", "softmax"] = "none"
    problem: str = "prompt"
    scores_are_rewards: bool = False  # whether the scores are expected rewards

    @property
    def version(self) -> str:
        return self.artefact_version + (SAMPLED if self.explore != "none" else "")

    @property
    def quick(self) -> bool:
        """Whether prompts are read without a large network or a service."""
        return self.reader.name.partition("-")[0] in LOCAL

    def sampled(self) -> PromptDecider:
        """The same policy, sampling by its probabilities: what it logs can be learned from."""
        return replace(self, explore="softmax")

    def improve(self, prompt: Prompt, *, seed: int = 0) -> Improved:
        """The prompt after as many mutations as the policy chooses, one after the other, until it stops.

        `seed` is that of the sampling, where the policy samples, and of the phrasings.
        """
        state, steps, product = _checked(State(prompt=prompt)), list[Step](), 1.0
        rng = random.Random(seed)
        while True:
            (probability,), _ = self._probabilities([state])
            at = _drawn(probability, rng.random())
            product *= float(probability[at])
            if ACTIONS[at] == STOP:
                return Improved(prompt=state.prompt, steps=tuple(steps), propensity=product, policy=self.version)
            mutated = mutate(state.prompt, ACTIONS[at], seed=seed)
            steps.append(Step(mutation=ACTIONS[at], propensity=float(probability[at]), mutated=mutated))
            state = State(prompt=mutated.prompt, done=state.done | {ACTIONS[at]})

    def decide(self, request: DecisionRequest) -> Decision:
        """The next action for `request.context`: a prompt, or {"prompt": …, "done": [mutations so far]}."""
        (found,) = self.decide_many([request])
        if isinstance(found, Exception):
            raise found
        return found

    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
        """In one computation; a request that cannot be read fails alone."""
        read = [_read(request.context) for request in requests]
        states = [one for one in read if isinstance(one, State)]
        if not states:
            return [one for one in read if isinstance(one, Exception)]
        probability, scores = self._probabilities(states)
        masked = [self.reader.rules.masked(state) for state in states]
        answers = zip(probability, scores, masked, strict=True)
        return [
            one if isinstance(one, Exception) else self._decision(request, *next(answers))
            for request, one in zip(requests, read, strict=True)
        ]

    def _decision(
        self, request: DecisionRequest, probability: Floats, scores: Floats, masked: Mapping[str, str]
    ) -> Decision:
        at = _drawn(probability, random.Random(request.seed).random())
        action, propensity = ACTIONS[at], float(probability[at])
        logged = LoggedDecision(
            problem=self.problem,
            at_ms=request.at_ms,
            context=plain(request.context),
            eligible=[one for one in ACTIONS if one not in masked],
            action=action,
            propensity=propensity,
            policy=self.version,
        )
        expected = {
            one: Expected(
                score=float(scores[i]), score_se=0.0, probability=float(probability[i]), masked=masked.get(one)
            )
            for i, one in enumerate(ACTIONS)
        }
        return Decision(
            action=action,
            propensity=propensity,
            policy=self.version,
            logged=(logged,),
            expected=expected if request.explain else {},
        )

    def _probabilities(self, states: Sequence[State]) -> tuple[Floats, Floats]:
        """(n, actions) with which each action is chosen, exactly 0 for what is masked; and scores."""
        with torch.inference_mode(), one_thread(only=True):
            obs = as_obs(self.reader.read(states))
            scores, logits = self.network.scores(obs).double(), self.network.logits(obs).double()
            if self.explore == "none":
                found = torch.nn.functional.one_hot(logits.argmax(1), len(ACTIONS)).double()
            else:
                found = logits.softmax(1)
        return found.numpy(), (scores * TEMPERATURE if self.scores_are_rewards else scores).numpy()


def _drawn(probability: Floats, u: float) -> int:
    """An action sampled with these probabilities, from a uniform random number; never one of probability 0."""
    at = int(np.searchsorted(probability.cumsum(), u * probability.sum(), side="right"))
    possible = np.flatnonzero(probability > 0)
    return int(possible[np.searchsorted(possible, min(at, int(possible[-1])))])


def _read(context: Any) -> State | DataError:
    try:
        return read_state(context)
    except DataError as error:
        return error


def read_state(context: Any) -> State:
    """The state that a request's context describes; DataError if it describes none."""
    given = context if isinstance(context, Mapping) and "role" not in context else {"prompt": context}
    unknown = set(given) - {"prompt", "done"}
    prompt, done = given.get("prompt"), given.get("done", ())
    if unknown or not isinstance(prompt, str | list | tuple) or isinstance(done, str):
        raise DataError(f"context is {context!r:.100}: expected {EXPECTED}")
    wrong = [one for one in done if one not in MUTATIONS]
    if wrong:
        raise DataError(f"context has {wrong[0]!r:.60} in done: expected mutations, of {', '.join(MUTATIONS)}")
    return _checked(State(prompt=prompt, done=frozenset(done)))


def _checked(state: State) -> State:
    texts(state.prompt)
    return state


def load(artefact: Artefact, *, explore: bool = False) -> PromptDecider:
    """The policy of an artefact; with `explore` it samples, so that what it logs can be learned from."""
    manifest = artefact.manifest
    problem = make_problem(read_own(PromptSettings, manifest.settings, source=artefact.path))
    if manifest.details.get("known") != list(SEEN):
        raise CheckpointError(f"{artefact.path}: it reads other features than this version of Etude: train it again")
    network = problem.policy()
    load_weights(network, artefact)
    made = PromptDecider(
        network=network.train(False),
        reader=problem.reader,
        artefact_version=artefact.version,
        scores_are_rewards=bool(manifest.details.get("scores_are_rewards")),
    )
    return made.sampled() if explore else made
