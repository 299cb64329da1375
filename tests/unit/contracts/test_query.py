"""Conditions as text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import DataError
from etude.contracts.query import Where, parse

NAMES = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="\"'"), min_size=1, max_size=12)
NUMBERS = st.floats(-1e6, 1e6)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
WHERES = st.builds(
    Where,
    **{name: st.none() | NAMES.map(str.strip).filter(bool) for name in ("problem", "policy", "user", "group")},
    outcome=st.sampled_from([None, "success", "failure", "unknown"]),
    since=st.none() | TIMES,
    until=st.none() | TIMES,
    min_reward=st.none() | NUMBERS,
    max_reward=st.none() | NUMBERS,
    feedback=st.sampled_from([None, True, False]),
)


@given(WHERES)
def test_text_and_back(where: Where) -> None:
    assert parse(str(where)) == where


def test_as_people_write_it() -> None:
    where = parse("problem=workflow and outcome=success, time>=2026-11-01 and time<2026-12-01 and reward >= 0.5")
    assert where == Where(
        problem="workflow",
        outcome="success",
        since=datetime(2026, 11, 1, tzinfo=UTC),
        until=datetime(2026, 12, 1, tzinfo=UTC),
        min_reward=0.5,
    )
    assert parse("") == parse("   ") == Where()
    assert parse("user='Ana Maria' and policy=\"a, b\"") == Where(user="Ana Maria", policy="a, b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problm=workflow", "did you mean 'problem='"),
        ("reward=3", "reward>="),
        ("time>2026-11-01", "did you mean 'time>="),
        ("time>=soon", "expected a date or time"),
        ("reward>=much", "reward>=much"),
        ("outcome=good", "success, failure or unknown"),
        ("feedback=1", "true or false"),
        ("problem=a and problem=b", "twice"),
        ("problem", "cannot read 'problem'"),
        ("problem=a; drop table", "cannot read"),
    ],
)
def test_a_wrong_query_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse(text)
