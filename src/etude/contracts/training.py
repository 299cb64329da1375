"""Asking for a training, and how it goes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from etude.contracts.query import Where
from etude.contracts.reward import Version
from etude.contracts.trajectory import Amount, Event, Id, Name, Share

Count = Annotated[int, Meta(ge=0)]


class Compute(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a training may use."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where tensors live; auto takes a GPU where there is one."""
    cpus: Annotated[int, Meta(ge=1)] = 1
    """Cores."""
    gpus: Count = 0
    """GPUs."""
    memory_gb: Amount | None = None
    """Null is as much as there is."""
    max_minutes: Amount | None = None
    """It is stopped then; null is never."""


class Evaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How its result is judged."""

    holdout: Share = 0.2
    """Share of the trajectories that are kept aside."""
    metrics: tuple[Name, ...] = ("return", "success")
    """What is measured."""
    minimum_gain: float = 0.0
    """What has to be gained over the policy it began with."""


class Checkpointing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often a training is saved, and where."""

    every_steps: Annotated[int, Meta(ge=1)] = 100_000
    """How often."""
    keep: Annotated[int, Meta(ge=1)] = 3
    """How many stay."""
    uri: str | None = None
    """Where they go; null is the run's own folder."""


class TrainingRequest(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.training.request.v1"):
    """A training is wanted."""

    problem: Name
    """What is to be decided better."""
    algorithm: Literal["ppo", "dpo", "rloo"] = "ppo"
    """How it learns."""
    dataset: Where = Where()
    """Which trajectories to learn from."""
    reward_version: Version = 1
    """Of the reward's definition."""
    checkpoint: str | None = None
    """The policy to go on from; null begins anew."""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Settings of the algorithm that differ from its defaults."""
    compute: Compute = Compute()
    """What it may use."""
    evaluation: Evaluation = Evaluation()
    """How its result is judged."""
    checkpointing: Checkpointing = Checkpointing()
    """How often it is saved, and where."""
    trigger: Literal["threshold", "schedule", "manual"] = "manual"
    """Enough new trajectories, the clock, or a person."""
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    """9 goes first."""
    requested_by: Name | None = None
    """Who asked."""


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a training is."""

    epoch: Count = 0
    """Passes over the data so far."""
    epochs: Count = 0
    """Passes planned."""
    step: Count = 0
    """Gradient steps so far."""
    steps: Count = 0
    """Gradient steps planned."""
    share: Share = 0.0
    """Of the whole training."""
    eta_s: Amount | None = None
    """Seconds it will probably take from now."""


class Artifact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that a training made."""

    name: Name
    """What it is, such as checkpoint or report."""
    uri: str
    """Where it lies."""
    sha256: str | None = None
    """Of its content, in hexadecimal."""
    bytes: Count | None = None
    """How long it is."""


class JobError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a training failed."""

    kind: Name
    """The error's class."""
    message: str
    """What went wrong, and what to do."""
    retryable: bool = False
    """Whether the same again may succeed."""


class TrainingStatus(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.training.status.v1"):
    """How a training goes."""

    job_id: Id
    """Which training."""
    request_id: Id | None = None
    """Who asked for it, where an event did."""
    problem: Name
    """What is to be decided better."""
    status: Literal["queued", "running", "completed", "failed", "cancelled"]
    """Where it stands."""
    progress: Progress = Progress()
    """How far it is."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Loss, reward, KL divergence and their like, now."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """On what was kept aside."""
    artifacts: tuple[Artifact, ...] = ()
    """What it made so far."""
    error: JobError | None = None
    """Why it failed."""
