"""Every fault is of some kind that a policy knows."""

from __future__ import annotations

import pytest

from etude.contracts.work import Fault
from etude.orchestrator.workers.simulated import FAULTS
from etude.problems.workflow.faults import CATEGORY, DOWN, NOT_CHARGED, NOT_THE_WORKERS, ErrorCategory, is_beyond


def test_every_fault_has_a_category_that_is_an_error() -> None:
    assert set(CATEGORY) == set(Fault)
    assert ErrorCategory.NONE not in CATEGORY.values()


def test_every_error_of_the_world_comes_back_as_itself() -> None:
    """What the simulated office says is understood as what happened there."""
    assert {CATEGORY[fault] for fault, _ in FAULTS.values()} == set(ErrorCategory) - {ErrorCategory.NONE}
    assert all(CATEGORY[fault] == category for category, (fault, _) in FAULTS.items())


@pytest.mark.parametrize(
    ("fault", "beyond"), [(Fault.REFUSAL, True), (Fault.INVALID_OUTPUT, True), (Fault.TIMEOUT, False)]
)
def test_what_is_beyond_a_worker(fault: Fault, beyond: bool) -> None:
    assert is_beyond(fault) == beyond


def test_what_counts_against_no_worker_is_beyond_none() -> None:
    assert not any(is_beyond(fault) for fault in NOT_THE_WORKERS)


def test_what_is_out_of_order_answers_nothing_so_nothing_is_paid() -> None:
    assert DOWN <= NOT_CHARGED
    assert all(CATEGORY[fault] == ErrorCategory.TRANSIENT for fault in DOWN)
