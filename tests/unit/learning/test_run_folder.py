"""The run folder: when a run may continue in it, who may train there, and what can be read from it meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.contracts.errors import CheckpointError, RunError
from etude.learning.artefact import Artefact, write_artefact
from etude.learning.checkpoint import write_checkpoint
from etude.learning.run_folder import POLICY, RunFolder, find_policy, find_root, find_runs

SETTINGS: dict[str, Any] = {
    "problem": "allocation",
    "method": "practise",
    "budget": "10",
    "ppo": {"lr": 0.1, "hidden": [1, 2]},
    "run": {"max_steps": 10, "target_return": None},
    "curriculum": [{"size": {"agents": 2}, "share": 0.5}],
}


def changed(section: str, **values: Any) -> dict[str, Any]:
    return SETTINGS | {section: SETTINGS[section] | values}


def test_a_new_folder_keeps_its_settings(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.open(SETTINGS)
    assert folder.config() == SETTINGS
    folder.open(SETTINGS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (changed("ppo", lr=0.2), ["ppo.lr 0.1 → 0.2"]),
        (changed("ppo", lr=0.2, hidden=[1]), ["ppo.lr", "ppo.hidden [1, 2] → [1]"]),
        (changed("ppo", more=1), ["ppo.more None → 1"]),
        (SETTINGS | {"curriculum": []}, ["curriculum"]),
        (SETTINGS | {"problem": "prompt"}, ["problem 'allocation' → 'prompt'"]),
    ],
)
def test_a_run_does_not_continue_with_other_settings(
    settings: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.open(SETTINGS)
    with pytest.raises(RunError, match="other settings") as refused:
        folder.open(settings)
    assert [word for word in words if word not in str(refused.value)] == []
    assert folder.config() == SETTINGS


def test_a_run_may_continue_for_longer(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(SETTINGS)
    longer = changed("run", max_steps=20, target_return=5.0, target_completion_rate=0.9) | {"budget": "20"}
    folder.open(longer)
    assert folder.config() == longer


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="not empty and holds no run"):
        RunFolder(tmp_path).open(SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_killed_while_it_wrote_its_first_file_starts_again(tmp_path: Path) -> None:
    (tmp_path / ".config.json.draft").write_text('{"half')
    RunFolder(tmp_path).open(SETTINGS)
    assert RunFolder(tmp_path).config() == SETTINGS


@pytest.mark.parametrize("inside", ["", "below"])
def test_a_file_in_the_way_is_refused(inside: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(RunError, match="is a file or lies in one"):
        RunFolder(file / inside if inside else file).open(SETTINGS)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_a_broken_config_is_refused_with_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"config\.json"):
        RunFolder(tmp_path).open(SETTINGS)


def test_reading_what_is_no_run_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nope", Path(__file__)):
        with pytest.raises(RunError, match=r"is not a run: config\.json is missing"):
            RunFolder(path).config()


def test_a_run_has_a_summary_from_its_end_until_it_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.summary() is None
    folder.finish({"stopped": "budget"})
    assert folder.summary() == {"stopped": "budget"}
    folder.reopen()
    folder.reopen()
    assert folder.summary() is None


def test_a_half_written_line_of_metrics_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    folder.metrics.write_bytes(b'{"step": 1, "x": 2}\n{"step": 4}\n{"step": 5, "x": \xff')
    assert folder.read_metrics() == [{"step": 1, "x": 2}, {"step": 4}]


def write_policy(folder: Path, step: int) -> Artefact:
    about = {"problem": "allocation", "method": "practise", "step": step, "code": "1"}
    return write_artefact(folder, tensors={"x": torch.tensor(step)}, files={}, about=about)


def test_the_newest_checkpoint_and_the_best_policy_are_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(SETTINGS)
    assert folder.latest("allocation") is None
    with pytest.raises(CheckpointError, match="has no policy: let it train up to its first evaluation"):
        folder.policy()
    for step in (1, 2):
        meta = {"problem": "allocation"}
        write_checkpoint(folder.checkpoints, step=step, tensors={"x": torch.tensor(step)}, meta=meta, keep=2)
        write_policy(folder.best / f"step-{step:012d}", step)
    latest = folder.latest("allocation")
    assert latest is not None
    assert (int(latest[0]["x"]), latest[1]["step"]) == (2, 2)
    assert folder.policy().manifest.step == 2
    with pytest.raises(CheckpointError, match="expected 'prompt'"):
        folder.latest("prompt")


def test_a_policy_is_found_by_its_run_its_checkpoint_or_its_own_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open(SETTINGS)
    with pytest.raises(CheckpointError, match="holds no policy: give the run folder"):
        find_policy(folder.checkpoints)
    saved = write_checkpoint(
        folder.checkpoints,
        step=3,
        tensors={"x": torch.tensor(3)},
        meta={},
        keep=1,
        add=lambda draft: write_policy(draft / POLICY, 3),
    )
    best = write_policy(folder.best / "step-000000000001", 1)
    anywhere = write_policy(tmp_path / "anywhere", 5)
    folder.keep_start(anywhere)
    found = {place: find_policy(place).manifest.step for place in (folder.path, folder.best, best.path)}
    found |= {place: find_policy(place).manifest.step for place in (folder.checkpoints, saved, saved / POLICY)}
    assert list(found.values()) == [1, 1, 1, 3, 3, 3]
    assert find_policy(anywhere.path).version == find_policy(folder.start).version
    assert find_root(saved) == find_root(folder.start) == folder.path
    with pytest.raises(RunError, match="does not exist: `etude runs list` shows the runs"):
        find_policy(tmp_path / "nope")
    with pytest.raises(RunError, match=r"is not a run: config\.json is missing"):
        find_policy(tmp_path)


def test_the_policy_that_a_run_continues_from_is_copied_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, policy = RunFolder(tmp_path / "run"), write_policy(tmp_path / "policy", 5)
    folder.open(SETTINGS)
    version, copy = policy.version, shutil.copytree

    def killed(source: Path, target: Path) -> None:
        copy(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.keep_start(policy)
    assert not folder.start.exists()
    folder.keep_start(policy)
    folder.keep_start(write_policy(tmp_path / "policy", 6))
    assert Artefact(folder.start).version == version
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "config.json", "start"]


def test_a_run_of_an_earlier_etude_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"problem": "allocation", "run": {}}))
    for read in (RunFolder(tmp_path).config, RunFolder(tmp_path).policy, lambda: RunFolder(tmp_path).open(SETTINGS)):
        with pytest.raises(RunError, match="is a run of an earlier version of Etude"):
            read()


def test_only_one_may_train_in_a_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    with folder.locked():
        assert folder.in_use()
        with pytest.raises(RunError, match="another process is training"), folder.locked():
            raise AssertionError
        (folder.path / "x").touch()
    assert not folder.in_use()
    with folder.locked():
        pass


def test_a_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from etude.learning.run_folder import RunFolder\n"
        f"with RunFolder(Path({str(tmp_path)!r})).locked():\n    print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert RunFolder(tmp_path).in_use()
        process.kill()
        process.wait()
    assert not RunFolder(tmp_path).in_use()


def test_a_training_that_could_not_begin_leaves_no_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path / "new").locked():
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path).locked():
        raise ZeroDivisionError
    assert tmp_path.exists()


def test_runs_are_found_from_their_start_newest_last(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "sub/middle", "old")):
        folder = RunFolder(tmp_path / name)
        folder.open(SETTINGS)
        os.utime(folder.path / "config.json", (1e9 - age, 1e9 - age))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"editor": "vi"}))
    found = [str(folder.path.relative_to(tmp_path)) for folder in find_runs(tmp_path)]
    assert found == ["old", "sub/middle", "new"]


def test_reading_runs_needs_no_torch() -> None:
    code = "import sys, etude.learning.run_folder; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "False\n", done.stderr
