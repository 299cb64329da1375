"""What every job queue and its leader's lease do, sentence by sentence of the port."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from etude.adapters.jobs import SqliteJobs
from etude.contracts.errors import JobError
from etude.contracts.jobs import TRANSITIONS, Cost, Job, JobState, Stage, check_transition, job_id
from etude.contracts.training import JobError as Failure
from etude.contracts.training import Progress, TrainingRequest

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
KILLS = 50


@dataclass
class Clocks:
    """The time of day, which may be set, and the monotonic clock, which may not."""

    day: datetime = NOW
    steady: float = 1000.0
    started: float = field(default_factory=time.monotonic)

    def pass_s(self, seconds: float) -> None:
        self.day, self.steady = self.day + timedelta(seconds=seconds), self.steady + seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def open_queue(tmp_path: Path, clocks: Clocks) -> Iterator[Callable[[], SqliteJobs]]:
    opened: list[SqliteJobs] = []

    def make() -> SqliteJobs:
        queue = SqliteJobs(
            tmp_path / "jobs.sqlite",
            retries=2,
            backoff_s=60,
            max_backoff_s=100,
            clock=lambda: clocks.day,
            monotonic=lambda: clocks.steady,
        )
        opened.append(queue)
        return queue

    yield make
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(open_queue: Callable[[], SqliteJobs]) -> SqliteJobs:
    return open_queue()


def make_job(key: str = "a", *, priority: int = 5, slot: str = "choice:model") -> Job:
    request = TrainingRequest(id=key, time=NOW, problem=slot, priority=priority)
    return Job(id=key, slot=slot, request=request, created=NOW)


def claimed(queue: SqliteJobs, owner: str = "one", lease_s: float = 30.0) -> Job:
    job = queue.claim(owner, lease_s=lease_s)
    assert job is not None
    return job


def states(queue: SqliteJobs) -> list[str]:
    return [change.job.state.value for change in queue.changes()]


BROKEN = Failure(kind="RuntimeError", message="it broke", retryable=True)
WRONG = Failure(kind="ConfigError", message="it is wrong")


def test_submit_is_idempotent_by_id(queue: SqliteJobs) -> None:
    assert queue.submit(make_job())
    assert not queue.submit(make_job(priority=9))
    assert [job.priority for job in queue.jobs()] == [5]
    assert states(queue) == ["queued"]


def test_highest_priority_first_then_first_come(queue: SqliteJobs) -> None:
    for key, priority in (("a", 5), ("b", 9), ("c", 5), ("d", 9), ("e", 0)):
        queue.submit(make_job(key, priority=priority))
    assert [claimed(queue).id for _ in range(5)] == ["b", "d", "a", "c", "e"]
    assert queue.claim("one", lease_s=30) is None


def test_jobs_survive_the_process(open_queue: Callable[[], SqliteJobs]) -> None:
    first = open_queue()
    first.submit(make_job())
    first.close()
    assert claimed(open_queue()).id == "a"


def test_expired_lease_is_claimed_again_and_fences_off_its_owner(queue: SqliteJobs, clocks: Clocks) -> None:
    queue.submit(make_job())
    old = claimed(queue, "one")
    clocks.pass_s(29)
    assert queue.claim("two", lease_s=30) is None
    clocks.pass_s(1)
    new = claimed(queue, "two")
    assert (new.attempts, new.failures) == (2, 0)
    assert queue.heartbeat(old, lease_s=30) is None
    assert queue.finish(old, version="v0") is None
    assert queue.fail(old, BROKEN) is None
    assert queue.stop(old) is None
    assert queue.finish(new, version="v1") is not None
    assert queue.finish(new, version="v2") is None
    assert queue.find("a").version == "v1"


def test_same_owner_does_not_finish_what_it_claimed_before(queue: SqliteJobs, clocks: Clocks) -> None:
    queue.submit(make_job())
    old = claimed(queue, "one")
    clocks.pass_s(31)
    claimed(queue, "one")
    assert queue.finish(old, version="v0") is None


def test_heartbeat_renews_and_stores(queue: SqliteJobs, clocks: Clocks) -> None:
    queue.submit(make_job())
    job = claimed(queue)
    clocks.pass_s(20)
    seen = replace(job, progress=Progress(step=5, share=0.5), cost=Cost(cpu_hours=0.1), dataset="d", run="r")
    assert queue.heartbeat(seen, lease_s=30) is not None
    clocks.pass_s(20)
    assert queue.claim("two", lease_s=30) is None
    found = queue.find("a")
    assert (found.progress.step, found.cost.cpu_hours, found.dataset, found.run) == (5, 0.1, "d", "r")
    assert states(queue) == ["queued", "running", "running"]
    queue.heartbeat(seen, lease_s=30)
    assert len(queue.changes()) == 3, "the same progress is no change"


@pytest.mark.parametrize("jump_h", [-1, 1])
def test_time_of_day_that_jumps_changes_no_lease_and_no_back_off(
    queue: SqliteJobs, clocks: Clocks, jump_h: float
) -> None:
    queue.submit(make_job("a"))
    queue.submit(make_job("b"))
    queue.fail(claimed(queue), BROKEN)
    running = claimed(queue)
    assert queue.lead("one", lease_s=30) == 1
    clocks.day += timedelta(hours=jump_h)
    clocks.pass_s(20)
    assert queue.claim("two", lease_s=30) is None
    assert queue.lead("two", lease_s=30) is None
    assert queue.heartbeat(running, lease_s=300) is not None
    clocks.pass_s(39)
    assert queue.claim("two", lease_s=30) is None
    assert queue.lead("two", lease_s=30) == 2
    clocks.pass_s(1)
    assert claimed(queue, "two").id == "a"


def test_leases_and_back_offs_of_an_earlier_start_of_the_machine_are_over(queue: SqliteJobs, clocks: Clocks) -> None:
    queue.submit(make_job("a"))
    queue.submit(make_job("b"))
    queue.fail(claimed(queue), BROKEN)
    claimed(queue)
    queue.lead("one", lease_s=30)
    clocks.steady = 5.0
    assert [claimed(queue, "two").id, claimed(queue, "two").id] == ["a", "b"]
    assert queue.lead("two", lease_s=30) == 2


def test_retryable_failure_backs_off_exponentially_up_to_the_retries(queue: SqliteJobs, clocks: Clocks) -> None:
    queue.submit(make_job())
    for wait_s in (60, 100):  # the second would be 120
        failed = queue.fail(claimed(queue), BROKEN)
        assert failed is not None
        assert failed.state == JobState.QUEUED
        assert failed.not_before == clocks.day + timedelta(seconds=wait_s)
        clocks.pass_s(wait_s - 1)
        assert queue.claim("one", lease_s=30) is None
        clocks.pass_s(1)
    ended = queue.fail(claimed(queue), BROKEN)
    assert ended is not None
    assert (ended.state, ended.failures, ended.error) == (JobState.FAILED, 3, BROKEN)
    assert queue.claim("one", lease_s=30) is None
    assert states(queue) == ["queued", *["running", "failed", "queued"] * 2, "running", "failed"]


def test_other_failure_ends_the_job_until_it_is_retried(queue: SqliteJobs) -> None:
    queue.submit(make_job())
    with pytest.raises(JobError, match="only a job that failed"):
        queue.retry("a")
    failed = queue.fail(claimed(queue), WRONG)
    assert failed is not None
    assert failed.state == JobState.FAILED
    assert queue.retry("a").failures == 0
    assert claimed(queue).attempts == 2


def test_queued_job_is_cancelled_at_once_and_a_running_one_at_its_next_heartbeat(queue: SqliteJobs) -> None:
    queue.submit(make_job("a"))
    assert queue.cancel("a").state == JobState.CANCELLED
    with pytest.raises(JobError, match="is cancelled, so it cannot become cancelled"):
        queue.cancel("a")
    queue.submit(make_job("b"))
    running = claimed(queue)
    assert queue.cancel("b").state == JobState.RUNNING
    seen = queue.heartbeat(running, lease_s=30)
    assert seen is not None
    assert seen.cancel_requested
    stopped = queue.stop(running)
    assert stopped is not None
    assert stopped.state == JobState.CANCELLED


def test_cancelled_job_whose_owner_died_is_not_run_again(queue: SqliteJobs, clocks: Clocks) -> None:
    queue.submit(make_job("a"))
    queue.submit(make_job("b"))
    claimed(queue)
    queue.cancel("a")
    clocks.pass_s(31)
    assert claimed(queue, "two").id == "b"
    assert queue.find("a").state == JobState.CANCELLED


def test_stopped_job_is_queued_again_without_a_failure(queue: SqliteJobs) -> None:
    queue.submit(make_job())
    stopped = queue.stop(claimed(queue))
    assert stopped is not None
    assert (stopped.state, stopped.failures) == (JobState.QUEUED, 0)
    assert claimed(queue, "two").attempts == 2


def test_stages_of_a_policy_follow_their_table(queue: SqliteJobs) -> None:
    queue.submit(make_job())
    with pytest.raises(JobError, match="not trained"):
        queue.advance("a", Stage.REGISTERED)
    queue.finish(claimed(queue), version="v1")
    assert [job.id for job in queue.jobs(stages=[Stage.TRAINED])] == ["a"]
    assert queue.advance("a", Stage.REGISTERED, "new").stage_note == "new"
    with pytest.raises(JobError, match="cannot become started"):
        queue.advance("a", Stage.STARTED)
    assert queue.jobs(stages=[Stage.TRAINED]) == []


def test_jobs_are_found_by_prefix_slot_and_state(queue: SqliteJobs) -> None:
    for key, slot in (("ab", "choice:x"), ("ac", "choice:y"), ("a", "choice:x")):
        queue.submit(make_job(key, slot=slot))
    assert queue.find("a").id == "a"
    assert queue.find("ac").id == "ac"
    for wrong, message in (("ax", "no such job"), ("", "no such job"), ("%", "no such job")):
        with pytest.raises(JobError, match=message):
            queue.find(wrong)
    assert [job.id for job in queue.jobs(slot="choice:x")] == ["a", "ab"]
    assert [job.id for job in queue.jobs(states=[JobState.QUEUED], limit=1)] == ["a"]
    queue.submit(make_job("bcd"))
    queue.submit(make_job("bce"))
    with pytest.raises(JobError, match="several jobs begin"):
        queue.find("bc")


def test_changes_stay_until_they_are_settled(queue: SqliteJobs) -> None:
    queue.submit(make_job())
    claimed(queue)
    first, second = queue.changes()
    assert [(c.revision, c.job.state) for c in (first, second)] == [(1, JobState.QUEUED), (2, JobState.RUNNING)]
    queue.settle([first.number])
    queue.settle([first.number])
    assert [change.number for change in queue.changes()] == [second.number]


def test_one_leader_at_a_time_with_growing_numbers(queue: SqliteJobs, clocks: Clocks) -> None:
    assert queue.leader() is None
    assert queue.lead("one", lease_s=30) == 1
    assert queue.lead("two", lease_s=30) is None
    clocks.pass_s(20)
    assert queue.lead("one", lease_s=30) == 1, "renewed"
    clocks.pass_s(20)
    assert queue.lead("two", lease_s=30) is None
    leader = queue.leader()
    assert leader is not None
    assert (leader.owner, leader.left_s) == ("one", 10)
    clocks.pass_s(11)
    assert queue.leader() is None
    assert queue.lead("two", lease_s=30) == 2
    queue.resign("one")
    assert queue.lead("one", lease_s=30) is None
    queue.resign("two")
    assert queue.lead("one", lease_s=30) == 3


def test_owner_that_lost_its_term_and_leads_again_has_a_new_number(queue: SqliteJobs, clocks: Clocks) -> None:
    assert queue.lead("one", lease_s=30) == 1
    clocks.pass_s(31)
    assert queue.lead("one", lease_s=30) == 2


def test_deposed_leader_claims_nothing(queue: SqliteJobs, clocks: Clocks) -> None:
    queue.submit(make_job())
    old = queue.lead("one", lease_s=30)
    clocks.pass_s(31)
    new = queue.lead("two", lease_s=30)
    assert old is not None
    assert new is not None
    with pytest.raises(JobError, match="leads by now"):
        queue.claim("one", lease_s=30, fence=old)
    assert queue.claim("two", lease_s=30, fence=new) is not None


def test_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(JobError, match="no SQLite database"):
        SqliteJobs(path)


@given(st.sampled_from(JobState), st.sampled_from(JobState))
def test_no_path_leaves_an_end_and_the_table_is_kept(before: JobState, after: JobState) -> None:
    job = replace(make_job(), state=before)
    if after in TRANSITIONS[before]:
        check_transition(job, after)
    else:
        with pytest.raises(JobError, match=f"is {before}, so it cannot become {after}"):
            check_transition(job, after)
    assert not TRANSITIONS[JobState.COMPLETED]
    assert not TRANSITIONS[JobState.CANCELLED]


def test_job_ids_name_their_cause() -> None:
    assert job_id("a") == job_id("a") != job_id("b")


def test_no_job_is_lost_or_finished_twice_over_50_kills(tmp_path: Path) -> None:
    """Workers are killed at any point between claim and finish; two run at the same time."""
    path, rng = tmp_path / "jobs.sqlite", random.Random(1)
    ids = [f"job{n}" for n in range(40)]
    queue = SqliteJobs(path)
    for key in ids:
        queue.submit(make_job(key))
    kills, workers = 0, list[int]()
    deadline = time.monotonic() + 60
    while kills < KILLS or queue.jobs(states=[JobState.QUEUED, JobState.RUNNING]):
        assert time.monotonic() < deadline
        while len(workers) < 2:
            workers.append(fork_worker(path))
        if kills < KILLS:
            time.sleep(rng.uniform(0.005, 0.05))
            killed = workers.pop(rng.randrange(2))
            os.kill(killed, signal.SIGKILL)
            os.waitpid(killed, 0)
            kills += 1
        else:
            time.sleep(0.02)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    completed = Counter(c.job.id for c in queue.changes(limit=10_000) if c.job.state == JobState.COMPLETED)
    assert completed == Counter(ids)
    assert {job.state for job in queue.jobs()} == {JobState.COMPLETED}
    assert sum(job.attempts for job in queue.jobs()) > len(ids), "no worker was killed while it ran a job"
    queue.close()


def fork_worker(path: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        queue, owner = SqliteJobs(path), f"worker-{os.getpid()}"
        while True:
            job = queue.claim(owner, lease_s=0.08)
            if job is None:
                time.sleep(0.005)
                continue
            time.sleep(0.02)
            queue.heartbeat(job, lease_s=0.08)
            time.sleep(0.01)
            queue.finish(job, version="v1")
    finally:
        os._exit(1)
