"""Learning from logs as a run: what is checked first, which policy is kept, why it stops, and that it resumes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.contracts.errors import ConfigError, DataError, DatasetError
from etude.contracts.ports import Example
from etude.learning.checkpoint import checkpoints, read_checkpoint, under
from etude.learning.dpo import DPOConfig
from etude.learning.from_logs import Examples, FromLogs, check_dataset
from etude.learning.logged import Logged, Shards
from etude.learning.logged_ppo import LoggedPPOConfig
from etude.learning.logs_run import learn_from_logs
from etude.learning.overlap import OverlapConfig
from etude.learning.passes import ALGORITHMS, FromLogsConfig, make_algorithm
from etude.learning.requests import LearnRequest
from etude.learning.rloo import RLOOConfig
from etude.learning.run import About, PolicyParts, Run, StopReason, Update
from etude.learning.run_folder import RunFolder
from etude.problems.table import find_spec
from etude.settings.tree import Settings
from tests.learning.test_logged import Small, by, play, untrained

LOGS = play(by(untrained(1)), contexts=150, executions=4, seed=0)
HELD_OUT = play(by(untrained(1)), contexts=50, executions=4, seed=1)
CONFIG = FromLogsConfig(
    ppo=LoggedPPOConfig(epochs=4, warm_up=1, minibatch=512, lr=0.01, patience=9),
    rloo=RLOOConfig(epochs=4, minibatch=512, lr=0.01, patience=9),
    dpo=DPOConfig(epochs=4, minibatch=256, lr=0.01, patience=9),
    overlap=OverlapConfig(minibatch=512, lr=0.01),
)
ABOUT = About(
    problem="test",
    method="from-logs",
    title="a test",
    unit="passes",
    budget="",
    score="estimate",
    settings={},
    policy_sections=(),
    data=("d1",),
    parent="v0",
    extra={"algorithm": "ppo", "dataset": {"id": "d"}},
)


@dataclass
class Reader:
    """Gives logs, whatever the examples."""

    policy: Small
    parts: PolicyParts
    train: Logged
    held_out: Logged

    def shards(self, examples: Examples, *, seed: int = 0, sample: Callable[[], int] = lambda: 0) -> Shards:
        return lambda: iter([self.train if examples is learned else self.held_out])


def learned() -> Iterator[Sequence[Example]]:
    return iter(())


def held_out() -> Iterator[Sequence[Example]]:
    return iter(())


def start(
    path: Path, algorithm: str = "ppo", config: FromLogsConfig = CONFIG, *, train: Logged = LOGS, seed: int = 0
) -> Run:
    parts = PolicyParts(tensors={"memory": torch.ones(1)}, files={"catalogue.json": b"{}"}, details={"names": []})
    reader = Reader(policy=untrained(1), parts=parts, train=train, held_out=HELD_OUT)
    learner = FromLogs(
        ABOUT, reader, config, learned, held_out, algorithm=algorithm, device=torch.device("cpu"), seed=seed, threads=1
    )
    return Run(learner, RunFolder(path), keep_checkpoints=2)


def finish(path: Path, algorithm: str = "ppo", config: FromLogsConfig = CONFIG, *, seed: int = 0) -> list[Update]:
    return list(start(path, algorithm, config, seed=seed).updates())


def final_state(path: Path) -> dict[str, Tensor]:
    return read_checkpoint(checkpoints(path / "checkpoints")[-1])[0]


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "wall_s"} for row in RunFolder(path).read_metrics()]


def summary_of(path: Path) -> dict[str, Any]:
    summary = RunFolder(path).summary()
    assert summary is not None
    return {name: value for name, value in summary.items() if name != "wall_s"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_left_at_any_pass_and_started_again_it_ends_with_the_same_weights(
    algorithm: str, after: int, tmp_path: Path
) -> None:
    whole = finish(tmp_path / "whole", algorithm)
    run = start(tmp_path / "parts", algorithm)
    if after == 0:  # within the first pass, after the logs were checked
        with pytest.raises(KeyboardInterrupt):
            interrupt(run)
    else:
        for update in run.updates():
            if update.step == after:
                break
    resumed = start(tmp_path / "parts", algorithm)
    assert (resumed.resumed, resumed.step) == (after > 0, after)
    assert [update.metrics for update in resumed.updates()] == [update.metrics for update in whole[after:]]
    state, expected = final_state(tmp_path / "parts"), final_state(tmp_path / "whole")
    assert state.keys() == expected.keys()
    assert [name for name in state if not torch.equal(state[name], expected[name])] == []
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert summary_of(tmp_path / "parts") == summary_of(tmp_path / "whole")


def interrupt(run: Run) -> None:
    def give_up(report: Callable[[float], None]) -> dict[str, float]:
        raise KeyboardInterrupt

    run.learner.advance = give_up  # type: ignore[method-assign]
    list(run.updates())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_gives_the_same_weights_and_another_others(algorithm: str, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(3)
        finish(tmp_path / name, algorithm, seed=seed)
    a, b, c = (RunFolder(tmp_path / name).policy().version for name in "abc")
    assert a == b != c


def test_the_logs_are_checked_first_and_the_policy_is_judged_as_it_is(tmp_path: Path) -> None:
    run = start(tmp_path)
    updates = run.updates()
    next(updates)
    first = rows(tmp_path)[0]
    assert (first["step"], first["overlap_decisions"]) == (0, 600)  # half fits the behaviour policy
    assert {"estimate", "held_out_ess", "overlap_behaviour"} <= set(first)
    kept = run.artefact()  # until a pass is better, it is the policy that it started with
    assert (kept.manifest.step, kept.manifest.score) == (0, None)
    assert set(kept.tensors()) == {"memory", *(f"policy.{name}" for name in untrained(1).state_dict())}
    assert all(torch.equal(kept.tensors()[f"policy.{k}"], v) for k, v in untrained(1).state_dict().items())
    assert kept.file("catalogue.json") == b"{}"
    assert (kept.manifest.parent, kept.manifest.data, kept.manifest.details) == ("v0", ("d1",), {"names": []})


def test_logs_that_cannot_teach_are_refused_before_anything_is_learned(tmp_path: Path) -> None:
    wrong = replace(LOGS, log_propensity=LOGS.log_propensity.flip(0) - 3)
    with pytest.raises(DataError, match="logged propensities"):
        list(start(tmp_path, train=wrong).updates())
    assert not checkpoints(tmp_path / "checkpoints")
    assert RunFolder(tmp_path).summary() is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_best_estimate_on_held_out_logs_chooses_the_policy(algorithm: str, tmp_path: Path) -> None:
    run = start(tmp_path, algorithm)
    updates, weights = [], {}
    for update in run.updates():
        updates.append(update)
        if update.is_best:
            weights = {name: value.clone() for name, value in learner_of(run).passes.best_weights.items()}
    judged = {u.step: u.metrics["estimate"] for u in updates if u.step > 1 or algorithm != "ppo"}
    assert [u.score for u in updates if u.step in judged] == list(judged.values())
    best = max(judged, key=judged.__getitem__)
    kept = run.artefact()
    assert (kept.manifest.step, kept.manifest.score) == (best, judged[best])
    assert all(torch.equal(value, weights[name]) for name, value in under("policy.", kept.tensors()).items())
    summary = summary_of(tmp_path)
    assert (summary["stopped"], summary["epochs"]) == (StopReason.BUDGET, 4)
    assert summary["best_estimate"] == summary["best_score"] == judged[best]
    before = updates[0].metrics["estimate"] if algorithm == "ppo" else rows(tmp_path)[0]["estimate"]
    assert summary["estimate_before"] == before


def learner_of(run: Run) -> FromLogs:
    assert isinstance(run.learner, FromLogs)
    return run.learner


STOPS: list[tuple[StopReason, Mapping[str, Any]]] = [
    (StopReason.OVERLAP, {"min_ess": 0.999}),
    (StopReason.DISTANCE, {"max_kl": 1e-9}),
    (StopReason.PLATEAU, {"epochs": 50, "patience": 1, "lr": 0.05, "min_ess": 0.0, "max_kl": None}),
]


@pytest.mark.parametrize(("reason", "changed"), STOPS)
def test_it_stops_for_the_right_reason_and_stays_stopped(
    reason: StopReason, changed: Mapping[str, Any], tmp_path: Path
) -> None:
    config = replace(CONFIG, ppo=replace(CONFIG.ppo, **changed))
    updates = finish(tmp_path, "ppo", config)
    assert [update.stopped for update in updates] == [None] * (len(updates) - 1) + [reason]
    assert summary_of(tmp_path)["stopped"] == reason
    again = start(tmp_path, "ppo", config)
    assert again.learner.reason_to_stop() is reason
    assert again.is_finished
    assert list(again.updates()) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_deleted_best_policy_is_made_again_as_it_was(algorithm: str, tmp_path: Path) -> None:
    """Also where the last pass was not the best, as PPO's is here."""
    config = replace(CONFIG, ppo=replace(CONFIG.ppo, **STOPS[-1][1]))
    finish(tmp_path, algorithm, config)
    before, summary = RunFolder(tmp_path).policy(), summary_of(tmp_path)
    tensors, score = before.tensors(), before.manifest.score
    shutil.rmtree(tmp_path / "best")
    assert finish(tmp_path, algorithm, config) == []
    after = RunFolder(tmp_path).policy()
    assert all(torch.equal(value, tensors[name]) for name, value in after.tensors().items())
    assert after.manifest.score == score
    assert summary_of(tmp_path) | {"policy": ""} == summary | {"policy": ""}


