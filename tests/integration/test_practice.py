"""Both phases on a catalogue and plans of one's own, by commands: trained, interrupted, resumed, measured, used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from etude.learning.artefact import Artefact
from etude.learning.checkpoint import checkpoints, read_checkpoint, under
from etude.learning.practise import Practice
from etude.learning.run_folder import RunFolder
from etude.problems.catalogue import Worker
from etude.problems.workflow.phase2 import SCENARIOS
from tests.language import CATALOGUE, command, examples
from tests.office import PHASE_2
from tests.tiny import etude, json_output

SMALL = PHASE_2 | {"envs": "32", "eval_every": "1024", "eval_episodes": "32", "num_episodes": "300"}
TEXT = "Please fetch the letter, then translate it, then mail it"


def newest(run: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(checkpoints(run / "checkpoints")[-1])[0]


def test_from_a_file_of_plans_to_a_planner_that_learned_from_outcomes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expert = Worker(
        name="expert", description="knows everything", usd_per_call=0.4, latency_ms=9000.0, success_rate=0.99
    )
    catalogue = CATALOGUE.added(expert)
    Path("plans.json").write_text(json.dumps(msgspec.to_builtins(examples(60))))
    Path("own.json").write_bytes(msgspec.json.encode(catalogue))
    data, catalogue_of_it = Path("plans.json"), ("--catalogue", "own.json")
    p1, p2 = Path("runs/p1"), Path("runs/p2")
    assert etude(*command(data, p1, *catalogue_of_it, num_epochs="1", final_epochs="0")) == 0

    flags = [part for key, value in SMALL.items() for part in ("--set", f"training.phase2_rl.{key}={value}")]
    flags += ["--set", "run.checkpoint_every=1024", "--set", "run.device=cpu", "--set", "run.threads=1"]
    practise = [
        "train",
        "workflow",
        "--phase",
        "2",
        "--checkpoint",
        p1,
        "--data",
        data,
        *catalogue_of_it,
        *flags,
        "--out",
    ]
    whole = Practice.advance

    def interrupted(learner: Practice, report: Callable[[float], None]) -> dict[str, float]:
        if learner.step >= 1536:
            raise KeyboardInterrupt
        return whole(learner, report)

    monkeypatch.setattr(Practice, "advance", interrupted)
    assert etude(*practise, p2) == 130
    assert "resumes at step 1,024" in capsys.readouterr().out
    monkeypatch.setattr(Practice, "advance", whole)
    resumed = json_output(capsys, *practise, p2)
    assert (resumed["resumed"], resumed["stopped"]) == (True, "budget")
    assert resumed["episodes"] >= 300
    assert etude(*practise, "runs/whole", "--quiet") == 0
    ended, expected = newest(p2), newest(Path("runs/whole"))
    assert [name for name in expected if not torch.equal(ended[name], expected[name])] == []
    assert RunFolder(p2).policy().version == RunFolder(Path("runs/whole")).policy().version
    assert Artefact(p2 / "start").version == RunFolder(p1).policy().version
    began = under("policy.", Artefact(p2 / "start").tensors())
    learned = [name for name in began if not torch.equal(ended[f"learner.policy.{name}"], began[name])]
    assert len(learned) > 20

    result = json_output(capsys, "evaluate", p2, "--episodes", "64")
    assert result["policy"]["mean_return"] < result["baselines"]["oracle"]["mean_return"]
    assert result["policy"]["mean_return"] > result["baselines"]["random"]["mean_return"]
    made = json_output(capsys, "plan", p2, TEXT)
    assert {node["worker"] for node in made["nodes"]} <= {worker.name for worker in catalogue.workers}
    assert (p2 / SCENARIOS).exists()
