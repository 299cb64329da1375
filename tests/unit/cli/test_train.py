"""`etude train`: what it prints, what it leaves, how it resumes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from etude.learning.checkpoint import checkpoints
from etude.learning.run_folder import RunFolder
from tests.tiny import etude, refused, train_command

Captured = pytest.CaptureFixture[str]


def test_it_tells_every_evaluation_and_how_it_ended(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a")) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert "training for up to 960 steps on cpu" in lines[0]
    evaluations = [line for line in lines if line.startswith("step ")]
    assert [line.split()[1] for line in evaluations] == ["320", "640", "960"]
    assert all(word in evaluations[0] for word in ("return", "±", "33%", "entropy", "KL", "steps/s", "left", "★"))
    assert "100%" in evaluations[-1]
    assert "stopped after 960 steps" in captured.out
    assert "the budget is used up" in captured.out
    assert f"{tmp_path}/a/best" in captured.out
    assert lines[-1] == f"next: etude evaluate {tmp_path}/a   etude runs plot {tmp_path}/a"
    assert captured.err == ""


def test_json_goes_to_stdout_and_the_rest_to_stderr(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a", "--json")) == 0
    captured = capsys.readouterr()
    ended = json.loads(captured.out)
    assert (ended["stopped"], ended["step"], ended["resumed"]) == ("budget", 960, False)
    assert ended["run"] == str(tmp_path / "a")
    assert ended["policy"] == RunFolder(tmp_path / "a").policy().version
    assert ended["best_score"] == ended["best_return"]
    assert {"episodes", "wall_s"} <= ended.keys()
    assert "return" in captured.err


def test_quiet_says_nothing(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a", "--quiet")) == 0
    assert capsys.readouterr() == ("", "")


def test_a_finished_run_says_so_and_changes_nothing(finished: Path, capsys: Captured) -> None:
    command = train_command(finished, health__kl_max="1e-12")
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert etude(*command) == 0
    assert "already finished" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_larger_budget_resumes_and_says_where(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a")) == 0
    capsys.readouterr()
    assert etude(*train_command(tmp_path / "a", run__max_steps="1120")) == 0
    assert "resuming after 960 steps, budget 1,120" in capsys.readouterr().out


def test_a_policy_that_was_deleted_is_made_again(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a", "--quiet")) == 0
    before = RunFolder(tmp_path / "a").policy()
    last = {name: value.clone() for name, value in before.tensors().items()}
    shutil.rmtree(tmp_path / "a" / "best")
    assert etude("evaluate", tmp_path / "a") == 2
    assert "the command that trained it makes it again" in capsys.readouterr().err
    assert etude(*train_command(tmp_path / "a", "--quiet")) == 0
    assert RunFolder(tmp_path / "a").policy().tensors().keys() == last.keys()
    assert etude("evaluate", tmp_path / "a", "--episodes", "2") == 0


def test_the_sections_of_other_problems_in_the_file_are_left_alone(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "etude.yaml").write_text("office: {scenarios: 7}\ntraining: {phase2_rl: {alpha: 3}}\n")
    assert etude(*train_command(tmp_path / "a", "--quiet")) == 0
    assert "office" not in RunFolder(tmp_path / "a").config()
    (tmp_path / "etude.yaml").write_text("offise: {scenarios: 7}\n")
    message = refused(capsys, *train_command(tmp_path / "b"))
    assert "unknown setting 'offise.scenarios' (etude.yaml, line 1): did you mean 'office.scenarios'?" in message


def test_the_document_preset_reaches_the_run(tmp_path: Path) -> None:
    command = ("train", "allocation", "--preset", "document", "--out", tmp_path / "a", "--quiet", "--device", "cpu")
    short = ("--max-steps", "10", "--set", "ppo.steps=4", "--set", "ppo.minibatch=8", "--set", "run.eval_episodes=2")
    assert etude(*command, *short) == 0
    config = RunFolder(tmp_path / "a").config()
    assert (config["ppo"]["envs"], config["ppo"]["epochs"], config["network"]["hidden"]) == (4, 10, [256, 256, 128])


def test_what_allocation_cannot_learn_from_is_no_option_of_it(tmp_path: Path, capsys: Captured) -> None:
    for flag in ("--dataset", "--checkpoint", "--algorithm", "--phase"):
        assert etude("train", "allocation", flag, "2") == 2
        assert f"No such option: {flag}" in capsys.readouterr().err


def test_the_target_stops_it(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a", "--target-return", "-1000")) == 0
    assert "an evaluation reached the target" in capsys.readouterr().out


def test_warnings_come_with_value_threshold_and_advice(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a", health__kl_max="1e-12")) == 0
    stdout = capsys.readouterr().out
    assert "warning: kl_blow_up at step 320" in stdout
    assert "threshold 1e-12" in stdout
    assert "what to do: reduce `lr`" in stdout


def test_the_folder_is_named_after_variant_and_seed(tmp_path: Path) -> None:
    command = [
        part for part in train_command(tmp_path / "a", "--seed", "3") if part not in ("--out", str(tmp_path / "a"))
    ]
    assert etude(*command, "--quiet") == 0
    config = json.loads((tmp_path / "runs" / "allocation-document-3" / "config.json").read_text())
    assert (config["problem"], config["run"]["seed"]) == ("allocation", 3)


def test_file_variables_and_flags_reach_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etude.yaml").write_text("ppo: {gamma: 0.5, gae_lambda: 0.5}\nallocation: {agents: 3}\n")
    monkeypatch.setenv("ETUDE_PPO__GAE_LAMBDA", "0.6")
    assert etude(*train_command(tmp_path / "a", "--agents", "5", "--slots", "6", "--quiet")) == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["ppo"]["gamma"], config["ppo"]["gae_lambda"]) == (0.5, 0.6)
    assert (config["allocation"]["agents"], config["allocation"]["slots"]) == (5, 6)


def test_matched_trains_with_its_own_size(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a", "--variant", "matched", "--agents", "3", "--slots", "4")) == 0
    assert "stopped after 960 steps" in capsys.readouterr().out


def test_a_curriculum_trains_an_entity_network(tmp_path: Path) -> None:
    stages = "[{size: {agents: 2}, share: 0.4}]"
    assert etude(*train_command(tmp_path / "a", "--quiet", network__kind="entity", curriculum=stages)) == 0
    rows = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert {row["stage"] for row in rows} == {0, 1}


REFUSED = [
    (["--agents", "-3"], "allocation.agents is -3 (--agents): expected an integer from 2 to 64"),
    (["--set", "ppo.lrr=1"], "did you mean 'ppo.lr'?"),
    (["--set", "ppo.lr=abc"], "ppo.lr is 'abc'"),
    (["--variant", "matchd"], "one of document, matched"),
    (["--config", "nope.yaml"], "'nope.yaml': there is no such file"),
    (["--preset", "x"], "the preset is 'x': expected one of 'document', 'quick', 'wide'"),
    (["--preset", "documnt"], "did you mean 'document'?"),
    (["--method", "imitate"], "the problem 'allocation' does not learn by 'imitate': expected one of practise"),
    (
        ["--set", "office.scenarios=3"],
        "'office.scenarios' (--set office.scenarios) is a setting of the problem 'workflow'",
    ),
    (["--tracker", "x"], "run.trackers[0] is 'x' (--tracker)"),
    (["--set", "curriculum=[{size: {agents: 2}, share: 0.3}]"], "set network.kind to 'entity'"),
    (["--set", "network.kind=mlp", "--variant", "matched"], "use 'entity'"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_wrong_settings_are_one_line_and_leave_nothing(
    flags: list[str], message: str, tmp_path: Path, capsys: Captured
) -> None:
    assert etude("train", "allocation", "--out", tmp_path / "a", *flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "a").exists()


def test_several_wrong_settings_are_a_line_each(tmp_path: Path, capsys: Captured) -> None:
    assert etude("train", "allocation", "--out", tmp_path / "a", "--agents", "1", "--slots", "1") == 2
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [
        "allocation.agents",
        "allocation.slots",
    ]


def test_other_settings_in_the_folder_of_a_run_are_refused(finished: Path, capsys: Captured) -> None:
    assert etude(*train_command(finished, ppo__lr="0.5")) == 2
    assert "ppo.lr 0.002 → 0.5" in capsys.readouterr().err


def test_a_truncated_checkpoint_is_refused_with_what_to_do(tmp_path: Path, capsys: Captured) -> None:
    assert etude(*train_command(tmp_path / "a", "--quiet")) == 0
    file = checkpoints(tmp_path / "a" / "checkpoints")[-1] / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    assert etude(*train_command(tmp_path / "a")) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "100 bytes do not match" in message
    assert "or delete this folder" in message


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: Captured) -> None:
    with RunFolder(tmp_path / "a").locked():
        assert etude(*train_command(tmp_path / "a")) == 2
    assert "another process is training" in capsys.readouterr().err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_how_to_go_on(signum: signal.Signals, code: int, tmp_path: Path) -> None:
    command = train_command(tmp_path / "a", run__max_steps="1000000")
    with subprocess.Popen(
        [sys.executable, "-m", "etude.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as process:
        wait_for(lambda: len(checkpoints(tmp_path / "a" / "checkpoints")) > 1)
        process.send_signal(signum)
        terminal_output = process.communicate(timeout=240)[0]
    assert process.returncode == code
    assert "Traceback" not in terminal_output
    assert "interrupted at step" in terminal_output
    assert "The same command resumes at step" in terminal_output
    assert f"--out {tmp_path}/a" in terminal_output.splitlines()[-1]


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    """Through a pseudo-terminal, as people see it."""
    import pty

    reader, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "etude.cli", *train_command(tmp_path / "a", health__kl_max="1e-12")]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        terminal_output = read_all(reader)
    assert process.returncode == 0
    assert re.search(r"960 steps .*━.*100%", terminal_output)
    assert "best" in terminal_output
    assert "warning:" in terminal_output
    assert "the budget is used up" in terminal_output


def read_all(reader: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(reader, 65536)
        except OSError:  # how a pseudo-terminal says that the other end has gone
            part = b""
        if not part:
            os.close(reader)
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(part)
