"""Gates of the loop: a candidate is judged on what the incumbent decides, and again when that has become more."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from etude import load as etude_load
from etude.bootstrap import experience as wiring
from etude.bootstrap.clock import now
from etude.bootstrap.datasets import logs_of
from etude.bootstrap.gates import contender
from etude.bootstrap.loop import open_loop
from etude.bootstrap.release import served_policy, settings_here
from etude.bootstrap.releases import RegistryReleases
from etude.contracts.decision import DecisionRequest, Preferences
from etude.contracts.release import Action
from etude.evidence.overlap import Verdict
from etude.learning.run_folder import find_policy
from etude.problems.choice.from_logs import read_logs
from etude.problems.table import find_spec
from etude.release.gates.gate import REPORT
from tests.integration.test_choice_loop import OPTIONS, forget_collectors, work
from tests.tiny import etude

SLOT = "choice:model"
SETTINGS = """
experience: {reward_version: 3, explore: 0.1, decide_timeout_ms: 60000}
choice: {encoder: ngrams, explore: epsilon, epsilon: 0.3}
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("secrets.randbits", random.Random(0).getrandbits)  # what is explored does not depend on chance
    wiring._collector.made.clear()
    yield
    forget_collectors()


def register(run: Path, releases: RegistryReleases) -> str:
    return releases.release.registry.register(find_policy(run), SLOT, actor="test")


def train(name: str) -> Path:
    data = f"datasets/{name}"
    assert etude("dataset", "create", "--problem", SLOT, "--shares", "0.6,0.1,0.3", "--out", data) == 0
    assert etude("train", "choice", "--dataset", data, "--out", f"runs/{name}", "--no-progress") == 0
    return Path("runs", name)


def report_of(releases: RegistryReleases, version: str) -> dict[str, Any]:
    data = releases.release.registry.attached(version, REPORT)
    assert data is not None
    return {result["name"]: result for result in json.loads(data)["results"]}


def test_a_candidate_is_judged_on_the_logs_of_the_incumbent_until_they_tell(tmp_path: Path) -> None:
    Path("etude.yaml").write_text(SETTINGS)
    work(600)
    first = train("first")
    with open_loop(Path("etude.yaml")) as loop:
        assert isinstance(loop.releases, RegistryReleases)
        releases, registry = loop.releases, loop.releases.release.registry
        incumbent = register(first, releases)
        registry.record(SLOT, Action.GATES_PASSED, incumbent, actor="test")
        registry.approve(SLOT, incumbent, by="test")
        registry.promote_directly(SLOT, incumbent, by="test", reason="the first one")
        work(60, seed=1)
        loop.ingest()
        logs = logs_of(releases.release.experience.store, SLOT, incumbent, reward=3)
        assert logs is not None
        assert (logs.policy, logs.splits) == (f"{incumbent}+sampled", {"test": 60})
        candidate = register(train("second"), releases)
        assert releases.gate(candidate, SLOT) is Verdict.CANNOT_TELL
        before = report_of(releases, candidate)
        assert before["safety"]["verdict"] == "pass"
        assert before["off_policy"]["verdict"] == "cannot tell"
        for seed in range(2, 6):  # the numbers in the texts stay alike
            work(600, seed=seed)
        loop.ingest()
        verdict = releases.gate(candidate, SLOT)
        after = report_of(releases, candidate)
        assert verdict is Verdict.PASS, [one["reason"] for one in after.values() if one["verdict"] != "pass"]
        assert after["safety"] == before["safety"], "what passed is not run again"
        assert after["off_policy"]["evidence"]["compared_with"] == "the incumbent"
        assert after["off_policy"]["evidence"]["candidate"]["trajectories"] > 2400


