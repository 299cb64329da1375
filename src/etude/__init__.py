"""Etude learns the decisions an AI-agent orchestrator makes. Importing it brings no torch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Orchestrator", "__version__", "feedback", "load", "task"]

__version__ = "0.1.0"

with suppress(ImportError):  # Gymnasium is optional, and knows an environment only once it is registered
    from etude.problems.allocation import registration as registration


def __getattr__(name: str) -> Any:
    """`etude.Orchestrator(policy, workers)` carries plans out; it comes when it is asked for."""
    if name == "Orchestrator":
        from etude.orchestrator.executor import Orchestrator

        return Orchestrator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def task(task: str, **about: Any) -> Any:
    """A task of your agent's, to be used in a `with` statement: what happens in it becomes a trajectory.

    `about` says for whom and by whom: user, group, tenant, agent, model, problem, metadata, id; collect=False keeps
    nothing. See `etude.experience.task.Collector.task`.
    """
    from etude.bootstrap.experience import collector

    return collector().task(task, **about)


def feedback(trajectory_id: str, **said: Any) -> bool:
    """What somebody says of a trajectory, now or days later: thumbs="up" or "down", stars=1…5, comment, user."""
    from etude.bootstrap.experience import collector

    return collector().feedback(trajectory_id, **said)


def load(path: str | Path, *, seed: int = 0) -> Any:
    """The best policy of a run, ready to act: `etude.load("runs/a").act(observation)`.

    A workflow run gives a planner: `etude.load("runs/p1").plan("Summarise the report and mail it")`.
    `path` is a run folder, or one checkpoint in it. `seed` starts the draws of `act(…, deterministic=False)`.
    """
    from etude.contracts.errors import MissingExtraError

    try:
        from etude.bootstrap.serving import load_policy
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("etude"):
            raise
        raise MissingExtraError(needs=error.name, extra="train") from error
    return load_policy(Path(path), seed=seed)
