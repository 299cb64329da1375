"""The document's training file: what is read from it, how each kind of bad record is named, and what is made of few."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import DataError
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.examples import Example, Targets, augment, read_examples, readable, to_examples, to_record
from tests.language import chain

CATALOGUE = Catalogue(
    task_types=(
        TaskType(name="draft_text", description="Write a first version."),
        TaskType(name="review.check", description="Read it critically"),
        TaskType(name="send"),
    ),
    workers=(Worker(name="a"), Worker(name="b")),
)
GOOD: dict[str, Any] = {
    "instruction": "Draft a letter and send it",
    "targets": {"task_types": [0, 2], "dependencies": [[], [0]], "model_selections": [1, 0]},
    "rewards": {"success": 1.0, "latency_ms": 120},
}


def with_targets(**changed: Any) -> dict[str, Any]:
    return {**GOOD, "targets": {**GOOD["targets"], **changed}}


def write(path: Path, records: Any) -> Path:
    file = path / "train.json"
    file.write_text(json.dumps(records))
    return file


def read(file: Path, max_nodes: int = 4) -> list[Example]:
    return read_examples(file, CATALOGUE, max_nodes=max_nodes)


def test_the_document_s_format(tmp_path: Path) -> None:
    few = {"instruction": "Send it", "targets": {"task_types": [2], "dependencies": [[]]}}
    first, second = read(write(tmp_path, [GOOD, few]))
    assert first.instruction == "Draft a letter and send it"
    assert first.targets == Targets(task_types=(0, 2), dependencies=((), (0,)), model_selections=(1, 0))
    assert first.rewards == {"success": 1.0, "latency_ms": 120.0}
    assert second == Example(instruction="Send it", targets=Targets(task_types=(2,), dependencies=((),)))


def test_names_may_stand_for_ids(tmp_path: Path) -> None:
    named = with_targets(task_types=["draft_text", 2], model_selections=["b", "a"])
    assert read(write(tmp_path, [named])) == read(write(tmp_path, [GOOD]))
    (example,) = read(write(tmp_path, [GOOD]))
    record = to_record(example, CATALOGUE)
    assert record["targets"]["task_types"] == ["draft_text", "send"]
    assert read(write(tmp_path, [record])) == [example]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task_types": ["draft_txt", "send"]}, "node 0: the task type 'draft_txt' .*: did you mean 'draft_text'"),
        (
            {"task_types": ["send", "fly"]},
            "node 1: the task type 'fly' .*: its names are draft_text, review.check, send",
        ),
        ({"model_selections": ["a", "c"]}, "node 1: the worker 'c' is not in the catalogue: its names are a, b"),
        ({"task_types": [["send"]]}, "Expected `int`"),
    ],
)
def test_an_unknown_name_is_reported(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"train.json, record 1.*{said}"):
        read(write(tmp_path, [GOOD, with_targets(**changed)]))


def test_records_of_another_source_are_checked_alike(tmp_path: Path) -> None:
    assert to_examples([GOOD], CATALOGUE, max_nodes=4, source="experts") == read(write(tmp_path, [GOOD]))
    with pytest.raises(DataError, match=r"^experts, record 1: task type 3 does not exist"):
        to_examples([GOOD, with_targets(task_types=[0, 3])], CATALOGUE, max_nodes=4, source="experts")


BAD: dict[str, tuple[Any, str]] = {
    "cycle": (with_targets(dependencies=[[1], [0]]), "cycle"),
    "self-loop": (with_targets(dependencies=[[], [1]]), "cycle"),
    "unknown task type": (with_targets(task_types=[0, 3]), "task type 3 does not exist: ids go from 0 to 2"),
    "negative task type": (with_targets(task_types=[-1, 2]), "task type -1 does not exist"),
    "enormous task type": (with_targets(task_types=[0, 10**30]), "10{30}|out of range|int"),
    "task type of NaN": (with_targets(task_types=[0, float("nan")]), r"int.*task_types\[1\]"),
    "task type of true": (with_targets(task_types=[0, True]), r"int.*task_types\[1\]"),
    "unknown dependency": (with_targets(dependencies=[[], [2]]), "node 1 depends on node 2 does not exist"),
    "negative dependency": (with_targets(dependencies=[[], [-1]]), "node 1 depends on node -1 does not exist"),
    "unknown worker": (with_targets(model_selections=[0, 2]), "worker 2 does not exist: ids go from 0 to 1"),
    "negative worker": (with_targets(model_selections=[-2, 0]), "worker -2 does not exist"),
    "too few dependencies": (with_targets(dependencies=[[]]), "2 task types, but dependencies for 1 nodes"),
    "too many workers": (with_targets(model_selections=[0, 0, 0]), "2 task types, but 3 model selections"),
    "no nodes": (with_targets(task_types=[], dependencies=[], model_selections=None), "has 0 nodes, expected 1 to 4"),
    "too many nodes": (with_targets(task_types=[0] * 5, dependencies=[[]] * 5), r"5 nodes.*1 to 4.*limits.max_nodes"),
    "empty instruction": ({**GOOD, "instruction": " \n"}, "the instruction is empty"),
    "no instruction": ({"targets": GOOD["targets"]}, "`instruction`"),
    "no targets": ({"instruction": "x"}, "`targets`"),
    "instruction of another type": ({**GOOD, "instruction": 3}, r"str.*instruction"),
    "unknown key": ({**GOOD, "instructoin": "x"}, "instructoin"),
    "unknown target": (with_targets(workers=[0, 1]), "workers"),
    "NaN reward": ({**GOOD, "rewards": {"success": float("nan")}}, "reward 'success' is nan"),
    "infinite reward": ({**GOOD, "rewards": {"speed": float("-inf")}}, "reward 'speed' is -inf"),
    "no object": ([0, 2], "object"),
    "null": (None, "object"),
}


@pytest.mark.parametrize(("record", "said"), BAD.values(), ids=BAD)
def test_a_bad_record_refuses_the_file_and_is_named_by_its_number(tmp_path: Path, record: Any, said: str) -> None:
    file = write(tmp_path, [GOOD, GOOD, record, GOOD])
    with pytest.raises(DataError, match=said) as refused:
        read(file)
    assert str(refused.value).startswith(f"{file}, record 2: ")


def test_a_catalogue_without_entries_has_no_ids(tmp_path: Path) -> None:
    file = write(tmp_path, [GOOD])
    alone = Catalogue(task_types=CATALOGUE.task_types)
    with pytest.raises(DataError, match="record 0: worker 1 does not exist: there are none"):
        read_examples(file, alone, max_nodes=4)
    with pytest.raises(DataError, match="record 0: task type 0 does not exist: there are none"):
        read_examples(file, Catalogue(task_types=()), max_nodes=4)


def test_an_enormous_reward_is_named_too(tmp_path: Path) -> None:
    file = tmp_path / "train.json"
    file.write_text(json.dumps([GOOD]).replace("120}", "1" + "0" * 400 + "}"))
    with pytest.raises(DataError, match="record 0"):
        read(file)


def test_only_as_many_nodes_as_the_limit(tmp_path: Path) -> None:
    file = write(tmp_path, [with_targets(task_types=[0] * 3, dependencies=[[]] * 3, model_selections=None)])
    assert len(read(file, max_nodes=3)) == 1
    with pytest.raises(DataError, match="3 nodes"):
        read(file, max_nodes=2)


NOT_A_LIST = {
    "binary": bytes(range(256)),
    "empty": b"",
    "cut off": json.dumps([GOOD]).encode()[:-3],
    "deeply nested": b"[" * 200_000,
    "deeply nested, closed": b"[" * 200_000 + b"]" * 200_000,
    "an object": json.dumps({"examples": [GOOD]}).encode(),
    "a number": b"3",
    "no records": b"[]",
    "an enormous number": b"[" + b"9" * 10_000 + b"]",
    "one record a line": json.dumps(GOOD).encode() * 2,
}


@pytest.mark.parametrize("content", NOT_A_LIST.values(), ids=NOT_A_LIST)
def test_what_is_no_list_of_records_is_refused_by_its_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "train.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match="expected a list of examples") as refused:
        read(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert len(str(refused.value)) < 500 + len(str(file))


def test_nested_within_a_record_it_is_refused_too(tmp_path: Path) -> None:
    file = tmp_path / "train.json"
    deep = "[" * 500 + "]" * 500
    file.write_text(json.dumps([GOOD]).replace("[[], [0]]", deep))
    with pytest.raises(DataError, match="record 0"):
        read(file)


def test_a_folder_or_nothing_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Is a directory"):
        read(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "none.json")


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """A plan whose nodes stand in any order: task types, and dependencies that may point anywhere without a cycle."""
    count = draw(st.integers(1, 6))
    order = draw(st.permutations(range(count)))
    needs: list[list[int]] = [[] for _ in range(count)]
    for place, node in enumerate(order):
        needs[node] = draw(st.lists(st.sampled_from(order[:place]), max_size=4)) if place else []
    return draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), needs


@given(shuffled())
def test_put_in_order_a_plan_means_the_same(
    tmp_path_factory: pytest.TempPathFactory, plan: tuple[list[int], list[list[int]]]
) -> None:
    task_types, needs = plan
    count = len(task_types)
    # Two ids tell six nodes apart by their (type, worker), as far as ids can.
    record = with_targets(task_types=task_types, dependencies=needs, model_selections=[i % 2 for i in range(count)])
    file = tmp_path_factory.getbasetemp() / "shuffled.json"
    file.write_text(json.dumps([record]))
    (example,) = read(file, max_nodes=6)
    t = example.targets
    assert t.model_selections is not None
    assert all(j < i for i, earlier in enumerate(t.dependencies) for j in earlier)
    assert all(list(earlier) == sorted(set(earlier)) for earlier in t.dependencies)

    def described(kinds: list[tuple[int, int]], needs: list[list[int]]) -> Counter[Any]:
        """Every node with everything below it, without numbers."""

        def below(i: int) -> Any:
            return (kinds[i], tuple(sorted(map(repr, map(below, set(needs[i]))))))

        return Counter(repr(below(i)) for i in range(len(kinds)))

    before = described([(kind, i % 2) for i, kind in enumerate(task_types)], needs)
    after = described(list(zip(t.task_types, t.model_selections, strict=True)), [list(e) for e in t.dependencies])
    assert before == after


def test_a_plan_in_order_stays_as_it_is(tmp_path: Path) -> None:
    record = with_targets(task_types=[2, 0, 1], dependencies=[[], [], [1, 0]], model_selections=[0, 1, 0])
    (example,) = read(write(tmp_path, [record]))
    assert example.targets == Targets(task_types=(2, 0, 1), dependencies=((), (), (0, 1)), model_selections=(0, 1, 0))


EXAMPLES = [
    chain("one", [0, 1]),
    chain("two", [0], [1]),
    *(chain(f"{i}", [0, 0]) for i in range(20)),
    chain("rare", [2]),
]


def test_made_examples_have_plans_of_known_ones_and_instructions_of_the_catalogue() -> None:
    made = augment(EXAMPLES, CATALOGUE, 200, random.Random(0))
    assert len(made) == 200
    known = {id(example.targets) for example in EXAMPLES}
    assert all(id(example.targets) in known for example in made)
    words = (("draft text", "write a first version"), ("review check", "read it critically"), ("send",))
    for example in made:
        at = 0
        for kind in example.targets.task_types:
            found = [place for word in words[kind] if (place := example.instruction.find(word, at)) >= 0]
            assert found, (example.instruction, kind)
            at = min(found) + 1
    assert all(any(word in example.instruction for example in made) for kind in words for word in kind)
    assert len({example.instruction for example in made}) > 50


def test_plans_with_rare_task_types_come_more_often() -> None:
    made = augment(EXAMPLES, CATALOGUE, 500, random.Random(0))
    rare = sum(example.targets.task_types == (2,) for example in made)
    assert rare / 500 > 3 / len(EXAMPLES)


def test_the_same_seed_makes_the_same_examples() -> None:
    def made(seed: int) -> list[Example]:
        return augment(EXAMPLES, CATALOGUE, 20, random.Random(seed))

    assert made(3) == made(3)
    assert made(3) != made(4)


@pytest.mark.parametrize(("examples", "count"), [([], 5), (EXAMPLES, 0), (EXAMPLES, -1)])
def test_of_nothing_or_no_times_nothing_is_made(examples: list[Example], count: int) -> None:
    assert augment(examples, CATALOGUE, count, random.Random(0)) == []


def test_a_readable_name() -> None:
    assert readable("send_e-mail") == "send e-mail"
    assert readable("Flights.Search_") == "Flights Search"
