"""`etude train workflow --dataset`: from what was collected to a better planner, by commands."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.bootstrap.from_logs import make_from_logs
from etude.bootstrap.planner import load_planner, read_beginning
from etude.learning.checkpoint import checkpoints, read_checkpoint
from etude.learning.runs import RunFolder
from etude.settings.tree import resolve
from tests.office import first_phase
from tests.tiny import etude, refused, told_json

Captured = pytest.CaptureFixture[str]
FAST = [f"--set=from_logs.{name}.epochs=2" for name in ("ppo", "rloo", "dpo")]
FAST += ["--set=from_logs.overlap.fit_steps=5", "--set=run.threads=1", "--device=cpu"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_phase(tmp_path_factory)


@pytest.fixture(scope="module")
def logs(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What that planner did, drawing lots: 15 requests, four times each."""
    folder = tmp_path_factory.mktemp("logs")
    from etude.bootstrap.orchestration import make_workplace, settings_of

    office = make_workplace(None, settings=settings_of(str(first))).office
    assert office is not None
    (folder / "asked.txt").write_text("\n".join(office.scenarios.instructions[:15]) + "\n")
    asked = ("--num-executions", "60", "--instructions", folder / "asked.txt")
    assert etude("collect", "--policy", first, "--explore", "1", *asked, "--out", folder / "log", "--json") == 0
    return folder / "log"


