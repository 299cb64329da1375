"""Plans to be looked at: which, and what a run's plans.json keeps of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from etude.contracts.errors import RunError
from etude.learning.run_folder import RunFolder
from etude.problems.workflow.plan import Node, Plan
from etude.problems.workflow.showcase import (
    MAX_INSTRUCTIONS,
    PLANS,
    Shown,
    read_plans,
    side_by_side,
    various,
    write_plans,
)


def plan(said: str, nodes: int, kind: str = "mail") -> Plan:
    """A chain."""
    chain = (Node(task_type=kind, dependencies=(i - 1,) if i else (), worker="quick") for i in range(nodes))
    return Plan(instruction=said, nodes=tuple(chain))


def plans(lengths: Sequence[int]) -> list[Plan]:
    return [plan(f"instruction {i}", length) for i, length in enumerate(lengths)]


def test_plans_of_every_length_are_chosen_the_longer_ones_before_those_of_one_node() -> None:
    lengths = [1] * 30 + [2] * 30 + [5, 3, 3, 3]
    chosen = various(plans(lengths))
    assert len(chosen) == MAX_INSTRUCTIONS == 12
    assert [lengths[i] for i in chosen] == [2, 5, 3, 1, 2, 3, 1, 2, 3, 1, 2, 1]
    assert chosen[:4] == [30, 60, 61, 0]  # the first of each length


def test_of_few_plans_all_are_chosen_and_the_same_instruction_once() -> None:
    assert various([]) == []
    assert various(plans([1, 1, 2])) == [2, 0, 1]
    assert various([plan("same", 2), plan("same", 2), plan("other", 2)]) == [0, 2]
    assert various(plans([2] * 9), most=3) == [0, 1, 2]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_plans(folder) == []
    odd = "总结 <script>\udcff\x00"
    shown = side_by_side({"z": [plan(odd, 1), plan("b", 2)], "a": [plan(odd, 3, odd), plan("b", 1)]})
    assert [entry.instruction for entry in shown] == [odd, "b"]
    write_plans(folder, shown)
    assert read_plans(folder) == shown
    assert [list(entry.plans) for entry in read_plans(folder)] == [["z", "a"]] * 2  # in the order given
    result = json.loads((folder.path / PLANS).read_text())
    node = {"task_type": "mail", "dependencies": [], "worker": "quick"}
    assert result[1]["plans"]["a"] == {"instruction": "b", "nodes": [node]}


def test_no_more_are_kept_than_are_shown(tmp_path: Path) -> None:
    write_plans(RunFolder(tmp_path), [Shown(instruction="x", plans={"best": plan("x", 1)})] * 20)
    assert len(read_plans(RunFolder(tmp_path))) == MAX_INSTRUCTIONS


def test_planners_need_a_plan_each_for_every_instruction() -> None:
    with pytest.raises(ValueError, match="shorter"):
        side_by_side({"one": plans([1, 2]), "two": plans([1])})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Expecting"),
        ('{"instruction": "x"}', "Expected `array`"),
        ('[{"instruction": "x"}]', "plans"),
        ('[{"instruction": "x", "plans": {}}]', "no plans"),
        ('[{"instruction": "x", "plans": {"best": {"instruction": "x", "nodes": []}}}]', "no nodes"),
        ('[{"instruction": "x", "plans": {"best": {"instruction": "x", "nodes": [{"type": "y"}]}}}]', "type"),
        (b"\xff\xff", "can't decode"),
    ],
)
def test_a_file_that_holds_no_plans_is_named(tmp_path: Path, content: str | bytes, message: str) -> None:
    folder = RunFolder(tmp_path)
    (folder.path / PLANS).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RunError, match=r"plans\.json: not a list of plans .*delete it") as raised:
        read_plans(folder)
    assert message in str(raised.value)
