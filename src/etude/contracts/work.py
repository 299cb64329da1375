"""One attempt at a subtask, as a worker sees it: what it is asked, what it answers, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from etude.contracts.errors import EtudeError


class Fault(StrEnum):
    """Why an attempt came to nothing."""

    TIMEOUT = "timeout"  # no answer in time, or a stream that stalled
    RATE_LIMIT = "rate_limit"  # asked too often; later it may answer
    UNAVAILABLE = "unavailable"  # nobody there, a broken connection, a service out of order
    REFUSAL = "refusal"  # it will not do this
    INVALID_OUTPUT = "invalid_output"  # it answered, but the verifier says no
    WRONG_INPUT = "wrong_input"  # it was given what it cannot work with, or lacks what it needs
    NOT_APPLICABLE = "not_applicable"  # nobody wants this subtask
    BUDGET = "budget"  # money or time does not suffice to try
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """What an earlier subtask made, passed along an edge."""

    task_type: str
    output: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Subtask:
    """What a worker is asked. The caller sees to it that it ends in time; a worker need not watch the clock."""

    workflow: str  # its id
    node: int
    attempt: int  # from 1
    instruction: str  # of the whole workflow
    task_type: str
    description: str = ""  # of the task type
    inputs: tuple[Input, ...] = ()  # in the order of the nodes it depends on
    timeout_s: float | None = None  # what is left to it, for services that want to know


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a worker answers."""

    output: Any
    cost_usd: float | None = None  # None: what a typical call costs by the catalogue
    usage: Mapping[str, int] = field(default_factory=dict)  # tokens in and out, or whatever is counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a verifier says about an output."""

    ok: bool
    reason: str = ""
    fault: Fault = Fault.INVALID_OUTPUT
    cost_usd: float = 0.0  # of asking the verifier


class WorkerError(EtudeError):
    """An attempt failed: with which Fault, at what cost, and when it makes sense to ask again."""

    def __init__(
        self, message: str, *, fault: Fault, cost_usd: float | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.fault, self.cost_usd, self.retry_after_s = fault, cost_usd, retry_after_s
