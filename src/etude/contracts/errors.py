"""Every error Etude raises on purpose. A message says what is wrong with which value, what was expected, what to do.

EtudeError
├── ConfigError        a setting has a wrong name, type or value
├── CheckpointError    a checkpoint is missing, truncated, altered or of another problem
├── RunError           a run folder cannot be used as asked
├── ObservationError   an observation or action does not have the shape a policy or world takes
├── CatalogueError     a catalogue cannot be read, contradicts itself, or offers nothing that can be done
├── PlanError          a plan is not a DAG, or not one of its catalogue within its limits
├── DataError          a record of a data file is not what its format says
├── EndpointError      a service does not answer, or not with what was asked for
├── WorkersError       a workers file, or what it describes, cannot be used
├── LogError           an execution log cannot be read or written
├── EventError         an event is not what its schema says, or of a version nobody here knows
├── BusError           events cannot be sent or received
│   └── RefusedError   a message that this bus will never take, however often it is sent
├── StoreError         a store of experience cannot be read or written
├── DatasetError       a dataset cannot be made, read, or learned from
├── WorkerError        an attempt at a subtask failed (in `work.py`, with its Fault)
└── MissingExtraError  an optional dependency is not installed
    └── MissingPackageError  a package that comes without its own dependencies is not installed
"""


class EtudeError(Exception):
    """The root: catch it to catch everything Etude raises on purpose."""


class ConfigError(EtudeError):
    """A setting has a wrong name, type or value."""


class CheckpointError(EtudeError):
    """A checkpoint is missing, truncated, altered or of another problem."""


class RunError(EtudeError):
    """A run folder cannot be used as asked."""


class ObservationError(EtudeError):
    """An observation or action does not have the shape a policy or world takes."""


class CatalogueError(EtudeError):
    """A catalogue cannot be read, contradicts itself, or offers nothing that can be done."""


class PlanError(EtudeError):
    """A plan is not a DAG, or not one of its catalogue within its limits."""


class DataError(EtudeError):
    """A record of a data file is not what its format says."""


class EndpointError(EtudeError):
    """A service does not answer, or not with what was asked for."""


class WorkersError(EtudeError):
    """A workers file, or what it describes, cannot be used."""


class LogError(EtudeError):
    """An execution log cannot be read or written."""


class EventError(EtudeError):
    """An event is not what its schema says, or of a version nobody here knows."""


class BusError(EtudeError):
    """Events cannot be sent or received."""


class RefusedError(BusError):
    """A message that this bus will never take, however often it is sent."""


class StoreError(EtudeError):
    """A store of experience cannot be read or written."""


class DatasetError(EtudeError):
    """A dataset cannot be made, read, or learned from."""


class MissingExtraError(EtudeError):
    """An optional dependency is not installed."""

    def __init__(self, *, needs: str, extra: str) -> None:
        super().__init__(f"this needs {needs!r}, which is not installed: pip install 'etude[{extra}]'")


class MissingPackageError(MissingExtraError):
    """A package is not installed that comes without its own dependencies, and so with none of our extras."""

    def __init__(self, *, needs: str, install: str) -> None:
        EtudeError.__init__(self, f"this needs {needs!r}, which is not installed: {install}")
