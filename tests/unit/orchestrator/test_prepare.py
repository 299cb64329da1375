"""From logs to a training file: which plan is learned from, in which form, and why the others are not."""

from __future__ import annotations

import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.errors import DataError, LogError
from etude.orchestrator.expert_plans import ExpertPlans
from etude.orchestrator.labels import Label, append_label
from etude.orchestrator.log import to_line
from etude.orchestrator.prepare import Prepared, Reason, prepare, write_prepared
from etude.orchestrator.record import Execution, NodeRecord
from etude.problems.catalogue import Catalogue, TaskType, read_catalogue
from etude.problems.workflow.examples import Example, Targets, read_examples
from tests.unit.orchestrator.lines import CATALOGUE, DOCUMENT, attempt, execution, executions, node, numbered, write_log

BETTER = Reason.BETTER_EXISTS.value


def prepared(folder: Path, *lines: Execution | dict[str, Any] | bytes, max_nodes: int | None = None) -> Prepared:
    return prepare(write_log(folder, *lines), max_nodes=max_nodes)


def only(made: Prepared) -> Example:
    (example,) = made.examples
    return example


def test_a_success_becomes_an_example_in_the_document_s_format(tmp_path: Path) -> None:
    made = prepared(tmp_path, execution(" Draft it\n", cost=0.045, latency_ms=1200.0))
    assert only(made) == Example(
        instruction="Draft it",
        targets=Targets(task_types=(0, 2), dependencies=((), (0,)), model_selections=(0, 0)),
        rewards={"success": 1.0, "cost": -0.045, "latency": -1.2},
    )
    assert (made.read, made.dropped, made.places, made.catalogue) == (1, {}, {}, CATALOGUE)


def test_the_plan_is_what_was_done_in_the_end(tmp_path: Path) -> None:
    nodes = (
        node(0, status="dropped"),
        node(1, status="skipped"),
        node(2, 1, 3, 4, attempts=(attempt(0, "timeout"), attempt(1)), worker=0),  # switched to another worker
        node(0, worker=1, attempts=()),
        node(1, 3),  # a repair, inserted before what failed
        node(1, 2, status="planned"),
    )
    targets = only(prepared(tmp_path, execution(nodes=nodes))).targets
    assert targets.task_types == (0, 1, 2)
    assert targets.dependencies == ((), (0,), (0, 1))
    assert targets.model_selections == (1, 0, 1)


def test_the_best_outcome_of_an_instruction_is_kept(tmp_path: Path) -> None:
    lines = [
        execution("two", reward=1.0, cost=0.1),
        execution("one", success=False, reward=99.0),
        execution("two ", reward=3.0, cost=0.3),
        execution("one", reward=-5.0),
        execution("two", reward=2.0, cost=0.2),
        execution("two", reward=3.0, cost=0.4),
        execution("two", success=False, reward=9.0),
        execution("three"),
    ]
    made = prepared(tmp_path, *lines)
    assert [example.instruction for example in made.examples] == ["two", "one", "three"]
    assert made.examples[0].rewards == {"success": 1.0, "cost": -0.3, "latency": -0.2}
    assert made.dropped == {BETTER: 5}
    assert [place.rpartition(":")[2] for place in made.places[BETTER]] == ["1", "5", "6"]


UNKNOWN_WORKER = (node(0, attempts=(attempt(2),)),)
DROPPED: dict[str, tuple[Reason, Any]] = {
    "torn": (Reason.TORN, to_line(execution())[:50]),
    "damaged": (Reason.DAMAGED, b"{}\n"),
    "cancelled": (Reason.CANCELLED, execution(success=False, ended="cancelled")),
    "failed": (Reason.NOT_SUCCESSFUL, execution(success=False)),
    "nobody asked": (Reason.NO_INSTRUCTION, execution(" \n")),
    "no plan": (Reason.NOTHING_DONE, execution(planner_outputs=None, nodes=())),
    "none done": (Reason.NOTHING_DONE, execution(nodes=(node(0, status="failed"), node(1, status="skipped")))),
    "large": (Reason.TOO_MANY_NODES, execution(nodes=tuple(node(0) for _ in range(4)))),
    "the document's line": (Reason.NO_TASK_TYPES, DOCUMENT),
    "unknown task type": (Reason.ANOTHER_CATALOGUE, execution(nodes=(node(3),))),
    "negative task type": (Reason.ANOTHER_CATALOGUE, execution(nodes=(node(-1),))),
    "unknown worker": (Reason.ANOTHER_CATALOGUE, execution(nodes=UNKNOWN_WORKER)),
    "no worker": (Reason.ANOTHER_CATALOGUE, execution(nodes=(node(0, worker=None, attempts=()),))),
    "cycle": (Reason.DAMAGED, execution(nodes=(node(0, 1), node(1, 0)))),
    "self-loop": (Reason.DAMAGED, execution(nodes=(node(0, 0),))),
}


