"""The coordinator over stored state: what it does in which order, what it does only once, and what stops it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from etude.adapters.objects import open_blobs
from etude.contracts.blobs import BlobStore
from etude.contracts.bus import message_of
from etude.contracts.errors import EndpointError, ReleaseError
from etude.contracts.jobs import Ended, Job, JobState, RunningJob, Stage
from etude.contracts.query import Where
from etude.contracts.release import Action
from etude.contracts.subjects import TRAINING, decode
from etude.contracts.training import JobError as Failure
from etude.contracts.training import TrainingRequest, TrainingStatus
from etude.evidence.overlap import Verdict
from etude.experience.datasets import read_manifest
from etude.loop.config import LoopConfig, WebhookConfig
from etude.loop.coordinator import Tick, run
from tests.unit.loop.small_loop import CONFIG, NOW, SLOT, Clock, SmallLoop, StepRunner, log_tasks, make_loop, write_run

KILLS = 25

Make = Callable[..., SmallLoop]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    made: list[SmallLoop] = []

    def one(**changes: Any) -> SmallLoop:
        made.append(make_loop(tmp_path, **changes))
        return made[-1]

    yield one
    for loop in made:
        loop.close()


def statuses(loop: SmallLoop) -> list[TrainingStatus]:
    """Published status events; the test is another consumer."""
    events = [decode(d.message.body) for d in loop.bus.pull(TRAINING, "test", limit=1000, timeout_s=0)]
    return [event for event in events if isinstance(event, TrainingStatus)]


def watch(loop: SmallLoop) -> None:
    """From now on the test's group receives events, too."""
    loop.bus.pull(TRAINING, "test", limit=1, timeout_s=0)


def test_empty_machine_waits(make: Make) -> None:
    loop = make()
    assert loop.settle() == []
    assert loop.coordinator.waits() == {}


def test_from_the_threshold_to_the_canary(make: Make, tmp_path: Path) -> None:
    loop = make()
    watch(loop)
    log_tasks(loop.store, 9)
    assert loop.settle() == []
    assert "waits for 1 more rewarded trajectories" in loop.coordinator.waits()[SLOT]
    log_tasks(loop.store, 1, first=9)
    happened = loop.settle()
    (job,) = loop.queue.jobs()
    assert [line.split(SLOT)[0] for line in happened[:2]] == [f"job {job.id} of "] * 2
    assert (job.state, job.stage, job.request.trigger) == (JobState.COMPLETED, Stage.STARTED, "threshold")
    assert (job.cost.usd, job.cost.cpu_hours) == (1.0, 0.5)
    assert (tmp_path / job.dataset / "manifest.json").exists()
    assert [entry.action for entry in loop.releases.history(SLOT)] == [Action.REGISTERED, Action.STARTED]
    found = statuses(loop)
    assert [event.status for event in found] == ["queued", "running", "running", "running", "completed"]
    assert [event.progress.share for event in found] == [0, 0, 0.5, 1, 1]
    assert [event.id for event in found] == [f"{job.id}.{n}" for n in range(1, 6)]
    (artifact,) = found[-1].artifacts
    assert artifact.version == job.version
    assert artifact.sha256.startswith(str(job.version))
    assert loop.settle() == [], "nothing is left to do"
    assert loop.queue.changes() == []


def test_a_window_leaves_older_experience_out(make: Make, tmp_path: Path) -> None:
    loop = make(config=replace(CONFIG, window_days=2.0))
    log_tasks(loop.store, 5, time=loop.clock() - timedelta(days=3))
    log_tasks(loop.store, 7, first=5, time=loop.clock() - timedelta(days=1))
    loop.settle()
    (job,) = loop.queue.jobs()
    manifest = read_manifest(open_blobs(str(tmp_path / job.dataset)))
    assert manifest is not None
    assert manifest.counts.trajectories == 7


