"""Faults to what a policy knows of them. A policy learns in a world with few kinds of error; workers fail in many ways.

What may pass by itself is worth a retry; what is beyond a worker is worth another; what lacks an input is worth a
repair or another plan; what nobody wants is best left out.
"""

from __future__ import annotations

from etude.contracts.work import Fault
from etude.problems.workflow.world import ErrorCategory

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
"""What does not count against a worker's success."""
NOT_CHARGED = frozenset({Fault.RATE_LIMIT, Fault.UNAVAILABLE, Fault.BUDGET})
"""Where nothing was answered, so nothing is paid, unless the worker says otherwise."""
DOWN = frozenset({Fault.RATE_LIMIT, Fault.UNAVAILABLE})
"""What says that a worker is out of order for a while."""


def is_beyond(fault: Fault) -> bool:
    """Whether the subtask is beyond the worker that tried it."""
    return CATEGORY[fault] == ErrorCategory.CAPABILITY
