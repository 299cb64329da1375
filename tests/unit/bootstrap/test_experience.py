"""Which policy the settings give a decision, and when it is loaded."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.bootstrap import experience as wiring
from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import ConfigError
from etude.experience.config import ExperienceConfig
from etude.experience.deciders import Default, Start, ToLoad, Uniform
from etude.learning.artefact import write_artefact
from etude.problems.spec import ProblemSpec
from etude.problems.table import find_spec

LOADED: list[tuple[str | None, float]] = []


@dataclasses.dataclass(frozen=True)
class Last:
    """A learned choice: the last option."""

    problem: str = "choice"
    version: str = "abc123"

    def decide(self, request: DecisionRequest) -> Decision:
        action = (request.options or ())[-1]
        return Decision(action=action, propensity=0.5, policy=self.version, logged=())


def last(policy: str | None, config: ExperienceConfig) -> Last:
    LOADED.append((policy, config.explore))
    return Last()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    LOADED.clear()
    wiring._collector.made.clear()
    wiring._deciders.made.clear()
    yield
    for collector in wiring._collector.made.values():
        collector.bus.close()
    wiring._collector.made.clear()
    wiring._deciders.made.clear()


@pytest.fixture
def _learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies of choices are made by `last`."""
    spec = ProblemSpec(
        name="choice", summary="", settings="", sections=(), learners={}, load="", decider=f"{__name__}:last"
    )
    monkeypatch.setattr(wiring, "find_spec", lambda name: spec if name == "choice" else find_spec(name))


@pytest.mark.parametrize(
    ("policies", "kind"),
    [
        ({}, Start),
        ({"tone": "uniform"}, Uniform),
        ({"tone": "default"}, Default),
        ({"choice:tone": "default"}, Default),
    ],
)
def test_a_choice_has_the_policy_of_the_settings(policies: dict[str, str], kind: type) -> None:
    assert isinstance(wiring.make_decider("choice:tone", ExperienceConfig(policies=policies)), kind)
    assert isinstance(wiring.make_decider("choice:other", ExperienceConfig(policies=policies)), Start)


def test_looking_for_a_policy_reads_no_settings_while_none_is_registered() -> None:
    """A server looks every two seconds, between two requests: reading settings takes tens of milliseconds."""
    Path("etude.yaml").write_text("release: [")
    assert isinstance(wiring.make_decider("choice:tone", ExperienceConfig()), Start)
    Path(".etude/registry/slots/choice:tone").mkdir(parents=True)
    with pytest.raises(ConfigError):
        wiring.make_decider("choice:tone", ExperienceConfig())


@pytest.mark.parametrize(("explore", "policy"), [(0.0, "default"), (0.5, "default+sampled")])
def test_without_a_policy_the_default_option_is_given(explore: float, policy: str) -> None:
    Path("etude.yaml").write_text(f"experience: {{explore: {explore}}}\n")
    with etude.task("x") as task:
        assert task.decide("tone", options=["a", "b"], default="b").policy == policy
        assert task.decide("tone", options=["a", "b"]).policy == "uniform"


@pytest.mark.usefixtures("_learned")
def test_a_choice_learned_by_a_run_is_loaded_by_its_problem() -> None:
    made = wiring.make_decider("choice:tone", ExperienceConfig(policies={"tone": "runs/tone"}, explore=0.1))
    assert isinstance(made, ToLoad)
    assert (made.name, LOADED) == ("runs/tone", [])
    assert made.load() == Last()
    assert LOADED == [("runs/tone", 0.1)]


@pytest.mark.usefixtures("_learned")
def test_policies_of_the_settings_load_when_the_first_task_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("etude.yaml").write_text("experience:\n  policies: {tone: runs/tone}\n  decide_timeout_ms: 20000\n")
    with etude.task("x") as task:
        for thread in threading.enumerate():
            if thread.name == "etude-load-choice:tone":
                thread.join(10)
        assert LOADED == [("runs/tone", 0.0)]
        tone = task.decide("tone", options=["a", "b"])
        assert (tone, tone.policy, tone.propensity) == ("b", "abc123", 0.5)
        assert task.decide("choice", options=["a"]).policy == "uniform"
    assert [d.problem for d in task.decisions] == ["choice:tone", "choice:choice"]


def test_a_trained_choice_decides() -> None:
    rows = [
        {"context": {"mood": mood}, "outcomes": {tone: {"score": float((tone == "formal") == (mood == "angry"))}}}
        for _ in range(30)
        for mood in ("angry", "happy")
        for tone in ("formal", "casual")
    ]
    Path("replay.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    etude.train("choice", replay="replay.jsonl", encoder="ngrams", out="runs/tone")
    Path("etude.yaml").write_text("experience:\n  policies: {tone: runs/tone}\n  decide_timeout_ms: 60000\n")
    with etude.task("x") as task:
        tones = [task.decide("tone", {"mood": mood}, options=["formal", "casual"]) for mood in ("angry", "happy")]
        allowed = task.decide("tone", {"mood": "angry"}, options=["formal", "casual"], allowed=["casual"])
    assert [*tones, allowed] == ["formal", "casual", "casual"]
    assert tones[0].policy == etude.load("runs/tone").version
    assert tones[0].expected["formal"].score > tones[0].expected["casual"].score
    assert [decision.problem for decision in task.decisions] == ["choice:tone"] * 3
    assert task.decisions[2].eligible == ["casual"]


def test_a_policy_that_nothing_can_load_is_reported_and_the_default_given(caplog: pytest.LogCaptureFixture) -> None:
    Path("etude.yaml").write_text("experience:\n  policies: {tone: runs/nowhere}\n  decide_timeout_ms: 20000\n")
    with etude.task("x") as task:
        assert task.decide("tone", options=["a", "b"], default="b") == "b"
    assert "choice:tone: the default is given because the policy cannot be loaded" in caplog.text
    assert "runs/nowhere" in caplog.text


def test_settings_that_cannot_be_read_give_the_default(caplog: pytest.LogCaptureFixture) -> None:
    Path("etude.yaml").write_text("experience: {folder: 3}\n")
    with etude.task("x") as task:
        assert task.decide("tone", options=["a", "b"]) == "a"
    assert "experience.folder is 3" in caplog.text
    assert not task.collected


def test_a_policy_of_another_problem_is_refused() -> None:
    write_artefact(
        Path("policy"),
        tensors={},
        files={},
        about={"problem": "helpdesk", "method": "practise", "step": 1, "code": "0"},
    )
    made = wiring.make_decider("allocation", ExperienceConfig(policies={"allocation": "policy"}))
    assert isinstance(made, ToLoad)
    with pytest.raises(ConfigError, match="policy is a policy of 'helpdesk': expected one of 'allocation'"):
        made.load()


def test_no_thread_starts_at_import_nor_without_a_policy_to_load() -> None:
    code = (
        "import threading, etude, etude.bootstrap.experience\n"
        "assert threading.active_count() == 1\n"
        "with etude.task('x') as task: task.decide('tone', options=['a'])\n"
        "assert threading.active_count() == 1\n"
        "import sys; assert 'torch' not in sys.modules"
    )
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