def test_a_policy_that_was_exposed_before_is_not_judged_again(make: Make) -> None:
    """A job that learns nothing new trains the same version."""
    loop = make()
    log_tasks(loop.store, 10)
    loop.settle()
    (first,) = loop.queue.jobs()
    shutil.rmtree(first.run)
    log_tasks(loop.store, 10, first=10, time=loop.clock())
    loop.clock.pass_by(hours=25)
    original = StepRunner.start

    def same(self: StepRunner, job: Job, *, checkpoint: Path | None) -> RunningJob | None:
        found = original(self, job, checkpoint=checkpoint)
        write_run(Path(job.run), code=Path(first.run).name)
        return found

    loop.runner.start = same.__get__(loop.runner)  # type: ignore[method-assign]
    happened = loop.settle()
    second = loop.queue.jobs()[0]
    assert second.version == first.version
    assert (second.stage, second.stage_note) == (Stage.SUPERSEDED, "it is exposed already")
    assert any("is exposed already" in line for line in happened)


def test_only_new_trajectories_count_and_one_job_per_day(make: Make) -> None:
    loop = make()
    log_tasks(loop.store, 15)
    loop.settle()
    assert loop.coordinator.facts(SLOT).new == 0
    loop.clock.pass_by(hours=2)
    log_tasks(loop.store, 10, first=15, time=loop.clock())
    loop.settle()
    assert len(loop.queue.jobs()) == 1
    assert "may start in 22.0 hours" in loop.coordinator.waits()[SLOT]
    loop.clock.pass_by(hours=22)
    loop.settle()
    assert len(loop.queue.jobs()) == 2


def test_rewardless_trajectories_do_not_count(make: Make) -> None:
    loop = make()
    log_tasks(loop.store, 20)
    loop.coordinator.reward_version = 2
    assert loop.coordinator.facts(SLOT).new == 0


def test_slots_come_from_what_was_collected_and_can_be_chosen(make: Make) -> None:
    loop = make()
    for slot in ("choice:a", "choice:b", "task", "unknown:x"):
        log_tasks(loop.store, 1, slot=slot)
    assert loop.coordinator.slots() == {"choice:a": "from-logs", "choice:b": "from-logs"}
    loop.coordinator.config = replace(CONFIG, slots=("choice:b",))
    assert list(loop.coordinator.slots()) == ["choice:b"]
    loop.coordinator.config = replace(CONFIG, methods={"choice": "nothing"})
    assert loop.coordinator.slots() == {}


def request(id: str = "q1", problem: str = "choice", **changes: Any) -> TrainingRequest:
    return TrainingRequest(id=id, time=NOW, problem=problem, trigger="feedback", priority=8, **changes)


def test_requests_on_the_bus_become_jobs_once(make: Make) -> None:
    loop = make()
    watch(loop)
    log_tasks(loop.store, 5)
    asked = request(hyperparameters={"run.seed": 3})
    loop.bus.publish([message_of(asked)])
    loop.coordinator.tick()
    loop.bus.publish([message_of(request(id="q2", problem=SLOT))])
    loop.settle()
    second, first = loop.queue.jobs()
    assert (first.slot, first.request.hyperparameters, first.priority) == (SLOT, {"run.seed": 3}, 8)
    assert second.request.id == "q2"
    assert {event.request_id for event in statuses(loop)} == {"q1", "q2"}
    assert loop.bus.pending(TRAINING, "loop") == 0
    loop.bus.publish([message_of(request(id="q3"))])
    loop.coordinator.tick()
    loop.bus.replay([letter.number for letter in loop.bus.dead_letters()])
    assert len(loop.queue.jobs()) == 3


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"problem": "choise"}, "there is no problem 'choise'"),
        ({"method": "imitate"}, "does not learn by 'imitate'"),
        ({"problem": "choice"}, "has the slots choice:a, choice:b: name one"),
        ({"problem": "choice", "dataset": Where(problem="workflow")}, "leave one of them out"),
    ],
)
def test_request_that_cannot_be_learned_is_buried_and_answered(make: Make, asked: dict[str, Any], reason: str) -> None:
    loop = make()
    watch(loop)
    log_tasks(loop.store, 1, slot="choice:a")
    log_tasks(loop.store, 1, slot="choice:b")
    loop.bus.publish([message_of(request(**{"problem": "choice:a", **asked}))])
    loop.settle()
    assert loop.queue.jobs() == []
    (event,) = statuses(loop)
    assert (event.status, event.request_id) == ("failed", "q1")
    assert event.error is not None
    assert reason in event.error.message
    assert [letter.reason for letter in loop.bus.dead_letters()] == [event.error.message]