@pytest.mark.parametrize("name", DROPPED)
def test_what_is_not_learned_from_is_counted_and_located(name: str, tmp_path: Path) -> None:
    reason, line = DROPPED[name]
    made = prepared(tmp_path, execution("another"), line, max_nodes=3)
    assert [example.instruction for example in made.examples] == ["another"]
    assert made.dropped == {reason.value: 1}
    (place,) = made.places[reason.value]
    assert re.match(re.escape(f"{tmp_path}/executions.jsonl:2") + r"( \(.+\))?$", place)
    assert ("(" in place) == (reason in (Reason.TORN, Reason.DAMAGED))


def test_a_few_places_are_reported_of_each_reason(tmp_path: Path) -> None:
    made = prepared(tmp_path, *[execution(success=False)] * 5, *[execution("two", success=False)] * 5, *[b"x\n"] * 5)
    assert made.dropped == {"not successful": 10, "damaged line": 5}
    assert [place.rpartition(":")[2] for place in made.places["not successful"]] == ["1", "2", "3"]
    assert len(made.places["damaged line"]) == 3


def test_a_better_plan_that_cannot_be_used_gives_way(tmp_path: Path) -> None:
    large = execution(nodes=tuple(node(0) for _ in range(4)), reward=9.0)
    made = prepared(tmp_path, execution(reward=1.0), large, max_nodes=3)
    assert only(made).targets.task_types == (0, 2)
    assert made.dropped == {Reason.TOO_MANY_NODES.value: 1}
    assert len(only(prepared(tmp_path, execution(reward=1.0), large)).targets.task_types) == 4


def test_the_document_s_lines_with_task_types_are_learned_from(tmp_path: Path) -> None:
    plan = {**DOCUMENT["planner_outputs"], "task_types": [2, 0, 1]}
    backwards = {**plan, "workflow_graph": {"adjacency": [[0, 0, 0], [1, 0, 0], [1, 0, 0]]}}
    slow = {**DOCUMENT, "planner_outputs": plan, "latency_ms": 9000.0}
    lines = (slow, {**DOCUMENT, "planner_outputs": backwards})
    assert prepared(tmp_path, *lines).dropped == {BETTER: 1, Reason.SELF_DECLARED.value: 1}  # who said so is unknown
    made = prepare(write_log(tmp_path, *lines), trust_self_declared=True)
    assert only(made).targets == Targets(
        task_types=(0, 1, 2), dependencies=((), (), (0, 1)), model_selections=(0, 1, 1)
    )
    assert made.dropped == {BETTER: 1}


@pytest.mark.parametrize(
    "changed", [{"task_types": [0]}, {"model_selections": [0]}, {"workflow_graph": {"adjacency": [[0, 1, 0]]}}]
)
def test_a_plan_whose_parts_differ_in_size_is_damaged(changed: dict[str, Any], tmp_path: Path) -> None:
    plan = {**DOCUMENT["planner_outputs"], "task_types": [2, 0, 1], **changed}
    assert prepared(tmp_path, {**DOCUMENT, "planner_outputs": plan}).dropped == {"damaged line": 1}


