"""`etude evaluate`: the table, the JSON, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etude.learning.checkpoint import checkpoints
from tests.tiny import etude, train_command

Captured = pytest.CaptureFixture[str]


def measured(capsys: Captured, *args: str | Path) -> dict[str, Any]:
    assert etude("evaluate", *args, "--json") == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_json_compares_the_policy_with_the_others(finished: Path, capsys: Captured) -> None:
    result = measured(capsys, finished, "--episodes", "5")
    assert result["run"] == str(finished)
    assert set(result["baselines"]) == {"random", "scripted", "never collaborate"}
    for score in (result["policy"], result["untrained"], *result["baselines"].values()):
        assert score["episodes"] == 5
        assert score["return_ci95"][0] <= score["mean_return"] <= score["return_ci95"][1]
        assert 0 <= score["completion_rate"] <= 1
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["p99"]


def test_the_table_says_the_same(finished: Path, capsys: Captured) -> None:
    result = measured(capsys, finished, "--episodes", "5")
    assert etude("evaluate", finished, "--episodes", "5") == 0
    table = capsys.readouterr().out
    for name in ("policy", "untrained", "random", "scripted"):
        score = result.get(name) or result["baselines"][name]
        line = next(line for line in table.splitlines() if line.startswith(name) and "…" in line)
        assert f"{score['mean_return']:,.1f}" in line
        assert f"{score['completion_rate']:.1%}" in line
    assert "ms (p99)" in table


def test_the_same_seed_gives_the_same_numbers(finished: Path, capsys: Captured) -> None:
    args = (finished, "--episodes", "4", "--no-baselines")
    first, again, other = (measured(capsys, *args, "--seed", seed)["policy"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_it_does_not_use_the_episodes_by_which_training_chose(finished: Path, capsys: Captured) -> None:
    chosen = json.loads((checkpoints(finished / "best")[-1] / "manifest.json").read_text())["score"]
    args = (finished, "--episodes", "8", "--no-baselines")
    assert measured(capsys, *args, "--seed", "1000003")["policy"]["mean_return"] == pytest.approx(chosen)
    assert measured(capsys, *args)["policy"]["mean_return"] != pytest.approx(chosen)


def test_without_baselines_there_is_the_policy_alone(finished: Path, capsys: Captured) -> None:
    result = measured(capsys, finished, "--episodes", "2", "--no-baselines")
    assert (result["baselines"], result["untrained"]) == ({}, None)
    assert etude("evaluate", finished, "--episodes", "2", "--no-baselines") == 0
    assert "scripted" not in capsys.readouterr().out


def test_stochastic_samples_its_actions(finished: Path, capsys: Captured) -> None:
    args = (finished, "--episodes", "4", "--no-baselines")
    assert measured(capsys, *args, "--stochastic")["policy"] != measured(capsys, *args)["policy"]


@pytest.mark.parametrize("place", ["best", "checkpoints", "checkpoints/step-000000000640"])
def test_any_checkpoint_can_be_measured(place: str, finished: Path, capsys: Captured) -> None:
    result = measured(capsys, finished / place, "--episodes", "2", "--no-baselines")
    newest = checkpoints(finished / place)
    assert result["step"] == int((newest[-1] if newest else finished / place).name.removeprefix("step-"))


def test_matched_is_compared_with_its_schedulers(tmp_path: Path, capsys: Captured) -> None:
    command = train_command(tmp_path / "m", "--variant", "matched", "--agents", "3", "--slots", "4", "--quiet")
    assert etude(*command) == 0
    result = measured(capsys, tmp_path / "m", "--episodes", "3")
    assert {"greedy", "assignment"} <= set(result["baselines"])


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


def refusal(capsys: Captured, *args: str | Path) -> str:
    assert etude("evaluate", *args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    return captured.err


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: Captured) -> None:
    assert "does not exist" in refusal(capsys, tmp_path / "nope")
    assert "is not a run" in refusal(capsys, tmp_path)


def test_a_device_that_is_none_is_refused(finished: Path, capsys: Captured) -> None:
    assert "--device is 'tpu'" in refusal(capsys, finished, "--device", "tpu")


def test_a_truncated_policy_is_refused(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    run = copied(finished, tmp_path / "a")
    file = checkpoints(run / "best")[-1] / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "do not match the manifest's SHA-256" in refusal(capsys, run)


def test_a_policy_of_another_problem_is_refused(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    run = copied(finished, tmp_path / "a")
    file = checkpoints(run / "best")[-1] / "manifest.json"
    file.write_text(file.read_text().replace('"allocation"', '"chess"'))
    message = refusal(capsys, run)
    assert "is of the problem 'chess', which is not installed" in message
    assert "the entry point 'chess' in the group etude.problems" in message


def test_a_policy_of_another_size_is_refused(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    run = changed(finished, tmp_path / "a", agents=5)
    assert "do not fit the network" in refusal(capsys, run)


def test_a_policy_with_wrong_settings_is_refused(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    message = refusal(capsys, changed(finished, tmp_path / "a", agents=-5))
    assert "its settings are not those of this version of Etude (allocation.agents is -5" in message
    assert "train it again" in message


def changed(finished: Path, run: Path, **settings: int) -> Path:
    """A copy of a run whose policy has other settings."""
    copied(finished, run)
    file = checkpoints(run / "best")[-1] / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["settings"]["allocation"] |= settings
    file.write_text(json.dumps(manifest))
    return run


def test_a_policy_without_its_run_is_measured(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    artefact = copied(checkpoints(finished / "best")[-1], tmp_path / "anywhere")
    args = ("--episodes", "3", "--no-baselines")
    assert measured(capsys, artefact, *args)["policy"] == measured(capsys, finished, *args)["policy"]


def test_it_is_measured_on_what_its_problem_has(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    assert "is a policy of 'allocation', which is not measured on data" in refusal(capsys, finished, "--data", "x.json")
    assert "not measured on replay" in refusal(capsys, finished, "--replay", "x.jsonl")
    both = refusal(capsys, finished, "--replay", "x.jsonl", "--data", "x.json")
    assert "give one of data, replay and dataset" in both
    assert "nowhere: is no dataset" in refusal(capsys, finished, "--dataset", "nowhere")


def test_a_run_not_evaluated_yet_is_refused(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    run = copied(finished, tmp_path / "a")
    shutil.rmtree(run / "best")
    assert "let it train up to its first evaluation" in refusal(capsys, run)
