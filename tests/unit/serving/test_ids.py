"""Ids of what callers send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from etude.serving.ids import id_of_tenant

IDS = st.text("ab-.1", min_size=1, max_size=128)
TENANTS = st.text(min_size=1, max_size=5)


@given(first=IDS, second=IDS, one=TENANTS, other=TENANTS)
def test_ids_of_tenants_never_meet(first: str, second: str, one: str, other: str) -> None:
    made = id_of_tenant(first, one)
    assert made == id_of_tenant(made, one)
    assert len(made) <= 128
    assert id_of_tenant(first, None) == first
    assert (made == id_of_tenant(second, other)) == ((first, one) == (second, other))


def test_long_ids_that_begin_alike_are_different() -> None:
    assert id_of_tenant("a" * 128, "t") != id_of_tenant("a" * 127, "t")