def test_a_catalogue_without_workers(tmp_path: Path) -> None:
    folder = write_log(tmp_path, execution(nodes=(node(0, worker=None, attempts=()),)), execution("two"))
    catalogue = Catalogue(task_types=CATALOGUE.task_types)
    (folder / "catalogue.json").write_bytes(msgspec.json.encode(catalogue))
    made = prepare(folder)
    assert only(made).targets.model_selections is None
    assert made.dropped == {"another catalogue": 1}
    write_prepared(made, tmp_path / "train.json")
    assert read_examples(tmp_path / "train.json", catalogue, max_nodes=1) == made.examples


def test_logs_without_catalogue_or_lines(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"catalogue.json: does not exist"):
        prepare(tmp_path)
    write_log(tmp_path)
    with pytest.raises(LogError, match=r"does not exist: expected a folder"):
        prepare(tmp_path / "missing.jsonl")
    assert prepare(tmp_path).examples == []


OWN: dict[str, Any] = {"success_by": "self"}
SHORT = (node(0),)
"""Nodes of a plan that leaves out the second subtask."""
EXPERTS = ExpertPlans(
    [
        Example(
            instruction="Draft it and send it",
            targets=Targets(task_types=(0, 2), dependencies=((), (0,)), model_selections=(1, 1)),
        )
    ],
    CATALOGUE,
)


def test_a_self_declared_success_does_not_teach_subtasks(tmp_path: Path) -> None:
    logs = write_log(tmp_path, execution(nodes=SHORT, reward=9.0, **OWN), execution(reward=8.0, **OWN))
    made = prepare(logs)
    assert (made.examples, made.dropped) == ([], {Reason.SELF_DECLARED.value: 2})
    made = prepare(logs, experts=EXPERTS)
    assert only(made).targets == Targets(task_types=(0, 2), dependencies=((), (0,)), model_selections=(0, 0))
    assert (made.self_declared, made.experts) == (1, [])
    assert made.dropped == {Reason.LEAVES_OUT.value: 1}
    assert made.places[Reason.LEAVES_OUT.value] == [f"{tmp_path}/executions.jsonl:1 (send)"]
    left_out, replaced = made.changes
    assert (left_out.before.task_types, left_out.after) == ((0,), only(made).targets)
    assert (replaced.before, replaced.after) == (EXPERTS.examples[0].targets, only(made).targets)


@pytest.mark.parametrize("success_by", ["verifier", "judge", "person"])
def test_who_vouches_for_a_plan_vouches_for_others_with_its_subtasks(success_by: Any, tmp_path: Path) -> None:
    by_large = (node(0, attempts=(attempt(1),)), node(2, 0, attempts=(attempt(1),)))
    vouched = execution(success_by=success_by, reward=1.0)
    lines = [vouched, execution(nodes=by_large, reward=5.0, **OWN), execution(nodes=SHORT, reward=9.0, **OWN)]
    made = prepared(tmp_path, *lines)
    assert only(made).targets == Targets(task_types=(0, 2), dependencies=((), (0,)), model_selections=(1, 1))
    assert made.dropped == {BETTER: 1, Reason.SELF_DECLARED.value: 1}


def test_a_dependency_comes_from_who_is_vouched_for(tmp_path: Path) -> None:
    unlinked = execution(nodes=(node(2), node(0)), reward=9.0, **OWN)  # sends before there is a draft
    assert only(prepare(write_log(tmp_path, unlinked), experts=EXPERTS)).targets.dependencies == ((), (0,))


def test_what_leaves_something_out_is_dropped_unless_a_person_says_yes(tmp_path: Path) -> None:
    short = execution(nodes=SHORT)
    logs = write_log(tmp_path, short)
    assert prepare(logs, experts=EXPERTS).dropped == {Reason.LEAVES_OUT.value: 1}
    append_label(logs / "labels.jsonl", Label(id=short.id, success=True, time="t"))
    made = prepare(logs, experts=EXPERTS)
    assert (only(made).targets.task_types, made.labelled) == ((0,), 1)


