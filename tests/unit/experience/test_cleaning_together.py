"""Trajectories that are redacted together get the bytes that each would get by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import EventError
from etude.contracts.trajectory import Trajectory
from etude.experience.cleaning import Cleaner
from etude.experience.redact import RedactionConfig

NOW = datetime(2026, 11, 18, tzinfo=UTC)
PERSONAL = ("ana@example.com", "call +49 30 901820", "4111 1111 1111 1111", "password: hunter2!x", "10.1.2.3")
PLAIN = (
    "where is my parcel?",
    "part 12",
    "",
    "\x00",
    "v1.2.3",
    "[EMAIL_1]",
    "phone",
    "4111",
    "1111 1111 1111",
    "é — 中",
)
texts = st.sampled_from(PERSONAL + PLAIN) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.just("api_key"), inner, max_size=3),
    max_leaves=6,
)
names = texts.map(lambda text: text[:50] or "n")


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    return [_one(i, draw) for i in range(draw(st.integers(1, 4)))]


def _one(i: int, draw: st.DrawFn) -> Trajectory:
    decision = LoggedDecision(
        problem="choice:model",
        context=draw(values),
        eligible=draw(st.lists(values, max_size=3)),
        action=draw(texts),
        policy="uniform",
    )
    return Trajectory(
        id=f"t-{i}",
        time=NOW,
        task=draw(texts),
        problem="choice:model",
        policy="uniform",
        agent=draw(st.none() | names),
        user=draw(st.none() | names),
        tenant=draw(st.sampled_from([None, "acme", "other"])),
        decisions=(decision,) * draw(st.integers(1, 2)),
        metadata=draw(st.none() | st.dictionaries(texts, values, max_size=2)),
    )


CLEANER = Cleaner(RedactionConfig(), allow={"acme": ("ana@example.com",)})


@settings(max_examples=150, deadline=None)
@given(trajectories())
def test_together_is_as_each_by_itself(made: list[Trajectory]) -> None:
    assert CLEANER.clean_all(made) == [CLEANER(one) for one in made]


def one(i: int = 0, **fields: Any) -> Trajectory:
    return Trajectory(**{"id": f"t-{i}", "time": NOW, "task": "x", "problem": "task"} | fields)


def errors(found: Sequence[object]) -> list[bool]:
    return [isinstance(body, EventError) for body in found]


def test_one_that_cannot_be_sent_harms_no_other() -> None:
    wrong = one(1, problem="p" * 300)
    assert errors(CLEANER.clean_all([one(0), wrong, one(2)])) == [False, True, False]
    surrogate = one(1, task="\ud800")
    assert errors(CLEANER.clean_all([one(0), surrogate])) == [False, True]


def test_options_of_a_tenant_are_searched_under_its_rules() -> None:
    offered = ["ana@example.com", "large"]
    found = []
    for tenant in ("acme", "other"):
        decision = LoggedDecision(problem="task", eligible=offered, action="large", policy="uniform")
        (body,) = CLEANER.clean_all([one(tenant=tenant, decisions=(decision,))])
        assert isinstance(body, bytes)
        found.append(b"ana@example.com" in body)
    assert found == [True, False]
