"""A log that contradicts itself is noticed; one that does not is not doubted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from etude.contracts.trajectory import Trajectory
from etude.problems.workflow.contradictions import contradiction, describe_contradictions
from tests.unit.problems.workflow.test_worker_model import turn, workflow


def logged(fault: str | None = None, *, status: str = "done", cost_usd: float | None = 0.02) -> Trajectory:
    made = workflow([turn(0, "sort", "cheap", "timeout"), turn(0, "sort", "dear", fault)], cost_usd=cost_usd)
    nodes: list[dict[str, Any]] = [{"task_type": 0, "dependencies": [], "status": status}]
    return msgspec.structs.replace(made, metadata={"nodes": nodes})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (logged(), None),
        (logged("timeout", status="skipped"), None),
        (logged("timeout", status="dropped"), None),
        (logged(cost_usd=None), None),
        (logged("timeout"), "its last attempt failed"),
        (logged(status="failed"), "its last attempt failed"),
        (logged(cost_usd=0.001), "cost more than the workflow"),
    ],
)
def test_what_cannot_be_true(made: Trajectory, said: str | None) -> None:
    found = contradiction(made)
    assert (found is None) == (said is None)
    assert said is None or said in str(found)


def test_a_few_are_tolerated_and_many_are_reported() -> None:
    good, bad = logged(), logged(cost_usd=0.001)
    assert describe_contradictions([good] * 99 + [bad]) is None
    assert "contradicts itself in 5 of 100 workflows" in str(describe_contradictions([good] * 95 + [bad] * 5))
    assert describe_contradictions([]) is None
