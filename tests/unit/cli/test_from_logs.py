"""`etude train workflow --dataset`: from what was collected to a better planner, by commands."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.bootstrap.runs import make_request, start_run
from etude.learning.artefact import write_artefact
from etude.learning.checkpoint import TENSORS, checkpoints, read_checkpoint
from etude.learning.from_logs import FromLogs
from etude.learning.run import Run
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.workflow.artefact import load_planner, read_pretrained
from etude.problems.workflow.office.scenarios import generate
from tests.office import first_phase
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
FAST = [f"--set=from_logs.{name}.epochs=2" for name in ("ppo", "rloo", "dpo")]
FAST += ["--set=from_logs.overlap.fit_steps=5", "--set=run.threads=1", "--device=cpu"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_phase(tmp_path_factory)


@pytest.fixture(scope="module")
def logs(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What that planner did, sampling: 15 requests, four times each."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "asked.txt").write_text("\n".join(generate(0, 100).instructions[:15]) + "\n")
    asked = ("--num-executions", "60", "--instructions", folder / "asked.txt")
    assert etude("collect", "--policy", first, "--explore", "0.1", *asked, "--out", folder / "log", "--json") == 0
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


def output(capsys: Captured, *args: str | Path) -> str:
    capsys.readouterr()
    assert etude(*args) == 0
    return capsys.readouterr().out


def learn(dataset: Path, first: Path, out: str, *more: str) -> list[str | Path]:
    """By PPO unless it says otherwise; the new policy is kept, whatever the verdict."""
    how = ["--keep", "always", *([] if "--algorithm" in more else ["--algorithm", "ppo"])]
    return ["train", "workflow", "--dataset", dataset, "--checkpoint", first, "--out", out, *FAST, *how, *more]


def test_dpo_finds_pairs_in_a_dataset_with_the_default_reward(
    logs: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Its rewards are between 0 and 1."""
    monkeypatch.chdir(tmp_path)
    assert etude("ingest", logs / "executions.jsonl") == 0
    assert etude("reward", "rescore", "--version", "1") == 0
    assert etude("dataset", "create", "--problem", "workflow", "--shares", "0.6,0.3,0.1", "--out", "d") == 0
    assert json_output(capsys, *learn(Path("d"), first, "runs/a", "--algorithm", "dpo"))["stopped"] == "budget"


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "dpo"])
def test_each_algorithm_makes_another_planner(algorithm: str, dataset: Path, first: Path, capsys: Captured) -> None:
    result = json_output(capsys, *learn(dataset, first, "runs/a", "--algorithm", algorithm))
    assert (result["epochs"], result["stopped"]) == (2, "budget")
    before, after = read_pretrained(find_policy(first))[0], read_pretrained(find_policy(Path("runs/a")))[0]
    assert any(not torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert load_planner(Path("runs/a")).plan("Summarise the report.").nodes
    config = RunFolder(Path("runs/a")).config()
    assert config["algorithm"] == algorithm
    assert config["dataset"]["reward"] == "2"
    assert find_policy(Path("runs/a")).manifest.parent == find_policy(first).version
    assert Path("runs/a/start/manifest.json").read_bytes() == (find_policy(first).path / "manifest.json").read_bytes()
    rows = RunFolder(Path("runs/a")).read_metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["overlap_ess"] > 0.8  # the behaviour policy is the one that learns, but corrected by fault
    assert all(0 < row["ess"] <= 1.001 for row in rows[1:])
    for command in (("runs", "show", "runs/a"), ("runs", "list", "runs")):
        assert etude(*command) == 0
    compared = json_output(capsys, "evaluate", "runs/a", "--episodes", "4")  # its logs are of the simulated office
    assert {"phase 1", "oracle"} <= set(compared["baselines"])


def test_it_says_what_it_learned_and_what_may_be_next(dataset: Path, first: Path, capsys: Captured) -> None:
    assert etude(*learn(dataset, first, "runs/a", "--algorithm", "rloo")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "runs/a: learning by rloo from logged decisions on cpu"
    passes = [line for line in lines if line.startswith("pass")]
    assert [line.split()[:2] for line in passes] == [["pass", "1"], ["pass", "2"]]
    assert all("effective" in line and "KL to them" in line for line in passes)
    assert any(line.startswith("best estimate: ") and line.endswith(" before") for line in lines)
    assert lines[-1].startswith("next: etude evaluate runs/a --dataset DATASET ")


def test_the_report_of_a_run_from_logs(dataset: Path, first: Path, capsys: Captured) -> None:
    assert etude(*learn(dataset, first, "runs/a", "--algorithm", "rloo", "--quiet")) == 0
    assert etude("runs", "plot", "runs/a", "--episodes", "4") == 0
    assert Path("runs/a/report.html").read_text("utf-8").lstrip().lower().startswith("<!doctype html")


# Off-policy evaluation


def test_a_policy_is_judged_on_the_test_split(dataset: Path, first: Path, logs: Path, capsys: Captured) -> None:
    result = json_output(capsys, "evaluate", first, "--dataset", dataset)
    assert result["run"] == str(first)
    assert result["dataset"]["reward"] == "2"
    assert {"behaviour", "estimates", "difference", "overlap"} <= result.keys()
    assert result["answer"] in ("not distinguishable", "cannot tell")  # it is the behaviour policy itself
    assert result["difference"]["mean"] == pytest.approx(0, abs=1.0)
    shown = output(capsys, "evaluate", first, "--dataset", dataset)
    count = json_output(capsys, "dataset", "show", dataset)["counts"]["splits"]["test"]
    assert f"{first}: judged on {count} logged trajectories that no policy learned from" in shown
    assert "95 % interval" in shown
    own = json_output(capsys, "evaluate", first, "--dataset", dataset, "--catalogue", logs / "catalogue.json")
    assert own == result


def test_a_policy_far_from_the_logs_cannot_be_judged(dataset: Path, first: Path, capsys: Captured) -> None:
    shutil.copytree(first, "far")
    artefact = find_policy(Path("far"))
    tensors = {name: value * 4 if value.is_floating_point() else value for name, value in artefact.tensors().items()}
    about: dict[str, Any] = {
        name: getattr(artefact.manifest, name) for name in artefact.manifest.__struct_fields__ if name != "files"
    }
    files = {name: artefact.file(name) for name in artefact.manifest.files if name != TENSORS}
    about.pop("format", None)
    write_artefact(artefact.path, tensors=tensors, files=files, about=about)
    shown = output(capsys, "evaluate", "far", "--dataset", dataset)
    assert "trajectories cannot tell whether the policy is better." in shown
    assert json_output(capsys, "evaluate", "far", "--dataset", dataset)["answer"] == "cannot tell"


def test_what_cannot_be_judged_on_a_dataset(
    dataset: Path, first: Path, finished: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert "is no dataset" in refused(capsys, "evaluate", first, "--dataset", "nowhere")
    message = refused(capsys, "evaluate", finished, "--dataset", dataset)
    assert "the problem 'allocation' does not read logged decisions" in message
    both = refused(capsys, "evaluate", first, "--dataset", dataset, "--data", "x.json")
    assert "give one of data, replay and dataset" in both
    create: list[Any] = ["dataset", "create", "--problem", "workflow", "--reward-version", "2"]
    assert etude(*create, "--shares", "0.6,0.4,0", "--out", "untested") == 0
    assert "no trajectories in its test split" in refused(capsys, "evaluate", first, "--dataset", "untested")


def test_without_a_checkpoint_it_continues_from_the_behaviour_policy(
    dataset: Path, first: Path, capsys: Captured
) -> None:
    """Its version is that of its content, whatever its folder is called."""
    shutil.copytree(first, "runs/any name")
    shown = json_output(capsys, "dataset", "show", dataset)
    (version,) = shown["counts"]["policies"]
    assert version.startswith(find_policy(first).version)
    message = refused(capsys, "train", "workflow", "--dataset", dataset, "--out", "elsewhere/a", *FAST)
    assert "elsewhere has the policy that logged this dataset" in message
    assert "as the checkpoint" in message
    assert etude("train", "workflow", "--dataset", dataset, "--out", "runs/a", *FAST) == 0
    assert find_policy(Path("runs/a")).manifest.parent == find_policy(first).version


@pytest.mark.parametrize("weighed", [[], ["--prioritise", "1"]])
def test_interrupted_it_continues_to_the_same_weights(weighed: list[str], dataset: Path, first: Path) -> None:
    dataset = created(Path("w"), *weighed)
    whole = weights(dataset, first, Path("whole"))
    next(begun(dataset, first, "parts").updates())
    resumed = weights(dataset, first, Path("parts"))
    assert resumed.keys() == whole.keys()
    for name, value in resumed.items():
        assert torch.equal(value, whole[name]), name


def begun(dataset: Path, first: Path, out: str) -> Run:
    """A run by rloo that a test drives."""
    given = [flag.removeprefix("--set=") for flag in FAST if "--set" in flag]
    inputs = {"dataset": str(dataset), "algorithm": "rloo", "checkpoint": first, "device": "cpu"}
    return start_run(make_request("workflow", out=Path(out), inputs=inputs, assignments=given))


def learner_of(run: Run) -> FromLogs:
    assert isinstance(run.learner, FromLogs)
    return run.learner


def weights(dataset: Path, first: Path, out: Path) -> dict[str, torch.Tensor]:
    assert etude(*learn(dataset, first, str(out), "--algorithm", "rloo")) == 0
    return read_checkpoint(checkpoints(out / "checkpoints")[-1])[0]


def test_trajectories_with_weights_are_sampled_again_in_each_pass_and_alike_within_one(
    dataset: Path, first: Path
) -> None:
    learner = learner_of(begun(created(Path("w"), "--prioritise", "1"), first, "a"))

    def sampled(shards: Any) -> list[float]:
        return [reward for logged in shards() for reward in logged.reward.tolist()]

    once, held_out = sampled(learner.train), sampled(learner.held_out)
    assert sampled(learner.train) == once  # the check of overlap compares two passes
    learner.algorithm.epoch = 1
    assert sampled(learner.train) != once
    assert sampled(learner.held_out) == held_out  # estimates are of the same trajectories


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
    learner = learner_of(begun(dataset, first, "a"))
    read = [logged for shards in (learner.train, learner.held_out) for logged in shards()]
    assert all(bool((logged.lengths > 0).all()) for logged in read)
    assert 0 < sum(len(logged.reward) for logged in read) <= len(lines[1::2])


def test_one_pass_of_ppo_is_a_planner(dataset: Path, first: Path, capsys: Captured) -> None:
    """The value warms up in it, and nothing comes after."""
    result = json_output(capsys, *learn(dataset, first, "runs/a", "--set=from_logs.ppo.epochs=1"))
    assert result["epochs"] == 1
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
    copy = shutil.copytree(dataset, "copy")  # that the store does not know
    assert etude("experience", "export", "--out", "all.jsonl") == 0
    events = [json.loads(line) | {"user": "u1"} for line in Path("all.jsonl").read_text().splitlines()]
    Path("named.jsonl").write_text("\n".join(map(json.dumps, events)))
    Path("etude.yaml").write_text("experience: {folder: other}\n")  # a store that knows whose they are
    assert json_output(capsys, "ingest", "named.jsonl")["new"] == len(events)
    assert json_output(capsys, "experience", "forget", "--user", "u1")["trajectories"] == len(events)
    capsys.readouterr()
    assert etude(*learn(Path(copy), first, "runs/none", "--algorithm", "rloo")) == 2
    assert "nothing is left to learn from" in capsys.readouterr().err


def test_which_policy_learned_from_which_dataset_is_remembered(dataset: Path, first: Path, capsys: Captured) -> None:
    assert etude(*learn(dataset, first, "runs/a", "--algorithm", "dpo")) == 0
    from etude.bootstrap.experience import open_store
    from etude.experience.forgetting import policies

    store = open_store()
    (record,) = policies(store)
    store.close()
    assert record.run == "runs/a"
    assert record.version == find_policy(Path("runs/a")).version


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--algorithm", "sarsa"], "expected one of ppo, rloo, dpo"),
        (["--episodes", "3"], "episodes does not go with a dataset"),
        (["--data", "x.json", "--algorithm", "ppo"], "data does not go with a dataset"),
        (["--epochs", "2"], "epochs does not go with a dataset"),
    ],
)
def test_mistakes(more: list[str], message: str, capsys: Captured) -> None:
    assert message in refused(capsys, "train", "workflow", "--dataset", "d", *more)


def test_datasets_that_are_none_or_of_something_else(dataset: Path, first: Path, capsys: Captured) -> None:
    assert "is no dataset" in refused(capsys, *learn(Path("nowhere"), first, "runs/a"))
    assert "algorithm goes with a dataset" in refused(capsys, "train", "workflow", "--algorithm", "dpo")
    create: list[Any] = ["dataset", "create", "--problem", "workflow", "--reward-version", "2"]
    assert etude(*create, "--shares", "1,0,0", "--out", "all") == 0
    assert "no trajectories in its validation split" in refused(capsys, *learn(Path("all"), first, "runs/a"))


def test_by_default_workers_are_learned_and_the_old_policy_stays_unless_the_new_one_is_better(
    dataset: Path, first: Path, capsys: Captured
) -> None:
    command = ["train", "workflow", "--dataset", dataset, "--checkpoint", first]
    result = json_output(capsys, *command, "--out", "runs/careful")
    assert result["verdict"]["answer"] in ("better", "not distinguishable", "worse")
    assert result["kept"] == ("new" if result["verdict"]["answer"] == "better" else "old")
    assert (load_planner(Path("runs/careful")).workers is not None) == (result["kept"] == "new")

    shown = output(capsys, *command, "--keep", "always", "--out", "runs/all")
    assert any(said in shown for said in ("by the verdicts on whole workflows", "No subtask gets another worker"))
    assert "Verdict: " in shown
    learned, before = load_planner(Path("runs/all")), load_planner(first)
    assert learned.workers is not None
    assert learned.calibration == before.calibration
    for instruction in generate(0, 100).instructions[:5]:
        new, old = learned.plan(instruction), before.plan(instruction)
        assert [(n.task_type, n.dependencies) for n in new.nodes] == [(n.task_type, n.dependencies) for n in old.nodes]
    assert etude("runs", "plot", "runs/all") == 0
    assert "keep is 'never': expected one of better, always" in refused(
        capsys, *command, "--keep", "never", "--out", "runs/b"
    )


def test_self_declared_success_teaches_which_worker_and_not_which_subtasks(
    dataset: Path, first: Path, capsys: Captured
) -> None:
    """The log of an office whose verdicts are left out."""
    assert etude("experience", "export", "--out", "all.jsonl") == 0
    events = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    for event in events:
        event["outcome"]["success_by"] = "self"
    Path("declared.jsonl").write_text("\n".join(map(json.dumps, events)))
    Path("etude.yaml").write_text("experience: {folder: other}\n")
    assert etude("ingest", "declared.jsonl") == 0
    assert etude("reward", "rescore", "--version", "2") == 0
    shown = output(capsys, *learn(created(Path("s")), first, "runs/a", "--algorithm", "rloo", "--keep", "always"))
    assert "rloo learns plans from verdicts on whole workflows" in shown
    assert shown.count("success is self-declared, so the subtasks of plans stay as they are") == 1
    before, after = (read_pretrained(find_policy(Path(run)))[0].weights for run in (first, "runs/a"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert load_planner(Path("runs/a")).workers is not None


def test_plans_and_workers_are_learned_and_judged_together(
    logs: Path, dataset: Path, first: Path, capsys: Captured
) -> None:
    assert etude("prepare", "--logs", logs, "--out", "training_data.json") == 0
    command = ["train", "workflow", "--dataset", dataset, "--data", "training_data.json", "--checkpoint", first]
    command += ["--epochs", "2", "--set=run.threads=1", "--set=training.phase1_supervised.synthetic_augmentations=50"]
    shown = output(capsys, *command, "--out", "runs/both")
    assert "plans for held-out requests: part 1 of" in shown
    assert "judged by the logged outcomes\nPlans: " in shown
    assert "plans changed" in shown or "the same subtasks and links as before" in shown
    summary = RunFolder(Path("runs/both")).summary()
    assert summary is not None
    assert {part: own["answer"] == "better" for part, own in summary["verdict"].items()} == {
        part: own == "new" for part, own in summary["kept"].items()
    }
    before, learned = load_planner(first), load_planner(Path("runs/both"))
    asked = generate(0, 100).instructions[15:20]
    same = [(n.task_type, n.dependencies) for p in before.plans(asked) for n in p.nodes]
    assert summary["kept"]["plans"] == "new" or same == [
        (n.task_type, n.dependencies) for p in learned.plans(asked) for n in p.nodes
    ]
    assert etude("runs", "plot", "runs/both") == 0

    assert etude(*command, "--keep", "always", "--out", "runs/always") == 0
    always = load_planner(Path("runs/always"))
    assert always.workers is not None
    weights = [dict(planner.policy.state_dict()) for planner in (before, always)]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_learning_plans_continues_where_it_was_interrupted(
    logs: Path, dataset: Path, first: Path, capsys: Captured
) -> None:
    assert etude("prepare", "--logs", logs, "--out", "training_data.json") == 0
    inputs = {"dataset": str(dataset), "data": [Path("training_data.json")], "checkpoint": first, "epochs": 1}
    set_ = ["run.threads=1", "training.phase1_supervised.synthetic_augmentations=20"]

    def run(out: str) -> Run:
        return start_run(make_request("workflow", out=Path(out), inputs=dict(inputs), assignments=set_))

    whole = list(run("runs/whole").updates())
    stopped = run("runs/cut").updates()
    for _ in range(len(whole) - 2):  # in the middle of the folds
        next(stopped)
    stopped.close()
    again = run("runs/cut")
    assert again.resumed
    assert len(list(again.updates())) == 2
    assert find_policy(Path("runs/cut")).version == find_policy(Path("runs/whole")).version
    assert again.folder.summary()["verdict"] == RunFolder(Path("runs/whole")).summary()["verdict"]  # type: ignore[index]


def test_a_choice_of_workers_is_judged_on_the_test_split(dataset: Path, first: Path, capsys: Captured) -> None:
    command = ["train", "workflow", "--dataset", dataset, "--checkpoint", first, "--keep", "always", "--out", "runs/w"]
    assert etude(*command) == 0
    found = json_output(capsys, "evaluate", "runs/w", "--dataset", dataset)
    assert found["answer"] in ("better", "not distinguishable", "worse")
    assert set(found["success"]) == {"count", "mean", "ci95"}
    assert "difference in success" in output(capsys, "evaluate", "runs/w", "--dataset", dataset)
