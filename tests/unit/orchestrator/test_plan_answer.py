"""Answers of language models as plans: what is repaired, and what is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etude.contracts.errors import PlanError
from etude.orchestrator.plan_answer import read_plan
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.plan import Node, Plan

CATALOGUE = Catalogue(
    task_types=tuple(TaskType(name=name) for name in ("read_file", "draft", "review", "send")),
    workers=(
        Worker(name="Careful", usd_per_call=0.05, latency_ms=10.0),
        Worker(name="quick", usd_per_call=0.01, task_types=("read_file", "draft")),
        Worker(name="cheap", usd_per_call=0.001, task_types=("draft", "send"), quota=1),
        Worker(name="gone", available=False),
    ),
)


def node(own: Any, task_type: Any, worker: Any = "Careful", after: Any = ()) -> dict[str, Any]:
    return {"id": own, "task_type": task_type, "worker": worker, "after": after}


def answer(*nodes: Any) -> str:
    return json.dumps({"nodes": nodes})


def read(text: str, *done: str) -> tuple[Plan, dict[str, int]]:
    plan, repairs = read_plan(text, "do it", CATALOGUE, [Node(task_type=name) for name in done])
    return plan, {kind: count for kind, count in repairs.items() if count}


def rows(plan: Plan) -> list[tuple[str, str | None, tuple[int, ...]]]:
    return [(node.task_type, node.worker, node.dependencies) for node in plan.nodes]


VALID = answer(node(1, "read_file", "quick"), node(2, "draft", "cheap", [1]), node(3, "review", "Careful", [1, 2]))


@pytest.mark.parametrize(
    "text",
    [
        VALID,
        f"```json\n{VALID}\n```",
        f"<think>maybe {answer(node(1, 'send'))} or {{so}}</think>Here is the plan:\n{VALID}\nI hope that it helps.",
    ],
)
def test_a_plan_is_found_whatever_is_around_it(text: str) -> None:
    plan, repairs = read(text)
    assert rows(plan) == [("read_file", "quick", ()), ("draft", "cheap", (0,)), ("review", "Careful", (0, 1))]
    assert repairs == {}


@pytest.mark.parametrize("name", ["Read File", "READ_FILE", "read-file", "read_fil", "reads_file"])
def test_a_name_that_can_be_one_alone_is_taken_for_it(name: str) -> None:
    plan, repairs = read(answer(node(1, name, "careful")))
    assert rows(plan) == [("read_file", "Careful", ())]
    assert repairs == {"task_type": 1, "worker": 1}


@pytest.mark.parametrize("worker", ["quick", "gone", "no such worker", None, 7, ""])
def test_a_worker_that_is_not_able_is_replaced_by_the_cheapest_that_is(worker: Any) -> None:
    plan, repairs = read(answer(node(1, "send", worker)))
    assert rows(plan) == [("send", "cheap", ())]
    assert repairs == {"worker": 1}


def test_a_worker_without_calls_left_is_replaced() -> None:
    plan, repairs = read(answer(node(1, "draft", "cheap"), node(2, "draft", "cheap"), node(3, "send", "cheap")))
    assert [node.worker for node in plan.nodes] == ["cheap", "quick", "Careful"]
    assert repairs == {"worker": 2}


def test_nodes_are_put_in_order() -> None:
    plan, repairs = read(answer(node("b", "send", after=["a"]), node("a", "draft", after="c"), node("c", "read_file")))
    assert [(node.task_type, node.dependencies) for node in plan.nodes] == [
        ("read_file", ()),
        ("draft", (0,)),
        ("send", (1,)),
    ]
    assert repairs == {"order": 1}


def test_what_is_there_twice_counts_once() -> None:
    plan, repairs = read(
        answer(node(1, "draft"), node(1, "draft"), node(2, "send", after=[1, "1", 2]), node(3, "draft"))
    )
    assert [(node.task_type, node.dependencies) for node in plan.nodes] == [
        ("draft", ()),
        ("send", (0,)),
        ("draft", ()),
    ]
    assert repairs == {"duplicate": 1, "dependency": 2}


def test_what_is_done_comes_first_and_may_be_depended_on() -> None:
    plan, repairs = read(answer(node(3, "review", after=[1, 4]), node(4, "draft", after=[2])), "read_file", "send")
    assert [node.dependencies for node in plan.nodes] == [(), (), (1,), (0, 2)]
    assert [node.task_type for node in plan.nodes] == ["read_file", "send", "draft", "review"]
    assert repairs == {"order": 1}
    assert [node.task_type for node in read(answer(), "read_file")[0].nodes] == ["read_file"]  # nothing is left to do


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I cannot help with that", "the answer has no JSON object"),
        ('{"nodes": [{"id": 1', "the answer has no JSON object"),
        ("{" * 10_000, "the answer has no JSON object"),
        (answer(), "a plan has no nodes"),
        (answer("draft"), "node 1 is 'draft': expected an object"),
        (answer(node(1, None)), "node 1 has task_type None"),
        (answer(node(1, "dance")), "node 1 is of task type 'dance', which the catalogue does not have"),
        (answer(node(1, "drafft_it")), "did you mean 'draft'"),
        (answer(node(1, "draft"), node(1, "send")), "two nodes have the id 1"),
        (answer(node(1, "draft", after=[5])), "node 1 ('draft') is after '5', which is the id of no node"),
        (answer(node(1, "draft", after=[2]), node(2, "send", after=[1])), "has a cycle: 1 after 2, 2 after 1"),
    ],
)
def test_what_can_be_meant_in_several_ways_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError) as refused:
        read(text)
    assert said in str(refused.value)


def test_a_task_type_that_no_worker_can_do() -> None:
    nothing = Catalogue(task_types=CATALOGUE.task_types, workers=(CATALOGUE.workers[1],))
    with pytest.raises(PlanError, match="no worker can do 'send' now"):
        read_plan(answer(node(1, "send", "quick")), "do it", nothing)
