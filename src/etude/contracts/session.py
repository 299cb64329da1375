"""A policy of one caller's own that learns while the caller asks it: what the routes of document 003 speak to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol

from msgspec import Meta, Struct

Share = Annotated[float, Meta(ge=0, le=1)]
Embedding = Annotated[list[float], Meta(min_length=1, max_length=8192)]


class Selected(Struct, frozen=True, kw_only=True):
    """A mutation, and how it was chosen."""

    action: int
    """Number of the mutation."""
    mutation: str
    log_prob: float
    """Natural logarithm of the propensity."""
    value: float
    """Expected sum of rewards from here on."""
    propensity: Share
    probabilities: dict[str, Share]
    """By mutation; those that make no sense for the prompt have 0."""
    prompt: str | None = None
    """The prompt after the mutation, where a prompt was given."""


class SessionStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step that the caller took: what was seen, what was done, and what it brought."""

    embedding: Embedding | None = None
    prompt: str | None = None
    """Instead of its embedding."""
    action: Annotated[int, Meta(ge=0)]
    reward: Annotated[float, Meta(ge=-1e6, le=1e6)]
    log_prob: Annotated[float, Meta(le=0)] | None = None
    """As `select_action` gave it; without it, that of the policy now."""
    value: float | None = None
    """As `select_action` gave it; without it, that of the policy now."""
    done: bool
    """Whether the episode ends with this step."""
    next_embedding: Embedding | None = None
    """What came after the step, where it is the last one before an update and the episode goes on."""


class Updated(Struct, frozen=True, kw_only=True):
    """What an update did; numbers are null if there was too little experience for one."""

    updated: bool
    policy_loss: float | None = None
    value_loss: float | None = None
    entropy: float | None = None
    approx_kl: float | None = None
    clip_fraction: float | None = None
    epochs: int | None = None
    buffer_size: int
    """Steps that wait for the next update."""


class Session(Protocol):
    """One caller's policy and experience; calls come one at a time. DataError if what is given does not fit."""

    def select(self, *, embedding: Sequence[float] | None, prompt: str | None, greedy: bool, seed: int) -> Selected: ...

    def distribution(self, *, embedding: Sequence[float] | None, prompt: str | None) -> dict[str, float]: ...

    def store(self, step: SessionStep) -> int:
        """Keep a step for the next update; how many wait."""

    def update(self) -> Updated:
        """Learn from the steps that wait, by PPO, and forget them."""

    def save(self, folder: Path) -> None:
        """Write the policy as an artefact into a new folder."""
