"""A request for a training job, and the status of a job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from etude.contracts.decision import Amount, Name
from etude.contracts.query import Where
from etude.contracts.reward import Version
from etude.contracts.trajectory import Event, Id, PolicyVersion, Sha256, Share

Count = Annotated[int, Meta(ge=0)]


class Compute(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Compute that a training job may use."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the tensors; auto uses a GPU if there is one."""
    cpus: Annotated[int, Meta(ge=1)] = 1
    """Number of CPU cores."""
    gpus: Count = 0
    """Number of GPUs."""
    memory_gb: Amount | None = None
    """Maximum memory in GB; null is no limit."""
    max_minutes: Amount | None = None
    """Minutes after which the job is stopped; null is no limit."""


class Evaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the result of a training job is evaluated."""

    holdout: Share = 0.2
    """Share of the trajectories that is held out."""
    metrics: tuple[Name, ...] = ("return", "success")
    """Names of the metrics."""
    minimum_gain: float = 0.0
    """Minimum gain over the policy that it continues from."""


class Checkpointing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When checkpoints are written."""

    every_steps: Annotated[int, Meta(ge=1)] = 100_000
    """Gradient steps between checkpoints."""
    keep: Annotated[int, Meta(ge=1)] = 3
    """Number of checkpoints to keep."""


class TrainingRequest(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.training.request.v1"):
    """A request for a training job."""

    problem: Name
    """Name of the problem."""
    method: Name = "from-logs"
    """Learning method, one of the problem's learners: `practise` in a simulated world, `imitate` expert examples,
    learn `from-logs` of decisions and rewards, `fit` the outcomes of every option, or one of the problem's own."""
    algorithm: Name | None = None
    """Algorithm of the method, such as ppo, rloo or dpo; null is the method's default."""
    dataset: Where = Where()
    """Query for the trajectories to learn from."""
    reward_version: Version = 1
    """Version of the reward definition."""
    policy: PolicyVersion | None = None
    """Policy version to continue from; null starts from scratch."""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Settings of the algorithm that differ from its defaults."""
    compute: Compute = Compute()
    """Compute that the job may use."""
    evaluation: Evaluation = Evaluation()
    """How the result of a training job is evaluated."""
    checkpointing: Checkpointing = Checkpointing()
    """When checkpoints are written."""
    trigger: Literal["threshold", "schedule", "drift", "feedback", "regression", "manual"] = "manual"
    """What caused the request: enough new trajectories, a schedule, drifted inputs or rewards, worse feedback, a policy
    regression, or a person."""
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    """Priority from 0 to 9; a job of priority 9 runs first."""
    requested_by: Name | None = None
    """Name of the person or service that sent the request."""


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a training job."""

    epoch: Count = 0
    """Epochs done."""
    epochs: Count = 0
    """Epochs planned."""
    step: Count = 0
    """Gradient steps done."""
    steps: Count = 0
    """Gradient steps planned."""
    share: Share = 0.0
    """Share of the job that is done."""
    eta_s: Amount | None = None
    """Estimated seconds until the job ends."""


class Artifact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file or policy that a training job produced, identified by its content."""

    name: Name
    """Kind of artefact, such as policy, checkpoint or report."""
    version: PolicyVersion | None = None
    """Version of the policy, under which it is deployed and logged; null for a file."""
    sha256: Sha256
    """SHA-256 of the file; for a policy, of its manifest."""
    bytes: Count | None = None
    """Size in bytes."""


class JobError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a training job failed."""

    kind: Name
    """Class of the error."""
    message: str
    """What went wrong, and what to do."""
    retryable: bool = False
    """Whether a retry may succeed."""


class TrainingStatus(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.training.status.v1"):
    """The status of a training job."""

    job_id: Id
    """Id of the job."""
    request_id: Id | None = None
    """Id of the TrainingRequest, if there is one."""
    problem: Name
    """Name of the problem."""
    status: Literal["queued", "running", "completed", "failed", "cancelled"]
    """Status of the job."""
    progress: Progress = Progress()
    """Progress of the job."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Current training metrics, such as loss, reward and KL divergence."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """Metrics on the held-out trajectories."""
    artifacts: tuple[Artifact, ...] = ()
    """Artefacts produced so far."""
    error: JobError | None = None
    """Why the job failed."""