def test_labels_override_what_was_logged(tmp_path: Path) -> None:
    lines = [execution("one", id="a", **OWN), execution("two", id="b"), execution("three", id="c", success=False)]
    logs = write_log(tmp_path, *lines)
    for id, success in (("a", True), ("b", False), ("c", True), ("elsewhere", True)):
        append_label(logs / "labels.jsonl", Label(id=id, success=success, time="t"))
    made = prepare(logs)
    assert [example.instruction for example in made.examples] == ["one", "three"]
    assert (made.labelled, made.dropped) == (3, {Reason.NOT_SUCCESSFUL.value: 1})
    (warning,) = made.warnings
    assert "1 of 4 labels are of executions that are not in the log, such as 'elsewhere'" in warning
    assert prepare(logs / "executions.jsonl").warnings == []  # they may be of another log of this folder
    (logs / "executions.jsonl").write_bytes(to_line(execution(id="z")))
    with pytest.raises(LogError, match=r"labels.jsonl: belongs to other logs"):
        prepare(logs)


def test_experts_without_an_execution_are_mixed_in(tmp_path: Path) -> None:
    made = prepare(write_log(tmp_path, execution("Review it", nodes=(node(1),))), experts=EXPERTS)
    assert (only(made).instruction, made.experts) == ("Review it", EXPERTS.examples)
    write_prepared(made, tmp_path / "train.json")
    written = read_examples(tmp_path / "train.json", CATALOGUE, max_nodes=2)
    assert [example.instruction for example in written] == ["Review it", "Draft it and send it"]


def test_a_verifier_that_always_says_yes_is_reported(tmp_path: Path) -> None:
    lines = numbered(30)
    (warning,) = prepared(tmp_path, *lines).warnings
    assert warning.startswith("the verifier said yes to all 30 executions: one that never says no explains nothing")
    lines[3] = execution("other", nodes=(node(0), node(2, 0, status="skipped")))
    (warning,) = prepared(tmp_path, *lines).warnings
    assert "all 30 executions, also to 1 in which a subtask was not done" in warning
    assert prepared(tmp_path, *lines[:29]).warnings == []  # too few to say
    assert prepared(tmp_path, *lines, execution(success=False)).warnings == []


@st.composite
def successes(draw: st.DrawFn) -> Execution:
    """A DAG of done nodes and others, in any order."""
    count = draw(st.integers(1, 6))
    order = draw(st.permutations(range(count)))
    nodes: list[NodeRecord] = []
    for i in range(count):
        earlier = [j for j in range(count) if order[j] < order[i]]
        chosen = draw(st.lists(st.sampled_from(earlier), max_size=3)) if earlier else []
        status = draw(st.sampled_from(["done", "done", "failed", "dropped"]))
        nodes.append(node(draw(st.integers(0, 2)), *chosen, status=status, attempts=(), worker=draw(st.integers(0, 1))))
    reward = draw(st.floats(-10, 10))
    return execution(draw(st.sampled_from(["a", "b", "c"])), nodes=tuple(nodes), reward=reward)


@given(st.lists(successes() | executions, max_size=8))
@settings(max_examples=50, deadline=None)
def test_every_line_is_kept_or_counted_and_the_file_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Execution]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    made = prepared(folder, *lines)
    assert len(made.examples) + sum(made.dropped.values()) == made.read == len(lines)
    assert len({example.instruction for example in made.examples}) == len(made.examples)
    if made.examples:
        write_prepared(made, folder / "train.json")
        assert read_examples(folder / "train.json", CATALOGUE, max_nodes=6) == made.examples


@given(successes())
@settings(max_examples=50, deadline=None)
def test_a_plan_has_the_nodes_that_were_done_and_the_links_between_them(
    tmp_path_factory: pytest.TempPathFactory, one: Execution
) -> None:
    made = prepared(tmp_path_factory.mktemp("log"), one)
    done = {i: n for i, n in enumerate(one.nodes) if n.status == "done"}
    if not done:
        assert made.dropped == {"nothing done": 1}
        return
    t = only(made).targets
    named = list(zip(t.task_types, t.model_selections or (), strict=True))
    assert sorted(named) == sorted((n.task_type, n.worker) for n in done.values())
    links = [(named[j], named[i]) for i, earlier in enumerate(t.dependencies) for j in earlier]
    wanted = [(done[j], n) for n in done.values() for j in set(n.dependencies) if j in done]
    assert sorted(links) == sorted(((a.task_type, a.worker), (b.task_type, b.worker)) for a, b in wanted)
    assert all(j < i for i, earlier in enumerate(t.dependencies) for j in earlier)


