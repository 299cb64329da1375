"""Phase 2 in a small office: a planner learns more from the outcomes of its plans than from its experts."""

from __future__ import annotations

from pathlib import Path

import torch

from etude.bootstrap.runs import start_run
from etude.learning.evaluate import evaluate, greedy
from etude.learning.requests import LearnRequest
from etude.problems.workflow.phase2 import read_office
from etude.settings.tree import resolve_settings

torch.set_num_threads(1)
SMALL = {
    "office.scenarios": "60",
    "office.held_out": "0",
    "planner.encoder": "ngrams",
    "planner.width": "32",
    "planner.layers": "1",
    "planner.heads": "2",
    "run.device": "cpu",
    "run.threads": "1",
    "training.phase1_supervised.num_epochs": "2",
    "training.phase1_supervised.final_epochs": "0",
    "training.phase1_supervised.batch_size": "32",
    "training.phase1_supervised.learning_rate": "3e-3",
    "training.phase2_rl.num_episodes": "1200",
    "training.phase2_rl.envs": "64",
    "training.phase2_rl.epochs": "3",
    "training.phase2_rl.minibatch": "256",
    "training.phase2_rl.learning_rate": "3e-3",
    "training.phase2_rl.eval_every": "1000000",
    "training.phase2_rl.eval_episodes": "64",
}


def test_outcomes_raise_success_and_return(tmp_path: Path) -> None:
    """Over six seeds, success rises by 0.15 to 0.29 from about 0.6, the return by 1.5 to 3.2."""
    assignments = [f"{key}={value}" for key, value in SMALL.items()]
    settings = resolve_settings("workflow", preset="office", assignments=assignments).settings
    first, second = tmp_path / "first", tmp_path / "second"
    for request in (
        LearnRequest(problem="workflow", method="imitate", settings=settings, out=first),
        LearnRequest(problem="workflow", method="practise", settings=settings, out=second, checkpoint=first),
    ):
        for _ in start_run(request).updates():
            pass
    problem, policies = read_office(second)
    after, before = (evaluate(problem, greedy(policies[name]), episodes=512) for name in ("policy", "phase 1"))
    assert after.metrics["success"] > before.metrics["success"] + 0.08
    assert after.mean > before.mean + 1.0
    assert after.metrics["validity"] == 1
