"""The loop of a choice: an agent logs uniform choices, a choice is learned from them, measured on them, and decides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etude as api
from etude.bootstrap import experience as wiring
from etude.learning.run_folder import find_policy
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
OPTIONS = [
    {"name": "large", "description": "slow and thorough", "usd_per_call": 0.02},
    {"name": "small", "description": "quick and cheap", "usd_per_call": 0.001},
    {"name": "coder", "description": "programs", "usd_per_call": 0.01},
]
KINDS = {"proof": "prove the theorem", "chat": "chat about the weather", "code": "write a program"}
RIGHT = {"proof": "large", "chat": "small", "code": "coder"}


def forget_collectors() -> None:
    for collector in wiring._collector.made.values():
        collector.bus.close()
    wiring._collector.made.clear()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("secrets.randbits", random.Random(0).getrandbits)  # what is explored does not depend on chance
    wiring._collector.made.clear()
    yield
    forget_collectors()


def work(count: int, *, seed: int = 0) -> list[tuple[str, Any]]:
    """An agent that asks which model to use; the right one succeeds in 95 %, the others in 25 %."""
    rng, choices = random.Random(seed), []
    for number in range(count):
        kind = rng.choice(list(KINDS))
        with api.task(f"{KINDS[kind]}, number {number}", user="u1") as task:
            choice = task.decide("model", {"text": f"{KINDS[kind]}, number {number}", "kind": kind}, options=OPTIONS)
            right = choice["name"] == RIGHT[kind]
            task.outcome(success=rng.random() < (0.95 if right else 0.25), cost_usd=choice["usd_per_call"])
        choices.append((kind, choice))
    forget_collectors()
    return choices


def test_from_uniform_choices_to_a_policy_that_decides(tmp_path: Path, capsys: Captured) -> None:
    logged = work(600)
    assert {choice.policy for _, choice in logged} == {"uniform"}
    assert {choice.propensity for _, choice in logged} == {1 / 3}
    stored = json_output(capsys, "experience", "stats")
    assert "choice:model" in str(stored)

    data, run = Path("datasets/model"), Path("runs/model")
    assert etude("dataset", "create", "--problem", "choice:model", "--shares", "0.6,0.1,0.3", "--out", data) == 0
    train = ["train", "choice", "--dataset", data, "--encoder", "ngrams", "--out", run]
    assert "decisions of 'choice:tone': no row can be learned from" in refused(capsys, *train, "--name", "tone")
    ended = json_output(capsys, *train, "--name", "model")
    assert ended["options"] == ["coder", "large", "small"]
    assert ended["rows"] > 300
    assert ended["unused"] == {}
    assert ended["cross_validated_score"] > ended["best_single_score"] + 0.1
    version = find_policy(run).version
    assert json_output(capsys, *train)["policy"] == version  # finished: it says so again

    judged = json_output(capsys, "evaluate", run, "--dataset", data)
    estimate = judged["estimates"]["doubly robust"]["mean"]
    assert estimate > judged["behaviour"]["mean"] + 0.1
    assert judged["difference"]["ci95"][0] > 0
    assert judged["decisions"] == judged["trajectories"] > 100

    Path("etude.yaml").write_text(f"experience:\n  policies: {{model: {run}}}\n  decide_timeout_ms: 60000\n")
    chosen = work(30, seed=1)
    assert all(choice["name"] == RIGHT[kind] for kind, choice in chosen)
    assert {(choice.policy, choice.propensity) for _, choice in chosen} == {(version, 1.0)}

    Path("etude.yaml").write_text(
        f"experience:\n  policies: {{model: {run}}}\n  decide_timeout_ms: 60000\n  explore: 1\n"
    )
    with api.task("prove the theorem") as task:
        sampled = task.decide("model", {"text": "prove the theorem", "kind": "proof"}, options=OPTIONS)
    (entry,) = task.decisions
    assert (entry.problem, entry.policy) == ("choice:model", f"{version}+sampled")
    assert entry.propensity == sampled.propensity
    assert entry.action == sampled["name"]
    assert [option["name"] for option in entry.eligible] == ["large", "small", "coder"]
    assert sum(about.probability for about in sampled.expected.values()) == pytest.approx(1)
