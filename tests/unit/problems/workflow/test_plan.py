"""A plan is a DAG by construction, and holds against a catalogue and limits or says which node does not."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.errors import PlanError
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.plan import Limits, Node, Plan, topological_order

CATALOGUE = Catalogue(
    task_types=(TaskType(name="write"), TaskType(name="check")),
    workers=(
        Worker(name="model", usd_per_call=0.1, latency_ms=0.1),
        Worker(name="tool", task_types=("check",), usd_per_call=1.0, latency_ms=5.0, quota=2),
        Worker(name="away", available=False),
    ),
)


def plan(*nodes: tuple[str, tuple[int, ...], str | None]) -> Plan:
    made = tuple(Node(task_type=t, dependencies=needs, worker=worker) for t, needs, worker in nodes)
    return Plan(instruction="do it", nodes=made)


def test_links_go_from_what_is_needed_to_what_needs_it() -> None:
    diamond = plan(("write", (), None), ("check", (0,), None), ("write", (0,), None), ("check", (1, 2), None))
    assert diamond.links == [("write", "check"), ("write", "write"), ("check", "check"), ("write", "check")]


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ([[0]], r"node 0 \('write'\) depends on 0, expected nothing: it is the first"),
        ([[], [1]], r"node 1 \('write'\) depends on 1, expected an earlier node: 0 to 0"),
        ([[], [0], [3], []], r"node 2 \('write'\) depends on 3, expected an earlier node: 0 to 1"),
        ([[], [-1]], r"node 1 \('write'\) depends on -1"),
        ([[], [0, 0]], r"node 1 \('write'\) names a dependency twice: \[0, 0\]"),
    ],
)
def test_what_is_no_dag_in_order_is_refused(needs: list[list[int]], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(*(("write", tuple(need), None) for need in needs))


def test_a_plan_has_a_node() -> None:
    with pytest.raises(PlanError, match=r"a plan has no nodes: it needs at least one"):
        plan()


def test_a_plan_from_outside_is_checked_as_well() -> None:
    good = plan(("write", (), "model"), ("check", (0,), "tool"))
    assert msgspec.json.decode(msgspec.json.encode(good), type=Plan) == good
    cyclic = json.dumps({"instruction": "", "nodes": [{"task_type": "a", "dependencies": [1]}, {"task_type": "b"}]})
    with pytest.raises(PlanError, match=r"node 0 \('a'\) depends on 1"):
        msgspec.json.decode(cyclic, type=Plan)
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `needs`"):
        msgspec.json.decode('{"instruction": "", "nodes": [{"task_type": "a", "needs": []}]}', type=Plan)


def test_what_is_within_everything_passes() -> None:
    good = plan(("write", (), "model"), ("check", (0,), "tool"), ("check", (0,), "tool"))
    good.check(CATALOGUE, Limits(max_nodes=3, max_cost_usd=2.1, max_time_ms=5.1))
    plan(("write", (), None)).check(CATALOGUE.withdrawn("model", "tool", "away"), Limits(max_cost_usd=1e-9))


@pytest.mark.parametrize(
    ("nodes", "limits", "message"),
    [
        ([("write", (), "model")] * 3, Limits(max_nodes=2), r"the plan has 3 nodes, the limit is 2"),
        ([("wirte", (), "model")], Limits(), r"node 0 is of task type 'wirte', which the catalogue does not have"),
        ([("write", (), None)], Limits(), r"node 0 \('write'\) has worker None: expected one if there is any"),
        ([("write", (), "tool")], Limits(), r"node 0: worker 'tool' is not able to do 'write' now"),
        ([("write", (), "away")], Limits(), r"node 0: worker 'away' is not able to do 'write' now"),
        ([("write", (), "nobody")], Limits(), r"node 0: worker 'nobody' is not able to do 'write' now"),
        ([("check", (), "tool")] * 3, Limits(), r"worker 'tool' is given 3 nodes, it has 2 calls left"),
        ([("check", (), "tool")] * 2, Limits(max_cost_usd=1.9), r"the plan costs 2 USD, the limit is 1.9"),
        ([("check", (), "tool"), ("check", (0,), "tool")], Limits(max_time_ms=9.0), r"takes 10 ms, the limit is 9"),
    ],
)
def test_what_is_not_is_named(
    nodes: list[tuple[str, tuple[int, ...], str | None]], limits: Limits, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan(*nodes).check(CATALOGUE, limits)


def test_a_worker_is_refused_where_there_are_none() -> None:
    with pytest.raises(PlanError, match=r"node 0 \('write'\) has worker 'model': expected one if there is any"):
        plan(("write", (), "model")).check(CATALOGUE.withdrawn("model", "tool", "away"), Limits())


def test_side_by_side_takes_as_long_as_the_longest_chain() -> None:
    parallel = plan(*[("write", (), "model")] * 4)
    chain = plan(*[("write", (i - 1,) if i else (), "model") for i in range(4)])
    parallel.check(CATALOGUE, Limits(max_time_ms=0.1))
    chain.check(CATALOGUE, Limits(max_time_ms=0.4))
    with pytest.raises(PlanError, match=r"takes 0\.4 ms"):
        chain.check(CATALOGUE, Limits(max_time_ms=0.399_999_9))


@pytest.mark.parametrize("count", [3, 7, 500])
def test_limits_hold_to_their_edge_but_not_against_rounding(count: int) -> None:
    limit = count / 10  # count calls of 0.1 add up to a little more or less
    chain = plan(*[("write", (i - 1,) if i else (), "model") for i in range(count)])
    chain.check(CATALOGUE, Limits(max_nodes=count, max_cost_usd=limit, max_time_ms=limit))
    with pytest.raises(PlanError, match="costs"):
        chain.check(CATALOGUE, Limits(max_nodes=count, max_cost_usd=limit * (1 - 1e-7)))


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_any_dag_is_put_in_order(data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 8))
    names = data.draw(st.permutations(range(n)))
    pairs = [p for p in itertools.combinations(range(n), 2) if data.draw(st.booleans())]
    dependencies: list[list[int]] = [[] for _ in range(n)]
    for before, after in pairs:
        dependencies[names[after]].append(names[before])
    order = topological_order(dependencies)
    assert sorted(order) == list(range(n))
    assert all(order.index(j) < order.index(i) for i in range(n) for j in dependencies[i])


def test_what_is_in_order_stays_so() -> None:
    assert topological_order([[], [0], [], [1, 2]]) == [0, 1, 2, 3]
    assert topological_order([[3], [0], [], []]) == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("dependencies", "message"),
    [
        ([[], [2], [1]], r"nodes \[1, 2\] cannot be put in order: among them is a cycle"),
        ([[0]], r"nodes \[0\] cannot be put in order"),
        ([[], [7]], r"node 1 depends on 7, expected a node: 0 to 1"),
        ([[-1]], r"node 0 depends on -1, expected a node: 0 to 0"),
    ],
)
def test_what_has_no_order_is_named(dependencies: list[list[int]], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        topological_order(dependencies)
