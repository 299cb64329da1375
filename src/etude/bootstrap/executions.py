"""Wires executions: their settings, redaction before a line is logged, and the logs that `forget` erases from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict

from etude.bootstrap.experience import config_here, open_store
from etude.contracts.store import ExperienceStore
from etude.contracts.trajectory import Trajectory, Turn
from etude.experience.cleaning import make_cleaner, pseudonym
from etude.orchestrator.config import OrchestratorConfig
from etude.settings.sources import FILE, PREFIX, Assignment, Tree

LOGS = "execution_log"
"""The kind of document for the folder of a log, by its path."""

SECTION = "orchestrator"


class ExecutionSettings(BaseModel):
    """The section of the settings tree that executions need."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    orchestrator: OrchestratorConfig = OrchestratorConfig()


def execution_config(flags: Mapping[str, Any]) -> OrchestratorConfig:
    """Settings from ./etude.yaml, ETUDE_ORCHESTRATOR__… variables and `flags`, None for those not given."""
    tree = Tree(ExecutionSettings)
    variables = {name: value for name, value in os.environ.items() if name.startswith(f"{PREFIX}{SECTION.upper()}")}
    found = [*(tree.from_file(Path(FILE)) if Path(FILE).exists() else ()), *tree.from_environment(variables)]
    own = [assignment for assignment in found if assignment.key.partition(".")[0] == SECTION]
    for flag, value in flags.items():
        if value is not None:
            key = flag.removeprefix("--").replace("-", "_")
            own.append(Assignment(f"{SECTION}.{key}", value, flag))
    return tree.build(own).settings.orchestrator


def log_redaction() -> Callable[[Trajectory], Trajectory]:
    """A function that redacts the texts of a workflow's trajectory under the settings; the rest are ids and numbers."""
    cleaner = make_cleaner(config_here())

    def redact(trajectory: Trajectory) -> Trajectory:
        outcome, user = trajectory.outcome, trajectory.user
        results = [[turn.result, turn.error, _parameters(turn)] for turn in trajectory.turns]
        task, error, results = cleaner.value([trajectory.task, outcome.error, results])
        turns = zip(trajectory.turns, results, strict=True)
        return msgspec.structs.replace(
            trajectory,
            task=task,
            outcome=msgspec.structs.replace(outcome, error=error),
            turns=tuple(_with_result(turn, *texts) for turn, texts in turns),
            user=user if user is None or cleaner.text(user) == user else pseudonym(user),
        )

    return redact


def _parameters(turn: Turn) -> Any:
    return turn.action.get("parameters") if isinstance(turn.action, dict) else None


def _with_result(turn: Turn, result: object, error: str | None, parameters: Any) -> Turn:
    action = turn.action if parameters is None else turn.action | {"parameters": parameters}
    return msgspec.structs.replace(turn, action=action, result=result, error=error)


def register_log(folder: Path) -> None:
    """Record a log that names users, so that `forget` erases from it."""
    store = open_store()
    try:
        store.put(LOGS, str(folder.resolve()), b"")
    finally:
        store.close()


def registered_logs(store: ExperienceStore) -> list[Path]:
    return [Path(path) for path in store.documents(LOGS)]