def test_policy_to_continue_from(make: Make) -> None:
    loop = make()
    log_tasks(loop.store, 5)
    loop.bus.publish([message_of(request(policy="abc"))])
    loop.settle()
    ((_, checkpoint),) = loop.runner.started
    assert checkpoint is not None
    assert checkpoint.name == "abc"


def test_failing_job_is_retried_with_back_off_and_then_reported(make: Make) -> None:
    posted: list[tuple[str, bytes]] = []
    broken = Ended(error=Failure(kind="Killed", message="ended by SIGKILL", retryable=True))
    config = replace(CONFIG, retries=1, webhooks=WebhookConfig(urls=("http://hook",)))
    loop = make(
        config=config, runner=StepRunner(outcome=lambda: broken), post=lambda url, body, id: posted.append((url, body))
    )
    log_tasks(loop.store, 10)
    loop.settle()
    assert [job.state for job in loop.queue.jobs()] == [JobState.QUEUED]
    assert posted == []
    loop.clock.pass_by(seconds=60)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert (job.state, job.failures, job.cost.usd) == (JobState.FAILED, 2, 2.0)
    ((_, body),) = posted
    assert b'"kind":"failure"' in body
    loop.settle()
    assert len(posted) == 1
    assert len(loop.queue.jobs()) == 1, "the data of a failed job waits a day for the next job"
    loop.clock.pass_by(hours=24)
    loop.settle()
    assert len(loop.queue.jobs()) == 2


def test_dataset_that_cannot_be_made_fails_the_job(make: Make) -> None:
    loop = make()
    log_tasks(loop.store, 5)
    loop.bus.publish([message_of(request(dataset=Where(user="nobody")))])
    loop.settle()
    (job,) = loop.queue.jobs()
    assert job.state == JobState.FAILED
    assert job.error is not None
    assert "no trajectory matches" in job.error.message


def test_cancelled_job_ends_its_process(make: Make) -> None:
    loop = make(runner=StepRunner(steps=1000))
    log_tasks(loop.store, 10)
    loop.coordinator.tick()
    (job,) = loop.queue.jobs()
    loop.queue.cancel(job.id)
    tick = loop.coordinator.tick()
    assert any("cancelled" in line for line in tick.happened)
    assert loop.runner.jobs[0].stopped
    assert loop.queue.find(job.id).state == JobState.CANCELLED


def test_process_of_an_earlier_claim_is_waited_for(make: Make) -> None:
    loop = make()
    log_tasks(loop.store, 10)
    loop.runner.is_free = False
    assert loop.coordinator.tick().is_busy
    assert loop.coordinator.tick().is_busy
    loop.runner.is_free = True
    loop.settle()
    assert len(loop.runner.started) == 1


@pytest.mark.parametrize(
    ("verdict", "stage"),
    [(Verdict.FAIL, Stage.REFUSED), (Verdict.CANNOT_TELL, Stage.UNDECIDED), (Verdict.PASS, Stage.STARTED)],
)
def test_only_what_passed_its_gates_is_exposed(make: Make, verdict: Verdict, stage: Stage) -> None:
    loop = make()
    loop.releases.verdict = verdict
    log_tasks(loop.store, 10)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert job.stage == stage
    assert (loop.releases.serving(SLOT).exposure is not None) == (verdict == Verdict.PASS)


