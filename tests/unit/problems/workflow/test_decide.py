"""Decisions as they are logged: what could be chosen, what was, and exactly how probable that was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, combinations, product

import pytest
import torch
from torch import Generator

from etude.contracts.decision import Choice, Decision
from etude.contracts.errors import CatalogueError, PlanError
from etude.problems.base import Action, Obs
from etude.problems.workflow.catalogue import Catalogue, TaskType
from etude.problems.workflow.decide import (
    Chooser,
    Choosers,
    Decider,
    Luck,
    by_lot,
    by_rules,
    chance_by_lot,
    exploring,
    named,
)
from etude.problems.workflow.grammar import Correction, Rules, Status
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.progress import Live, Progress, to_draft
from etude.problems.workflow.world import ErrorCategory
from tests.crew import entry, is_legal

KNOWN = Catalogue(
    task_types=(TaskType(name="draft", description="write a text"), TaskType(name="send", description="mail a text")),
    workers=(
        entry("a", success_rate=0.6),
        entry("b", success_rate=0.8),
        entry("c", task_types=("send",), success_rate=0.9),
    ),
)
LIMITS = Limits(max_nodes=3, max_attempts=2, max_corrections=3, max_replans=1)
RULES = Rules(KNOWN, LIMITS)
LIVE = tuple(Live(w.cost_usd(), w.latency_ms, w.success_rate or 0.5, True, None) for w in KNOWN.workers)
TEXT = "Write a text, then mail it."


def some_progress(*, failed: bool = False, nodes: int = 2) -> Progress:
    progress = Progress(instruction=TEXT)
    for i in range(nodes):
        progress.add(i % 2, progress.steps[:], i % 2, LIVE[i % 2], 0.0)
    if failed:
        progress.steps[0].status = Status.DONE
        progress.steps[-1].status = Status.FAILED
        progress.fail(progress.steps[-1], ErrorCategory.CAPABILITY, unable=True)
    return progress


def drafts() -> dict[str, Obs]:
    return {
        "empty": to_draft(RULES, some_progress(nodes=0), LIVE),
        "planning": to_draft(RULES, some_progress(), LIVE),
        "full": to_draft(RULES, some_progress(nodes=3), LIVE),
        "failed": to_draft(RULES, some_progress(failed=True), LIVE),
    }


def every_action(d: Obs) -> Iterator[Action]:
    """All that is legal."""
    length = int(d["length"])
    subsets = chain.from_iterable(combinations(range(length), k) for k in range(length + 1))
    for correction, kind, links, worker in product(range(6), range(RULES.types + 1), list(subsets), range(3)):
        linked = torch.zeros((1, RULES.nodes), dtype=torch.bool)
        linked[0, list(links)] = True
        one = {"correction": correction, "type": kind, "worker": worker}
        action = {"links": linked, **{name: torch.tensor([value]) for name, value in one.items()}}
        if is_legal(RULES, d, action):
            yield action


def key(action: Action) -> tuple[int, int, tuple[bool, ...], int]:
    return (
        int(action["correction"]),
        int(action["type"]),
        tuple(action["links"][0].tolist()),
        int(action["worker"]),
    )


@pytest.mark.parametrize("name", drafts())
def test_the_chances_of_a_lot_add_up(name: str) -> None:
    d = drafts()[name]
    chances = [chance_by_lot(RULES, d, action) for action in every_action(d)]
    assert len(chances) >= (1 if name == "full" else 4)
    assert sum(chances) == pytest.approx(1.0, abs=1e-12)


def the_first(rules: Rules, instruction: str, luck: Luck) -> Chooser:
    """Draws no lots: of each part the first that is legal."""

    def choose(d: Obs) -> tuple[Action, float]:
        correction = rules.corrections(d).int().argmax(1)
        kind = rules.task_types(d, correction).int().argmax(1)
        links = torch.zeros((1, rules.nodes), dtype=torch.bool)
        worker = rules.workers_for(d, correction, kind, links).int().argmax(1)
        return {"correction": correction, "type": kind, "links": links, "worker": worker}, 1.0

    return choose


@pytest.mark.parametrize("name", ["empty", "planning", "failed"])
@pytest.mark.parametrize("choosers", [by_lot, exploring(the_first, 0.4)], ids=["lot", "exploring"])
def test_a_choice_is_as_frequent_as_it_says(choosers: Choosers, name: str) -> None:
    d, count = drafts()[name], 400
    choose = choosers(RULES, TEXT, Generator().manual_seed(5))
    drawn, said = Counter[object](), dict[object, float]()
    for _ in range(count):
        action, propensity = choose(d)
        drawn[key(action)] += 1
        assert said.setdefault(key(action), propensity) == propensity
    for one, propensity in said.items():
        error = (propensity * (1 - propensity) / count) ** 0.5
        assert abs(drawn[one] / count - propensity) <= 4.5 * error + 1e-12, one
    legal = {key(action) for action in every_action(d)}
    assert said.keys() <= legal
    rare = 1 - sum(said.values())  # of what was never drawn
    assert -1e-9 <= rare <= 0.05
    assert rare == pytest.approx(0, abs=1e-9) or said.keys() != legal


def test_who_explores_always_or_never() -> None:
    d = drafts()["planning"]
    first, _ = the_first(RULES, TEXT, Generator())(d)
    never, always = (exploring(the_first, share)(RULES, TEXT, Generator().manual_seed(1)) for share in (0.0, 1.0))
    for _ in range(20):
        action, propensity = never(d)
        assert (key(action), propensity) == (key(first), 1.0)
        action, propensity = always(d)
        assert propensity == chance_by_lot(RULES, d, action)


def watched(choosers: Choosers, seen: list[tuple[Obs, Action]]) -> Choosers:
    def about(rules: Rules, instruction: str, luck: Luck) -> Chooser:
        choose = choosers(rules, instruction, luck)

        def look(draft: Obs) -> tuple[Action, float]:
            action, propensity = choose(draft)
            seen.append(({name: value.clone() for name, value in draft.items()}, action))
            return action, propensity

        return look

    return about


def decider(choosers: Choosers, limits: Limits = LIMITS) -> Decider:
    return Decider(version="v7", catalogue=KNOWN, limits=limits, choosers=choosers)


def true(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(i for i, legal in enumerate(mask[0].tolist()) if legal)


def check_eligible(decision: Decision, d: Obs, action: Action) -> None:
    """As the masks have it, where a part applies; null elsewhere."""
    could, did = decision.eligible, decision.choice
    correction, kind, failed = action["correction"], action["type"], int(d["failed"]) >= 0
    of = Correction(int(correction))
    types = true(RULES.task_types(d, correction))
    stops = int(kind) == RULES.types
    assert decision.failed == (int(d["failed"]) if failed else None)
    assert could.corrections == (tuple(named(Correction(i)) for i in true(RULES.corrections(d))) if failed else None)
    assert did.correction == (named(of) if failed else None)
    if failed and of != Correction.REPAIR:
        assert (could.task_types, did.task_type) == (None, None)
    else:
        assert could.task_types == tuple(t for t in types if t < RULES.types)
        assert did.task_type == (None if stops else int(kind))
    assert could.stop == (not failed and RULES.types in types)
    if failed or stops:
        assert (could.dependencies, did.dependencies) == (None, None)
    else:
        assert could.dependencies == true(RULES.dependencies(d, kind))
        assert did.dependencies == true(action["links"])
    if of in (Correction.SWITCH, Correction.REPAIR) if failed else not stops:
        assert could.workers == true(RULES.workers_for(d, correction, kind, action["links"]))
        assert did.worker == int(action["worker"])
    else:
        assert (could.workers, did.worker) == (None, None)


def test_what_could_be_chosen_is_what_the_rules_allow() -> None:
    corrections = set[str | None]()
    for seed in range(40):
        seen: list[tuple[Obs, Action]] = []
        mind = decider(watched(by_lot, seen)).about(TEXT, seed=seed)
        progress = Progress(instruction=TEXT)
        decisions = mind.plan(progress, LIVE)
        assert len(progress.steps) == len(decisions) - 1
        progress.steps[-1].status = Status.FAILED
        progress.fail(progress.steps[-1], ErrorCategory.CAPABILITY, unable=True)
        decisions.append(mind.correct(progress, LIVE, now_ms=70.0))
        corrections.add(decisions[-1].choice.correction)
        for decision, (d, action) in zip(decisions, seen, strict=True):
            check_eligible(decision, d, action)
        assert {decision.policy for decision in decisions} == {"v7"}
        assert (decisions[0].at_ms, decisions[-1].at_ms) == (0.0, 70.0)
        assert decisions[-1].choice.correction == "repair" or decisions[-1].choice.task_type is None
    assert len(corrections) >= 5


def test_a_plan_is_laid_down_as_it_was_chosen() -> None:
    progress = Progress(instruction=TEXT)
    decisions = decider(by_lot).about(TEXT, seed=3).plan(progress, LIVE, now_ms=500.0)
    laid = [
        Choice(
            task_type=step.task_type,
            dependencies=tuple(progress.steps.index(before) for before in step.dependencies),
            worker=step.worker,
        )
        for step in progress.steps
    ]
    assert [decision.choice for decision in decisions] == [*laid, Choice()]
    assert {step.ready_ms for step in progress.steps} == {500.0}


def test_how_workers_are_doing_is_told_once() -> None:
    mind, progress = decider(by_rules()).about(TEXT), Progress(instruction=TEXT)
    decisions = mind.plan(progress, LIVE)
    assert [decision.live for decision in decisions] == [LIVE, None, None]
    progress.steps[0].status = Status.FAILED
    progress.fail(progress.steps[0], ErrorCategory.TRANSIENT, unable=False)
    assert mind.correct(progress, LIVE, now_ms=1.0).live is None
    changed = (LIVE[0]._replace(success=0.1), *LIVE[1:])
    assert mind.correct(progress, changed, now_ms=2.0).live == changed
    assert mind.correct(progress, changed, now_ms=3.0).live is None
    assert decider(by_rules()).about(TEXT).correct(progress, changed, now_ms=3.0).live == changed


def test_a_correction_leaves_the_progress_as_it_is() -> None:
    progress = some_progress(failed=True)
    before = to_draft(RULES, progress, LIVE)
    decider(by_lot).about(TEXT).correct(progress, LIVE, now_ms=0.0)
    after = to_draft(RULES, progress, LIVE)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_person_may_choose_what_the_rules_allow() -> None:
    mind = decider(by_lot).about(TEXT)
    legal = [Correction(i) for i in true(RULES.corrections(drafts()["failed"]))]
    assert mind.options(some_progress(failed=True), LIVE, now_ms=0.0) == legal
    assert Correction.RETRY in legal
    used_up = some_progress(failed=True)
    used_up.steps[-1].attempts, used_up.replans = 2, 1
    assert mind.options(used_up, LIVE, now_ms=0.0) == [Correction.SKIP, Correction.ABORT]


def test_the_same_seed_draws_the_same_lots() -> None:
    def drawn(seed: int) -> list[Decision]:
        return decider(by_lot).about(TEXT, seed=seed).plan(Progress(instruction=TEXT), LIVE)

    assert drawn(4) == drawn(4)
    assert len({str(drawn(seed)) for seed in range(8)}) > 4


@pytest.mark.parametrize("text", [TEXT, "Mail the text.", "qwertz uiop", "!", "a" * 10_000])
def test_the_rule_based_expert_plans_whatever_it_is_asked(text: str) -> None:
    progress = Progress(instruction=text)
    decisions = decider(by_rules()).about(text).plan(progress, LIVE)
    assert {decision.propensity for decision in decisions} == {1.0}
    assert progress.steps
    if text == TEXT:
        assert [(s.task_type, s.worker) for s in progress.steps] == [(0, 1), (1, 2)]  # whoever is praised most
        assert progress.steps[1].dependencies == [progress.steps[0]]


def test_it_tries_again_then_somebody_else_then_goes_on_without() -> None:
    progress = some_progress(failed=True, nodes=2)
    step = progress.steps[-1]
    made, again = [], []
    for attempts in (1, 2, 3):
        step.attempts = attempts
        limits = Limits(max_nodes=3, max_attempts=3)
        for choosers, found in ((by_rules(), made), (by_rules(retry_only=True), again)):
            found.append(decider(choosers, limits).about(TEXT).correct(progress, LIVE, now_ms=0.0).choice.correction)
    assert made == ["retry", "switch", "skip"]
    assert again == ["retry", "retry", "abort"]


def test_what_cannot_be_planned_is_an_error() -> None:
    nobody = tuple(live._replace(available=False) for live in LIVE)
    with pytest.raises(CatalogueError, match="no task type can be done now"):
        decider(by_lot).about(TEXT).plan(Progress(instruction=TEXT), nobody)
    with pytest.raises(PlanError, match="empty"):
        decider(by_lot).about(" \n")


def test_with_something_done_a_plan_may_end_where_nothing_more_can_be_done() -> None:
    nobody = tuple(live._replace(available=False) for live in LIVE)
    progress = some_progress(nodes=1)
    progress.steps[0].status = Status.DONE
    (decision,) = decider(by_lot).about(TEXT).plan(progress, nobody)
    assert decision.choice == Choice()
    assert decision.eligible.stop


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("type", RULES.types, "stopped before its plan had a node"),
        ("worker", 2, "worker 2"),  # who cannot draft
        ("links", 1, "dependency 1"),
    ],
)
def test_what_the_rules_do_not_allow_is_refused_whoever_chose_it(part: str, value: int, told: str) -> None:
    def wilful(rules: Rules, instruction: str, luck: Luck) -> Chooser:
        action = {"correction": Correction.ABORT, "type": 0, "worker": 0}
        chosen = {name: torch.tensor([int(x)]) for name, x in action.items()}
        chosen["links"] = torch.zeros((1, rules.nodes), dtype=torch.bool)
        chosen |= {
            part: torch.eye(rules.nodes, dtype=torch.bool)[[value]] if part == "links" else torch.tensor([value])
        }
        return lambda draft: (chosen, 1.0)

    decider = Decider(version="wilful", catalogue=KNOWN, limits=LIMITS, choosers=wilful)
    with pytest.raises(PlanError, match=told):
        decider.about(TEXT).plan(Progress(instruction=TEXT), LIVE)
