"""Every error Etude raises on purpose. A message says what is wrong with which value, what was expected, what to do.

EtudeError
├── ConfigError        a setting has a wrong name, type or value
├── CheckpointError    a checkpoint is missing, truncated, altered or of another problem
├── RunError           a run folder cannot be used as asked
├── ObservationError   an observation or action does not have the shape that a policy or world expects
├── CatalogueError     a catalogue cannot be read, is inconsistent, or has no task type that a worker can do
├── PlanError          a plan is not a DAG, does not fit its catalogue, or exceeds its limits
│   └── UnsureError    a plan is less probable than required
├── DataError          a record of a data file, or an argument of a task, is not valid
│   ├── NoOptionError  no option of a choice may be chosen (in `decision.py`, with what is expected of each)
│   └── PromptError    a prompt cannot be mutated, or not in the way that was asked for
├── EndpointError      a service does not answer, or gives an unexpected answer
│   └── NoDecisionError  a server gives no decision of a policy now
├── WorkersError       a workers file, or a worker in it, cannot be used
├── LogError           an execution log cannot be read or written
├── RequestError       a request to the HTTP API is refused: by whom it is, what it wants, or how often
├── EventError         an event does not match its schema, or its schema version is unknown
├── BusError           events cannot be sent or received
│   └── RefusedError   a message that this bus will never accept, however often it is sent
├── StoreError         the experience store cannot be read or written
├── DatasetError       a dataset cannot be made, read, or learned from
├── ReleaseError       a policy cannot be registered, exposed, promoted or rolled back as asked
│   ├── TamperedError  a registered file or an entry of a ledger is not what was signed
│   └── ConflictError  another process changed the slot first: read it again
├── JobError           a job cannot be queued, run or changed as asked
├── WorkerError        an attempt at a subtask failed (in `work.py`, with its Fault)
└── MissingExtraError  an optional dependency is not installed
    └── MissingPackageError  a package that comes without its own dependencies is not installed
"""

from typing import Literal

NoDecision = Literal["loading", "missing", "slow", "no option", "broken", "away", "key", "refused"]
"""Why a policy does not decide: the last three only where a server is asked."""


class EtudeError(Exception):
    """The root: catch it to catch everything Etude raises on purpose."""


class ConfigError(EtudeError):
    """A setting has a wrong name, type or value."""


class CheckpointError(EtudeError):
    """A checkpoint is missing, truncated, altered or of another problem."""


class RunError(EtudeError):
    """A run folder cannot be used as asked."""


class ObservationError(EtudeError):
    """An observation or action does not have the shape that a policy or world expects."""


class CatalogueError(EtudeError):
    """A catalogue cannot be read, is inconsistent, or has no task type that a worker can do."""


class PlanError(EtudeError):
    """A plan is not a DAG, does not fit its catalogue, or exceeds its limits; making it may have cost something."""

    def __init__(self, message: str, *, cost_usd: float = 0.0) -> None:
        super().__init__(message)
        self.cost_usd = cost_usd


class UnsureError(PlanError):
    """A plan is less probable than required, and no one else may plan."""


class DataError(EtudeError):
    """A record of a data file, or an argument of a task, is not valid."""


class PromptError(DataError):
    """A prompt cannot be mutated, or not in the way that was asked for."""


class EndpointError(EtudeError):
    """A service does not answer, or gives an unexpected answer."""


class NoDecisionError(EndpointError):
    """A server gives no decision of a policy now; `reason` says why."""

    def __init__(self, message: str, *, reason: NoDecision) -> None:
        super().__init__(message)
        self.reason: NoDecision = reason


class WorkersError(EtudeError):
    """A workers file, or a worker in it, cannot be used."""


class LogError(EtudeError):
    """An execution log cannot be read or written."""


class RequestError(EtudeError):
    """A request to the HTTP API is refused; `status` is that of HTTP."""

    def __init__(self, message: str, *, status: int, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.wait_s = status, wait_s


class EventError(EtudeError):
    """An event does not match its schema, or its schema version is unknown."""


class BusError(EtudeError):
    """Events cannot be sent or received."""


class RefusedError(BusError):
    """A message that this bus will never accept, however often it is sent."""


class StoreError(EtudeError):
    """The experience store cannot be read or written."""


class DatasetError(EtudeError):
    """A dataset cannot be made, read, or learned from."""


class ReleaseError(EtudeError):
    """A policy cannot be registered, exposed, promoted or rolled back as asked."""


class TamperedError(ReleaseError):
    """A registered file or an entry of a ledger is not what was signed."""


class ConflictError(ReleaseError):
    """Another process changed the slot first: read it again."""


class JobError(EtudeError):
    """A job cannot be queued, run or changed as asked."""


class MissingExtraError(EtudeError):
    """An optional dependency is not installed."""

    def __init__(self, *, needs: str, extra: str) -> None:
        super().__init__(f"this needs {needs!r}, which is not installed: pip install 'etude[{extra}]'")


class MissingPackageError(MissingExtraError):
    """A package is not installed that no extra includes, since it must be installed without its dependencies."""

    def __init__(self, *, needs: str, install: str) -> None:
        EtudeError.__init__(self, f"this needs {needs!r}, which is not installed: {install}")