def test_undecided_gates_run_again_later(make: Make) -> None:
    loop = make()
    loop.releases.verdict = Verdict.CANNOT_TELL
    log_tasks(loop.store, 10)
    loop.settle()
    loop.releases.verdict = Verdict.PASS
    assert loop.settle() == []
    loop.clock.pass_by(hours=1)
    loop.settle()
    assert loop.queue.jobs()[0].stage == Stage.STARTED


def test_gates_that_raise_decide_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make()

    def broken(version: str, slot: str) -> Verdict:
        raise ReleaseError("the incumbent cannot be loaded")

    monkeypatch.setattr(loop.releases, "gate", broken)
    log_tasks(loop.store, 10)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert (job.stage, job.stage_note) == (Stage.UNDECIDED, "the incumbent cannot be loaded")


def test_candidate_waits_for_the_slot_and_a_newer_one_supersedes_it(make: Make) -> None:
    loop = make()
    for id in ("q1", "q2", "q3"):
        log_tasks(loop.store, 5, first=len(id) * 100)
        loop.bus.publish([message_of(request(id=id))])
        loop.settle()
    third, second, first = loop.queue.jobs()
    assert [job.stage for job in (first, second, third)] == [Stage.STARTED, Stage.SUPERSEDED, Stage.PASSED]
    loop.releases.next = [Action.ROLLED_BACK]
    loop.settle()
    assert loop.queue.find(third.id).stage == Stage.STARTED
    started = [entry.version for entry in loop.releases.history(SLOT) if entry.action == Action.STARTED]
    assert started == [first.version, third.version]


def test_release_that_began_before_it_was_recorded_is_not_started_again(make: Make) -> None:
    loop = make()
    loop.releases.verdict = Verdict.CANNOT_TELL
    log_tasks(loop.store, 10)
    loop.settle()
    (job,) = loop.queue.jobs()
    loop.queue.advance(job.id, Stage.PASSED)
    loop.releases.start(str(job.version), SLOT)  # killed here
    loop.releases.next = [Action.ROLLED_BACK]
    loop.releases.reconcile(SLOT)
    loop.settle()
    assert [entry.action for entry in loop.releases.history(SLOT)].count(Action.STARTED) == 1
    assert loop.queue.find(job.id).stage == Stage.STARTED


def test_promotions_and_rollbacks_are_reported_once_and_at_least_once(make: Make) -> None:
    posted, works = list[bytes](), [False]

    def post(url: str, body: bytes, id: str) -> None:
        if not works[0]:
            raise EndpointError("no answer")
        posted.append(body)

    loop = make(config=replace(CONFIG, webhooks=WebhookConfig(urls=("http://hook",))), post=post)
    log_tasks(loop.store, 10)
    loop.settle()
    loop.releases.next = [Action.PROMOTED]
    assert any("was not delivered" in line for line in loop.coordinator.tick().happened)
    works[0] = True
    assert loop.coordinator.tick().happened == (), "it waits before it tries again"
    loop.clock.pass_by(seconds=6)
    loop.settle()
    assert len(posted) == 1
    assert b"was promoted by controller" in posted[0]


def test_step_that_fails_does_not_stop_the_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise OSError(28, "No space left on device")

    loop = make(ingest=broken)
    log_tasks(loop.store, 10)
    tick = loop.coordinator.tick()
    assert tick.problems == ("ingest: [Errno 28] No space left on device",)
    assert any("started" in line for line in tick.happened)