@pytest.fixture
def dataset(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a store of its own, in the working folder."""
    monkeypatch.chdir(tmp_path)
    assert etude("ingest", logs / "executions.jsonl") == 0
    assert etude("reward", "rescore", "--version", "2") == 0
    return created(Path("d"))


def created(out: Path, *more: str) -> Path:
    create = ("dataset", "create", "--problem", "workflow", "--reward-version", "2", "--shares", "0.6,0.3,0.1")
    assert etude(*create, "--out", out, *more) == 0
    return out


def learn(dataset: Path, first: Path, out: str, *more: str) -> list[str | Path]:
    return ["train", "workflow", "--dataset", dataset, "--checkpoint", first, "--out", out, *FAST, *more]


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "dpo"])
def test_each_algorithm_makes_another_planner(algorithm: str, dataset: Path, first: Path, capsys: Captured) -> None:
    told = told_json(capsys, *learn(dataset, first, "runs/a", "--algorithm", algorithm))
    assert (told["epochs"], told["stopped"]) == (2, "epochs")
    before, after = read_beginning(first)[0], read_beginning(Path("runs/a"))[0]
    assert any(not torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert load_planner(Path("runs/a")).plan("Summarise the report.").nodes
    config = RunFolder(Path("runs/a")).config()
    assert config["algorithm"] == algorithm
    assert config["dataset"]["reward"] == 2
    rows = RunFolder(Path("runs/a")).read_metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["overlap_ess"] > 0.9  # who logged is who learns
    assert all(0 < row["ess"] <= 1.001 for row in rows[1:])
    for command in (("runs", "show", "runs/a"), ("runs", "list", "runs"), ("runs", "plot", "runs/a")):
        assert etude(*command) == 0
    assert etude("evaluate", "runs/a", "--episodes", "4") == 0


def test_without_a_checkpoint_it_is_who_logged(dataset: Path, first: Path, capsys: Captured) -> None:
    shutil.copytree(first, "runs/who")
    shown = told_json(capsys, "dataset", "show", dataset)
    (version,) = shown["counts"]["policies"]
    assert version.partition("@")[0] == first.name
    told = refused(capsys, "train", "workflow", "--dataset", dataset, "--out", "elsewhere/a", *FAST)
    assert "no run below elsewhere is one that logged this dataset" in told
    # Its version has the run's name in it: under another name it is not found, under its own it is.
    shutil.move("runs/who", f"runs/{first.name}")
    assert etude("train", "workflow", "--dataset", dataset, "--out", "runs/a", *FAST) == 0


@pytest.mark.parametrize("weighed", [[], ["--prioritise", "1"]])
def test_interrupted_it_goes_on_to_the_same_weights(weighed: list[str], dataset: Path, first: Path) -> None:
    dataset = created(Path("w"), *weighed)
    whole = weights(dataset, first, Path("whole"))
    given = [flag.removeprefix("--set=") for flag in FAST if "--set" in flag]
    settings = resolve(assignments=[*given, "run.device=cpu"]).settings
    training = make_from_logs(settings, Path("parts"), str(dataset), "rloo", checkpoint=first)
    next(training.epochs())
    resumed = weights(dataset, first, Path("parts"))
    assert resumed.keys() == whole.keys()
    for name, value in resumed.items():
        assert torch.equal(value, whole[name]), name


def weights(dataset: Path, first: Path, out: Path) -> dict[str, torch.Tensor]:
    assert etude(*learn(dataset, first, str(out), "--algorithm", "rloo")) == 0
    return read_checkpoint(checkpoints(out / "checkpoints")[-1])[0]


def test_trajectories_that_weigh_differently_are_drawn_anew_each_pass_and_alike_within_one(
    dataset: Path, first: Path
) -> None:
    settings = resolve(assignments=["run.device=cpu"]).settings
    training = make_from_logs(
        settings, Path("a"), str(created(Path("w"), "--prioritise", "1")), "rloo", checkpoint=first
    )

    def drawn(shards: Any) -> list[float]:
        return [reward for logged in shards() for reward in logged.reward.tolist()]

    once, aside = drawn(training.train), drawn(training.held_out)
    assert drawn(training.train) == once  # the check of overlap lays two passes side by side
    training.learner.epoch = 1
    assert drawn(training.train) != once
    assert drawn(training.held_out) == aside  # estimates are of the same trajectories


def test_trajectories_that_people_decided_are_left_out(logs: Path, first: Path, capsys: Captured) -> None:
    lines = [json.loads(line) for line in (logs / "executions.jsonl").read_text().splitlines()]
    for line in lines[::2]:
        for decision in line["decisions"]:
            decision["propensity"] = None
    Path("people").mkdir()
    Path("people/executions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    shutil.copy(logs / "catalogue.json", "people")
    assert etude("ingest", "people/executions.jsonl") == 0
    assert etude("reward", "rescore", "--version", "2") == 0
    dataset = created(Path("p"))
    training = make_from_logs(
        resolve(assignments=["run.device=cpu"]).settings, Path("a"), str(dataset), "rloo", checkpoint=first
    )
    told = [logged for shards in (training.train, training.held_out) for logged in shards()]
    assert all(bool((logged.lengths > 0).all()) for logged in told)
    assert 0 < sum(len(logged.reward) for logged in told) <= len(lines[1::2])


def test_one_pass_of_ppo_is_a_planner(dataset: Path, first: Path, capsys: Captured) -> None:
    """The value warms up in it, and nothing comes after."""
    told = told_json(capsys, *learn(dataset, first, "runs/a", "--set=from_logs.ppo.epochs=1"))
    assert told["epochs"] == 1
    assert load_planner(Path("runs/a")).plan("Summarise the report.").nodes


def test_shuffled_propensities_are_refused(logs: Path, first: Path, capsys: Captured) -> None:
    lines = [json.loads(line) for line in (logs / "executions.jsonl").read_text().splitlines()]
    decisions = [decision for line in lines for decision in line["decisions"]]
    shuffled = random.Random(0).sample([d["propensity"] for d in decisions], len(decisions))
    for decision, propensity in zip(decisions, shuffled, strict=True):
        decision["propensity"] = propensity
    Path("mixed").mkdir()
    Path("mixed/executions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    shutil.copy(logs / "catalogue.json", "mixed")
    etude("ingest", "mixed/executions.jsonl")
    etude("reward", "rescore", "--version", "2")
    create = ("dataset", "create", "--problem", "workflow", "--reward-version", "2", "--shares", "0.6,0.3,0.1")
    assert etude(*create, "--out", "m") == 0
    capsys.readouterr()
    assert etude(*learn(Path("m"), first, "runs/m")) == 2
    assert "logged propensities" in capsys.readouterr().err


def test_what_was_forgotten_is_not_learned_from(dataset: Path, first: Path, capsys: Captured) -> None:
    copy = shutil.copytree(dataset, "copy")  # of which nobody knows
    assert etude("experience", "export", "--out", "all.jsonl") == 0
    events = [json.loads(line) | {"user": "u1"} for line in Path("all.jsonl").read_text().splitlines()]
    Path("named.jsonl").write_text("\n".join(map(json.dumps, events)))
    Path("etude.yaml").write_text("experience: {folder: other}\n")  # a store that knows whose they are
    assert told_json(capsys, "ingest", "named.jsonl")["new"] == len(events)
    assert told_json(capsys, "experience", "forget", "--user", "u1")["trajectories"] == len(events)
    capsys.readouterr()
    assert etude(*learn(Path(copy), first, "runs/none", "--algorithm", "rloo")) == 2
    assert "nothing is left to learn from" in capsys.readouterr().err


def test_who_learned_from_whom_is_remembered(dataset: Path, first: Path, capsys: Captured) -> None:
    assert etude(*learn(dataset, first, "runs/a", "--algorithm", "dpo")) == 0
    from etude.bootstrap.experience import open_store
    from etude.experience.forgetting import policies

    store = open_store()
    (record,) = policies(store)
    store.close()
    assert record.run == "runs/a"
    assert record.version.startswith("a@")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--algorithm", "sarsa"], "expected one of ppo, rloo, dpo"),
        (["--episodes", "3"], "--episodes does not go with --dataset"),
        (["--data", "x.json"], "--data does not go with --dataset"),
    ],
)
def test_mistakes(more: list[str], told: str, capsys: Captured) -> None:
    assert told in refused(capsys, "train", "workflow", "--dataset", "d", *more)


def test_datasets_that_are_none_or_of_something_else(dataset: Path, first: Path, capsys: Captured) -> None:
    assert "is no dataset" in refused(capsys, *learn(Path("nowhere"), first, "runs/a"))
    assert "--algorithm goes with --dataset" in refused(capsys, "train", "workflow", "--algorithm", "dpo")
    create: list[Any] = ["dataset", "create", "--problem", "workflow", "--reward-version", "2"]
    assert etude(*create, "--shares", "1,0,0", "--out", "all") == 0
    assert "no trajectories in its validation split" in refused(capsys, *learn(Path("all"), first, "runs/a"))
