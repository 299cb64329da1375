"""`etude.train`, `etude.evaluate`, `etude.load`: the same as the commands, from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.contracts.errors import CheckpointError, ConfigError, RunError
from etude.learning.run_folder import RunFolder
from tests.language import SETTINGS as PLANNER
from tests.language import write_data
from tests.tiny import SETTINGS, train_command
from tests.tiny import etude as command

TINY: dict[str, Any] = {
    "allocation.horizon": 20,
    "network.hidden": [16],
    "ppo.envs": 16,
    "ppo.steps": 10,
    "ppo.minibatch": 80,
    "ppo.epochs": 2,
    "run.eval_every": 320,
    "run.eval_episodes": 8,
    "run.checkpoint_every": 320,
}
"""What tests.tiny has as text."""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("api") / "run"
    return etude.train("allocation", out=out, settings=TINY, max_steps=960, device="cpu")


def test_training_gives_the_run_of_the_command(trained: Any, tmp_path: Path) -> None:
    assert {*TINY, "run.max_steps", "run.device"} == set(SETTINGS)
    assert command(*train_command(tmp_path / "a", "--quiet")) == 0
    assert trained.artefact().version == RunFolder(tmp_path / "a").policy().version
    assert len(trained.scores) == 3
    assert trained.folder.summary()["best_score"] == max(trained.scores)


def test_a_finished_run_is_given_back_as_it_is(trained: Any) -> None:
    again = etude.train("allocation", out=str(trained.folder.path), settings=TINY, max_steps=960, device="cpu")
    assert (again.resumed, again.step, again.artefact().version) == (True, 960, trained.artefact().version)


def test_the_folder_has_a_name_without_one(tmp_path: Path) -> None:
    made = etude.train("allocation", settings=TINY, max_steps=320, device="cpu", seed=3)
    assert made.folder.path == Path("runs/allocation-document-3")


def test_a_policy_acts(trained: Any) -> None:
    policy = etude.load(trained.folder.path)
    assert policy.version == trained.artefact().version
    observation = {
        name: value[0].numpy() for name, value in trained.learner.problem.world(1, device="cpu").reset(0).items()
    }
    action = policy.act(observation)
    assert action.shape == (4, 3)
    assert np.array_equal(action, policy.act(observation))
    assert ((action >= 0) & (action <= 1)).all()
    assert etude.load(trained.artefact().path).version == policy.version  # an artefact without its run


def test_an_evaluation_is_numbers_a_table_and_sentences(trained: Any) -> None:
    measured = etude.evaluate(trained.folder.path, episodes=4, stochastic=True, seed=1, baselines=False)
    assert measured.json["policy"]["episodes"] == 4
    assert measured.json["baselines"] == {}
    assert {len(row) for row in measured.rows} == {len(measured.columns)}
    assert any("One decision takes" in sentence for sentence in measured.sentences)
    greedy = etude.evaluate(str(trained.folder.path), episodes=4, seed=1, baselines=False)
    assert greedy.json["policy"] != measured.json["policy"]


def test_a_planner_is_trained_loaded_and_measured(tmp_path: Path) -> None:
    data, _ = write_data(tmp_path / "data", 12)
    quick = {f"training.phase1_supervised.{key}": 1 for key in ("num_epochs", "final_epochs")}
    sized = {key: int(value) for key, value in PLANNER.items() if key.startswith(("planner.", "limits."))}
    settings = sized | quick | {"training.phase1_supervised.synthetic_augmentations": 0}
    run = etude.train("workflow", data=str(data), encoder="ngrams", out="p", settings=settings, device="cpu")
    assert run.about.method == "imitate"
    assert etude.load("p").plan("Please fetch the letter").nodes
    measured = etude.evaluate("p", data=data)
    assert (measured.json["examples"], measured.json["validity"]) == (12, 1.0)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"max_step": 3}, "unknown option 'max_step' of the problem 'allocation': did you mean 'max_steps'?"),
    ({"dataset": "d"}, "unknown option 'dataset' of the problem 'allocation'"),
    ({"settings": {"ppo.lrr": 1}}, "did you mean 'ppo.lr'?"),
    ({"settings": {"office.scenarios": 1}}, "is a setting of the problem 'workflow'"),
    ({"preset": "documnt"}, "did you mean 'document'?"),
    ({"agents": -3}, "allocation.agents is -3"),
    ({"method": "imitate"}, "does not learn by 'imitate'"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_in_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        etude.train("allocation", out="a", **options)
    assert message in str(refused.value)
    assert not Path("a").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay": 5}, "replay is 5: expected a path"),
        ({"replay": ["a.jsonl"]}, "replay is ['a.jsonl']: expected a path"),
        ({"dataset": 5}, "dataset is 5: expected a text"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        etude.train("choice", out="a", **options)
    assert message in str(refused.value)


def test_errors_can_be_caught_by_their_names() -> None:
    assert issubclass(etude.DataError, etude.EtudeError)
    with pytest.raises(etude.DataError, match="task is 5"):
        etude.task(5)  # type: ignore[arg-type]


def test_other_mistakes(trained: Any) -> None:
    with pytest.raises(ConfigError, match="there is no problem 'alocation': did you mean 'allocation'"):
        etude.train("alocation")
    with pytest.raises(ConfigError, match="unknown option 'sampled' of evaluate: expected one of data"):
        etude.evaluate(trained.folder.path, sampled=True)
    with pytest.raises(ConfigError, match="replay is 5: expected a path"):
        etude.evaluate(trained.folder.path, replay=5)
    with pytest.raises(RunError, match="does not exist"):
        etude.load("nowhere")
    RunFolder(Path("new")).open(trained.about.config())
    with pytest.raises(CheckpointError, match="has no policy"):
        etude.load("new")


def test_importing_etude_brings_no_torch() -> None:
    code = "import etude, sys; print([n for n in ('torch', 'scipy', 'pandas', 'pydantic') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n", done.stderr
