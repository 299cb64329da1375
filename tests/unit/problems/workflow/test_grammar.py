"""The rules by hand: what may be chosen in a small catalogue, and what each choice does to every tensor of a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from etude.contracts.errors import CatalogueError, PlanError
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.grammar import UNKNOWN_SUCCESS, UNLIMITED, Correction, Rules, Status
from etude.problems.workflow.plan import Limits, topological_order

DRAFT, REVIEW, FIX, STOP = range(4)
A, B, C = range(3)
ABORT, RETRY, SWITCH, REPAIR, REPLAN, SKIP = (
    Correction[name] for name in ("ABORT", "RETRY", "SWITCH", "REPAIR", "REPLAN", "SKIP")
)
CATALOGUE = Catalogue(
    task_types=(TaskType(name="draft"), TaskType(name="review"), TaskType(name="fix")),
    workers=(
        Worker(name="a", usd_per_call=1.0, latency_ms=10.0),
        Worker(name="b", task_types=("draft", "review"), usd_per_call=2.0, latency_ms=20.0, quota=3, success_rate=0.9),
        Worker(name="c", task_types=("fix",), usd_per_call=0.5, latency_ms=5.0),
    ),
)
LIMITS = Limits(max_nodes=5, max_cost_usd=10.0, max_time_ms=100.0, max_attempts=2, max_corrections=3, max_replans=1)
RULES = Rules(CATALOGUE, LIMITS)


def action(
    rules: Rules = RULES, *, correction: int = ABORT, type: int = STOP, links: Sequence[int] = (), worker: int = 0
) -> Action:
    linked = torch.zeros((1, rules.nodes), dtype=torch.bool)
    linked[0, list(links)] = True
    one = {"correction": correction, "type": type, "worker": worker}
    return {"links": linked, **{name: torch.tensor([value]) for name, value in one.items()}}


def grown(rules: Rules, *nodes: tuple[int, Sequence[int], int], draft: Obs | None = None) -> Obs:
    """A draft with these nodes (type, dependencies, worker) more, each chosen legally."""
    d = rules.begin(1) if draft is None else draft
    for task_type, links, worker in nodes:
        chosen = action(rules, type=task_type, links=links, worker=worker)
        assert is_legal(rules, d, chosen), (task_type, links, worker)
        d, stopped = rules.grow(d, chosen)
        assert not stopped
    return d


def is_legal(rules: Rules, d: Obs, chosen: Action) -> bool:
    correction, task_type, links = chosen["correction"], chosen["type"], chosen["links"]
    return bool(
        rules.corrections(d)[0, correction]
        and rules.task_types(d, correction)[0, task_type]
        and not (links & ~rules.dependencies(d, task_type)).any()
        and rules.workers_for(d, correction, task_type, links)[0, chosen["worker"]]
    )


def failing(d: Obs, node: int, *done: int, error: int = 4) -> Obs:
    """The draft when these nodes are done and this one has failed."""
    d = {name: value.clone() for name, value in d.items()}
    d["status"][0, list(done)] = Status.DONE
    d["status"][0, node] = Status.FAILED
    d["failed"][0], d["error"][0] = node, error
    return d


def amended(rules: Rules, d: Obs, *, correction: int, type: int = STOP, worker: int = 0) -> Obs:
    what = action(rules, correction=correction, type=type, worker=worker)
    assert is_legal(rules, d, what), what
    after, aborts = rules.amend(d, what)
    assert not aborts
    return after


def corrections(d: Obs, rules: Rules = RULES) -> set[Correction]:
    return {Correction(i) for i in range(6) if rules.corrections(d)[0, i]}


def types(d: Obs, correction: int = ABORT, rules: Rules = RULES) -> list[int]:
    return true(rules.task_types(d, torch.tensor([correction])))


def workers(d: Obs, correction: int, task_type: int, links: Sequence[int] = (), rules: Rules = RULES) -> list[int]:
    chosen = action(rules, correction=correction, type=task_type, links=links)
    return true(rules.workers_for(d, chosen["correction"], chosen["type"], chosen["links"]))


def true(mask: Tensor) -> list[int]:
    return mask[0].nonzero()[:, 0].tolist()


def live(d: Obs, **changed: tuple[int, float]) -> Obs:
    """The draft with one entry of each named tensor changed, as live statistics do between two decisions."""
    d = {name: value.clone() for name, value in d.items()}
    for name, (index, value) in changed.items():
        d[name][0, index] = value
    return d


def seen(d: Obs) -> dict[str, object]:
    """A draft in Python, links as pairs."""
    found: dict[str, object] = {name: value[0].tolist() for name, value in d.items()}
    return found | {"links": [tuple(pair) for pair in d["links"][0].nonzero().tolist()]}


def diamond(rules: Rules = RULES) -> Obs:
    """0 draft a [0, 10], 1 review b [10, 30], 2 draft a [10, 20], 3 review b [30, 50]."""
    return grown(rules, (DRAFT, [], A), (REVIEW, [0], B), (DRAFT, [0], A), (REVIEW, [1, 2], B))


def broken() -> Obs:
    """The diamond at 30 ms: 0 and 2 are done, 1 has failed."""
    return failing(diamond(), 1, 0, 2)


def test_a_draft_begins_empty_over_the_catalogue_as_it_is() -> None:
    d = seen(RULES.begin(1))
    zeros = [0.0] * 5
    assert d == {
        "offered": [True] * 3,
        "available": [True] * 3,
        "price": [1.0, 2.0, 0.5],
        "latency": [10.0, 20.0, 5.0],
        "success": [UNKNOWN_SUCCESS, 0.9, UNKNOWN_SUCCESS],
        "calls": [UNLIMITED, 3.0, UNLIMITED],
        "types": [-1] * 5,
        "workers": [-1] * 5,
        "links": [],
        **dict.fromkeys(("cost", "duration", "ready", "finish"), zeros),
        "status": [0] * 5,
        "attempts": [0] * 5,
        "length": 0,
        "spent": 0.0,
        "clock": 0.0,
        "failed": -1,
        "error": 0,
        "tried": [False] * 3,
        "corrections": 0,
        "replans": 0,
    }


def test_every_node_takes_its_cost_its_call_and_its_time() -> None:
    d, before = seen(diamond()), seen(RULES.begin(1))
    assert d == before | {
        "types": [DRAFT, REVIEW, DRAFT, REVIEW, -1],
        "workers": [A, B, A, B, -1],
        "links": [(1, 0), (2, 0), (3, 1), (3, 2)],
        "cost": [1.0, 2.0, 1.0, 2.0, 0.0],
        "duration": [10.0, 20.0, 10.0, 20.0, 0.0],
        "finish": [10.0, 30.0, 20.0, 50.0, 0.0],
        "attempts": [1, 1, 1, 1, 0],
        "length": 4,
        "spent": 6.0,
        "calls": [UNLIMITED - 2, 1.0, UNLIMITED],
    }


def test_a_stop_changes_nothing() -> None:
    before = diamond()
    d, stopped = RULES.grow(before, action())
    assert stopped.tolist() == [True]
    assert seen(d) == seen(before)


def test_while_planning_the_correction_is_a_dummy() -> None:
    assert corrections(diamond()) == {ABORT}


def test_an_empty_draft_cannot_stop_and_a_full_one_must() -> None:
    assert types(RULES.begin(1)) == [DRAFT, REVIEW, FIX]
    assert types(diamond()) == [DRAFT, REVIEW, FIX, STOP]
    assert types(grown(RULES, (FIX, [], C), draft=diamond())) == [STOP]


def test_a_stop_needs_neither_dependencies_nor_a_worker() -> None:
    assert true(RULES.dependencies(diamond(), torch.tensor([STOP]))) == []
    assert workers(diamond(), ABORT, STOP) == [0]


def test_only_earlier_nodes_can_be_depended_on() -> None:
    assert true(RULES.dependencies(RULES.begin(1), torch.tensor([DRAFT]))) == []
    assert true(RULES.dependencies(diamond(), torch.tensor([DRAFT]))) == [0, 1, 2, 3]


def test_only_the_able_are_given_work() -> None:
    d = RULES.begin(1)
    assert [workers(d, ABORT, t) for t in (DRAFT, REVIEW, FIX)] == [[A, B], [A, B], [A, C]]
    assert workers(live(d, available=(A, False)), ABORT, FIX) == [C]


def test_quota_is_used_up() -> None:
    d = grown(RULES, *[(DRAFT, [], B)] * 3)
    assert workers(d, ABORT, DRAFT) == [A]
    assert types(live(d, available=(A, False))) == [FIX, STOP]  # no worker is left for the others


def test_what_is_withdrawn_or_added_between_two_decisions_counts_at_once() -> None:
    d = diamond()
    assert types(live(d, offered=(REVIEW, False))) == [DRAFT, FIX, STOP]
    assert types(live(d, available=(C, False))) == [DRAFT, REVIEW, FIX, STOP]  # a does it
    away = live(live(d, available=(C, False)), available=(A, False))
    assert types(away) == [DRAFT, REVIEW, STOP]
    assert types(live(away, available=(C, True))) == [DRAFT, REVIEW, FIX, STOP]
    assert workers(live(d, calls=(B, 0)), ABORT, DRAFT) == [A]
    assert workers(live(d, price=(A, 4.5)), ABORT, DRAFT) == [B]
    assert workers(live(d, latency=(A, 101.0)), ABORT, DRAFT) == [B]


def test_a_dependency_that_leaves_no_worker_enough_time_is_illegal() -> None:
    rules = Rules(CATALOGUE, Limits(max_nodes=4, max_time_ms=45.0))
    d = grown(rules, (DRAFT, [], A), (REVIEW, [0], B), (DRAFT, [1], A))  # end at 10, 30, 40
    assert true(rules.dependencies(d, torch.tensor([DRAFT]))) == [0, 1]  # 30 + 10 of a; 40 + 10 is too late
    assert true(rules.dependencies(d, torch.tensor([FIX]))) == [0, 1, 2]  # 40 + 5 of c
    assert workers(d, ABORT, DRAFT, [0], rules=rules) == [A, B]
    assert workers(d, ABORT, DRAFT, [1], rules=rules) == [A]
    assert workers(d, ABORT, FIX, [2], rules=rules) == [C]


def test_the_quickest_that_counts_for_a_dependency_can_also_be_paid() -> None:
    rules = Rules(CATALOGUE.updated("a", usd_per_call=5.0), Limits(max_nodes=4, max_cost_usd=4.0, max_time_ms=35.0))
    d = grown(rules, (DRAFT, [], B))  # a would be in time after it, but costs too much
    assert true(rules.dependencies(d, torch.tensor([DRAFT]))) == []
    assert workers(d, ABORT, DRAFT, rules=rules) == [B]


@pytest.mark.parametrize("count", [3, 7, 300])
def test_budgets_can_be_used_up_to_the_edge_and_no_further(count: int) -> None:
    one = Catalogue(task_types=(TaskType(name="t"),), workers=(Worker(name="w", usd_per_call=0.1, latency_ms=0.1),))
    limits = Limits(max_nodes=count + 1, max_cost_usd=count / 10, max_time_ms=count / 10)
    rules = Rules(one, limits)
    d = rules.begin(1)
    for i in range(count):
        d = grown(rules, (0, [i - 1] if i else [], 0), draft=d)
    assert types(d, rules=rules) == [1]
    rules.plans(d, [""])  # and the one place that says what is valid agrees
    short = count / 10 * (1 - 1e-8)
    for money, time in ((short, None), (None, short)):
        rules = Rules(one, Limits(max_nodes=count + 1, max_cost_usd=money, max_time_ms=time))
        d = grown(rules, *[(0, [i - 1] if i else [], 0) for i in range(count - 1)])
        last = action(rules, type=0, links=[count - 2])
        assert not is_legal(rules, d, last)


def test_without_workers_a_placeholder_does_everything() -> None:
    rules = Rules(CATALOGUE.withdrawn("a", "b", "c"), Limits(max_nodes=2, max_cost_usd=0.1, max_time_ms=0.1))
    d = grown(rules, (FIX, [], 0), (REVIEW, [0], 0))
    assert seen(d)["calls"] == [UNLIMITED - 2]
    (plan,) = rules.plans(d, ["do it"])
    assert [(node.task_type, node.worker, node.dependencies) for node in plan.nodes] == [
        ("fix", None, ()),
        ("review", None, (0,)),
    ]
    assert corrections(failing(d, 1, 0), rules) == {RETRY, REPLAN, SKIP, ABORT}


def test_a_catalogue_without_task_types_is_refused() -> None:
    with pytest.raises(CatalogueError, match=r"no task types: nothing can be planned"):
        Rules(Catalogue(task_types=(), workers=(Worker(name="w"),)), LIMITS)


@pytest.mark.parametrize(
    ("changed", "limits"),
    [
        ({"available": False}, Limits()),
        ({"quota": 0}, Limits()),
        ({"task_types": ()}, Limits()),
        ({"usd_per_call": 2.0}, Limits(max_cost_usd=1.0)),
        ({"latency_ms": 2.0}, Limits(max_time_ms=1.0)),
    ],
)
def test_a_plan_that_cannot_begin_is_an_error_and_an_empty_stop(changed: dict[str, object], limits: Limits) -> None:
    one = Catalogue(task_types=(TaskType(name="t"),), workers=(Worker(name="w"),))
    Rules(one, limits).check(Rules(one, limits).begin(2))
    rules = Rules(one.updated("w", **changed), limits)
    d = rules.begin(2)
    with pytest.raises(CatalogueError, match=r"no task type can be done now"):
        rules.check(d)
    assert types(d, rules=rules) == [1]
    assert workers(d, ABORT, 1, rules=rules) == [0]
    with pytest.raises(PlanError, match=r"no nodes"):
        rules.plans(rules.begin(1), [""])


def test_one_row_that_cannot_begin_is_found_among_many() -> None:
    d = RULES.begin(3)
    d["available"][1] = False
    with pytest.raises(CatalogueError):
        RULES.check(d)


@pytest.mark.parametrize(
    ("chosen", "changed"),
    [
        pytest.param(
            {"correction": RETRY},
            {
                "cost": [1.0, 2.0, 1.0, 2.0, 0.0],
                "ready": [0.0, 30.0, 0.0, 0.0, 0.0],
                "finish": [10.0, 50.0, 20.0, 70.0, 0.0],
                "status": [Status.DONE, Status.PLANNED, Status.DONE, Status.PLANNED, 0],
                "attempts": [1, 2, 1, 1, 0],
                "spent": 8.0,
                "calls": [UNLIMITED - 2, 0.0, UNLIMITED],
            },
            id="retry",
        ),
        pytest.param(
            {"correction": SWITCH, "worker": A},
            {
                "workers": [A, A, A, B, -1],
                "cost": [1.0, 1.0, 1.0, 2.0, 0.0],
                "duration": [10.0, 10.0, 10.0, 20.0, 0.0],
                "ready": [0.0, 30.0, 0.0, 0.0, 0.0],
                "finish": [10.0, 40.0, 20.0, 60.0, 0.0],
                "status": [Status.DONE, Status.PLANNED, Status.DONE, Status.PLANNED, 0],
                "attempts": [1, 2, 1, 1, 0],
                "spent": 7.0,
                "calls": [UNLIMITED - 3, 1.0, UNLIMITED],
            },
            id="switch",
        ),
        pytest.param(
            {"correction": REPAIR, "type": FIX, "worker": C},
            {
                "types": [DRAFT, REVIEW, DRAFT, REVIEW, FIX],
                "workers": [A, B, A, B, C],
                "links": [(1, 0), (1, 4), (2, 0), (3, 1), (3, 2), (4, 0)],
                "cost": [1.0, 2.0, 1.0, 2.0, 0.5],
                "duration": [10.0, 20.0, 10.0, 20.0, 5.0],
                "ready": [0.0, 30.0, 0.0, 0.0, 30.0],
                "finish": [10.0, 55.0, 20.0, 75.0, 35.0],
                "status": [Status.DONE, Status.PLANNED, Status.DONE, Status.PLANNED, Status.PLANNED],
                "attempts": [1, 2, 1, 1, 1],
                "length": 5,
                "spent": 8.5,
                "calls": [UNLIMITED - 2, 0.0, UNLIMITED - 1],
            },
            id="repair",
        ),
        pytest.param(
            {"correction": REPLAN},
            {
                "types": [DRAFT, DRAFT, -1, -1, -1],
                "workers": [A, A, -1, -1, -1],
                "links": [(1, 0)],
                "cost": [1.0, 1.0, 0.0, 0.0, 0.0],
                "duration": [10.0, 10.0, 0.0, 0.0, 0.0],
                "finish": [10.0, 20.0, 0.0, 0.0, 0.0],
                "status": [Status.DONE, Status.DONE, 0, 0, 0],
                "attempts": [1, 1, 0, 0, 0],
                "length": 2,
                "spent": 4.0,  # the last node's 2 come back, the failed one's do not
                "calls": [UNLIMITED - 2, 2.0, UNLIMITED],
                "clock": 30.0,
                "replans": 1,
            },
            id="replan",
        ),
        pytest.param(
            {"correction": SKIP}, {"status": [Status.DONE, Status.SKIPPED, Status.DONE, Status.PLANNED, 0]}, id="skip"
        ),
    ],
)
def test_a_correction(chosen: dict[str, int], changed: dict[str, object]) -> None:
    before = broken()
    assert corrections(before) == set(Correction)
    d = amended(RULES, before, **chosen)
    assert seen(d) == seen(before) | {"failed": -1, "error": 0, "corrections": 1} | changed


def test_an_abort_ends_the_workflow_and_is_no_correction_of_it() -> None:
    before = broken()
    d, aborts = RULES.amend(before, action(correction=ABORT))
    assert aborts.tolist() == [True]
    assert seen(d) == seen(before) | {"failed": -1, "error": 0}


def test_choices_leave_the_draft_they_were_made_in_as_it_was() -> None:
    for correction in Correction:
        before = broken()
        kept = seen(before)
        RULES.amend(before, action(correction=correction, type=FIX, worker=C))
        RULES.grow(before, action(correction=correction, type=FIX, worker=C))
        assert seen(before) == kept
    before = diamond()
    kept = seen(before)
    RULES.grow(before, action(type=FIX, worker=C, links=[0, 3]))
    assert seen(before) == kept


def test_rows_of_a_batch_in_different_modes_are_what_each_is_alone() -> None:
    rows = [
        (diamond(), action(type=FIX, worker=C, links=[3])),
        (diamond(), action()),
        (broken(), action(correction=RETRY)),
        (broken(), action(correction=SWITCH, worker=A)),
        (broken(), action(correction=REPAIR, type=FIX, worker=C)),
        (broken(), action(correction=REPLAN)),
        (broken(), action(correction=SKIP)),
        (broken(), action(correction=ABORT)),
        (RULES.begin(1), action(type=DRAFT, worker=B)),
    ]
    d: Obs = {name: torch.cat([row[name] for row, _ in rows]) for name in rows[0][0]}
    chosen = {name: torch.cat([what[name] for _, what in rows]) for name in rows[0][1]}
    grew, stopped = RULES.grow(d, chosen)
    both, aborts = RULES.amend(grew, chosen)
    assert stopped.tolist() == [False, True, *[False] * 7]
    assert aborts.tolist() == [*[False] * 7, True, False]
    for i, (row, what) in enumerate(rows):
        alone, _ = (RULES.grow if row["failed"] < 0 else RULES.amend)(row, what)
        assert seen({name: value[i : i + 1] for name, value in both.items()}) == seen(alone)
        masks: tuple[Callable[[Obs, Action], Tensor], ...] = (
            lambda x, _: RULES.corrections(x),
            lambda x, y: RULES.task_types(x, y["correction"]),
            lambda x, y: RULES.dependencies(x, y["type"]),
            lambda x, y: RULES.workers_for(x, y["correction"], y["type"], y["links"]),
        )
        for mask in masks:
            assert mask(d, chosen)[i].tolist() == mask(row, what)[0].tolist()


def test_amending_does_not_reschedule_drafts_that_did_not_fail() -> None:
    d = diamond()
    d["finish"][0, 2] = 25.0  # what a world saw, not what was planned
    d["error"][0] = 3
    after, _ = RULES.amend(d, action())
    assert seen(after) == seen(d)


@pytest.mark.parametrize(
    ("changed", "gone"),
    [
        ({"available": (B, False)}, {RETRY, REPAIR}),
        ({"calls": (B, 0)}, {RETRY, REPAIR}),
        ({"offered": (REVIEW, False)}, {RETRY, SWITCH, REPAIR}),
        ({"available": (A, False)}, {SWITCH}),
        ({"price": (B, 4.0)}, {REPAIR}),  # 6 + 4 is within 10, with the repair's 0.5 it is not
        ({"price": (B, 4.5)}, {RETRY, REPAIR}),
        ({"price": (A, 4.5)}, {SWITCH}),
        ({"latency": (B, 50.0)}, {REPAIR}),
        ({"latency": (B, 51.0)}, {RETRY, REPAIR}),
        ({"latency": (A, 51.0)}, {SWITCH}),
        ({"attempts": (1, 2)}, {RETRY, SWITCH, REPAIR}),
    ],
)
def test_what_a_change_takes_away(changed: dict[str, tuple[int, float]], gone: set[Correction]) -> None:
    assert corrections(live(broken(), **changed)) == set(Correction) - gone


def test_a_full_draft_has_no_room_for_a_repair() -> None:
    d = failing(grown(RULES, (FIX, [3], C), draft=diamond()), 1, 0, 2)
    assert corrections(d) == set(Correction) - {REPAIR}


def test_after_the_last_correction_only_an_abort_is_left() -> None:
    d = broken()
    d["corrections"][0] = 2
    assert corrections(d) == set(Correction)
    d = amended(RULES, d, correction=SKIP)
    assert d["corrections"].tolist() == [3]
    d = failing(d, 3)
    assert corrections(d) == {ABORT}
    d, _ = RULES.amend(d, action(correction=ABORT))
    assert d["corrections"].tolist() == [LIMITS.max_corrections]


def test_after_the_last_replan_there_is_none() -> None:
    d = broken()
    d["replans"][0] = 1
    assert corrections(d) == set(Correction) - {REPLAN}


def test_choices_of_a_switch_and_of_a_repair() -> None:
    d = broken()
    assert types(d, SWITCH) == types(d, RETRY) == types(d, REPLAN) == [STOP]
    assert workers(d, SWITCH, STOP) == [A]
    assert workers(d, RETRY, STOP) == workers(d, SKIP, STOP) == [0]
    assert types(d, REPAIR) == [DRAFT, REVIEW, FIX]
    assert workers(d, REPAIR, FIX) == [A, C]
    assert true(RULES.dependencies(d, torch.tensor([FIX]))) == []


def test_a_repair_by_the_worker_that_tries_again_needs_two_calls() -> None:
    d = broken()
    assert d["calls"][0, B] == 1
    assert workers(d, REPAIR, DRAFT) == [A]
    assert workers(live(d, calls=(B, 2)), REPAIR, DRAFT) == [A, B]
    after = amended(RULES, live(d, calls=(B, 2)), correction=REPAIR, type=DRAFT, worker=B)
    assert after["calls"][0, B] == 0


def test_a_repair_stands_before_what_it_repairs_in_the_plan() -> None:
    d = amended(RULES, broken(), correction=REPAIR, type=FIX, worker=C)
    (plan,) = RULES.plans(d, ["do it"])
    assert [(node.task_type, node.dependencies) for node in plan.nodes] == [
        ("draft", ()),
        ("draft", (0,)),
        ("fix", (0,)),
        ("review", (0, 2)),
        ("review", (1, 3)),
    ]


def test_repairs_of_repairs_stay_acyclic_and_push_on_all_that_waits() -> None:
    rules = Rules(CATALOGUE, Limits(max_nodes=6))
    d = failing(grown(rules, (FIX, [], C), (DRAFT, [0], A)), 0)  # c [0, 5], a [5, 15]
    d = amended(rules, d, correction=REPAIR, type=FIX, worker=A)  # node 2 [5, 15], then 0 [15, 20], 1 [20, 30]
    assert d["finish"][0, :3].tolist() == [20, 30, 15]
    d = amended(rules, failing(d, 2), correction=REPAIR, type=DRAFT, worker=B)  # 3 [15, 35], 2 [35, 45], 0, 1
    assert d["finish"][0, :4].tolist() == [50, 60, 45, 35]
    d = amended(rules, failing(d, 3), correction=RETRY)  # 3 [35, 55], 2 [55, 65], 0 [65, 70], 1 [70, 80]
    assert d["finish"][0, :4].tolist() == [70, 80, 65, 55]
    d = amended(rules, failing(d, 0, 3, 2), correction=RETRY)  # 0 failed at 70: [70, 75], 1 [75, 85]
    assert d["finish"][0, :4].tolist() == [75, 85, 65, 55]
    assert d["spent"].item() == 0.5 + 1 + (1 + 0.5) + (2 + 1) + 2 + 0.5
    assert topological_order([row.nonzero()[:, 0].tolist() for row in d["links"][0, :4]]) == [3, 2, 0, 1]


def test_a_skipped_repair_lets_the_repaired_node_run() -> None:
    d = amended(RULES, broken(), correction=REPAIR, type=FIX, worker=C)
    d = amended(RULES, failing(d, 4), correction=SKIP)
    assert d["status"][0].tolist() == [Status.DONE, Status.PLANNED, Status.DONE, Status.PLANNED, Status.SKIPPED]
    assert d["finish"][0].tolist() == [10, 55, 20, 75, 35]


def test_a_done_repair_outlives_a_replan_with_its_links() -> None:
    d = amended(RULES, broken(), correction=REPAIR, type=FIX, worker=C)
    d = amended(RULES, failing(d, 3, 0, 1, 2, 4), correction=REPLAN)
    assert seen(d)["links"] == [(1, 0), (1, 3), (2, 0), (3, 0)]
    assert (d["types"][0].tolist(), d["clock"].item()) == ([DRAFT, REVIEW, DRAFT, FIX, -1], 75)
    d = grown(RULES, (DRAFT, [1, 3], A), draft=d)
    assert d["finish"][0, 4] == 85
    RULES.plans(d, [""])


def test_a_replan_before_anything_is_done_starts_again_at_the_time_of_the_failure() -> None:
    d = amended(RULES, failing(diamond(), 0), correction=REPLAN)
    empty = seen(RULES.begin(1))
    spent = {"spent": 1.0, "calls": [UNLIMITED - 1, 3.0, UNLIMITED]}
    assert seen(d) == empty | spent | {"clock": 10.0, "corrections": 1, "replans": 1}
    assert types(d) == [DRAFT, REVIEW, FIX]
    d = grown(RULES, (REVIEW, [], B), draft=d)
    assert d["finish"][0, 0] == 30


def test_time_that_has_passed_counts_for_what_is_planned_on() -> None:
    rules = Rules(CATALOGUE, Limits(max_nodes=3, max_time_ms=32.0))
    d = failing(grown(rules, (DRAFT, [], A), (REVIEW, [0], A)), 1, 0)  # at 20
    d = amended(rules, d, correction=REPLAN)
    assert workers(d, ABORT, DRAFT, rules=rules) == [A]  # 20 + 20 of b is too late
    d["clock"][0] = 25.0
    assert types(d, rules=rules) == [FIX, STOP]
    d["clock"][0] = 30.0
    assert types(d, rules=rules) == [STOP]


def test_a_replan_counts_on_what_it_gives_back() -> None:
    rules = Rules(CATALOGUE, Limits(max_nodes=3, max_cost_usd=5.0, max_time_ms=50.0))
    d = failing(grown(rules, (DRAFT, [], A), (REVIEW, [0], B), (REVIEW, [1], B)), 0)  # all money and time is given out
    assert corrections(d, rules) == {REPLAN, SKIP, ABORT}
    d = amended(rules, d, correction=REPLAN)
    assert (d["spent"].item(), d["calls"][0, B].item(), d["clock"].item()) == (1, 3, 10)
    grown(rules, (REVIEW, [], B), (REVIEW, [0], B), draft=d)


def test_a_replan_forgets_what_was_skipped_and_keeps_it_paid() -> None:
    d = amended(RULES, broken(), correction=SKIP)
    d = amended(RULES, failing(d, 3), correction=REPLAN)
    assert (d["types"][0].tolist(), seen(d)["links"]) == ([DRAFT, DRAFT, -1, -1, -1], [(1, 0)])
    assert (d["spent"].item(), d["clock"].item()) == (6, 50)


def test_what_has_begun_is_not_given_back() -> None:
    d = failing(grown(RULES, (DRAFT, [], A), (DRAFT, [], B), (REVIEW, [0], B)), 0)  # at 10, node 1 is half done
    d = amended(RULES, d, correction=REPLAN)
    assert (d["spent"].item(), d["calls"][0].tolist()) == (3, [UNLIMITED - 1, 2, UNLIMITED])


def test_what_comes_back_is_what_was_paid_whatever_the_price_is_now() -> None:
    d = live(broken(), price=(B, 3.5))
    assert amended(RULES, d, correction=REPLAN)["spent"].item() == 4
    retried = failing(amended(RULES, live(d, calls=(B, 5)), correction=RETRY), 1, 0, 2)
    assert retried["spent"].item() == 9.5
    assert amended(RULES, retried, correction=REPLAN)["spent"].item() == 7.5


def test_a_replan_that_could_not_go_on_is_illegal() -> None:
    d = broken()
    d["offered"][:] = False
    assert corrections(d) == {SKIP, ABORT}
    rules = Rules(CATALOGUE, Limits(max_time_ms=34.0))  # at 30 even c's 5 are too much
    assert corrections(failing(grown(rules, (DRAFT, [], A), (REVIEW, [0], B)), 1, 0), rules) == {SKIP, ABORT}


def test_a_failure_later_than_planned_takes_its_time_from_what_is_left() -> None:
    d = broken()  # all ends at 50; a may take 50 more
    assert workers(live(d, latency=(A, 50.0)), SWITCH, STOP) == [A]
    d["clock"][0] = 40.0  # the failure at 30 is answered at 40
    assert SWITCH not in corrections(live(d, latency=(A, 41.0)))
    d = amended(RULES, live(d, latency=(A, 40.0)), correction=SWITCH, worker=A)
    assert d["finish"][0].tolist() == [10, 80, 20, 100, 0]
