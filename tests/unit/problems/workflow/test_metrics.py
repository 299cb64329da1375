"""Plan scores against the definition, written out naively, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.problems.workflow.metrics import PlanScores, f1, score_plans
from etude.problems.workflow.plan import Node, Plan

names = st.lists(st.sampled_from("abcd"), max_size=6)


def plan(*nodes: tuple[str, tuple[int, ...]]) -> Plan:
    return Plan(instruction="do it", nodes=tuple(Node(task_type=name, dependencies=needs) for name, needs in nodes))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 5))
    earlier = [draw(st.sets(st.integers(0, i - 1), max_size=i)) if i else set() for i in range(count)]
    return plan(*((draw(st.sampled_from("abc")), tuple(sorted(needs))) for needs in earlier))


def naive(predicted: list[str], gold: list[str]) -> float:
    """The definition of the design's benchmarks, word by word."""
    if len(predicted) == 0 or len(gold) == 0:
        return 0.0
    inter = 0
    for name in {*predicted, *gold}:
        if name in predicted and name in gold:
            inter += 1
    P = inter / len(predicted)
    R = inter / len(gold)
    return 2 * P * R / (P + R + 1e-9)


@given(names, names)
def test_f1_is_the_definition(predicted: list[str], gold: list[str]) -> None:
    assert f1(predicted, gold) == pytest.approx(naive(predicted, gold), abs=1e-12)
    assert 0 <= f1(predicted, gold) <= 1


@given(st.lists(st.tuples(plans(), plans()), min_size=1, max_size=4))
def test_scores_are_the_definition_over_names_and_over_pairs_of_names(pairs: list[tuple[Plan, Plan]]) -> None:
    scores = score_plans([p for p, _ in pairs], [w for _, w in pairs])
    nodes = [naive([n.task_type for n in p.nodes], [n.task_type for n in w.nodes]) for p, w in pairs]
    links = [naive(written(p), written(w)) for p, w in pairs]
    np.testing.assert_allclose(scores.node_f1, nodes, atol=1e-12)
    np.testing.assert_allclose(scores.link_f1, links, atol=1e-12)
    np.testing.assert_array_equal(scores.accuracy, [float(score >= 0.99) for score in nodes])
    assert scores.overall == pytest.approx(
        (np.mean(nodes) + np.mean(links) + np.mean([score >= 0.99 for score in nodes])) / 3
    )


def written(made: Plan) -> list[str]:
    """Every dependency as "source, target"."""
    return [f"{made.nodes[j].task_type}, {node.task_type}" for node in made.nodes for j in node.dependencies]


@given(plans())
def test_a_plan_against_itself_is_right_unless_it_repeats_a_name(gold: Plan) -> None:
    scores = score_plans([gold], [gold])
    kinds = [node.task_type for node in gold.nodes]
    assert scores.node_f1[0] == pytest.approx(len(set(kinds)) / len(kinds))
    assert scores.link_f1[0] == pytest.approx(len(set(gold.links)) / len(gold.links) if gold.links else 0.0)


def test_by_hand() -> None:
    wanted = plan(("a", ()), ("b", (0,)), ("c", (1,)))
    made = plan(("a", ()), ("c", (0,)), ("d", (0, 1)), ("b", (0,)))
    scores = score_plans([made], [wanted])
    assert scores.node_f1[0] == pytest.approx(2 * (3 / 4) * 1 / (3 / 4 + 1))
    # a–c, a–d, c–d, a–b against a–b, b–c.
    assert scores.link_f1[0] == pytest.approx(2 * (1 / 4) * (1 / 2) / (1 / 4 + 1 / 2))
    assert scores.accuracy[0] == 0


def test_a_repeated_name_counts_against_the_plan() -> None:
    assert f1(["a", "b", "b"], ["a", "b"]) < f1(["a", "b"], ["a", "b"])
    assert f1(["b", "b", "b", "b"], ["b"]) == pytest.approx(0.4)


def test_the_order_of_nodes_does_not_matter_but_the_direction_of_links_does() -> None:
    forwards, backwards = plan(("a", ()), ("b", (0,))), plan(("b", ()), ("a", (0,)))
    scores = score_plans([backwards], [forwards])
    assert scores.node_f1[0] == pytest.approx(1)
    assert scores.accuracy[0] == 1
    assert scores.link_f1[0] == 0


def test_without_links_the_link_score_is_zero() -> None:
    alone = plan(("a", ()))
    assert score_plans([alone], [alone]).link_f1[0] == 0


def test_accuracy_begins_at_ninety_nine_hundredths() -> None:
    scores = PlanScores(node_f1=np.array([0.99, 0.9899, 1.0]), link_f1=np.zeros(3))
    assert scores.accuracy.tolist() == [1, 0, 1]


def test_there_is_one_wanted_plan_for_each() -> None:
    alone = plan(("a", ()))
    with pytest.raises(ValueError, match="zip"):
        score_plans([alone, alone], [alone])
