"""Decisions as they are logged: what could be chosen, what was, and exactly how probable that was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, combinations, product

import msgspec
import pytest
import torch
from torch import Generator

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import CatalogueError, DataError, PlanError
from etude.contracts.ports import Decider
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue, TaskType
from etude.problems.workflow.decide import (
    Chooser,
    Choosers,
    WorkflowDecider,
    at_random,
    by_rules,
    exploring,
    named,
    random_propensity,
)
from etude.problems.workflow.decisions import Choice, Eligible
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import Correction, Rules, Status
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.progress import Live, Progress, to_draft, to_state
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
def test_the_chances_of_random_choices_add_up(name: str) -> None:
    d = drafts()[name]
    chances = [random_propensity(RULES, d, action) for action in every_action(d)]
    assert len(chances) >= (1 if name == "full" else 4)
    assert sum(chances) == pytest.approx(1.0, abs=1e-12)


def the_first(rules: Rules, instruction: str) -> Chooser:
    """Samples nothing: of each part the first that is legal."""

    def choose(d: Obs, rng: Generator) -> list[tuple[Action, float]]:
        correction = rules.corrections(d).int().argmax(1)
        kind = rules.task_types(d, correction).int().argmax(1)
        links = torch.zeros((1, rules.nodes), dtype=torch.bool)
        worker = rules.workers_for(d, correction, kind, links).int().argmax(1)
        return [({"correction": correction, "type": kind, "links": links, "worker": worker}, 1.0)]

    return choose


@pytest.mark.parametrize("name", ["empty", "planning", "failed"])
@pytest.mark.parametrize("choosers", [at_random, exploring(the_first, 0.4)], ids=["lot", "exploring"])
def test_a_choice_is_as_frequent_as_it_says(choosers: Choosers, name: str) -> None:
    d, count = drafts()[name], 400
    choose, rng = choosers(RULES, TEXT), Generator().manual_seed(5)
    drawn, said = Counter[object](), dict[object, float]()
    for _ in range(count):
        ((action, propensity),) = choose(d, rng)
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
    rng = Generator().manual_seed(1)
    ((first, _),) = the_first(RULES, TEXT)(d, rng)
    never, always = (exploring(the_first, share)(RULES, TEXT) for share in (0.0, 1.0))
    for _ in range(20):
        ((action, propensity),) = never(d, rng)
        assert (key(action), propensity) == (key(first), 1.0)
        ((action, propensity),) = always(d, rng)
        able = RULES.workers_for(d, action["correction"], action["type"], action["links"]).sum()
        assert propensity == pytest.approx(1 / float(able))
        assert int(action["type"]) == int(first["type"])


def watched(choosers: Choosers, seen: list[tuple[Obs, Action]]) -> Choosers:
    def about(rules: Rules, instruction: str) -> Chooser:
        choose = choosers(rules, instruction)

        def look(draft: Obs, rng: Generator) -> list[tuple[Action, float]]:
            ((action, propensity),) = choose(draft, rng)
            seen.append(({name: value.clone() for name, value in draft.items()}, action))
            return [(action, propensity)]

        return look

    return about


def decider(choosers: Choosers, limits: Limits = LIMITS) -> WorkflowDecider:
    return WorkflowDecider(version="v7", catalogue=KNOWN, limits=limits, choosers=choosers)


def request(
    progress: Progress | None = None, live: tuple[Live, ...] = LIVE, *, at_ms: float = 0.0, seed: int = 0
) -> DecisionRequest:
    state = to_state(progress) if progress is not None and progress.steps else None
    return DecisionRequest(context={"instruction": TEXT, "live": live}, state=state, at_ms=at_ms, seed=seed)


def choice(decision: LoggedDecision) -> Choice:
    return msgspec.convert(decision.action, Choice)


def carried_on(progress: Progress, decision: Decision) -> None:
    """Adds the steps of a plan."""
    for made in map(choice, decision.logged):
        if made.task_type is not None and made.worker is not None:
            needs = [progress.steps[j] for j in made.dependencies or ()]
            progress.add(made.task_type, needs, made.worker, LIVE[made.worker], 0.0)


def true(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(i for i, legal in enumerate(mask[0].tolist()) if legal)


def check_eligible(decision: LoggedDecision, d: Obs, action: Action) -> None:
    """As the masks have it, where a part applies; null elsewhere."""
    could, did = msgspec.convert(decision.eligible, Eligible), choice(decision)
    correction, kind, failed = action["correction"], action["type"], int(d["failed"]) >= 0
    of = Correction(int(correction))
    types = true(RULES.task_types(d, correction))
    stops = int(kind) == RULES.types
    assert (decision.context or {}).get("failed") == (int(d["failed"]) if failed else None)
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
        deciding, progress = decider(watched(at_random, seen)), Progress(instruction=TEXT)
        plan = deciding.decide(request(seed=seed))
        carried_on(progress, plan)
        assert len(progress.steps) == len(plan.logged) - 1
        progress.steps[-1].status = Status.FAILED
        progress.fail(progress.steps[-1], ErrorCategory.CAPABILITY, unable=True)
        correction = deciding.decide(request(progress, at_ms=70.0, seed=seed + 100))
        logged = [*plan.logged, *correction.logged]
        corrections.add(choice(logged[-1]).correction)
        for decision, (d, action) in zip(logged, seen, strict=True):
            check_eligible(decision, d, action)
        assert {decision.policy for decision in logged} == {"v7"} == {plan.policy, correction.policy}
        assert (logged[0].at_ms, logged[-1].at_ms) == (0.0, 70.0)
        assert choice(logged[-1]).correction == "repair" or choice(logged[-1]).task_type is None
    assert len(corrections) >= 5


def test_a_plan_is_answered_by_name_and_a_correction_too() -> None:
    plan = decider(by_rules()).decide(DecisionRequest(context=TEXT))
    assert plan.action == [
        {"task_type": "draft", "worker": "b", "dependencies": []},
        {"task_type": "send", "worker": "c", "dependencies": [0]},
    ]
    assert plan.propensity == 1.0
    progress = some_progress(failed=True)
    progress.steps[-1].attempts = 2
    switch = decider(by_rules(), Limits(max_nodes=3)).decide(request(progress))
    assert switch.action == {"correction": "switch", "worker": "c"}
    assert len(switch.logged) == 1


def test_what_is_probable_is_the_product_of_its_parts() -> None:
    plan = decider(at_random).decide(request(seed=3))
    product = 1.0
    for decision in plan.logged:
        product *= decision.propensity or 0.0
    assert plan.propensity == pytest.approx(product)
    assert 0 < product < 1


def test_what_was_known_is_logged_with_the_first_of_a_plan() -> None:
    plan = decider(by_rules()).decide(request())
    assert [decision.context for decision in plan.logged] == [{"live": [list(one) for one in LIVE]}, None, None]
    progress = some_progress(failed=True)
    (decision,) = decider(by_rules()).decide(request(progress)).logged
    assert decision.context["failed"] == 1
    assert decision.context["state"] == msgspec.json.decode(msgspec.json.encode(to_state(progress)))


def test_without_live_numbers_the_catalogue_has_them() -> None:
    deciding = decider(at_random)
    assert deciding.decide(DecisionRequest(context=TEXT, seed=4)) == deciding.decide(request(seed=4))


def test_a_state_off_the_wire_is_as_good() -> None:
    asked = request(some_progress(failed=True), seed=2)
    wire = msgspec.json.decode(msgspec.json.encode(asked), type=DecisionRequest)
    assert decider(at_random).decide(wire) == decider(at_random).decide(asked)


def test_the_same_seed_samples_the_same() -> None:
    def drawn(seed: int) -> Decision:
        return decider(at_random).decide(request(seed=seed))

    assert drawn(4) == drawn(4)
    assert len({str(drawn(seed)) for seed in range(8)}) > 4


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (DecisionRequest(context=None), "the context of a workflow is None"),
        (DecisionRequest(context={"instruction": 3}), "expected its instruction as text"),
        (DecisionRequest(context={"instruction": TEXT, "live": [[1, 2]]}), "cannot be read"),
        (DecisionRequest(context={"instruction": TEXT, "live": [list(LIVE[0])]}), "live has 1 workers: expected the 3"),
        (DecisionRequest(context=TEXT, state={"steps": 3}), "cannot be read"),
        (DecisionRequest(context=TEXT, options=("a",)), "options are for a choice"),
    ],
)
def test_a_request_of_another_form_is_refused(asked: DecisionRequest, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decider(at_random).decide(asked)


@pytest.mark.parametrize("text", [TEXT, "Mail the text.", "qwertz uiop", "!", "a" * 10_000])
def test_the_rule_based_expert_plans_whatever_it_is_asked(text: str) -> None:
    plan = decider(by_rules()).decide(DecisionRequest(context=text))
    assert {decision.propensity for decision in plan.logged} == {1.0}
    assert plan.action
    if text == TEXT:
        assert [node["worker"] for node in plan.action] == ["b", "c"]  # the highest reputation


def test_it_tries_again_then_somebody_else_then_goes_on_without() -> None:
    progress = some_progress(failed=True, nodes=2)
    step = progress.steps[-1]
    made, again = [], []
    for attempts in (1, 2, 3):
        step.attempts = attempts
        limits = Limits(max_nodes=3, max_attempts=3)
        for choosers, found in ((by_rules(), made), (by_rules(retries_only=True), again)):
            found.append(decider(choosers, limits).decide(request(progress)).action["correction"])
    assert made == ["retry", "switch", "skip"]
    assert again == ["retry", "retry", "abort"]


def test_what_cannot_be_planned_is_an_error() -> None:
    none_available = tuple(live._replace(available=False) for live in LIVE)
    with pytest.raises(CatalogueError, match="no task type can be done now"):
        decider(at_random).decide(request(live=none_available))
    with pytest.raises(PlanError, match="empty"):
        decider(at_random).decide(DecisionRequest(context=" \n"))


def test_with_something_done_a_plan_may_end_where_nothing_more_can_be_done() -> None:
    none_available = tuple(live._replace(available=False) for live in LIVE)
    progress = some_progress(nodes=1)
    progress.steps[0].status = Status.DONE
    plan = decider(at_random).decide(request(progress, none_available))
    (decision,) = plan.logged
    assert (plan.action, decision.action, decision.eligible["stop"]) == ([], {}, True)


@pytest.mark.parametrize(
    ("part", "value", "reported"),
    [
        ("type", RULES.types, "stopped before its plan had a node"),
        ("worker", 2, "worker 2"),  # who cannot draft
        ("links", 1, "dependency 1"),
    ],
)
def test_what_the_rules_do_not_allow_is_refused_whoever_chose_it(part: str, value: int, reported: str) -> None:
    def wilful(rules: Rules, instruction: str) -> Chooser:
        action = {"correction": Correction.ABORT, "type": 0, "worker": 0}
        chosen = {name: torch.tensor([int(x)]) for name, x in action.items()}
        chosen["links"] = torch.zeros((1, rules.nodes), dtype=torch.bool)
        chosen |= {
            part: torch.eye(rules.nodes, dtype=torch.bool)[[value]] if part == "links" else torch.tensor([value])
        }
        return lambda draft, rng: [(chosen, 1.0)]

    with pytest.raises(PlanError, match=reported):
        decider(wilful).decide(request())


def test_from_many_threads_it_answers_as_from_one() -> None:
    states = [None, some_progress(), some_progress(failed=True)]
    asked = [request(states[i % 3], seed=i) for i in range(60)]
    for choosers in (at_random, by_rules(), exploring(by_rules(), 0.5)):
        deciding: Decider = decider(choosers)
        alone = [deciding.decide(one) for one in asked]
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(deciding.decide, asked * 4)) == alone * 4
