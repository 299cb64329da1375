"""An example of each body, by its type: what the description of the API shows.

They are instances of the types, so that an example that does not fit its type cannot be written.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from etude.contracts.decision import Preferences
from etude.contracts.examples import EXAMPLES as EVENTS
from etude.contracts.examples import MORNING
from etude.contracts.jobs import Job, JobState
from etude.contracts.live import Operation, OperationState
from etude.contracts.policy import Manifest as PolicyManifest
from etude.contracts.query import Where
from etude.contracts.release import Action, Entry, Exposure, Mode, Serving, State
from etude.contracts.reward import Reward
from etude.contracts.session import Selected, SessionStep, Updated
from etude.contracts.store import TrajectoryDetail
from etude.contracts.training import Progress, TrainingRequest, TrainingStatus
from etude.contracts.trajectory import Feedback, Trajectory
from etude.experience.datasets import DatasetConfig, Manifest
from etude.experience.datasets.manifest import Counts, Lineage, Shard, content_hash
from etude.experience.definitions import BUILT_IN
from etude.experience.rewards import explain
from etude.loop.notify import Notice, NoticeKind
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.release.status import CandidateEvidence, LastStep, SlotStatus
from etude.release.versions import VersionRow
from etude.serving.decisions import (
    DecisionAsked,
    DecisionGiven,
    DecisionsAsked,
    DecisionsGiven,
    FeedbackGiven,
    FeedbackStored,
)
from etude.serving.errors import FieldError, Problem
from etude.serving.routes.audit import AuditPage, AuditRow, RecordChecked, Replayed
from etude.serving.routes.canary import CanaryAsked, ExperimentAsked, ReleaseStarted, ShadowAsked, SlotPage, Steered
from etude.serving.routes.datasets import DatasetAsked, DatasetPage
from etude.serving.routes.events import Acknowledged, NoticePage, OperationPage
from etude.serving.routes.experience import (
    TrajectoriesGiven,
    TrajectoriesStored,
    TrajectoryPage,
    TrajectorySummary,
)
from etude.serving.routes.health import Health, Ready, Statistics
from etude.serving.routes.jobs import JobAsked, JobPage, ModelPage, StatusPage, TrainedModel
from etude.serving.routes.openai import OpenAIError, OpenAIErrorDetail, OpenAIModel, OpenAIModels
from etude.serving.routes.policies import (
    Approval,
    Differences,
    GatesAsked,
    GatesReport,
    LearnedFrom,
    LineageStep,
    PolicyDetail,
    PolicyLineage,
    PolicyPage,
    RollbackAsked,
    StepTaken,
    UsedDataset,
    Verified,
)
from etude.serving.routes.rewards import RescoreAsked, RewardPage, RewardRow, RewardStatus
from etude.serving.routes.session import (
    Distribution,
    ExperienceStored,
    LoadAsked,
    Loaded,
    Nothing,
    SaveAsked,
    Saved,
    Seen,
    SelectAsked,
)

SLOT, OLD, NEW = "choice:model", "5d41402abc4b2a76", "8f14e45fceea167a"
SIGNED = "t-066090ab729ef4-71341eeebd1d.d726ee45f54cc316339f"
SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
KEY = "key 3ab5517f141c"


@cache
def examples() -> dict[str, Any]:
    """As JSON, by the name of the type."""
    return {type(one).__name__: msgspec.to_builtins(one, str_keys=True) for one in _instances()}


def _instances() -> list[Struct]:
    return [*_decisions(), *_sessions(), *_experience(), *_policies(), *_releases(), *_training(), *_others()]


def _decisions() -> list[Struct]:
    asked = DecisionAsked(
        problem=SLOT,
        context="where is my parcel?",
        options=[{"name": "small", "cost_usd": 0.0004}, {"name": "large", "cost_usd": 0.01}],
        default="small",
        preferences=Preferences(max_cost_usd=0.02),
        user="u1",
    )
    given = DecisionGiven(id=SIGNED, problem=SLOT, action="small", propensity=0.62, policy=f"{OLD}+sampled")
    return [
        asked,
        given,
        DecisionsAsked(decisions=[asked]),
        DecisionsGiven(decisions=[given]),
        FeedbackGiven(id=SIGNED, success=True, cost_usd=0.0004, thumbs="up", user="u1"),
        FeedbackStored(trajectory=SIGNED.partition(".")[0], outcome=True, rating=True),
        Problem(
            title="Bad Request",
            status=400,
            detail="problem: is missing: GET /openapi.json describes POST /v1/decisions",
            request_id="735621cb1dc78866",
            errors=(FieldError(field="problem", detail="is missing"),),
        ),
    ]


def _sessions() -> list[Struct]:
    text, chosen = "Write a function that sorts a list.", "constraint-addition"
    shares = {
        "try-catch-style": 0.2,
        "context-reduction": 0.0,
        "expansion": 0.3,
        chosen: 0.5,
        "task-decomposition": 0.0,
    }
    return [
        Seen(prompt=text),
        SelectAsked(prompt=text),
        Selected(
            action=3,
            mutation=chosen,
            log_prob=-0.693,
            value=0.4,
            propensity=0.5,
            probabilities=shares,
            prompt=f"{text}\n\nUse Python 3.11, and no library.",
        ),
        Distribution(probabilities=shares),
        SessionStep(prompt=text, action=3, reward=1.0, log_prob=-0.693, value=0.4, done=True),
        ExperienceStored(buffer_size=128),
        Nothing(),
        Updated(
            updated=True,
            policy_loss=-0.021,
            value_loss=0.34,
            entropy=1.21,
            approx_kl=0.008,
            clip_fraction=0.06,
            epochs=4,
            buffer_size=0,
        ),
        SaveAsked(name="first try"),
        Saved(version=NEW),
        LoadAsked(version=NEW),
        Loaded(version=NEW),
    ]


def _experience() -> list[Struct]:
    trajectory, feedback, reward = EVENTS[Trajectory], EVENTS[Feedback], EVENTS[Reward]
    assert isinstance(trajectory, Trajectory)
    assert isinstance(feedback, Feedback)
    assert isinstance(reward, Reward)
    outcome = trajectory.outcome
    row = TrajectorySummary(
        id=trajectory.id,
        time=trajectory.time,
        problem=trajectory.problem,
        policy=trajectory.policy,
        agent=trajectory.agent,
        user=trajectory.user,
        group=trajectory.group,
        tenant=None,
        success=outcome.success,
        cost_usd=outcome.cost_usd,
        latency_ms=outcome.latency_ms,
        context="4f2c8a9e0b7d1356",
        decisions=1,
        turns=1,
        size=1240,
        reward=0.83,
        confidence=1.0,
        feedback=1.0,
    )
    detail = TrajectoryDetail(trajectory=trajectory, feedback=(feedback,), rewards=(reward,))
    definition = BUILT_IN[1]
    rewards = RewardRow(
        version=1, hash=definition.hash, definition=definition, shares=dict(definition.shares), in_use=True
    )
    return [
        TrajectoriesGiven(trajectories=[trajectory]),
        TrajectoriesStored(stored=[trajectory.id]),
        TrajectoryPage(rows=[row], next="MjAyNi0xMS0xNiB0LTAxOTNmMmEx"),
        detail,
        RewardPage(rows=[rewards], next=None),
        RewardStatus(reward=rewards, trajectories=1200, rewarded=1200, mean=0.71, confidence=0.94),
        RescoreAsked(where="problem=choice:model and time>=2026-11-01"),
        explain(detail, {1: definition}),
    ]


def _entry(action: Action, *, version: str = NEW, number: int = 4, reason: str = "") -> Entry:
    exposed = Exposure(release="r-019a9c3b", candidate=NEW, mode=Mode.CANARY, share=0.1)
    return Entry(
        number=number,
        time=MORNING,
        actor=f"ada by {KEY}",
        action=action,
        version=version,
        reason=reason,
        serving=Serving(incumbent=OLD, exposure=exposed if action is Action.STARTED else None),
        states={OLD: State.SERVING, NEW: State.EXPOSED if action is Action.STARTED else State.PASSED},
        before=SHA,
    )


def _policies() -> list[Struct]:
    row = VersionRow(slot=SLOT, version=NEW, state=State.PASSED, since=MORNING, by="gates", reason="9 gates passed")
    manifest = PolicyManifest(
        problem="choice",
        method="from-logs",
        step=2000,
        score=0.74,
        encoder="fast",
        data=(SHA,),
        parent=OLD,
        code="0.1.0",
        files={"policy.safetensors": SHA},
    )
    approved = _entry(Action.APPROVED, reason="looked at the report")
    used = UsedDataset(id=SHA[:16], content=SHA, trajectories=1200, url="datasets/november")
    gates = {"format": 1, "version": NEW, "slot": SLOT, "incumbent": OLD, "verdict": "pass", "results": []}
    return [
        PolicyPage(rows=[row], next=None),
        PolicyDetail(about=row, manifest=manifest, attachments=["gates.json"], history=[approved]),
        PolicyLineage(versions=[LineageStep(version=NEW, data=[SHA], datasets=[used])], children=[]),
        LearnedFrom(
            trajectory="t-0193f2a1",
            datasets=[SHA[:16]],
            versions=[{"version": NEW, "slot": SLOT, "state": "passed"}],
        ),
        Differences(version=OLD, other=NEW, changed={"step": [1000, 2000], "parent": [None, OLD]}),
        Verified(version=NEW, unaltered=True, files=1, detail=""),
        GatesAsked(seed=0),
        GatesReport(version=NEW, slot=SLOT, verdict="pass", report=gates),
        Approval(by="ada", reason="looked at the report"),
        RollbackAsked(slot=SLOT, by="ada", reason="customers complain"),
        StepTaken(slot=SLOT, step=approved),
    ]


def _releases() -> list[Struct]:
    started = _entry(Action.STARTED, reason="canary: as asked")
    status = SlotStatus(
        slot=SLOT,
        serving=started.serving,
        happened=[],
        last=LastStep(action="started", time=MORNING, actor=started.actor, reason=started.reason),
        evidence=CandidateEvidence(
            units=840,
            candidates=81,
            open=12,
            mean_incumbent=0.68,
            mean_candidate=0.74,
            effect={"mean": 0.06, "ci95": [-0.02, 0.14]},
            log_e_values={"harm": -1.2, "better": 1.9},
            verdict="continue",
            reason="the evidence does not decide yet",
            crossings=[{"name": "harm", "value": -1.2, "threshold": 3.0}],
            shadow={"answers": 100, "same": 91, "failed": 0, "mean_ms": 0.4, "first_error": ""},
            fairness={},
        ),
    )
    return [
        SlotPage(rows=[status], next=None),
        status,
        CanaryAsked(version=NEW, stages=[10, 25, 50, 100], over_minutes=240, by="ada"),
        ShadowAsked(version=NEW, by="ada"),
        ExperimentAsked(a=OLD, b=NEW, share_of_b=0.5, by="ada"),
        Steered(by="ada", reason="a fault elsewhere"),
        ReleaseStarted(
            slot=SLOT,
            strategy="canary",
            sentence=f"{NEW} begins in canary (as asked): 10%, 25%, 50%, 100% of the traffic",
            step=started,
        ),
        AuditPage(rows=[AuditRow(slot=SLOT, step=started)], next=None),
        RecordChecked(slot=SLOT, unaltered=True, detail="", entries=4, releases=1, units=840, replayed=1, head=SHA),
        Replayed(slot=SLOT, number=4, units=840, equal=True, log_e_values={"harm": [-1.2, -1.2]}),
    ]


def _training() -> list[Struct]:
    request, status = EVENTS[TrainingRequest], EVENTS[TrainingStatus]
    assert isinstance(request, TrainingRequest)
    assert isinstance(status, TrainingStatus)
    job = Job(
        id="job-0193f2a1bc",
        slot=SLOT,
        request=request,
        created=MORNING,
        state=JobState.RUNNING,
        attempts=1,
        started=MORNING + timedelta(seconds=3),
        progress=Progress(step=800, steps=2000, share=0.4, eta_s=41.0),
    )
    return [
        request,
        status,
        job,
        JobPage(rows=[job], next=None),
        JobAsked(problem=SLOT, where="time>=2026-11-01", hyperparameters={"choice.training.epochs": 20}, priority=7),
        StatusPage(rows=[status], next=None),
        ModelPage(rows=[TrainedModel(version=OLD, slot=SLOT, state=State.SERVING, serves=True)], next=None),
    ]


def _others() -> list[Struct]:
    shard = Shard(key="train-00000.jsonl.zst", split="train", trajectories=1200, bytes=310_000, sha256=SHA)
    content = content_hash([shard])
    manifest = Manifest(
        id=content[:16],
        content=content,
        problem=SLOT,
        query=f"problem={SLOT}",
        where=Where(problem=SLOT),
        version=1,
        definition=BUILT_IN[1].hash,
        created=MORNING,
        first=MORNING - timedelta(days=14),
        last=MORNING,
        config=DatasetConfig(),
        cuts=(),
        counts=Counts(
            trajectories=1200,
            decisions=1200,
            splits={"train": 960, "validation": 120, "test": 120},
            policies={"uniform": 1200},
            outcomes={"success": 830, "failure": 370},
            propensities={"logged": 1200},
        ),
        left_out={},
        lineage=Lineage(source="experience.sqlite", etude="0.1.0"),
        url="datasets/november",
        shards=(shard,),
    )
    operation = Operation(
        id="op-ca1cc9bc69be",
        kind="gates",
        about=NEW,
        state=OperationState.RUNNING,
        by=KEY,
        created=MORNING,
        started=MORNING,
        result=f"/v1/policies/{NEW}/gates",
    )
    notice = Notice(
        id="choice-1a2b3c.7",
        kind=NoticeKind.ROLLBACK,
        slot=SLOT,
        text=f"{SLOT}: version {NEW} was rolled back by controller: errors",
        time=MORNING,
        version=NEW,
        acknowledged_by=f"ada by {KEY}",
        acknowledged=MORNING + timedelta(minutes=4),
    )
    model = OpenAIModel(id="etude/auto", object="model", created=1_763_456_400, owned_by="etude")
    return [
        DatasetAsked(name="november", problem=SLOT, where="time>=2026-11-01"),
        DatasetPage(rows=[manifest], next=None),
        manifest,
        Catalogue(
            task_types=(TaskType(name="summarise", description="Write a summary of a text"),),
            workers=(Worker(name="small", description="A small language model", usd_per_mtok_in=0.1),),
        ),
        operation,
        OperationPage(rows=[operation], next=None),
        notice,
        NoticePage(rows=[notice], next=None),
        Acknowledged(by="ada"),
        OpenAIError(
            error=OpenAIErrorDetail(
                message="model is missing: expected the name of a model, such as 'etude/auto'",
                type="invalid_request_error",
                param="model",
                code=None,
            )
        ),
        model,
        OpenAIModels(object="list", data=[model]),
        Health(version="0.1.0"),
        Ready(status="ready", checks={"store": "ok", "state": "ok"}),
        Statistics(
            uptime_s=86_400.0,
            requests={"200": 120_000, "429": 3},
            open_tasks=41,
            telemetry={"trajectories": 310},
            trajectories=118_000,
            decisions=121_000,
            mean_reward=0.71,
        ),
    ]
