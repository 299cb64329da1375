"""One attempt at a subtask, as a worker sees it: the subtask, the reply, and the fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from etude.contracts.errors import EtudeError


class Fault(StrEnum):
    """Why an attempt failed."""

    TIMEOUT = "timeout"  # no answer in time, or a stream that stalled
    RATE_LIMIT = "rate_limit"  # asked too often; later it may answer
    UNAVAILABLE = "unavailable"  # no answer at its address, a broken connection, a service out of order
    REFUSAL = "refusal"  # the worker declines the subtask
    INVALID_OUTPUT = "invalid_output"  # the worker answered, but the verifier rejected the output
    WRONG_INPUT = "wrong_input"  # the inputs are unusable or incomplete
    NOT_APPLICABLE = "not_applicable"  # the subtask is not needed
    BUDGET = "budget"  # too little money or time is left for an attempt
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """What a subtask works on: the output of an earlier subtask, or an input of the workflow, by its name."""

    task_type: str = ""  # of the earlier subtask
    output: Any
    name: str = ""  # of the input of the workflow


class WorkflowInput(Protocol):
    """An input of the whole workflow."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> Any:
        """A text, a JSON value, or bytes if it is not UTF-8."""

    @property
    def path(self) -> str:
        """Path of a private, read-only file with its content, which exists until the workflow ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subtask:
    """A subtask for a worker. The caller enforces the timeout; a worker need not."""

    workflow: str  # its id
    node: int
    attempt: int  # from 1
    instruction: str  # of the whole workflow
    task_type: str
    description: str = ""  # of the task type
    inputs: tuple[Input, ...] = ()  # in the order of the nodes it depends on; the workflow's if it depends on none
    workflow_inputs: Mapping[str, WorkflowInput] = field(default_factory=dict)  # by name
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the task type
    timeout_s: float | None = None  # time left, for services that take a timeout


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A worker's answer."""

    output: Any
    cost_usd: float | None = None  # None: the cost of a typical call in the catalogue
    usage: Mapping[str, int] = field(default_factory=dict)  # such as tokens in and out


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A verifier's judgement of an output."""

    ok: bool
    reason: str = ""
    fault: Fault = Fault.INVALID_OUTPUT
    cost_usd: float = 0.0  # of asking the verifier


class WorkerError(EtudeError):
    """An attempt failed; it carries the fault, the cost, and when a retry makes sense."""

    def __init__(
        self, message: str, *, fault: Fault, cost_usd: float | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.fault, self.cost_usd, self.retry_after_s = fault, cost_usd, retry_after_s