def test_slot_that_cannot_be_started_does_not_stop_another(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first policy of a slot, which waits for an approval."""
    loop = make()
    for slot in ("choice:a", "choice:b"):
        log_tasks(loop.store, 10, slot=slot)
    start, reconcile = loop.releases.start, loop.releases.reconcile

    def start_b(version: str, slot: str) -> str:
        if slot == "choice:a":
            raise ReleaseError("not approved")
        return start(version, slot)

    def reconcile_b(slot: str) -> Any:
        if slot == "choice:a":
            raise ReleaseError("its ledger was tampered with")
        return reconcile(slot)

    monkeypatch.setattr(loop.releases, "start", start_b)
    monkeypatch.setattr(loop.releases, "reconcile", reconcile_b)
    for _ in range(30):
        tick = loop.coordinator.tick()
        for gating in list(loop.coordinator.gating.values()):
            gating.thread.join()
    assert {job.slot: job.stage for job in loop.queue.jobs()} == {"choice:a": Stage.PASSED, "choice:b": Stage.STARTED}
    assert tick.problems == ("start choice:a: not approved", "reconcile choice:a: its ledger was tampered with")
    loop.releases.next = [Action.PROMOTED]
    assert any("choice:b" in line and "promoted" in line for line in loop.coordinator.tick().happened)


def test_dataset_that_was_damaged_between_attempts_is_made_again(make: Make, tmp_path: Path) -> None:
    loop = make()
    log_tasks(loop.store, 10)
    loop.coordinator.tick()
    (job,) = loop.queue.jobs()
    loop.coordinator.stop()
    damage(tmp_path / job.dataset)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert (job.stage, job.dataset, job.run) == (Stage.STARTED, f"datasets/{job.id}-2", f"runs/{job.id}-2")


def test_job_that_failed_on_a_damaged_dataset_is_tried_again_with_another(make: Make, tmp_path: Path) -> None:
    refused = [Ended(error=Failure(kind="WrongInput", message="the dataset was altered"))]

    def outcome() -> Ended | None:
        if refused:
            damage(tmp_path / loop.queue.jobs()[0].dataset)
        return refused.pop() if refused else None

    loop = make(runner=StepRunner(outcome=outcome))
    log_tasks(loop.store, 10)
    loop.coordinator.tick()
    assert loop.queue.jobs()[0].state == JobState.QUEUED
    loop.clock.pass_by(minutes=2)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert (job.stage, job.dataset, job.failures) == (Stage.STARTED, f"datasets/{job.id}-2", 1)


def damage(dataset: Path) -> None:
    for shard in dataset.rglob("*.jsonl"):
        shard.write_bytes(shard.read_bytes()[:-20])


def test_a_frozen_coordinator_leaves_alone_what_its_successor_made(make: Make, tmp_path: Path) -> None:
    """It is frozen before it writes the dataset, and wakes when another one has trained from its own."""
    one = make()
    two = make(owner="two", clock=one.clock)
    log_tasks(one.store, 10)
    original = one.coordinator.datasets

    def frozen(place: str) -> BlobStore:
        one.coordinator.datasets = original
        one.clock.pass_by(seconds=31)
        two.settle()
        (job,) = one.queue.jobs()
        made.extend((job, read_manifest(open_blobs(str(tmp_path / job.dataset)))))
        return original(place)

    made: list[Any] = []
    one.coordinator.datasets = frozen
    tick = one.coordinator.tick()
    (job,) = one.queue.jobs()
    assert made[0] == job, "the job is as the other one left it"
    assert made[0].stage == Stage.STARTED
    assert made[1] == read_manifest(open_blobs(str(tmp_path / job.dataset)))
    assert tick.problems == ("run jobs: one led with number 1, and 2 leads by now: end it",)
    assert one.runner.started == [], "it starts nothing"
    assert [path.name for path in sorted((tmp_path / "datasets").iterdir())] == [job.id, f"{job.id}-2"]


def test_wrong_input_with_a_whole_dataset_is_not_retried(make: Make) -> None:
    loop = make(runner=StepRunner(outcome=lambda: Ended(error=Failure(kind="WrongInput", message="no such option"))))
    log_tasks(loop.store, 10)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert (job.state, job.failures) == (JobState.FAILED, 1)


def test_clock_that_was_a_year_ahead_does_not_hide_new_trajectories(make: Make) -> None:
    loop = make()
    log_tasks(loop.store, 10)
    loop.clock.time += timedelta(days=365)
    log_tasks(loop.store, 1, first=10, time=loop.clock())
    loop.settle()
    loop.clock.time -= timedelta(days=365)
    loop.clock.pass_by(hours=25)
    log_tasks(loop.store, 20, first=20, time=loop.clock())
    assert loop.coordinator.facts(SLOT).new >= 20
    loop.settle()
    assert len(loop.queue.jobs()) == 2


def test_reports_of_jobs_and_days(make: Make, tmp_path: Path) -> None:
    from etude.reports.jobs import loop_page

    loop = make(render=loop_page)
    log_tasks(loop.store, 10)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert '"version"' in (tmp_path / "reports" / "jobs" / f"{job.id}.json").read_text()
    assert job.id in (tmp_path / "reports" / "jobs" / f"{job.id}.html").read_text()
    assert not (tmp_path / "reports" / "2026-11-17.json").exists(), "the loop did not run yesterday"
    loop.clock.pass_by(days=1)
    loop.settle()
    summary = (tmp_path / "reports" / "2026-11-18.json").read_text()
    page = (tmp_path / "reports" / "2026-11-18.html").read_text()
    assert '"trajectories": 10' in summary
    for text in (job.id, SLOT, "$1.00", "registered"):
        assert text in page


def test_summary_of_a_clock_that_was_ahead_is_written_again(make: Make, tmp_path: Path) -> None:
    loop = make()
    log_tasks(loop.store, 10)
    path = tmp_path / "reports" / f"{loop.clock():%Y-%m-%d}.json"
    began = loop.clock.time
    loop.settle()
    loop.clock.time = began + timedelta(days=1)
    loop.settle()
    assert '"trajectories": 10' in path.read_text()
    loop.clock.time = began
    loop.settle()
    log_tasks(loop.store, 5, first=10, time=began)
    loop.clock.time = began + timedelta(days=1) - timedelta(minutes=1)
    loop.settle()
    assert '"trajectories": 15' in path.read_text()
    written = path.stat().st_mtime_ns
    loop.clock.pass_by(minutes=10)
    loop.settle()
    assert path.stat().st_mtime_ns == written, "it is written once"


def test_two_coordinators_one_leads(make: Make) -> None:
    clock = Clock()
    one, two = make(owner="one", clock=clock), make(owner="two", clock=clock, runner=StepRunner(steps=1000))
    log_tasks(one.store, 10)
    one.runner.steps = 1000
    assert one.coordinator.tick().leads
    assert two.coordinator.tick() == Tick(leads=False)
    clock.pass_by(seconds=31)  # one hangs
    assert two.coordinator.tick().leads
    assert [job.lease and job.lease.owner for job in two.queue.jobs()] == ["two"]
    assert one.coordinator.tick() == Tick(leads=False)
    assert one.runner.jobs[0].stopped
    assert [(job.state, job.lease and job.lease.owner) for job in two.queue.jobs()] == [(JobState.RUNNING, "two")]


@pytest.mark.parametrize("jump_h", [-1.0, 1.0])
def test_clock_that_jumps_an_hour_changes_nothing(make: Make, jump_h: float) -> None:
    loop = make(runner=StepRunner(steps=50))
    log_tasks(loop.store, 10)
    loop.coordinator.tick()
    loop.clock.time += timedelta(hours=jump_h)
    loop.settle()
    (job,) = loop.queue.jobs()
    assert (job.state, job.attempts, job.stage) == (JobState.COMPLETED, 1, Stage.STARTED)
    assert len(loop.runner.started) == 1


def test_stop_leaves_the_job_to_the_next_coordinator(make: Make, tmp_path: Path) -> None:
    loop = make(runner=StepRunner(steps=6))
    log_tasks(loop.store, 10)
    for _ in range(4):
        loop.coordinator.tick()
    loop.coordinator.resign()
    (job,) = loop.queue.jobs()
    assert (job.state, job.failures) == (JobState.QUEUED, 0)
    done = len((tmp_path / job.run / "steps").read_text().splitlines())
    assert done == 4
    other = make(owner="two", clock=loop.clock, runner=StepRunner(steps=6))
    other.settle()
    assert len((tmp_path / job.run / "steps").read_text().splitlines()) == 6, "finished steps are not repeated"


def test_long_step_keeps_its_leases(make: Make) -> None:
    """While a step takes longer than the lease, another thread renews it."""
    config = replace(CONFIG, lease_s=0.6)
    slow = threading.Event()

    def ingest() -> int:
        slow.wait(2)
        return 0

    one = make(config=config, ingest=ingest, monotonic=time.monotonic)
    two = make(config=config, owner="two", monotonic=time.monotonic)
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(one.coordinator,), kwargs={"stop": stop})
    thread.start()
    try:
        time.sleep(0.1)
        for _ in range(8):
            assert not two.coordinator.tick().leads
            time.sleep(0.15)
    finally:
        stop.set()
        slow.set()
        thread.join()
    assert two.coordinator.tick().leads, "the one that ended resigned"


def test_once_ends_when_nothing_is_left(make: Make) -> None:
    loop = make(monotonic=time.monotonic)
    log_tasks(loop.store, 10)
    ticks: list[Tick] = []
    run(loop.coordinator, stop=threading.Event(), report=ticks.append, once=True)
    assert loop.queue.jobs()[0].stage == Stage.STARTED
    assert ticks[-1].happened == ()
    assert loop.queue.leader() is None


def test_killed_anywhere_it_ends_in_the_same_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two coordinators at a time, killed again and again: each slot has one job, one candidate, one canary."""
    monkeypatch.chdir(tmp_path)
    config = replace(CONFIG, lease_s=0.1, parallel=2)
    slots = [f"choice:s{n}" for n in range(6)]
    loop = make_loop(tmp_path, config=config, owner="test", monotonic=time.monotonic)
    for slot in slots:
        log_tasks(loop.store, 12, slot=slot)
    watch(loop)
    rng, deadline, kills, workers = random.Random(2), time.monotonic() + 200, 0, list[int]()

    def is_done() -> bool:
        jobs = loop.queue.jobs()
        return len(jobs) == len(slots) and all(job.stage == Stage.STARTED for job in jobs) and not loop.queue.changes()

    while kills < KILLS or not is_done():
        assert time.monotonic() < deadline, [(job.id, job.state, job.stage) for job in loop.queue.jobs()]
        while len(workers) < 2:
            workers.append(fork_coordinator(tmp_path, config))
        time.sleep(rng.uniform(0.02, 0.1) if kills < KILLS else 0.05)
        if kills < KILLS:
            running = loop.queue.jobs(states=[JobState.RUNNING])
            owners = [pid for pid in workers for job in running if job.lease and job.lease.owner == f"c{pid}"]
            killed = owners[0] if owners and kills % 2 else rng.choice(workers)
            workers.remove(killed)
            end(killed)
            kills += 1
    for worker in workers:
        end(worker)
    jobs = loop.queue.jobs()
    assert Counter(job.slot for job in jobs) == Counter(slots)
    for job in jobs:
        assert len((tmp_path / job.run / "steps").read_text().splitlines()) == 8, "finished steps are not repeated"
        actions = [entry.action for entry in loop.releases.history(job.slot)]
        assert actions == [Action.REGISTERED, Action.STARTED]
    found = statuses(loop)
    assert len({event.id for event in found}) == len(found)
    assert Counter(event.job_id for event in found if event.status == "completed") == Counter(job.id for job in jobs)
    assert sum(job.attempts for job in jobs) > len(jobs), "none was killed while it ran a job"
    loop.close()


def fork_coordinator(folder: Path, config: LoopConfig) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        clock = Clock(time=datetime.now(UTC))
        loop = make_loop(
            folder,
            config=config,
            clock=clock,
            owner=f"c{os.getpid()}",
            monotonic=time.monotonic,
            runner=StepRunner(steps=8),
        )
        run(loop.coordinator, stop=threading.Event())
    finally:
        os._exit(1)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