def test_an_unknown_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="algorithm is 'sarsa': expected one of ppo, rloo, dpo"):
        make_algorithm("sarsa", untrained(0), CONFIG, device=torch.device("cpu"), seed=0)


@dataclass(frozen=True)
class Splits:
    """What is checked of a dataset."""

    splits: Mapping[str, int]
    problem: str = "workflow"


def test_a_dataset_of_another_problem_or_without_a_split_is_refused() -> None:
    dataset: Any = Splits({"train": 3, "validation": 0})
    check_dataset(dataset, "workflow", "train")
    with pytest.raises(DatasetError, match="the dataset is about 'workflow': expected one of the problem 'choice'"):
        check_dataset(dataset, "choice", "train")
    for split in ("validation", "test"):
        with pytest.raises(DatasetError, match=f"no trajectories in its {split} split"):
            check_dataset(dataset, "workflow", "train", split)


def test_it_needs_a_dataset_and_a_policy_to_continue_from(tmp_path: Path) -> None:
    request = LearnRequest(problem="workflow", method="from-logs", settings=Settings(), out=tmp_path / "run")
    with pytest.raises(ConfigError, match="needs a dataset and the policy to continue from, its checkpoint"):
        learn_from_logs(request, find_spec("workflow"), lambda *given: None)  # type: ignore[arg-type,return-value]
    assert not (tmp_path / "run").exists()
