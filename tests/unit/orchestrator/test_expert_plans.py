"""What an instruction asks for, as experts show it, and the training file of the policy that logged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from etude.learning.run_folder import find_policy
from etude.orchestrator.expert_plans import ExpertPlans, find_experts, read_experts
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.examples import Example, Targets
from tests.tiny import etude
from tests.unit.orchestrator.lines import execution, write_log

CATALOGUE = Catalogue(
    task_types=(
        TaskType(name="summarise", description="Write a summary of a text"),
        TaskType(name="count_words", description="Count the words of a text"),
        TaskType(name="translate", description="Translate a text to another language"),
    ),
    workers=(Worker(name="small"), Worker(name="large")),
)


def chain(text: str, *kinds: int) -> Example:
    links = tuple((i - 1,) if i else () for i in range(len(kinds)))
    return Example(instruction=text, targets=Targets(task_types=kinds, dependencies=links))


PLANS = ExpertPlans(
    [chain("Summarise the report and count its words", 0, 1), chain("Translate the letter to French", 2)], CATALOGUE
)


@pytest.mark.parametrize(
    ("instruction", "kinds", "left_out"),
    [
        ("Summarise the report and count its words", (0,), ["count_words"]),
        ("  summarise the REPORT and count its words ", (1,), ["summarise"]),
        ("Summarise the report and count its words", (1, 2, 0), []),
        ("Summarise the minutes and count their words", (0,), ["count_words"]),  # similar, and asks for it in its words
        ("Summarise the report and translate its words", (0,), []),  # similar, but nothing is to be counted
        ("Plot the sales of last year", (0,), []),  # nothing like it is known
    ],
)
def test_what_a_plan_leaves_out(instruction: str, kinds: Sequence[int], left_out: list[str]) -> None:
    assert PLANS.left_out(instruction, kinds) == left_out


def test_experts_are_read_into_the_ids_of_a_log(tmp_path: Path) -> None:
    other = Catalogue(
        task_types=(TaskType(name="plot"), *reversed(CATALOGUE.task_types)), workers=(Worker(name="large"),)
    )
    (tmp_path / "catalogue.json").write_bytes(msgspec.json.encode(other))
    records = [
        {
            "instruction": "one",
            "targets": {"task_types": [3, 2], "dependencies": [[], [0]], "model_selections": [0, 0]},
        },
        {"instruction": "two", "targets": {"task_types": ["plot"], "dependencies": [[]]}},
        {"instruction": "three", "targets": {"task_types": ["summarise"] * 3, "dependencies": [[], [], []]}},
    ]
    file = tmp_path / "experts.json"
    file.write_text(json.dumps(records))
    plans, unusable = read_experts(file, CATALOGUE, max_nodes=2)
    assert [example.targets for example in plans.examples] == [
        Targets(task_types=(0, 1), dependencies=((), (0,)), model_selections=(1, 1))
    ]
    assert unusable == 2  # a task type that the log does not have, and a long one


FAST = {
    "training.phase1_supervised.num_epochs": 1,
    "training.phase1_supervised.final_epochs": 0,
    "training.phase1_supervised.synthetic_augmentations": 0,
    "planner.encoder": "ngrams",
}


def test_the_training_file_of_the_policy_that_logged_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "experts.json"
    (tmp_path / "catalogue.json").write_bytes(msgspec.json.encode(CATALOGUE))
    data.write_text(json.dumps([msgspec.to_builtins(example) for example in PLANS.examples] * 3))
    settings = [part for key, value in FAST.items() for part in ("--set", f"{key}={value}")]
    trained = ("train", "workflow", "--phase", "1", "--data", data, "--out", "runs/p1", "--quiet", *settings)
    assert etude(*trained) == 0
    logs = write_log(tmp_path / "logs", execution(policy=f"{find_policy(Path('runs/p1')).version}+sampled"))
    assert find_experts(logs, Path("runs"), [Path()]) == data
    assert find_experts(logs, Path("nowhere"), [Path()]) is None
    assert find_experts(write_log(tmp_path / "others", execution(policy="rules")), Path("runs"), [Path()]) is None
    data.write_text("[]")  # another file by now
    assert find_experts(logs, Path("runs"), [Path()]) is None
