"""Maps faults of workers to the error kinds of the simulated world, of which a policy knows only a few.

A transient fault suggests a retry; a fault of ability another worker; a missing input a repair or another plan; a
subtask that is not needed is best skipped.
"""

from __future__ import annotations

from enum import IntEnum

from etude.contracts.work import Fault


class ErrorCategory(IntEnum):
    """Why a node failed, as a policy sees it."""

    NONE = 0
    TRANSIENT = 1
    CAPABILITY = 2
    MISSING_INPUT = 3
    NOT_APPLICABLE = 4


CATEGORY = {
    Fault.TIMEOUT: ErrorCategory.TRANSIENT,
    Fault.RATE_LIMIT: ErrorCategory.TRANSIENT,
    Fault.UNAVAILABLE: ErrorCategory.TRANSIENT,
    Fault.REFUSAL: ErrorCategory.CAPABILITY,
    Fault.INVALID_OUTPUT: ErrorCategory.CAPABILITY,
    Fault.UNKNOWN: ErrorCategory.CAPABILITY,
    Fault.WRONG_INPUT: ErrorCategory.MISSING_INPUT,
    Fault.NOT_APPLICABLE: ErrorCategory.NOT_APPLICABLE,
    Fault.BUDGET: ErrorCategory.NOT_APPLICABLE,
}
NOT_THE_WORKERS = frozenset({Fault.WRONG_INPUT, Fault.NOT_APPLICABLE, Fault.BUDGET})
"""Faults that do not count against a worker's success rate."""
NOT_CHARGED = frozenset({Fault.RATE_LIMIT, Fault.UNAVAILABLE, Fault.BUDGET})
"""Faults without an answer, which cost nothing unless the worker reports a cost."""
DOWN = frozenset({Fault.RATE_LIMIT, Fault.UNAVAILABLE})
"""Faults which show that a worker is temporarily unavailable."""


def is_beyond(fault: Fault) -> bool:
    """Whether the worker is unable to do the subtask."""
    return CATEGORY[fault] == ErrorCategory.CAPABILITY
