"""A realistic example of each event, for the schemas and the docs."""

from __future__ import annotations

from datetime import UTC, datetime

from etude.contracts.decision import LoggedDecision
from etude.contracts.deployment import Check, ModelDeployed
from etude.contracts.query import Where
from etude.contracts.reward import Baseline, Component, Reward
from etude.contracts.training import Artifact, Progress, TrainingRequest, TrainingStatus
from etude.contracts.trajectory import Event, Feedback, Outcome, Rating, Trajectory, Turn

MORNING = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)

EXAMPLES: dict[type[Event], Event] = {
    Trajectory: Trajectory(
        id="t-0193f2a1",
        time=MORNING,
        task="Summarise the report and mail it to [EMAIL_1]",
        problem="choice:model",
        policy="5d41402abc4b2a76+sampled",
        agent="assistant",
        model="gpt-4o-2024-08-06",
        user="u1",
        group="free",
        decisions=(
            LoggedDecision(
                problem="choice:model",
                context={"pages": 12},
                eligible=["small", "large"],
                action="small",
                propensity=0.62,
                policy="5d41402abc4b2a76+sampled",
            ),
        ),
        turns=(
            Turn(
                at_ms=12.5,
                observation={"report": "Q3.pdf"},
                action={"tool": "summarise"},
                result="Revenue grew by 4 %.",
                cost_usd=0.002,
                latency_ms=840.0,
            ),
        ),
        outcome=Outcome(
            success=True,
            cost_usd=0.004,
            latency_ms=1310.0,
            subtasks=2,
            subtasks_done=2,
            quality={"judge": 0.8},
        ),
        feedback=(Rating(thumbs="up"),),
        redacted={"EMAIL": 1},
        metadata={"channel": "web"},
    ),
    Feedback: Feedback(
        id="f-0193f2b7", time=MORNING, trajectory_id="t-0193f2a1", user="u1", thumbs="up", stars=5, comment="Just right"
    ),
    Reward: Reward(
        id="t-0193f2a1:r1.1",
        time=MORNING,
        trajectory_id="t-0193f2a1",
        version=1,
        definition="5d41402abc4b2a76",
        revision=1,
        total=0.86,
        confidence=1.0,
        components=(
            Component(name="completion", raw=1.0, value=1.0, weight=0.4, why="the task was done"),
            Component(
                name="efficiency",
                raw=-0.004,
                value=0.55,
                weight=0.2,
                baseline=Baseline(method="zscore", count=1000, mean=-0.005, std=0.008),
            ),
            Component(name="quality", raw=0.8, value=0.8, weight=0.15),
            Component(name="feedback", raw=1.0, value=1.0, weight=0.25, why="thumbs up, 5 stars"),
        ),
        reason="feedback",
    ),
    TrainingRequest: TrainingRequest(
        id="q-0193f301",
        time=MORNING,
        problem="choice:model",
        method="from-logs",
        algorithm="rloo",
        dataset=Where(problem="choice:model", outcome="success", since=datetime(2026, 11, 1, tzinfo=UTC)),
        policy="5d41402abc4b2a76",
        hyperparameters={"learning_rate": 0.0003},
        trigger="threshold",
        requested_by="coordinator",
    ),
    TrainingStatus: TrainingStatus(
        id="s-0193f302",
        time=MORNING,
        job_id="j-7",
        request_id="q-0193f301",
        problem="choice:model",
        status="running",
        progress=Progress(epoch=3, epochs=10, step=1200, steps=4000, share=0.3, eta_s=95.0),
        metrics={"loss": 0.12, "reward": 0.71, "approx_kl": 0.008},
        evaluation={"return": 8.9},
        artifacts=(Artifact(name="policy", version="9c1185a5c5e9fc54", sha256="9c1185a5c5e9fc54" * 4, bytes=20_422),),
    ),
    ModelDeployed: ModelDeployed(
        id="d-0193f310",
        time=MORNING,
        problem="choice:model",
        policy="9c1185a5c5e9fc54",
        stage="canary",
        traffic={"9c1185a5c5e9fc54": 0.1, "5d41402abc4b2a76": 0.9},
        replaces="5d41402abc4b2a76",
        canary_stage=0,
        validation=(Check(name="ope lower bound", verdict="passed", value=0.74, bound=0.71),),
        dataset="3b5d5c3712955042",
        reason="lower bound above the incumbent's mean",
    ),
}
