"""Drift in a running loop: a slot is trained, what is earned or asked changes, and the coordinator queues a job."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import etude as api
from etude.bootstrap import experience as wiring
from etude.bootstrap.loop import open_loop
from etude.contracts.jobs import Job, JobState
from etude.loop.coordinator import Coordinator
from tests.integration.test_choice_loop import forget_collectors

SETTINGS = """
loop: {threshold: 305, min_hours_between: 0, schedule: null}
choice: {encoder: ngrams}
"""


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    monkeypatch.chdir(tmp_path)
    Path("etude.yaml").write_text(SETTINGS)
    wiring._collector.made.clear()
    with open_loop() as loop:
        loop.releases = None  # it only trains
        yield loop
        loop.resign()
    forget_collectors()


def work(count: int, *, words: int, success: float, seed: int) -> None:
    """An agent whose tasks have about so many words, and succeed with this probability."""
    rng = random.Random(seed)
    for i in range(count):
        text = " ".join(["word"] * (words + i % 5))
        with api.task(text) as task:
            task.decide("model", {"text": text}, options=["small", "large"])
            task.outcome(success=rng.random() < success)


def trained(loop: Coordinator) -> Job:
    """The first job, when it has completed."""
    for _ in range(1200):
        assert loop.tick().problems == ()
        if jobs := loop.queue.jobs(states=[JobState.COMPLETED]):
            return jobs[0]
        time.sleep(0.05)
    raise AssertionError(f"it was not trained: {loop.queue.jobs()}")


def cancel(loop: Coordinator) -> None:
    loop.queue.cancel(loop.queue.jobs()[0].id)
    assert any("cancelled" in line for line in loop.tick().happened)


def test_drift_of_rewards_or_of_requests_starts_a_job(loop: Coordinator) -> None:
    work(305, words=10, success=0.9, seed=0)
    assert trained(loop).request.trigger == "threshold"
    work(300, words=10, success=0.9, seed=1)
    loop.tick()
    assert len(loop.queue.jobs()) == 1, "nothing has drifted"

    work(100, words=10, success=0.1, seed=2)
    happened = loop.tick().happened
    assert any("queued: rewards of policy uniform have drifted since training: 0." in line for line in happened)
    job = loop.queue.jobs()[0]
    assert (job.request.trigger, job.state) == ("drift", JobState.RUNNING)
    cancel(loop)

    work(100, words=40, success=0.9, seed=3)
    happened = loop.tick().happened
    assert any("queued: requests have drifted since training: 'task: characters'" in line for line in happened)
    assert [one.request.trigger for one in loop.queue.jobs()] == ["drift", "drift", "threshold"]
