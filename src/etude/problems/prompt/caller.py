"""A session as the HTTP routes ask it: what they send in, prompts mutated and numbers of the update out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etude.contracts.session import Selected, SessionStep, Updated
from etude.learning.artefact import Artefact
from etude.problems.prompt.mutations import mutate
from etude.problems.prompt.session import Session


def open_session(policy: Artefact | None) -> CallerSession:
    """Begin with a policy, or as the source document does."""
    return CallerSession(Session() if policy is None else Session.load(policy))


class CallerSession:
    def __init__(self, own: Session) -> None:
        self.own = own

    def select(self, *, embedding: Sequence[float] | None, prompt: str | None, greedy: bool, seed: int) -> Selected:
        found = self.own.select(embedding=embedding, prompt=prompt, greedy=greedy, seed=seed)
        mutated = None if prompt is None else mutate(prompt, found.mutation, seed=seed).prompt
        assert mutated is None or isinstance(mutated, str)
        return Selected(
            action=found.action,
            mutation=found.mutation,
            log_prob=found.log_prob,
            value=found.value,
            propensity=found.propensity,
            probabilities=dict(found.probabilities),
            prompt=mutated,
        )

    def distribution(self, *, embedding: Sequence[float] | None, prompt: str | None) -> dict[str, float]:
        return self.own.distribution(embedding=embedding, prompt=prompt)

    def store(self, step: SessionStep) -> int:
        return self.own.store(
            action=step.action,
            reward=step.reward,
            over=step.done,
            embedding=step.embedding,
            prompt=step.prompt,
            log_prob=step.log_prob,
            value=step.value,
            next_embedding=step.next_embedding,
        )

    def update(self) -> Updated:
        found = self.own.update()
        if found is None:
            return Updated(updated=False, buffer_size=self.own.waiting)
        numbers = {name: found.get(name) for name in ("policy_loss", "value_loss", "entropy", "approx_kl")}
        return Updated(
            updated=True,
            clip_fraction=found.get("clip_fraction"),
            epochs=self.own.config.ppo.epochs,
            buffer_size=self.own.waiting,
            **numbers,
        )

    def save(self, folder: Path) -> None:
        self.own.save(folder)
