"""Hints for mistyped names: the closest one, before or after the rest of a message, or nothing."""

from __future__ import annotations

from etude.contracts.suggestions import closest, did_you_mean, nearest

KNOWN = ("workflow", "allocation")


def test_the_closest_name_is_suggested() -> None:
    assert closest("workflo", KNOWN) == "workflow"
    assert did_you_mean("workflo", KNOWN) == "did you mean 'workflow'? "
    assert nearest("alocation", iter(KNOWN)) == ": did you mean 'allocation'?"


def test_nothing_is_suggested_where_none_is_close() -> None:
    assert closest("prompt", KNOWN) is None
    assert did_you_mean("prompt", KNOWN) == nearest("prompt", KNOWN) == ""


def test_the_cutoff_decides_what_is_close() -> None:
    assert did_you_mean("work", KNOWN, cutoff=0.9) == ""
    assert did_you_mean("work", KNOWN, cutoff=0.5) == "did you mean 'workflow'? "
