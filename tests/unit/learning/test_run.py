"""A run: its folder, its best policy, and that killing it at any moment and starting it again changes nothing."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from enum import EnumType
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
import torch

import etude
from etude.contracts.errors import CheckpointError, DataError, RunError
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import checkpoints, write_checkpoint
from etude.learning.practise import practise
from etude.learning.run import STOPPED, About, PolicyParts, Run, StopReason
from etude.learning.run_folder import POLICY, RunFolder, find_policy
from etude.problems.allocation.network import NetworkConfig
from tests.practice import (
    ABOUT,
    CONFIG,
    SMALL,
    ScriptedProblem,
    assert_equal,
    configured,
    final_state,
    finish,
    leave_after,
    practice,
    start,
)

CLOCK = {"wall_s", "steps_per_s", "collect_share"}


def test_there_is_one_enumeration_of_reasons_and_each_has_its_words() -> None:
    names = [
        m.name for m in walk_packages(etude.__path__, "etude.") if ".learning." in m.name or ".problems." in m.name
    ]
    found = {
        value
        for name in names
        if not name.endswith("gym")
        for attribute, value in vars(import_module(name)).items()
        if isinstance(value, EnumType) and "stop" in attribute.lower()
    }
    assert found == {StopReason}
    assert set(STOPPED) == set(StopReason)


# Failed


@pytest.mark.parametrize(("at", "left"), [(0, []), (1, ["best", "checkpoints", "config.json", "metrics.jsonl"])])
def test_a_run_that_fails_before_it_has_a_policy_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, left: list[str]
) -> None:
    run = start(tmp_path / "run", configured(eval_every=80, checkpoint_every=80))
    advance, done = run.learner.advance, list[int]()

    def fails(report: Any) -> dict[str, float]:
        if len(done) == at:
            raise DataError("line 3 is not valid")
        done.append(1)
        return advance(report)

    monkeypatch.setattr(run.learner, "advance", fails)
    with pytest.raises(DataError, match="line 3"):
        list(run.updates())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == left


# Killed


class KilledError(BaseException):
    """The process ends here: nothing catches it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End at the given one of the operations by which files change, before it is done."""
    left = iter(range(number))

    def fatal(operation: Any) -> Any:
        def one(*args: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise KilledError
            return operation(*args, **options)

        return one

    for module, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, fatal(getattr(module, name)))


def without_clock(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in RunFolder(path).read_metrics()]


def test_killed_at_any_file_operation_and_started_again_it_ends_as_if_never_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(max_steps=320, eval_every=80, checkpoint_every=160, keep_checkpoints=1)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # the process is killed, not the disk

    def one(path: Path) -> Run:
        return start(path, config, ScriptedProblem([]), ScriptedProblem(None))

    def ended(path: Path) -> Run:
        run = one(path)
        for _ in run.updates():
            pass
        return run

    whole = ended(tmp_path / "whole")
    state, metrics, summary = final_state(tmp_path / "whole"), without_clock(tmp_path / "whole"), whole.folder.summary()
    assert summary is not None
    for number in range(1000):
        path = tmp_path / f"killed-{number}"
        try:
            with monkeypatch.context() as patched:
                kill_at(patched, number)
                ended(path)
        except KilledError:
            again = ended(path)
            assert_equal(final_state(path), state)
            assert again.artefact().version == whole.artefact().version
            assert find_policy(path / "checkpoints").version == find_policy(tmp_path / "whole" / "checkpoints").version
            assert without_clock(path) == metrics
            assert again.folder.summary() | {"wall_s": 0} == summary | {"wall_s": 0}  # type: ignore[operator]
            shutil.rmtree(path)
        else:
            break
    assert number > 40


def test_every_checkpoint_has_its_policy_the_moment_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, rename = [], os.rename

    def renamed(source: Any, target: Any) -> None:
        rename(source, target)
        if Path(target).parent.name == "checkpoints":
            seen.append(find_policy(Path(target)).manifest.step)

    monkeypatch.setattr(os, "rename", renamed)
    finish(tmp_path)
    assert seen == [160, 320, 480]


# Its best policy


def test_a_best_policy_found_after_the_last_checkpoint_does_not_cost_the_one_before(tmp_path: Path) -> None:
    config = configured(max_steps=960, checkpoint_every=320)
    leave_after(start(tmp_path, config, ScriptedProblem([1, 2, 5])), 480)  # saved at 320
    assert RunFolder(tmp_path).policy().manifest.score == 5
    resumed = start(tmp_path, config, ScriptedProblem([1.5, 1, 1, 1]))
    assert RunFolder(tmp_path).policy().manifest.score == 2
    for _ in resumed.updates():
        pass
    assert RunFolder(tmp_path).policy().manifest.score == max(resumed.scores) == 2


def test_the_policy_s_manifest_says_what_it_is(tmp_path: Path) -> None:
    about = replace(
        ABOUT, encoder="ngrams", catalogue="c1", data=("d1", "d2"), parent="p1", settings={"test": {"x": 1}, "run": {}}
    )
    parts = PolicyParts(tensors={"memory": torch.ones(2)}, files={"more.json": b"{}"}, details={"names": ["a"]})
    run = practise(about, ScriptedProblem([1, 3, 2]), CONFIG, RunFolder(tmp_path), parts=parts)
    for _ in run.updates():
        pass
    manifest = run.artefact().manifest
    assert (manifest.problem, manifest.method, manifest.step, manifest.score) == ("test", "practise", 320, 3)
    assert (manifest.encoder, manifest.catalogue, manifest.parent) == ("ngrams", "c1", "p1")
    assert (manifest.data, manifest.settings, manifest.details) == (("d1", "d2"), {"test": {"x": 1}}, {"names": ["a"]})
    assert manifest.code == etude.__version__
    assert run.artefact().file("more.json") == b"{}"
    assert set(run.artefact().tensors()) == {"memory", "policy.logit", "policy.worth"}
    summary = run.folder.summary()
    assert summary is not None
    assert summary["policy"] == run.artefact().version
    config = run.folder.config()
    assert (config["title"], config["parent"], config["data"], config["run"]) == ("a test", "p1", ["d1", "d2"], {})


def test_a_checkpoint_s_policy_has_the_weights_of_that_step(tmp_path: Path) -> None:
    run = start(tmp_path, CONFIG, ScriptedProblem([3, 2, 1]))
    for _ in run.updates():
        pass
    assert run.artefact().manifest.step == 160
    newest = find_policy(tmp_path / "checkpoints")
    assert newest.path == checkpoints(tmp_path / "checkpoints")[-1] / POLICY
    assert newest.manifest.step == 480
    assert_equal(newest.tensors(), {f"policy.{k}": v for k, v in practice(run).net.state_dict().items()})


def test_a_deleted_best_policy_is_made_again_by_the_same_command(tmp_path: Path) -> None:
    finish(tmp_path, CONFIG, ScriptedProblem([1, 2, 3]))
    before = RunFolder(tmp_path).policy().tensors()
    shutil.rmtree(tmp_path / "best")
    with pytest.raises(CheckpointError, match="if best/ was deleted, the command that trained it makes it again"):
        RunFolder(tmp_path).policy()
    again = start(tmp_path, CONFIG, ScriptedProblem([3]))
    assert not again.is_finished
    assert list(again.updates()) == []
    assert again.is_finished
    assert_equal(again.artefact().tensors(), before)
    assert again.artefact().manifest.score == 3
    summary = again.folder.summary()
    assert summary is not None
    assert (summary["policy"], summary["stopped"]) == (again.artefact().version, StopReason.BUDGET)
    assert [line["step"] for line in again.folder.read_metrics()] == [160, 240, 320, 400, 480]


def test_after_best_was_deleted_midway_the_best_of_the_rest_is_kept(tmp_path: Path) -> None:
    config = configured(max_steps=800)
    leave_after(start(tmp_path, config, ScriptedProblem([9, 1])), 320)
    shutil.rmtree(tmp_path / "best")
    run = start(tmp_path, config, ScriptedProblem([2, 5, 4]))
    for _ in run.updates():
        pass
    assert (run.artefact().manifest.step, run.artefact().manifest.score) == (640, 5)


# Its folder


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    finish(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    again = start(tmp_path)
    assert again.resumed
    assert again.is_finished
    assert list(again.updates()) == []
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_finished_run_continues_with_a_larger_budget(tmp_path: Path) -> None:
    finish(tmp_path)
    longer = start(tmp_path, configured(max_steps=640))
    assert [update.step for update in longer.updates()] == [560, 640]


def test_a_budget_below_what_was_used_still_gives_a_policy(tmp_path: Path) -> None:
    leave_after(start(tmp_path, configured(eval_every=10_000)), 320)
    assert not checkpoints(RunFolder(tmp_path).best)
    run = finish(tmp_path, configured(eval_every=10_000, max_steps=200))
    summary = run.folder.summary()
    assert summary is not None
    assert summary["stopped"] == StopReason.BUDGET
    assert run.artefact().manifest.score == summary["best_return"] == summary["best_score"]


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(ABOUT.config())
    meta = {"problem": "prompt"}
    write_checkpoint(folder.checkpoints, step=1, tensors={"x": torch.zeros(1)}, meta=meta, keep=1)
    with pytest.raises(CheckpointError, match="problem 'prompt', expected 'test'"):
        start(tmp_path)


@pytest.mark.parametrize("width", [4, 8])
def test_a_checkpoint_copied_from_another_run_is_refused(width: int, tmp_path: Path) -> None:
    other = replace(SMALL, config=replace(SMALL.config, agents=3), network=NetworkConfig(hidden=(width,)))
    finish(tmp_path / "a", CONFIG, other)
    RunFolder(tmp_path / "b").open(ABOUT.config())
    (tmp_path / "b" / "checkpoints").rmdir()
    (tmp_path / "a" / "checkpoints").rename(tmp_path / "b" / "checkpoints")
    with pytest.raises(CheckpointError, match="not of this run"):
        start(tmp_path / "b")


def test_a_truncated_checkpoint_is_refused_and_the_one_before_can_be_used(tmp_path: Path) -> None:
    finish(tmp_path / "whole")
    leave_after(start(tmp_path / "cut"), 320)
    newest = checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    file = newest / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="or delete this folder"):
        start(tmp_path / "cut")
    shutil.rmtree(newest)
    assert start(tmp_path / "cut").step == 160
    finish(tmp_path / "cut")
    assert_equal(final_state(tmp_path / "cut"), final_state(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (replace(ABOUT, settings={"test": {"size": 2}}), "test.size 1 → 2"),
        (replace(ABOUT, parent="v2"), "parent None → 'v2'"),
        (replace(ABOUT, data=("abc",)), r"data \[\] → \['abc'\]"),
        (replace(ABOUT, method="imitate"), "method 'practise' → 'imitate'"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(about: About, words: str, tmp_path: Path) -> None:
    finish(tmp_path)
    with pytest.raises(RunError, match=f"other settings .*{words}"):
        practise(about, SMALL, CONFIG, RunFolder(tmp_path))


@pytest.mark.parametrize("config", [{"problem": "allocation", "ppo": {"lr": 0.1}}, {}])
def test_a_run_of_an_earlier_etude_is_refused_with_a_sentence(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoints").mkdir()
    meta = {"problem": "allocation"}
    old = write_checkpoint(tmp_path / "best", step=4, tensors={"x": torch.zeros(1)}, meta=meta, keep=1)
    sentence = "is a run of an earlier version of Etude, which this one does not read: train it again in another folder"
    with pytest.raises(RunError, match=sentence):
        start(tmp_path)
    with pytest.raises(RunError, match=sentence):
        find_policy(tmp_path)
    with pytest.raises(
        CheckpointError, match="policy format 1, expected 2: it was trained by another version of Etude"
    ):
        _ = find_policy(old).manifest


def test_only_the_last_few_checkpoints_stay(tmp_path: Path) -> None:
    finish(tmp_path, configured(checkpoint_every=80, keep_checkpoints=2))
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000000000400", "step-000000000480"]


def test_progress_is_one_update_at_a_time_and_a_policy_can_be_used_meanwhile(tmp_path: Path) -> None:
    run = start(tmp_path, CONFIG, ScriptedProblem([1, 2, 3]))
    versions = []
    for update in run.updates():
        assert run.step == update.step
        versions.append(Artefact(find_policy(tmp_path).path).version)
    assert len(set(versions)) == 3
    assert run.folder.policy().version == versions[-1]