def test_decisions_from_before_the_window_of_a_candidate_do_not_judge_it(tmp_path: Path) -> None:
    Path("etude.yaml").write_text(SETTINGS)
    work(300)
    with open_loop(Path("etude.yaml")) as loop:
        loop.ingest()
        start = now()
        work(200, seed=1)
        loop.ingest()
        assert isinstance(loop.releases, RegistryReleases)
        recent = logs_of(loop.store, SLOT, None, reward=3, since=start)
        assert recent is not None
        assert recent.splits == {"test": 200}
        create = (
            "dataset",
            "create",
            "--problem",
            SLOT,
            "--out",
            "datasets/recent",
            "--where",
            f"time>={start:%FT%TZ}",
        )
        assert etude(*create) == 0
        assert etude("train", "choice", "--dataset", "datasets/recent", "--out", "runs/recent", "--no-progress") == 0
        version = register(Path("runs/recent"), loop.releases)
        loop.releases.gate(version, SLOT)
        judged = report_of(loop.releases, version)["off_policy"]["evidence"]["candidate"]["trajectories"]
        assert 0 < judged < 100, "the test split of the recent ones"


def test_a_policy_that_serves_keeps_to_a_budget_as_soon_as_it_is_set(tmp_path: Path) -> None:
    """In decisions, and in the gates that compare it with a candidate."""
    Path("etude.yaml").write_text(SETTINGS)
    work(300)
    run = train("first")
    asked = DecisionRequest(context={"text": "fix the bug", "kind": "code"}, options=tuple(OPTIONS), explain=True)

    def weight() -> float:
        policy = served_policy(SLOT)
        policy.decide(asked)
        return float(policy.quality_weight(Preferences(), policy.offer(OPTIONS)))

    with open_loop(Path("etude.yaml")) as loop:
        assert isinstance(loop.releases, RegistryReleases)
        registry = loop.releases.release.registry
        version = register(run, loop.releases)
        registry.record(SLOT, Action.GATES_PASSED, version, actor="test")
        registry.approve(SLOT, version, by="test")
        registry.promote_directly(SLOT, version, by="test", reason="the first one")
    assert weight() == 1.0
    least = min(option["usd_per_call"] for option in OPTIONS)
    Path("etude.yaml").write_text(SETTINGS.replace("encoder", f"max_mean_cost_usd: {1.01 * least}, encoder"))
    assert weight() < 1.0
    judged = contender(registry.artefact(version), find_spec("choice"), SLOT, settings_here())
    logs: Any = read_logs(judged.artefact, {"explore": True}, torch.device("cpu"))
    assert judged.load().version == f"{version}+sampled", "it is the same policy"
    assert logs.decider.config.max_mean_cost_usd == pytest.approx(1.01 * least)
    assert etude_load("runs/first").config.max_mean_cost_usd is None, "a run is as it learned"


def test_there_are_no_logs_of_a_policy_that_never_decided(tmp_path: Path) -> None:
    Path("etude.yaml").write_text(SETTINGS)
    work(5)
    with open_loop(Path("etude.yaml")) as loop:
        loop.ingest()
        assert logs_of(loop.store, SLOT, "0123456789abcdef", reward=3) is None
        uniform = logs_of(loop.store, SLOT, "uniform", reward=3)
        assert uniform is not None
        (part,) = uniform.examples("test")
        assert len(part) == 5
        assert list(uniform.examples("train")) == []


def test_the_first_policy_is_judged_on_what_decides_before_it(tmp_path: Path) -> None:
    Path("etude.yaml").write_text(SETTINGS)
    work(540)
    first = train("first")
    with open_loop(Path("etude.yaml")) as loop:
        assert isinstance(loop.releases, RegistryReleases)
        version = register(first, loop.releases)
        assert loop.releases.gate(version, SLOT) is Verdict.CANNOT_TELL
        for seed in range(1, 4):
            work(400, seed=seed)
        loop.ingest()
        verdict = loop.releases.gate(version, SLOT)
        found = report_of(loop.releases, version)
        assert verdict is Verdict.PASS, [one["reason"] for one in found.values() if one["verdict"] != "pass"]
        assert found["off_policy"]["evidence"]["candidate"]["trajectories"] > 1_200
