"""How sure a planner is: probabilities that add up, calibrated on examples, doubts and what is not covered."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from etude.contracts.decision import DecisionRequest
from etude.learning.run_folder import find_policy
from etude.problems.workflow.artefact import load_planner, read_calibration
from etude.problems.workflow.attempts import Attempt
from etude.problems.workflow.decode import Candidate, empty_drafts, take
from etude.problems.workflow.doubt import UNCALIBRATED, Beam, Calibration, Proposal, fit_calibration, propose, search
from etude.problems.workflow.plan import Limits, Node, Plan
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.worker_model import fit_workers
from tests.language import examples, trained_run
from tests.unit.problems.workflow.test_decode import CATALOGUE, HOSTILE, SMALL, TEXTS, everything, make_policy

TYPES = ("fetch", "translate", "mail")


def plan_of(*task_types: str, links: bool = True) -> Plan:
    nodes = [Node(task_type=name, dependencies=(i - 1,) if i and links else ()) for i, name in enumerate(task_types)]
    return Plan(instruction="do it", nodes=tuple(nodes))


def candidate(probability: float, *task_types: str, links: bool = True, link: float = 1.0) -> Candidate:
    """A plan of this probability, all of it in its first type, with one link of probability `link` in each node."""
    count = len(task_types)
    log_links = tuple(tuple(math.log(link) if j == i - 1 else 0.0 for j in range(i)) for i in range(count))
    types = (math.log(probability), *[0.0] * count)
    return Candidate(
        plan=plan_of(*task_types, links=links),
        log_prob=math.log(probability) + (count - 1) * math.log(link),
        types=types,
        links=log_links,
        workers=(0.0,) * count,
    )


def beam_of(
    *candidates: Candidate, votes: Sequence[float] = (0, 0, 0), places: Sequence[float] = (0.1, 0.5, 0.9)
) -> Beam:
    ordered = sorted(candidates, key=lambda one: -one.log_prob)
    return Beam(
        candidates=ordered,
        task_types=TYPES,
        votes=np.array(votes, float),
        parts=np.zeros(3),
        places=np.array(places, float),
    )


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_the_probability_is_that_of_all_orders_links_and_workers_of_the_same_subtasks(seed: int) -> None:
    policy = make_policy(SMALL, Limits(max_nodes=2), seed)
    (found,) = search(policy, take(empty_drafts(policy.context), torch.tensor([0])), TEXTS[:1], beam=1000)
    made = propose(found, None, count=1000)
    sure = [made.probability, *(other.probability for other in made.alternatives)]
    assert sum(sure) == pytest.approx(1, abs=1e-3)  # every plan that there is
    subtasks = sorted(node.task_type for node in made.plan.nodes)
    own = [one for one in found.candidates if sorted(node.task_type for node in one.plan.nodes) == subtasks]
    assert made.probability == pytest.approx(sum(math.exp(sum(one.types)) for one in own), abs=1e-3)
    best = {tuple(p.nodes): log_prob for log_prob, p in everything(policy, 0)}
    for one in found.candidates:
        parts = sum(one.types) + sum(map(sum, one.links)) + sum(one.workers)
        assert parts == pytest.approx(one.log_prob, abs=1e-4)
        assert best[tuple(one.plan.nodes)] == pytest.approx(one.log_prob, abs=1e-4)


def test_orders_are_added_up_and_other_subtasks_are_alternatives() -> None:
    found = beam_of(
        candidate(0.3, "fetch", "mail", links=False),
        candidate(0.2, "mail", "fetch", links=False),
        candidate(0.25, "fetch"),
        candidate(0.1, "fetch", "translate"),
    )
    made = propose(found, None, count=1)
    assert sorted(node.task_type for node in made.plan.nodes) == ["fetch", "mail"]
    assert made.probability == pytest.approx(0.5)
    assert made.probability_with_links == pytest.approx(0.5, abs=1e-3)  # no link: the order says nothing
    (other,) = made.alternatives
    assert (other.plan, round(other.probability, 6)) == (plan_of("fetch"), 0.25)
    assert not made.calibrated


def test_links_that_depend_on_the_order_divide_the_probability() -> None:
    made = propose(beam_of(candidate(0.4, "fetch", "mail"), candidate(0.2, "mail", "fetch")), None)
    assert made.probability == pytest.approx(0.6)
    assert made.probability_with_links == pytest.approx(0.4, abs=1e-3)


def test_what_calibration_takes_from_a_plan_its_alternatives_get_in_proportion() -> None:
    found = beam_of(candidate(0.8, "fetch"), candidate(0.1, "mail"), candidate(0.05, "translate"))
    half = Calibration(examples=9, subtasks=(0.0, 0.0))
    made = propose(found, half)
    assert (made.calibrated, made.probability) == (True, pytest.approx(0.5))
    assert [other.probability for other in made.alternatives] == pytest.approx([0.25, 0.125])


def test_the_least_certain_choices_come_first() -> None:
    found = beam_of(candidate(0.6, "fetch", "mail", link=0.55), candidate(0.2, "fetch"))
    doubts = propose(found, None).doubts
    assert [(one.node, one.part, one.choice, round(one.probability, 2)) for one in doubts] == [
        (1, "link", "after fetch", 0.55),
        (1, "task type", "mail", 0.75),
    ]
    sure = beam_of(candidate(0.99, "fetch", "mail"))
    assert propose(sure, None).doubts == ()


def test_what_past_queries_vote_for_and_the_plan_lacks_is_not_covered() -> None:
    plans = (candidate(0.7, "fetch"), candidate(0.2, "fetch", "mail"))
    (missing,) = propose(beam_of(*plans, votes=(0.6, 0.0, 0.9)), None).uncovered
    assert missing.task_type == "mail"
    assert missing.probability >= 0.5
    assert propose(beam_of(*plans, votes=(0.9, 0.0, 0.1)), None).uncovered == ()


def overconfident(count: int, share: float) -> tuple[list[Beam], list[Plan]]:
    """Beams that say .95 for a plan that is right in this share of the cases."""
    rng = random.Random(0)
    beams = [beam_of(candidate(0.95, "fetch", "mail"), candidate(0.04, "fetch")) for _ in range(count)]
    return beams, [plan_of("fetch", "mail") if rng.random() < share else plan_of("fetch") for _ in range(count)]


def test_a_calibration_says_how_often_such_plans_were_right() -> None:
    beams, expected = overconfident(400, 0.6)
    right = sum(plan == beams[0].chosen.plan for plan in expected) / len(expected)
    fitted = fit_calibration(beams, expected)
    assert fitted.examples == 400
    assert propose(beams[0], fitted).probability == pytest.approx(right, abs=0.02)
    assert propose(beams[0], None).probability == pytest.approx(0.95)


def test_one_example_moves_a_probability_little_and_none_leaves_it() -> None:
    beams, expected = overconfident(1, 0.0)
    assert 0.5 < propose(beams[0], fit_calibration(beams, expected)).probability < 0.9
    assert fit_calibration([], []) == UNCALIBRATED


def test_links_are_calibrated_on_plans_with_the_right_subtasks() -> None:
    beams = [beam_of(candidate(0.9, "fetch", "mail", link=0.9))] * 200
    expected = [plan_of("fetch", "mail", links=i % 2 == 0) for i in range(200)]
    made = propose(beams[0], fit_calibration(beams, expected))
    assert made.probability > 0.95
    assert made.probability_with_links / made.probability == pytest.approx(0.5, abs=0.02)


# Of a trained planner


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory)


@pytest.fixture(scope="module")
def planner(run: Path) -> Planner:
    return load_planner(run)


def test_training_leaves_a_calibration_in_the_policy(run: Path, planner: Planner) -> None:
    kept = read_calibration(find_policy(run))
    assert kept is not None
    assert kept.examples == 6  # the fifth that was held out
    assert planner.calibration == kept
    assert planner.propose(TEXTS[0]).calibrated


def test_a_planner_without_one_says_so(planner: Planner, run: Path, tmp_path: Path) -> None:
    from etude.learning.artefact import Artefact, write_artefact

    old = find_policy(run)
    details = {name: value for name, value in old.manifest.details.items() if name != "calibration"}
    shutil.copytree(old.path, tmp_path / "copy")
    about = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    names = ("problem", "method", "encoder", "catalogue", "data", "parent", "step", "score", "settings", "code")
    write_artefact(
        tmp_path / "old",
        tensors=old.tensors(),
        files={"catalogue.json": old.file("catalogue.json")},
        about={name: about[name] for name in names} | {"details": details},
    )
    older = load_planner(Artefact(tmp_path / "old").path)
    assert older.calibration is None
    made = older.propose(TEXTS[0])
    assert not made.calibrated
    assert made.plan == planner.plan(TEXTS[0])


def test_a_proposal_has_the_plan_that_plan_gives(planner: Planner) -> None:
    for example in examples(8, seed=4):
        made = planner.propose(example.instruction, count=2)
        assert made.plan == planner.plan(example.instruction)
        assert 0 < made.probability_with_links <= made.probability < 1
        sure = [other.probability for other in made.alternatives]
        assert len(sure) <= 2
        assert sure == sorted(sure, reverse=True)
        assert made.probability + sum(sure) <= 1 + 1e-9
        own = sorted(node.task_type for node in made.plan.nodes)
        assert all(sorted(node.task_type for node in other.plan.nodes) != own for other in made.alternatives)


def test_a_first_plan_is_decided_with_its_proposal_and_a_sampled_one_without(planner: Planner) -> None:
    request = DecisionRequest(context=TEXTS[0])
    assert planner.decide(request).proposal == planner.propose(TEXTS[0])
    assert planner.decider(explore=True).decide(request).proposal is None


@pytest.mark.parametrize("worst", HOSTILE)
def test_weights_gone_wrong_give_a_probability_all_the_same(worst: float) -> None:
    policy = make_policy(CATALOGUE, Limits(max_nodes=4), 3)
    with torch.no_grad():
        policy.stop.bias.fill_(worst)
        policy.link_bias.fill_(worst)
    for found in search(policy, empty_drafts(policy.context), TEXTS):
        made = propose(found, None)
        made.plan.check(CATALOGUE, Limits(max_nodes=4))
        assert 0 <= made.probability_with_links <= made.probability <= 1


def test_a_proposal_has_the_workers_of_the_worker_model_and_the_networks_probabilities(planner: Planner) -> None:
    text = "Please translate the letter, then summarise it"
    attempts = [
        Attempt(
            trajectory=f"{name} {worker} {i}",
            request=name,
            task_type=name,
            worker=worker,
            failed=(),
            category=0,
            done=worker == "quick",
            verified=True,
            whole=None,
            plan=name,
            finished=True,
            cost_usd=0.01,
            latency_ms=10.0,
        )
        for name in ("translate", "summarise")
        for worker in ("quick", "careful")
        for i in range(50)
    ]
    learned = replace(planner, workers=fit_workers(attempts, planner.catalogue))
    plain, made = planner.propose(text), learned.propose(text)
    assert {node.worker for node in plain.plan.nodes} == {"careful"}
    assert {node.worker for node in made.plan.nodes} == {"quick"}
    for before, after in ((plain.plan, made.plan), *zip(_plans(plain), _plans(made), strict=True)):
        assert [(n.task_type, n.dependencies) for n in after.nodes] == [
            (n.task_type, n.dependencies) for n in before.nodes
        ]
        assert not any(n.worker == "careful" for n in after.nodes)
    assert (made.probability, made.probability_with_links) == (plain.probability, plain.probability_with_links)
    assert not any(doubt.part == "worker" for doubt in made.doubts)

    decision = learned.decide(DecisionRequest(context=text))
    assert decision.proposal == made
    assert [(s["task_type"], s["worker"]) for s in decision.action] == [
        (n.task_type, n.worker) for n in made.plan.nodes
    ]
    assert made.plan == learned.plan(text)


def _plans(made: Proposal) -> list[Plan]:
    return [other.plan for other in made.alternatives]
