"""Every error Etude raises on purpose. A message says what is wrong with which value, what was expected, what to do.

EtudeError
├── ConfigError        a setting has a wrong name, type or value
├── CheckpointError    a checkpoint is missing, truncated, altered or of another problem
├── RunError           a run folder cannot be used as asked
├── ObservationError   an observation or action does not have the shape a policy or world takes
└── MissingExtraError  an optional dependency is not installed
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


class MissingExtraError(EtudeError):
    """An optional dependency is not installed."""

    def __init__(self, *, needs: str, extra: str) -> None:
        super().__init__(f"this needs {needs!r}, which is not installed: pip install 'etude[{extra}]'")