def test_examples_do_not_depend_on_how_lines_are_spread_over_files(tmp_path: Path) -> None:
    lines = numbered(20)
    random.Random(0).shuffle(lines)
    whole = prepared(tmp_path / "one", *lines)
    write_log(tmp_path / "two", *lines[:7], name="a.jsonl")
    write_log(tmp_path / "two", *lines[7:], name="b.jsonl")
    assert prepare(tmp_path / "two").examples == whole.examples
    assert [example.instruction for example in whole.examples] == [line.instruction for line in lines]
    assert prepare(tmp_path / "one" / "executions.jsonl") == whole


def test_memory_holds_one_plan_an_instruction_and_no_outputs(tmp_path: Path) -> None:
    bulky = msgspec.structs.replace(execution().execution_result, outputs={"0": "x" * 20_000})
    lines = [to_line(execution(f"{i % 5}", reward=float(i), execution_result=bulky)) for i in range(1_000)]
    write_log(tmp_path, b"".join(lines))
    heard: list[int] = []
    tracemalloc.start()
    try:
        made = prepare(tmp_path, progress=heard.append)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000  # of 20 MB of log
    finally:
        tracemalloc.stop()
    assert len(made.examples) == 5
    assert sum(heard) == sum(map(len, lines))


def test_the_file_and_its_catalogue_are_written(tmp_path: Path) -> None:
    made = prepared(tmp_path / "logs", *numbered(3))
    out = tmp_path / "data" / "training_data.json"
    write_prepared(made, out)
    write_prepared(made, out)
    assert read_examples(out, read_catalogue(out.parent / "catalogue.json"), max_nodes=2) == made.examples
    assert sorted(file.name for file in out.parent.iterdir()) == ["catalogue.json", "training_data.json"]
    assert msgspec.json.decode(out.read_bytes())[0] == {
        "instruction": "instruction 0",
        "targets": {"task_types": ["draft", "send"], "dependencies": [[], [0]], "model_selections": ["small", "small"]},
        "rewards": {"success": 1.0, "cost": -0.02, "latency": -0.2},
    }
    write_prepared(made, out, ids=True)
    assert read_examples(out, CATALOGUE, max_nodes=2) == made.examples
    targets = {"task_types": [0, 2], "dependencies": [[], [0]], "model_selections": [0, 0]}
    assert msgspec.json.decode(out.read_bytes())[0]["targets"] == targets


def test_a_catalogue_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    made = prepared(tmp_path / "logs", *numbered(1))
    own = tmp_path / "catalogue.json"
    same = msgspec.json.encode(CATALOGUE.updated("small", usd_per_call=7.0))
    own.write_bytes(same)
    write_prepared(made, tmp_path / "train.json")
    assert own.read_bytes() == same
    for other in (msgspec.json.encode(CATALOGUE.added(TaskType(name="file"))), b"{"):
        own.write_bytes(other)
        with pytest.raises(DataError, match=r"catalogue.json: .*another folder, or move this one away"):
            write_prepared(made, tmp_path / "other.json")
        assert own.read_bytes() == other
        assert not (tmp_path / "other.json").exists()


def test_what_cannot_be_written(tmp_path: Path) -> None:
    made = prepared(tmp_path / "logs", *numbered(1))
    with pytest.raises(DataError, match="choose another"):
        write_prepared(made, tmp_path / "catalogue.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(DataError, match=r"/folder.json: is not written \(Is a directory\): choose"):
        write_prepared(made, tmp_path / "folder.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is not written"):
        write_prepared(made, tmp_path / "file" / "train.json")
    nothing = prepared(tmp_path / "none", execution(success=False))
    with pytest.raises(DataError, match=r"nothing is left of 1 executions: .*train.json is not written"):
        write_prepared(nothing, tmp_path / "train.json")
    assert {file.name for file in tmp_path.iterdir()} == {"logs", "none", "file", "folder.json", "catalogue.json"}
