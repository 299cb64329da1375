"""How a crew remembers what its workers did, and who may be asked now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import WorkersError
from etude.contracts.work import Fault, Verdict
from etude.orchestrator.crew import MAX_DOWN_IN_A_ROW, MAX_REST_S, REST_S, Crew, Member
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers_file import enlist
from etude.problems.catalogue import Catalogue, Worker
from etude.problems.workflow.grammar import UNKNOWN_SUCCESS
from etude.problems.workflow.office.world import MEMORY
from tests.crew import DRAFT, READ, A, B, Says, ScriptedWorker, catalogue, entry


def crew(*entries: Worker) -> Crew:
    known = catalogue(*entries)
    return Crew(known, {one.name: ScriptedWorker(one.name) for one in known.workers})


def learn(
    member: Member,
    *faults: Fault | None,
    usd: float = 0.01,
    latency_ms: float = 1000.0,
    now_s: float = 0.0,
    rest_s: float | None = None,
) -> None:
    for fault in faults:
        member.learn(fault, usd=usd, latency_ms=latency_ms, now_s=now_s, rest_s=rest_s)


def there(some: Crew, now_s: float) -> list[bool]:
    return [one.available for one in some.live("x", now_s=now_s)]


def test_at_first_all_is_as_the_catalogue_says() -> None:
    some = crew(entry("a", success_rate=0.9, quota=3), entry("b", usd_per_call=2.0, latency_ms=5.0, available=False))
    assert some.live("x", now_s=0.0) == ((0.01, 1000.0, 0.9, True, 3), (2.0, 5.0, UNKNOWN_SUCCESS, False, None))


def test_a_success_changes_price_latency_and_share() -> None:
    (member, _) = crew().members
    learn(member, None, usd=0.41, latency_ms=5000.0)
    assert member.usd == pytest.approx(0.02)
    assert member.latency_ms == pytest.approx(1100.0)
    assert member.success == pytest.approx(0.5 + 0.5 / MEMORY)


def test_an_unknown_latency_is_that_of_the_first_call() -> None:
    (member,) = crew(entry("a", latency_ms=0.0)).members
    learn(member, None, latency_ms=700.0)
    assert member.latency_ms == 700.0


@pytest.mark.parametrize("fault", list(Fault))
def test_a_failure_changes_the_share_where_it_is_the_workers(fault: Fault) -> None:
    (member, _) = crew().members
    learn(member, fault, usd=9.0, latency_ms=9.0)
    assert (member.usd, member.latency_ms) == (0.01, 1000.0)
    innocent = fault in (Fault.WRONG_INPUT, Fault.NOT_APPLICABLE, Fault.BUDGET)
    assert member.success == (0.5 if innocent else 0.5 - 0.5 / MEMORY)


@given(st.lists(st.sampled_from([None, *Fault]), max_size=200))
def test_a_share_stays_a_share(faults: Sequence[Fault | None]) -> None:
    (member, _) = crew().members
    learn(member, *faults)
    assert 0 <= member.success <= 1


def test_one_that_is_out_of_order_again_and_again_is_left_alone_for_a_while() -> None:
    some = crew()
    member = some.members[A]
    learn(member, *[Fault.UNAVAILABLE] * (MAX_DOWN_IN_A_ROW - 1), now_s=100.0)
    assert there(some, 100.0) == [True, True]
    learn(member, Fault.RATE_LIMIT, now_s=100.0)
    assert there(some, 100.0) == [False, True]
    assert there(some, 100.0 + REST_S) == [True, True]
    learn(member, Fault.UNAVAILABLE, now_s=200.0)
    assert there(some, 200.0 + 1.9 * REST_S) == [False, True]  # longer each time
    assert there(some, 200.0 + 2 * REST_S) == [True, True]
    learn(member, None, now_s=300.0)
    learn(member, Fault.UNAVAILABLE, now_s=300.0)
    assert there(some, 300.0) == [True, True]  # it starts again


def test_it_rests_as_long_as_it_says_within_reason() -> None:
    some = crew()
    learn(some.members[A], Fault.RATE_LIMIT, now_s=10.0, rest_s=7.0)
    assert [there(some, now)[A] for now in (16.9, 17.0)] == [False, True]
    learn(some.members[A], Fault.RATE_LIMIT, now_s=10.0, rest_s=1e6)
    assert [there(some, 10 + MAX_REST_S - d)[A] for d in (0.1, 0.0)] == [False, True]


def test_one_that_is_down_for_ever_rests_no_longer_than_the_longest() -> None:
    some = crew()
    learn(some.members[A], *[Fault.UNAVAILABLE] * 3000, now_s=10.0)  # 2 to the power of that is no number
    assert [there(some, 10 + MAX_REST_S - d)[A] for d in (0.1, 0.0)] == [False, True]


def test_a_worker_out_of_order_is_asked_rather_than_none() -> None:
    some = crew(entry("a", task_types=("read",)), entry("b", task_types=("draft",)), entry("c", task_types=("draft",)))
    for member in some.members[:2]:
        learn(member, Fault.RATE_LIMIT, rest_s=50.0)
    assert there(some, 1.0) == [True, False, True]


@pytest.mark.parametrize("gone", [{"available": False}, {"quota": 0}], ids=["absent", "used up"])
def test_a_worker_that_cannot_be_asked_is_not_counted_on(gone: dict[str, object]) -> None:
    some = crew(entry("a"), entry("b", **gone))
    learn(some.members[A], Fault.RATE_LIMIT, rest_s=50.0)
    assert there(some, 1.0)[A]


def test_calls_are_counted_where_they_are_limited() -> None:
    some = crew(entry("a", quota=2), entry("b"))
    for member in some.members:
        member.begin()
    assert [one.calls for one in some.live("x", now_s=0.0)] == [1, None]


def test_a_worker_takes_any_number_at_a_time_unless_it_says_otherwise() -> None:
    known = catalogue()
    some = Crew(known, {name: ScriptedWorker(name) for name in "ab"}, concurrency={"b": 2})

    async def places() -> list[int | None]:
        found = [member.slots() for member in some.members]
        assert some.members[B].slots() is found[B]
        return [slots and slots._value for slots in found]

    assert run_virtually(places()) == [None, 2]


def test_every_worker_of_the_catalogue_is_somebody() -> None:
    with pytest.raises(WorkersError, match="no implementation for the catalogue's worker 'b'"):
        Crew(catalogue(), {"a": ScriptedWorker("a")})
    with pytest.raises(WorkersError, match="no workers"):
        Crew(Catalogue(task_types=catalogue().task_types), {})


def test_all_are_closed() -> None:
    hands = {"a": ScriptedWorker("a"), "b": ScriptedWorker("b")}
    asyncio.run(Crew(catalogue(), hands, judge=Says(Verdict(ok=True))).close())
    assert [worker.closed for worker in hands.values()] == [1, 1]


def test_a_worker_that_cannot_be_reached_is_given_no_work() -> None:
    known = catalogue(entry("a"), entry("b", task_types=("read",)))
    some = Crew(known, {"a": ScriptedWorker("a"), "b": ScriptedWorker("b")})
    some.unreachable = {"a": "a does not answer"}
    assert there(some, 0.0) == [False, True]
    some.check_reachable([READ])
    with pytest.raises(WorkersError, match=r"'draft' is needed, and no worker that can do it .*: a does not answer"):
        some.check_reachable([READ, DRAFT])


def test_workers_by_name_take_the_catalogues_place() -> None:
    known = catalogue(entry("a", usd_per_call=3.0), entry("b"))
    some = enlist({"a": ScriptedWorker("a"), "new": lambda subtask: "x"}, known)
    assert [(one.name, one.usd_per_call) for one in some.catalogue.workers] == [("a", 3.0), ("new", 0.0)]
    assert some.catalogue.task_types == known.task_types
    assert enlist(some, known) is some
